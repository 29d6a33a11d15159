//! The rendezvous of programs of different supervisors on the loopback.
//!
//! A listener has a *rendezvous socket* in a folder of its user: a local socket, named by its
//! address. Another supervisor opens a session by connecting a socket to it whose own name has both
//! addresses ([`Name`]). The kernel makes both ends, so that each program's end is a file that no
//! other process has. Must stay true: nothing here blocks, except for a bounded time while another
//! supervisor takes a name; one supervisor at a time takes or replaces names; the folder is reached
//! through its descriptor alone; both ends trust only processes of the own user, verified by
//! SO_PEERCRED; addresses outside of the loopback are rejected; a name that a killed supervisor
//! left behind is replaced.

use crate::socket::files::local_stream;
use crate::supervisor::named::{Maker, connect_named, ends_of, is_made_by, read_name};
use rustix::fs::{AtFlags, FlockOperation, Mode};
use rustix::io::Errno;
use rustix::net::{SocketAddrUnix, SocketFlags};
use sidecore_net_rings::{Name, Role};
use sidecore_sys::folder::Folder;
use sidecore_sys::local_socket;
use std::ffi::{OsStr, OsString};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

/// The folder.
#[derive(Debug)]
pub(crate) struct Rendezvous(Rc<Folder>);

/// A listening address, by which the supervisors of other runs reach the listener.
#[derive(Debug)]
pub(crate) struct RendezvousSocket {
    listener: OwnedFd,
    /// The address at which it listens.
    local: SocketAddr,
    folder: Rc<Folder>,
    name: OsString,
    /// The inode of the name: another file may have it by the end.
    inode: u64,
    /// The link with the name of the listener's near end, if its program accepts from that
    /// directly.
    near: Option<OsString>,
}

/// A session that a program of another run has opened.
#[derive(Debug)]
pub(crate) struct Arrival {
    /// The end for the accepting program.
    pub(crate) near: OwnedFd,
    pub(crate) local: SocketAddr,
    pub(crate) peer: SocketAddr,
}

impl Rendezvous {
    /// Opens the folder at `path`, or creates it. The folder belongs to the own user and is closed
    /// to other users; only root can replace it or one of its parents.
    ///
    /// # Errors
    /// It cannot be created, or does not meet these conditions.
    pub(crate) fn at(path: &Path) -> std::io::Result<Self> {
        // The folder above may hold servers of other users and be sticky (`/tmp`): its owner and
        // mode are checked below, like those of all other parents.
        let above = path.parent().unwrap_or(path);
        if !above.exists() {
            Folder::create_trusted(above, 0o755).map_err(|error| error.into_io())?;
        }
        let folder = Folder::create_trusted(path, 0o700).map_err(|error| error.into_io())?;
        let status = folder.stat()?;
        let own = local_socket::effective_uid();
        if status.st_uid != own {
            let error = format!(
                "it belongs to user {}, and the programs of user {own} need one of their own; \
                 remove it, or set XDG_RUNTIME_DIR",
                status.st_uid
            );
            return Err(std::io::Error::other(error));
        }
        if status.st_mode & 0o077 != 0 {
            // Created by an earlier version, which let other users in.
            rustix::fs::fchmod(&folder, Mode::from_raw_mode(0o700))?;
        }
        Ok(Self(Rc::new(folder)))
    }

    /// Listens at the names of `local`.
    ///
    /// # Errors
    /// `EADDRINUSE` where another supervisor does.
    pub(crate) fn open(
        &self,
        local: SocketAddr,
        is_v6_only: bool,
        near: Option<(Name, bool)>,
    ) -> Result<Vec<RendezvousSocket>, Errno> {
        // A dual-stack listener has a name for each family, because peers look for the address that
        // they connect to.
        let mut places = vec![local];
        if local.ip().is_unspecified() && local.is_ipv6() && !is_v6_only {
            places.push(SocketAddr::from(([0, 0, 0, 0], local.port())));
        }
        // Between its bind and its listen a socket looks like one that was left behind.
        let _claim = Claim::on(&self.0)?;
        let open = |local: SocketAddr| {
            let name = name_of(local);
            if self.is_taken(&name)? {
                return Err(Errno::ADDRINUSE);
            }
            // Left behind by a supervisor that was killed: nothing accepts there.
            self.0.remove_file(&name).ok();
            let listener = local_stream(true)?;
            let address = SocketAddrUnix::new(self.0.reach(&name))?;
            rustix::net::bind(&listener, &address)?;
            rustix::net::listen(&listener, BACKLOG)?;
            let inode = rustix::fs::statat(&*self.0, &name, AtFlags::SYMLINK_NOFOLLOW)?.st_ino;
            let link = link_of(&name);
            self.0.remove_file(&link).ok();
            // Best effort: without the link, sessions go through this socket.
            let near = near.and_then(|(name, is_v6)| {
                let target = text_of(&name, is_v6);
                rustix::fs::symlinkat(target, &*self.0, &link).ok()?;
                Some(link)
            });
            Ok(RendezvousSocket {
                listener,
                local,
                folder: Rc::clone(&self.0),
                name,
                inode,
                near,
            })
        };
        places.into_iter().map(open).collect()
    }

    /// True if a supervisor listens at this name.
    fn is_taken(&self, name: &OsStr) -> Result<bool, Errno> {
        let probe = local_stream(true)?;
        match rustix::net::connect(&probe, &SocketAddrUnix::new(self.0.reach(name))?) {
            // EAGAIN: the accept queue is full.
            Ok(()) | Err(Errno::AGAIN) => Ok(true),
            Err(_) => Ok(false),
        }
    }

    /// Opens a session to the listener at `peer` and returns the near end. `name` is the new end's
    /// own.
    ///
    /// # Errors
    /// `ECONNREFUSED` where no program of this user listens.
    pub(crate) fn connect(&self, peer: SocketAddr, name: &Name) -> Result<OwnedFd, Errno> {
        let any = SocketAddr::new(any_of(peer.ip()), peer.port());
        for at in [peer, any] {
            let to = SocketAddrUnix::new(self.0.reach(&name_of(at)))?;
            match connect_named(name, &to, Maker::User) {
                Err(Errno::NOENT | Errno::CONNREFUSED) => {}
                // The accept queue is full.
                Err(Errno::AGAIN) => return Err(Errno::CONNREFUSED),
                connected => return connected,
            }
        }
        Err(Errno::CONNREFUSED)
    }

    /// The name of the near end of the listener at `local`, if its program accepts from it
    /// directly; true if it is IPv6.
    pub(crate) fn near_of(&self, local: SocketAddr) -> Option<(Name, bool)> {
        let exact = name_of(local);
        match self.read_link(&link_of(&exact)) {
            Some(text) => return read_text(&text),
            // A listener at exactly this address without direct accepts takes precedence over
            // `any`.
            None if rustix::fs::statat(&*self.0, &exact, AtFlags::SYMLINK_NOFOLLOW).is_ok() => {
                return None;
            }
            None => {}
        }
        let any = name_of(SocketAddr::new(any_of(local.ip()), local.port()));
        read_text(&self.read_link(&link_of(&any))?)
    }

    fn read_link(&self, name: &OsStr) -> Option<String> {
        let text = rustix::fs::readlinkat(&*self.0, name, Vec::with_capacity(LINK_BYTES)).ok()?;
        text.into_string().ok()
    }
}

impl RendezvousSocket {
    pub(crate) fn file(&self) -> &OwnedFd {
        &self.listener
    }

    /// The next session in the accept queue; processes of other users are skipped, up to a bound.
    pub(crate) fn next(&self) -> Option<Arrival> {
        for _ in 0..SKIPPED_MAX {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let (near, from) = rustix::net::acceptfrom_with(&self.listener, flags).ok()?;
            if !is_made_by(&near, Maker::User) {
                continue;
            }
            let name = from.and_then(read_name);
            if let Some((local, peer)) = name.and_then(|name| judge(self.local, &name)) {
                return Some(Arrival { near, local, peer });
            }
        }
        None
    }
}

/// The right to take names in the folder, which one supervisor has at a time.
#[derive(Debug)]
struct Claim<'f>(&'f Folder);

impl<'f> Claim<'f> {
    /// Waits while another supervisor has it.
    ///
    /// # Errors
    /// `EADDRINUSE` where that takes too long; the kernel's.
    fn on(folder: &'f Folder) -> Result<Self, Errno> {
        // A longer wait would stop this supervisor's programs with the other one.
        match folder.lock_within(CLAIM_MAX) {
            Ok(()) => Ok(Self(folder)),
            Err(error) if error.kind() == std::io::ErrorKind::TimedOut => Err(Errno::ADDRINUSE),
            Err(error) => Err(Errno::from_io_error(&error).unwrap_or(Errno::IO)),
        }
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        rustix::fs::flock(self.0, FlockOperation::Unlock).ok();
    }
}

/// The addresses in the name of a connecting socket, local and peer; none if they are not of the
/// loopback, or do not match the rendezvous socket at `at`.
pub fn judge(at: SocketAddr, name: &Name) -> Option<(SocketAddr, SocketAddr)> {
    let (local, peer) = ends_of(name).filter(|_| name.role == Role::Program)?;
    let is_here = at.ip().is_unspecified() || at.ip() == local.ip();
    (is_here && at.port() == local.port()).then_some((local, peer))
}

impl Drop for RendezvousSocket {
    fn drop(&mut self) {
        let named = rustix::fs::statat(&*self.folder, &self.name, AtFlags::SYMLINK_NOFOLLOW);
        // Of another supervisor by now, with the link.
        if !named.is_ok_and(|named| named.st_ino == self.inode) {
            return;
        }
        self.folder.remove_file(&self.name).ok();
        if let Some(near) = &self.near {
            self.folder.remove_file(near).ok();
        }
    }
}

fn name_of(local: SocketAddr) -> OsString {
    format!("{}-{}", local.ip(), local.port()).into()
}

fn any_of(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
    }
}

/// Name of the link with a listener's near end, next to its rendezvous socket.
fn link_of(socket: &OsStr) -> OsString {
    let mut link = socket.to_owned();
    link.push(".near");
    link
}

/// A listener's name and its address family, as a link's target.
fn text_of(name: &Name, is_v6: bool) -> String {
    let family = if is_v6 { 6 } else { 4 };
    format!("{}-{:x}-{family}", name.process, name.number)
}

/// Reads such a target.
pub fn read_text(text: &str) -> Option<(Name, bool)> {
    let (process, rest) = text.split_once('-')?;
    let (number, family) = rest.split_once('-')?;
    let number = u64::from_str_radix(number, 16).ok()?;
    let name = Name::new(Role::Listener, process.parse().ok()?, number);
    Some((name, family == "6"))
}

const BACKLOG: i32 = 4096;
/// Connections that one call of [`RendezvousSocket::next`] accepts.
const SKIPPED_MAX: usize = 1024;
/// The longest wait for the right to take names.
const CLAIM_MAX: Duration = Duration::from_millis(500);
/// Longer than a link's target.
const LINK_BYTES: usize = 64;

#[cfg(test)]
mod tests;

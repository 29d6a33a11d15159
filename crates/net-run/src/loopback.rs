//! How programs of different supervisors find one another on the loopback.
//!
//! A listener has a socket in a folder beside the stack's own, named by its address; who opens a
//! session sends the other end of its pair there, with both addresses. Must stay true: a name that
//! a killed supervisor left behind is taken over; whatever is sent is checked.

use crate::address::{self, Given};
use crate::socket::{From, Pending};
use rustix::io::Errno;
use sidecore_sys::SysError;
use sidecore_sys::local_socket::{self, Received};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

/// The folder.
#[derive(Debug)]
pub(crate) struct Rendezvous(PathBuf);

/// One listening name.
#[derive(Debug)]
pub(crate) struct Door {
    listener: OwnedFd,
    path: PathBuf,
    owner: u64,
}

impl Rendezvous {
    /// In the folder at `path`, which is made if need be.
    ///
    /// # Errors
    /// It cannot be made, or belongs to another user than this one and root.
    pub(crate) fn at(path: &Path) -> std::io::Result<Self> {
        use std::os::unix::fs::{DirBuilderExt, MetadataExt};
        let mut builder = std::fs::DirBuilder::new();
        builder.recursive(true).mode(0o755).create(path)?;
        let owner = std::fs::symlink_metadata(path)?;
        let is_ours = owner.uid() == local_socket::effective_uid() || owner.uid() == 0;
        if !owner.is_dir() || !is_ours || owner.mode() & 0o022 != 0 {
            let error = format!("{} is not a folder of this user's alone", path.display());
            return Err(std::io::Error::other(error));
        }
        Ok(Self(path.to_owned()))
    }

    /// Listens at the names of `local` for the socket `owner`.
    ///
    /// # Errors
    /// `EADDRINUSE` where another supervisor does.
    pub(crate) fn open(
        &self,
        local: SocketAddr,
        is_v6_only: bool,
        owner: u64,
    ) -> Result<Vec<Door>, Errno> {
        let mut names = vec![self.name(local)];
        if local.ip().is_unspecified() && local.is_ipv6() && !is_v6_only {
            names.push(self.name(SocketAddr::from(([0, 0, 0, 0], local.port()))));
        }
        let open = |path: PathBuf| {
            if local_socket::connect(&path).is_ok() {
                return Err(Errno::ADDRINUSE);
            }
            // Nobody listens there any more, or never has.
            std::fs::remove_file(&path).ok();
            let listener = local_socket::listen(&path, 0o666, DOOR_BACKLOG).map_err(errno)?;
            Ok(Door {
                listener,
                path,
                owner,
            })
        };
        names.into_iter().map(open).collect()
    }

    /// Sends one end of a pair to who listens at `pending.local`.
    ///
    /// # Errors
    /// `ECONNREFUSED` where nobody does.
    pub(crate) fn visit(&self, pending: Pending) -> Result<(), Errno> {
        let From::Program(near) = &pending.from else {
            return Err(Errno::INVAL);
        };
        let any: IpAddr = match pending.local.ip() {
            IpAddr::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
        };
        let port = pending.local.port();
        let names = [pending.local, SocketAddr::new(any, port)].map(|at| self.name(at));
        let connected = names
            .iter()
            .find_map(|name| local_socket::connect(name).ok());
        let socket = connected.ok_or(Errno::CONNREFUSED)?;
        let ends = [pending.local, pending.peer].map(|end| address::write(end, true));
        local_socket::send(socket.as_fd(), &ends.concat(), &[near.as_fd()]).map_err(errno)
    }

    fn name(&self, local: SocketAddr) -> PathBuf {
        self.0.join(format!("{}-{}", local.ip(), local.port()))
    }
}

impl Door {
    pub(crate) fn file(&self) -> &OwnedFd {
        &self.listener
    }

    /// The socket that listens here.
    pub(crate) fn owner(&self) -> u64 {
        self.owner
    }

    /// The next session that came.
    pub(crate) fn next(&self) -> Option<Pending> {
        loop {
            let visitor = local_socket::accept(self.listener.as_fd()).ok().flatten()?;
            let mut message = [0; 64];
            let received = local_socket::receive(visitor.as_fd(), &mut message);
            // Who only wanted to know if somebody listens here says nothing.
            if let Ok(Received::Message(bytes, files)) = received
                && let Some(pending) = read(&message[..bytes], files)
            {
                return Some(pending);
            }
        }
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        std::fs::remove_file(&self.path).ok();
    }
}

/// Two addresses and one end of a pair.
fn read(message: &[u8], files: Vec<OwnedFd>) -> Option<Pending> {
    let (local, peer) = message.split_at_checked(message.len() / 2)?;
    let (Given::Inet(local), Given::Inet(peer)) = (address::read(local), address::read(peer))
    else {
        return None;
    };
    let [near] = <[OwnedFd; 1]>::try_from(files).ok()?;
    // Anything else could make a program wait where it must not.
    let kind = rustix::net::sockopt::socket_type(&near).ok()?;
    let domain = rustix::net::sockopt::socket_domain(&near).ok()?;
    let is_pair =
        kind == rustix::net::SocketType::STREAM && domain == rustix::net::AddressFamily::UNIX;
    is_pair.then_some(Pending {
        local,
        peer,
        from: From::Program(near),
    })
}

fn errno(error: SysError) -> Errno {
    match error {
        SysError::Call { source, .. } => Errno::from_io_error(&source).unwrap_or(Errno::IO),
        _ => Errno::IO,
    }
}

const DOOR_BACKLOG: i32 = 4096;

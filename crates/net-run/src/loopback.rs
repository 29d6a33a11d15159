//! How programs of different supervisors find one another on the loopback.
//!
//! A listener has a socket in a folder beside the stack's own, named by its address; who opens a
//! session sends the other end of its pair there, with both addresses. Must stay true: a name that
//! a killed supervisor left behind is taken over; whatever is sent is checked.

use crate::address::{self, Given};
use crate::socket::{From, Pending};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use sidecore_net_rings::{Name, Role};
use sidecore_sys::SysError;
use sidecore_sys::local_socket::{self, Received};
use std::collections::VecDeque;
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
    /// Those who came and have not said what for.
    visitors: VecDeque<OwnedFd>,
    path: PathBuf,
    /// Says the name of the listener's near end, where its program accepts from that by itself.
    near: Option<PathBuf>,
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
        near: Option<(Name, bool)>,
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
            let link = near_path(&path);
            std::fs::remove_file(&link).ok();
            let near = near.and_then(|(name, is_v6)| {
                let target = text_of(&name, is_v6);
                std::os::unix::fs::symlink(target, &link).ok()?;
                Some(link)
            });
            Ok(Door {
                listener,
                visitors: VecDeque::new(),
                path,
                near,
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
        let any = any_of(pending.local.ip());
        let port = pending.local.port();
        let names = [pending.local, SocketAddr::new(any, port)].map(|at| self.name(at));
        let connected = names
            .iter()
            .find_map(|name| local_socket::connect(name).ok());
        let socket = connected.ok_or(Errno::CONNREFUSED)?;
        let ends = [pending.local, pending.peer].map(|end| address::write(end, true));
        local_socket::send(socket.as_fd(), &ends.concat(), &[near.as_fd()]).map_err(errno)
    }

    /// The near end of who listens at `local`, where its program accepts from that by itself; true
    /// if it is of IPv6.
    pub(crate) fn near_of(&self, local: SocketAddr) -> Option<(Name, bool)> {
        let exact = self.name(local);
        match std::fs::read_link(near_path(&exact)) {
            Ok(text) => return read_text(text.to_str()?),
            // It is at exactly this address, but not so.
            Err(_) if std::fs::symlink_metadata(&exact).is_ok() => return None,
            Err(_) => {}
        }
        let any = self.name(SocketAddr::new(any_of(local.ip()), local.port()));
        read_text(std::fs::read_link(near_path(&any)).ok()?.to_str()?)
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

    /// The next session that came. Visitors who have not spoken yet are watched by `epoll`, which
    /// names them by `mark`.
    pub(crate) fn next(&mut self, epoll: &OwnedFd, mark: EventData) -> Option<Pending> {
        while let Some(visitor) = local_socket::accept(self.listener.as_fd()).ok().flatten() {
            if self.visitors.len() >= VISITORS_MAX {
                self.visitors.pop_front();
            }
            if epoll::add(epoll, &visitor, mark, EventFlags::IN).is_ok() {
                self.visitors.push_back(visitor);
            }
        }
        for _ in 0..self.visitors.len() {
            let visitor = self.visitors.pop_front()?;
            let mut message = [0; 64];
            match local_socket::receive(visitor.as_fd(), &mut message) {
                Ok(Received::Nothing) => self.visitors.push_back(visitor),
                Ok(Received::Message(bytes, files)) => {
                    if let Some(pending) = read(&message[..bytes], files) {
                        return Some(pending);
                    }
                }
                // Who only wanted to know if somebody listens here.
                Ok(Received::End) | Err(_) => {}
            }
        }
        None
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        std::fs::remove_file(&self.path).ok();
        if let Some(near) = &self.near {
            std::fs::remove_file(near).ok();
        }
    }
}

fn any_of(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
    }
}

/// Path of the link that tells of the near end, beside a door.
fn near_path(door: &Path) -> PathBuf {
    door.with_added_extension("near")
}

/// A listener's name, and whether it is of IPv6, as a link's target.
fn text_of(name: &Name, is_v6: bool) -> String {
    let family = if is_v6 { 6 } else { 4 };
    format!("{}-{:x}-{family}", name.process, name.number)
}

fn read_text(text: &str) -> Option<(Name, bool)> {
    let (process, rest) = text.split_once('-')?;
    let (number, family) = rest.split_once('-')?;
    let number = u64::from_str_radix(number, 16).ok()?;
    let name = Name::new(Role::Listener, process.parse().ok()?, number);
    Some((name, family == "6"))
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
/// The most visitors that have not spoken yet.
const VISITORS_MAX: usize = 1024;

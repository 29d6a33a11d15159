//! Local sockets whose names identify their owner ([`sidecore_net_rings::Name`]).
//!
//! Must stay true: nothing here blocks; any name that another process has chosen can be parsed.

use crate::address::{self, Given};
use crate::socket::files::{local_stream, set_nonblocking};
use rustix::io::Errno;
use rustix::net::{SocketAddrAny, SocketAddrUnix};
use sidecore_net_rings::{ADDRESS_BYTES, Name, Role};
use sidecore_sys::local_socket;
use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::net::{SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, OwnedFd};

/// The names that this supervisor has made, and the sockets that have them.
#[derive(Debug, Default)]
pub(super) struct Names {
    /// Names made so far.
    count: u64,
    /// Derives numbers from the count, with a secret key, so that no other process can predict the
    /// next name and bind it first.
    numbers: RandomState,
    /// The last temporary number of a session.
    last_key: u64,
    /// Sockets by the numbers of their names: listeners, sessions not known to be accepted, and
    /// near ends of connecting programs.
    named: HashMap<u64, u64>,
}

impl Names {
    /// A new name.
    pub(super) fn make(&mut self, role: Role) -> Name {
        self.count = self.count.wrapping_add(1);
        let number = self.numbers.hash_one(self.count);
        Name::new(role, std::process::id(), number)
    }

    /// A new temporary number of a session.
    pub(super) fn next_key(&mut self) -> u64 {
        self.last_key = (self.last_key + 1) % ACCEPTING;
        ACCEPTING | self.last_key
    }

    /// Records that a socket has the name with this number.
    pub(super) fn bear(&mut self, number: u64, inode: u64) {
        self.named.insert(number, inode);
    }

    pub(super) fn forget(&mut self, number: u64) {
        self.named.remove(&number);
    }

    /// The socket with the name of this number.
    pub(super) fn socket(&self, number: u64) -> Option<u64> {
        self.named.get(&number).copied()
    }
}

/// Required creator of a local socket's other end: any process may bind a name that is free again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Maker {
    /// This process.
    Own,
    /// A process of this user.
    User,
}

/// True if the kernel reports this creator for the other end of a connection (SO_PEERCRED): the
/// process that listens, or that has connected.
pub(crate) fn is_made_by(socket: &OwnedFd, maker: Maker) -> bool {
    let Ok(peer) = local_socket::peer(socket.as_fd()) else {
        return false;
    };
    let is_own = peer.pid.cast_unsigned() == std::process::id();
    peer.uid == local_socket::effective_uid() && (maker == Maker::User || is_own)
}

/// A nonblocking local socket with this name, connected to a socket that was created by `maker`.
///
/// # Errors
/// The kernel's; `ECONNREFUSED` if a process other than `maker` has the name.
pub(crate) fn connect_named(
    name: &Name,
    to: &SocketAddrUnix,
    maker: Maker,
) -> Result<OwnedFd, Errno> {
    let socket = local_stream(true)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new_abstract_name(&name.bytes())?)?;
    rustix::net::connect(&socket, to)?;
    if is_made_by(&socket, maker) {
        Ok(socket)
    } else {
        Err(Errno::CONNREFUSED)
    }
}

/// True while a process has the listening end with this name.
pub(super) fn is_there(name: &SocketAddrUnix) -> bool {
    // The name can be bound once it is free; connecting would leave an entry in the accept queue.
    // Without descriptors it counts as there: a listener must not be lost by that.
    let probe = local_stream(true);
    !probe.is_ok_and(|probe| rustix::net::bind(&probe, name).is_ok())
}

/// A new near end of a listener with direct accepts.
///
/// # Errors
/// The kernel's.
pub(super) fn listening_end(
    name: &Name,
    is_nonblocking: bool,
) -> Result<(OwnedFd, SocketAddrUnix), Errno> {
    let near = local_stream(false)?;
    let name = SocketAddrUnix::new_abstract_name(&name.bytes())?;
    rustix::net::bind(&near, &name)?;
    rustix::net::listen(&near, BACKLOG)?;
    set_nonblocking(&near, is_nonblocking)?;
    Ok((near, name))
}

pub(crate) fn read_name(address: SocketAddrAny) -> Option<Name> {
    let address = SocketAddrUnix::try_from(address).ok()?;
    Name::read(address.abstract_name()?)
}

/// The name of the socket at the other end.
pub(super) fn peers_name(near: &OwnedFd) -> Option<Name> {
    read_name(rustix::net::getpeername(near).ok().flatten()?)
}

/// The number in a socket's own name; an accepted socket has its listener's name.
pub(super) fn listener_of(near: &OwnedFd) -> Option<u64> {
    let name = own_name(near)?;
    (name.role == Role::Listener && name.process == std::process::id()).then_some(name.number)
}

/// A socket's own name.
pub(super) fn own_name(socket: &OwnedFd) -> Option<Name> {
    read_name(rustix::net::getsockname(socket).ok()?)
}

/// The addresses in a name: the accepting program's, and its peer's. Another supervisor may have
/// made a loopback name, so other addresses are rejected.
pub fn ends_of(name: &Name) -> Option<(SocketAddr, SocketAddr)> {
    let [peer, local] = name.ends.each_ref().map(|end| match address::read(end) {
        Given::Inet(address) => Some(address),
        _ => None,
    });
    Some((local?, peer?)).filter(|_| name.is_of_loopback())
}

/// An address as a name has it.
pub fn end_bytes(end: SocketAddr, is_v6: bool) -> [u8; ADDRESS_BYTES] {
    let end = match end {
        // A scope and flow label have no place in the listener's IPv4 form.
        SocketAddr::V6(end) => SocketAddr::V6(SocketAddrV6::new(*end.ip(), end.port(), 0, 0)),
        end => end,
    };
    let mut bytes = [0; ADDRESS_BYTES];
    let written = address::write(end, is_v6);
    bytes[..written.len()].copy_from_slice(&written);
    bytes
}

/// True for a session of the stack that is not known to be accepted.
pub(super) fn is_accepting(key: u64) -> bool {
    key >= ACCEPTING
}

/// Temporary numbers of sessions that are not known to be accepted; inodes have 32 bits.
pub(super) const ACCEPTING: u64 = 1 << 46;
/// Accept queue of a near end; the kernel's limit is net.core.somaxconn.
const BACKLOG: i32 = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_made_once_and_no_process_can_predict_them() {
        let (mut names, mut others) = (Names::default(), Names::default());
        let made: Vec<Name> = (0..100).map(|_| names.make(Role::Program)).collect();
        let mut numbers: Vec<u64> = made.iter().map(|name| name.number).collect();
        assert!(made.iter().all(|name| name.process == std::process::id()));
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), 100);
        // Each supervisor has a key of its own.
        let other = others.make(Role::Program).number;
        assert_ne!(made[0].number, other);
    }

    #[test]
    fn a_name_leads_to_its_socket_until_it_is_forgotten() {
        let mut names = Names::default();
        assert_eq!(names.socket(5), None);
        names.bear(5, 7);
        assert_eq!(names.socket(5), Some(7));
        names.bear(5, 8);
        assert_eq!(names.socket(5), Some(8));
        names.forget(5);
        assert_eq!(names.socket(5), None);
    }

    #[test]
    fn temporary_numbers_are_no_inodes() {
        let mut names = Names::default();
        let first = names.next_key();
        assert!(is_accepting(first) && !is_accepting(u32::MAX.into()));
        assert_ne!(names.next_key(), first);
        names.last_key = ACCEPTING - 1;
        assert_eq!(names.next_key(), ACCEPTING);
    }

    #[test]
    fn a_connection_shows_its_maker_and_its_name() {
        let mut names = Names::default();
        let (near, at) = listening_end(&names.make(Role::Listener), true).unwrap();
        let own = names.make(Role::Session);
        let far = connect_named(&own, &at, Maker::Own).unwrap();
        assert!(is_made_by(&far, Maker::Own) && is_made_by(&far, Maker::User));
        let accepted = rustix::net::accept(&near).unwrap();
        assert_eq!(peers_name(&accepted).map(|it| it.number), Some(own.number));
        assert_eq!(own_name(&far).map(|it| it.number), Some(own.number));
        // An accepted socket has the name of its listener.
        let listener = own_name(&near).map(|it| it.number);
        assert_eq!(listener_of(&accepted), listener);
        assert_eq!(listener_of(&far), None);
        assert!(is_there(&at));
        drop((near, accepted));
        assert!(!is_there(&at));
        let refused = connect_named(&names.make(Role::Session), &at, Maker::Own);
        assert_eq!(refused.err(), Some(Errno::CONNREFUSED));
    }

    #[test]
    fn the_ends_in_a_name_are_of_the_loopback() {
        let mut name = Names::default().make(Role::Program);
        assert_eq!(ends_of(&name), None, "it has none");
        let ends = ["127.0.0.1:40000", "127.0.0.1:80"].map(|end| end.parse().unwrap());
        for is_v6 in [false, true] {
            name.ends = ends.map(|end| end_bytes(end, is_v6));
            // As the accepting program sees it: its own end first.
            assert_eq!(ends_of(&name), Some((ends[1], ends[0])));
        }
        name.ends[0] = end_bytes("10.0.0.1:80".parse().unwrap(), false);
        assert_eq!(ends_of(&name), None);
    }
}

//! Local sockets whose names identify their owner ([`sidecore_net_rings::Name`]).
//!
//! Must stay true: nothing here blocks; any name that another process has chosen can be parsed.

use crate::address::{self, Given};
use crate::socket::{local_stream, set_nonblocking};
use rustix::io::Errno;
use rustix::net::{SocketAddrAny, SocketAddrUnix};
use sidecore_net_rings::{ADDRESS_BYTES, Name, Role};
use sidecore_sys::local_socket;
use std::net::{SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, OwnedFd};

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

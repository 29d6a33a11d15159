//! bind(2), listen(2), connect(2) and shutdown(2): sockets are taken from the kernel here, and go
//! back to it.

use super::{PROCEED, Reply, Supervisor, ZERO, names};
use crate::address::{self, Given, plain_peer};
use crate::caller::{Caller, Descriptor};
use crate::ports::Transport;
use crate::scope::Server;
use crate::socket::files::{inode_of, local_stream, set_nonblocking};
use crate::socket::{Holder, Opened, Socket, State};
use rustix::io::Errno;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::rc::Rc;

/// The error of connect(2) for an address of another family, or one that is too short, which is
/// judged first.
fn refusal(caller: &Caller<'_>, is_v6: bool) -> Errno {
    let bytes = usize::try_from(caller.int(2)).unwrap_or_default();
    if bytes < address::least_bytes(is_v6) {
        Errno::INVAL
    } else {
        Errno::AFNOSUPPORT
    }
}

/// True for IPV6_V6ONLY, and for a socket that was bound to an IPv6 address of its own.
fn is_v6_only(socket: &Socket) -> bool {
    // After a failed connect(2), `bound` is the source that it had, as if it had been bound there.
    let is_bound = matches!(socket.state, State::Bound);
    let has_own = is_bound && socket.bound.is_ipv6() && !socket.bound.is_unspecified();
    socket.is_v6_only || has_own
}

/// Properties of a socket that is to be connected.
pub(super) struct Parts {
    pub(super) at: Descriptor,
    pub(super) is_v6: bool,
    pub(super) is_v6_only: bool,
    /// The address that it was bound to: port 0 and the unspecified address if it was not.
    pub(super) bound: SocketAddr,
    pub(super) kernel: Rc<OwnedFd>,
}

impl Parts {
    /// The socket, with its addresses and state.
    pub(super) fn socket(
        self,
        caller: &Caller<'_>,
        ends: Route,
        far: Option<OwnedFd>,
        state: State,
    ) -> Socket {
        let mut socket = Socket {
            is_v6: self.is_v6,
            is_v6_only: self.is_v6_only,
            far,
            peer: Some(ends.peer),
            holder: Holder::lasting(caller, self.at.number, Holder::UNKNOWN),
            ..Socket::new(Transport::Tcp, self.kernel, ends.local, state)
        };
        socket.send_bytes = socket.set_bytes(libc::SO_SNDBUF);
        socket.window_max = socket.window(false);
        socket
    }
}

/// The addresses of a session.
#[derive(Debug, Clone, Copy)]
pub(super) struct Route {
    pub(super) local: SocketAddr,
    pub(super) peer: SocketAddr,
}

impl Supervisor {
    /// The error of bind(2) for a socket that has a name already, and this address.
    fn refusal_of_second(&self, asked: IpAddr) -> Errno {
        let is_hosts = asked.is_unspecified() || asked.is_loopback() || asked.is_multicast();
        if is_hosts || self.table.scope.of_local(asked).is_some() {
            Errno::INVAL
        } else {
            Errno::ADDRNOTAVAIL
        }
    }

    /// Answers bind(2).
    pub(super) fn bind(&mut self, caller: &mut Caller<'_>) -> Result<Reply, Errno> {
        let number = caller.int(0);
        let Some(inode) = caller.inode(number) else {
            return Ok(PROCEED);
        };
        if let Some(socket) = self.table.sockets.get(&inode) {
            // A signal interrupted the call, and it is repeated.
            let (holder, own) = (socket.holder, Holder::of(caller, number));
            let is_same = (holder.thread, holder.descriptor) == (own.thread, own.descriptor);
            if socket.is_adopting() && is_same {
                return Ok(self.table.park_asking(inode, caller));
            }
            let of_v6 = socket.is_v6;
            // The kernel judges the address first.
            let (given, is_v6) = caller.address(1, 2)?;
            return Err(match given {
                Given::Inet(asked) if is_v6 == of_v6 => self.refusal_of_second(asked.ip()),
                // Only an IPv4 socket takes AF_UNSPEC for its own family.
                Given::Unspecified if !of_v6 => Errno::INVAL,
                _ => refusal(caller, of_v6),
            });
        }
        let (Given::Inet(asked), is_v6) = caller.address(1, 2)? else {
            return Ok(PROCEED);
        };
        if self.table.scope.of_local(asked.ip()).is_none() {
            return Ok(PROCEED);
        }
        let Some(opened) = self.opened(caller, inode)? else {
            return Ok(PROCEED);
        };
        if is_v6 != opened.is_v6 {
            return Ok(PROCEED);
        }
        // It has a name already. The kernel, which lacks the address, would complain of that.
        if opened.local.port() != 0 || opened.is_connected {
            return Err(Errno::INVAL);
        }
        let inode = match opened.transport {
            Transport::Tcp => self.adopt(caller, number, opened, asked)?,
            Transport::Udp => {
                let table = &mut self.table;
                self.datagrams.adopt(table, caller, number, opened, asked)?
            }
        };
        if self.table.is_asking(inode) {
            return Ok(self.table.park_asking(inode, caller));
        }
        Ok(ZERO)
    }

    /// Answers listen(2).
    pub(super) fn listen(&mut self, caller: &mut Caller<'_>) -> Result<Reply, Errno> {
        let number = caller.int(0);
        let Some(inode) = caller.inode(number) else {
            return Ok(PROCEED);
        };
        let inode = if self.table.sockets.contains_key(&inode) {
            inode
        } else {
            let Some(opened) = self.opened(caller, inode)? else {
                return Ok(PROCEED);
            };
            let any = SocketAddr::new(opened.any(), 0);
            // A socket that has a port or a peer in the kernel stays there.
            let is_kernels = opened.local.port() != 0 || opened.is_connected;
            if opened.transport != Transport::Tcp
                || is_kernels
                || self.table.scope.of_local(any.ip()).is_none()
            {
                return Ok(PROCEED);
            }
            self.adopt(caller, number, opened, any)?
        };
        self.listeners
            .listen(&mut self.table, &mut self.streams, caller, inode)
    }

    /// The kernel's socket of a call; none if it is neither TCP nor UDP.
    fn opened(&mut self, caller: &Caller<'_>, inode: u64) -> Result<Option<Opened>, Errno> {
        let opened = Opened::of(caller.fetch(caller.int(0))?);
        Ok(opened.map(|opened| self.table.calls.kept.as_opened(inode, opened)))
    }

    /// Takes a TCP socket from the kernel and binds it to `asked`, with any port if that is 0; its
    /// inode.
    fn adopt(
        &mut self,
        caller: &Caller<'_>,
        number: i32,
        opened: Opened,
        asked: SocketAddr,
    ) -> Result<u64, Errno> {
        let table = &mut self.table;
        let mut local = asked;
        if local.port() == 0 {
            local.set_port(opened.choose_port(local.ip())?);
        }
        let (port, kernel) = (local.port(), inode_of(&opened.file)?);
        let at = caller.descriptor(number);
        // Unconnected: reads fail, and polls report a hang-up, as for an unconnected TCP socket.
        let near = local_stream(at.flags.is_nonblocking)?;
        let inode = inode_of(&near)?;
        let mut socket = Socket {
            is_v6: opened.is_v6,
            is_v6_only: opened.is_v6_only,
            holder: Holder::of(caller, number),
            ..Socket::new(Transport::Tcp, opened.file, local, State::Bound)
        };
        socket.send_bytes = socket.set_bytes(libc::SO_SNDBUF);
        socket.window_max = socket.window(false);
        let claim = socket.claim(false);
        if !table.take_port(inode, Transport::Tcp, port, claim) {
            return Err(Errno::ADDRINUSE);
        }
        let done = table
            .insert(inode, socket)
            .and_then(|()| table.replace(caller, at, &near));
        if let Err(error) = done {
            table.ports.release(Transport::Tcp, port, inode);
            table.forget(inode);
            // The port stays bound in the kernel, so the repeated call must find which one was
            // chosen.
            if asked.port() == 0 {
                table.calls.kept.note_chosen(kernel, port);
            }
            return Err(error);
        }
        Ok(inode)
    }

    /// Answers connect(2).
    pub(super) fn connect(&mut self, caller: &mut Caller<'_>) -> Result<Reply, Errno> {
        let number = caller.int(0);
        let Some(inode) = caller.inode(number) else {
            return Ok(PROCEED);
        };
        if self.table.sockets.contains_key(&inode) {
            return self.connect_known(caller, inode);
        }
        // Only IPv4 and IPv6 peers can be at the stack; other families are the kernel's.
        let (Given::Inet(peer), is_v6) = caller.address(1, 2)? else {
            return Ok(PROCEED);
        };
        let Some(server) = self.table.scope.of_peer(peer.ip()) else {
            return Ok(PROCEED);
        };
        let Some(opened) = self.opened(caller, inode)? else {
            return Ok(PROCEED);
        };
        // UDP accepts an AF_INET address on an IPv6 socket, too.
        let is_foreign = is_v6 != opened.is_v6 && (is_v6 || opened.transport == Transport::Tcp);
        if opened.is_v6_only && peer.is_ipv4() {
            return Err(Errno::NETUNREACH);
        }
        // Bound in the kernel to one of its addresses, so only the kernel can connect it.
        let is_kernels = opened.local.port() != 0 && !opened.local.ip().is_unspecified();
        if opened.is_connected || is_foreign || is_kernels {
            return Ok(PROCEED);
        }
        if opened.transport == Transport::Udp {
            return self.connect_udp(caller, opened, peer);
        }
        let parts = Parts {
            at: caller.descriptor(number),
            is_v6: opened.is_v6,
            is_v6_only: opened.is_v6_only,
            bound: opened.local,
            kernel: opened.file,
        };
        let peer = plain_peer(peer, parts.is_v6);
        self.open(caller, server, peer, parts)
    }

    /// Takes a UDP socket from the kernel, and connects it.
    fn connect_udp(
        &mut self,
        caller: &Caller<'_>,
        opened: Opened,
        peer: SocketAddr,
    ) -> Result<Reply, Errno> {
        let (table, number) = (&mut self.table, caller.int(0));
        // It is bound to the wildcard address first, with the port that it has in the kernel, and
        // then connected.
        let any = SocketAddr::new(opened.any(), opened.local.port());
        let inode = self.datagrams.adopt(table, caller, number, opened, any)?;
        if table.is_asking(inode) {
            return Ok(table.park_asking(inode, caller));
        }
        let near = caller.fetch(number)?;
        self.datagrams.connect(table, inode, &near, Some(peer))?;
        Ok(ZERO)
    }

    fn connect_known(&mut self, caller: &mut Caller<'_>, inode: u64) -> Result<Reply, Errno> {
        let (given, is_v6) = caller.address(1, 2)?;
        let table = &mut self.table;
        let Some(socket) = table.sockets.get_mut(&inode) else {
            return Ok(PROCEED);
        };
        // The stack has not answered yet; the call waits, and is repeated after the answer.
        if socket.is_adopting() {
            return Ok(table.park_asking(inode, caller));
        }
        let of_v6 = socket.is_v6;
        let is_v6_only = is_v6_only(socket);
        match &mut socket.state {
            State::Datagram(_) => {
                let peer = match given {
                    Given::Inet(_) if is_v6 && !of_v6 => return Err(Errno::AFNOSUPPORT),
                    // As in the kernel, AF_UNSPEC dissolves the connection.
                    Given::Inet(peer) => Some(peer),
                    Given::Unspecified => None,
                    Given::Other => return Err(refusal(caller, of_v6)),
                };
                let near = caller.fetch(caller.int(0))?;
                self.datagrams.connect(table, inode, &near, peer)?;
                Ok(ZERO)
            }
            State::Open(_) | State::Joined(_) | State::Connecting(_)
                if given == Given::Unspecified =>
            {
                self.disconnect(caller, inode)
            }
            State::Connecting(_) => {
                if caller.flags(caller.int(0)).is_nonblocking {
                    return Err(Errno::ALREADY);
                }
                let patience = socket.patience(libc::SO_SNDTIMEO);
                Ok(table.park(inode, caller, patience))
            }
            // After a nonblocking connect(2), the next call reports the success once, and later
            // ones fail.
            State::Open(stream) => stream.report.make().map(|()| ZERO),
            State::Joined(joined) => joined.report.make().map(|()| ZERO),
            State::Bound | State::Failed(None) if given == Given::Unspecified => Ok(ZERO),
            State::Bound | State::Failed(None) if is_v6 != of_v6 || given == Given::Other => {
                Err(refusal(caller, of_v6))
            }
            State::Bound | State::Failed(None)
                if is_v6_only && matches!(given, Given::Inet(peer) if peer.is_ipv4()) =>
            {
                Err(Errno::NETUNREACH)
            }
            State::Failed(error) => match error.take() {
                // The error is reported once; the next connect(2) tries again, as in Linux.
                Some(error) => Err(error),
                None => self.open_again(caller, inode, given),
            },
            State::Bound => self.open_again(caller, inode, given),
            State::Listening(_) | State::Doomed | State::Shut | State::Over => Err(Errno::ISCONN),
        }
    }

    /// Aborts a session; the program gets back the socket that it opened (connect(2) with
    /// AF_UNSPEC).
    fn disconnect(&mut self, caller: &Caller<'_>, inode: u64) -> Result<Reply, Errno> {
        let table = &mut self.table;
        let at = caller.descriptor(caller.int(0));
        let kernel = match table.sockets.get_mut(&inode) {
            Some(socket) if socket.owns_kernel => {
                socket.resets_on_close = true;
                Rc::clone(&socket.kernel)
            }
            // One that was accepted has no socket of its own in the kernel.
            _ => return Err(Errno::OPNOTSUPP),
        };
        set_nonblocking(&kernel, at.flags.is_nonblocking)?;
        table.arm_reset(inode);
        table.replace(caller, at, &kernel)?;
        table.forget(inode);
        Ok(ZERO)
    }

    /// Opens a session on a socket that was bound, or whose connect(2) failed before.
    fn open_again(
        &mut self,
        caller: &mut Caller<'_>,
        inode: u64,
        given: Given,
    ) -> Result<Reply, Errno> {
        let Given::Inet(peer) = given else {
            return Err(Errno::AFNOSUPPORT);
        };
        let at = caller.descriptor(caller.int(0));
        let Some(socket) = self.table.remove(inode) else {
            return Ok(PROCEED);
        };
        let (kernel, is_v6) = (Rc::clone(&socket.kernel), socket.is_v6);
        let Some(server) = self.table.scope.of_peer(peer.ip()) else {
            // The new peer is reached by the kernel only: the program gets its original socket
            // back.
            let any = match is_v6 {
                true => IpAddr::from(Ipv6Addr::UNSPECIFIED),
                false => Ipv4Addr::UNSPECIFIED.into(),
            };
            // Fails if the kernel bound it when it chose the port.
            rustix::net::bind(&kernel, &SocketAddr::new(any, socket.local.port())).ok();
            set_nonblocking(&kernel, at.flags.is_nonblocking)?;
            self.table.replace(caller, at, &kernel)?;
            return Ok(PROCEED);
        };
        let parts = Parts {
            at,
            is_v6,
            is_v6_only: socket.is_v6_only,
            bound: socket.local,
            kernel,
        };
        let opened = self.open(caller, server, plain_peer(peer, is_v6), parts);
        let table = &mut self.table;
        if opened.is_err() && !caller.is_waiting() && !table.sockets.contains_key(&inode) {
            // A signal interrupted the call: the caller still has the socket, and repeats the call.
            let (claim, port) = (socket.claim(false), socket.local.port());
            let _ = table.ports.take(Transport::Tcp, port, inode, claim);
            table.insert(inode, socket)?;
        }
        opened
    }

    fn open(
        &mut self,
        caller: &mut Caller<'_>,
        server: Server,
        peer: SocketAddr,
        parts: Parts,
    ) -> Result<Reply, Errno> {
        match server {
            Server::Loopback => self.open_to_program(caller, peer, parts),
            Server::Stack => self.open_to_stack(caller, peer, parts),
        }
    }

    /// Answers shutdown(2).
    pub(super) fn shutdown(&mut self, caller: &mut Caller<'_>) -> Result<Reply, Errno> {
        let Some(inode) = caller.inode(caller.int(0)) else {
            return Ok(PROCEED);
        };
        let Some(socket) = self.table.sockets.get_mut(&inode) else {
            return Ok(PROCEED);
        };
        let how = caller.int(1);
        if !(libc::SHUT_RD..=libc::SHUT_RDWR).contains(&how) {
            return Err(Errno::INVAL);
        }
        // As in the kernel, a session that both sides have ended is over.
        let ends = names::ends(socket, caller);
        if ends.own && ends.peers {
            return Err(Errno::NOTCONN);
        }
        match &mut socket.state {
            State::Listening(_) => {
                if how == libc::SHUT_WR {
                    return Ok(ZERO);
                }
                self.listeners.stop(&mut self.table, inode);
                // The kernel runs the call as well, so that polls of the near end report it.
                Ok(PROCEED)
            }
            State::Joined(joined) => {
                // As in the kernel, it stands for the report of connect(2).
                joined.report.make().ok();
                if how != libc::SHUT_RD {
                    joined.is_shut = true;
                }
                joined.is_deaf |= how != libc::SHUT_WR;
                Ok(PROCEED)
            }
            State::Open(stream) => {
                stream.report.make().ok();
                stream.is_shut |= how != libc::SHUT_RD;
                stream.is_deaf |= how != libc::SHUT_WR;
                Ok(PROCEED)
            }
            State::Datagram(_) => Ok(PROCEED),
            State::Shut => Ok(ZERO),
            State::Bound
            | State::Connecting(_)
            | State::Failed(_)
            | State::Doomed
            | State::Over => Err(Errno::NOTCONN),
        }
    }
}

//! getsockopt(2) and setsockopt(2).
//!
//! The kernel's socket that the program opened stores the options, so that the kernel itself
//! refuses, rounds or rejects values; the stack gets the ones that it supports.

use super::listeners::Listeners;
use super::table::Table;
use super::{PROCEED, Reply, Supervisor, ZERO, names};
use crate::caller::Caller;
use crate::direct::habits_of;
use crate::socket::files::limit_sending;
use crate::socket::{Ends, Opened, Report, Socket, State};
use rustix::io::Errno;
use sidecore_net::sock::SocketOption;
use sidecore_sys::socket_option;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

impl Supervisor {
    /// Answers getsockopt(2), by which the preload library makes its requests, too.
    pub(super) fn get_option(&mut self, caller: &mut Caller<'_>) -> Result<Reply, Errno> {
        let table = &mut self.table;
        if caller.int(1) != sidecore_net_rings::LEVEL {
            return table.get_option(caller);
        }
        if caller.int(2) == sidecore_net_rings::LISTENER_CLOSED {
            let inode = caller.read_int(caller.call.arguments[3])?.cast_unsigned();
            Listeners::look_at_closed(table, inode.into());
            return Ok(ZERO);
        }
        if caller.int(2) == sidecore_net_rings::LINGER {
            let inode = caller.read_int(caller.call.arguments[3])?.cast_unsigned();
            return Ok(table.linger(inode.into(), caller));
        }
        if caller.int(2) == sidecore_net_rings::DATAGRAMS {
            return self.datagrams.serve_request(table, caller);
        }
        if caller.int(2) == sidecore_net_rings::DATAGRAM_RINGS {
            let rings = &mut self.streams.rings;
            return self.datagrams.serve_ring_request(table, rings, caller);
        }
        if caller.int(2) == sidecore_net_rings::TAKE_BACK
            && table.of_caller(caller).is_some_and(Socket::is_datagram)
        {
            let inode = caller.inode(caller.int(0)).ok_or(Errno::BADF)?;
            return match self.datagrams.end_rings(table, inode, false) {
                true => Ok(ZERO),
                false => Err(Errno::AGAIN),
            };
        }
        self.streams.serve_request(table, caller)
    }
}

impl Supervisor {
    /// Answers setsockopt(2).
    pub(super) fn set_option(&mut self, caller: &mut Caller<'_>) -> Result<Reply, Errno> {
        if let Some(inode) = caller.inode(caller.int(0))
            && self
                .table
                .sockets
                .get(&inode)
                .is_some_and(Socket::is_datagram)
        {
            // What it sent before has the options of before.
            self.datagrams.take(&mut self.table, inode);
        }
        let reply = self.table.set_option(caller)?;
        if (caller.int(1), caller.int(2)) == (libc::SOL_UDP, libc::UDP_CORK)
            && let Some(inode) = caller.inode(caller.int(0))
            && caller.read_int(caller.call.arguments[3])? == 0
        {
            // Parts that were sent with an address; the kernel has the others.
            self.datagrams.uncork(&mut self.table, inode)?;
        }
        Ok(reply)
    }
}

impl Table {
    fn get_option(&mut self, caller: &mut Caller<'_>) -> Result<Reply, Errno> {
        let descriptor = caller.int(0);
        let Some(inode) = caller.inode(descriptor) else {
            return Ok(PROCEED);
        };
        let Some(socket) = self.sockets.get_mut(&inode) else {
            return Ok(PROCEED);
        };
        socket.note_holder(caller, descriptor, inode);
        let (level, name) = (caller.int(1), caller.int(2));
        if (level, name) == (libc::SOL_SOCKET, SO_PEERNAME) {
            let peer = names::peer(socket, caller, false)?;
            let name = crate::address::write(peer, socket.is_v6);
            let [_, _, _, target, length, _] = caller.call.arguments;
            let room = usize::try_from(caller.read_int(length)?).map_err(|_| Errno::INVAL)?;
            // As in the kernel, a part of it is given, and more room is refused.
            let part = name.get(..room).ok_or(Errno::INVAL)?;
            caller.write_sized(target, length, part)?;
            return Ok(ZERO);
        }
        // The program keeps its own datagram socket; only options that were cleared on it are
        // stored here.
        let is_kept = socket
            .options
            .iter()
            .any(|it| (it.level, it.name) == (level, name));
        let has_fault = (level, name) == (libc::SOL_SOCKET, libc::SO_ERROR)
            && socket.carrier().is_some_and(|it| it.faults.are_pending());
        if socket.is_datagram() && !is_kept && !has_fault {
            return Ok(PROCEED);
        }
        let [_, _, _, target, length, _] = caller.call.arguments;
        let room = caller.read_int(length)?;
        let room = usize::try_from(room).map_err(|_| Errno::INVAL)?;
        let number = |value: i32| value.to_ne_bytes().to_vec();
        let mut value = match (level, name) {
            (libc::SOL_SOCKET, libc::SO_ERROR) if has_fault => {
                let near = caller.fetch(descriptor)?;
                number(fault_of(socket, &near)?)
            }
            // The pair reports its own error.
            (libc::SOL_SOCKET, libc::SO_ERROR)
                if matches!(socket.state, State::Joined(_) | State::Shut | State::Over) =>
            {
                return Ok(PROCEED);
            }
            (libc::SOL_SOCKET, libc::SO_ERROR) => {
                let error = take_error(&mut socket.state);
                // The pair's error, which announced this one, is cleared with it.
                if error != 0
                    && let Ok(near) = caller.fetch(descriptor)
                {
                    socket_option::get(near.as_fd(), level, name, 4).ok();
                }
                number(error)
            }
            (libc::IPPROTO_IPV6, libc::IPV6_ADDRFORM) if is_session(socket) && socket.is_v6 => {
                number(libc::AF_INET6)
            }
            // A session's bytes are not in pages that could be given.
            (libc::IPPROTO_TCP, TCP_ZEROCOPY_RECEIVE) => return Err(Errno::INVAL),
            (libc::SOL_SOCKET, libc::SO_ACCEPTCONN) => {
                number(matches!(socket.state, State::Listening(_)).into())
            }
            _ => socket.option(level, name, room.min(OPTION_BYTES_MAX))?,
        };
        if (level, name) == (libc::IPPROTO_TCP, libc::TCP_INFO)
            && let Some(first) = value.first_mut()
        {
            *first = tcp_state(&socket.state, names::ends(socket, caller));
        }
        value.truncate(room);
        caller.write_sized(target, length, &value)?;
        Ok(ZERO)
    }

    fn set_option(&mut self, caller: &mut Caller<'_>) -> Result<Reply, Errno> {
        let descriptor = caller.int(0);
        let Some(inode) = caller.inode(descriptor) else {
            return Ok(PROCEED);
        };
        let attaches = caller.int(1) == libc::SOL_SOCKET && ATTACHES.contains(&caller.int(2));
        if attaches && self.may_be_taken(caller, inode) {
            // The hash of the ends chooses among sockets that share a port, no program.
            return Err(Errno::NOPROTOOPT);
        }
        let Some(socket) = self.sockets.get_mut(&inode) else {
            return Ok(PROCEED);
        };
        // Also of a call that is refused below: the thread has the socket.
        socket.note_holder(caller, descriptor, inode);
        let (level, name) = (caller.int(1), caller.int(2));
        let length = usize::try_from(caller.int(4)).map_err(|_| Errno::INVAL)?;
        let value = caller.read(caller.call.arguments[3], length.min(OPTION_BYTES_MAX))?;
        if let Some(refusal) = refusal(socket, level, name, length) {
            return Err(refusal);
        }
        if let Some(carrier) = socket.carrier_mut() {
            // The kernel sets it on the program's own socket, which is asked again.
            carrier.habits = None;
            self.directory.withhold(&carrier.direct);
            socket.drop_option(level, name);
            if let Some(class) = class_of(socket, level, name, &value) {
                self.pass_on(inode, SocketOption::TrafficClass(class));
            }
            return Ok(PROCEED);
        }
        set(socket, level, name, &value)?;
        let name = plain(level, name);
        match (level, name) {
            (libc::SOL_SOCKET, libc::SO_SNDBUF) => socket.send_bytes = socket.kept_bytes(name),
            (libc::SOL_SOCKET, libc::SO_RCVBUF) => socket.window_max = socket.window(true),
            (libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP) => {
                socket.window_max = socket.window(false);
            }
            _ => {}
        }
        // Of a session of the stack, which holds a part of the bytes itself.
        let is_stacks = matches!(socket.state, State::Open(_) | State::Connecting(_));
        let bytes = socket.send_bytes.filter(|_| is_stacks);
        let near = bytes.and_then(|bytes| Some((caller.fetch(descriptor).ok()?, bytes)));
        if let (Some(window), Some(far)) = (socket.window_max, &socket.far)
            && is_stacks
        {
            limit_sending(far.as_fd(), 2 * window);
        }
        if (level, name) == (libc::SOL_SOCKET, libc::SO_LINGER) {
            let now = resets(&value);
            socket.lingers = linger_time(&value);
            match (std::mem::replace(&mut socket.resets_on_close, now), now) {
                (false, true) => self.arm_reset(inode),
                (true, false) => self.disarm_reset(caller, inode),
                (false, false) | (true, true) => {}
            }
        }
        self.pass_option_on(inode, level, name, &value);
        if (level, name) == (libc::SOL_SOCKET, libc::SO_SNDBUF)
            && let Some((near, bytes)) = near
        {
            limit_sending(near.as_fd(), bytes);
            return Ok(ZERO);
        }
        // The pair has these options as well: the kernel applies them to calls on the pair.
        let is_pairs = level == libc::SOL_SOCKET && PAIRS.contains(&name);
        Ok(if is_pairs { PROCEED } else { ZERO })
    }

    /// True if a socket was taken from the kernel, or may be by bind(2).
    fn may_be_taken(&self, caller: &Caller<'_>, inode: u64) -> bool {
        if self.sockets.contains_key(&inode) {
            return true;
        }
        let opened = caller.fetch(caller.int(0)).ok().and_then(Opened::of);
        opened.is_some_and(|opened| opened.local.port() == 0 && !opened.is_connected)
    }

    /// Passes options that were set before the session existed to the stack.
    pub(super) fn tell_options(&mut self, inode: u64) {
        let datagram = self.sockets.get(&inode).filter(|it| it.is_datagram());
        if let Some(near) = datagram.and_then(|it| it.holder.fetch(inode)) {
            return self.tell_class(inode, &near);
        }
        for (level, name) in PASSED {
            let socket = self.sockets.get(&inode);
            if let Some(Ok(value)) = socket.map(|it| it.option(level, name, 4))
                && value.iter().any(|byte| *byte != 0)
            {
                self.pass_option_on(inode, level, name, &value);
            }
        }
        self.pass_buffers_on(inode);
        self.take_linger(inode);
    }

    /// Passes the traffic class of a program's own datagram socket to the stack.
    pub(super) fn tell_class(&mut self, inode: u64, near: &OwnedFd) {
        let Some(socket) = self.sockets.get(&inode) else {
            return;
        };
        let class = habits_of(near, socket.is_v6).marks.class;
        let class = class.and_then(|class| u8::try_from(class).ok());
        if let Some(class) = class.filter(|class| *class != 0) {
            self.pass_on(inode, SocketOption::TrafficClass(class));
        }
    }

    /// Passes SO_SNDBUF and SO_RCVBUF to the stack if the program has set them.
    fn pass_buffers_on(&mut self, inode: u64) {
        self.pass_option_on(inode, libc::SOL_SOCKET, libc::SO_SNDBUF, &[]);
        self.pass_option_on(inode, libc::SOL_SOCKET, libc::SO_RCVBUF, &[]);
    }

    /// Applies SO_LINGER of zero that was set before the session existed; true if it was.
    pub(super) fn take_linger(&mut self, inode: u64) -> bool {
        let Some(socket) = self.sockets.get_mut(&inode) else {
            return false;
        };
        if let Ok(linger) = socket.option(libc::SOL_SOCKET, libc::SO_LINGER, 8) {
            socket.resets_on_close = resets(&linger);
            socket.lingers = linger_time(&linger);
            return socket.resets_on_close;
        }
        false
    }

    /// Passes an option to the stack if it supports it.
    fn pass_option_on(&mut self, inode: u64, level: i32, name: i32, value: &[u8]) {
        let Some(socket) = self.sockets.get(&inode).filter(|it| !it.is_datagram()) else {
            return;
        };
        // The kernel's socket stores all others, which the stack does not have.
        if let Some(option) = option_of_stack(socket, level, name, value) {
            self.pass_on(inode, option);
        }
    }

    /// Sets an option of all that a socket has at the stack.
    fn pass_on(&mut self, inode: u64, option: SocketOption) {
        let Some(socket) = self.sockets.get(&inode) else {
            return;
        };
        if let Some(client) = &mut self.engine.client {
            for engine in socket.engines() {
                // The loop notices when the engine is gone.
                client.set(engine, option).ok();
            }
        }
    }
}

/// The error of a nonblocking connect(2), reported once.
fn take_error(state: &mut State) -> i32 {
    match state {
        State::Failed(error) => error.take().map_or(0, Errno::raw_os_error),
        State::Open(stream) => {
            stream.report = Report::Made;
            0
        }
        _ => 0,
    }
}

/// SO_ERROR of a datagram socket about which ICMP errors have come: to the kernel, all of them are
/// refusals.
fn fault_of(socket: &mut Socket, near: &OwnedFd) -> Result<i32, Errno> {
    let kernel = rustix::net::sockopt::socket_error(near)?.err();
    let carrier = socket.carrier_mut();
    let error = carrier.and_then(|carrier| carrier.faults.settle(kernel));
    Ok(error.map_or(0, Errno::raw_os_error))
}

/// The option of the stack that corresponds to one of the kernel's, if it has it.
fn option_of_stack(socket: &Socket, level: i32, name: i32, value: &[u8]) -> Option<SocketOption> {
    let number = value
        .first_chunk()
        .map_or(0, |bytes| i32::from_ne_bytes(*bytes));
    let option = match (level, name) {
        (libc::IPPROTO_TCP, libc::TCP_NODELAY) => SocketOption::NoDelay(number != 0),
        // The stack has one value for both options; 0 means no keepalive.
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE) if number == 0 => {
            SocketOption::KeepaliveIdleSeconds(0)
        }
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => {
            let value = socket.option(libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 4).ok();
            let idle = value.and_then(|value| Some(u32::from_ne_bytes(*value.first_chunk()?)));
            SocketOption::KeepaliveIdleSeconds(idle.unwrap_or(KEEPALIVE_IDLE_SECONDS))
        }
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) if keeps_alive(socket) => {
            SocketOption::KeepaliveIdleSeconds(number.cast_unsigned())
        }
        // The pair holds the other half.
        (libc::SOL_SOCKET, libc::SO_SNDBUF) => {
            SocketOption::SendBytes((socket.send_bytes? / 2).max(SEND_BYTES_MIN))
        }
        // What the peer may send ahead; the pair and the engine's chunks hold more.
        (libc::SOL_SOCKET, libc::SO_RCVBUF) | (libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP) => {
            SocketOption::ReceiveBytes(socket.window_max?)
        }
        (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT) => {
            SocketOption::UserTimeoutMs(number.cast_unsigned())
        }
        _ => SocketOption::TrafficClass(class_of(socket, level, name, value)?),
    };
    Some(option)
}

/// The traffic class that an option sets, if it is that of the socket's packets: as in the kernel,
/// IP_TOS is IPv4's on an IPv6 socket, too, and may be given as one byte.
fn class_of(socket: &Socket, level: i32, name: i32, value: &[u8]) -> Option<u8> {
    let is_v4 = socket.peer.map_or(!socket.is_v6, |peer| peer.is_ipv4());
    match (level, name) {
        (libc::IPPROTO_IP, libc::IP_TOS) if is_v4 => {
            let number = value.first_chunk().map(|bytes| i32::from_ne_bytes(*bytes));
            // Higher bits have no place in the header, and the kernel ignores them.
            let low = number.map(|number| number.to_le_bytes()[0]);
            low.or(value.first().copied())
        }
        (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) if !is_v4 => {
            // -1 is the default; the kernel refuses others out of range.
            let number = i32::from_ne_bytes(*value.first_chunk()?);
            if number == -1 {
                Some(0)
            } else {
                number.try_into().ok()
            }
        }
        _ => None,
    }
}

/// The error for an option that the kernel's socket would accept, in another state than the
/// program's is in, or without effect here. Programs handle a refusal.
fn refusal(socket: &Socket, level: i32, name: i32, bytes: usize) -> Option<Errno> {
    let is_listening = matches!(socket.state, State::Listening(_));
    match (level, name) {
        (libc::SOL_SOCKET, libc::SO_ZEROCOPY) if bytes >= 4 => Some(Errno::OPNOTSUPP),
        (libc::IPPROTO_TCP, libc::TCP_ULP) if bytes > 0 && !socket.is_datagram() => {
            Some(Errno::NOENT)
        }
        (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) if socket.is_v6 => Some(Errno::INVAL),
        (libc::IPPROTO_TCP, libc::TCP_FASTOPEN | TCP_FASTOPEN_NO_COOKIE) if is_session(socket) => {
            Some(Errno::INVAL)
        }
        (libc::IPPROTO_TCP, libc::TCP_FASTOPEN_CONNECT) if is_listening || is_session(socket) => {
            Some(Errno::INVAL)
        }
        _ => None,
    }
}

fn is_session(socket: &Socket) -> bool {
    matches!(socket.state, State::Open(_) | State::Joined(_))
}

fn keeps_alive(socket: &Socket) -> bool {
    let value = socket.option(libc::SOL_SOCKET, libc::SO_KEEPALIVE, 4);
    value.is_ok_and(|value| value.iter().any(|byte| *byte != 0))
}

/// Sets an option of one socket, even if others share the kernel's socket.
fn set(socket: &mut Socket, level: i32, name: i32, value: &[u8]) -> Result<(), Errno> {
    let kernel = socket.kernel.as_fd();
    if socket.owns_kernel {
        return socket_option::set(kernel, level, name, value);
    }
    let kept = plain(level, name);
    let before = socket_option::get(kernel, level, kept, OPTION_BYTES_MAX);
    socket_option::set(kernel, level, name, value)?;
    let now = socket_option::get(kernel, level, kept, OPTION_BYTES_MAX);
    if let Ok(before) = before {
        // Restores the listener's own value.
        socket_option::set(kernel, level, kept, &settable(level, kept, before)).ok();
    }
    if let Ok(now) = now {
        socket.keep_option(level, kept, now);
    }
    Ok(())
}

/// The option by which the kernel reports what another one has set.
fn plain(level: i32, name: i32) -> i32 {
    match (level, name) {
        (libc::SOL_SOCKET, libc::SO_SNDBUFFORCE) => libc::SO_SNDBUF,
        (libc::SOL_SOCKET, libc::SO_RCVBUFFORCE) => libc::SO_RCVBUF,
        _ => name,
    }
}

/// The value to set for the one that the kernel reports: it doubles the sizes of buffers.
fn settable(level: i32, name: i32, reported: Vec<u8>) -> Vec<u8> {
    let is_size = level == libc::SOL_SOCKET && [libc::SO_SNDBUF, libc::SO_RCVBUF].contains(&name);
    match reported.first_chunk() {
        Some(bytes) if is_size => (i32::from_ne_bytes(*bytes) / 2).to_ne_bytes().to_vec(),
        _ => reported,
    }
}

/// True if this value of SO_LINGER makes close send a reset: on, with a time of zero.
pub(super) fn resets(value: &[u8]) -> bool {
    linger_seconds(value) == Some(0)
}

/// The time for which close waits by this value of SO_LINGER.
fn linger_time(value: &[u8]) -> Option<Duration> {
    let seconds = linger_seconds(value).filter(|seconds| *seconds > 0)?;
    Some(Duration::from_secs(seconds.into()))
}

/// The time in SO_LINGER, if it is on.
fn linger_seconds(value: &[u8]) -> Option<u32> {
    let word = |at: usize| {
        let bytes = value.get(at..)?.first_chunk()?;
        Some(u32::from_ne_bytes(*bytes))
    };
    word(4).filter(|_| word(0).is_some_and(|on| on != 0))
}

/// `tcpi_state`, with the numbers of `include/net/tcp_states.h`.
fn tcp_state(state: &State, ends: Ends) -> u8 {
    const ESTABLISHED: u8 = 1;
    const SYN_SENT: u8 = 2;
    const FIN_WAIT_2: u8 = 5;
    const CLOSE: u8 = 7;
    const CLOSE_WAIT: u8 = 8;
    const LISTEN: u8 = 10;
    match state {
        State::Open(_) | State::Joined(_) => match (ends.own, ends.peers) {
            (false, false) => ESTABLISHED,
            (true, false) => FIN_WAIT_2,
            (false, true) => CLOSE_WAIT,
            (true, true) => CLOSE,
        },
        State::Shut => FIN_WAIT_2,
        State::Connecting(_) => SYN_SENT,
        State::Listening(_) => LISTEN,
        State::Bound | State::Failed(_) | State::Datagram(_) | State::Doomed | State::Over => CLOSE,
    }
}

/// Options that are passed to the stack when a session begins.
const PASSED: [(i32, i32); 5] = [
    (libc::IPPROTO_TCP, libc::TCP_NODELAY),
    (libc::SOL_SOCKET, libc::SO_KEEPALIVE),
    (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT),
    (libc::IPPROTO_IP, libc::IP_TOS),
    (libc::IPPROTO_IPV6, libc::IPV6_TCLASS),
];
/// `SO_ATTACH_REUSEPORT_CBPF` and `_EBPF` of `include/uapi/asm-generic/socket.h`.
const ATTACHES: [i32; 2] = [51, 52];
/// `include/uapi/asm-generic/socket.h`, and `tcp.h` of `include/uapi/linux`.
const SO_PEERNAME: i32 = 28;
const TCP_FASTOPEN_NO_COOKIE: i32 = 34;
const TCP_ZEROCOPY_RECEIVE: i32 = 35;
/// The least send buffer of the stack, in bytes.
const SEND_BYTES_MIN: u32 = 4096;
/// Linux's default of TCP_KEEPIDLE.
const KEEPALIVE_IDLE_SECONDS: u32 = 7200;
/// Options of level SOL_SOCKET that apply to the pair, too.
const PAIRS: [i32; 5] = [
    libc::SO_SNDBUF,
    libc::SO_RCVTIMEO,
    libc::SO_SNDTIMEO,
    libc::SO_RCVLOWAT,
    libc::SO_OOBINLINE,
];
/// Larger than any option's value except a BPF filter's.
const OPTION_BYTES_MAX: usize = 4096;

#[cfg(test)]
mod tests;

//! getsockopt(2) and setsockopt(2).
//!
//! The kernel's socket that the program opened stores the options, so that the kernel itself
//! refuses, rounds or rejects values; the stack gets the ones that it supports.

use super::{PROCEED, Reply, Supervisor, ZERO};
use crate::caller::Caller;
use crate::socket::{Socket, State};
use rustix::io::Errno;
use sidecore_net::sock::SocketOption;
use sidecore_sys::socket_option;
use std::os::fd::AsFd;

impl Supervisor {
    pub(super) fn get_option(&mut self, caller: &mut Caller<'_>) -> Result<Reply, Errno> {
        let descriptor = caller.int(0);
        if caller.int(1) == sidecore_net_rings::LEVEL {
            return self.serve_rings(caller);
        }
        let Some(inode) = caller.inode(descriptor) else {
            return Ok(PROCEED);
        };
        let Some(socket) = self.sockets.get_mut(&inode) else {
            return Ok(PROCEED);
        };
        socket.holder = (caller.call.thread, descriptor);
        let (level, name) = (caller.int(1), caller.int(2));
        // The program keeps its own datagram socket; only options that were cleared on it are
        // stored here.
        let is_kept = |it: &(i32, i32, Vec<u8>)| (it.0, it.1) == (level, name);
        if socket.carrier.is_some() && !socket.options.iter().any(is_kept) {
            return Ok(PROCEED);
        }
        let [_, _, _, target, length, _] = caller.call.arguments;
        let room = caller.read_int(length)?;
        let room = usize::try_from(room).map_err(|_| Errno::INVAL)?;
        let number = |value: i32| value.to_ne_bytes().to_vec();
        let mut value = match (level, name) {
            // The pair reports its own error.
            (libc::SOL_SOCKET, libc::SO_ERROR) if matches!(socket.state, State::Joined(_)) => {
                return Ok(PROCEED);
            }
            (libc::SOL_SOCKET, libc::SO_ERROR) => {
                let error = self.take_error(inode);
                // The pair's error, which announced this one, is cleared with it.
                if error != 0
                    && let Ok(near) = caller.fetch(descriptor)
                {
                    socket_option::get(near.as_fd(), level, name, 4).ok();
                }
                number(error)
            }
            (libc::SOL_SOCKET, libc::SO_ACCEPTCONN) => {
                number(matches!(socket.state, State::Listening(_)).into())
            }
            _ => self.option_value(inode, level, name, room.min(OPTION_BYTES_MAX))?,
        };
        if (level, name) == (libc::IPPROTO_TCP, libc::TCP_INFO)
            && let (Some(first), Some(socket)) = (value.first_mut(), self.sockets.get(&inode))
        {
            *first = tcp_state(socket, self.ends(caller, inode));
        }
        value.truncate(room);
        caller.write_sized(target, length, &value)?;
        Ok(ZERO)
    }

    /// The error of a nonblocking connect(2), reported once.
    fn take_error(&mut self, inode: u64) -> i32 {
        match self.sockets.get_mut(&inode).map(|socket| &mut socket.state) {
            Some(State::Failed(error)) => error.take().map_or(0, Errno::raw_os_error),
            Some(State::Open(stream)) => {
                stream.is_told = true;
                0
            }
            _ => 0,
        }
    }

    /// The value of an option as it was set last.
    pub(super) fn option_value(
        &self,
        inode: u64,
        level: i32,
        name: i32,
        bytes_max: usize,
    ) -> Result<Vec<u8>, Errno> {
        let socket = self.sockets.get(&inode).ok_or(Errno::BADF)?;
        let set = socket
            .options
            .iter()
            .find(|it| (it.0, it.1) == (level, name));
        match set {
            Some((_, _, value)) => Ok(value.clone()),
            None => socket_option::get(socket.kernel.as_fd(), level, name, bytes_max),
        }
    }

    pub(super) fn set_option(&mut self, caller: &mut Caller<'_>) -> Result<Reply, Errno> {
        let descriptor = caller.int(0);
        let Some(inode) = caller.inode(descriptor) else {
            return Ok(PROCEED);
        };
        let Some(socket) = self.sockets.get_mut(&inode) else {
            return Ok(PROCEED);
        };
        socket.holder = (caller.call.thread, descriptor);
        let (level, name) = (caller.int(1), caller.int(2));
        let length = usize::try_from(caller.int(4)).map_err(|_| Errno::INVAL)?;
        let value = caller.read(caller.call.arguments[3], length.min(OPTION_BYTES_MAX))?;
        // The kernel would accept these without effect here; programs handle a refusal.
        match (level, name) {
            (libc::SOL_SOCKET, libc::SO_ZEROCOPY) => return Err(Errno::OPNOTSUPP),
            (libc::IPPROTO_TCP, libc::TCP_ULP) => return Err(Errno::NOENT),
            (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => return Err(Errno::INVAL),
            _ => {}
        }
        if let Some(carrier) = &mut socket.carrier {
            carrier.habits = None;
            socket.options.retain(|it| (it.0, it.1) != (level, name));
            return Ok(PROCEED);
        }
        set(socket, level, name, &value)?;
        if (level, name) == (libc::SOL_SOCKET, libc::SO_LINGER) {
            let now = resets(&value);
            match (std::mem::replace(&mut socket.resets_on_close, now), now) {
                (false, true) => self.arm_reset(inode),
                (true, false) => self.disarm_reset(caller, inode),
                _ => {}
            }
        }
        self.pass_option_on(inode, level, name, &value);
        // The pair has these options as well: the kernel applies them to calls on the pair.
        let is_pairs = level == libc::SOL_SOCKET && PAIRS.contains(&name);
        Ok(if is_pairs { PROCEED } else { ZERO })
    }

    /// Passes an option to the stack if it supports it.
    pub(super) fn pass_option_on(&mut self, inode: u64, level: i32, name: i32, value: &[u8]) {
        let number = value
            .first_chunk()
            .map_or(0, |bytes| i32::from_ne_bytes(*bytes));
        let idle_seconds = || {
            let value = self.option_value(inode, libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 4);
            let value = value.ok()?;
            value.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))
        };
        let keeps_alive = || {
            let value = self.option_value(inode, libc::SOL_SOCKET, libc::SO_KEEPALIVE, 4);
            value.is_ok_and(|value| value.iter().any(|byte| *byte != 0))
        };
        let option = match (level, name) {
            (libc::IPPROTO_TCP, libc::TCP_NODELAY) => SocketOption::NoDelay(number != 0),
            (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => {
                SocketOption::KeepaliveIdleSeconds(if number == 0 {
                    // The stack has one value for both options; 0 means no keepalive, and 7200 is
                    // Linux's default.
                    0
                } else {
                    idle_seconds().unwrap_or(7200)
                })
            }
            (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) if keeps_alive() => {
                SocketOption::KeepaliveIdleSeconds(number.cast_unsigned())
            }
            (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT) => {
                SocketOption::UserTimeoutMs(number.cast_unsigned())
            }
            // The kernel's socket stores all others, which the stack does not have.
            _ => return,
        };
        let Some(socket) = self.sockets.get(&inode) else {
            return;
        };
        let engines = socket.engines();
        if let Some(client) = &mut self.client
            && !matches!(socket.state, State::Datagram(_))
        {
            for engine in engines {
                // The loop notices when the engine is gone.
                client.set(engine, option).ok();
            }
        }
    }
}

/// Sets an option of one socket, even if others share the kernel's socket.
fn set(socket: &mut Socket, level: i32, name: i32, value: &[u8]) -> Result<(), Errno> {
    let before = if socket.owns_kernel {
        None
    } else {
        Some(socket_option::get(
            socket.kernel.as_fd(),
            level,
            name,
            OPTION_BYTES_MAX,
        ))
    };
    socket_option::set(socket.kernel.as_fd(), level, name, value)?;
    if let Some(before) = before {
        let kernel = socket.kernel.as_fd();
        let now = socket_option::get(kernel, level, name, OPTION_BYTES_MAX);
        if let Ok(before) = before {
            // Restores the listener's own value.
            socket_option::set(kernel, level, name, &before).ok();
        }
        if let Ok(now) = now {
            socket.options.retain(|it| (it.0, it.1) != (level, name));
            socket.options.push((level, name, now));
        }
    }
    Ok(())
}

/// True if this value of SO_LINGER makes close send a reset: on, with a time of zero.
pub(super) fn resets(value: &[u8]) -> bool {
    let word = |at: usize| {
        let bytes = value.get(at..)?.first_chunk()?;
        Some(i32::from_ne_bytes(*bytes))
    };
    word(0).is_some_and(|on| on != 0) && word(4) == Some(0)
}

/// `tcpi_state`, with the numbers of `include/net/tcp_states.h`. `ends` are the directions that
/// have ended: its own, and the peer's.
fn tcp_state(socket: &Socket, ends: (bool, bool)) -> u8 {
    match socket.state {
        State::Open(_) | State::Joined(_) => match ends {
            (false, false) => 1,
            (true, false) => 5,
            (false, true) => 8,
            (true, true) => 7,
        },
        State::Connecting(_) => 2,
        State::Listening(_) => 10,
        _ => 7,
    }
}

/// Options that are passed to the stack when a session begins.
pub(super) const TOLD: [(i32, i32); 3] = [
    (libc::IPPROTO_TCP, libc::TCP_NODELAY),
    (libc::SOL_SOCKET, libc::SO_KEEPALIVE),
    (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT),
];
/// Options of level SOL_SOCKET that apply to the pair, too.
const PAIRS: [i32; 4] = [
    libc::SO_RCVTIMEO,
    libc::SO_SNDTIMEO,
    libc::SO_RCVLOWAT,
    libc::SO_OOBINLINE,
];
/// Larger than any option's value except a BPF filter's.
const OPTION_BYTES_MAX: usize = 4096;

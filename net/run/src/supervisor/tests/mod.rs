//! Whole calls, made with this process's own descriptors and memory.

pub(super) mod fixtures;

use self::fixtures::{Callers, callers, supervisor};
use super::*;
use crate::address;
use crate::socket::files::inode_of;
use crate::socket::tests::socket;
use rustix::net::{AddressFamily, SendFlags, SocketType};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd as _, OwnedFd};

/// A program of one thread, whose calls the supervisor serves.
struct Program {
    supervisor: Supervisor,
    listener: std::rc::Rc<Listener>,
    callers: Callers,
    /// The caller that is used now.
    turn: usize,
}

impl Program {
    /// A program that has as many calls answered at once (accept(2)).
    fn new(answered: i32) -> Self {
        let (listener, callers) = callers(answered + 1);
        let supervisor = supervisor(listener);
        let listener = supervisor.table.calls.listener();
        Self {
            supervisor,
            listener,
            callers,
            turn: 0,
        }
    }

    fn call(&mut self, number: i64, file: &OwnedFd, rest: [u64; 4]) -> Result<Reply, Errno> {
        let waiting = self.callers.calls[self.turn];
        let file = file.as_raw_fd().cast_unsigned();
        let [first, second, third, fourth] = rest;
        let call = Call {
            number,
            arguments: [file.into(), first, second, third, fourth, 0],
            ..waiting
        };
        let mut caller = Caller::new(call, &self.listener);
        self.supervisor.serve(&mut caller)
    }

    fn with_address(
        &mut self,
        number: i64,
        file: &OwnedFd,
        at: SocketAddr,
    ) -> Result<Reply, Errno> {
        let bytes = address::write(at, at.is_ipv6());
        let length = bytes.len() as u64;
        self.call(number, file, [pointer(&bytes), length, 0, 0])
    }

    fn bind(&mut self, file: &OwnedFd, at: &str) -> Result<Reply, Errno> {
        self.with_address(libc::SYS_bind, file, at.parse().unwrap())
    }

    fn connect(&mut self, file: &OwnedFd, at: SocketAddr) -> Result<Reply, Errno> {
        self.with_address(libc::SYS_connect, file, at)
    }

    fn listen(&mut self, file: &OwnedFd) -> Result<Reply, Errno> {
        self.call(libc::SYS_listen, file, [5, 0, 0, 0])
    }

    fn name(&mut self, number: i64, file: &OwnedFd) -> Result<SocketAddr, Errno> {
        let mut bytes = [0; 28];
        let mut length = 28i32.to_ne_bytes();
        let rest = [place(&mut bytes), place(&mut length), 0, 0];
        self.call(number, file, rest)?;
        match address::read(&written(&mut bytes)) {
            address::Given::Inet(at) => Ok(at),
            _ => Err(Errno::INVAL),
        }
    }

    /// The state of the socket that a descriptor refers to now.
    fn state(&self, file: &OwnedFd) -> &State {
        &self.supervisor.table.sockets[&inode_of(file).unwrap()].state
    }

    /// A listener at a port of the loopback, and its address.
    fn listening(&mut self) -> (OwnedFd, SocketAddr) {
        let server = tcp();
        assert_zero(self.bind(&server, "127.0.0.1:0"));
        assert_zero(self.listen(&server));
        let at = self.name(libc::SYS_getsockname, &server).unwrap();
        (server, at)
    }

    /// Ends the calls that are left.
    fn end(self) {
        drop((self.supervisor, self.listener));
        assert!(!self.callers.results().is_empty());
    }
}

fn pointer(bytes: &[u8]) -> u64 {
    bytes.as_ptr().addr() as u64
}

/// The place of a result: the supervisor writes to this process's memory behind the compiler's
/// back, so the value is read through [`written`].
fn place(bytes: &mut [u8]) -> u64 {
    std::hint::black_box(bytes).as_mut_ptr().addr() as u64
}

/// A value that the supervisor may have written.
fn written<const BYTES: usize>(bytes: &mut [u8; BYTES]) -> [u8; BYTES] {
    *std::hint::black_box(bytes)
}

fn tcp() -> OwnedFd {
    rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap()
}

fn udp() -> OwnedFd {
    rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None).unwrap()
}

fn set_nonblocking(file: &OwnedFd) {
    crate::socket::files::set_nonblocking(file, true).unwrap();
}

#[track_caller]
fn assert_zero(reply: Result<Reply, Errno>) {
    assert!(
        matches!(reply, Ok(Reply::Now(Answer::Value(0)))),
        "{reply:?}"
    );
}

#[track_caller]
fn assert_kernels(reply: Result<Reply, Errno>) {
    assert!(
        matches!(reply, Ok(Reply::Now(Answer::Proceed))),
        "{reply:?}"
    );
}

#[track_caller]
fn assert_fails(reply: Result<Reply, Errno>, errno: Errno) {
    assert!(matches!(reply, Err(error) if error == errno), "{reply:?}");
}

#[test]
fn a_bound_socket_is_the_supervisors() {
    let mut program = Program::new(0);
    let file = tcp();
    let before = inode_of(&file).unwrap();
    assert_zero(program.bind(&file, "127.0.0.1:0"));
    // Another file has the place of the descriptor.
    assert_ne!(inode_of(&file), Ok(before));
    assert!(matches!(program.state(&file), State::Bound));
    let at = program.name(libc::SYS_getsockname, &file).unwrap();
    assert_eq!(at.ip().to_string(), "127.0.0.1");
    let port = at.port();
    assert_ne!(port, 0);
    assert_fails(program.bind(&file, "127.0.0.1:0"), Errno::INVAL);
    // The address is judged before the name that it has.
    assert_fails(program.bind(&file, "192.0.2.1:0"), Errno::ADDRNOTAVAIL);
    assert_fails(program.bind(&file, "[::1]:0"), Errno::AFNOSUPPORT);
    let peer = program.name(libc::SYS_getpeername, &file);
    assert_eq!(peer, Err(Errno::NOTCONN));
    let other = tcp();
    let taken = program.bind(&other, &format!("127.0.0.1:{port}"));
    assert_fails(taken, Errno::ADDRINUSE);
    // Once it is closed, its port is free for the next.
    drop(file);
    assert_zero(program.bind(&other, &format!("127.0.0.1:{port}")));
    program.end();
}

#[test]
fn other_addresses_and_files_are_the_kernels() {
    let mut program = Program::new(0);
    let file = tcp();
    assert_kernels(program.bind(&file, "192.0.2.1:80"));
    assert_kernels(program.connect(&file, "192.0.2.1:80".parse().unwrap()));
    // An IPv6 address on an IPv4 socket: the kernel refuses it.
    assert_kernels(program.bind(&file, "[::1]:0"));
    let null: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
    assert_kernels(program.bind(&null, "127.0.0.1:0"));
    assert_kernels(program.listen(&null));
    let (local, _other) = crate::socket::files::pair(false).unwrap();
    assert_kernels(program.bind(&local, "127.0.0.1:0"));
    assert_kernels(program.listen(&local));
    for number in [
        libc::SYS_accept,
        libc::SYS_getsockname,
        libc::SYS_getpeername,
        libc::SYS_getsockopt,
        libc::SYS_setsockopt,
        libc::SYS_shutdown,
        libc::SYS_ioctl,
        libc::SYS_dup,
        libc::SYS_recvfrom,
    ] {
        assert_kernels(program.call(number, &file, [0; 4]));
    }
    assert!(program.supervisor.table.sockets.is_empty());
    // No address of the kernel's is longer.
    let long = program.call(libc::SYS_bind, &file, [0, 129, 0, 0]);
    assert_fails(long, Errno::INVAL);
    let unmapped = program.call(libc::SYS_bind, &file, [1, 16, 0, 0]);
    assert_fails(unmapped, Errno::FAULT);
    program.end();
}

#[test]
fn a_session_is_accepted_by_a_call() {
    let mut program = Program::new(1);
    let (server, at) = program.listening();
    set_nonblocking(&server);
    let none = program.call(libc::SYS_accept4, &server, [0; 4]);
    assert_fails(none, Errno::AGAIN);
    let odd = program.call(libc::SYS_accept4, &server, [0, 0, 1 << 30, 0]);
    assert_fails(odd, Errno::INVAL);
    let client = tcp();
    assert_zero(program.connect(&client, at));
    assert!(local_socket::is_readable(server.as_fd()));
    let reply = program.call(libc::SYS_accept, &server, [0; 4]);
    assert!(matches!(reply, Ok(Reply::Done)), "{reply:?}");
    assert!(
        !local_socket::is_readable(server.as_fd()),
        "none waits any more"
    );
    program.turn += 1;
    let local = program.name(libc::SYS_getsockname, &client).unwrap();
    let peer = program.name(libc::SYS_getpeername, &client).unwrap();
    assert_eq!(peer, at);
    // The accepted end is the one whose peer is the client.
    let sockets = program.supervisor.table.sockets.values();
    let mut accepted = sockets.filter(|it| it.peer == Some(local));
    let accepted = accepted.next().unwrap();
    assert_eq!(accepted.local, at);
    let near = sidecore_sys::program::inherited(accepted.holder.descriptor).unwrap();
    rustix::net::send(&client, b"hello", SendFlags::empty()).unwrap();
    assert!(local_socket::is_readable(near.as_fd()));
    assert_fails(program.connect(&client, at), Errno::ISCONN);
    program.end();
}

#[test]
fn a_nonblocking_connect_is_reported_once() {
    let mut program = Program::new(0);
    let (_server, at) = program.listening();
    let client = tcp();
    set_nonblocking(&client);
    assert_fails(program.connect(&client, at), Errno::INPROGRESS);
    assert_zero(program.connect(&client, at));
    assert_fails(program.connect(&client, at), Errno::ISCONN);
    assert!(matches!(program.state(&client), State::Joined(_)));
    program.end();
}

#[test]
fn where_no_program_listens_the_connect_is_refused() {
    let mut program = Program::new(0);
    let at = "127.0.0.1:1".parse().unwrap();
    let client = tcp();
    let inode = inode_of(&client);
    assert_fails(program.connect(&client, at), Errno::CONNREFUSED);
    // The program has the socket that it opened, in its state.
    assert_eq!(inode_of(&client), inode);
    set_nonblocking(&client);
    assert_fails(program.connect(&client, at), Errno::INPROGRESS);
    let error = rustix::net::sockopt::socket_error(&client).unwrap();
    assert_eq!(error, Err(Errno::CONNREFUSED));
    assert!(program.supervisor.table.sockets.is_empty());
    program.end();
}

#[test]
fn a_bound_socket_hears_of_its_refusal_through_its_pair() {
    let mut program = Program::new(0);
    let client = tcp();
    assert_zero(program.bind(&client, "127.0.0.1:0"));
    set_nonblocking(&client);
    let at = "127.0.0.1:1".parse().unwrap();
    assert_fails(program.connect(&client, at), Errno::INPROGRESS);
    assert!(matches!(
        program.state(&client),
        State::Failed(Some(Errno::CONNREFUSED))
    ));
    assert_fails(program.connect(&client, at), Errno::CONNREFUSED);
    // Once reported, the next call tries again.
    let (_server, at) = program.listening();
    assert_fails(program.connect(&client, at), Errno::INPROGRESS);
    assert!(matches!(program.state(&client), State::Joined(_)));
    program.end();
}

#[test]
fn a_disconnected_socket_is_the_kernels_again() {
    let mut program = Program::new(0);
    let (_server, at) = program.listening();
    let client = tcp();
    let inode = inode_of(&client);
    assert_zero(program.connect(&client, at));
    let unspecified = [0; 16];
    let rest = [pointer(&unspecified), 16, 0, 0];
    assert_zero(program.call(libc::SYS_connect, &client, rest));
    assert_eq!(inode_of(&client), inode);
    assert_kernels(program.call(libc::SYS_getsockname, &client, [0; 4]));
    program.end();
}

#[test]
fn states_refuse_the_calls_that_are_not_theirs() {
    let mut program = Program::new(0);
    let (server, at) = program.listening();
    assert_fails(program.connect(&server, at), Errno::ISCONN);
    // A second listen(2) changes the backlog.
    assert_zero(program.listen(&server));
    let client = tcp();
    assert_zero(program.connect(&client, at));
    assert_fails(program.listen(&client), Errno::INVAL);
    let accepted = program.call(libc::SYS_accept, &client, [0; 4]);
    assert_fails(accepted, Errno::INVAL);
    let bound = tcp();
    assert_zero(program.bind(&bound, "127.0.0.1:0"));
    let shut = program.call(libc::SYS_shutdown, &bound, [0; 4]);
    assert_fails(shut, Errno::NOTCONN);
    let shut = program.call(libc::SYS_shutdown, &client, [3, 0, 0, 0]);
    assert_fails(shut, Errno::INVAL);
    let write = u64::try_from(libc::SHUT_WR).unwrap();
    assert_kernels(program.call(libc::SYS_shutdown, &client, [write, 0, 0, 0]));
    assert!(matches!(program.state(&client), State::Joined(joined) if joined.is_shut));
    assert_zero(program.call(libc::SYS_shutdown, &server, [write, 0, 0, 0]));
    assert!(matches!(program.state(&server), State::Listening(_)));
    assert_kernels(program.call(libc::SYS_shutdown, &server, [0; 4]));
    assert!(matches!(program.state(&server), State::Bound));
    program.end();
}

#[test]
fn a_duplicate_is_replaced_with_its_socket() {
    let mut program = Program::new(0);
    let file = tcp();
    assert_kernels(program.call(libc::SYS_dup, &file, [0; 4]));
    let duplicate = file.try_clone().unwrap();
    assert_zero(program.bind(&file, "127.0.0.1:0"));
    assert_eq!(inode_of(&duplicate), inode_of(&file));
    // One that was not noted keeps the old file until a call about it.
    let late = tcp();
    let unnoted = late.try_clone().unwrap();
    assert_zero(program.bind(&late, "127.0.0.1:0"));
    assert_ne!(inode_of(&unnoted), inode_of(&late));
    let at = program.name(libc::SYS_getsockname, &unnoted).unwrap();
    assert_eq!(inode_of(&unnoted), inode_of(&late));
    assert_eq!(program.name(libc::SYS_getsockname, &late), Ok(at));
    program.end();
}

#[test]
fn datagrams_pass_between_programs() {
    let mut program = Program::new(0);
    let (server, client) = (udp(), udp());
    let inode = inode_of(&server);
    assert_zero(program.bind(&server, "127.0.0.1:0"));
    // A UDP socket stays the program's own.
    assert_eq!(inode_of(&server), inode);
    let at = program.name(libc::SYS_getsockname, &server).unwrap();
    let (payload, to) = (b"hello", address::write(at, false));
    let rest = [pointer(payload), 5, 0, pointer(&to)];
    let length = to.len() as u64;
    let sent = {
        let waiting = program.callers.calls[0];
        let file = client.as_raw_fd().cast_unsigned();
        let [payload, bytes, flags, to] = rest;
        let call = Call {
            number: libc::SYS_sendto,
            arguments: [file.into(), payload, bytes, flags, to, length],
            ..waiting
        };
        let mut caller = Caller::new(call, &program.listener);
        program.supervisor.serve(&mut caller)
    };
    assert!(matches!(sent, Ok(Reply::Now(Answer::Value(5)))), "{sent:?}");
    let patience = Duration::from_secs(60);
    local_socket::poll(&[server.as_fd()], &mut Vec::new(), patience).unwrap();
    let (mut room, mut name) = ([0; 16], [0; 16]);
    let mut name_length = 16i32.to_ne_bytes();
    let received = {
        let waiting = program.callers.calls[0];
        let file = server.as_raw_fd().cast_unsigned();
        let call = Call {
            number: libc::SYS_recvfrom,
            arguments: [
                file.into(),
                place(&mut room),
                16,
                0,
                place(&mut name),
                place(&mut name_length),
            ],
            ..waiting
        };
        let mut caller = Caller::new(call, &program.listener);
        program.supervisor.serve(&mut caller)
    };
    assert!(
        matches!(received, Ok(Reply::Now(Answer::Value(5)))),
        "{received:?}"
    );
    assert_eq!(written(&mut room)[..5], *payload);
    let from = program.name(libc::SYS_getsockname, &client).unwrap();
    assert!(matches!(
        address::read(&written(&mut name)),
        address::Given::Inet(by) if by.port() == from.port()
    ));
    program.end();
}

#[test]
fn the_kernel_counts_the_bytes_that_the_supervisor_has_not_read() {
    let mut program = Program::new(0);
    let file = tcp();
    assert_zero(program.bind(&file, "127.0.0.1:0"));
    let mut room = [0xff; 4];
    let unsent = [SIOCOUTQ.into(), place(&mut room), 0, 0];
    assert_zero(program.call(libc::SYS_ioctl, &file, unsent));
    assert_eq!(i32::from_ne_bytes(written(&mut room)), 0);
    // A far end of the supervisor's with bytes in it.
    let (near, far) = crate::socket::files::pair(true).unwrap();
    rustix::net::send(&near, b"hello", SendFlags::empty()).unwrap();
    let inode = inode_of(&near).unwrap();
    let mut of = socket(State::Over);
    of.far = Some(far);
    program.supervisor.table.insert(inode, of).unwrap();
    assert_zero(program.call(libc::SYS_ioctl, &near, unsent));
    assert_eq!(i32::from_ne_bytes(written(&mut room)), 5);
    program.end();
}

#[test]
fn options_are_kept_by_the_kernels_socket_or_are_the_sessions() {
    let mut program = Program::new(0);
    let (server, at) = program.listening();
    let level = u64::try_from(libc::SOL_SOCKET).unwrap();
    let (mut value, mut length) = ([0xff; 4], 4i32.to_ne_bytes());
    let (target, size) = (place(&mut value), place(&mut length));
    let mut get = |program: &mut Program, file: &OwnedFd, name: i32| {
        let name = u64::try_from(name).unwrap();
        assert_zero(program.call(libc::SYS_getsockopt, file, [level, name, target, size]));
        i32::from_ne_bytes(written(&mut value))
    };
    assert_eq!(get(&mut program, &server, libc::SO_ACCEPTCONN), 1);
    let client = tcp();
    assert_zero(program.connect(&client, at));
    assert_eq!(get(&mut program, &client, libc::SO_ACCEPTCONN), 0);
    assert_eq!(get(&mut program, &server, libc::SO_ERROR), 0);
    // The pair of two programs has its own error.
    let name = u64::try_from(libc::SO_ERROR).unwrap();
    let rest = [level, name, target, size];
    assert_kernels(program.call(libc::SYS_getsockopt, &client, rest));
    for (name, errno) in [
        (libc::SO_ZEROCOPY, Errno::OPNOTSUPP),
        (-1, Errno::NOPROTOOPT),
    ] {
        let name = u64::from(name.cast_unsigned());
        let rest = [level, name, target, 4];
        let set = program.call(libc::SYS_setsockopt, &client, rest);
        assert_fails(set, errno);
    }
    program.end();
}

#[test]
fn a_far_end_that_hangs_up_ends_its_socket() {
    let mut program = Program::new(0);
    for state in [
        State::Bound,
        State::Failed(None),
        State::Doomed,
        State::Over,
    ] {
        program.supervisor.table.insert(7, socket(state)).unwrap();
        program.supervisor.look_at(Mark::Far(7), EventFlags::IN);
        assert!(program.supervisor.table.sockets.contains_key(&7));
        program.supervisor.look_at(Mark::Far(7), EventFlags::HUP);
        assert!(program.supervisor.table.sockets.is_empty());
    }
    // Events of files that are gone by now.
    for mark in [Mark::Far(7), Mark::Near(7), Mark::Rendezvous(7)] {
        program.supervisor.look_at(mark, EventFlags::IN);
    }
    program.end();
}

#[test]
fn the_loop_rests_as_long_as_nothing_is_due() {
    let mut program = Program::new(0);
    assert_eq!(program.supervisor.rest(), NAP);
    let listener = std::rc::Rc::clone(&program.listener);
    let caller = Caller::new(program.callers.calls[0], &listener);
    let table = &mut program.supervisor.table;
    table.insert(7, socket(State::Over)).unwrap();
    table.park(7, &caller, Some(Duration::from_secs(60)));
    assert_eq!(program.supervisor.rest(), PATIENT_NAP);
    program.supervisor.table.calls.wake(7);
    assert_eq!(program.supervisor.rest(), Duration::ZERO);
    let table = &mut program.supervisor.table;
    table.calls.take_woken();
    table.calls.fail(7, Errno::AGAIN);
    assert_eq!(program.supervisor.rest(), NAP);
    program.end();
}

#[test]
fn errors_of_the_stack_are_the_kernels() {
    for (error, errno) in [
        (SocketError::Refused, Errno::CONNREFUSED),
        (SocketError::Reset, Errno::CONNRESET),
        (SocketError::TimedOut, Errno::TIMEDOUT),
        (SocketError::Unreachable, Errno::HOSTUNREACH),
        (SocketError::InUse, Errno::ADDRINUSE),
        (SocketError::NotOurs, Errno::ADDRNOTAVAIL),
        (SocketError::TooLong, Errno::MSGSIZE),
        (SocketError::NetworkUnreachable, Errno::NETUNREACH),
        (SocketError::Prohibited, Errno::ACCESS),
        (SocketError::NoProtocol, Errno::NOPROTOOPT),
    ] {
        assert_eq!(errno_of(&error.into()), errno);
    }
    assert_eq!(errno_of(&ClientError::Lost), Errno::NETDOWN);
}

//! One end of a session: a kernel socket, or one of our stack. No call blocks.
#![allow(unsafe_code)] // setsockopt(2) with TCP_MAXSEG, which rustix does not know

use super::case::Script;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType, sockopt};
use sidecore_net::{ListenerId, NetError, SessionError, SessionId, SessionOption, Stack};
use std::cell::RefCell;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

/// The error of a call, as far as both stacks agree on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Failure {
    Refused,
    /// Reset by the peer, or closed by it during a write.
    Broken,
    TimedOut,
    Other(String),
}

/// Result of a read.
pub(crate) enum Got {
    Bytes(usize),
    Nothing,
    End,
}

pub(crate) trait Party {
    /// Result of the opening; none while that is pending.
    fn opened(&mut self) -> Option<Result<(), Failure>>;
    /// Bytes accepted; 0 if there is no room now.
    fn write(&mut self, bytes: &[u8]) -> Result<usize, Failure>;
    fn read(&mut self, bytes: &mut [u8]) -> Result<Got, Failure>;
    fn shut_down(&mut self);
    fn close(&mut self);
    fn reset(&mut self);
}

/// A socket of the kernel's.
pub(crate) struct Kernels {
    socket: Option<OwnedFd>,
    listens: bool,
}

impl Kernels {
    /// Begins to connect, or listens; in the namespace of the calling thread.
    pub(crate) fn new(address: SocketAddr, script: &Script, listens: bool) -> Self {
        let family = match address {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = net::socket_with(family, SocketType::STREAM, flags, None).expect("a socket");
        sockopt::set_tcp_nodelay(&socket, script.no_delay).expect("TCP_NODELAY");
        // SO_RCVBUFFORCE: this machine's limit would make its buffers smaller than ours.
        sockopt::set_socket_recv_buffer_size_force(&socket, script.receive_bytes as usize)
            .expect("SO_RCVBUFFORCE");
        sockopt::set_socket_send_buffer_size_force(&socket, script.send_bytes as usize)
            .expect("SO_SNDBUFFORCE");
        // The same as ours; it is not the default everywhere.
        sockopt::set_tcp_congestion(&socket, "cubic").expect("TCP_CONGESTION");
        if let Some(bytes) = script.segment_bytes {
            set_segment_bytes(&socket, bytes.into());
        }
        if listens {
            net::bind(&socket, &address).expect("a free address");
            net::listen(&socket, 4).expect("listens");
        } else {
            match net::connect(&socket, &address) {
                Ok(()) | Err(Errno::INPROGRESS) => {}
                Err(error) => panic!("connect to {address}: {error}"),
            }
        }
        Self {
            socket: Some(socket),
            listens,
        }
    }

    fn socket(&self) -> &OwnedFd {
        self.socket.as_ref().expect("open")
    }
}

impl Party for Kernels {
    fn opened(&mut self) -> Option<Result<(), Failure>> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        if self.listens {
            let socket = net::accept_with(self.socket(), flags).ok()?;
            assert_cubic(&socket);
            self.socket = Some(socket);
            self.listens = false;
            return Some(Ok(()));
        }
        let mut polled = [PollFd::new(self.socket(), PollFlags::OUT)];
        rustix::event::poll(&mut polled, Some(&Timespec::default())).expect("polls");
        if polled[0].revents().is_empty() {
            return None;
        }
        assert_cubic(self.socket());
        let error = sockopt::socket_error(self.socket()).expect("SO_ERROR");
        Some(error.map_err(Failure::of))
    }

    fn write(&mut self, bytes: &[u8]) -> Result<usize, Failure> {
        match net::send(self.socket(), bytes, net::SendFlags::NOSIGNAL) {
            Ok(count) => Ok(count),
            Err(Errno::AGAIN) => Ok(0),
            Err(error) => Err(Failure::of(error)),
        }
    }

    fn read(&mut self, bytes: &mut [u8]) -> Result<Got, Failure> {
        match rustix::io::read(self.socket(), bytes) {
            Ok(0) => Ok(Got::End),
            Ok(count) => Ok(Got::Bytes(count)),
            Err(Errno::AGAIN) => Ok(Got::Nothing),
            Err(error) => Err(Failure::of(error)),
        }
    }

    fn shut_down(&mut self) {
        // Fails if the session is over, which its script notices elsewhere.
        net::shutdown(self.socket(), net::Shutdown::Write).ok();
    }

    fn close(&mut self) {
        self.socket = None;
    }

    fn reset(&mut self) {
        sockopt::set_socket_linger(self.socket(), Some(Duration::ZERO)).expect("SO_LINGER");
        self.socket = None;
    }
}

impl Failure {
    fn of(error: Errno) -> Self {
        match error {
            Errno::CONNREFUSED => Self::Refused,
            Errno::CONNRESET | Errno::PIPE => Self::Broken,
            Errno::TIMEDOUT => Self::TimedOut,
            other => Self::Other(other.to_string()),
        }
    }

    fn ours(error: &NetError) -> Self {
        match error {
            NetError::Ended(SessionError::Refused) => Self::Refused,
            NetError::Ended(SessionError::Reset) => Self::Broken,
            NetError::Ended(SessionError::TimedOut) => Self::TimedOut,
            other => Self::Other(other.to_string()),
        }
    }
}

/// One of our stack's.
pub(crate) struct Ours {
    stack: Rc<RefCell<Stack>>,
    listener: Option<ListenerId>,
    session: Option<SessionId>,
}

impl Ours {
    pub(crate) fn listen(stack: &Rc<RefCell<Stack>>, at: SocketAddr, script: &Script) -> Self {
        let mut it = stack.borrow_mut();
        let listener = it.listen(at, 4).expect("a free address");
        for option in options(script) {
            it.set_listener_option(listener, option).expect("an option");
        }
        Self {
            stack: Rc::clone(stack),
            listener: Some(listener),
            session: None,
        }
    }

    pub(crate) fn connect(stack: &Rc<RefCell<Stack>>, to: SocketAddr, script: &Script) -> Self {
        let mut it = stack.borrow_mut();
        let session = it.connect(to, None).expect("a free session");
        for option in options(script) {
            it.set_option(session, option).expect("an option");
        }
        Self {
            stack: Rc::clone(stack),
            listener: None,
            session: Some(session),
        }
    }

    fn session(&self) -> SessionId {
        self.session.expect("open")
    }
}

fn options(script: &Script) -> impl Iterator<Item = SessionOption> {
    let fixed = [
        SessionOption::NoDelay(script.no_delay),
        SessionOption::ReceiveBytes(script.receive_bytes),
        SessionOption::SendBytes(script.send_bytes),
    ];
    let segment = script.segment_bytes.map(SessionOption::SegmentBytesMax);
    fixed.into_iter().chain(segment)
}

impl Party for Ours {
    fn opened(&mut self) -> Option<Result<(), Failure>> {
        let mut stack = self.stack.borrow_mut();
        if let Some(listener) = self.listener {
            let session = stack.accept(listener).expect("listens")?;
            stack.close_listener(listener).expect("listens");
            (self.listener, self.session) = (None, Some(session));
            return Some(Ok(()));
        }
        let readiness = stack.readiness(self.session()).expect("open");
        match readiness.error {
            Some(error) => Some(Err(Failure::ours(&NetError::Ended(error)))),
            None => readiness.writable.then_some(Ok(())),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> Result<usize, Failure> {
        let written = self.stack.borrow_mut().write(self.session(), bytes);
        written.map_err(|error| Failure::ours(&error))
    }

    fn read(&mut self, bytes: &mut [u8]) -> Result<Got, Failure> {
        let mut stack = self.stack.borrow_mut();
        let count = stack.read(self.session(), bytes);
        match count.map_err(|error| Failure::ours(&error))? {
            0 => {
                let ended = stack
                    .readiness(self.session())
                    .expect("open")
                    .end_of_input();
                Ok(if ended { Got::End } else { Got::Nothing })
            }
            count => Ok(Got::Bytes(count)),
        }
    }

    fn shut_down(&mut self) {
        // As for the kernel's.
        self.stack.borrow_mut().shutdown_write(self.session()).ok();
    }

    fn close(&mut self) {
        let mut stack = self.stack.borrow_mut();
        if let Some(listener) = self.listener.take() {
            stack.close_listener(listener).expect("listens");
        }
        if let Some(session) = self.session.take() {
            stack.close(session).expect("open");
        }
    }

    fn reset(&mut self) {
        match self.session.take() {
            Some(session) => self.stack.borrow_mut().abort(session).expect("open"),
            None => self.close(),
        }
    }
}

/// Another congestion control would drop a different amount at a bottleneck.
fn assert_cubic(socket: &OwnedFd) {
    let congestion = sockopt::tcp_congestion(socket).expect("TCP_CONGESTION");
    assert_eq!(congestion, "cubic");
}

fn set_segment_bytes(socket: &OwnedFd, bytes: i32) {
    // SAFETY: the option's value is an int, which lives for the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_MAXSEG,
            std::ptr::from_ref(&bytes).cast(),
            size_of::<i32>() as libc::socklen_t,
        )
    };
    assert_eq!(result, 0, "TCP_MAXSEG {bytes}");
}

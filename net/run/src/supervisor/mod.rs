//! The supervisor's loop: calls of programs, bytes in their pairs, events of the stack.
//!
//! One thread. Must stay true: nothing blocks except the loop itself, whatever the engine, another
//! supervisor or a program does (README.md, "What the supervisor waits for"). A call that cannot be
//! answered yet is parked in its socket's wait queue and repeated when the socket has changed. An
//! exited program costs one poll.

mod asking;
mod attaching;
mod connect;
mod datagrams;
mod direct;
mod header;
mod listen;
pub(crate) mod named;
mod names;
mod options;
mod receiving;
mod resets;
mod rings;
mod sending;
mod transfer;
mod twins;
mod unheard;

pub(crate) use attaching::Attach;
use attaching::Attaching;

use crate::caller::Caller;
use crate::carrier::{self, Senders};
use crate::error::{RunError, system};
use crate::loopback::{Door, Rendezvous};
use crate::migrate::Migration;
use crate::ports::{Claim, Ports, Transport};
use crate::scope::Scope;
use crate::socket::{Socket, State, Waiting};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;
use sidecore_net::sock::SocketError;
use sidecore_net::sock::client::{Client, ClientError, EventSource, Opening, Socket as Session};
use sidecore_net_rings::BY_ITSELF;
use sidecore_sys::SysError;
use sidecore_sys::local_socket;
use sidecore_sys::seccomp::{Answer, Call, Filter, Listener, When};
use std::collections::{HashMap, HashSet, VecDeque};
use std::os::fd::AsFd;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// The intercepted system calls.
pub(crate) const FILTER: &Filter = &[
    (libc::SYS_accept4, When::Unless(5, BY_ITSELF)),
    (libc::SYS_accept, When::Always),
    (libc::SYS_bind, When::Always),
    (libc::SYS_connect, When::Always),
    (libc::SYS_listen, When::Always),
    (libc::SYS_getsockname, When::Always),
    (libc::SYS_getpeername, When::Always),
    (libc::SYS_getsockopt, When::Unless(5, BY_ITSELF + 1)),
    (libc::SYS_setsockopt, When::Always),
    (libc::SYS_shutdown, When::Always),
    (libc::SYS_sendto, When::Given(4)),
    (libc::SYS_recvfrom, When::Given(4)),
    (libc::SYS_sendmsg, When::Always),
    (libc::SYS_recvmsg, When::Always),
    (libc::SYS_sendmmsg, When::Always),
    (libc::SYS_recvmmsg, When::Always),
    (libc::SYS_ioctl, When::OneOf(1, &[SIOCOUTQ, SIOCOUTQNSD])),
    (libc::SYS_io_uring_setup, When::Always),
    (libc::SYS_dup, When::Always),
    (libc::SYS_dup3, When::Always),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_dup2, When::Always),
    (libc::SYS_fcntl, When::OneOf(1, &[F_DUPFD, F_DUPFD_CLOEXEC])),
    (libc::SYS_epoll_create1, When::Always),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_epoll_create, When::Always),
];

/// Outcome of a call.
#[derive(Debug)]
pub(crate) enum Reply {
    /// To be answered with this.
    Now(Answer),
    /// Parked in a wait queue.
    Later,
    /// Already answered.
    Done,
}

/// The kernel runs the call.
const PROCEED: Reply = Reply::Now(Answer::Proceed);
/// The call succeeded.
const ZERO: Reply = Reply::Now(Answer::Value(0));

pub(crate) struct Supervisor {
    listener: Rc<Listener>,
    client: Option<Client>,
    attach: Option<Attaching>,
    /// Time of the last attempt to attach again.
    attach_at: Instant,
    epoll: OwnedFd,
    scope: Scope,
    sockets: HashMap<u64, Socket>,
    sessions: HashMap<Session, u64>,
    /// Sockets with a pending request to the stack.
    openings: HashMap<Opening, u64>,
    /// Answers that were lost by a signal, after the descriptor was replaced.
    unheard: unheard::Unheard,
    /// Programs' sockets by the datagram socket at the stack: several share a port if all allow it.
    sharers: HashMap<Session, Vec<u64>>,
    /// Sockets whose bytes wait for a buffer.
    starved: VecDeque<u64>,
    rings: rings::Rings,
    direct: direct::Direct,
    /// Stores the options of sessions without a listener.
    spare: Rc<OwnedFd>,
    ports: Ports,
    rendezvous: Option<Rendezvous>,
    doors: Vec<Option<Door>>,
    senders: Senders,
    twins: twins::Twins,
    /// The other ends of pairs between programs.
    mates: HashMap<u64, u64>,
    /// Datagram sockets connected to a port without a socket.
    refused: HashSet<u64>,
    /// Sockets between programs that send no more (shutdown(2)).
    ended: HashSet<u64>,
    /// Buffer for one datagram.
    scratch: Vec<u8>,
    migration: Migration,
    /// Number of new sockets without a far end, whose close is found by polling only.
    unseen: usize,
    sweep_at: Instant,
    sweep_every: Duration,
    /// Number of waiting calls with a deadline.
    deadlines: usize,
    next_port: u16,
}

impl Supervisor {
    pub(crate) fn new(
        listener: Listener,
        client: Option<Client>,
        attach: Option<Box<dyn Attach>>,
        scope: Scope,
        rendezvous: Option<Rendezvous>,
    ) -> Result<Self, Errno> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let kind = rustix::net::SocketType::STREAM;
        let flags = rustix::net::SocketFlags::CLOEXEC;
        let inet = rustix::net::AddressFamily::INET;
        let spare = Rc::new(rustix::net::socket_with(inet, kind, flags, None)?);
        epoll::add(&epoll, &listener, EventData::new_u64(CALLS), EventFlags::IN)?;
        Ok(Self {
            listener: Rc::new(listener),
            client,
            attach: attach.map(Attaching::new),
            attach_at: Instant::now(),
            epoll,
            scope,
            sockets: HashMap::new(),
            sessions: HashMap::new(),
            openings: HashMap::new(),
            unheard: unheard::Unheard::default(),
            sharers: HashMap::new(),
            starved: VecDeque::new(),
            rings: rings::Rings::default(),
            direct: direct::Direct::default(),
            spare,
            ports: Ports::default(),
            rendezvous,
            doors: Vec::new(),
            senders: Senders::default(),
            twins: twins::Twins::default(),
            mates: HashMap::new(),
            refused: HashSet::new(),
            ended: HashSet::new(),
            scratch: Vec::new(),
            migration: Migration::default(),
            unseen: 0,
            sweep_at: Instant::now(),
            sweep_every: SWEEP_EVERY,
            deadlines: 0,
            // Supervisors begin at different ports.
            next_port: FIRST_PORT + (std::process::id() % 8192) as u16,
        })
    }

    /// Runs until no process is left under the filter.
    ///
    /// # Errors
    /// It cannot continue. The listener is closed with the supervisor: waiting and later calls
    /// fail, instead of blocking for ever.
    pub(crate) fn run(mut self) -> Result<(), RunError> {
        let mut ready = Vec::with_capacity(READY_MAX);
        let mut busy = 0;
        loop {
            let news = self.wait();
            // Under load from sessions and rings, descriptors are polled after an amount of work
            // rather than per round: a round over a thousand sessions is long.
            if news > 0 && busy < DESCRIPTORS_AFTER {
                busy += news;
                busy += self.serve_sessions();
                continue;
            }
            busy = 0;
            ready.clear();
            let none = rustix::time::Timespec::default();
            match epoll::wait(
                &self.epoll,
                rustix::buffer::spare_capacity(&mut ready),
                Some(&none),
            ) {
                Ok(_) | Err(Errno::INTR | Errno::NOMEM) => {}
                Err(error) => return Err(system("epoll_wait")(error)),
            }
            let mut is_called = false;
            for event in &ready {
                // The struct is packed: copy the fields, take no references.
                let (data, flags) = (event.data, event.flags);
                match data.u64() {
                    CALLS => {
                        if flags.contains(EventFlags::IN) {
                            is_called = true;
                        } else if flags.contains(EventFlags::HUP) {
                            return Ok(());
                        }
                    }
                    waiter if waiter >= rings::PROCESSES => self.answer_waiter(waiter),
                    door if door >= DOORS => self.answer_door((door - DOORS) as usize),
                    near if near >= NEARS => self.retry_watched(near - NEARS),
                    inode => self.look_at_pair(inode, flags),
                }
            }
            // Bytes written before a call are forwarded before the call is answered.
            if is_called {
                self.take_calls().map_err(RunError::Calls)?;
            }
            self.serve_sessions();
            if let Some(failure) = self.listener.failure() {
                return Err(RunError::Calls(failure));
            }
        }
    }

    /// Serves sessions and rings; returns the number of programs' streams with events.
    fn serve_sessions(&mut self) -> usize {
        self.take_openings();
        self.take_session_events();
        let served = self.take_ring_news();
        self.feed_starved();
        self.retake();
        self.rings.wake_told();
        self.look_at_clock();
        served
    }

    /// Waits for events; returns 0 if neither sessions nor rings have any.
    fn wait(&mut self) -> usize {
        let rest = if self.starved.is_empty() && !self.is_retaking() {
            match (self.deadlines > 0, self.direct.is_overdue()) {
                (true, _) => PATIENT_NAP,
                (false, true) => SHORT_NAP,
                (false, false) => NAP,
            }
        } else {
            STARVED_NAP
        };
        let Some(client) = &mut self.client else {
            let rest = match &self.attach {
                Some(_) => rest.min(ATTACH_EVERY),
                None => rest,
            };
            if local_socket::poll(&[self.epoll.as_fd()], &mut Vec::new(), rest).is_err() {
                // It fails only without memory; the loop tries again.
                std::thread::sleep(STARVED_NAP);
            }
            return 0;
        };
        let (epoll, rings) = (&self.epoll, &self.rings);
        let watch = rings::Watch { epoll, rings };
        match client.poll_with(&watch, rest) {
            Ok(taken) => taken.max(usize::from(watch.is_ready())),
            Err(_) => {
                self.lose_stack();
                0
            }
        }
    }

    fn take_calls(&mut self) -> Result<(), SysError> {
        for _ in 0..CALLS_MAX {
            // None: a signal interrupted the caller meanwhile.
            if let Some(call) = self.listener.receive()? {
                self.dispatch(call);
            }
            if !local_socket::is_readable(self.listener.as_fd().as_fd()) {
                break;
            }
        }
        Ok(())
    }

    /// Answers a call, or parks it.
    fn dispatch(&mut self, call: Call) {
        let listener = Rc::clone(&self.listener);
        let mut caller = Caller::new(call, &listener);
        if let Some((answer, placed)) = self.unheard.take(&caller) {
            self.answer(&caller, answer, Some(placed));
            return;
        }
        self.unheard.placed = None;
        let answer = match self.serve(&mut caller) {
            Ok(Reply::Now(answer)) => answer,
            Ok(Reply::Later | Reply::Done) => return,
            Err(errno) => Answer::Fail(errno),
        };
        let placed = self.unheard.placed.take();
        // Closing the last reference to a file may block (SO_LINGER of the kernel's TCP). While the
        // caller waits, it holds another one.
        caller.forget_inode();
        self.answer(&caller, answer, placed);
    }

    /// Answers a call. A caller that a signal has interrupted repeats the call, or does not need
    /// the answer. If its descriptor was replaced by the file `placed`, the repeated call gets the
    /// same answer.
    fn answer(&mut self, caller: &Caller<'_>, answer: Answer, placed: Option<u64>) {
        if !self.listener.answer(caller.call.id, answer)
            && let Some(placed) = placed
        {
            self.unheard.keep(caller.call, answer, placed);
        }
    }

    fn serve(&mut self, caller: &mut Caller<'_>) -> Result<Reply, Errno> {
        // The descriptor may refer to a socket that was replaced meanwhile, or to a session that
        // the library accepted without a call.
        self.catch_up(caller);
        self.meet(caller);
        match caller.call.number {
            libc::SYS_bind => self.bind(caller),
            libc::SYS_listen => self.listen(caller),
            libc::SYS_accept => self.accept(caller, 0),
            libc::SYS_accept4 => {
                let flags = caller.int(3);
                self.accept(caller, flags)
            }
            libc::SYS_connect => self.connect(caller),
            libc::SYS_getsockname => self.local_name(caller),
            libc::SYS_getpeername => self.peer_name(caller),
            libc::SYS_getsockopt => self.get_option(caller),
            libc::SYS_setsockopt => self.set_option(caller),
            libc::SYS_shutdown => self.shutdown(caller),
            libc::SYS_sendto => self.send_to(caller),
            libc::SYS_recvfrom => self.receive_from(caller),
            libc::SYS_sendmsg => self.send_message(caller),
            libc::SYS_recvmsg => self.receive_message(caller),
            libc::SYS_sendmmsg => self.send_messages(caller),
            libc::SYS_recvmmsg => self.receive_messages(caller),
            libc::SYS_ioctl => self.unsent_bytes(caller),
            libc::SYS_io_uring_setup => {
                self.keep_to_pairs(caller);
                Ok(PROCEED)
            }
            // Intercepted only to learn that the process has an epoll instance.
            libc::SYS_epoll_create1 => {
                self.migration.forget();
                Ok(PROCEED)
            }
            #[cfg(target_arch = "x86_64")]
            libc::SYS_epoll_create => {
                self.migration.forget();
                Ok(PROCEED)
            }
            _ => Ok(self.note_twin(caller)),
        }
    }

    /// Parks a call in the wait queue of its socket.
    fn park(&mut self, inode: u64, caller: &Caller<'_>, patience: Option<Duration>) -> Reply {
        let Some(socket) = self.sockets.get_mut(&inode) else {
            return Reply::Now(Answer::Fail(Errno::BADF));
        };
        let listener = &self.listener;
        // Calls that a signal interrupted are stale: they were repeated.
        let ends =
            |waiting: &VecDeque<Waiting>| waiting.iter().filter(|it| it.until.is_some()).count();
        let before = ends(&socket.waiting);
        socket.waiting.retain(|it| listener.is_waiting(it.call.id));
        self.deadlines = self
            .deadlines
            .saturating_sub(before - ends(&socket.waiting));
        let until = patience.map(|patience| Instant::now() + patience);
        self.deadlines += usize::from(until.is_some());
        socket.waiting.push_back(Waiting {
            call: caller.call,
            until,
            only_begins: false,
        });
        Reply::Later
    }

    /// Puts calls back into the wait queue of their socket.
    fn put_waiting(&mut self, inode: u64, waiting: VecDeque<Waiting>) {
        let with_end = waiting.iter().filter(|it| it.until.is_some()).count();
        if let Some(socket) = self.sockets.get_mut(&inode) {
            self.deadlines += with_end;
            socket.waiting.extend(waiting);
        }
    }

    /// Takes all calls out of the wait queue of a socket.
    fn take_waiting(&mut self, inode: u64) -> VecDeque<Waiting> {
        let Some(socket) = self.sockets.get_mut(&inode) else {
            return VecDeque::new();
        };
        let waiting = std::mem::take(&mut socket.waiting);
        let with_end = waiting.iter().filter(|it| it.until.is_some()).count();
        self.deadlines = self.deadlines.saturating_sub(with_end);
        waiting
    }

    /// Claims a port for a socket; false if another claim conflicts.
    fn take_port(&mut self, inode: u64, transport: Transport, port: u16, claim: Claim) -> bool {
        if self.ports.take(transport, port, inode, claim) {
            return true;
        }
        // Its owner may have been closed unnoticed.
        self.forget_closed(transport, port);
        self.sweep();
        self.ports.take(transport, port, inode, claim)
    }

    /// Repeats the calls that wait for a socket.
    fn retry(&mut self, inode: u64) {
        for waiting in self.take_waiting(inode) {
            if self.listener.is_waiting(waiting.call.id) {
                self.dispatch_again(inode, waiting);
            }
        }
    }

    fn dispatch_again(&mut self, inode: u64, waiting: Waiting) {
        self.dispatch(waiting.call);
        // The original deadline stays in force.
        if let Some(until) = waiting.until
            && let Some(socket) = self.sockets.get_mut(&inode)
            && let Some(again) = socket
                .waiting
                .iter_mut()
                .find(|it| it.call.id == waiting.call.id)
        {
            again.until = Some(until);
        }
    }

    /// Fails the calls that wait for a socket.
    fn fail_waiting(&mut self, inode: u64, errno: Errno) {
        for waiting in self.take_waiting(inode) {
            self.listener.answer(waiting.call.id, Answer::Fail(errno));
        }
    }

    fn look_at_clock(&mut self) {
        if self.deadlines > 0 {
            self.end_patience();
        }
        if self.direct.is_overdue() {
            self.look_at_overdue();
        }
        if self.unseen > SWEEP_MIN || self.sweep_at.elapsed() > self.sweep_every {
            self.sweep();
        }
        if self.client.is_none() && self.attach.is_some() && self.attach_at.elapsed() > ATTACH_EVERY
        {
            self.attach_again();
        }
    }

    fn end_patience(&mut self) {
        let now = Instant::now();
        let mut over = Vec::new();
        let mut left = 0;
        for socket in self.sockets.values_mut() {
            socket.waiting.retain(|it| {
                let is_over = it.until.is_some_and(|until| until <= now);
                if is_over {
                    over.push((it.call, matches!(socket.state, State::Connecting(_))));
                }
                left += usize::from(!is_over && it.until.is_some());
                !is_over
            });
        }
        self.deadlines = left;
        for (call, connects) in over {
            let errno = if connects {
                Errno::INPROGRESS
            } else {
                Errno::AGAIN
            };
            self.listener.answer(call.id, Answer::Fail(errno));
        }
    }

    /// Removes the sockets at a port that no program has any more, if the loop has not noticed yet.
    fn forget_closed(&mut self, transport: Transport, port: u16) {
        for inode in self.ports.owners(transport, port) {
            if self.is_closed(inode) {
                self.forget(inode);
            }
        }
    }

    /// True if no program has the socket any more.
    fn is_closed(&self, inode: u64) -> bool {
        let Some(socket) = self.sockets.get(&inode) else {
            return false;
        };
        if let Some(carrier) = &socket.carrier {
            return !carrier::is_live(carrier.near);
        }
        let far = match &socket.state {
            State::Listening(listening) => listening.tokens.front(),
            _ => socket.far.as_ref(),
        };
        far.is_some_and(crate::socket::is_hung_up)
    }

    /// Removes the sockets without a far end that no program has any more.
    fn sweep(&mut self) {
        let begun = Instant::now();
        self.unseen = 0;
        self.sweep_datagrams();
        let has_unseen = |socket: &Socket| socket.far.is_none() && socket.carrier.is_none();
        if !self.sockets.values().any(has_unseen) {
            self.sweep_at = Instant::now();
            return;
        }
        self.sweep_at = Instant::now();
        let Ok(text) = std::fs::read("/proc/self/net/unix") else {
            return;
        };
        // Abstract names may contain any bytes.
        let text = String::from_utf8_lossy(&text);
        let inodes = text
            .lines()
            .filter_map(|line| line.split_whitespace().nth(6));
        let live: HashSet<u64> = inodes.filter_map(|inode| inode.parse().ok()).collect();
        let gone = |(inode, socket): (&u64, &Socket)| {
            (has_unseen(socket) && !live.contains(inode)).then_some(*inode)
        };
        let gone: Vec<u64> = self.sockets.iter().filter_map(gone).collect();
        for inode in gone {
            self.forget(inode);
        }
        // Peers of a closed listener at the stack should be refused soon, but sweeps may take at
        // most 1 % of the time.
        let listens = |socket: &Socket| match &socket.state {
            State::Listening(listening) => !listening.engines.is_empty(),
            State::Datagram(engines) => !engines.is_empty(),
            _ => false,
        };
        self.sweep_every = if self.sockets.values().any(listens) {
            SWEEP_LISTENERS_EVERY.max(begun.elapsed() * 100)
        } else {
            SWEEP_EVERY
        };
        self.sweep_at = Instant::now();
    }

    /// Adds a socket, and watches its far end.
    fn insert(&mut self, inode: u64, socket: Socket) -> Result<(), Errno> {
        match &socket.far {
            Some(far) => {
                epoll::add(&self.epoll, far, EventData::new_u64(inode), WATCHED)?;
            }
            None => self.unseen += 1,
        }
        if let Some(carrier) = &socket.carrier {
            let mark = EventData::new_u64(inode);
            epoll::add(&self.epoll, &carrier.far, mark, WATCHED)?;
        }
        for engine in socket.engines() {
            self.sessions.insert(engine, inode);
        }
        if self.sockets.contains_key(&inode) {
            // The inode was reused: the old socket was closed unnoticed.
            self.forget(inode);
        }
        self.sockets.insert(inode, socket);
        Ok(())
    }

    /// Removes a socket from all tables; its sessions at the stack stay open.
    fn remove(&mut self, inode: u64) -> Option<Socket> {
        self.fail_waiting(inode, Errno::BADF);
        self.unwatch(inode);
        self.mates.remove(&inode);
        self.ended.remove(&inode);
        self.refused.remove(&inode);
        let mut socket = self.sockets.remove(&inode)?;
        self.give_up_asking(&mut socket);
        if let Some(carrier) = &socket.carrier {
            self.senders.set_far(carrier.at, None);
        }
        if let Some(place) = socket.ring_place.take() {
            self.release_ring(place);
        }
        if let Some(number) = socket.named.take() {
            self.direct.forget(number);
        }
        self.ports
            .release(socket.transport, socket.local.port(), inode);
        for engine in socket.engines() {
            self.sessions.remove(&engine);
        }
        if let State::Datagram(engines) = &mut socket.state {
            engines.retain(|engine| self.is_last_sharer(*engine, inode));
        }
        Some(socket)
    }

    /// Removes a socket from the sharers of one at the stack; true if it was the last.
    fn is_last_sharer(&mut self, engine: Session, inode: u64) -> bool {
        let Some(sharers) = self.sharers.get_mut(&engine) else {
            return true;
        };
        sharers.retain(|sharer| *sharer != inode);
        if let Some(other) = sharers.last() {
            self.sessions.insert(engine, *other);
            return false;
        }
        self.sharers.remove(&engine);
        true
    }

    /// Removes a socket that no program has any more, and closes its sessions.
    fn forget(&mut self, inode: u64) {
        let Some(socket) = self.remove(inode) else {
            return;
        };
        self.twins.forget(inode);
        let engines = socket.engines();
        match socket.state {
            State::Listening(listening) => self.close_listening(listening),
            _ => {
                for engine in engines {
                    self.close_session(engine, socket.resets_on_close);
                }
            }
        }
    }

    fn close_session(&mut self, session: Session, resets: bool) {
        let Some(client) = &mut self.client else {
            return;
        };
        let closed = if resets {
            client.abort(session)
        } else {
            client.close(session)
        };
        if closed.is_err() {
            self.lose_stack();
        }
    }

    /// A free port for a program's end of a loopback session.
    fn ephemeral_port(&mut self, transport: Transport) -> u16 {
        for _ in 0..PORTS {
            self.next_port = if self.next_port >= FIRST_PORT + PORTS - 1 {
                FIRST_PORT
            } else {
                self.next_port + 1
            };
            if self.ports.is_free(transport, self.next_port) {
                break;
            }
        }
        self.next_port
    }
}

/// The kernel's error number for an error of the stack.
fn errno_of(error: &ClientError) -> Errno {
    match error {
        ClientError::Socket(error) => match error {
            SocketError::Refused => Errno::CONNREFUSED,
            SocketError::Reset => Errno::CONNRESET,
            SocketError::Aborted => Errno::CONNABORTED,
            SocketError::TimedOut => Errno::TIMEDOUT,
            SocketError::Unreachable => Errno::HOSTUNREACH,
            SocketError::InUse => Errno::ADDRINUSE,
            SocketError::NotOurs => Errno::ADDRNOTAVAIL,
            SocketError::Full => Errno::NOBUFS,
            SocketError::NotOpen => Errno::NOTCONN,
            SocketError::TooLong => Errno::MSGSIZE,
            _ => Errno::INVAL,
        },
        _ => Errno::NETDOWN,
    }
}

/// Commands of fcntl(2) that duplicate a descriptor.
const F_DUPFD: u32 = libc::F_DUPFD as u32;
const F_DUPFD_CLOEXEC: u32 = libc::F_DUPFD_CLOEXEC as u32;
/// Epoll data of files other than pairs; inodes of sockets have 32 bits.
const CALLS: u64 = u64::MAX;
const DOORS: u64 = 1 << 48;
const NEARS: u64 = 1 << 47;
/// ioctl(2) requests: unsent bytes, and bytes not yet sent once (`include/uapi/linux/sockios.h`).
const SIOCOUTQ: u32 = 0x5411;
const SIOCOUTQNSD: u32 = 0x894b;
/// Events of a far end that are always armed. EPOLLOUT is not: it would fire each time a program
/// reads.
const WATCHED: EventFlags = EventFlags::IN
    .union(EventFlags::RDHUP)
    .union(EventFlags::ET);
/// Calls, and events, that one round takes.
const CALLS_MAX: usize = 64;
/// Events of sessions and rings after which descriptors are polled, under load.
const DESCRIPTORS_AFTER: usize = 16;
const READY_MAX: usize = 256;
/// Ports for the near ends of loopback sessions, as Linux's `ip_local_port_range`.
const FIRST_PORT: u16 = 32768;
const PORTS: u16 = 28232;
/// Longest waits: if nothing is due, if a listener is polled, if a call has a deadline, if buffers
/// are short.
const NAP: Duration = Duration::from_millis(500);
const SHORT_NAP: Duration = Duration::from_millis(5);
const PATIENT_NAP: Duration = Duration::from_millis(2);
const STARVED_NAP: Duration = Duration::from_millis(1);
const SWEEP_EVERY: Duration = Duration::from_secs(10);
const SWEEP_LISTENERS_EVERY: Duration = Duration::from_secs(1);
/// New sockets without a far end that trigger an early sweep.
const SWEEP_MIN: usize = 4096;
const ATTACH_EVERY: Duration = Duration::from_millis(100);

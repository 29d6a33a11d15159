//! The supervisor's loop: calls of programs, bytes in their pairs, events of the stack.
//!
//! One thread. Its state is in parts, each with what it owns: the [`Table`] of sockets (with the
//! calls that wait for them, and the connection to the engine), the [`Streams`] whose bytes it
//! moves, the [`Listeners`], and the [`Datagrams`]. A part is handed the table, and calls no part
//! above it: what another part has to do is a socket's state, or a call that is woken.
//!
//! Must stay true: nothing blocks except the loop itself, whatever the engine, another supervisor
//! or a program does (README.md, "What the supervisor waits for"). A call that cannot be answered
//! yet is parked in its socket's wait queue and repeated when the socket has changed. An exited
//! program costs one poll.

mod answers;
mod attaching;
mod calls;
mod connect;
mod connecting;
mod datagrams;
mod duplicates;
mod engine;
mod kept;
mod listeners;
mod mark;
pub(crate) mod named;
mod names;
mod options;
mod resets;
mod rings;
mod streams;
mod sweeps;
mod table;

pub(crate) use attaching::Attach;

use crate::caller::Caller;
use crate::carrier::VacantPorts;
use crate::error::{RunError, system};
use crate::loopback::Rendezvous;
use crate::scope::Scope;
use crate::socket::State;
use calls::Calls;
use datagrams::{Datagrams, interfaces};
use engine::Engine;
use listeners::Listeners;
use mark::Mark;
use rustix::event::epoll::{self, CreateFlags, EventFlags};
use rustix::io::Errno;
use sidecore_net::sock::SocketError;
use sidecore_net::sock::client::{Client, ClientError, EventSource, show_rings};
use sidecore_net_rings::BY_ITSELF;
use sidecore_sys::SysError;
use sidecore_sys::local_socket;
use sidecore_sys::seccomp::{Answer, Call, Filter, Listener, When};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};
use streams::Streams;
use table::Table;

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
    (libc::SYS_recvfrom, When::GivenOr(4, 3, MSG_ERRQUEUE)),
    (libc::SYS_sendmsg, When::Unless(5, BY_ITSELF)),
    (libc::SYS_recvmsg, When::Unless(5, BY_ITSELF)),
    (libc::SYS_sendmmsg, When::Unless(5, BY_ITSELF)),
    (libc::SYS_recvmmsg, When::Unless(5, BY_ITSELF)),
    (libc::SYS_ioctl, When::OneOf(1, IOCTLS)),
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

impl Reply {
    /// A number of bytes that were sent or received.
    fn bytes(count: usize) -> Self {
        // A datagram, or what the kernel has sent at once: less than 2 GiB.
        Self::Now(Answer::Value(i64::try_from(count).unwrap_or(i64::MAX)))
    }
}

/// The kernel runs the call.
const PROCEED: Reply = Reply::Now(Answer::Proceed);
/// The call succeeded.
const ZERO: Reply = Reply::Now(Answer::Value(0));

pub(crate) struct Supervisor {
    table: Table,
    streams: Streams,
    listeners: Listeners,
    datagrams: Datagrams,
    /// The kernel refuses connections there, in the place of absent listeners.
    vacant: VacantPorts,
    /// Time at which the account of rings is shown next.
    show_at: Instant,
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
        epoll::add(&epoll, &listener, Mark::Calls.data(), EventFlags::IN)?;
        let engine = Engine::new(client, attach);
        Ok(Self {
            table: Table::new(Calls::new(listener), engine, scope, epoll),
            streams: Streams::default(),
            listeners: Listeners::new(rendezvous)?,
            datagrams: Datagrams::default(),
            vacant: VacantPorts::default(),
            show_at: Instant::now(),
        })
    }

    /// Runs until no process is left under the filter.
    ///
    /// # Errors
    /// It cannot continue. The listener is closed with the supervisor: waiting and later calls
    /// fail, instead of blocking for ever.
    pub(crate) fn run(mut self) -> Result<(), RunError> {
        let listener = self.table.calls.listener();
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
                &self.table.epoll,
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
                match Mark::of(data.u64()) {
                    Mark::Calls if flags.contains(EventFlags::IN) => is_called = true,
                    Mark::Calls if flags.contains(EventFlags::HUP) => {
                        // What programs sent before their end.
                        self.datagrams.take_all(&mut self.table);
                        return Ok(());
                    }
                    Mark::Calls => {}
                    mark => self.look_at(mark, flags),
                }
            }
            // Bytes written before a call are forwarded before the call is answered.
            if is_called {
                self.take_calls(&listener).map_err(RunError::Calls)?;
            }
            self.serve_sessions();
            if let Some(failure) = listener.failure() {
                return Err(RunError::Calls(failure));
            }
        }
    }

    /// Handles an event of a file that the loop watches.
    fn look_at(&mut self, mark: Mark, flags: EventFlags) {
        let table = &mut self.table;
        match mark {
            Mark::Calls => {}
            Mark::Waiter(id) => {
                for inode in self.streams.look_at_waiter(table, id) {
                    self.datagrams.end_rings(table, inode, true);
                }
            }
            Mark::Process(process) => {
                for inode in self.streams.end_process(table, process) {
                    self.datagrams.end_rings(table, inode, true);
                }
            }
            Mark::Rendezvous(inode) => {
                self.listeners
                    .look_at_rendezvous(table, &mut self.streams, inode);
            }
            Mark::Owner(inode) => Listeners::look_at_owner(table, inode),
            // A datagram has come for a program whose call waits.
            Mark::Near(inode) => table.calls.wake(inode),
            Mark::Desk(inode) => self.datagrams.take_frames(table, inode),
            Mark::Far(inode) => self.look_at_far(inode, flags),
        }
    }

    /// Handles an event of a far end.
    fn look_at_far(&mut self, inode: u64, flags: EventFlags) {
        let table = &mut self.table;
        let is_gone = flags.intersects(EventFlags::HUP | EventFlags::ERR);
        let Some(socket) = table.sockets.get(&inode) else {
            return;
        };
        match socket.state {
            State::Open(_) => self.streams.look_at_pair(table, inode, flags),
            State::Datagram(_) => self.datagrams.look_at_far(table, inode, is_gone),
            State::Doomed => self.streams.look_at_doomed(table, inode, is_gone),
            // A session that no program waits for any more is not opened.
            State::Bound
            | State::Listening(_)
            | State::Connecting(_)
            | State::Joined(_)
            | State::Failed(_)
            | State::Shut
            | State::Over => {
                if is_gone {
                    table.forget(inode);
                }
            }
        }
    }

    /// Serves sessions and rings; returns the number of programs' streams with events.
    fn serve_sessions(&mut self) -> usize {
        self.take_answers();
        self.take_session_events();
        let news = self.streams.take_ring_news(&mut self.table);
        for inode in &news {
            self.datagrams.look_at_rings(&mut self.table, *inode);
        }
        self.streams.feed_starved(&mut self.table);
        self.datagrams.take_unfinished(&mut self.table);
        self.datagrams.take_waiting(&mut self.table);
        self.streams.retake(&mut self.table);
        self.datagrams.end_again(&mut self.table);
        self.repeat_woken();
        // Last: most waiters have several reasons to be woken in one round.
        self.wake_notified();
        self.look_at_clock();
        // Those that it has notified would sleep until the next round.
        self.wake_notified();
        news.len()
    }

    fn wake_notified(&mut self) {
        let rings = &mut self.streams.rings;
        self.datagrams.notify(&mut self.table, rings);
        rings.wake_notified();
    }

    /// Waits for events; returns 0 if neither sessions nor rings have any.
    fn wait(&mut self) -> usize {
        if self.table.engine.is_lost() {
            self.lose_stack();
        }
        let rest = self.rest();
        let Some(client) = &mut self.table.engine.client else {
            let epoll = self.table.epoll.as_fd();
            if local_socket::poll(&[epoll], &mut Vec::new(), rest).is_err() {
                // It fails only without memory; the loop tries again.
                std::thread::sleep(PRESSED_NAP);
            }
            return 0;
        };
        let (epoll, rings) = (&self.table.epoll, &self.streams.rings);
        let watch = rings::Watch { epoll, rings };
        match client.poll_with(&watch, rest) {
            Ok(taken) => taken.max(usize::from(watch.is_ready())),
            Err(_) => {
                self.lose_stack();
                0
            }
        }
    }

    /// Longest time to wait for an event.
    fn rest(&self) -> Duration {
        let table = &self.table;
        if table.calls.has_woken() || table.engine.is_lost() {
            return Duration::ZERO;
        }
        if table.engine.has_lingering() {
            return PATIENT_NAP;
        }
        if self.streams.are_pressing() || self.datagrams.are_pressing() {
            return PRESSED_NAP;
        }
        let rest = match (table.calls.has_limits(), self.listeners.are_overdue()) {
            (true, _) => PATIENT_NAP,
            (false, true) => SHORT_NAP,
            (false, false) => NAP,
        };
        if table.engine.is_awaited() {
            return rest.min(ATTACH_EVERY);
        }
        rest
    }

    fn take_calls(&mut self, listener: &Listener) -> Result<(), SysError> {
        for _ in 0..CALLS_MAX {
            // None: a signal interrupted the caller meanwhile.
            if let Some(call) = listener.receive()? {
                self.dispatch(listener, call);
                self.repeat_woken();
            }
            if !local_socket::is_readable(listener.as_fd().as_fd()) {
                break;
            }
        }
        Ok(())
    }

    /// Answers a call, or parks it.
    fn dispatch(&mut self, listener: &Listener, call: Call) {
        let mut caller = Caller::new(call, listener);
        if let Some((answer, placed)) = self.table.calls.kept.take(&caller) {
            let placed = Some(placed);
            self.table.calls.answer_placed(call, answer, placed);
            return;
        }
        self.table.calls.kept.placed = None;
        let answer = match self.serve(&mut caller) {
            Ok(Reply::Now(answer)) => answer,
            Ok(Reply::Later | Reply::Done) => return,
            Err(errno) => Answer::Fail(errno),
        };
        let placed = self.table.calls.kept.placed.take();
        // Closing the last reference to a file may block (SO_LINGER of the kernel's TCP). While the
        // caller waits, it holds another one.
        caller.forget_inode();
        self.table.calls.answer_placed(call, answer, placed);
    }

    fn serve(&mut self, caller: &mut Caller<'_>) -> Result<Reply, Errno> {
        let table = &mut self.table;
        // The descriptor may refer to a socket that was replaced meanwhile, or to a session that
        // the library accepted without a call.
        table.catch_up(caller);
        self.listeners.meet(table, &mut self.streams, caller);
        match caller.call.number {
            libc::SYS_bind => self.bind(caller),
            libc::SYS_listen => self.listen(caller),
            libc::SYS_accept => self.listeners.accept(table, &mut self.streams, caller, 0),
            libc::SYS_accept4 => {
                let flags = caller.int(3);
                let streams = &mut self.streams;
                self.listeners.accept(table, streams, caller, flags)
            }
            libc::SYS_connect => self.connect(caller),
            libc::SYS_getsockname => names::answer(table, caller, names::Side::Local),
            libc::SYS_getpeername => names::answer(table, caller, names::Side::Peer),
            libc::SYS_getsockopt => self.get_option(caller),
            libc::SYS_setsockopt => self.set_option(caller),
            libc::SYS_shutdown => self.shutdown(caller),
            libc::SYS_sendto => self.datagrams.send_to(table, caller),
            libc::SYS_recvfrom => self.datagrams.receive_from(table, caller),
            libc::SYS_sendmsg => self.datagrams.send_message(table, caller),
            libc::SYS_recvmsg => self.datagrams.receive_message(table, caller),
            libc::SYS_sendmmsg => self.datagrams.send_messages(table, caller),
            libc::SYS_recvmmsg => self.datagrams.receive_messages(table, caller),
            libc::SYS_ioctl => match caller.int(1).cast_unsigned() {
                SIOCOUTQ | SIOCOUTQNSD => names::unsent_bytes(table, caller),
                _ => interfaces::describe(table, caller),
            },
            libc::SYS_io_uring_setup => {
                for inode in self.streams.keep_to_pairs(table, caller) {
                    self.datagrams.end_rings_soon(table, inode);
                }
                Ok(PROCEED)
            }
            // Intercepted only to learn that the process has an epoll instance.
            libc::SYS_epoll_create1 => {
                table.migration.forget();
                Ok(PROCEED)
            }
            #[cfg(target_arch = "x86_64")]
            libc::SYS_epoll_create => {
                table.migration.forget();
                Ok(PROCEED)
            }
            // Intercepted only to learn of the duplicate.
            _ => {
                table.note_duplicate(caller);
                Ok(PROCEED)
            }
        }
    }

    /// Repeats the calls that wait for sockets that have changed.
    fn repeat_woken(&mut self) {
        if !self.table.calls.has_woken() {
            return;
        }
        let listener = self.table.calls.listener();
        for inode in self.table.calls.take_woken() {
            for waiting in self.table.calls.take(inode) {
                if self.table.calls.is_waiting(&waiting.call) {
                    self.dispatch(&listener, waiting.call);
                    self.table.calls.keep_limit(inode, &waiting);
                }
            }
            self.table.unwatch(inode);
        }
    }

    fn look_at_clock(&mut self) {
        let now = Instant::now();
        let table = &mut self.table;
        if table.calls.has_limits() {
            table.calls.end_patience(now);
        }
        for inode in table.engine.end_lingering(now) {
            table.calls.wake(inode);
        }
        if self.listeners.are_overdue() {
            self.listeners.look_at_overdue(table, &mut self.streams);
        }
        self.repeat_woken();
        if self.table.sweeps.is_due(now) {
            self.table.sweep();
        }
        if self.table.engine.attach_again() {
            self.restore();
        }
        if now >= self.show_at {
            self.show_at = now + SHOWN_EVERY;
            if let Some(client) = &self.table.engine.client {
                show_rings(client, self.streams.rings.status());
            }
        }
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
            SocketError::NetworkUnreachable => Errno::NETUNREACH,
            SocketError::Prohibited => Errno::ACCESS,
            SocketError::NoProtocol => Errno::NOPROTOOPT,
            _ => Errno::INVAL,
        },
        _ => Errno::NETDOWN,
    }
}

/// Of recv(2): the error queue. TCP has none by default, and a pair would give bytes.
const MSG_ERRQUEUE: u32 = libc::MSG_ERRQUEUE.cast_unsigned();
/// Commands of fcntl(2) that duplicate a descriptor.
const F_DUPFD: u32 = libc::F_DUPFD.cast_unsigned();
const F_DUPFD_CLOEXEC: u32 = libc::F_DUPFD_CLOEXEC.cast_unsigned();
/// ioctl(2) requests: unsent bytes, and bytes not yet sent once (`include/uapi/linux/sockios.h`).
const SIOCOUTQ: u32 = 0x5411;
const SIOCOUTQNSD: u32 = 0x894b;
const IOCTLS: &[u32] = &[
    SIOCOUTQ,
    SIOCOUTQNSD,
    interfaces::SIOCGIFNAME,
    interfaces::SIOCGIFCONF,
    interfaces::SIOCGIFFLAGS,
    interfaces::SIOCGIFADDR,
    interfaces::SIOCGIFDSTADDR,
    interfaces::SIOCGIFBRDADDR,
    interfaces::SIOCGIFNETMASK,
    interfaces::SIOCGIFMETRIC,
    interfaces::SIOCGIFMTU,
    interfaces::SIOCGIFHWADDR,
    interfaces::SIOCGIFINDEX,
];
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
/// Longest waits: if nothing is due, if a listener is polled, if a call has a deadline, if buffers
/// are short.
const NAP: Duration = Duration::from_millis(500);
const SHORT_NAP: Duration = Duration::from_millis(5);
const PATIENT_NAP: Duration = Duration::from_millis(2);
const PRESSED_NAP: Duration = Duration::from_millis(1);
const ATTACH_EVERY: Duration = Duration::from_millis(100);
/// Time between two accounts of rings, which the engine's status shows.
const SHOWN_EVERY: Duration = Duration::from_millis(250);

#[cfg(test)]
mod tests;

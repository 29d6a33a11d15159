//! The acceptor: admission, handshakes and disconnects of all connections.
//!
//! ```text
//! connect ──► accept ── credentials ──► pending ── question: attach ──► attached ──► parted
//!                          │ refused       │ silent for 2 s, crowded out       hung up, died,
//!                          ▼               ▼                                   or over
//! ```
//!
//! A server's control thread calls [`Acceptor::wait`], then takes events until there are none and
//! answers the questions. It answers a request to attach by ordering a segment, which another
//! thread makes. The service's sessions (`S`) are kept here with their connections.
//!
//! Why here: one thread makes every system call that is needed per client, so the serving threads
//! make none. Must stay true: nothing here waits for a client. A connection that says nothing,
//! sends malformed data or does not read its answer is closed. The number of connections that have
//! not attached is limited per user, and one user's connections never take another user's place.
//! One thread.

mod arrivals;
mod book;
#[cfg(test)]
mod simulation;

use crate::protocol::{ConnectionId, QUESTION_BYTES};
use crate::quota::{Ledger, Quota, Usage};
use crate::segment::{Makers, Order, Segment};
use crate::{AdmissionLimits, Allow, ListenError, Protocol, ServerSocket};
use book::Book;
use rustix::event::epoll;
use rustix::io::Errno;
use sidecore_sys::identity::Identities;
use sidecore_sys::local_socket::{self, Peer};
use sidecore_sys::{SysError, descriptors};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

/// Admission and limits.
#[derive(Debug, Clone)]
pub struct AcceptorOptions {
    /// The users and groups that may attach, in addition to the server's own user and root.
    pub allow: Allow,
    /// The limits.
    pub quota: Quota,
    /// The remedy for a user that may not attach: the option that admits it.
    pub remedy: fn(&Peer) -> String,
    /// Cores for the threads that make segments; with none given, the kernel places them.
    pub cpus: Vec<usize>,
    /// Doors of this process: each takes its part of the descriptors that the process may open.
    pub acceptors: usize,
}

/// An event at the acceptor.
#[derive(Debug)]
pub enum Event<S> {
    /// A client asks. To be answered by [`Acceptor::order`], [`Acceptor::answer`] or
    /// [`Acceptor::refuse`], now or later.
    Question {
        /// Its connection.
        from: ConnectionId,
        /// Its credentials.
        peer: Peer,
        /// True if it is attached already, or a segment is made for it.
        is_attached: bool,
        /// The kind of the question.
        kind: u32,
        /// The rest of it.
        body: [u8; QUESTION_BYTES - 16],
    },
    /// A segment that was ordered. To be answered by [`Acceptor::attach`] or [`Acceptor::refuse`].
    Made {
        /// The client's connection.
        to: ConnectionId,
        /// Its credentials.
        peer: Peer,
        /// As it was given to [`Acceptor::order`].
        tag: u64,
        /// The segment and the descriptor to hand over; or the error for the client: the limit that
        /// is reached, or the operating system's.
        made: Result<(Segment, OwnedFd), String>,
    },
    /// A client that was attached has disconnected.
    Parted(S),
}

/// The server's end of all connections.
#[derive(Debug)]
pub struct Acceptor<S> {
    protocol: Protocol,
    socket: ServerSocket,
    options: AcceptorOptions,
    identities: Identities,
    makers: Makers,
    book: Book<Connection<S>>,
    /// Has the listener, the makers' bell and all connections: unlike `poll`, it looks at any
    /// number of them, whatever the limit of descriptors is by now.
    epoll: OwnedFd,
    listens: bool,
    events: VecDeque<Event<S>>,
    ready: Vec<bool>,
    begun: Instant,
    settles_at: Instant,
}

#[derive(Debug)]
struct Connection<S> {
    socket: OwnedFd,
    peer: Peer,
    /// Readable when the process ends: a child that inherited the socket does not keep it attached.
    /// From the first question on.
    process_end: Option<OwnedFd>,
    session: Option<S>,
}

impl<S> Acceptor<S> {
    /// Takes the socket at `path` and lets processes connect from now on: as many as the options
    /// allow and this process has descriptors for.
    ///
    /// # Errors
    /// [`ListenError`].
    pub fn open(
        protocol: Protocol,
        path: &Path,
        mut options: AcceptorOptions,
    ) -> Result<Self, ListenError> {
        let socket = ServerSocket::take(path, options.allow.is_only_owner())?;
        let makers_ledger = |quota| Ledger::new(quota, local_socket::effective_uid());
        let room = descriptors::room().saturating_sub(OWN_DESCRIPTORS) / options.acceptors.max(1);
        // Fewer places than descriptors: an accept that fails would refuse root, too.
        options.quota = options.quota.within(room);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(call("epoll_create1"))?;
        let acceptor = Self {
            protocol,
            socket,
            identities: Identities::of_this_process(),
            makers: Makers::start(makers_ledger(options.quota), &options.cpus)?,
            options,
            book: Book::new(AdmissionLimits::default().within(room)),
            epoll,
            listens: true,
            events: VecDeque::new(),
            ready: Vec::new(),
            begun: Instant::now(),
            settles_at: Instant::now(),
        };
        acceptor.watch(acceptor.socket.listener(), LISTENER)?;
        acceptor.watch(acceptor.makers.bell(), BELL)?;
        Ok(acceptor)
    }

    /// The socket's path.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.socket.path()
    }

    /// The most clients that can be attached at once: as configured, or fewer where this process
    /// may not have as many descriptors.
    #[must_use]
    pub fn places_max(&self) -> usize {
        self.options.quota.places_max
    }

    /// Waits until something happens at the acceptor, or one of `wakers` is readable, `timeout` at
    /// most; whether each waker is. Events are to be taken afterwards.
    ///
    /// # Errors
    /// [`SysError::Call`] where the kernel will not wait any more, which does not pass: the server
    /// is to end. Where it is out of memory for a moment, nothing has happened.
    pub fn wait(
        &mut self,
        wakers: &[BorrowedFd<'_>],
        timeout: Duration,
    ) -> Result<Vec<bool>, SysError> {
        let now = self.now();
        // A silent connection has to end on time even if nothing else happens.
        let due = self.book.deadline(now).map(|due| due.saturating_sub(now));
        let timeout = due.map_or(timeout, |due| due.min(timeout));
        let mut all = wakers.to_vec();
        all.push(self.epoll.as_fd());
        match local_socket::poll(&all, &mut self.ready, timeout) {
            Ok(()) => {}
            Err(error) if passes(&error) => {
                // Without a pause this thread would spin for as long as the kernel has no memory.
                std::thread::sleep(timeout.min(MEMORY_PAUSE));
                return Ok(vec![false; wakers.len()]);
            }
            Err(error) => return Err(error),
        }
        let woken = self.ready[..wakers.len()].to_vec();
        if self.ready[wakers.len()] {
            self.look()?;
        }
        let now = self.now();
        self.book.expire(now);
        self.sweep();
        self.listen(self.book.accepts(now))?;
        // The kernel gives no event when a client closes its last mapping: it has to be asked.
        if Instant::now() >= self.settles_at && self.makers.with_ledger(Ledger::has_kept) {
            self.makers.settle_soon();
            self.settles_at = Instant::now() + SETTLE_EVERY;
        }
        Ok(woken)
    }

    /// The time since the acceptor was opened.
    fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    fn watch(&self, descriptor: BorrowedFd<'_>, number: u64) -> Result<(), SysError> {
        let number = epoll::EventData::new_u64(number);
        epoll::add(&self.epoll, descriptor, number, epoll::EventFlags::IN)
            .map_err(call("epoll_ctl"))
    }

    /// Looks out for new connections, or not for the time being: the listener stays readable.
    fn listen(&mut self, listens: bool) -> Result<(), SysError> {
        if listens != self.listens {
            let flags = if listens {
                epoll::EventFlags::IN
            } else {
                epoll::EventFlags::empty()
            };
            let number = epoll::EventData::new_u64(LISTENER);
            epoll::modify(&self.epoll, self.socket.listener(), number, flags)
                .map_err(call("epoll_ctl"))?;
            self.listens = listens;
        }
        Ok(())
    }

    /// Handles the ready descriptors.
    fn look(&mut self) -> Result<(), SysError> {
        let mut ready = Vec::with_capacity(LOOKED_AT_ONCE_MAX);
        let none = rustix::time::Timespec::default();
        // What does not fit is reported by the next wait.
        let space = rustix::buffer::spare_capacity(&mut ready);
        match epoll::wait(&self.epoll, space, Some(&none)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(call("epoll_wait")(error)),
        }
        // Known connections before new ones: a hang-up frees room.
        let (mut is_asked_for, mut is_made) = (false, false);
        for event in &ready {
            match event.data.u64() {
                LISTENER => is_asked_for = true,
                BELL => is_made = true,
                number => self.look_at(number / 2, number % 2 == 1),
            }
        }
        self.sweep();
        if is_asked_for {
            self.accept();
        }
        if is_made {
            self.take_made();
        }
        Ok(())
    }

    /// Looks at a connection: at its socket, or at the end of its process.
    fn look_at(&mut self, id: u64, is_process: bool) {
        let Some(guest) = self.book.live(id) else {
            return;
        };
        // Messages from before the end are moot.
        if is_process || guest.connection.has_ended() {
            self.book.close(id);
        } else {
            self.take_question(id);
        }
    }

    /// The next thing that happened.
    pub fn next_event(&mut self) -> Option<Event<S>> {
        self.events.pop_front()
    }

    /// Orders a segment of `bytes` bytes from another thread, charged to the user of a connection.
    /// [`Event::Made`] delivers it, unless the client has disconnected by then. `name` appears in
    /// lists of open files, `tag` comes back. Does not block.
    pub fn order(&mut self, to: ConnectionId, name: &'static str, bytes: usize, tag: u64) {
        if self.book.expect(to.0)
            && let Some(guest) = self.book.live(to.0)
        {
            self.makers.order(Order {
                to,
                uid: guest.uid,
                name,
                bytes,
                tag,
            });
        }
    }

    /// Prepares memory for the first client of root or of the server's own user that orders `bytes`
    /// under this name. The client then need not wait for the pages (about 10 ms for 16 MiB).
    /// Another thread prepares it. Later clients find as much as the last one ordered. The memory
    /// is freed when no client comes within a minute. Nothing is prepared above 33 MiB. Does not
    /// block.
    pub fn expect(&self, name: &'static str, bytes: usize) {
        self.makers.expect(name, bytes);
    }

    /// Attaches a connection: sends the terms with their descriptors, and keeps the session until
    /// the client parts. Returns the session if the client has disconnected.
    ///
    /// # Errors
    /// The session, which was not attached.
    pub fn attach(
        &mut self,
        to: ConnectionId,
        session: S,
        terms: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), S> {
        let message = self.protocol.message(crate::protocol::KIND_ATTACH, terms);
        let Some(guest) = self.book.live_mut(to.0) else {
            return Err(session);
        };
        let socket = guest.connection.socket.as_fd();
        // A new client's queue is empty: a failure means that it has ended.
        if local_socket::send(socket, &message, descriptors).is_err() {
            self.book.close(to.0);
            return Err(session);
        }
        // Only now: a client that did not get its terms was never attached.
        guest.connection.session = Some(session);
        self.book.attach(to.0);
        Ok(())
    }

    /// Answers a question. A client that does not read is parted with.
    pub fn answer(&mut self, to: ConnectionId, kind: u32, body: &[u8]) {
        let message = self.protocol.message(kind, body);
        if let Some(guest) = self.book.live(to.0)
            && local_socket::send(guest.connection.socket.as_fd(), &message, &[]).is_err()
        {
            self.book.close(to.0);
        }
    }

    /// Refuses a question and closes the connection.
    pub fn refuse(&mut self, to: ConnectionId, reason: &str) {
        self.book.count_refused();
        if let Some(guest) = self.book.live(to.0) {
            refuse(&self.protocol, guest.connection.socket.as_fd(), reason);
            self.book.close(to.0);
        }
    }

    /// Parts with the clients whose sessions the service is done with.
    pub fn part_where(&mut self, is_over: impl Fn(&S) -> bool) {
        let sessions = self.book.iter().filter(|(_, guest)| {
            let session = guest.connection.session.as_ref();
            session.is_some_and(&is_over)
        });
        // Collected first: closing changes the book that is iterated.
        let over: Vec<u64> = sessions.map(|(id, _)| id).collect();
        over.into_iter().for_each(|id| self.book.close(id));
        self.sweep();
    }

    /// The sessions that are attached.
    pub fn sessions(&self) -> impl Iterator<Item = &S> {
        let guests = self.book.iter();
        guests.filter_map(|(_, guest)| guest.connection.session.as_ref())
    }

    /// The sessions that are attached.
    pub fn sessions_mut(&mut self) -> impl Iterator<Item = &mut S> {
        let guests = self.book.iter_mut();
        guests.filter_map(|(_, guest)| guest.connection.session.as_mut())
    }

    /// Connections and questions that were refused, crowded out or could not be understood.
    #[must_use]
    pub fn refused_total(&self) -> u64 {
        self.book.refused_total()
    }

    /// A user's share of this server.
    #[must_use]
    pub fn usage(&self, uid: u32) -> Usage {
        self.makers.with_ledger(|ledger| ledger.usage(uid))
    }

    /// Each user with segments, and its share. Segments that a client keeps after hanging up count.
    #[must_use]
    pub fn usages(&self) -> Vec<(u32, Usage)> {
        self.makers.with_ledger(|ledger| ledger.users())
    }

    /// Delivers finished segments to the connections that still wait; frees the rest.
    fn take_made(&mut self) {
        for (order, made) in self.makers.take_made() {
            // The client has disconnected; dropping the segment frees it.
            if !self.book.is_expecting(order.to.0) {
                continue;
            }
            if let Some(guest) = self.book.live(order.to.0) {
                self.events.push_back(Event::Made {
                    to: order.to,
                    peer: guest.connection.peer,
                    tag: order.tag,
                    made,
                });
            }
        }
    }

    /// Closes the connections that are to be closed. The kernel forgets their entries with them.
    fn sweep(&mut self) {
        for (_, connection) in self.book.take_closed() {
            // A process's descriptor may be a duplicate that something else holds.
            if let Some(end) = &connection.process_end {
                epoll::delete(&self.epoll, end).ok();
            }
            epoll::delete(&self.epoll, &connection.socket).ok();
            self.events.extend(connection.session.map(Event::Parted));
        }
    }
}

impl<S> Connection<S> {
    /// True once the process behind it has ended, even if another process still holds the socket.
    fn has_ended(&self) -> bool {
        let end = self.process_end.as_ref();
        end.is_some_and(|end| local_socket::is_readable(end.as_fd()))
    }
}

fn refuse(protocol: &Protocol, socket: BorrowedFd<'_>, reason: &str) {
    let answer = protocol.message(crate::protocol::KIND_REFUSED, reason.as_bytes());
    // A peer that does not read its answer, or has disconnected, misses it.
    local_socket::send(socket, &answer, &[]).ok();
}

fn call(call: &'static str) -> impl Fn(Errno) -> SysError {
    move |source| SysError::Call {
        call,
        source: source.into(),
    }
}

/// True for errors of waiting that pass: the kernel is out of memory.
fn passes(error: &SysError) -> bool {
    let SysError::Call { source, .. } = error else {
        return false;
    };
    let errno = Errno::from_io_error(source);
    matches!(errno, Some(Errno::NOMEM | Errno::AGAIN | Errno::INTR))
}

/// Entries of the epoll that are no connections: those have twice their number, and one more for
/// their process.
const LISTENER: u64 = 0;
const BELL: u64 = 1;
const LOOKED_AT_ONCE_MAX: usize = 256;
/// Descriptors that a server's process may come to need in addition to those for its clients.
const OWN_DESCRIPTORS: usize = 16;
/// Pause after the kernel was out of memory.
const MEMORY_PAUSE: Duration = Duration::from_millis(20);
/// Time between two looks at segments that clients kept after hanging up.
const SETTLE_EVERY: Duration = Duration::from_millis(100);

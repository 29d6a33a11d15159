//! The server's end of all connections: who may come in, who is introduced, who is gone.
//!
//! ```text
//! connect ──► accept ── credentials ──► pending ── question: attach ──► attached ──► parted
//!                          │ refused       │ silent for 2 s, crowded out       hung up, died,
//!                          ▼               ▼                                   or over
//! ```
//!
//! A server's control thread calls [`Door::wait`], then takes events until there are none, and
//! answers questions as they come: one to attach by an order for a segment, which another thread
//! makes. Sessions of the service (`S`) are kept here with their connections.
//!
//! Why here: everything that needs a system call for each client is done by one thread, so that the
//! threads that serve need none. Must stay true: nothing here waits for a client; a connection that
//! says nothing, says nonsense or does not read its answer is closed; connections that have not
//! attached are limited for each user, and those of one user never take a place from another's. One
//! thread.

use crate::protocol::QUESTION_BYTES;
use crate::quota::{Ledger, Quota, Usage};
use crate::segment::{Makers, Order, Segment};
use crate::{Allow, ListenError, Protocol, ServerSocket};
use sidecore_sys::SysError;
use sidecore_sys::local_socket::{self, Peer, Received};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

/// Admission and limits.
#[derive(Debug, Clone)]
pub struct DoorOptions {
    /// The users and groups that may attach besides the server's own user and root.
    pub allow: Allow,
    /// The limits.
    pub quota: Quota,
    /// The remedy for a user who may not attach: the option that admits it.
    pub remedy: fn(&Peer) -> String,
    /// The cores that the threads run on which make segments; none: wherever the kernel likes.
    pub cpus: Vec<usize>,
}

/// A connection, until its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ConnectionId(pub(crate) u64);

/// An event at the door.
#[derive(Debug)]
pub enum Event<S> {
    /// A client asks. To be answered by [`Door::order`], [`Door::answer`] or [`Door::refuse`], now
    /// or later.
    Question {
        /// Its connection.
        from: ConnectionId,
        /// Whose it is.
        peer: Peer,
        /// True if it is attached already, or a segment is made for it.
        is_attached: bool,
        /// The kind of the question.
        kind: u32,
        /// The rest of it.
        body: [u8; QUESTION_BYTES - 16],
    },
    /// A segment that was ordered. To be answered by [`Door::attach`] or [`Door::refuse`].
    Made {
        /// The client's connection.
        to: ConnectionId,
        /// Whose it is.
        peer: Peer,
        /// As it was given to [`Door::order`].
        tag: u64,
        /// The segment and the descriptor to hand over; or the limit that is reached, or what the
        /// operating system said, in words for the client.
        made: Result<(Segment, OwnedFd), String>,
    },
    /// A client that was attached is gone.
    Parted(S),
}

/// The server's end of all connections.
#[derive(Debug)]
pub struct Door<S> {
    protocol: Protocol,
    socket: ServerSocket,
    options: DoorOptions,
    makers: Makers,
    connections: Vec<Connection<S>>,
    events: VecDeque<Event<S>>,
    /// Of the last [`Self::wait`]: the wakers, the listener, then two for each connection.
    ready: Vec<bool>,
    next_id: u64,
    accepts_from: Instant,
    settles_at: Instant,
    refused_total: u64,
}

#[derive(Debug)]
struct Connection<S> {
    id: ConnectionId,
    socket: OwnedFd,
    peer: Peer,
    since: Instant,
    /// Readable when the process ends: a child that inherited the socket does not keep it attached.
    /// From the first question on.
    process_end: Option<OwnedFd>,
    /// A segment was ordered and has not come.
    expects: bool,
    session: Option<S>,
    closing: bool,
}

impl<S> Door<S> {
    /// Takes the socket at `path` and lets processes connect from now on.
    ///
    /// # Errors
    /// [`ListenError`].
    pub fn open(
        protocol: Protocol,
        path: &Path,
        options: DoorOptions,
    ) -> Result<Self, ListenError> {
        let socket = ServerSocket::take(path, options.allow.is_only_owner())?;
        let now = Instant::now();
        Ok(Self {
            protocol,
            socket,
            makers: Makers::start(
                Ledger::new(options.quota, local_socket::effective_uid()),
                &options.cpus,
            )?,
            options,
            connections: Vec::new(),
            events: VecDeque::new(),
            ready: Vec::new(),
            next_id: 0,
            accepts_from: now,
            settles_at: now,
            refused_total: 0,
        })
    }

    /// The socket's path.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.socket.path()
    }

    /// Waits until something happens at the door, or one of `wakers` is readable, `timeout` at
    /// most; whether each waker is. Events are to be taken afterwards.
    ///
    /// # Errors
    /// [`SysError::Call`] where the kernel is out of memory.
    pub fn wait(
        &mut self,
        wakers: &[BorrowedFd<'_>],
        timeout: Duration,
    ) -> Result<Vec<bool>, SysError> {
        let mut ready = std::mem::take(&mut self.ready);
        let polled = local_socket::poll(&self.descriptors(wakers), &mut ready, timeout);
        self.ready = ready;
        polled?;
        let woken = self.ready[..wakers.len()].to_vec();
        let now = Instant::now();
        self.look_at_connections(wakers.len() + 2, now);
        if self.ready[wakers.len()] && now >= self.accepts_from {
            self.accept(now);
        }
        if self.ready[wakers.len() + 1] {
            self.take_made();
        }
        self.sweep();
        if now >= self.settles_at && self.makers.with_ledger(Ledger::has_kept) {
            self.makers.settle_soon();
            self.settles_at = now + SETTLE_EVERY;
        }
        Ok(woken)
    }

    /// The next thing that happened.
    pub fn next_event(&mut self) -> Option<Event<S>> {
        self.events.pop_front()
    }

    /// Has a segment of `bytes` bytes made by another thread, charged to the user of a connection;
    /// [`Event::Made`] brings it, unless the client is gone by then. `name` stands in lists of open
    /// files, `tag` comes back. Does not block.
    pub fn order(&mut self, to: ConnectionId, name: &'static str, bytes: usize, tag: u64) {
        if let Some(connection) = self.connections.iter_mut().find(|it| it.id == to) {
            connection.expects = true;
            self.makers.order(Order {
                to,
                uid: connection.peer.uid,
                name,
                bytes,
                tag,
            });
        }
    }

    /// Has memory made ready, by another thread, for the first client of root or the server's own
    /// user that orders as much under this name: it need not wait until its pages are there, some
    /// 10 ms for 16 MiB. Later ones find as much as the last one ordered. It is given back where
    /// nobody comes for a minute. Above 33 MiB nothing is made ready. Does not block.
    pub fn expect(&self, name: &'static str, bytes: usize) {
        self.makers.expect(name, bytes);
    }

    /// Attaches a connection: sends the terms with their descriptors, and keeps the session until
    /// the client parts. Gives it back where the client is gone.
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
        let Some(connection) = self.connections.iter_mut().find(|it| it.id == to) else {
            return Err(session);
        };
        if local_socket::send(connection.socket.as_fd(), &message, descriptors).is_err() {
            connection.closing = true;
            return Err(session);
        }
        connection.session = Some(session);
        Ok(())
    }

    /// Answers a question. A client that does not read is parted with.
    pub fn answer(&mut self, to: ConnectionId, kind: u32, body: &[u8]) {
        let message = self.protocol.message(kind, body);
        if let Some(connection) = self.connections.iter_mut().find(|it| it.id == to)
            && local_socket::send(connection.socket.as_fd(), &message, &[]).is_err()
        {
            connection.closing = true;
        }
    }

    /// Refuses a question and closes the connection.
    pub fn refuse(&mut self, to: ConnectionId, reason: &str) {
        self.refused_total += 1;
        if let Some(connection) = self.connections.iter_mut().find(|it| it.id == to) {
            refuse(&self.protocol, connection.socket.as_fd(), reason);
            connection.closing = true;
        }
    }

    /// Parts with the clients whose sessions the service is done with.
    pub fn part_where(&mut self, is_over: impl Fn(&S) -> bool) {
        for connection in &mut self.connections {
            connection.closing |= connection.session.as_ref().is_some_and(&is_over);
        }
        self.sweep();
    }

    /// The sessions that are attached.
    pub fn sessions(&self) -> impl Iterator<Item = &S> {
        let live = self.connections.iter().filter(|it| !it.closing);
        live.filter_map(|connection| connection.session.as_ref())
    }

    /// The sessions that are attached.
    pub fn sessions_mut(&mut self) -> impl Iterator<Item = &mut S> {
        let live = self.connections.iter_mut().filter(|it| !it.closing);
        live.filter_map(|connection| connection.session.as_mut())
    }

    /// Connections and questions that were refused or could not be understood.
    #[must_use]
    pub fn refused_total(&self) -> u64 {
        self.refused_total
    }

    /// A user's share of this server.
    #[must_use]
    pub fn usage(&self, uid: u32) -> Usage {
        self.makers.with_ledger(|ledger| ledger.usage(uid))
    }

    /// The users who have segments, and each one's share: what is kept after hanging up counts.
    #[must_use]
    pub fn usages(&self) -> Vec<(u32, Usage)> {
        self.makers.with_ledger(|ledger| ledger.users())
    }

    fn descriptors<'d>(&'d self, wakers: &[BorrowedFd<'d>]) -> Vec<BorrowedFd<'d>> {
        let mut all = wakers.to_vec();
        all.push(self.socket.listener());
        all.push(self.makers.bell());
        for connection in &self.connections {
            let socket = connection.socket.as_fd();
            let end = connection.process_end.as_ref();
            all.push(socket);
            all.push(end.map_or(socket, |end| end.as_fd()));
        }
        all
    }

    /// Takes questions, and notes who is gone. `first`: where the connections' entries begin.
    fn look_at_connections(&mut self, first: usize, now: Instant) {
        let ready = std::mem::take(&mut self.ready);
        let pairs = ready[first..].as_chunks::<2>().0;
        for (index, &[socket, end]) in pairs.iter().enumerate() {
            let connection = &mut self.connections[index];
            if socket {
                // What was sent before the end is moot.
                if connection.has_ended() {
                    connection.closing = true;
                } else {
                    self.take_question(index);
                }
            } else {
                // Where there is no end to look at, the entry is the socket once more, and a
                // question that came while the kernel looked at one after the other is no end.
                let has_ended = end && connection.process_end.is_some();
                let silent = now.duration_since(connection.since) >= INTRODUCTION_TIME_MAX;
                connection.closing |= has_ended || connection.waits() && silent;
            }
        }
        self.ready = ready;
    }

    fn accept(&mut self, now: Instant) {
        // Bounded, so that those who are attached are looked at, too.
        for _ in 0..ACCEPTED_AT_ONCE_MAX {
            let socket = match local_socket::accept(self.socket.listener()) {
                Ok(Some(socket)) => socket,
                Ok(None) => return,
                Err(_) => {
                    // Out of descriptors: the listener stays readable, so look away for a moment.
                    self.accepts_from = now + ACCEPT_PAUSE;
                    return;
                }
            };
            if let Ok(peer) = local_socket::peer(socket.as_fd()) {
                self.admit(socket, peer, now);
            }
        }
    }

    /// Keeps a new connection, or refuses it.
    fn admit(&mut self, socket: OwnedFd, peer: Peer, now: Instant) {
        let own_uid = local_socket::effective_uid();
        // Who has no list of groups is judged without one.
        let groups = if self.options.allow.gids.is_empty() {
            Vec::new()
        } else {
            local_socket::peer_groups(socket.as_fd()).unwrap_or_default()
        };
        if !self.options.allow.admits(&peer, &groups, own_uid) {
            self.refused_total += 1;
            let reason = format!(
                "user {} (group {}) may not attach to the {} of user {own_uid}; {}",
                peer.uid,
                peer.gid,
                self.protocol.server,
                (self.options.remedy)(&peer)
            );
            refuse(&self.protocol, socket.as_fd(), &reason);
            return;
        }
        if !self.make_room(&peer) {
            self.refused_total += 1;
            refuse(
                &self.protocol,
                socket.as_fd(),
                "too many users wait to be introduced; try later",
            );
            return;
        }
        self.next_id += 1;
        self.connections.push(Connection {
            id: ConnectionId(self.next_id),
            socket,
            peer,
            since: now,
            process_end: None,
            expects: false,
            session: None,
            closing: false,
        });
        // An honest client asks at once: it is introduced before others can crowd it out.
        self.take_question(self.connections.len() - 1);
    }

    /// Makes room for one more connection that has not attached: of its own user's, the oldest goes
    /// once there are too many. Whether there is room.
    fn make_room(&mut self, peer: &Peer) -> bool {
        let waits = |it: &Connection<S>| it.session.is_none() && !it.closing;
        let is_own = |it: &Connection<S>| waits(it) && it.peer.uid == peer.uid;
        let is_preferred = |uid| self.makers.with_ledger(|ledger| ledger.is_preferred(uid));
        let preferred = is_preferred(peer.uid);
        let own_max = if preferred {
            PENDING_MAX
        } else {
            USER_PENDING_MAX
        };
        if self.connections.iter().filter(|it| is_own(it)).count() >= own_max {
            // The connections are in the order of their age. It is not told why: whoever floods the
            // door costs as little as can be.
            if let Some(oldest) = self.connections.iter_mut().find(|it| is_own(it)) {
                oldest.closing = true;
                self.refused_total += 1;
            }
            self.sweep();
            return true;
        }
        let is_preferred = |uid| self.makers.with_ledger(|ledger| ledger.is_preferred(uid));
        let others = |it: &&Connection<S>| waits(it) && !is_preferred(it.peer.uid);
        preferred || self.connections.iter().filter(others).count() < PENDING_MAX
    }

    /// Takes one message of a connection.
    fn take_question(&mut self, index: usize) {
        let connection = &mut self.connections[index];
        // One byte more than a question, to see what is longer.
        let mut bytes = [0; QUESTION_BYTES + 1];
        let length = match local_socket::receive(connection.socket.as_fd(), &mut bytes) {
            // Descriptors that came with it are closed.
            Ok(Received::Message(length, _)) => length,
            Ok(Received::Nothing) => return,
            Ok(Received::End) | Err(_) => {
                connection.closing = true;
                return;
            }
        };
        match self.protocol.parse_question(&bytes[..length]) {
            Ok((kind, body)) => {
                // Not for those who say nothing: it is two system calls.
                let end = || local_socket::process_end(connection.peer.pid);
                connection.process_end = connection.process_end.take().or_else(end);
                self.events.push_back(Event::Question {
                    from: connection.id,
                    peer: connection.peer,
                    is_attached: connection.expects || connection.session.is_some(),
                    kind,
                    body,
                });
            }
            Err(mismatch) => {
                let reason = self.protocol.reason(mismatch);
                let id = connection.id;
                self.refuse(id, &reason);
            }
        }
    }

    /// Hands on what was made for those who still wait; the rest is freed again.
    fn take_made(&mut self) {
        for (order, made) in self.makers.take_made() {
            let of_order = |it: &&mut Connection<S>| it.id == order.to && !it.closing;
            if let Some(connection) = self.connections.iter_mut().find(of_order) {
                connection.expects = false;
                self.events.push_back(Event::Made {
                    to: order.to,
                    peer: connection.peer,
                    tag: order.tag,
                    made,
                });
            }
        }
    }

    /// Forgets connections that are to be closed.
    fn sweep(&mut self) {
        let parted = self.connections.extract_if(.., |it| it.closing);
        let sessions = parted.filter_map(|connection| connection.session);
        self.events.extend(sessions.map(Event::Parted));
    }
}

impl<S> Connection<S> {
    /// True while it is up to the client to say what it wants.
    fn waits(&self) -> bool {
        self.session.is_none() && !self.expects
    }

    /// True once the process behind it has ended, whoever else holds the socket.
    fn has_ended(&self) -> bool {
        let mut ended = Vec::new();
        self.process_end.as_ref().is_some_and(|end| {
            local_socket::poll(&[end.as_fd()], &mut ended, Duration::ZERO).is_ok() && ended[0]
        })
    }
}

fn refuse(protocol: &Protocol, socket: BorrowedFd<'_>, reason: &str) {
    let answer = protocol.message(crate::protocol::KIND_REFUSED, reason.as_bytes());
    // Who does not read its answer, or is gone, misses it.
    local_socket::send(socket, &answer, &[]).ok();
}

/// The longest time that a connection may stay without attaching.
pub const INTRODUCTION_TIME_MAX: Duration = Duration::from_secs(2);
/// The most connections of one user that have not attached. Enough for programs that start many
/// processes at once, some of which lose their core between connecting and asking.
pub const USER_PENDING_MAX: usize = 32;
/// The same for root, for the server's own user, and for all other users together.
pub const PENDING_MAX: usize = 128;
const ACCEPTED_AT_ONCE_MAX: usize = 64;
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);
/// Time between two looks at segments that clients kept after hanging up.
const SETTLE_EVERY: Duration = Duration::from_millis(100);

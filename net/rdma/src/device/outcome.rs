//! Listeners, and results of progress: events, completions, freed places.
//!
//! Must stay true: an event is reported once; a completion stays in its pair until its queue has
//! room.

use super::link::{Link, Reported};
use super::tables::Links;
use super::transport::Net;
use super::{
    ACCEPTS_MAX, BACKLOG_MAX, Device, Event, LINGER, LISTENERS_MAX, ListenerId, Listening, Queued,
};
use crate::flow::Moved;
use crate::{End, Kind, Options, RdmaError, State};
use sidecore_rdma_wire::{Pair, PairId};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Instant;

impl Device {
    /// Makes progress on a connection, and reports the results; true if a byte moved, or its end.
    pub(super) fn advance(&mut self, index: u32) -> bool {
        let Some(link) = self.links.at(index) else {
            return false;
        };
        let moved = link.progress(&mut self.net, &mut self.buffer, &mut self.adapter);
        let has_moved = moved.as_ref().map_or(true, |moved| moved.anything);
        self.settle(index, moved);
        has_moved
    }

    /// Records the result of progress.
    pub(super) fn settle(&mut self, index: u32, moved: io::Result<Moved>) {
        let Some(link) = self.links.at(index) else {
            return;
        };
        let moved = moved.unwrap_or_else(|_| {
            // The stream's error has the reason; the pair and its owner only learn that it is lost.
            link.flow.pair.lose();
            link.flow.has_ended = true;
            Moved::default()
        });
        let wanted = link.wanted(moved.is_blocked);
        // A system call only on a change: interest seldom differs between two rounds.
        if link.interest != wanted {
            link.interest = wanted;
            let is_over = link.flow.has_ended;
            self.net.set_interest(index, &link.wire, wanted, is_over);
        }
        if moved.anything && link.leaving.is_some() {
            link.leaving = Some(Instant::now());
            link.is_being_taken();
        }
        if moved.is_blocked && !link.is_blocked {
            link.is_blocked = true;
            self.blocked.push_back(index);
        }
        // What had arrived is kept for a receive, for some time.
        if link.flow.broke_at().is_some() && !self.lingering.contains(&index) {
            self.lingering.push(index);
        }
        // Its stream may have no further event although data is left.
        if moved.has_more {
            self.make_busy(index);
        }
        // Most devices have no shared queue, and skip the look at the pair.
        if !self.shared.is_empty() {
            self.await_shared(index);
        }
        self.report(index);
        self.collect(index);
    }

    /// Reports the next event of a connection's life, if it has come.
    fn report(&mut self, index: u32) {
        let connection = self.links.id_at(index);
        let Some(link) = self.links.at(index) else {
            return;
        };
        let state = link.flow.pair.state();
        let listener = link.listener;
        if state == State::Requested && link.reported < Reported::Requested {
            link.reported = Reported::Requested;
            if let Some(listener) = listener {
                let private_data = link.flow.pair.private_data().to_vec();
                self.events.push_back(Event::Requested {
                    listener: ListenerId(listener),
                    connection,
                    private_data,
                });
            }
            return;
        }
        if state == State::Open && link.reported < Reported::Established {
            link.reported = Reported::Established;
            // The accepting side has got the peer's data with its request.
            let private_data = match listener {
                Some(_) => Vec::new(),
                None => link.flow.pair.private_data().to_vec(),
            };
            link.listener = None;
            // It no longer counts against the backlog.
            if let Some(listener) = listener {
                self.forget_pending(listener, index);
            }
            self.events.push_back(Event::Established {
                connection,
                private_data,
            });
            return;
        }
        // The last data is being sent while it ends.
        if state == State::Ended && (link.flow.is_drained() || link.flow.has_ended) {
            self.report_end(index);
        }
    }

    /// Reports the end of a connection, or frees it if its owner has released it.
    fn report_end(&mut self, index: u32) {
        let connection = self.links.id_at(index);
        let Some(link) = self.links.at(index) else {
            return;
        };
        if link.released.is_some() {
            if link.flow.is_over() {
                self.end_released(index);
            }
            return;
        }
        if link.has_reported_end() {
            return;
        }
        let reported = std::mem::replace(&mut link.reported, Reported::Ended);
        if link.listener.is_some() && reported < Reported::Requested {
            // It never sent a request, so its owner does not know it.
            self.free_link(index);
            return;
        }
        let end = link.flow.pair.end().cloned().unwrap_or(End::Lost);
        let private_data = match end {
            End::Rejected => link.flow.pair.private_data().to_vec(),
            _ => Vec::new(),
        };
        self.events.push_back(Event::Ended {
            connection,
            end,
            private_data,
        });
    }

    /// Moves completions of a connection to its queues, as far as these have room.
    pub(super) fn collect(&mut self, index: u32) {
        let connection = self.links.id_at(index);
        let Some(link) = self.links.at(index) else {
            return;
        };
        let Some(queues) = link.queues else {
            return;
        };
        let mut is_collected = false;
        while let Some(kind) = link.flow.pair.next_kind() {
            let queue = match kind {
                Kind::Receive => queues.receive,
                _ => queues.send,
            };
            match self.queues.get_mut(queue) {
                Some(target) if target.is_full() => {
                    // Its later completions wait with it: they keep their order.
                    target.wait(index);
                    break;
                }
                target => {
                    is_collected = true;
                    let (Some(completion), Some(target)) = (link.flow.pair.poll(), target) else {
                        continue; // the queue was dropped
                    };
                    target.push(Queued {
                        connection,
                        completion,
                    });
                }
            }
        }
        // A message may have waited for this room: no event of the stream reports it. Without a
        // change it would only wait again.
        if is_collected && link.flow.pair.is_stalled() {
            self.make_busy(index);
        }
    }

    /// Frees a closed connection once all its completions were collected: until its queue has room
    /// for them, or is dropped, it stays in the list of lingering ones.
    pub(super) fn end_released(&mut self, index: u32) {
        self.collect(index);
        let link = self.links.peek(index);
        // A rejected one has no queues: nothing will collect its flushed receives.
        let waits =
            link.is_some_and(|link| link.queues.is_some() && link.flow.pair.next_kind().is_some());
        if !waits {
            self.free_link(index);
        }
    }

    pub(super) fn end_lingering(&mut self) {
        if self.lingering.is_empty() {
            return;
        }
        // A copy: each that is freed removes itself from the list.
        let now = Instant::now();
        for index in self.lingering.clone() {
            let Some(link) = self.links.at(index) else {
                continue;
            };
            let broke_at = link.flow.broke_at();
            let since = link.released.or(link.leaving).or(broke_at);
            let is_late = since.is_some_and(|since| now.saturating_duration_since(since) >= LINGER);
            let may_go_on = link.released.is_none() && broke_at.is_none();
            if is_late && may_go_on && link.is_being_taken() {
                // Slow, but alive.
                link.leaving = Some(now);
                continue;
            }
            // What the kernel has got with its end is delivered after a release, as completed.
            if is_late && !(link.released.is_some() && link.flow.has_sent_all()) {
                link.reset();
            }
            if link.released.is_none() {
                // Its owner keeps it, and gets the event. A peer without a receive reads nothing,
                // not even the end of the stream.
                if link.has_reported_end() {
                    self.lingering.retain(|&other| other != index);
                } else if is_late {
                    self.settle(index, Err(io::ErrorKind::TimedOut.into()));
                }
                continue;
            }
            // A peer that does not end its stream must not occupy a place for ever; an owner that
            // does not poll does so itself.
            if is_late {
                link.flow.pair.lose();
            }
            if is_late || link.flow.is_over() {
                self.end_released(index);
            }
        }
    }

    /// Listens at a TCP socket of the kernel that is bound and does not block: for a port that its
    /// owner has kept before it listens. Otherwise as [`Self::listen`].
    ///
    /// # Errors
    /// The device is on a stack; too many listeners; the system's.
    pub fn listen_at(
        &mut self,
        socket: OwnedFd,
        backlog: usize,
        options: Options,
    ) -> Result<ListenerId, RdmaError> {
        self.begin_listening(backlog, options, |net, number, backlog| {
            net.listen_at(number, socket, backlog)
        })
    }

    pub(super) fn begin_listening(
        &mut self,
        backlog: usize,
        options: Options,
        listen: impl FnOnce(&mut Net, u32, u16) -> Result<(), RdmaError>,
    ) -> Result<ListenerId, RdmaError> {
        let number = self.listeners.vacant();
        let number = number.ok_or(RdmaError::TooMany("listeners", LISTENERS_MAX))?;
        let backlog =
            u16::try_from(backlog).map_or(BACKLOG_MAX, |backlog| backlog.clamp(1, BACKLOG_MAX));
        listen(&mut self.net, number, backlog)?;
        let listening = Listening {
            options: self.net.fitted(options),
            backlog: backlog.into(),
            pending: VecDeque::new(),
        };
        self.listeners.put(number, listening);
        Ok(ListenerId(number))
    }

    /// Makes progress also when a descriptor of its owner is readable, which
    /// [`Self::take_watched`] then says. For devices on the kernel's sockets.
    ///
    /// # Errors
    /// The system's.
    pub fn watch(&mut self, descriptor: BorrowedFd<'_>) -> Result<(), RdmaError> {
        self.net.watch(descriptor)
    }

    /// True if a watched descriptor has been readable since the last call.
    pub fn take_watched(&mut self) -> bool {
        std::mem::take(&mut self.is_watched_ready)
    }

    /// Accepts new connections of a listener.
    pub(super) fn take_connections(&mut self, listener: u32) {
        for _ in 0..ACCEPTS_MAX {
            let Some(listening) = self.listeners.get(listener) else {
                return;
            };
            let (options, is_full) = (
                listening.options,
                listening.pending.len() >= listening.backlog,
            );
            let silent = oldest_silent(listening, &self.links);
            if is_full && silent.is_none() {
                // The backlog is full of requests: further connections wait in the transport.
                self.net.rest(listener, true);
                return;
            }
            // Reserved first: an accepted stream that finds no place would have to be closed.
            let Some(index) = self.links.reserve() else {
                self.net.rest(listener, true);
                if !self.starved.contains(&listener) {
                    self.starved.push(listener);
                }
                return;
            };
            match self.net.accept(listener, index) {
                Some(wire) => {
                    // The newcomer may have a request; the oldest silent one had its time.
                    if let Some(silent) = silent.filter(|_| is_full) {
                        self.free_link(silent);
                    }
                    let pair = Pair::listen(PairId(self.adapter.next_pair()), options);
                    self.links.put(index, Link::new(pair, wire, Some(listener)));
                    if let Some(listening) = self.listeners.get_mut(listener) {
                        listening.pending.push_back(index);
                    }
                    // Its request may be there already: the stack reports an arrival once.
                    self.make_busy(index);
                }
                None => {
                    self.links.release(index);
                    return;
                }
            }
        }
        // Others get their turn before the next ones are accepted.
        self.net.has_more(listener);
    }

    /// The engine is gone.
    pub(super) fn lose_all(&mut self) {
        for index in self.links.indices() {
            if let Some(link) = self.links.at(index) {
                link.flow.pair.lose();
                link.flow.has_ended = true;
                self.report(index);
                self.collect(index);
            }
        }
    }
}

/// The oldest connection of a listener without a request: it is evicted first.
fn oldest_silent(listening: &Listening, links: &Links) -> Option<u32> {
    let silent = |index: &&u32| {
        let link = links.peek(**index);
        link.is_some_and(|link| link.reported < Reported::Requested)
    };
    listening.pending.iter().find(silent).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ConnectionId, Post, Queues, Transport, Work};
    use std::net::SocketAddr;
    use std::time::Duration;

    /// Longer than any step here takes.
    const LONG: Duration = Duration::from_secs(60);

    /// Two devices over the kernel's loopback, the first one with a listener.
    struct Ends {
        server: Device,
        client: Device,
        at: SocketAddr,
        queues: [Queues; 2],
    }

    impl Ends {
        /// `options` are the server's; each device has one queue of `depth`.
        fn new(options: Options, depth: usize) -> Self {
            let open = || {
                let mut device = Device::open(Transport::Kernel).unwrap();
                let queue = device.create_queue(depth).unwrap();
                let queues = Queues {
                    send: queue,
                    receive: queue,
                };
                (device, queues)
            };
            let ((mut server, served), (client, asking)) = (open(), open());
            let local = SocketAddr::from(([127, 0, 0, 1], 0));
            let listener = server.listen(local, 8, options).unwrap();
            let at = server.listener_address(listener).unwrap();
            Self {
                server,
                client,
                at,
                queues: [served, asking],
            }
        }

        fn until<T>(&mut self, mut found: impl FnMut(&mut Self) -> Option<T>) -> T {
            let begun = Instant::now();
            loop {
                self.server.progress().unwrap();
                self.client.progress().unwrap();
                if let Some(it) = found(self) {
                    return it;
                }
                assert!(begun.elapsed() < LONG, "it does not happen");
            }
        }

        fn ask(&mut self, options: Options) -> ConnectionId {
            let (at, queues) = (self.at, self.queues[1]);
            self.client.connect(at, options, queues, b"").unwrap()
        }

        fn requested(&mut self) -> ConnectionId {
            self.until(|ends| match ends.server.next_event()? {
                Event::Requested { connection, .. } => Some(connection),
                _ => None,
            })
        }

        /// A connection, by the numbers of both sides: the client's, the server's.
        fn connected(&mut self) -> (ConnectionId, ConnectionId) {
            self.connected_by(Options::default())
        }

        fn connected_by(&mut self, options: Options) -> (ConnectionId, ConnectionId) {
            let ours = self.ask(options);
            let theirs = self.requested();
            self.server.accept(theirs, self.queues[0], b"").unwrap();
            self.until(|ends| {
                let pairs = [ends.client.pair(ours)?, ends.server.pair(theirs)?];
                let open = pairs.iter().all(|pair| pair.state() == State::Open);
                open.then_some(())
            });
            (ours, theirs)
        }

        fn post_immediate(&mut self, ours: ConnectionId, value: u64) {
            self.client.post(ours, immediate(value)).unwrap();
        }
    }

    fn immediate(value: u64) -> Post {
        let work = Work::Immediate {
            value,
            solicited: false,
        };
        Post {
            id: value,
            work,
            fence: false,
        }
    }

    /// Immediate data takes no receive, and four wait to be polled at most.
    fn immediates() -> Options {
        Options {
            immediate_without_receive: true,
            waits_for_receives: true,
            receive_depth: 4,
            ..Options::default()
        }
    }

    #[test]
    fn a_listener_that_found_no_place_accepts_again_once_one_is_free() {
        let mut ends = Ends::new(Options::default(), 8);
        ends.server.links = Links::new(2);
        let (_, first) = ends.connected();
        ends.connected();
        ends.ask(Options::default());
        ends.until(|ends| (!ends.server.starved.is_empty()).then_some(()));
        ends.server.abort(first).unwrap();
        let third = ends.requested();
        // With it the table is full again, and the listener rests.
        assert!(ends.server.pair(third).is_some());
    }

    #[test]
    fn immediate_data_that_waited_for_room_continues_once_completions_are_collected() {
        let mut ends = Ends::new(immediates(), 64);
        let (ours, _) = ends.connected();
        // One burst, longer than the pair holds; nothing arrives after it.
        let all: Vec<u64> = (0..12).collect();
        for value in &all {
            ends.post_immediate(ours, *value);
        }
        let mut came = Vec::new();
        ends.until(|ends| {
            let mut taken = [None; 16];
            let queue = ends.queues[0].receive;
            let count = ends.server.poll(queue, &mut taken).unwrap();
            let values = taken[..count].iter().flatten();
            came.extend(values.filter_map(|queued| queued.completion.immediate));
            (came.len() == all.len()).then_some(())
        });
        assert_eq!(came, all);
    }

    #[test]
    fn what_a_peer_sent_before_it_broke_off_arrives() {
        let mut ends = Ends::new(immediates(), 64);
        let (ours, theirs) = ends.connected_by(immediates());
        // The side that has answered sends after the other one.
        ends.post_immediate(ours, 1);
        ends.until(|ends| {
            let mut taken = [None; 4];
            let count = ends
                .server
                .poll(ends.queues[0].receive, &mut taken)
                .unwrap();
            (count > 0).then_some(())
        });
        ends.server.post(theirs, immediate(7)).unwrap();
        // Data that it has not read makes its end a reset.
        ends.post_immediate(ours, 2);
        ends.server.abort(theirs).unwrap();
        // Sent before anything is read: it finds the stream broken.
        ends.post_immediate(ours, 3);
        let mut came = Vec::new();
        ends.until(|ends| {
            let mut taken = [None; 4];
            let count = ends
                .client
                .poll(ends.queues[1].receive, &mut taken)
                .unwrap();
            let all = taken[..count].iter().flatten();
            came.extend(all.filter_map(|queued| queued.completion.immediate));
            let pair = ends.client.pair(ours)?;
            (pair.state() == State::Ended && count == 0).then_some(())
        });
        assert_eq!(came, [7]);
    }

    #[test]
    fn completions_without_room_outlast_the_close_of_their_connection() {
        for is_polled in [true, false] {
            let mut ends = Ends::new(immediates(), 1);
            let (ours, _) = ends.connected();
            let queue = ends.queues[1].send;
            ends.post_immediate(ours, 1);
            ends.post_immediate(ours, 2);
            ends.until(|ends| ends.client.is_drained(ours).then_some(()));
            ends.client.close(ours).unwrap();
            ends.until(|ends| {
                let link = ends.client.links.peek(ours.index);
                link.is_none_or(|link| link.flow.is_over()).then_some(())
            });
            ends.client.progress().unwrap();
            if is_polled {
                for id in [1, 2] {
                    let mut taken = [None; 4];
                    assert_eq!(ends.client.poll(queue, &mut taken).unwrap(), 1);
                    let queued = taken[0].unwrap();
                    assert_eq!((queued.connection, queued.completion.id), (ours, id));
                }
            } else {
                assert!(ends.client.links.peek(ours.index).is_some());
                ends.client.drop_queue(queue);
            }
            // Its place is free then.
            ends.client.progress().unwrap();
            assert!(ends.client.links.peek(ours.index).is_none());
        }
    }
}

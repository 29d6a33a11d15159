//! Assigning segments to sessions, and sessions to their owners: lookup, creation and removal.
//!
//! [`super::strays`] has the segments that find no session. Source: RFC 9293 section 3.10.7.

use super::SessionId;
use super::listener::Listeners;
use crate::buffer::NONE;
use crate::error::{NetError, SessionError};
use crate::secrets::Ends;
use crate::shared::{Common, EventSource};
use crate::state::flags::{Flags, SendTail};
use crate::state::hot::State;
use crate::state::store::Store;
use crate::state::table::Table;
use crate::tcp::Session;
use crate::tcp::cold::Cold;
use crate::tcp::input::Input;
use crate::wire::Mac;
use crate::wire::ip::{self, Codepoint};
use crate::wire::tcp::{self, ACK, RST, SYN, Segment};

/// A TCP segment for a session.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arrival {
    pub(crate) ends: Ends,
    pub(crate) hash: u32,
    pub(crate) mac: Mac,
    /// ECN field of its packet.
    pub(crate) ecn: Codepoint,
    /// Bytes of the TCP header and payload.
    pub(crate) len: usize,
}

/// Result of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arrived {
    /// It was for this session.
    Session(u32),
    /// It was processed, by a listener or by a session that is over.
    Taken,
    /// There is no use for it here.
    Stray,
}

/// The sessions of a stack, and the listeners that they come from.
#[derive(Debug)]
pub(crate) struct Sessions {
    pub(crate) store: Store<Cold>,
    pub(crate) table: Table,
    pub(crate) listeners: Listeners,
}

/// Access to a session, while the listeners are borrowed otherwise.
#[inline]
pub(super) fn session<'s>(
    store: &'s mut Store<Cold>,
    common: &'s mut Common,
    number: u32,
) -> Session<'s> {
    let (hot, path, cold) = store.session(number);
    Session {
        number,
        hot,
        path,
        cold,
        common,
    }
}

impl Sessions {
    /// Access to a session.
    #[inline]
    pub(crate) fn access<'s>(&'s mut self, common: &'s mut Common, number: u32) -> Session<'s> {
        session(&mut self.store, common, number)
    }

    /// The session with these ends.
    #[inline]
    pub(crate) fn find(&mut self, ends: &Ends, hash: u32) -> Option<u32> {
        let store = &self.store;
        self.table
            .find(hash, |number| store.path(number).ends() == *ends)
    }

    /// Prefetches the session that probably has this hash.
    #[inline]
    pub(crate) fn prefetch(&self, hash: u32) {
        if let Some(number) = self.guess(hash) {
            self.store.prefetch(number);
        }
    }

    /// The session that probably has this hash.
    #[inline]
    pub(crate) fn guess(&self, hash: u32) -> Option<u32> {
        self.table
            .guess(hash)
            .filter(|&number| self.store.knows(number))
    }

    /// The number of a session with a valid identifier.
    #[inline]
    pub(crate) fn number(&self, id: SessionId) -> Result<u32, NetError> {
        if self.store.knows(id.number) && self.store.hot(id.number).generation == id.generation {
            Ok(id.number)
        } else {
            Err(NetError::Gone)
        }
    }

    /// The identifier of a session.
    #[inline]
    pub(crate) fn id(&self, number: u32) -> SessionId {
        let generation = self.store.hot(number).generation;
        SessionId { number, generation }
    }

    /// Processes a segment with a correct checksum.
    #[inline]
    pub(crate) fn arrive(
        &mut self,
        common: &mut Common,
        arrival: &Arrival,
        segment: &Segment<'_>,
    ) -> Arrived {
        let Some(number) = self.find(&arrival.ends, arrival.hash) else {
            return self.arrive_stray(common, arrival, segment);
        };
        let session = self.access(common, number);
        if session.hot.state() == State::TimeWait && segment.flags & (SYN | RST | ACK) == SYN {
            return self.arrive_in_time_wait(common, number, arrival, segment);
        }
        Input::new(session, segment).run();
        Arrived::Session(number)
    }

    /// Completes state changes of sessions: new ones go to their listeners, closed ones leave the
    /// table.
    #[inline]
    pub(crate) fn sweep(&mut self, common: &mut Common) {
        if !common.newly_established.is_empty() || !common.newly_closed.is_empty() {
            self.sweep_all(common);
        }
    }

    /// Creates and prepares a session between these ends, and adds it to the table. Without room,
    /// the oldest session in TIME-WAIT is evicted.
    pub(crate) fn open(&mut self, common: &mut Common, ends: &Ends, hash: u32) -> Option<u32> {
        // Without a route, no number is taken.
        let (neighbor, neighbor_generation) = common.find_hop(&ends.remote)?;
        let number = match self.store.take() {
            Some(number) => number,
            None => {
                self.reclaim(common);
                self.store.take()?
            }
        };
        let mtu = common.interface.mtu();
        let headers = ip::header_bytes(&ends.local) + tcp::HEADER_BYTES + tcp::OPTIONS_BYTES_MAX;
        let super_bytes = common.interface.super_payload(headers);
        // Numbers are reused, so each field gets a value.
        let (hot, path, cold) = self.store.session(number);
        hot.clear(Flags::DETACHED);
        path.local = ends.local;
        path.remote = ends.remote;
        path.local_port = ends.local_port;
        path.remote_port = ends.remote_port;
        path.hash = hash;
        path.neighbor = neighbor;
        path.neighbor_generation = neighbor_generation;
        path.mtu = mtu;
        path.super_bytes = super_bytes;
        path.retries = 0;
        path.tail = SendTail::EMPTY;
        path.traffic_class = common.config.traffic_class;
        *cold = Cold::default();
        common.shares.add(&ends.remote, ends.local_port);
        self.table.insert(hash, number);
        self.access(common, number).prepare();
        Some(number)
    }

    /// Ends the oldest session in TIME-WAIT without an owner.
    fn reclaim(&mut self, common: &mut Common) {
        while let Some(number) = common.time_wait.pop_front() {
            let mut session = self.access(common, number);
            // Other entries have ended already, or their number was reused.
            if session.hot.state() == State::TimeWait && session.hot.has(Flags::DETACHED) {
                session.finish(None);
                self.sweep_all(common);
                return;
            }
        }
    }

    /// Puts established sessions into accept queues, and removes closed ones.
    pub(crate) fn sweep_all(&mut self, common: &mut Common) {
        while let Some(number) = common.newly_established.pop() {
            let (hot, _, cold) = self.store.session(number);
            let listener = cold.listener;
            if hot.state() == State::Closed || listener == NONE {
                continue;
            }
            let of = self.listeners.at_mut(listener);
            if !of.open {
                // The listener was closed meanwhile; the code below decrements its embryos.
                let error = Some(SessionError::Aborted);
                self.access(common, number).reset(error);
                continue;
            }
            of.embryos -= 1;
            of.waiting.push_back(number);
            cold.queued = true;
            if !of.listed {
                of.listed = true;
                common
                    .pending_events
                    .push_back(EventSource::Listener(listener));
            }
        }
        while let Some(number) = common.newly_closed.pop() {
            let (hot, path, cold) = self.store.session(number);
            self.table.remove(path.hash, number);
            if hot.has(Flags::EMBRYO) {
                let of = self.listeners.at_mut(cold.listener);
                if cold.queued {
                    of.waiting.retain(|&waiting| waiting != number);
                } else {
                    of.embryos -= 1;
                    // `close_listener` left it to the last embryo to free the slot.
                    self.listeners.free_if_unused(cold.listener);
                }
            }
            if hot.has(Flags::DETACHED | Flags::EMBRYO) {
                self.give(common, number);
            }
            // Sessions whose timer has expired are removed from the list.
            while let Some(&oldest) = common.time_wait.front()
                && self.store.hot(oldest).state() != State::TimeWait
            {
                common.time_wait.pop_front();
            }
        }
    }

    /// Frees the number of a closed session without an owner.
    pub(crate) fn give(&mut self, common: &mut Common, number: u32) {
        let (hot, path, _) = self.store.session(number);
        common.shares.remove(&path.remote, path.local_port);
        hot.rx.release(&mut common.pool);
        hot.tx.release(&mut common.pool);
        let listed = hot.flags_in(Flags::READY | Flags::EVENT);
        let armed = hot.armed;
        self.store.give(number);
        // Lists that still contain the number find a closed session without an owner; it must not
        // be listed twice.
        let hot = self.store.hot_mut(number);
        hot.set(listed | Flags::DETACHED);
        hot.armed = armed;
    }
}

//! The acceptor's decisions, without its I/O: events and the time in, decisions out. Pure.
//!
//! A connection is *waiting* until it asks to attach, *expecting* while its segment is made,
//! *attached* until it parts, and *closing* until its owner takes it out ([`Book::take_closed`]).
//! `C` is the owner's data with it: descriptors in the acceptor, a model in the simulation.
//!
//! Must stay true: the time comes in as an argument. The limits of waiting connections and the
//! quota of segments bound the number of entries. A closing connection takes part in nothing. One
//! thread.

use crate::{Admission, AdmissionLimits, Arrival};
use std::collections::BTreeMap;
use std::time::Duration;

/// A connection in the book.
#[derive(Debug)]
pub(crate) struct Guest<C> {
    pub(crate) uid: u32,
    stage: Stage,
    /// Its owner's part.
    pub(crate) connection: C,
}

/// State of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The client has not sent its request yet.
    Waiting,
    /// A segment was ordered and has not come.
    Expecting,
    Attached,
    Closing,
}

impl<C> Guest<C> {
    pub(crate) fn is_closing(&self) -> bool {
        self.stage == Stage::Closing
    }

    /// True if it is attached, or about to be.
    pub(crate) fn has_ordered(&self) -> bool {
        matches!(self.stage, Stage::Expecting | Stage::Attached)
    }
}

/// All connections of an acceptor.
#[derive(Debug)]
pub(crate) struct Book<C> {
    admission: Admission<u32>,
    guests: BTreeMap<u64, Guest<C>>,
    last_id: u64,
    /// Nothing is accepted before this time.
    accepts_from: Duration,
    refused_total: u64,
}

impl<C> Book<C> {
    pub(crate) fn new(limits: AdmissionLimits) -> Self {
        Self {
            admission: Admission::new(limits),
            guests: BTreeMap::new(),
            last_id: 0,
            accepts_from: Duration::ZERO,
            refused_total: 0,
        }
    }

    /// True if connections may be accepted now.
    pub(crate) fn accepts(&self, now: Duration) -> bool {
        now >= self.accepts_from
    }

    /// No descriptor was left for a connection. True if one is closing now for it, so that it can
    /// be accepted after [`Self::take_closed`]; else accepting pauses.
    #[must_use]
    pub(crate) fn run_out(&mut self, now: Duration) -> bool {
        match self.admission.evict() {
            Some(victim) => {
                self.refused_total += 1;
                self.close(victim);
                true
            }
            None => {
                self.accepts_from = now + ACCEPT_PAUSE;
                false
            }
        }
    }

    /// Adds the connection of a user that may attach. Returns the connection's number.
    ///
    /// # Errors
    /// The connection itself where there is no room; the caller refuses it.
    pub(crate) fn arrive(
        &mut self,
        uid: u32,
        is_preferred: bool,
        connection: C,
        now: Duration,
    ) -> Result<u64, C> {
        // Never used again: an answer that comes late must not reach another client.
        let id = self.last_id + 1;
        match self.admission.arrive(id, uid, is_preferred, now) {
            Arrival::Admitted => {}
            Arrival::Replaces(victim) => {
                // The victim gets no reason: refusing a crowd must cost as little as possible.
                self.refused_total += 1;
                self.close(victim);
            }
            Arrival::Refused => {
                self.refused_total += 1;
                return Err(connection);
            }
        }
        self.last_id = id;
        let guest = Guest {
            uid,
            stage: Stage::Waiting,
            connection,
        };
        self.guests.insert(id, guest);
        Ok(id)
    }

    /// Counts one that was refused.
    pub(crate) fn count_refused(&mut self) {
        self.refused_total += 1;
    }

    /// A segment was ordered for a connection: it is not silent any more. False where it is over.
    pub(crate) fn expect(&mut self, id: u64) -> bool {
        let Some(guest) = self.live_mut(id) else {
            return false;
        };
        guest.stage = Stage::Expecting;
        // From here on it cannot be crowded out by connections that say nothing.
        self.admission.ask(id);
        true
    }

    /// The segment came. True if its connection still wants it; else it is to be freed.
    pub(crate) fn is_expecting(&self, id: u64) -> bool {
        let guest = self.guests.get(&id);
        guest.is_some_and(|guest| guest.stage == Stage::Expecting)
    }

    /// The terms were sent: it is attached.
    pub(crate) fn attach(&mut self, id: u64) {
        if let Some(guest) = self.live_mut(id) {
            guest.stage = Stage::Attached;
            // No limit here: places are the quota's.
            let _ = self.admission.introduce(id);
        }
    }

    /// A connection is over, for whatever reason.
    pub(crate) fn close(&mut self, id: u64) {
        // Its place is free at once, its descriptor when the owner has taken it out.
        self.admission.leave(id);
        if let Some(guest) = self.guests.get_mut(&id) {
            guest.stage = Stage::Closing;
        }
    }

    /// Closes those that have been silent for too long.
    pub(crate) fn expire(&mut self, now: Duration) {
        for late in self.admission.expire(now) {
            self.close(late);
        }
    }

    /// The time at which something is due without an event.
    pub(crate) fn deadline(&self, now: Duration) -> Option<Duration> {
        let pause = Some(self.accepts_from).filter(|&from| from > now);
        self.admission.deadline().into_iter().chain(pause).min()
    }

    /// The connections that are closing, which are forgotten here.
    pub(crate) fn take_closed(&mut self) -> Vec<(u64, C)> {
        let closed = self.guests.extract_if(.., |_, guest| guest.is_closing());
        closed.map(|(id, guest)| (id, guest.connection)).collect()
    }

    /// A connection that is not closing.
    pub(crate) fn live(&self, id: u64) -> Option<&Guest<C>> {
        self.guests.get(&id).filter(|guest| !guest.is_closing())
    }

    /// The same.
    pub(crate) fn live_mut(&mut self, id: u64) -> Option<&mut Guest<C>> {
        let guest = self.guests.get_mut(&id);
        guest.filter(|guest| !guest.is_closing())
    }

    /// All that are not closing, the oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &Guest<C>)> {
        let live = self.guests.iter().filter(|(_, guest)| !guest.is_closing());
        live.map(|(id, guest)| (*id, guest))
    }

    /// The same.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (u64, &mut Guest<C>)> {
        let all = self.guests.iter_mut();
        let live = all.filter(|(_, guest)| !guest.is_closing());
        live.map(|(id, guest)| (*id, guest))
    }

    /// Connections and questions that were refused, crowded out or could not be understood.
    pub(crate) fn refused_total(&self) -> u64 {
        self.refused_total
    }
}

/// Time without accepting where there is no descriptor and none can be had.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

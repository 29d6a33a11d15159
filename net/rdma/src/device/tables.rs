//! Tables of a device's objects, by their numbers.
//!
//! Must stay true: each table has a bound; a number of an object that was freed names nothing,
//! although its place is used again.

use super::link::Link;
use super::{ConnectionId, QUEUES_MAX, QueueId, Queued, Queues};
use crate::RdmaError;
use sidecore_bare::width::ToUsize;
use std::collections::VecDeque;

/// A table with a bound, whose free places are used again, by new numbers.
#[derive(Debug)]
pub(super) struct Table<T> {
    /// Each value with its number.
    places: Vec<Option<(u32, T)>>,
    max: usize,
    /// Numbers that were given so far.
    given: u32,
}

impl<T> Table<T> {
    pub(super) fn new(max: usize) -> Self {
        Self {
            places: Vec::new(),
            max: max.min(1 << PLACE_BITS),
            given: 0,
        }
    }

    /// A number for a value, if there is a free place.
    pub(super) fn vacant(&mut self) -> Option<u32> {
        let index = match self.places.iter().position(Option::is_none) {
            Some(index) => index,
            None if self.places.len() >= self.max => return None,
            None => {
                self.places.push(None);
                self.places.len() - 1
            }
        };
        // The part above the place wraps after 2^19 numbers: none that old is still named. A number
        // is positive in C.
        let number = u32::try_from(index).ok()? | self.given << PLACE_BITS;
        self.given = (self.given + 1) % (1 << (31 - PLACE_BITS));
        Some(number)
    }

    pub(super) fn put(&mut self, number: u32, value: T) {
        if let Some(place) = self.places.get_mut(place(number)) {
            *place = Some((number, value));
        }
    }

    pub(super) fn get(&self, number: u32) -> Option<&T> {
        let (own, value) = self.places.get(place(number))?.as_ref()?;
        (*own == number).then_some(value)
    }

    pub(super) fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        let (own, value) = self.places.get_mut(place(number))?.as_mut()?;
        (*own == number).then_some(value)
    }

    pub(super) fn remove(&mut self, number: u32) -> Option<T> {
        let place = self.places.get_mut(place(number))?;
        let removed = place.take_if(|(own, _)| *own == number);
        removed.map(|(_, value)| value)
    }

    fn iter(&self) -> impl Iterator<Item = &T> {
        self.places.iter().flatten().map(|(_, value)| value)
    }
}

/// The place of a number.
fn place(number: u32) -> usize {
    (number & ((1 << PLACE_BITS) - 1)).to_usize()
}

/// Bits of a number that are its place.
const PLACE_BITS: u32 = QUEUES_MAX.ilog2();

/// Connections.
#[derive(Debug)]
pub(super) struct Links {
    places: Vec<Place>,
    free: Vec<u32>,
    max: usize,
}

#[derive(Debug, Default)]
struct Place {
    generation: u32,
    link: Option<Link>,
}

impl Links {
    /// A table of at most `max` places.
    pub(super) fn new(max: usize) -> Self {
        Self {
            places: Vec::new(),
            free: Vec::new(),
            max,
        }
    }

    /// A free place.
    pub(super) fn reserve(&mut self) -> Option<u32> {
        // The place freed last is the one whose memory is most likely in the cache.
        if let Some(index) = self.free.pop() {
            return Some(index);
        }
        if self.places.len() >= self.max {
            return None;
        }
        let index = u32::try_from(self.places.len()).ok()?;
        self.places.push(Place::default());
        Some(index)
    }

    /// Returns a reserved place that is not needed.
    pub(super) fn release(&mut self, index: u32) {
        self.free.push(index);
    }

    /// Fills a reserved place.
    pub(super) fn put(&mut self, index: u32, link: Link) -> ConnectionId {
        if let Some(place) = self.places.get_mut(index.to_usize()) {
            place.link = Some(link);
        }
        self.id_at(index)
    }

    /// Empties a place. Earlier numbers of it name nothing from now on.
    pub(super) fn remove(&mut self, index: u32) -> Option<Link> {
        let place = self.places.get_mut(index.to_usize())?;
        let link = place.link.take()?;
        // It wraps after 2^32 connections in one place: none that old is still named.
        place.generation = place.generation.wrapping_add(1);
        self.free.push(index);
        Some(link)
    }

    /// The link at a place, of any connection.
    pub(super) fn at(&mut self, index: u32) -> Option<&mut Link> {
        self.places.get_mut(index.to_usize())?.link.as_mut()
    }

    /// The link of a connection, even if it was released.
    pub(super) fn live(&mut self, connection: ConnectionId) -> Option<&mut Link> {
        let place = self.places.get_mut(connection.index.to_usize())?;
        let is_it = place.generation == connection.generation;
        place.link.as_mut().filter(|_| is_it)
    }

    /// The link of a connection that its owner has not released.
    pub(super) fn owned(&mut self, connection: ConnectionId) -> Result<&mut Link, RdmaError> {
        self.live(connection)
            .filter(|link| link.released.is_none())
            .ok_or(RdmaError::Unknown("connection"))
    }

    /// As [`Self::live`], to look at.
    pub(super) fn get(&self, connection: ConnectionId) -> Option<&Link> {
        let place = self.places.get(connection.index.to_usize())?;
        let is_it = place.generation == connection.generation;
        place.link.as_ref().filter(|_| is_it)
    }

    /// As [`Self::at`], to look at.
    pub(super) fn peek(&self, index: u32) -> Option<&Link> {
        self.places.get(index.to_usize())?.link.as_ref()
    }

    /// The connection at a place.
    pub(super) fn id_at(&self, index: u32) -> ConnectionId {
        let place = self.places.get(index.to_usize());
        ConnectionId {
            index,
            generation: place.map_or(0, |place| place.generation),
        }
    }

    /// All places, used or free.
    pub(super) fn indices(&self) -> impl Iterator<Item = u32> + use<> {
        (0..).take(self.places.len())
    }
}

/// Completion queues.
#[derive(Debug)]
pub(super) struct CompletionQueues(Table<CompletionQueue>);

/// A completion queue.
#[derive(Debug)]
pub(super) struct CompletionQueue {
    entries: VecDeque<Queued>,
    depth: usize,
    /// Connections with completions that found no room.
    waiting: VecDeque<u32>,
}

impl CompletionQueues {
    pub(super) fn new(max: usize) -> Self {
        Self(Table::new(max))
    }

    pub(super) fn create(&mut self, depth: usize) -> Option<QueueId> {
        let number = self.0.vacant()?;
        let queue = CompletionQueue {
            entries: VecDeque::new(),
            depth,
            waiting: VecDeque::new(),
        };
        self.0.put(number, queue);
        Some(QueueId(number))
    }

    pub(super) fn remove(&mut self, queue: QueueId) {
        self.0.remove(queue.0);
    }

    pub(super) fn get_mut(&mut self, queue: QueueId) -> Option<&mut CompletionQueue> {
        self.0.get_mut(queue.0)
    }

    /// Checks that a connection's queues exist.
    pub(super) fn check(&self, queues: Queues) -> Result<(), RdmaError> {
        for queue in [queues.send, queues.receive] {
            self.0
                .get(queue.0)
                .ok_or(RdmaError::Unknown("completion queue"))?;
        }
        Ok(())
    }

    /// True if a completion can be polled.
    pub(super) fn has_entries(&self) -> bool {
        let mut queues = self.0.iter();
        queues.any(|queue| !queue.entries.is_empty())
    }
}

impl CompletionQueue {
    pub(super) fn is_full(&self) -> bool {
        self.entries.len() >= self.depth
    }

    pub(super) fn push(&mut self, queued: Queued) {
        self.entries.push_back(queued);
    }

    /// Notes a connection whose completions found no room.
    pub(super) fn wait(&mut self, index: u32) {
        if !self.waiting.contains(&index) {
            self.waiting.push_back(index);
        }
    }

    /// Moves entries to `into`, as many as it has room for; returns their number, and the
    /// connections that waited for room, if there is some now.
    pub(super) fn take(&mut self, into: &mut [Option<Queued>]) -> (usize, VecDeque<u32>) {
        let count = into.len().min(self.entries.len());
        for (target, queued) in into.iter_mut().zip(self.entries.drain(..count)) {
            *target = Some(queued);
        }
        if count == 0 {
            return (0, VecDeque::new());
        }
        (count, std::mem::take(&mut self.waiting))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_queues_number_names_nothing() {
        let mut queues = CompletionQueues::new(QUEUES_MAX);
        let old = queues.create(1).unwrap();
        queues.remove(old);
        let new = queues.create(1).unwrap();
        assert_eq!(place(old.0), place(new.0));
        assert!(queues.get_mut(old).is_none());
        let both = Queues {
            send: new,
            receive: old,
        };
        assert!(queues.check(both).is_err());
        // A second removal of the old one leaves the new one.
        queues.remove(old);
        assert!(queues.get_mut(new).is_some());
    }
}

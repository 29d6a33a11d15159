//! Results of progress: events, completions, freed places.
//!
//! Must stay true: an event is reported once; a completion stays in its pair until its queue has
//! room.

use super::link::Link;
use super::{ACCEPTS_MAX, Device, Event, LINGER, ListenerId, Queued, link_in};
use crate::flow::Moved;
use crate::{End, Kind, State};
use sidecore_rdma_wire::{Pair, PairId};
use std::io;
use std::time::Instant;

impl Device {
    /// Makes progress on a connection, and reports the results.
    pub(super) fn advance(&mut self, index: u32) {
        let Some(link) = link_in(&mut self.links, index) else {
            return;
        };
        let moved = link.progress(&mut self.net, &mut self.buffer, &mut self.adapter);
        self.settle(index, moved);
    }

    /// Records the result of progress.
    pub(super) fn settle(&mut self, index: u32, moved: io::Result<Moved>) {
        let Some(link) = link_in(&mut self.links, index) else {
            return;
        };
        let moved = moved.unwrap_or_else(|_| {
            // The stream's error has the reason; the pair and its owner only learn that it is lost.
            link.flow.pair.lose();
            link.flow.has_ended = true;
            Moved::default()
        });
        let wanted = link.wanted(moved.is_blocked);
        if link.interest != wanted {
            link.interest = wanted;
            let is_over = link.flow.has_ended;
            self.net.set_interest(index, &link.wire, wanted, is_over);
        }
        if moved.is_blocked && !link.is_blocked {
            link.is_blocked = true;
            self.blocked.push_back(index);
        }
        if moved.has_more {
            self.make_busy(index);
        }
        if !self.shared.is_empty() {
            self.await_shared(index);
        }
        self.tell(index);
        self.collect(index);
    }

    /// Reports events of a connection.
    pub(super) fn tell(&mut self, index: u32) {
        let connection = self.id_at(index);
        let Some(link) = self.link_at(index) else {
            return;
        };
        let state = link.flow.pair.state();
        let is_heard = link.released.is_none();
        let listener = link.listener;
        if state == State::Requested && !link.told.requested {
            link.told.requested = true;
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
        if state == State::Open && !link.told.established {
            link.told.established = true;
            // The accepting side has got the peer's data with its request.
            let private_data = match listener {
                Some(_) => Vec::new(),
                None => link.flow.pair.private_data().to_vec(),
            };
            link.listener = None;
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
        if state != State::Ended || !(link.flow.is_drained() || link.flow.has_ended) {
            return;
        }
        if !is_heard {
            if link.flow.is_over() {
                self.end_released(index);
            }
            return;
        }
        if link.told.ended {
            return;
        }
        link.told.ended = true;
        if listener.is_some() && !link.told.requested {
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
        let connection = self.id_at(index);
        let Some(link) = link_in(&mut self.links, index) else {
            return;
        };
        let Some(queues) = link.queues else {
            return;
        };
        while let Some(kind) = link.flow.pair.next_kind() {
            let queue = match kind {
                Kind::Receive => queues.receive,
                _ => queues.send,
            };
            let target = self.queues.get_mut(queue.0 as usize);
            match target.and_then(Option::as_mut) {
                Some(target) if target.entries.len() >= target.depth => {
                    if !target.waiting.contains(&index) {
                        target.waiting.push_back(index);
                    }
                    return;
                }
                target => {
                    let (Some(completion), Some(target)) = (link.flow.pair.poll(), target) else {
                        continue; // the queue was dropped
                    };
                    target.entries.push_back(Queued {
                        connection,
                        completion,
                    });
                }
            }
        }
    }

    /// Frees a closed connection once all its completions were collected.
    pub(super) fn end_released(&mut self, index: u32) {
        self.collect(index);
        self.free_link(index);
    }

    pub(super) fn end_lingering(&mut self) {
        if self.lingering.is_empty() {
            return;
        }
        let now = Instant::now();
        for index in self.lingering.clone() {
            let Some(link) = self.link_at(index) else {
                continue;
            };
            let is_late = link
                .released
                .is_some_and(|released| now.saturating_duration_since(released) >= LINGER);
            if is_late {
                link.flow.pair.lose();
            }
            if is_late || link.flow.is_over() {
                self.end_released(index);
            }
        }
    }

    /// Accepts new connections of a listener.
    pub(super) fn take_connections(&mut self, listener: u32) {
        for _ in 0..ACCEPTS_MAX {
            let Some(Some(listening)) = self.listeners.get_mut(listener as usize) else {
                return;
            };
            let (options, is_full) = (
                listening.options,
                listening.pending.len() >= listening.backlog,
            );
            let silent = self.oldest_silent(listener);
            if is_full && silent.is_none() {
                // The backlog is full of requests: further connections wait in the transport.
                self.net.rest(listener, true);
                return;
            }
            let Ok(index) = self.reserve() else {
                self.net.rest(listener, true);
                return;
            };
            match self.net.accept(listener, index) {
                Some(wire) => {
                    if let Some(silent) = silent.filter(|_| is_full) {
                        self.free_link(silent);
                    }
                    let pair = Pair::listen(PairId(self.adapter.next_pair()), options);
                    self.put(index, Link::new(pair, wire, Some(listener)));
                    if let Some(Some(listening)) = self.listeners.get_mut(listener as usize) {
                        listening.pending.push_back(index);
                    }
                    self.make_busy(index);
                }
                None => {
                    self.free.push(index);
                    return;
                }
            }
        }
        self.net.has_more(listener);
    }

    /// The oldest connection of a listener without a request: it is evicted first.
    pub(super) fn oldest_silent(&self, listener: u32) -> Option<u32> {
        let listening = self.listeners.get(listener as usize)?.as_ref()?;
        let silent = |index: &&u32| {
            let place = self.links.get(**index as usize);
            let link = place.and_then(|place| place.link.as_ref());
            link.is_some_and(|link| !link.told.requested)
        };
        listening.pending.iter().find(silent).copied()
    }

    /// The engine is gone.
    pub(super) fn lose_all(&mut self) {
        for index in 0..self.links.len() as u32 {
            if let Some(link) = self.link_at(index) {
                link.flow.pair.lose();
                link.flow.has_ended = true;
                self.tell(index);
                self.collect(index);
            }
        }
    }
}

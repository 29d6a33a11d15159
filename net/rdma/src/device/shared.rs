//! Receives that several connections share.
//!
//! Must stay true: a connection that waits for a receive of a shared queue makes progress once
//! there is one: [`Device::progress`] serves it, and [`Device::arm`] returns false until then.

use super::{ConnectionId, Device};
use crate::{Adapter, RdmaError, Receive};
use sidecore_rdma_wire::SharedId;
use std::collections::VecDeque;

/// A shared queue and the connections that wait for its receives.
#[derive(Debug)]
pub(super) struct Shared {
    id: SharedId,
    waiting: VecDeque<u32>,
}

impl Shared {
    /// True while a connection waits and there is a receive for it.
    pub(super) fn has_work(&self, adapter: &Adapter) -> bool {
        !self.waiting.is_empty() && adapter.domain.shared_receives(self.id) > 0
    }
}

impl Device {
    /// A queue of `depth` receives for several connections, at most
    /// [`RECEIVES_MAX`](crate::RECEIVES_MAX).
    ///
    /// # Errors
    /// Too many queues.
    pub fn create_shared(&mut self, depth: usize) -> Result<SharedId, RdmaError> {
        let id = self.adapter.domain.share_receives(depth)?;
        self.shared.push(Shared {
            id,
            waiting: VecDeque::new(),
        });
        Ok(id)
    }

    /// Drops a shared queue with its receives, which have no completion; its connections find no
    /// receive any more.
    pub fn drop_shared(&mut self, shared: SharedId) {
        self.adapter.domain.unshare_receives(shared);
        self.shared.retain(|other| other.id != shared);
    }

    /// Makes a connection use a shared queue: before it is accepted or, if opened from this side,
    /// established. `Options::shared` does the same from the start.
    ///
    /// # Errors
    /// There is no such connection; it is open already, or has receives of its own.
    pub fn share_receives(
        &mut self,
        connection: ConnectionId,
        shared: SharedId,
    ) -> Result<(), RdmaError> {
        Ok(self
            .links
            .owned(connection)?
            .flow
            .pair
            .share_receives(shared)?)
    }

    /// Posts a buffer for a message to any connection of a shared queue; the completion is reported
    /// to that connection's queue, with the given number.
    ///
    /// # Errors
    /// The queue refuses it.
    pub fn post_shared(&mut self, shared: SharedId, receive: Receive) -> Result<(), RdmaError> {
        Ok(self.adapter.domain.post_shared(shared, receive)?)
    }

    /// Cancels a receive of a shared queue that no message has begun to fill: the first one with
    /// that number; false if there is none. It has no completion.
    pub fn cancel_shared(&mut self, shared: SharedId, id: u64) -> bool {
        self.adapter.domain.cancel_shared(shared, id)
    }

    /// Number of receives in a shared queue.
    #[must_use]
    pub fn shared_receives(&self, shared: SharedId) -> usize {
        self.adapter.domain.shared_receives(shared)
    }

    /// Records a connection whose message waits for a shared receive.
    pub(super) fn await_shared(&mut self, index: u32) {
        let pair = self.links.peek(index).map(|link| &link.flow.pair);
        let Some(id) = pair
            .filter(|pair| pair.is_stalled())
            .and_then(|pair| pair.shared())
        else {
            return;
        };
        let shared = self.shared.iter_mut().find(|shared| shared.id == id);
        if let Some(shared) = shared
            && !shared.waiting.contains(&index)
        {
            shared.waiting.push_back(index);
        }
    }

    /// Continues waiting connections, as many as there are receives.
    pub(super) fn serve_shared(&mut self) {
        for at in 0..self.shared.len() {
            let Some(shared) = self.shared.get(at) else {
                return;
            };
            // No more than there are: the others would only find the queue empty again.
            let receives = self.adapter.domain.shared_receives(shared.id);
            for _ in 0..receives.min(shared.waiting.len()) {
                let shared = self.shared.get_mut(at);
                if let Some(index) = shared.and_then(|shared| shared.waiting.pop_front()) {
                    self.advance(index);
                }
            }
        }
    }
}

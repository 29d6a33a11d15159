//! Names of a device's objects, and its events.

use crate::{Completion, End};

/// A connection of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId {
    pub(super) index: u32,
    /// Number of earlier connections in its place.
    pub(super) generation: u32,
}

/// A listener of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ListenerId(pub(super) u32);

/// A completion queue of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QueueId(pub(super) u32);

impl ConnectionId {
    /// Converts it to a number.
    #[must_use]
    pub fn number(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    /// The connection with a number.
    #[must_use]
    pub fn from_number(number: u64) -> Self {
        Self {
            index: number as u32,
            generation: (number >> 32) as u32,
        }
    }
}

impl ListenerId {
    /// Converts it to a number.
    #[must_use]
    pub fn number(self) -> u32 {
        self.0
    }

    /// The listener with a number.
    #[must_use]
    pub fn from_number(number: u32) -> Self {
        Self(number)
    }
}

impl QueueId {
    /// Converts it to a number.
    #[must_use]
    pub fn number(self) -> u32 {
        self.0
    }

    /// The queue with a number.
    #[must_use]
    pub fn from_number(number: u32) -> Self {
        Self(number)
    }
}

/// Completion queues of a connection; both may be the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Queues {
    /// For work.
    pub send: QueueId,
    /// For receives.
    pub receive: QueueId,
}

/// A completion and its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Queued {
    /// The connection.
    pub connection: ConnectionId,
    /// The completion.
    pub completion: Completion,
}

/// Events of connections.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A peer requests a connection: [`Device::accept`](crate::Device::accept) or
    /// [`Device::reject`](crate::Device::reject).
    Requested {
        /// Its listener.
        listener: ListenerId,
        /// The requested connection.
        connection: ConnectionId,
        /// The peer's private data.
        private_data: Vec<u8>,
    },
    /// Messages can be exchanged.
    Established {
        /// The connection.
        connection: ConnectionId,
        /// Private data of the peer that accepted; empty on the accepting side.
        private_data: Vec<u8>,
    },
    /// It has ended, or was never established; its work is flushed.
    /// [`Device::close`](crate::Device::close) frees its place.
    Ended {
        /// The connection.
        connection: ConnectionId,
        /// The reason.
        end: End,
        /// Private data of the peer that rejected.
        private_data: Vec<u8>,
    },
}

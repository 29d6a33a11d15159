//! Messages between ranks.
//!
//! Why here: the farm and its teams do not depend on the transport (MPI, or channels between
//! threads), so a test without MPI covers everything but MPI itself.
//! Must stay true: messages from one rank to another arrive in order, each whole, or the receiver
//! learns that the sender is gone.

use crate::analysis::coordinator::Member;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sidecore_bare::width::ToUsize;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

/// A delivery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mail {
    /// A message and its sender.
    From(Member, Vec<u8>),
    /// A rank is gone: nothing more comes from it.
    Gone(Member),
}

/// One rank's message service, used by one thread.
pub trait Post {
    /// Sends a message. Returns once its bytes may be reused, which may be only when the receiver
    /// takes it. Does nothing if the receiving rank is gone.
    fn send(&mut self, to: Member, message: &[u8]);

    /// The next delivery, if there is one. Does not wait for one.
    fn receive(&mut self) -> Option<Mail>;
}

/// A thread as a rank: the message service of tests.
#[derive(Debug)]
pub struct Desk {
    rank: Member,
    others: Vec<Sender<Mail>>,
    arriving: Receiver<Mail>,
}

impl Desk {
    /// One desk for each of `count` ranks.
    #[must_use]
    pub fn all(count: u32) -> Vec<Self> {
        let (senders, receivers): (Vec<_>, Vec<_>) = (0..count).map(|_| channel()).unzip();
        let desk = |(rank, arriving)| Self {
            rank,
            others: senders.clone(),
            arriving,
        };
        (0..count).zip(receivers).map(desk).collect()
    }
}

impl Post for Desk {
    fn send(&mut self, to: Member, message: &[u8]) {
        // A rank that is gone has announced it.
        let _ = self.others[to.to_usize()].send(Mail::From(self.rank, message.to_vec()));
    }

    fn receive(&mut self) -> Option<Mail> {
        self.arriving.try_recv().ok()
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        for other in &self.others {
            let _ = other.send(Mail::Gone(self.rank));
        }
    }
}

/// A message's bytes: JSON, since the states in orders and events are.
pub(super) fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    // Only maps with odd keys cannot be written as JSON.
    serde_json::to_vec(value).unwrap_or_default()
}

/// Content of a message; `None` if it is not valid.
pub(super) fn decode<T: DeserializeOwned>(message: &[u8]) -> Option<T> {
    serde_json::from_slice(message).ok()
}

/// Pauses between polls that find nothing: short ones after a message, then longer ones.
#[derive(Debug)]
pub(crate) struct Pause(Duration);

impl Default for Pause {
    fn default() -> Self {
        Self(PAUSE_MIN)
    }
}

impl Pause {
    /// A message was found.
    pub(crate) fn reset(&mut self) {
        self.0 = PAUSE_MIN;
    }

    /// The next pause.
    pub(crate) fn take(&mut self) -> Duration {
        let now = self.0;
        self.0 = (2 * now).min(PAUSE_MAX);
        now
    }
}

const PAUSE_MIN: Duration = Duration::from_micros(50);
/// 500 polls a second, at some microseconds each, are less than a hundredth of a core; a piece of
/// work takes a hundred times as long at least.
const PAUSE_MAX: Duration = Duration::from_millis(2);

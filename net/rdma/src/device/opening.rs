//! Connections that this side is opening: their time limit, and the delay of their first messages.

use super::link::Reported;
use super::tables::Links;
use super::{ConnectionId, Device};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Default time limit for opening a connection.
const LIMIT: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(super) struct Opening {
    /// In the order of their beginning.
    begun: VecDeque<(Instant, ConnectionId)>,
    limit: Duration,
    /// Delay of the first messages of connections opened from now on.
    pub(super) settle: Duration,
    settling: Vec<ConnectionId>,
}

impl Opening {
    pub(super) fn new() -> Self {
        Self {
            begun: VecDeque::new(),
            limit: LIMIT,
            settle: Duration::ZERO,
            settling: Vec::new(),
        }
    }

    pub(super) fn begin(&mut self, connection: ConnectionId) {
        self.begun.push_back((Instant::now(), connection));
        if self.settle > Duration::ZERO {
            self.settling.push(connection);
        }
    }

    /// The next connection whose time is over, open or not. Each is returned once.
    pub(super) fn next_due(&mut self) -> Option<ConnectionId> {
        // All have the same limit, so the first one is due first.
        let due = self.begun.front()?.0.elapsed() >= self.limit;
        due.then(|| self.begun.pop_front())
            .flatten()
            .map(|(_, connection)| connection)
    }

    /// Time until the next connection's time is over.
    pub(super) fn due_in(&self) -> Option<Duration> {
        let (begun, _) = self.begun.front()?;
        Some(self.limit.saturating_sub(begun.elapsed()))
    }

    /// Takes those whose first messages were delayed long enough, or that have ended.
    pub(super) fn take_settled(&mut self, links: &Links) -> Vec<ConnectionId> {
        let (settling, settled) =
            std::mem::take(&mut self.settling)
                .into_iter()
                .partition(|&connection| {
                    let link = links.get(connection);
                    link.is_some_and(|link| link.flow.is_held() && !link.has_reported_end())
                });
        self.settling = settling;
        settled
    }

    /// True while the first message of a connection is being delayed: its end is no event of a
    /// stream.
    pub(super) fn is_settling(&self, links: &Links) -> bool {
        let mut settling = self.settling.iter();
        settling.any(|&connection| {
            let link = links.get(connection);
            link.is_some_and(|link| link.flow.is_settling())
        })
    }
}

impl Device {
    /// Aborts attempts to connect after `limit`, by default a minute; [`Event::Ended`] reports it.
    /// Checked in [`Self::progress`] and [`Self::wait`].
    ///
    /// [`Event::Ended`]: super::Event::Ended
    pub fn limit_opening(&mut self, limit: Duration) {
        self.opening.limit = limit;
    }

    /// Delays the first messages of connections opened from now on by `time` after the peer's
    /// reply: Linux's siw may miss a message directly after it until the next one arrives. No delay
    /// by default. Meanwhile [`Self::arm`] returns false.
    pub fn hold_first(&mut self, time: Duration) {
        self.opening.settle = time;
    }

    /// Ends attempts to connect that are late, and continues connections whose first messages were
    /// delayed long enough.
    pub(super) fn advance_opening(&mut self) {
        while let Some(connection) = self.opening.next_due() {
            let link = self.links.live(connection);
            if link.is_some_and(|link| link.reported < Reported::Established) {
                let late = std::io::ErrorKind::TimedOut.into();
                self.settle(connection.index, Err(late));
            }
        }
        for connection in self.opening.take_settled(&self.links) {
            // Its place may have another connection by now.
            if self.links.live(connection).is_some() {
                self.advance(connection.index);
            }
        }
    }
}

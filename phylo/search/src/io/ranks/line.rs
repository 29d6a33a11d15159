//! The line between a rank's workers and the coordinator, held by the rank's message thread.

use super::RankError;
use super::post::{Mail, Pause, Post, decode, encode};
use crate::analysis::coordinator::{Member, Message};
use crate::analysis::workers::{Event, Order};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

/// Delivers orders to this rank's workers, and their events to the coordinator.
pub(super) trait Line {
    /// Sends pending events, takes arrived messages, and returns the next order for this rank's own
    /// workers. If there is nothing, it waits for at most `wait`.
    fn look(&mut self, wait: Duration) -> Result<Option<Order>, RankError>;

    /// Sends an event to the coordinator.
    fn tell(&mut self, event: Event);

    /// Sends a message to a rank that this one leads.
    fn send(&mut self, to: Member, message: &[u8]);
}

/// The next order; polls with growing pauses.
pub(super) fn next_order(line: &mut impl Line) -> Result<Order, RankError> {
    let mut pause = Pause::default();
    loop {
        if let Some(order) = line.look(pause.take())? {
            return Ok(order);
        }
    }
}

/// Rank 0's line: the coordinator is a thread of this process, and reaches the other ranks through
/// it.
pub(super) struct Office<'o> {
    pub(super) post: &'o mut dyn Post,
    pub(super) mailbox: Sender<Message>,
    /// Orders of the coordinator; closed when it has ended.
    pub(super) outbox: Receiver<(Member, Order)>,
}

impl Line for Office<'_> {
    fn look(&mut self, mut wait: Duration) -> Result<Option<Order>, RankError> {
        while let Some(mail) = self.post.receive() {
            wait = Duration::ZERO;
            let message = match mail {
                Mail::From(member, bytes) => match decode(&bytes) {
                    Some(event) => Message::From(member, event),
                    // Not a rank of this program.
                    None => Message::Lost(member),
                },
                Mail::Gone(member) => Message::Lost(member),
            };
            // The coordinator receives until it has ended, which the closed outbox shows.
            let _ = self.mailbox.send(message);
        }
        loop {
            match self.outbox.recv_timeout(wait) {
                Ok((0, order)) => return Ok(Some(order)),
                Ok((member, order)) => self.post.send(member, &encode(&order)),
                Err(RecvTimeoutError::Timeout) => return Ok(None),
                Err(RecvTimeoutError::Disconnected) => return Ok(Some(Order::Close)),
            }
            wait = Duration::ZERO;
        }
    }

    fn tell(&mut self, event: Event) {
        let _ = self.mailbox.send(Message::From(0, event));
    }

    fn send(&mut self, to: Member, message: &[u8]) {
        self.post.send(to, message);
    }
}

/// Any other rank's line.
pub(super) struct Branch<'b> {
    pub(super) post: &'b mut dyn Post,
    /// Events of this rank's workers.
    pub(super) events: Receiver<Event>,
}

impl Branch<'_> {
    fn forward(&mut self, event: &Event) {
        self.post.send(0, &encode(event));
    }

    fn order(&mut self) -> Result<Option<Order>, RankError> {
        loop {
            match self.post.receive() {
                Some(Mail::From(0, bytes)) => {
                    return decode(&bytes).map(Some).ok_or(RankError::Gone);
                }
                Some(Mail::Gone(0)) => return Err(RankError::Gone),
                // Only rank 0 gives orders.
                Some(_) => (),
                None => return Ok(None),
            }
        }
    }
}

impl Line for Branch<'_> {
    fn look(&mut self, wait: Duration) -> Result<Option<Order>, RankError> {
        while let Ok(event) = self.events.try_recv() {
            self.forward(&event);
        }
        if let Some(order) = self.order()? {
            return Ok(Some(order));
        }
        match self.events.recv_timeout(wait) {
            Ok(event) => self.forward(&event),
            Err(RecvTimeoutError::Timeout) => (),
            // All senders of events in this process are gone; only rank 0 may still send.
            Err(RecvTimeoutError::Disconnected) => std::thread::sleep(wait),
        }
        Ok(None)
    }

    fn tell(&mut self, event: Event) {
        self.forward(&event);
    }

    fn send(&mut self, to: Member, message: &[u8]) {
        self.post.send(to, message);
    }
}

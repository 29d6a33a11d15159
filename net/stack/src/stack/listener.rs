//! A listener: RFC 9293's LISTEN, with bounds on embryonic sessions and on the accept queue.

use super::options::SessionOption;
use crate::wire::Ip;
use std::collections::VecDeque;

/// Embryonic sessions that a listener may have before it answers with SYN cookies, whatever its
/// backlog.
pub(crate) const EMBRYOS_MIN: usize = 64;

/// The listener.
#[derive(Debug)]
pub(crate) struct Listener {
    pub(crate) generation: u32,
    pub(crate) open: bool,
    /// Unspecified for all addresses of a family; `::` for both families.
    pub(crate) address: Ip,
    pub(crate) port: u16,
    pub(crate) backlog: usize,
    /// Accept queue: established sessions.
    pub(crate) waiting: VecDeque<u32>,
    /// Number of sessions in SYN-RECEIVED.
    pub(crate) embryos: usize,
    /// Listed in the queue of pending events.
    pub(crate) listed: bool,
    /// Options of its sessions, applied before the SYN is answered; each option once.
    pub(crate) options: Vec<SessionOption>,
}

impl Listener {
    /// True if the accept queue has room.
    pub(crate) fn has_room(&self) -> bool {
        self.waiting.len() < self.backlog
    }

    /// True if the SYN queue has room for another embryonic session.
    pub(crate) fn takes_embryo(&self) -> bool {
        self.embryos < self.backlog.max(EMBRYOS_MIN)
    }
}

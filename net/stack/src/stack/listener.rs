//! A listener: RFC 9293's LISTEN, with bounds on embryonic sessions and on the accept queue.
//!
//! Several listeners of one owner may share an address and port (`SO_REUSEPORT`): the hash of a
//! session's ends chooses among them.

use super::ListenerId;
use super::options::SessionOption;
use super::sharing::{Ports, Sharing};
use crate::error::NetError;
use crate::wire::Ip;
use sidecore_bare::width::ToUsize;
use std::collections::VecDeque;

/// Embryonic sessions that a listener may have before it answers with SYN cookies, whatever its
/// backlog.
pub(crate) const EMBRYOS_MIN: usize = 64;

/// The listener.
#[derive(Debug, Default)]
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

/// All listeners.
#[derive(Debug, Default)]
pub(crate) struct Listeners {
    all: Vec<Listener>,
    pub(crate) ports: Ports,
    free: Vec<u32>,
}

impl Listeners {
    /// A listener that a session or an event refers to.
    pub(crate) fn at(&self, number: u32) -> &Listener {
        &self.all[number.to_usize()]
    }

    pub(crate) fn at_mut(&mut self, number: u32) -> &mut Listener {
        &mut self.all[number.to_usize()]
    }

    /// The listener with a valid identifier.
    pub(crate) fn get(&mut self, id: ListenerId) -> Result<&mut Listener, NetError> {
        self.all
            .get_mut(id.number.to_usize())
            .filter(|listener| listener.open && listener.generation == id.generation)
            .ok_or(NetError::Gone)
    }

    /// The listener at an address and port that gets sessions with this hash.
    #[inline]
    pub(crate) fn find(&self, local: &Ip, port: u16, hash: u32) -> Option<u32> {
        self.ports.find(local, port, hash)
    }

    /// A listener at an address and port; none if they are in use.
    pub(crate) fn add(
        &mut self,
        address: Ip,
        port: u16,
        backlog: usize,
        sharing: Sharing,
    ) -> Option<ListenerId> {
        if !self.ports.takes(address, port, sharing) {
            return None;
        }
        let number = self.free.pop().unwrap_or_else(|| {
            self.all.push(Listener::default());
            // Its own number of listeners never comes near 2^32.
            self.all.len() as u32 - 1
        });
        let listener = self.at_mut(number);
        // Identifiers of the earlier listener with this number become invalid.
        listener.generation = listener.generation.wrapping_add(1);
        listener.open = true;
        listener.options.clear();
        listener.address = address;
        listener.port = port;
        listener.backlog = backlog.max(1);
        let generation = listener.generation;
        self.ports.add(address, port, number, sharing);
        Some(ListenerId { number, generation })
    }

    /// The listener with this number, also if it is closed.
    pub(crate) fn known(&self, number: u32) -> Option<&Listener> {
        self.all.get(number.to_usize())
    }

    /// Frees the number of a closed listener to which no embryo refers.
    pub(crate) fn free_if_unused(&mut self, number: u32) {
        let listener = self.at(number);
        if !listener.open && listener.embryos == 0 {
            self.free.push(number);
        }
    }
}

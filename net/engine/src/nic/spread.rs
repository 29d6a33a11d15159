//! Several NICs as one: a flow's hash selects the link to send by, and frames are received from all
//! links.
//!
//! Why here: the peer of several engines with one address and a link each ([`super::pair`]), in
//! tests and benches: it spreads flows like receive side scaling. Must stay true: a flow's frames
//! leave in order; frames without a flow (ARP, ICMP, fragments) use the first link. One thread.

use super::{Capabilities, Nic, NicError, Outgoing, Received};
use sidecore_net_stack::flow;
use std::os::fd::BorrowedFd;

/// Links, one to each engine, in the order of the engines.
#[derive(Debug)]
pub struct Spread<N> {
    links: Vec<N>,
    /// Each round begins with another link, so that none starves the others.
    next: usize,
    /// Buffer for a frame in one piece, to find its flow.
    whole: Vec<u8>,
}

impl<N: Nic> Spread<N> {
    /// A NIC over `links`, which have one hardware address and equal capabilities.
    ///
    /// # Errors
    /// [`NicError::Options`] if there are none, or their capabilities differ.
    pub fn new(links: Vec<N>) -> Result<Self, NicError> {
        let mut all = links.iter().map(Nic::capabilities);
        let first = all.next();
        if first.is_none_or(|first| all.any(|other| other != first)) {
            let reason = "links to several engines: at least one, all with the same capabilities";
            return Err(NicError::Options(reason.to_owned()));
        }
        Ok(Self {
            links,
            next: 0,
            whole: Vec::new(),
        })
    }

    fn link_of(&mut self, frame: &Outgoing<'_>) -> usize {
        // The first piece may hold the headers only; parsing needs the whole packet.
        self.whole.clear();
        for piece in [frame.header, frame.payload[0], frame.payload[1]] {
            self.whole.extend_from_slice(piece);
        }
        let hash = flow::hash_of_frame(&self.whole).unwrap_or_default();
        flow::engine_of(hash, self.links.len())
    }
}

impl<N: Nic> Nic for Spread<N> {
    fn capabilities(&self) -> Capabilities {
        self.links[0].capabilities()
    }

    fn receive(
        &mut self,
        budget: usize,
        sink: &mut dyn FnMut(Received<'_>),
    ) -> Result<usize, NicError> {
        let mut count = 0;
        for step in 0..self.links.len() {
            let link = (self.next + step) % self.links.len();
            // The first links get the budget; `next` makes each the first in turn.
            count += self.links[link].receive(budget - count, sink)?;
        }
        self.next = (self.next + 1) % self.links.len();
        Ok(count)
    }

    fn transmit(&mut self, frame: &Outgoing<'_>) -> Result<bool, NicError> {
        let link = self.link_of(frame);
        self.links[link].transmit(frame)
    }

    fn flush(&mut self) -> Result<(), NicError> {
        self.links.iter_mut().try_for_each(Nic::flush)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        // One descriptor cannot report for several links: the caller has to poll.
        None
    }
}

//! Several NICs as one: a flow's hash selects the link to send by, and frames are received from all
//! links.
//!
//! Why here: the peer of several engines with one address and a link each ([`super::pair`]), in
//! tests and benches: it spreads flows like receive side scaling. Must stay true: a flow's frames
//! leave in order; frames without a flow (ARP, ICMP, fragments) use the first link. One thread.

use super::neighbor::kind_and_body;
use super::{Capabilities, Nic, NicError, Outgoing, Received};
use sidecore_net_stack::flow;
use sidecore_net_stack::wire::{ethernet, ip};
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

/// A hash of a frame's flow: the exclusive or of its addresses and, where it has them, its ports.
/// `header` has the frame's headers. Fragments of a datagram have one hash.
pub(super) fn flow_hash(header: &[u8]) -> u32 {
    let word = |bytes: &[u8]| {
        bytes
            .iter()
            .fold(0_u32, |word, byte| word << 8 | u32::from(*byte))
    };
    let (kind, body) = kind_and_body(header);
    // The bytes of both addresses, and where ports would begin.
    let (addresses, ports_at) = match (kind, body.first()) {
        (ethernet::IPV4, Some(first)) if body.len() >= ip::V4_BYTES => {
            let is_fragment = word(&body[6..8]) & 0x3fff != 0;
            let has_ports = matches!(body[9], ip::TCP | ip::UDP) && !is_fragment;
            let at = usize::from(first & 0x0f) * 4;
            (&body[12..20], has_ports.then_some(at))
        }
        (ethernet::IPV6, _) if body.len() >= ip::V6_BYTES => {
            let has_ports = matches!(body[6], ip::TCP | ip::UDP);
            (&body[8..40], has_ports.then_some(ip::V6_BYTES))
        }
        _ => (header.get(..12).unwrap_or_default(), None),
    };
    let ports = ports_at.and_then(|at| body.get(at..at + 4)).map_or(0, word);
    let hash = addresses
        .chunks(4)
        .fold(ports, |hash, bytes| hash ^ word(bytes));
    let hash = hash ^ hash >> 16;
    hash ^ hash >> 8
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An IPv4 frame of TCP between two hosts.
    fn frame(hosts: [u8; 2], ports: [u16; 2]) -> Vec<u8> {
        let mut frame = vec![0; 54];
        frame[12..14].copy_from_slice(&[8, 0]);
        frame[14] = 0x45;
        frame[23] = ip::TCP;
        frame[29] = hosts[0];
        frame[33] = hosts[1];
        frame[34..36].copy_from_slice(&ports[0].to_be_bytes());
        frame[36..38].copy_from_slice(&ports[1].to_be_bytes());
        frame
    }

    #[test]
    fn flows_spread_and_fragments_stay_together() {
        let hash = flow_hash(&frame([1, 2], [80, 4000]));
        assert_ne!(hash, flow_hash(&frame([1, 2], [80, 4001])));
        let mut counts = [0; 4];
        for port in 32_768..33_768 {
            counts[flow_hash(&frame([1, 2], [port, 80])) as usize % 4] += 1;
        }
        assert!(counts.iter().all(|count| *count == 250), "{counts:?}");
        let fragment = |offset: u8, port| {
            let mut frame = frame([1, 2], [port, 80]);
            frame[20] = 0x20;
            frame[21] = offset;
            flow_hash(&frame)
        };
        assert_eq!(fragment(0, 7), fragment(9, 0xffff));
        for len in 0..54 {
            flow_hash(&frame([1, 2], [3, 4])[..len]);
        }
    }
}

//! One of several stacks with one address: what it hands to the others, and takes from them.
//!
//! Whoever spreads flows over engines (a TAP's queues, receive side scaling, a hash) does so by
//! frames, and knows nothing of sessions, listeners and fragments. What comes to the wrong stack,
//! or concerns all of them, is put into an outbox here, from where whoever runs the loop carries
//! it:
//!
//! - *Notices* concern all: ARP, neighbour discovery, router advertisements, ICMP errors. Every
//!   sibling takes what they say; only the stack that they came to answers.
//! - *Copies* are for all, and each does with one what it would do alone: datagrams to groups,
//!   questions of which groups somebody is in.
//! - *Fragments* are the first stack's: only the first piece of a packet has ports, so the pieces
//!   of one may come to different stacks.
//! - *Strays* belong to no session, listener or socket here: the next sibling is asked, round the
//!   circle, and the last one refuses it. So a listener on one engine serves what comes to any,
//!   and a session is found by whichever way its segments come.
//!
//! Why here: a stack alone knows what it has no use for. Must stay true: a stack without siblings
//! does nothing of this, and no frame of a session that is here passes by; a frame is refused or
//! answered by one stack; a notice or copy is not handed on; what does not fit into the outbox is
//! lost, as on a wire, and counted.

use super::{Stack, link};
use crate::flow;
use crate::frame::{Received, ReceivedChecksum};
use crate::secrets::Ends;
use crate::wire::ethernet::{self, Ethernet};
use crate::wire::ip::{self, Codepoint, Packet};
use crate::wire::{Mac, mld, ndisc};
use zerocopy::IntoBytes;

/// Why a stack hands a frame to a sibling.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Errand {
    /// To be known by all others and answered by none of them.
    Notice,
    /// For all others, as if it had come to each.
    Copy,
    /// For the first stack, which puts fragments together.
    Fragment,
    /// For the next stack in the circle: this many have no use for it.
    Stray {
        /// The stacks that were asked, the sender included.
        asked: u16,
    },
}

/// A frame on its way from one stack to a sibling.
#[derive(Debug)]
pub struct Handed {
    /// From the Ethernet header on.
    pub bytes: Vec<u8>,
    /// Of the transport header.
    pub checksum: ReceivedChecksum,
    /// Why, and so for whom.
    pub errand: Errand,
    /// True if a stack of ours has sent it.
    pub from_self: bool,
}

impl Default for Handed {
    fn default() -> Self {
        Self {
            bytes: Vec::new(),
            checksum: ReceivedChecksum::Unknown,
            errand: Errand::Notice,
            from_self: false,
        }
    }
}

/// Place among the siblings, and the frames for them.
#[derive(Debug)]
pub(crate) struct Siblings {
    index: u16,
    count: u16,
    /// Errand of the frame that is being taken in, where a sibling handed it over.
    taking: Option<Errand>,
    /// The first `used` wait; the others' memory is used again.
    outbox: Vec<Handed>,
    used: usize,
    bytes: usize,
    lost: u64,
}

impl Siblings {
    /// Puts the frame of these pieces into the outbox; it is lost where that has no room.
    fn put(
        &mut self,
        errand: Errand,
        checksum: ReceivedChecksum,
        from_self: bool,
        pieces: &[&[u8]],
    ) {
        let bytes: usize = pieces.iter().map(|piece| piece.len()).sum();
        if self.used == OUTBOX_FRAMES || self.bytes + bytes > OUTBOX_BYTES {
            self.lost += 1;
            return;
        }
        if self.used == self.outbox.len() {
            self.outbox.push(Handed::default());
        }
        let place = &mut self.outbox[self.used];
        self.used += 1;
        self.bytes += bytes;
        place.bytes.clear();
        for piece in pieces {
            place.bytes.extend_from_slice(piece);
        }
        place.errand = errand;
        place.checksum = checksum;
        place.from_self = from_self;
    }

    /// True if frames may be handed to all: what a sibling handed over to all stays here.
    fn shares(&self) -> bool {
        !matches!(self.taking, Some(Errand::Notice | Errand::Copy))
    }

    /// Errand of a stray; none where all were asked.
    fn stray(&self) -> Option<Errand> {
        let asked = match self.taking {
            None | Some(Errand::Fragment) => 1,
            Some(Errand::Stray { asked }) => asked + 1,
            // The stack that it came to answers for it.
            Some(Errand::Notice | Errand::Copy) => return None,
        };
        (asked < self.count).then_some(Errand::Stray { asked })
    }
}

impl Stack {
    /// Makes it number `index` of `count` stacks with one address and one configuration, its seed
    /// included (SYN cookies and sequence numbers are then good with each). To be called before the
    /// first frame. Only the first announces addresses and asks for routers.
    ///
    /// # Panics
    /// If `index` is not below `count`.
    pub fn join_siblings(&mut self, index: u16, count: u16) {
        assert!(index < count, "number {index} of {count} stacks");
        if count == 1 {
            return;
        }
        if index > 0 {
            self.common.control.forget_after(0);
            self.autoconfiguration = link::Autoconfiguration::default();
        }
        self.siblings = Some(Box::new(Siblings {
            index,
            count,
            taking: None,
            outbox: Vec::new(),
            used: 0,
            bytes: 0,
            lost: 0,
        }));
    }

    /// True if [`Self::take_handed`] has something to take, or to tell.
    #[inline]
    #[must_use]
    pub fn has_handed(&self) -> bool {
        let siblings = self.siblings.as_ref();
        siblings.is_some_and(|siblings| siblings.used > 0 || siblings.lost > 0)
    }

    /// Hands `take` all frames for siblings, in order; it carries each to those that its errand
    /// names. Returns how many were lost since the last call, because there were too many.
    pub fn take_handed(&mut self, take: &mut dyn FnMut(&Handed)) -> u64 {
        let Some(siblings) = &mut self.siblings else {
            return 0;
        };
        for handed in &siblings.outbox[..siblings.used] {
            take(handed);
        }
        siblings.used = 0;
        siblings.bytes = 0;
        std::mem::take(&mut siblings.lost)
    }

    /// Takes a frame that a sibling handed over.
    pub fn receive_handed(&mut self, now_ns: u64, handed: &mut Handed) {
        // What was put off before came by another way.
        self.process_staged_segments();
        let Some(siblings) = &mut self.siblings else {
            return;
        };
        siblings.taking = Some(handed.errand);
        let kept = self.common.control.len();
        let from_self = std::mem::replace(&mut self.from_self, handed.from_self);
        self.receive(
            now_ns,
            Received {
                bytes: &mut handed.bytes,
                checksum: handed.checksum,
                segment_bytes: None,
            },
        );
        self.process_staged_segments();
        self.from_self = from_self;
        if handed.errand == Errand::Notice {
            // The stack that it came to answers.
            self.common.control.forget_after(kept);
        }
        if let Some(siblings) = &mut self.siblings {
            siblings.taking = None;
        }
    }

    /// True if a session of ours may have these ends: of siblings, each chooses ports whose flows
    /// are its own by the hash, so that no two choose the same.
    #[inline]
    pub(crate) fn may_open(&self, ends: &Ends) -> bool {
        self.siblings.as_ref().is_none_or(|siblings| {
            let hash = flow::of_ends(ends);
            flow::engine_of(hash, usize::from(siblings.count)) == usize::from(siblings.index)
        })
    }

    /// True if a socket of ours may be given this port: of siblings, each has its own.
    pub(crate) fn may_give(&self, port: u16) -> bool {
        let siblings = self.siblings.as_ref();
        siblings.is_none_or(|siblings| port % siblings.count == siblings.index)
    }

    /// Lets siblings know what an ARP packet says.
    #[cold]
    pub(crate) fn share_arp(&mut self, frame: &[u8]) {
        if self.siblings.is_some() {
            self.share(Errand::Notice, ReceivedChecksum::Unknown, &[frame]);
        }
    }

    /// Lets siblings know what an ICMP or IGMP message says, where it concerns them.
    #[cold]
    pub(crate) fn share_message(
        &mut self,
        packet: &Packet,
        bytes: &[u8],
        header: &Ethernet,
        checksum: ReceivedChecksum,
    ) {
        if self.siblings.is_none() {
            return;
        }
        let kind = bytes.get(packet.start).copied().unwrap_or_default();
        let errand = match (packet.protocol, kind) {
            (ip::ICMP, 3 | 11 | 12)
            | (ip::ICMPV6, 1..=4 | ndisc::ROUTER_SOLICITATION..=ndisc::REDIRECT) => Errand::Notice,
            (ip::IGMP, _) | (ip::ICMPV6, mld::QUERY) => Errand::Copy,
            _ => return,
        };
        self.share(errand, checksum, &[header.as_bytes(), &bytes[..packet.end]]);
    }

    /// Gives siblings a datagram to a group or to all: they may have sockets for it.
    #[cold]
    pub(crate) fn share_datagram(
        &mut self,
        packet: &Packet,
        bytes: &[u8],
        header: &Ethernet,
        checksum: ReceivedChecksum,
    ) {
        if self.siblings.is_some() {
            let pieces = [header.as_bytes(), &bytes[..packet.end]];
            self.share(Errand::Copy, checksum, &pieces);
        }
    }

    #[cold]
    fn share(&mut self, errand: Errand, checksum: ReceivedChecksum, pieces: &[&[u8]]) {
        let from_self = self.from_self;
        if let Some(siblings) = self.siblings.as_deref_mut().filter(|it| it.shares()) {
            siblings.put(errand, checksum, from_self, pieces);
        }
    }

    /// Leaves a fragment to the first stack; false where that is this one.
    pub(crate) fn leave_fragment(&mut self, header: &Ethernet, bytes: &[u8]) -> bool {
        let from_self = self.from_self;
        let Some(siblings) = self.siblings.as_deref_mut().filter(|it| it.index > 0) else {
            return false;
        };
        let (checksum, pieces) = (ReceivedChecksum::Unknown, [header.as_bytes(), bytes]);
        siblings.put(Errand::Fragment, checksum, from_self, &pieces);
        true
    }

    /// Asks the next sibling whether a segment is for it; false where all have been asked.
    #[cold]
    pub(crate) fn pass_on_segment(
        &mut self,
        ends: &Ends,
        mac: Mac,
        ecn: Codepoint,
        segment: &[u8],
    ) -> bool {
        let packet = Packet {
            source: ends.remote,
            destination: ends.local,
            protocol: ip::TCP,
            hops: ip::HOPS,
            ecn,
            start: 0,
            end: segment.len(),
        };
        self.pass_on(&packet, mac, segment)
    }

    /// As [`Self::pass_on_segment`], of the payload of any packet; what is in it was checked.
    #[cold]
    pub(crate) fn pass_on(&mut self, packet: &Packet, mac: Mac, payload: &[u8]) -> bool {
        let interface = &self.common.interface;
        let (own, from_self) = (interface.mac, interface.is_ours(&packet.source));
        let Some(siblings) = self.siblings.as_deref_mut() else {
            return false;
        };
        let Some(errand) = siblings.stray() else {
            return false;
        };
        // Written anew: of the headers only what is known of them came here.
        let link = Ethernet::new(own, mac, ethernet::kind_of(&packet.source));
        let mut head = [0; ip::V6_BYTES];
        let ip_bytes = ip::write(
            &mut head,
            &packet.source,
            &packet.destination,
            packet.protocol,
            packet.hops,
            payload.len(),
        );
        let head = &mut head[..ip_bytes];
        ip::set_codepoint(head, packet.ecn);
        let pieces = [link.as_bytes(), head, payload];
        siblings.put(errand, ReceivedChecksum::Verified, from_self, &pieces);
        true
    }
}

/// Frames for siblings that wait for the end of a batch.
const OUTBOX_FRAMES: usize = 256;
const OUTBOX_BYTES: usize = 1 << 20;

#[cfg(test)]
mod tests;

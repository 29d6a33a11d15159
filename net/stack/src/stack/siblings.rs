//! Several stacks with one address: handoffs from this one to the others, and from them.
//!
//! Flows are spread over engines by frames (a TAP's queues, receive side scaling, a hash), without
//! knowledge of sessions, listeners and fragments. A frame that reaches the wrong stack, or
//! concerns all of them, is put into an outbox here, from which the caller carries it:
//!
//! - *Notices* concern all: ARP, neighbour discovery, router advertisements, ICMP errors. Every
//!   sibling learns from them; only the stack that received them replies.
//! - *Copies* are for all, and each processes one as if it were alone: datagrams to groups, queries
//!   of group memberships.
//! - *Fragments* go to the first stack: only the first fragment of a packet has ports, so the
//!   fragments of one packet may reach different stacks.
//! - *Strays* have no session, listener or socket here: they are passed round the circle to the
//!   next sibling, and the last one refuses them. A listener on one engine thus serves frames that
//!   reach any, and a session is found on whichever engine its segments arrive.
//!
//! Why here: only a stack knows which frames it cannot use. Must stay true: a stack without
//! siblings does none of this, and a frame of a local session is never passed on; a frame is
//! refused or answered by one stack; a notice or copy is not passed on; a frame that does not fit
//! into the outbox is lost, as on a wire, and counted.

use super::{Stack, link};
use crate::flow;
use crate::frame::{Received, ReceivedChecksum};
use crate::secrets::Ends;
use crate::wire::ethernet::{self, Ethernet};
use crate::wire::ip::{self, Codepoint, Packet};
use crate::wire::{Mac, mld, ndisc};
use zerocopy::IntoBytes;

/// The reason why a stack hands a frame to a sibling.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Errand {
    /// All others learn from it, and none of them replies.
    Notice,
    /// Each of the others processes it as if it had received it.
    Copy,
    /// For the first stack, which reassembles fragments.
    Fragment,
    /// For the next stack in the circle.
    Stray {
        /// Number of stacks without a use for it, including the sender.
        asked: u16,
    },
}

/// A frame that is handed from one stack to a sibling.
#[derive(Debug)]
pub struct Handed {
    /// From the Ethernet header on.
    pub bytes: Vec<u8>,
    /// State of the transport checksum.
    pub checksum: ReceivedChecksum,
    /// The reason, which also determines the recipients.
    pub errand: Errand,
    /// True if one of these stacks sent it.
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

/// Index among the siblings, and the frames for them.
#[derive(Debug)]
pub(crate) struct Siblings {
    index: u16,
    count: u16,
    /// Errand of the frame being processed, if a sibling handed it over.
    taking: Option<Errand>,
    /// The first `used` are pending; the others' memory is reused.
    outbox: Vec<Handed>,
    used: usize,
    bytes: usize,
    lost: u64,
}

impl Siblings {
    /// Puts a frame in pieces into the outbox; it is lost if that is full.
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

    /// True if frames may be handed to all: a frame that a sibling handed to all stays here.
    fn shares(&self) -> bool {
        !matches!(self.taking, Some(Errand::Notice | Errand::Copy))
    }

    /// Errand of a stray; none if all siblings have seen it.
    fn stray(&self) -> Option<Errand> {
        let asked = match self.taking {
            None | Some(Errand::Fragment) => 1,
            Some(Errand::Stray { asked }) => asked + 1,
            // The stack that received it is responsible for it.
            Some(Errand::Notice | Errand::Copy) => return None,
        };
        (asked < self.count).then_some(Errand::Stray { asked })
    }
}

impl Stack {
    /// Makes it number `index` of `count` stacks with one address and one configuration, including
    /// the seed (so that each accepts the others' SYN cookies and sequence numbers). Call it before
    /// the first frame. Only the first one announces addresses and solicits routers.
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

    /// True if [`Self::take_handed`] has frames or losses to report.
    #[inline]
    #[must_use]
    pub fn has_handed(&self) -> bool {
        let siblings = self.siblings.as_ref();
        siblings.is_some_and(|siblings| siblings.used > 0 || siblings.lost > 0)
    }

    /// Passes all frames for siblings to `take`, in order, which carries each to the recipients of
    /// its errand. Returns the number of frames lost since the last call, because the outbox was
    /// full.
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
        // Staged segments came by another path.
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
            // Only the stack that received it replies.
            self.common.control.forget_after(kept);
        }
        if let Some(siblings) = &mut self.siblings {
            siblings.taking = None;
        }
    }

    /// True if a session of ours may have these ends: each sibling chooses ports whose flows it
    /// owns by the hash, so that no two choose the same.
    #[inline]
    pub(crate) fn may_open(&self, ends: &Ends) -> bool {
        self.siblings.as_ref().is_none_or(|siblings| {
            let hash = flow::of_ends(ends);
            flow::engine_of(hash, usize::from(siblings.count)) == usize::from(siblings.index)
        })
    }

    /// True if this port may be assigned to one of our sockets: each sibling has its own.
    pub(crate) fn may_give(&self, port: u16) -> bool {
        let siblings = self.siblings.as_ref();
        siblings.is_none_or(|siblings| port % siblings.count == siblings.index)
    }

    /// Shares an ARP packet with the siblings.
    #[cold]
    pub(crate) fn share_arp(&mut self, frame: &[u8]) {
        if self.siblings.is_some() {
            self.share(Errand::Notice, ReceivedChecksum::Unknown, &[frame]);
        }
    }

    /// Shares an ICMP or IGMP message with the siblings, if it concerns them.
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

    /// Shares a datagram to a group or to all with the siblings, which may have sockets for it.
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

    /// Passes a fragment to the first stack; false if that is this one.
    pub(crate) fn leave_fragment(&mut self, header: &Ethernet, bytes: &[u8]) -> bool {
        let from_self = self.from_self;
        let Some(siblings) = self.siblings.as_deref_mut().filter(|it| it.index > 0) else {
            return false;
        };
        let (checksum, pieces) = (ReceivedChecksum::Unknown, [header.as_bytes(), bytes]);
        siblings.put(Errand::Fragment, checksum, from_self, &pieces);
        true
    }

    /// Passes a segment to the next sibling; false if all have seen it.
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

    /// As [`Self::pass_on_segment`], for the payload of any packet, which was validated.
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
        // Rebuilt: only the parsed fields of the headers are available here.
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

/// Frames for siblings that are pending until the end of a batch.
const OUTBOX_FRAMES: usize = 256;
const OUTBOX_BYTES: usize = 1 << 20;

#[cfg(test)]
mod tests;

//! Several stacks with one address: handoffs from this one to the others, and from them.
//!
//! Flows are spread over engines by frames (a TAP's queues, receive side scaling, a hash), without
//! knowledge of sessions, listeners and fragments. A frame that reaches the wrong stack, or
//! concerns all of them, is put into an outbox here, from which the caller carries it:
//!
//! - *Notices* concern all: ARP, neighbour discovery, router advertisements, ICMP errors. Every
//!   peer learns from them; only the stack that received them replies.
//! - *Copies* are for all, and each processes one as if it were alone: datagrams to groups, queries
//!   of group memberships.
//! - *Fragments* go to the first stack: only the first fragment of a packet has ports, so the
//!   fragments of one packet may reach different stacks.
//! - *Strays* have no session, listener or socket here: they are passed round the circle to the
//!   next peer, and the last one refuses them. A listener on one engine thus serves frames that
//!   reach any, and a session is found on whichever engine its segments arrive.
//!
//! Why here: only a stack knows which frames it cannot use. Must stay true: a stack without
//! peers does none of this, and a frame of a local session is never passed on; a frame is
//! refused or answered by one stack; a notice or copy is not passed on; a frame that does not fit
//! into the outbox is lost, as on a wire, and counted.

use super::{Stack, link};
use crate::flow;
use crate::frame::{Received, ReceivedChecksum};
use crate::secrets::Ends;
use crate::shared::interface::Interface;
use crate::wire::ethernet::{self, Ethernet};
use crate::wire::ip::{self, Codepoint, Packet};
use crate::wire::{Mac, mld, ndisc};
use zerocopy::IntoBytes;

/// The reason why a stack hands a frame to a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HandoffKind {
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

/// A frame that is handed from one stack to a peer.
#[derive(Debug)]
pub struct Handoff {
    /// From the Ethernet header on.
    pub bytes: Vec<u8>,
    /// State of the transport checksum.
    pub checksum: ReceivedChecksum,
    /// The reason, which also determines the recipients.
    pub kind: HandoffKind,
    /// True if one of these stacks sent it.
    pub from_self: bool,
}

impl Default for Handoff {
    fn default() -> Self {
        Self {
            bytes: Vec::new(),
            checksum: ReceivedChecksum::Unknown,
            kind: HandoffKind::Notice,
            from_self: false,
        }
    }
}

/// The other stacks with the same address, if there are any, and the frames for them.
#[derive(Debug, Default)]
pub(crate) struct Shard(Option<Box<Peers>>);

/// Index among the peers, and the frames for them.
#[derive(Debug)]
struct Peers {
    index: u16,
    count: u16,
    /// HandoffKind of the frame being processed, if a peer handed it over.
    taking: Option<HandoffKind>,
    /// The first `used` are pending; the others' memory is reused.
    outbox: Vec<Handoff>,
    used: usize,
    bytes: usize,
    lost: u64,
}

impl Peers {
    /// Puts a frame in pieces into the outbox; it is lost if that is full.
    fn put(
        &mut self,
        kind: HandoffKind,
        checksum: ReceivedChecksum,
        from_self: bool,
        pieces: &[&[u8]],
    ) {
        let bytes: usize = pieces.iter().map(|piece| piece.len()).sum();
        if self.used == OUTBOX_FRAMES || self.bytes + bytes > OUTBOX_BYTES {
            self.lost += 1;
            return;
        }
        // Places are reused with their memory: after some batches nothing is allocated.
        if self.used == self.outbox.len() {
            self.outbox.push(Handoff::default());
        }
        let place = &mut self.outbox[self.used];
        self.used += 1;
        self.bytes += bytes;
        place.bytes.clear();
        for piece in pieces {
            place.bytes.extend_from_slice(piece);
        }
        place.kind = kind;
        place.checksum = checksum;
        place.from_self = from_self;
    }

    /// True if frames may be handed to all: a frame that a peer handed to all stays here.
    fn shares(&self) -> bool {
        !matches!(self.taking, Some(HandoffKind::Notice | HandoffKind::Copy))
    }

    /// HandoffKind of a stray; none if all peers have seen it.
    fn stray(&self) -> Option<HandoffKind> {
        let asked = match self.taking {
            None | Some(HandoffKind::Fragment) => 1,
            // It has been to that many stacks, and this one is the next.
            Some(HandoffKind::Stray { asked }) => asked + 1,
            // The stack that received it is responsible for it.
            Some(HandoffKind::Notice | HandoffKind::Copy) => return None,
        };
        (asked < self.count).then_some(HandoffKind::Stray { asked })
    }
}

impl Stack {
    /// Makes it number `index` of `count` stacks with one address and one configuration, including
    /// the seed (so that each accepts the others' SYN cookies and sequence numbers). Call it before
    /// the first frame. Only the first one announces addresses and solicits routers.
    ///
    /// # Panics
    /// If `index` is not below `count`.
    pub fn join_shard(&mut self, index: u16, count: u16) {
        assert!(index < count, "number {index} of {count} stacks");
        if count == 1 {
            return;
        }
        if index > 0 {
            // The first stack announces the addresses; this one had queued the same.
            self.host.common.control.forget_after(0);
            self.host.autoconfiguration = link::Autoconfiguration::default();
        }
        self.host.shard = Shard::new(index, count);
    }

    /// True if [`Self::take_handoffs`] has frames or losses to report.
    #[inline]
    #[must_use]
    pub fn has_handoffs(&self) -> bool {
        let peers = self.host.shard.0.as_ref();
        peers.is_some_and(|peers| peers.used > 0 || peers.lost > 0)
    }

    /// Passes all frames for shard peers to `take`, in order, which carries each to the recipients
    /// of its kind. Returns the number of frames lost since the last call, because the outbox was
    /// full.
    pub fn take_handoffs(&mut self, take: &mut dyn FnMut(&Handoff)) -> u64 {
        let Some(peers) = &mut self.host.shard.0 else {
            return 0;
        };
        for handoff in &peers.outbox[..peers.used] {
            take(handoff);
        }
        // The bytes stay where they are until the next frame overwrites them.
        peers.used = 0;
        peers.bytes = 0;
        std::mem::take(&mut peers.lost)
    }

    /// Takes a frame that a shard peer handed over.
    pub fn receive_handoff(&mut self, now_ns: u64, handoff: &mut Handoff) {
        // Staged segments came by another path.
        self.host.process_staged_segments();
        if !self.host.shard.begin(handoff.kind) {
            return;
        }
        let kept = self.host.common.control.len();
        let from_self = std::mem::replace(&mut self.host.from_self, handoff.from_self);
        self.receive(
            now_ns,
            Received {
                bytes: &mut handoff.bytes,
                checksum: handoff.checksum,
                segment_bytes: None,
            },
        );
        self.host.process_staged_segments();
        self.host.from_self = from_self;
        if handoff.kind == HandoffKind::Notice {
            // Only the stack that received it replies.
            self.host.common.control.forget_after(kept);
        }
        self.host.shard.end();
    }
}

impl Shard {
    /// The peers of stack number `index` of `count`.
    fn new(index: u16, count: u16) -> Self {
        Self(Some(Box::new(Peers {
            index,
            count,
            taking: None,
            outbox: Vec::new(),
            used: 0,
            bytes: 0,
            lost: 0,
        })))
    }

    /// True if the stack is alone.
    pub(crate) fn is_alone(&self) -> bool {
        self.0.is_none()
    }

    /// A frame of this kind that a peer handed over is processed until [`Self::end`]; false if
    /// there are no peers.
    fn begin(&mut self, kind: HandoffKind) -> bool {
        let Some(peers) = &mut self.0 else {
            return false;
        };
        peers.taking = Some(kind);
        true
    }

    fn end(&mut self) {
        if let Some(peers) = &mut self.0 {
            peers.taking = None;
        }
    }

    /// True if a session of ours may have these ends: each peer chooses ports whose flows it
    /// owns by the hash, so that no two choose the same.
    #[inline]
    pub(crate) fn may_open(&self, ends: &Ends) -> bool {
        self.0.as_ref().is_none_or(|peers| {
            let hash = flow::of_ends(ends);
            flow::engine_of(hash, usize::from(peers.count)) == usize::from(peers.index)
        })
    }

    /// True if this port may be assigned to one of our sockets: each peer has its own.
    pub(crate) fn may_give(&self, port: u16) -> bool {
        let peers = self.0.as_ref();
        peers.is_none_or(|peers| port % peers.count == peers.index)
    }

    /// Shares an ARP packet with the peers.
    #[cold]
    pub(crate) fn share_arp(&mut self, frame: &[u8], from_self: bool) {
        if self.0.is_some() {
            let checksum = ReceivedChecksum::Unknown;
            self.share(HandoffKind::Notice, checksum, from_self, &[frame]);
        }
    }

    /// Shares an ICMP or IGMP message with the peers, if it concerns them.
    #[cold]
    pub(crate) fn share_message(
        &mut self,
        packet: &Packet,
        bytes: &[u8],
        header: &Ethernet,
        checksum: ReceivedChecksum,
        from_self: bool,
    ) {
        if self.0.is_none() {
            return;
        }
        let kind = bytes.get(packet.start).copied().unwrap_or_default();
        let kind = match (packet.protocol, kind) {
            (ip::ICMP, 3 | 11 | 12)
            | (ip::ICMPV6, 1..=4 | ndisc::ROUTER_SOLICITATION..=ndisc::REDIRECT) => {
                HandoffKind::Notice
            }
            (ip::IGMP, _) | (ip::ICMPV6, mld::QUERY) => HandoffKind::Copy,
            _ => return,
        };
        let pieces = [header.as_bytes(), &bytes[..packet.end]];
        self.share(kind, checksum, from_self, &pieces);
    }

    /// Shares a datagram to a group or to all with the peers, which may have sockets for it.
    #[cold]
    pub(crate) fn share_datagram(
        &mut self,
        packet: &Packet,
        bytes: &[u8],
        header: &Ethernet,
        checksum: ReceivedChecksum,
        from_self: bool,
    ) {
        if self.0.is_some() {
            let pieces = [header.as_bytes(), &bytes[..packet.end]];
            self.share(HandoffKind::Copy, checksum, from_self, &pieces);
        }
    }

    #[cold]
    fn share(
        &mut self,
        kind: HandoffKind,
        checksum: ReceivedChecksum,
        from_self: bool,
        pieces: &[&[u8]],
    ) {
        if let Some(peers) = self.0.as_deref_mut().filter(|it| it.shares()) {
            peers.put(kind, checksum, from_self, pieces);
        }
    }

    /// Passes a fragment to the first stack; false if that is this one.
    pub(crate) fn leave_fragment(
        &mut self,
        header: &Ethernet,
        bytes: &[u8],
        from_self: bool,
    ) -> bool {
        let Some(peers) = self.0.as_deref_mut().filter(|it| it.index > 0) else {
            return false;
        };
        let (checksum, pieces) = (ReceivedChecksum::Unknown, [header.as_bytes(), bytes]);
        peers.put(HandoffKind::Fragment, checksum, from_self, &pieces);
        true
    }

    /// Passes a segment to the next peer; false if all have seen it.
    #[cold]
    pub(crate) fn pass_on_segment(
        &mut self,
        interface: &Interface,
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
        self.pass_on(interface, &packet, (mac, ecn as u8), segment)
    }

    /// As [`Self::pass_on_segment`], for the payload of any packet, which was validated: `class` is
    /// its traffic class, with the bits of ECN.
    #[cold]
    pub(crate) fn pass_on(
        &mut self,
        interface: &Interface,
        packet: &Packet,
        (mac, class): (Mac, u8),
        payload: &[u8],
    ) -> bool {
        let (own, from_self) = (interface.mac, interface.is_ours(&packet.source));
        let Some(peers) = self.0.as_deref_mut() else {
            return false;
        };
        let Some(kind) = peers.stray() else {
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
        ip::set_traffic_class(head, class);
        ip::set_codepoint(head, Codepoint::of(class));
        let pieces = [link.as_bytes(), head, payload];
        peers.put(kind, ReceivedChecksum::Verified, from_self, &pieces);
        true
    }
}

/// Frames for peers that are pending until the end of a batch.
const OUTBOX_FRAMES: usize = 256;
const OUTBOX_BYTES: usize = 1 << 20;

#[cfg(test)]
mod tests;

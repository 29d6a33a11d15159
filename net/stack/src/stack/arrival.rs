//! The path of a received frame: Ethernet, IP, and the protocol above.
//!
//! With sessions in main memory, small segments are staged in the local store first, each with its
//! hash; when the batch is complete all table entries are prefetched, then all control blocks, and
//! then the segments are processed: the cache misses overlap. Large segments and other packets are
//! processed at once, after everything staged before them.

use super::direct_placement::LARGE_BYTES;
use super::sessions::{Arrival, Arrived};
use super::{Host, icmp};
use crate::checksum::{Sum, pseudo};
use crate::frame::{Received, ReceivedChecksum};
use crate::secrets::Ends;
use crate::state::LOCAL_SESSIONS;
use crate::state::store::Placement;
use crate::wire::ethernet::{self, Ethernet};
use crate::wire::ip::{self, Bad, Packet, Report};
use crate::wire::tcp::{self, Tcp};
use crate::wire::{Ip, Mac};
use zerocopy::FromBytes;

/// Segments staged together.
const STAGED_MAX: usize = 64;
/// Bytes of a staged segment: 64 of them and their metadata take 32 KiB.
pub(crate) const STAGED_BYTES: usize = 448;
/// Prefetch distance of control blocks, in segments behind the prefetch of their table entries.
const BLOCKS_BEHIND: usize = 4;
/// Prefetch distance of send buffers, in segments ahead of processing.
const BUFFERS_AHEAD: usize = 4;

/// Staged segments: received in this batch and not processed yet.
pub(crate) struct Staging {
    arrivals: Vec<Arrival>,
    /// Taken out only while a batch is processed.
    bytes: Option<Box<[[u8; STAGED_BYTES]; STAGED_MAX]>>,
    placement: Placement,
}

impl Staging {
    pub(crate) fn new(placement: Placement) -> Self {
        Self {
            arrivals: Vec::with_capacity(STAGED_MAX),
            bytes: Some(Box::new([[0; STAGED_BYTES]; STAGED_MAX])),
            placement,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.arrivals.is_empty()
    }
}

impl Host {
    /// Processes one frame.
    #[inline]
    pub(crate) fn arrive(&mut self, frame: Received<'_>) {
        if self.arrive_by_last_flow(&frame) {
            return;
        }
        let Ok((header, _)) = Ethernet::ref_from_prefix(frame.bytes) else {
            self.common.counters.malformed += 1;
            return;
        };
        let header = *header;
        let mac = self.common.interface.mac;
        // Groups are filtered by their IP addresses below.
        if header.destination != mac && header.is_unicast() {
            self.common.counters.not_ours += 1;
            return;
        }
        if header.source[0] & 1 != 0 {
            // No station has a group's address, and a reply would go to all of the group.
            self.common.counters.martians += 1;
            return;
        }
        let bytes = &frame.bytes[ethernet::HEADER_BYTES..];
        let packet = match header.kind.get() {
            ethernet::IPV4 => ip::parse_v4(bytes),
            ethernet::IPV6 => ip::parse_v6(bytes),
            ethernet::ARP => {
                // Earlier segments are processed first, here and below: the order of arrival
                // counts.
                self.process_staged_segments();
                self.shard.share_arp(frame.bytes, self.from_self);
                self.common.arrive_arp(bytes);
                return;
            }
            _ => {
                self.common.counters.not_ours += 1;
                return;
            }
        };
        match packet {
            Ok(packet) => {
                let unicast = header.is_unicast();
                // The next frame is probably of the same session, and then needs no search.
                if let Some(number) =
                    self.arrive_packet(&packet, bytes, &header, unicast, frame.checksum)
                {
                    self.note_last_flow(number, &packet, frame.bytes);
                }
            }
            Err(Bad::Malformed) => self.common.counters.malformed += 1,
            Err(Bad::Checksum) => self.common.counters.bad_checksums += 1,
            Err(Bad::Martian) => self.common.counters.martians += 1,
            Err(Bad::SourceRoute) => self.common.counters.source_routed += 1,
            Err(Bad::Option { pointer, report }) => {
                self.common.counters.options_refused += 1;
                let bytes = &frame.bytes[ethernet::HEADER_BYTES..];
                let (code, from_self) = (icmp::UNKNOWN_OPTION, self.from_self);
                self.common
                    .refuse_header(&header, bytes, code, pointer, report, from_self);
            }
            Err(Bad::Routing { pointer }) => {
                self.common.counters.malformed += 1;
                let bytes = &frame.bytes[ethernet::HEADER_BYTES..];
                let report = Report::Unicast;
                let (code, from_self) = (icmp::WRONG_FIELD, self.from_self);
                self.common
                    .refuse_header(&header, bytes, code, pointer, report, from_self);
            }
            Err(Bad::Fragment) => {
                let bytes = &frame.bytes[ethernet::HEADER_BYTES..];
                self.arrive_fragment(&header, bytes);
            }
        }
    }

    /// Processes one packet; returns the session of a large segment in it.
    #[inline]
    pub(crate) fn arrive_packet(
        &mut self,
        packet: &Packet,
        bytes: &[u8],
        header: &Ethernet,
        unicast: bool,
        checksum: ReceivedChecksum,
    ) -> Option<u32> {
        let ours = self.common.interface.is_ours(&packet.destination);
        if !ours && !self.common.interface.is_for_us_too(&packet.destination) {
            if packet.protocol == ip::UDP && packet.destination.is_multicast() {
                // A shard peer may have joined that group.
                self.shard
                    .share_datagram(packet, bytes, header, checksum, self.from_self);
            }
            self.common.counters.not_ours += 1;
            return None;
        }
        if self.common.interface.is_martian(packet, self.from_self) {
            self.common.counters.martians += 1;
            return None;
        }
        let payload = &bytes[packet.start..packet.end];
        let verify = checksum == ReceivedChecksum::Unknown;
        match packet.protocol {
            ip::TCP => {
                // RFC 9293 section 3.9.2.3 (MUST-57): never to a group.
                if ours && unicast {
                    return self.arrive_tcp(packet, payload, header.source, verify);
                }
            }
            // RFC 1122 section 3.3.6: a broadcast frame without a broadcast or group address.
            ip::UDP if ours && !unicast => self.common.counters.martians += 1,
            ip::UDP => {
                self.process_staged_segments();
                if !ours {
                    self.shard
                        .share_datagram(packet, bytes, header, checksum, self.from_self);
                }
                self.arrive_udp(
                    packet,
                    bytes,
                    payload,
                    header.source,
                    ours && unicast,
                    verify,
                );
            }
            ip::ICMP if packet.source.is_v4() => {
                self.process_staged_segments();
                self.shard
                    .share_message(packet, bytes, header, checksum, self.from_self);
                self.arrive_icmp_v4(packet, payload, header.source, ours && unicast);
            }
            ip::ICMPV6 if !packet.source.is_v4() => {
                self.process_staged_segments();
                self.shard
                    .share_message(packet, bytes, header, checksum, self.from_self);
                self.arrive_icmp_v6(packet, payload, header.source, ours && unicast);
            }
            ip::IGMP if packet.source.is_v4() => {
                self.shard
                    .share_message(packet, bytes, header, checksum, self.from_self);
                self.common.arrive_igmp(packet, payload);
            }
            // RFC 8200 section 4.7: the rest of the packet is ignored.
            ip::NO_NEXT if !packet.source.is_v4() => {}
            _ => {
                if ours && unicast {
                    self.common.refuse_protocol(packet, bytes, header.source);
                }
            }
        }
        None
    }

    /// Processes one segment; returns its session, if it is large.
    #[inline]
    fn arrive_tcp(
        &mut self,
        packet: &Packet,
        payload: &[u8],
        mac: Mac,
        verify: bool,
    ) -> Option<u32> {
        let Ok((header, _)) = Tcp::ref_from_prefix(payload) else {
            self.common.counters.malformed += 1;
            return None;
        };
        if verify {
            // RFC 9293 section 3.1 (MUST-3).
            let sum = pseudo(&packet.source, &packet.destination, ip::TCP)
                .plus_len(payload.len())
                .plus(Sum::of(payload));
            if !sum.is_right() {
                self.common.counters.bad_checksums += 1;
                return None;
            }
        }
        if !is_peer(&packet.source) {
            self.common.counters.malformed += 1;
            return None;
        }
        let ends = Ends {
            local: packet.destination,
            remote: packet.source,
            local_port: header.destination.get(),
            remote_port: header.source.get(),
        };
        let arrival = Arrival {
            ends,
            hash: self.common.secrets.lookup(&ends),
            mac,
            ecn: packet.ecn,
            len: payload.len(),
        };
        // With more sessions than the local store holds, their control blocks are prefetched while
        // several segments are staged.
        let staged = self.staging.placement == Placement::MainMemory
            && self.sessions.store.taken() > LOCAL_SESSIONS
            && payload.len() <= STAGED_BYTES;
        if !staged {
            self.process_staged_segments();
            let taken_by = self.arrive_segment(&arrival, payload);
            return taken_by.filter(|_| payload.len() > STAGED_BYTES);
        }
        if self.staging.arrivals.len() == STAGED_MAX {
            self.process_staged_segments();
        }
        self.sessions.table.prefetch(arrival.hash);
        let at = self.staging.arrivals.len();
        if let Some(bytes) = &mut self.staging.bytes {
            bytes[at][..payload.len()].copy_from_slice(payload);
            self.staging.arrivals.push(arrival);
        }
        // The table entry of an earlier segment has arrived in the cache: prefetch its control
        // block.
        if let Some(earlier) = at.checked_sub(BLOCKS_BEHIND) {
            self.sessions.prefetch(self.staging.arrivals[earlier].hash);
        }
        None
    }

    /// Processes a segment with a correct checksum; returns its session.
    #[inline]
    fn arrive_segment(&mut self, arrival: &Arrival, bytes: &[u8]) -> Option<u32> {
        let Some(mut segment) = tcp::parse(bytes) else {
            self.common.counters.malformed += 1;
            return None;
        };
        segment.ecn = arrival.ecn;
        match self.sessions.arrive(&mut self.common, arrival, &segment) {
            Arrived::Session(number) => {
                if segment.payload.len() >= LARGE_BYTES {
                    self.expect_more(number, arrival, &segment);
                }
                self.sweep();
                Some(number)
            }
            Arrived::Taken => None,
            Arrived::Stray => {
                let (ends, mac, ecn) = (&arrival.ends, arrival.mac, arrival.ecn);
                let interface = &self.common.interface;
                // A shard peer may have its session or its listener.
                if !self.shard.pass_on_segment(interface, ends, mac, ecn, bytes) {
                    self.common.refuse_segment(ends, mac, &segment);
                }
                None
            }
        }
    }

    /// Processes the staged segments: the second and third part of hash all, fetch all, process.
    #[inline]
    pub(crate) fn process_staged_segments(&mut self) {
        if !self.staging.arrivals.is_empty() {
            self.process_staged_batch();
        }
    }

    fn process_staged_batch(&mut self) {
        let Some(bytes) = self.staging.bytes.take() else {
            return;
        };
        let mut arrivals = std::mem::take(&mut self.staging.arrivals);
        for arrival in &arrivals[arrivals.len().saturating_sub(BLOCKS_BEHIND)..] {
            self.sessions.prefetch(arrival.hash);
        }
        for (at, arrival) in arrivals.iter().enumerate() {
            // Prefetch a later segment's buffer, via its control block, which is in the cache by
            // now.
            if let Some(next) = arrivals.get(at + BUFFERS_AHEAD)
                && let Some(number) = self.sessions.guess(next.hash)
            {
                self.sessions
                    .store
                    .hot(number)
                    .tx
                    .prefetch(&self.common.pool);
            }
            self.arrive_segment(arrival, &bytes[at][..arrival.len]);
        }
        arrivals.clear();
        self.staging.arrivals = arrivals;
        self.staging.bytes = Some(bytes);
    }
}

/// RFC 9293 section 3.9.2.3 and RFC 1122 section 3.2.1.3: valid addresses of a peer.
fn is_peer(address: &Ip) -> bool {
    !address.is_multicast() && !address.is_unspecified() && address.last_four() != [255; 4]
        || !address.is_v4() && !address.is_multicast() && !address.is_unspecified()
}

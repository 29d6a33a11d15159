//! Frames without a session's window that the stack builds itself.

use super::Common;
use super::config::Config;
use super::config::filter::{RuleProtocol, Verdict, judge};
use crate::checksum::{Sum, pseudo};
use crate::secrets::Ends;
use crate::wire::arp::{self, Arp};
use crate::wire::ethernet::{self, Ethernet};
use crate::wire::ip::{self, Packet};
use crate::wire::sequence::Sequence;
use crate::wire::tcp::{self, ACK, OPTIONS_BYTES_MAX, Options, RST, Segment, Tcp};
use crate::wire::udp::{self, Udp};
use crate::wire::{Ip, Mac};
use zerocopy::IntoBytes;
use zerocopy::network_endian::U16;

/// Addresses of a packet to build.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) mac: Mac,
    pub(crate) source: Ip,
    pub(crate) destination: Ip,
    pub(crate) protocol: u8,
    pub(crate) hops: u8,
    /// Traffic class (RFC 2474), without the two bits of ECN.
    pub(crate) class: u8,
}

impl Address {
    /// The Ethernet header in front of it.
    pub(crate) fn ethernet(&self, own: Mac) -> Ethernet {
        Ethernet::new(self.mac, own, ethernet::kind_of(&self.source))
    }

    /// The addresses of a reply to a packet.
    pub(crate) fn answer(packet: &Packet, mac: Mac, config: &Config) -> Self {
        Self {
            mac,
            source: packet.destination,
            destination: packet.source,
            protocol: packet.protocol,
            hops: config.hops,
            class: config.traffic_class,
        }
    }
}

/// Common properties of datagrams that the NIC cuts from one frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Flow {
    pub(crate) address: Address,
    pub(crate) ports: (u16, u16),
    /// Payload bytes of each; the last may have less.
    pub(crate) each: u16,
    /// Offset at which the sum of each begins.
    pub(crate) sum_start: u16,
}

impl Common {
    /// Queues all frames of a datagram whose neighbour is known now, or none.
    pub(crate) fn push_waiting(&mut self, mac: &Mac, frames: Vec<Vec<u8>>) {
        let bytes = frames.iter().map(Vec::len).sum();
        if !self.control.has_room(frames.len(), bytes) {
            self.counters.datagrams_dropped += 1;
            return;
        }
        for mut frame in frames {
            frame[..6].copy_from_slice(mac);
            if let Some(room) = self.control.push(frame.len()) {
                room.copy_from_slice(&frame);
            }
        }
    }

    /// Queues a datagram between these ports, whole or in fragments; false if the queue is full.
    /// With `leaves_sums` the NIC may complete its checksum, and cut it from a frame that it shares
    /// with those before it.
    pub(crate) fn push_datagram(
        &mut self,
        address: &Address,
        ports: (u16, u16),
        payload: &[u8],
        leaves_sums: bool,
    ) -> bool {
        let (source, destination) = (address.source, address.destination);
        let len = udp::HEADER_BYTES + payload.len();
        let header = |len: usize| Udp {
            source: U16::new(ports.0),
            destination: U16::new(ports.1),
            bytes: U16::new(udp::length_of(len)),
            checksum: [0; 2],
        };
        let pseudo = |len: usize| pseudo(&source, &destination, ip::UDP).plus_len(len);
        let ip_bytes = ip::header_bytes(&source);
        let link = self.interface.mtu_bytes;
        let leaves_sums = leaves_sums
            && self.interface.completes_checksums
            && ip_bytes + len <= self.paths.mtu(&destination, link, self.now_ns);
        if !leaves_sums {
            return self.push_packet(address, len, |bytes| {
                bytes[..udp::HEADER_BYTES].copy_from_slice(header(len).as_bytes());
                bytes[udp::HEADER_BYTES..].copy_from_slice(payload);
                // RFC 768: zero means no checksum; the other zero is sent.
                let field = match pseudo(len).plus(Sum::of(bytes)).field() {
                    [0, 0] => [0xff, 0xff],
                    field => field,
                };
                bytes[6..8].copy_from_slice(&field);
            });
        }
        let link = address.ethernet(self.interface.mac);
        let ip_end = ethernet::HEADER_BYTES + ip_bytes;
        let head_bytes = ip_end + udp::HEADER_BYTES;
        let head = |len: usize| {
            let mut head = [0; ethernet::HEADER_BYTES + ip::V6_BYTES + udp::HEADER_BYTES];
            head[..ethernet::HEADER_BYTES].copy_from_slice(link.as_bytes());
            let packet = &mut head[ethernet::HEADER_BYTES..];
            ip::write(packet, &source, &destination, ip::UDP, address.hops, len);
            if address.class != 0 {
                ip::set_traffic_class(&mut packet[..ip_bytes], address.class);
            }
            let mut header = header(len);
            header.checksum = pseudo(len).partial();
            head[ip_end..head_bytes].copy_from_slice(header.as_bytes());
            head
        };
        let flow = Flow {
            address: *address,
            ports,
            each: udp::length_of(payload.len()),
            sum_start: udp::length_of(ip_end),
        };
        if self.interface.cuts_datagrams
            && !payload.is_empty()
            && let Some((last, bytes)) = self.control.last()
        {
            let whole = bytes + payload.len();
            // A shorter one ends the frame: the NIC cuts pieces of one length.
            let fits = flow.each <= last.each
                && bytes.is_multiple_of(usize::from(last.each))
                && Flow {
                    each: last.each,
                    ..flow
                } == last
                && whole <= usize::from(self.interface.super_payload(head_bytes))
                && !destination.is_multicast()
                && !self.interface.is_broadcast(&destination)
                && !self.interface.is_ours(&destination);
            // Built only where it is used: this is the path of each datagram.
            if fits {
                let header = head(udp::HEADER_BYTES + whole);
                if self.control.extend_last(&header[..head_bytes], payload) {
                    return true;
                }
            }
        }
        let header = head(len);
        self.control
            .push_datagram(&header[..head_bytes], payload, flow)
    }

    /// Queues a packet of `len` payload bytes, filled by `fill`; in fragments if it is longer than
    /// the MTU of the link or path. False if the queue is full.
    pub(crate) fn push_packet(
        &mut self,
        address: &Address,
        len: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> bool {
        let ip_bytes = ip::header_bytes(&address.source);
        let link = self.interface.mtu_bytes;
        let mtu = self.paths.mtu(&address.destination, link, self.now_ns);
        // The path may be narrower than the link: a router has said so.
        if ip_bytes + len > mtu {
            return self.push_fragments(address, len, mtu, fill);
        }
        let header = address.ethernet(self.interface.mac);
        let Some(frame) = self.control.push(ethernet::HEADER_BYTES + ip_bytes + len) else {
            return false;
        };
        let (head, packet) = frame.split_at_mut(ethernet::HEADER_BYTES);
        head.copy_from_slice(header.as_bytes());
        let at = ip::write(
            packet,
            &address.source,
            &address.destination,
            address.protocol,
            address.hops,
            len,
        );
        if address.class != 0 {
            ip::set_traffic_class(&mut packet[..at], address.class);
        }
        fill(&mut packet[at..]);
        true
    }

    /// A TCP segment without data.
    pub(crate) fn push_segment(
        &mut self,
        ends: &Ends,
        mac: Mac,
        fields: &Tcp,
        options: &Options,
    ) -> bool {
        let mut bytes = [0; OPTIONS_BYTES_MAX];
        let option_len = tcp::write_options(options, &mut bytes);
        let len = tcp::HEADER_BYTES + option_len;
        let address = Address {
            mac,
            source: ends.local,
            destination: ends.remote,
            protocol: ip::TCP,
            hops: self.config.hops,
            class: self.config.traffic_class,
        };
        // Callers leave out what the ends and the options determine.
        let mut fields = *fields;
        fields.source = U16::new(ends.local_port);
        fields.destination = U16::new(ends.remote_port);
        fields.offset |= tcp::offset_of(len);
        self.push_packet(&address, len, |packet| {
            packet[..tcp::HEADER_BYTES].copy_from_slice(fields.as_bytes());
            packet[tcp::HEADER_BYTES..].copy_from_slice(&bytes[..option_len]);
            let sum = pseudo(&ends.local, &ends.remote, ip::TCP)
                .plus_len(len)
                .plus(Sum::of(packet));
            let at = usize::from(tcp::CHECKSUM_OFFSET);
            packet[at..at + 2].copy_from_slice(&sum.field());
        })
    }

    /// A reset of a session: RFC 9293 section 3.10.5 and 3.10.7.
    pub(crate) fn send_reset(&mut self, ends: &Ends, hop: (u16, u16), sequence: Sequence) {
        self.send_reset_with(ends, hop, sequence, None, &Options::default());
    }

    /// The same with options: RFC 7323 section 3.2 requires timestamps in resets of sessions that
    /// use them.
    pub(crate) fn send_reset_with(
        &mut self,
        ends: &Ends,
        hop: (u16, u16),
        sequence: Sequence,
        acknowledgment: Option<Sequence>,
        options: &Options,
    ) {
        // A reset is not worth a request for the neighbour: the peer sends again, and gets another.
        if let Some(mac) = self.neighbors.mac(hop.0, hop.1) {
            self.push_reset(ends, mac, sequence, acknowledgment, options);
        }
    }

    fn push_reset(
        &mut self,
        ends: &Ends,
        mac: Mac,
        sequence: Sequence,
        acknowledgment: Option<Sequence>,
        options: &Options,
    ) {
        let fields = Tcp {
            source: U16::new(0),
            destination: U16::new(0),
            sequence: sequence.into(),
            acknowledgment: acknowledgment.unwrap_or_default().into(),
            offset: 0,
            flags: RST | if acknowledgment.is_some() { ACK } else { 0 },
            window: U16::new(0),
            checksum: [0; 2],
            urgent: U16::new(0),
        };
        if self.push_segment(ends, mac, &fields, options) {
            self.counters.resets_sent += 1;
        }
    }

    /// RST for a segment without a connection: RFC 9293 section 3.10.7.1.
    pub(crate) fn refuse_segment(&mut self, ends: &Ends, mac: Mac, segment: &Segment<'_>) {
        let verdict = self.verdict(Some(RuleProtocol::Tcp), ends);
        self.count_verdict(verdict);
        if verdict == Verdict::Drop || segment.has(RST) {
            return;
        }
        if segment.has(ACK) {
            let options = &Options::default();
            self.push_reset(ends, mac, segment.acknowledgment, None, options);
        } else {
            // RFC 9293 section 3.10.7.1: number 0, and an acknowledgment of all of the segment.
            let zero = Sequence::default();
            self.push_reset(ends, mac, zero, Some(segment.end()), &Options::default());
        }
    }

    /// Queues an ARP packet from us.
    pub(crate) fn push_arp(
        &mut self,
        operation: arp::Operation,
        to: Mac,
        target_mac: Mac,
        source: [u8; 4],
        target: [u8; 4],
    ) {
        let own = self.interface.mac;
        let packet = Arp {
            operation,
            sender_mac: own,
            sender: source,
            target_mac,
            target,
        };
        let len = ethernet::HEADER_BYTES + arp::BYTES;
        if let Some(frame) = self.control.push(len) {
            let (head, body) = frame.split_at_mut(ethernet::HEADER_BYTES);
            head.copy_from_slice(Ethernet::new(to, own, ethernet::ARP).as_bytes());
            body.copy_from_slice(&packet.to_bytes());
        }
    }

    /// The filter's verdict about a packet between these ends that would open something, or has no
    /// socket. What this stack sent to itself is allowed.
    #[inline]
    pub(crate) fn verdict(&self, protocol: Option<RuleProtocol>, ends: &Ends) -> Verdict {
        let rules = &self.config.filter;
        if rules.is_empty() || self.interface.is_ours(&ends.remote) {
            return Verdict::Allow;
        }
        judge(rules, protocol, ends)
    }

    /// Counts a packet that was not allowed.
    pub(crate) fn count_verdict(&mut self, verdict: Verdict) {
        self.counters.filtered += u64::from(verdict != Verdict::Allow);
    }

    /// True if the filter allows a packet without ports; it is counted otherwise.
    pub(crate) fn allows(&mut self, packet: &Packet, protocol: Option<RuleProtocol>) -> bool {
        let ends = Ends {
            local: packet.destination,
            remote: packet.source,
            local_port: 0,
            remote_port: 0,
        };
        let verdict = self.verdict(protocol, &ends);
        self.count_verdict(verdict);
        verdict == Verdict::Allow
    }

    /// The neighbour entry of the next hop towards `remote`.
    pub(crate) fn find_hop(&mut self, remote: &Ip) -> Option<(u16, u16)> {
        if self.interface.is_ours(remote) {
            return Some(self.neighbors.own(remote, self.interface.mac, self.now_ns));
        }
        let hop = self.interface.next_hop(remote)?;
        Some(self.neighbors.entry(&hop, self.now_ns))
    }
}

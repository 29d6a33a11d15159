//! Receiving and sending fragments of packets that are longer than the MTU of a link or path.
//!
//! Why here: off the fast path. A received frame gets here by the one branch on the common path
//! that checks for a fragment; a sent packet, if it is too long. Must stay true: a reassembled
//! packet passes the same checks as one that arrived whole; a fragment within a reassembled packet
//! is dropped.
//! Source: RFC 791 section 3.2, RFC 792 (time exceeded), RFC 8200 sections 4.5 and 5, RFC 6946.

use super::Stack;
use super::reassembly::{Datagram, Outcome};
use crate::frame::ReceivedChecksum;
use crate::shared::Common;
use crate::timer::{Tick, sooner, tick_after};
use crate::wire::BROADCAST;
use crate::wire::ethernet::{self, Ethernet};
use crate::wire::fragment::{self, Bad, Fragment, Key};
use crate::wire::ip::{self, Codepoint, Packet};
use crate::wire::ndisc;

/// Owner of the reassembly timer in the timing wheel: no session has this number.
pub(crate) const TIMER: u32 = u32::MAX - 1;
/// RFC 792: time exceeded, fragment reassembly. RFC 4443 section 3.3: the same.
const TOO_LATE_V4: [u8; 2] = [11, 1];
const TOO_LATE_V6: [u8; 2] = [3, 1];
/// RFC 4443 section 3.4.
pub(super) const PARAMETER_PROBLEM: u8 = 4;

impl Stack {
    /// Processes a fragment.
    #[cold]
    pub(crate) fn arrive_fragment(&mut self, header: &Ethernet, bytes: &[u8]) {
        if self.leave_fragment(header, bytes) {
            return;
        }
        self.common.counters.fragments_received += 1;
        let unicast = header.destination != BROADCAST && header.destination[0] & 1 == 0;
        let v4 = header.kind.get() == ethernet::IPV4;
        let fragment = if v4 {
            fragment::parse_v4(bytes)
        } else {
            fragment::parse_v6(bytes)
        };
        match fragment {
            Ok(fragment) if self.is_from_martian(&fragment.key) => {
                self.common.counters.martians += 1
            }
            Ok(fragment) if self.is_for_us(&fragment.key) => {
                self.take_in_fragment(header, unicast, &fragment, bytes);
            }
            Ok(_) => self.common.counters.not_ours += 1,
            Err(Bad::Hostile(key)) if !self.is_for_us(&key) => self.common.counters.not_ours += 1,
            Err(bad) => self.refuse_fragment(header, unicast, &bad, bytes),
        }
    }

    fn is_for_us(&self, key: &Key) -> bool {
        let interface = &self.common.interface;
        interface.is_ours(&key.destination) || interface.is_for_us_too(&key.destination)
    }

    /// As [`crate::shared::interface::Interface::is_martian`]; a fragment is never part of
    /// neighbour discovery (RFC 6980), so the unspecified address is invalid, too.
    fn is_from_martian(&self, key: &Key) -> bool {
        let source = &key.source;
        source.is_martian_source()
            || source.is_unspecified()
            || !self.from_self && self.common.interface.is_ours(source)
    }

    fn take_in_fragment(
        &mut self,
        header: &Ethernet,
        unicast: bool,
        fragment: &Fragment,
        bytes: &[u8],
    ) {
        if fragment.is_whole() {
            // RFC 6946 section 4: processed alone, even if other fragments have its identification.
            self.arrive_whole(header, unicast, fragment, bytes);
            return;
        }
        let now_ns = self.common.now_ns;
        let from = (header.source, unicast);
        let pool = &mut self.common.pool;
        let outcome = self.reassembly.take_in(pool, fragment, bytes, from, now_ns);
        let counters = &mut self.common.counters;
        match outcome {
            Outcome::Waits | Outcome::Late => {}
            Outcome::Refused => counters.reassemblies_refused += 1,
            Outcome::NoMemory => {
                counters.no_memory += 1;
                counters.reassemblies_evicted += 1;
            }
            Outcome::Whole { unicast } => {
                counters.packets_reassembled += 1;
                self.arrive_reassembled(header, unicast);
            }
        }
        counters_of_evictions(&mut self.common, &mut self.reassembly.evicted);
        self.arm_reassembly();
    }

    /// Processes a fragment that is the whole packet.
    fn arrive_whole(
        &mut self,
        header: &Ethernet,
        unicast: bool,
        fragment: &Fragment,
        bytes: &[u8],
    ) {
        let bytes = &bytes[..fragment.end];
        match ip::chain(bytes, fragment.head, fragment.protocol) {
            Ok((start, protocol)) if protocol != ip::FRAGMENT => {
                let packet = Packet {
                    source: fragment.key.source,
                    destination: fragment.key.destination,
                    protocol,
                    hops: fragment.hops,
                    ecn: fragment.ecn,
                    start,
                    end: fragment.end,
                };
                self.arrive_once_fragmented(&packet, bytes, header, unicast);
            }
            _ => self.common.counters.malformed += 1,
        }
    }

    /// Processes the packet that was completed.
    fn arrive_reassembled(&mut self, header: &Ethernet, unicast: bool) {
        let whole = std::mem::take(&mut self.reassembly.whole);
        let packet = if header.kind.get() == ethernet::IPV4 {
            ip::parse_v4(&whole)
        } else {
            ip::parse_v6(&whole)
        };
        match packet {
            Ok(packet) => self.arrive_once_fragmented(&packet, &whole, header, unicast),
            Err(_) => self.common.counters.malformed += 1,
        }
        self.reassembly.whole = whole;
    }

    /// Processes a whole packet that had a fragment header.
    fn arrive_once_fragmented(
        &mut self,
        packet: &Packet,
        bytes: &[u8],
        header: &Ethernet,
        unicast: bool,
    ) {
        let discovery = ndisc::ROUTER_SOLICITATION..=ndisc::REDIRECT;
        let kind = bytes.get(packet.start);
        if packet.protocol == ip::ICMPV6 && kind.is_some_and(|kind| discovery.contains(kind)) {
            // RFC 6980 section 5: switches that inspect these messages cannot see such ones.
            self.common.counters.malformed += 1;
            return;
        }
        let checksum = ReceivedChecksum::Unknown;
        self.arrive_packet(packet, bytes, header, unicast, checksum);
    }

    fn refuse_fragment(&mut self, header: &Ethernet, unicast: bool, bad: &Bad, bytes: &[u8]) {
        match bad {
            Bad::Malformed => self.common.counters.malformed += 1,
            Bad::Hostile(key) => {
                self.common.counters.reassemblies_refused += 1;
                let now_ns = self.common.now_ns;
                self.reassembly.refuse(&mut self.common.pool, key, now_ns);
                counters_of_evictions(&mut self.common, &mut self.reassembly.evicted);
                self.arm_reassembly();
            }
            &Bad::Problem { code, pointer } => {
                self.common.counters.malformed += 1;
                let Some(packet) = whole_header(bytes, false) else {
                    return;
                };
                if unicast && self.common.interface.is_ours(&packet.destination) {
                    let kind = [PARAMETER_PROBLEM, code];
                    self.push_error_v6(&packet, bytes, header.source, kind, pointer as u32);
                }
            }
        }
    }

    /// Arms the wheel for the next timeout. There is one entry at a time, so that completed packets
    /// leave none behind.
    fn arm_reassembly(&mut self) {
        let Some(next_ns) = self.reassembly.next_ns() else {
            return;
        };
        let next = tick_after(next_ns);
        if sooner(self.reassembly_armed, next) != self.reassembly_armed {
            self.reassembly_armed = next;
            self.common.wheel.insert(TIMER, next);
        }
    }

    /// The wheel's entry of `tick` has expired.
    #[cold]
    pub(crate) fn expire_fragments(&mut self, tick: Tick) {
        if self.reassembly_armed != tick {
            return;
        }
        self.reassembly_armed = 0;
        while let Some(mut datagram) = self.reassembly.expired(self.common.now_ns) {
            if !datagram.is_refused() {
                self.common.counters.reassemblies_late += 1;
                self.tell_late(&datagram);
            }
            datagram.release(&mut self.common.pool);
        }
        self.arm_reassembly();
    }

    /// Reports a reassembly timeout to the sender, if its first fragment was received: RFC 792, RFC
    /// 8200 section 4.5.
    fn tell_late(&mut self, datagram: &Datagram) {
        let (source, destination) = datagram.ends();
        let ours = self.common.interface.is_ours(&destination);
        let Some((bytes, mac)) = datagram.first(&self.common.pool, ip::V6_MTU_MIN) else {
            return;
        };
        let Some(packet) = whole_header(&bytes, source.is_v4()).filter(|_| ours) else {
            return;
        };
        if source.is_v4() {
            self.push_error_v4(&packet, &bytes, mac, TOO_LATE_V4);
        } else {
            self.push_error_v6(&packet, &bytes, mac, TOO_LATE_V6, 0);
        }
    }

    /// Number of incomplete packets, and the bytes of their buffers.
    #[must_use]
    pub fn fragments_held(&self) -> (usize, usize) {
        self.reassembly.held()
    }
}

/// A fragment's header for an ICMP error about it: the addresses, and the whole header to quote.
pub(super) fn whole_header(bytes: &[u8], v4: bool) -> Option<Packet> {
    let fragment_head = if v4 { ip::V4_BYTES } else { ip::V6_BYTES };
    let head = bytes.get(..fragment_head)?;
    let (source, destination, hops) = ip::ends(head)?;
    Some(Packet {
        source,
        destination,
        protocol: 0,
        hops,
        ecn: Codepoint::NotEct,
        start: fragment_head,
        end: bytes.len(),
    })
}

fn counters_of_evictions(common: &mut Common, evicted: &mut u64) {
    common.counters.reassemblies_evicted += std::mem::take(evicted);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{Capabilities, Received};
    use crate::wire::Ip;
    use crate::wire::fragment::Piece;
    use crate::{Cidr, Config};
    use std::net::IpAddr;
    use zerocopy::IntoBytes;

    /// The wheel drops nothing before its time: 200,000 completed packets must not be in it.
    #[test]
    fn packets_that_become_whole_leave_no_timers() {
        let own = [IpAddr::from([10, 0, 0, 1]), IpAddr::from([0xfd; 16])];
        let config = Config {
            addresses: own
                .map(|address| Cidr {
                    address,
                    prefix_bits: 24,
                })
                .to_vec(),
            sessions_max: 16,
            ..Config::default()
        };
        let nic = Capabilities::plain([2; 6], 1500);
        let mut stack = Stack::new(config, &nic).expect("a stack");
        let peers = [Ip::v4([10, 0, 0, 2]), Ip([0xfc; 16])];
        let packets = if cfg!(miri) { 400_u32 } else { 200_000 };
        for identification in 0..packets {
            let which = identification as usize % 2;
            let (source, destination) = (peers[which], Ip::from(own[which]));
            for (offset, more) in [(8, false), (0, true)] {
                // Occasionally a fragment is lost.
                if identification.is_multiple_of(1000) && more {
                    continue;
                }
                let piece = Piece {
                    identification,
                    offset,
                    more,
                    len: 8,
                };
                let head = ethernet::HEADER_BYTES + fragment::head_bytes(&source);
                let mut bytes = vec![0; head + piece.len];
                let kind = [ethernet::IPV4, ethernet::IPV6][which];
                let link = Ethernet::new([2; 6], [4; 6], kind);
                bytes[..ethernet::HEADER_BYTES].copy_from_slice(link.as_bytes());
                let before = &mut bytes[ethernet::HEADER_BYTES..head];
                fragment::write(before, (&source, &destination), ip::UDP, 64, &piece);
                let received = Received {
                    bytes: &mut bytes,
                    checksum: ReceivedChecksum::Unknown,
                    segment_bytes: None,
                };
                let now_ns = 1_000_000_000 + u64::from(identification) * 1_000_000;
                stack.receive(now_ns, received);
            }
            stack.transmit(
                1_000_000_000 + u64::from(identification) * 1_000_000,
                &mut |_| true,
            );
            assert!(stack.common.wheel.entries() <= 4, "{identification}");
        }
        let counters = stack.counters();
        let lost = packets.div_ceil(1000);
        assert_eq!(counters.packets_reassembled, u64::from(packets - lost));
        // They time out after 30 s.
        assert!(
            cfg!(miri) || counters.reassemblies_late > 100,
            "{counters:?}"
        );
    }
}

//! Receiving and sending fragments of packets that are longer than the MTU of a link or path.
//!
//! Why here: off the fast path. A received frame gets here by the one branch on the common path
//! that checks for a fragment; a sent packet, if it is too long. Must stay true: a reassembled
//! packet passes the same checks as one that arrived whole; a fragment within a reassembled packet
//! is dropped.
//! Source: RFC 791 section 3.2, RFC 792 (time exceeded), RFC 8200 sections 4.5 and 5, RFC 6946.

use super::reassembly::{Datagram, Outcome, Reassembly};
use super::{Host, Stack};
use crate::frame::ReceivedChecksum;
use crate::shared::Common;
use crate::timer::{Tick, sooner, tick_after};
use crate::wire::Mac;
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
    /// Number of incomplete packets, and the bytes of their buffers.
    #[must_use]
    pub fn fragments_held(&self) -> (usize, usize) {
        self.host.fragments.reassembly.held()
    }
}

/// Fragments of packets that are incomplete, and the timer that drops them.
#[derive(Debug, Default)]
pub(crate) struct Fragments {
    reassembly: Reassembly,
    /// Tick of the entry in the wheel.
    armed: Tick,
}

/// A received fragment.
#[derive(Debug, Clone, Copy)]
struct Received<'f> {
    /// The source's hardware address.
    from: Mac,
    unicast: bool,
    /// The frame was sent by this stack itself.
    from_self: bool,
    /// From the IP header on.
    bytes: &'f [u8],
}

/// Result of a fragment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Arrived {
    /// Nothing is left to do.
    Done,
    /// It is a whole packet, which is parsed here.
    Whole(Packet),
    /// It completed the packet in [`Reassembly::whole`]; true if all its fragments were unicast.
    Reassembled { unicast: bool },
}

impl Fragments {
    /// Adds a fragment to its packet.
    fn arrive(&mut self, common: &mut Common, v4: bool, received: Received<'_>) -> Arrived {
        common.counters.fragments_received += 1;
        let bytes = received.bytes;
        let fragment = if v4 {
            fragment::parse_v4(bytes)
        } else {
            fragment::parse_v6(bytes)
        };
        match fragment {
            Ok(fragment) if is_from_martian(common, &fragment.key, received.from_self) => {
                common.counters.martians += 1;
            }
            Ok(fragment) if is_for_us(common, &fragment.key) => {
                return self.take_in(common, &fragment, received);
            }
            Ok(_) => common.counters.not_ours += 1,
            Err(Bad::Hostile(key)) if !is_for_us(common, &key) => common.counters.not_ours += 1,
            Err(bad) => self.refuse(common, &bad, received),
        }
        Arrived::Done
    }

    fn take_in(
        &mut self,
        common: &mut Common,
        fragment: &Fragment,
        received: Received<'_>,
    ) -> Arrived {
        let bytes = received.bytes;
        if fragment.is_whole() {
            // RFC 6946 section 4: processed alone, even if other fragments have its identification.
            return whole_packet(common, fragment, bytes);
        }
        let from = (received.from, received.unicast);
        let (pool, now_ns) = (&mut common.pool, common.now_ns);
        let outcome = self.reassembly.take_in(pool, fragment, bytes, from, now_ns);
        let counters = &mut common.counters;
        let mut arrived = Arrived::Done;
        match outcome {
            Outcome::Waits | Outcome::Late => {}
            Outcome::Refused => counters.reassemblies_refused += 1,
            Outcome::NoMemory => {
                counters.no_memory += 1;
                counters.reassemblies_evicted += 1;
            }
            Outcome::Whole { unicast } => {
                counters.packets_reassembled += 1;
                arrived = Arrived::Reassembled { unicast };
            }
        }
        self.after_change(common);
        arrived
    }

    fn refuse(&mut self, common: &mut Common, bad: &Bad, received: Received<'_>) {
        match bad {
            Bad::Malformed => common.counters.malformed += 1,
            Bad::Hostile(key) => {
                common.counters.reassemblies_refused += 1;
                let now_ns = common.now_ns;
                self.reassembly.refuse(&mut common.pool, key, now_ns);
                self.after_change(common);
            }
            &Bad::Problem { code, pointer } => {
                common.counters.malformed += 1;
                let bytes = received.bytes;
                let Some(packet) = whole_header(bytes, false) else {
                    return;
                };
                let ours = common.interface.is_ours(&packet.destination);
                if received.unicast && ours && common.allows(&packet, None) {
                    let kind = [PARAMETER_PROBLEM, code];
                    common.push_error_v6(&packet, bytes, received.from, kind, pointer);
                }
            }
        }
    }

    /// Packets were added, and others evicted for them.
    fn after_change(&mut self, common: &mut Common) {
        common.counters.reassemblies_evicted += std::mem::take(&mut self.reassembly.evicted);
        self.arm(common);
    }

    /// Arms the wheel for the next timeout. There is one entry at a time, so that completed packets
    /// leave none behind.
    fn arm(&mut self, common: &mut Common) {
        let Some(next_ns) = self.reassembly.next_ns() else {
            return;
        };
        let next = tick_after(next_ns);
        // Entries in the wheel are never removed; a later deadline is armed when this one expires.
        if sooner(self.armed, next) != self.armed {
            self.armed = next;
            common.wheel.insert(TIMER, next);
        }
    }

    /// The wheel's entry of `tick` has expired.
    #[cold]
    pub(crate) fn expire(&mut self, common: &mut Common, tick: Tick) {
        if self.armed != tick {
            return;
        }
        self.armed = 0;
        while let Some(mut datagram) = self.reassembly.expired(common.now_ns) {
            // A refused one was only remembered: its sender gets no error (RFC 5722 section 4).
            if !datagram.is_refused() {
                common.counters.reassemblies_late += 1;
                report_late(common, &datagram);
            }
            datagram.release(&mut common.pool);
        }
        self.arm(common);
    }

    /// Drops all incomplete packets, without a report.
    pub(crate) fn clear(&mut self, common: &mut Common) {
        while let Some(mut datagram) = self.reassembly.expired(u64::MAX) {
            datagram.release(&mut common.pool);
        }
        *self = Self::default();
    }
}

impl Host {
    /// Processes a fragment.
    #[cold]
    pub(crate) fn arrive_fragment(&mut self, header: &Ethernet, bytes: &[u8]) {
        if self.shard.leave_fragment(header, bytes, self.from_self) {
            return;
        }
        let v4 = header.kind.get() == ethernet::IPV4;
        let received = Received {
            from: header.source,
            unicast: header.is_unicast(),
            from_self: self.from_self,
            bytes,
        };
        match self.fragments.arrive(&mut self.common, v4, received) {
            Arrived::Done => {}
            Arrived::Whole(packet) => {
                let bytes = &bytes[..packet.end];
                self.arrive_once_fragmented(&packet, bytes, header, received.unicast);
            }
            Arrived::Reassembled { unicast } => {
                // The packet's memory is used again for the next one.
                let whole = std::mem::take(&mut self.fragments.reassembly.whole);
                let packet = if v4 {
                    ip::parse_v4(&whole)
                } else {
                    ip::parse_v6(&whole)
                };
                match packet {
                    Ok(packet) => self.arrive_once_fragmented(&packet, &whole, header, unicast),
                    Err(_) => self.common.counters.malformed += 1,
                }
                self.fragments.reassembly.whole = whole;
            }
        }
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
}

fn is_for_us(common: &Common, key: &Key) -> bool {
    let interface = &common.interface;
    interface.is_ours(&key.destination) || interface.is_for_us_too(&key.destination)
}

/// As [`crate::shared::interface::Interface::is_martian`]; a fragment is never part of neighbour
/// discovery (RFC 6980), so the unspecified address is invalid, too.
fn is_from_martian(common: &Common, key: &Key, from_self: bool) -> bool {
    let source = &key.source;
    source.is_martian_source()
        || source.is_unspecified()
        || !from_self && common.interface.is_ours(source)
}

/// A fragment that is the whole packet.
fn whole_packet(common: &mut Common, fragment: &Fragment, bytes: &[u8]) -> Arrived {
    match ip::chain(&bytes[..fragment.end], fragment.head, fragment.protocol) {
        Ok((start, protocol)) if protocol != ip::FRAGMENT => Arrived::Whole(Packet {
            source: fragment.key.source,
            destination: fragment.key.destination,
            protocol,
            hops: fragment.hops,
            ecn: fragment.ecn,
            start,
            end: fragment.end,
        }),
        _ => {
            common.counters.malformed += 1;
            Arrived::Done
        }
    }
}

/// Reports a reassembly timeout to the sender, if its first fragment was received: RFC 792, RFC
/// 8200 section 4.5.
fn report_late(common: &mut Common, datagram: &Datagram) {
    let (source, destination) = datagram.ends();
    let ours = common.interface.is_ours(&destination);
    let Some((bytes, mac)) = datagram.first(&common.pool, ip::V6_MTU_MIN) else {
        return;
    };
    let Some(packet) = whole_header(&bytes, source.is_v4()).filter(|_| ours) else {
        return;
    };
    if !common.allows(&packet, None) {
        return;
    }
    if source.is_v4() {
        common.push_error_v4(&packet, &bytes, mac, TOO_LATE_V4);
    } else {
        common.push_error_v6(&packet, &bytes, mac, TOO_LATE_V6, 0);
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
            assert!(stack.host.common.wheel.entries() <= 4, "{identification}");
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

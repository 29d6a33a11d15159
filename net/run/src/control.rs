//! Control messages of datagrams (ip(7), ipv6(7), cmsg(3)), as programs write and read them.
//!
//! The kernel makes and checks them on a program's own socket. This module handles only addresses
//! that the kernel does not have. Must stay true: any bytes can be parsed. Pure.

use sidecore_sys::control_message::{ControlMessage, ControlMessages, HEADER_BYTES};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The metadata of a datagram in addition to payload and addresses; none: the system's default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Marks {
    /// Time to live, or hop limit.
    pub hops: Option<i32>,
    /// Type of service, or traffic class.
    pub class: Option<i32>,
}

/// Control messages of a datagram to send.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Asked {
    /// Marks that it is to carry.
    pub marks: Marks,
    /// The address to send from.
    pub source: Option<IpAddr>,
    /// Bytes of each datagram if the payload is several (UDP_SEGMENT).
    pub segment_bytes: Option<u16>,
    /// The control messages for the kernel, without addresses that it does not have.
    pub for_kernel: Vec<u8>,
}

impl Asked {
    /// Parses control messages. `is_stacks` is true for addresses that the kernel does not have.
    /// Malformed and unrelated messages are passed to the kernel, which checks them.
    pub fn read(control: &[u8], is_stacks: impl Fn(IpAddr) -> bool) -> Self {
        let mut asked = Self::default();
        let mut judged = 0;
        for block in ControlMessages::new(control) {
            let value = &control[block.value.clone()];
            let number = || value.first_chunk().map(|it| i32::from_ne_bytes(*it));
            // IP_TOS is an `int` or a single byte.
            let small = || number().or_else(|| value.first().map(|it| i32::from(*it)));
            judged = block.whole.end;
            let mut is_kernels = true;
            match (block.level, block.kind) {
                (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => {
                    asked.marks.hops = number().filter(|it| *it >= 0);
                }
                (libc::IPPROTO_IP, libc::IP_TOS) => asked.marks.class = small(),
                (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                    asked.marks.class = number().filter(|it| *it >= 0);
                }
                (libc::SOL_UDP, libc::UDP_SEGMENT) => {
                    let bytes = value.first_chunk().map(|it| u16::from_ne_bytes(*it));
                    asked.segment_bytes = bytes.filter(|bytes| *bytes > 0);
                }
                (libc::IPPROTO_IP, libc::IP_PKTINFO) if value.len() == V4_PLACE_BYTES => {
                    let ip = value[4..].first_chunk::<4>().map(|it| Ipv4Addr::from(*it));
                    asked.source = ip.map(IpAddr::V4);
                }
                (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) if value.len() == V6_PLACE_BYTES => {
                    let ip = value.first_chunk::<16>().map(|it| Ipv6Addr::from(*it));
                    asked.source = ip.map(|ip| crate::address::plain_ip(ip.into()));
                }
                _ => {}
            }
            // The kernel must not see a source address of the stack's, which it does not have.
            if matches!(
                (block.level, block.kind),
                (libc::IPPROTO_IP, libc::IP_PKTINFO) | (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO)
            ) {
                is_kernels = !asked.source.is_some_and(&is_stacks);
            }
            if is_kernels {
                asked.for_kernel.extend(&control[block.whole]);
            }
        }
        // The kernel also gets what follows the last complete message, and reports the error.
        asked
            .for_kernel
            .extend(control.get(judged..).unwrap_or(&[]));
        asked.source = asked.source.filter(|ip| !ip.is_unspecified());
        asked
    }
}

impl Marks {
    /// Encodes them as control messages for a socket of this family.
    pub fn write(self, is_v6: bool) -> Vec<u8> {
        let (level, hops, class) = if is_v6 {
            (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT, libc::IPV6_TCLASS)
        } else {
            (libc::IPPROTO_IP, libc::IP_TTL, libc::IP_TOS)
        };
        let mut control = Vec::new();
        for (kind, value) in [(hops, self.hops), (class, self.class)] {
            let Some(value) = value else {
                continue;
            };
            control.extend((HEADER_BYTES + 4).to_ne_bytes());
            control.extend(level.to_ne_bytes());
            control.extend(kind.to_ne_bytes());
            control.extend(value.to_ne_bytes());
            // CMSG_ALIGN: the next header is at a multiple of 8 bytes.
            control.extend([0; 4]);
        }
        control
    }

    /// Decodes control messages that the kernel made.
    pub fn read(control: &[u8]) -> Self {
        Asked::read(control, |_| false).marks
    }
}

/// Replaces the destination address in control messages that the kernel made, unless they were
/// truncated.
pub fn set_destination(control: &mut [u8], to: IpAddr) {
    let blocks: Vec<ControlMessage> = ControlMessages::new(control).collect();
    for block in blocks {
        let value = &mut control[block.value];
        match (block.level, block.kind) {
            (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                if let (IpAddr::V4(ip), Some(places)) = (to, value.get_mut(4..12)) {
                    // `ipi_spec_dst` and `ipi_addr`: one address for a datagram that came in.
                    places.copy_from_slice(&[ip.octets(), ip.octets()].concat());
                }
            }
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                let ip = match to {
                    IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                    IpAddr::V6(ip) => ip,
                };
                if let Some(place) = value.get_mut(..16) {
                    place.copy_from_slice(&ip.octets());
                }
            }
            _ => {}
        }
    }
}

/// Replaces the offender in control messages of the error queue, which the kernel made for an
/// address of its loopback: the destination itself has refused the datagram.
pub(crate) fn set_offender(control: &mut [u8], peer: IpAddr) {
    let blocks: Vec<ControlMessage> = ControlMessages::new(control).collect();
    for block in blocks {
        let value = &mut control[block.value];
        match (block.level, block.kind) {
            (libc::IPPROTO_IP, libc::IP_RECVERR) => {
                if let (IpAddr::V4(ip), Some(place)) = (peer, value.get_mut(20..24)) {
                    place.copy_from_slice(&ip.octets());
                }
            }
            (libc::IPPROTO_IPV6, libc::IPV6_RECVERR) => {
                let ip = match peer {
                    IpAddr::V4(ip) => {
                        // "Port unreachable" of ICMP in place of ICMPv6's.
                        if let Some(place) = value.get_mut(4..7) {
                            place.copy_from_slice(&[SO_EE_ORIGIN_ICMP, 3, 3]);
                        }
                        ip.to_ipv6_mapped()
                    }
                    IpAddr::V6(ip) => ip,
                };
                if let Some(place) = value.get_mut(24..40) {
                    place.copy_from_slice(&ip.octets());
                }
            }
            _ => {}
        }
    }
}

/// `include/uapi/linux/errqueue.h`.
const SO_EE_ORIGIN_ICMP: u8 = 2;
/// `struct in_pktinfo` and `struct in6_pktinfo`.
const V4_PLACE_BYTES: usize = 12;
const V6_PLACE_BYTES: usize = 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn block(level: i32, kind: i32, value: &[u8]) -> Vec<u8> {
        let mut block = (HEADER_BYTES + value.len() as u64).to_ne_bytes().to_vec();
        block.extend(level.to_ne_bytes());
        block.extend(kind.to_ne_bytes());
        block.extend(value);
        block.resize(block.len().next_multiple_of(8), 0);
        block
    }

    #[test]
    fn marks_come_back() {
        let marks = Marks {
            hops: Some(7),
            class: Some(0x2e << 2),
        };
        for is_v6 in [false, true] {
            assert_eq!(Marks::read(&marks.write(is_v6)), marks);
        }
        assert!(Marks::default().write(true).is_empty());
        let small = block(libc::IPPROTO_IP, libc::IP_TOS, &[3]);
        assert_eq!(Marks::read(&small).class, Some(3));
    }

    #[test]
    fn an_address_that_the_kernel_lacks_is_not_shown_to_it() {
        let place = |ip: [u8; 4]| [&[0; 4], ip.as_slice(), &[0; 4]].concat();
        let hops = block(libc::IPPROTO_IP, libc::IP_TTL, &9i32.to_ne_bytes());
        let stacks = block(libc::IPPROTO_IP, libc::IP_PKTINFO, &place([10, 0, 0, 1]));
        let is_stacks = |ip| ip == IpAddr::from([10, 0, 0, 1]);
        let asked = Asked::read(&[stacks, hops.clone()].concat(), is_stacks);
        assert_eq!(asked.source, Some(IpAddr::from([10, 0, 0, 1])));
        assert_eq!(asked.for_kernel, hops);
        let near = block(libc::IPPROTO_IP, libc::IP_PKTINFO, &place([127, 0, 0, 2]));
        let asked = Asked::read(&near, is_stacks);
        assert_eq!(asked.source, Some(IpAddr::from([127, 0, 0, 2])));
        assert_eq!(asked.for_kernel, near);
    }

    #[test]
    fn whatever_is_given_is_read() {
        for length in 0..40 {
            let odd: Vec<u8> = (0..length).collect();
            assert_eq!(Asked::read(&odd, |_| true).for_kernel, odd);
        }
        let endless = [[255; 8], [0; 8]].concat();
        assert_eq!(Asked::read(&endless, |_| true).for_kernel, endless);
        let short = 3u64.to_ne_bytes().repeat(3);
        assert_eq!(Asked::read(&short, |_| true).for_kernel, short);
    }

    #[test]
    fn the_destination_is_set_where_it_is_whole() {
        let mut control = block(libc::IPPROTO_IP, libc::IP_PKTINFO, &[1; 12]);
        set_destination(&mut control, IpAddr::from([10, 0, 0, 2]));
        assert_eq!(control[16..28], [1, 1, 1, 1, 10, 0, 0, 2, 10, 0, 0, 2]);
        let mut cut = block(libc::IPPROTO_IP, libc::IP_PKTINFO, &[1; 6]);
        set_destination(&mut cut, IpAddr::from([10, 0, 0, 2]));
        assert_eq!(cut[16..22], [1; 6]);
        let mut control = block(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &[1; 20]);
        set_destination(&mut control, IpAddr::from([10, 0, 0, 2]));
        assert_eq!(control[26..33], [255, 255, 10, 0, 0, 2, 1]);
    }

    #[test]
    fn the_offender_is_set_where_it_is_whole() {
        let mut control = block(libc::IPPROTO_IP, libc::IP_RECVERR, &[1; 32]);
        set_offender(&mut control, IpAddr::from([10, 0, 0, 2]));
        assert_eq!(control[34..42], [1, 1, 10, 0, 0, 2, 1, 1]);
        let mut control = block(libc::IPPROTO_IPV6, libc::IPV6_RECVERR, &[1; 44]);
        set_offender(&mut control, IpAddr::from([10, 0, 0, 2]));
        assert_eq!(control[20..24], [2, 3, 3, 1]);
        assert_eq!(
            control[40..57],
            [&[0; 10], &[255, 255, 10, 0, 0, 2, 1][..]].concat()
        );
        let mut cut = block(libc::IPPROTO_IP, libc::IP_RECVERR, &[1; 22]);
        set_offender(&mut cut, IpAddr::from([10, 0, 0, 2]));
        assert_eq!(cut[16..38], [1; 22]);
    }
}

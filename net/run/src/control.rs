//! Control messages of datagrams (ip(7), ipv6(7), cmsg(3)), as programs write and read them.
//!
//! The kernel makes and checks them on a program's own socket. This module handles only addresses
//! that the kernel does not have, and ICMP errors that it has not received. Must stay true: any
//! bytes can be parsed. Pure.

pub use sidecore_sys::control_message::set_destination;

use rustix::io::Errno;
use sidecore_net::IcmpError;
use sidecore_sys::control_message::{ControlMessage, ControlMessages, HEADER_BYTES};
use std::collections::VecDeque;
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
    /// Marks that it is to carry if it goes over IPv4, and those over IPv6: as in the kernel, each
    /// has those of its own level alone ([`Self::marks`]).
    by_family: [Marks; 2],
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
            let [v4, v6] = &mut asked.by_family;
            match (block.level, block.kind) {
                (libc::IPPROTO_IP, libc::IP_TTL) => v4.hops = number().filter(|it| *it >= 0),
                (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => {
                    v6.hops = number().filter(|it| *it >= 0);
                }
                (libc::IPPROTO_IP, libc::IP_TOS) => v4.class = small(),
                (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                    v6.class = number().filter(|it| *it >= 0);
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

    /// Those of a datagram to this host, whose family counts: a socket of IPv6 sends to IPv4-mapped
    /// addresses by IPv4.
    pub(crate) fn marks(&self, to: IpAddr) -> Marks {
        self.by_family[usize::from(to.is_ipv6())]
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
        // It makes those of the family alone.
        let [v4, v6] = Asked::read(control, |_| false).by_family;
        Self {
            hops: v4.hops.or(v6.hops),
            class: v4.class.or(v6.class),
        }
    }
}

/// Writes an ICMP error into control messages of the error queue (`struct sock_extended_err`),
/// which the kernel made for a refusal by an address of its loopback, unless they were truncated.
pub(crate) fn set_error(control: &mut [u8], error: &IcmpError) {
    let (errno, _) = errno_of(error);
    let origin = match error.from {
        IpAddr::V4(_) => SO_EE_ORIGIN_ICMP,
        IpAddr::V6(_) => SO_EE_ORIGIN_ICMP6,
    };
    let blocks: Vec<ControlMessage> = ControlMessages::new(control).collect();
    for block in blocks {
        let (level, kind) = (block.level, block.kind);
        let value = &mut control[block.value];
        // The offender's address follows the error's 16 bytes, as `sockaddr_in` or `sockaddr_in6`.
        let (at, offender) = match (level, kind, error.from) {
            (libc::IPPROTO_IP, libc::IP_RECVERR, IpAddr::V4(ip)) => (20, ip.octets().to_vec()),
            (libc::IPPROTO_IPV6, libc::IPV6_RECVERR, IpAddr::V4(ip)) => {
                (24, ip.to_ipv6_mapped().octets().to_vec())
            }
            (libc::IPPROTO_IPV6, libc::IPV6_RECVERR, IpAddr::V6(ip)) => (24, ip.octets().to_vec()),
            _ => continue,
        };
        let Some(place) = value.get_mut(at..at + offender.len()) else {
            continue;
        };
        place.copy_from_slice(&offender);
        value[..4].copy_from_slice(&errno.raw_os_error().to_ne_bytes());
        value[4..7].copy_from_slice(&[origin, error.kind, error.code]);
        value[8..12].copy_from_slice(&error.info.to_ne_bytes());
    }
}

/// The error number of an ICMP error, and true if a socket with a peer gets it without asking for
/// errors, as the kernel's `icmp_err_convert` and `icmpv6_err_convert` have it.
pub(crate) fn errno_of(error: &IcmpError) -> (Errno, bool) {
    match (error.from, error.kind, error.code) {
        (IpAddr::V4(_), 3, 0 | 11) => (Errno::NETUNREACH, false),
        (IpAddr::V4(_), 3, 2) => (Errno::NOPROTOOPT, true),
        (IpAddr::V4(_), 3, 3) => (Errno::CONNREFUSED, true),
        (IpAddr::V4(_), 3, 4) => (Errno::MSGSIZE, true),
        (IpAddr::V4(_), 3, 5) => (Errno::OPNOTSUPP, false),
        (IpAddr::V4(_), 3, 6 | 9) => (Errno::NETUNREACH, true),
        (IpAddr::V4(_), 3, 7) => (Errno::HOSTDOWN, true),
        (IpAddr::V4(_), 3, 8) => (Errno::NONET, true),
        (IpAddr::V4(_), 3, 10 | 13..=15) => (Errno::HOSTUNREACH, true),
        (IpAddr::V4(_), 12, _) => (Errno::PROTO, true),
        (IpAddr::V6(_), 1, 0) => (Errno::NETUNREACH, false),
        (IpAddr::V6(_), 1, 1 | 5 | 6) => (Errno::ACCESS, true),
        (IpAddr::V6(_), 1, 2 | 3) => (Errno::HOSTUNREACH, false),
        (IpAddr::V6(_), 1, 4) => (Errno::CONNREFUSED, true),
        (IpAddr::V6(_), 2, _) => (Errno::MSGSIZE, true),
        (IpAddr::V6(_), 1 | 4, _) => (Errno::PROTO, true),
        // Host unreachable, and time exceeded.
        _ => (Errno::HOSTUNREACH, false),
    }
}

/// "Port unreachable" of this destination.
pub(crate) fn refused_by(ip: IpAddr) -> IcmpError {
    let (kind, code) = match ip {
        IpAddr::V4(_) => (3, 3),
        IpAddr::V6(_) => (1, 4),
    };
    IcmpError {
        kind,
        code,
        info: 0,
        from: ip,
    }
}

/// The ICMP errors of one datagram socket that the kernel has reported as refusals.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    /// Those that its error queue may have, in their order, with the payloads.
    noted: VecDeque<(Vec<u8>, IcmpError)>,
    /// The error of the next call, in place of the kernel's ECONNREFUSED.
    next: Option<Errno>,
    /// An error of the next call that the kernel does not report any more.
    held: Option<Errno>,
}

impl Faults {
    /// The kernel will report this error about a datagram with this payload.
    pub(crate) fn note(&mut self, payload: &[u8], error: IcmpError) {
        if self.noted.len() == FAULTS_MAX {
            self.noted.pop_front();
        }
        self.noted.push_back((payload.to_vec(), error));
        self.next = Some(errno_of(&error).0);
        self.held = None;
    }

    /// The kernel's error was taken: the next call that the supervisor sees has it.
    pub(crate) fn hold(&mut self) {
        self.held = self.next.take();
    }

    /// The error that is held, once.
    pub(crate) fn take_held(&mut self) -> Option<Errno> {
        self.held.take()
    }

    /// The error number in place of the kernel's.
    pub(crate) fn translate(&mut self, error: Errno) -> Errno {
        match error {
            Errno::CONNREFUSED => self.next.take().unwrap_or(error),
            _ => error,
        }
    }

    /// The error that SO_ERROR reports and clears, where the kernel's own is this.
    pub(crate) fn settle(&mut self, kernel: Option<Errno>) -> Option<Errno> {
        match kernel {
            Some(error) => Some(self.translate(error)),
            None => {
                // A call that went to the kernel alone has taken it.
                self.next = None;
                self.held.take()
            }
        }
    }

    /// True if a call may have an error that is not the kernel's.
    pub(crate) fn are_pending(&self) -> bool {
        self.next.is_some() || self.held.is_some()
    }

    /// The error of an entry of the queue with this payload, of which the end may be cut off.
    pub(crate) fn take(&mut self, payload: &[u8]) -> Option<IcmpError> {
        // As in the kernel, an error that was read from the queue is not the next call's.
        self.held = None;
        let mut noted = self.noted.iter();
        let at = noted.position(|(whole, _)| whole.starts_with(payload))?;
        // Entries of the earlier ones were dropped for want of memory.
        self.noted.drain(..=at).next_back().map(|(_, error)| error)
    }
}

/// Errors of one socket that are kept.
const FAULTS_MAX: usize = 64;
/// `include/uapi/linux/errqueue.h`.
const SO_EE_ORIGIN_ICMP: u8 = 2;
const SO_EE_ORIGIN_ICMP6: u8 = 3;
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

    /// `ip_cmsg_send` and `ip6_datagram_send_ctl` pass over the other's level.
    #[test]
    fn a_class_is_that_of_the_destination_s_family() {
        let number = |value: i32| value.to_ne_bytes();
        let tos = block(libc::IPPROTO_IP, libc::IP_TOS, &number(1));
        let class = block(libc::IPPROTO_IPV6, libc::IPV6_TCLASS, &number(2));
        let hops = block(libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT, &number(3));
        let asked = Asked::read(&[tos, class, hops].concat(), |_| false);
        let over = |ip: &str| asked.marks(ip.parse().unwrap());
        let (v4, v6) = (over("10.0.0.1"), over("fd91::1"));
        assert_eq!((v4.hops, v4.class), (None, Some(1)));
        assert_eq!((v6.hops, v6.class), (Some(3), Some(2)));
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
    fn an_error_is_written_where_there_is_room_for_all_of_it() {
        let mut control = block(libc::IPPROTO_IP, libc::IP_RECVERR, &[1; 32]);
        let too_big = IcmpError {
            kind: 3,
            code: 4,
            info: 1400,
            from: IpAddr::from([10, 0, 0, 2]),
        };
        set_error(&mut control, &too_big);
        let errno = libc::EMSGSIZE.to_ne_bytes();
        assert_eq!(control[16..20], errno);
        assert_eq!(control[20..24], [2, 3, 4, 1]);
        assert_eq!(control[24..28], 1400_u32.to_ne_bytes());
        assert_eq!(control[34..42], [1, 1, 10, 0, 0, 2, 1, 1]);
        // An IPv4 error of an IPv6 socket.
        let mut control = block(libc::IPPROTO_IPV6, libc::IPV6_RECVERR, &[1; 44]);
        set_error(&mut control, &refused_by(IpAddr::from([10, 0, 0, 2])));
        assert_eq!(control[16..20], libc::ECONNREFUSED.to_ne_bytes());
        assert_eq!(control[20..24], [2, 3, 3, 1]);
        assert_eq!(
            control[40..57],
            [&[0; 10], &[255, 255, 10, 0, 0, 2, 1][..]].concat()
        );
        set_error(&mut control, &refused_by(Ipv6Addr::LOCALHOST.into()));
        assert_eq!(control[20..24], [3, 1, 4, 1]);
        let mut cut = block(libc::IPPROTO_IP, libc::IP_RECVERR, &[1; 22]);
        set_error(&mut cut, &too_big);
        assert_eq!(cut[16..38], [1; 22]);
    }

    #[test]
    fn errors_have_the_kernels_numbers() {
        let v4 = IpAddr::from([10, 0, 0, 2]);
        let v6 = IpAddr::from(Ipv6Addr::LOCALHOST);
        for (from, kind, code, errno, is_hard) in [
            (v4, 3, 0, Errno::NETUNREACH, false),
            (v4, 3, 1, Errno::HOSTUNREACH, false),
            (v4, 3, 2, Errno::NOPROTOOPT, true),
            (v4, 3, 13, Errno::HOSTUNREACH, true),
            (v4, 11, 0, Errno::HOSTUNREACH, false),
            (v4, 12, 0, Errno::PROTO, true),
            (v6, 1, 1, Errno::ACCESS, true),
            (v6, 1, 3, Errno::HOSTUNREACH, false),
            (v6, 2, 0, Errno::MSGSIZE, true),
            (v6, 3, 0, Errno::HOSTUNREACH, false),
            (v6, 4, 1, Errno::PROTO, true),
        ] {
            let error = IcmpError {
                kind,
                code,
                info: 0,
                from,
            };
            assert_eq!(errno_of(&error), (errno, is_hard), "{error:?}");
        }
        for ip in [v4, v6] {
            assert_eq!(errno_of(&refused_by(ip)), (Errno::CONNREFUSED, true));
        }
    }

    #[test]
    fn an_error_is_that_of_its_payload_and_of_one_call() {
        let of = |code| IcmpError {
            kind: 3,
            code,
            info: 0,
            from: IpAddr::from([10, 0, 0, 2]),
        };
        let mut faults = Faults::default();
        for (payload, code) in [(&b"one"[..], 0), (&b"two"[..], 2), (&b"three"[..], 13)] {
            faults.note(payload, of(code));
        }
        assert!(faults.are_pending());
        assert_eq!(faults.translate(Errno::AGAIN), Errno::AGAIN);
        assert_eq!(faults.translate(Errno::CONNREFUSED), Errno::HOSTUNREACH);
        assert_eq!(faults.translate(Errno::CONNREFUSED), Errno::CONNREFUSED);
        // The program's room for the payload cuts it off.
        assert_eq!(faults.take(b"tw"), Some(of(2)));
        assert_eq!(faults.take(b"one"), None);
        assert_eq!(faults.take(b"other"), None);
        faults.note(b"taken", of(1));
        assert_eq!(faults.settle(None), None);
        assert!(!faults.are_pending());
        faults.note(b"four", of(4));
        faults.hold();
        assert_eq!(faults.translate(Errno::CONNREFUSED), Errno::CONNREFUSED);
        assert_eq!(faults.take_held(), Some(Errno::MSGSIZE));
        assert!(!faults.are_pending());
        for _ in 0..3 * FAULTS_MAX {
            faults.note(b"x", of(1));
        }
        assert_eq!(faults.noted.len(), FAULTS_MAX);
    }
}

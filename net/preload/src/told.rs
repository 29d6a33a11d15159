//! Control messages of datagrams by rings: those that describe what is received, and those with
//! wishes about what is sent.
//!
//! Must stay true: what is received is described as the kernel does it (`ip_cmsg_recv_offset`,
//! `ip6_datagram_recv_common_ctl`, `ip6_datagram_recv_specific_ctl`, `put_cmsg`), where there is
//! little room, too; wishes that the kernel, or the supervisor, would judge are left to them.

use crate::real::{bytes_at, is_in_first_page};
use sidecore_bare::width::ToUsize;
use sidecore_net_rings::datagram::{
    Head, TELLS_CLASS, TELLS_CLASS_V6, TELLS_HOPS, TELLS_HOPS_V6, TELLS_PLACE, TELLS_PLACE_V6,
};
use sidecore_sys::control_message::{ControlMessages, HEADER_BYTES};
use std::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ptr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Addresses at which datagrams have come to this process, by their hashes: it may send from them.
static OWN: [AtomicU64; OWN_MAX] = [const { AtomicU64::new(0) }; OWN_MAX];
static OWN_NEXT: AtomicUsize = AtomicUsize::new(0);

/// Writes the control messages that a program has requested (`told`) to where the header says that
/// there is room, of which it is left with what was used.
///
/// # Safety
/// As for recvmsg(2).
pub(crate) unsafe fn describe(header: &mut libc::msghdr, told: u32, head: &Head) {
    let mut room = Room {
        at: header.msg_control.cast(),
        left: header.msg_controllen as _,
        used: 0,
        is_cut: false,
    };
    let is_told = |bit| told & bit != 0;
    let (hops, class) = head.marks();
    let hops = c_int::from(hops).to_ne_bytes();
    let mut put = |level, kind, value: &[u8]| {
        // SAFETY: by the caller.
        unsafe { room.put(level, kind, value) };
    };
    if is_told(TELLS_PLACE | TELLS_PLACE_V6) {
        note_own(head.to);
    }
    if is_told(TELLS_PLACE_V6) {
        let ip = match head.to {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        let mut place = [0; 20];
        place[..16].copy_from_slice(&ip.octets());
        place[16..].copy_from_slice(&LINK.to_ne_bytes());
        put(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &place);
    }
    match head.to {
        IpAddr::V4(ip) => {
            if is_told(TELLS_PLACE) {
                let mut place = [0; 12];
                place[..4].copy_from_slice(&LINK.to_ne_bytes());
                place[4..8].copy_from_slice(&ip.octets());
                place[8..].copy_from_slice(&ip.octets());
                put(libc::IPPROTO_IP, libc::IP_PKTINFO, &place);
            }
            if is_told(TELLS_HOPS) {
                put(libc::IPPROTO_IP, libc::IP_TTL, &hops);
            }
            if is_told(TELLS_CLASS) {
                put(libc::IPPROTO_IP, libc::IP_TOS, &[class]);
            }
        }
        IpAddr::V6(_) => {
            if is_told(TELLS_HOPS_V6) {
                put(libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT, &hops);
            }
            if is_told(TELLS_CLASS_V6) {
                let class = c_int::from(class).to_ne_bytes();
                put(libc::IPPROTO_IPV6, libc::IPV6_TCLASS, &class);
            }
        }
    }
    // Its type differs between C libraries.
    header.msg_controllen = room.used as _;
    if room.is_cut {
        header.msg_flags |= libc::MSG_CTRUNC;
    }
}

/// A program's room for control messages.
struct Room {
    at: *mut u8,
    left: usize,
    used: usize,
    is_cut: bool,
}

impl Room {
    /// Writes one, as much of it as there is room for.
    ///
    /// # Safety
    /// The room is the program's.
    unsafe fn put(&mut self, level: c_int, kind: c_int, value: &[u8]) {
        let header_bytes = HEADER_BYTES.to_usize();
        if self.at.is_null() || self.left < header_bytes {
            self.is_cut = true;
            return;
        }
        let whole = header_bytes + value.len();
        let bytes = whole.min(self.left);
        self.is_cut |= bytes < whole;
        // As in the kernel, what cannot be written takes no room: nothing reads it later.
        if is_in_first_page(self.at.addr()) {
            return;
        }
        let mut header = [0; HEADER_BYTES as usize];
        header[..8].copy_from_slice(&bytes.to_ne_bytes());
        header[8..12].copy_from_slice(&level.to_ne_bytes());
        header[12..].copy_from_slice(&kind.to_ne_bytes());
        // SAFETY: by the caller, and by the room that is left: the header fits, and `bytes` do.
        unsafe {
            ptr::copy_nonoverlapping(header.as_ptr(), self.at, header_bytes);
            let to = self.at.add(header_bytes);
            ptr::copy_nonoverlapping(value.as_ptr(), to, bytes - header_bytes);
        }
        // The padding is left as it is.
        let taken = whole.next_multiple_of(8).min(self.left);
        // SAFETY: within the room, or at its end.
        self.at = unsafe { self.at.add(taken) };
        self.left -= taken;
        self.used += taken;
    }
}

/// Wishes of a program's control messages for a datagram to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Wishes {
    /// Bytes of each datagram if the payload is several (UDP_SEGMENT), else 0.
    pub(crate) segment_bytes: u16,
    /// Its traffic class over IPv4 and over IPv6: the kernel reads the messages of the family of
    /// the destination, and passes over the others.
    pub(crate) classes: [Option<u8>; 2],
    /// It names the address to send from, one of this process's.
    pub(crate) has_source: bool,
}

impl Wishes {
    /// Those of a message; none if it has others, or some that the kernel may refuse.
    ///
    /// # Safety
    /// The header is the program's.
    pub(crate) unsafe fn of(header: &libc::msghdr) -> Option<Self> {
        let bytes: usize = header.msg_controllen as _;
        if bytes == 0 {
            return Some(Self::default());
        }
        if bytes > CONTROL_BYTES_MAX || is_in_first_page(header.msg_control.addr()) {
            return None;
        }
        // SAFETY: by the caller.
        Self::read(unsafe { bytes_at(header.msg_control.cast(), bytes) })
    }

    fn read(control: &[u8]) -> Option<Self> {
        let mut wishes = Self::default();
        let mut judged = 0;
        for block in ControlMessages::new(control) {
            judged = block.whole.end;
            let value = control.get(block.value)?;
            let number = || Some(c_int::from_ne_bytes(exactly(value)?));
            match (block.level, block.kind) {
                (libc::SOL_UDP, libc::UDP_SEGMENT) => {
                    wishes.segment_bytes = u16::from_ne_bytes(exactly(value)?);
                    // The kernel judges what is none.
                    (wishes.segment_bytes > 0).then_some(())?;
                }
                (libc::IPPROTO_IP, libc::IP_TOS) => {
                    let class = match value {
                        [class] => Some(*class),
                        _ => u8::try_from(number()?).ok(),
                    };
                    wishes.classes[0] = Some(class?);
                }
                (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                    wishes.classes[1] = match number()? {
                        -1 => None,
                        class => Some(u8::try_from(class).ok()?),
                    };
                }
                (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                    let place: [u8; 12] = exactly(value)?;
                    let ip: [u8; 4] = *place[4..].first_chunk()?;
                    wishes.has_source = true;
                    is_own(Ipv4Addr::from(ip).into()).then_some(())?;
                }
                (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                    let place: [u8; 20] = exactly(value)?;
                    let ip = Ipv6Addr::from(*place.first_chunk::<16>()?);
                    let mapped = ip.to_ipv4_mapped().map(IpAddr::V4);
                    wishes.has_source = true;
                    is_own(mapped.unwrap_or(IpAddr::V6(ip))).then_some(())?;
                }
                _ => return None,
            }
        }
        (judged == control.len()).then_some(wishes)
    }
}

/// A value of just this length.
fn exactly<const N: usize>(value: &[u8]) -> Option<[u8; N]> {
    value.try_into().ok()
}

fn note_own(ip: IpAddr) {
    if is_own(ip) {
        return;
    }
    // Relaxed: an address that two threads note takes two places.
    let next = OWN_NEXT.fetch_add(1, Ordering::Relaxed);
    OWN[next % OWN_MAX].store(hash_of(ip), Ordering::Relaxed);
}

fn is_own(ip: IpAddr) -> bool {
    let hash = hash_of(ip);
    OWN.iter().any(|own| own.load(Ordering::Relaxed) == hash)
}

/// FNV-1a; 0 is no address's.
fn hash_of(ip: IpAddr) -> u64 {
    let octets = match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    };
    let step = |hash: u64, octet: &u8| (hash ^ u64::from(*octet)).wrapping_mul(0x100_0000_01b3);
    octets.iter().fold(0xcbf2_9ce4_8422_2325, step).max(1)
}

/// `lo`, at which the kernel would have the datagram from the supervisor.
const LINK: c_int = 1;
const OWN_MAX: usize = 8;
/// Control messages among which wishes are looked for.
const CONTROL_BYTES_MAX: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;

    fn block(level: c_int, kind: c_int, value: &[u8]) -> Vec<u8> {
        let mut block = (HEADER_BYTES.to_usize() + value.len())
            .to_ne_bytes()
            .to_vec();
        block.extend(level.to_ne_bytes());
        block.extend(kind.to_ne_bytes());
        block.extend(value);
        block.resize(block.len().next_multiple_of(8), 0);
        block
    }

    fn number(value: c_int) -> [u8; 4] {
        value.to_ne_bytes()
    }

    #[test]
    fn wishes_that_the_kernel_may_refuse_are_left_to_it() {
        let read = |blocks: &[Vec<u8>]| Wishes::read(&blocks.concat());
        let (tos, tclass) = (
            (libc::IPPROTO_IP, libc::IP_TOS),
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS),
        );
        let of = |(level, kind): (c_int, c_int), value: &[u8]| block(level, kind, value);
        let segment = |bytes: u16| block(libc::SOL_UDP, libc::UDP_SEGMENT, &bytes.to_ne_bytes());
        let classes = |v4, v6| {
            Some(Wishes {
                classes: [v4, v6],
                ..Wishes::default()
            })
        };
        assert_eq!(read(&[]), classes(None, None));
        assert_eq!(read(&[of(tos, &[2])]), classes(Some(2), None));
        assert_eq!(read(&[of(tos, &number(255))]), classes(Some(255), None));
        assert_eq!(read(&[of(tclass, &number(1))]), classes(None, Some(1)));
        assert_eq!(read(&[of(tclass, &number(-1))]), classes(None, None));
        let two = [of(tos, &[2]), of(tclass, &number(1))];
        assert_eq!(read(&two), classes(Some(2), Some(1)));
        let both = Wishes {
            segment_bytes: 1200,
            classes: [Some(1), None],
            has_source: false,
        };
        assert_eq!(read(&[of(tos, &number(1)), segment(1200)]), Some(both));
        for refused in [
            of(tos, &number(256)),
            of(tos, &number(-1)),
            of(tos, &[1, 2]),
            of(tclass, &number(256)),
            of(tclass, &number(-2)),
            of(tclass, &[1]),
            segment(0),
            block(libc::SOL_SOCKET, libc::SO_MARK, &number(1)),
            block(libc::IPPROTO_IP, libc::IP_PKTINFO, &[1; 11]),
            vec![0; 7],
            vec![0; 16],
        ] {
            assert_eq!(read(std::slice::from_ref(&refused)), None, "{refused:?}");
        }
        // An address from which datagrams have come is one to send from.
        let place = |octet| {
            block(
                libc::IPPROTO_IP,
                libc::IP_PKTINFO,
                &[[0; 4], [octet; 4], [0; 4]].concat(),
            )
        };
        assert_eq!(read(&[place(91)]), None);
        note_own(IpAddr::from([91; 4]));
        assert!(read(&[place(91)]).is_some_and(|it| it.has_source));
        assert_eq!(read(&[place(92)]), None);
    }

    #[test]
    fn hashes_of_addresses_differ() {
        let of = |text: &str| hash_of(text.parse().unwrap());
        assert_eq!(of("10.0.0.1"), of("::ffff:10.0.0.1"));
        assert_ne!(of("10.0.0.2"), of("10.0.0.3"));
        assert_ne!(of("fd91::2"), of("fd91::4"));
    }

    #[test]
    fn nothing_is_written_beyond_the_room() {
        let head = Head {
            bytes: 1,
            peer: SocketAddr::from(([10, 0, 0, 1], 1)),
            to: IpAddr::from([10, 0, 0, 2]),
            segment_bytes: 0,
        };
        let head = head.with_marks(61, 3);
        for room in 0..80 {
            let mut control = [0xaa_u8; 128];
            // SAFETY: zeros are an empty message.
            let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
            header.msg_control = control.as_mut_ptr().cast();
            header.msg_controllen = room as _;
            // SAFETY: the room is that of the array.
            unsafe { describe(&mut header, TELLS_PLACE | TELLS_HOPS | TELLS_CLASS, &head) };
            let used: usize = header.msg_controllen as _;
            assert!(used <= room && control[room..].iter().all(|it| *it == 0xaa));
            // 16 + 12, padded; 16 + 4, padded; 16 + 1.
            assert_eq!(
                header.msg_flags & libc::MSG_CTRUNC != 0,
                room < 73,
                "{room}"
            );
        }
        // Nowhere: what is said to be there would be read.
        // SAFETY: zeros are an empty message.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        header.msg_control = ptr::without_provenance_mut(1);
        header.msg_controllen = 128;
        // SAFETY: nothing is written to the first page.
        unsafe { describe(&mut header, TELLS_PLACE | TELLS_CLASS, &head) };
        assert_eq!((header.msg_controllen, header.msg_flags), (0, 0));
    }
}

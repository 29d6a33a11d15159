//! Control messages of sendmsg(2) and recvmsg(2), as bytes (cmsg(3)).
//!
//! Why here: a program's messages are judged outside it and inside it by one rule. Must stay true:
//! any bytes can be read. Pure.

use rustix::io::Errno;
use sidecore_bare::width::ToUsize;
use std::net::IpAddr;
use std::ops::Range;

/// One control message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControlMessage {
    /// Its level, as of a socket option.
    pub level: i32,
    /// Its kind, a number of that level.
    pub kind: i32,
    /// Its range, with the padding up to the next one.
    pub whole: Range<usize>,
    /// Range of its value.
    pub value: Range<usize>,
}

/// Control messages one behind the other; ends where one is malformed.
#[derive(Debug, Clone)]
pub struct ControlMessages<'c> {
    control: &'c [u8],
    at: usize,
}

impl<'c> ControlMessages<'c> {
    /// Those in `control`.
    #[must_use]
    pub fn new(control: &'c [u8]) -> Self {
        Self { control, at: 0 }
    }
}

impl Iterator for ControlMessages<'_> {
    type Item = ControlMessage;

    fn next(&mut self) -> Option<ControlMessage> {
        let Self { control, at } = *self;
        let header = control
            .get(at..)?
            .first_chunk::<{ HEADER_BYTES as usize }>()?;
        let number = |at: usize| {
            let bytes = header[at..].first_chunk();
            bytes.map_or(0, |bytes| i32::from_ne_bytes(*bytes))
        };
        let bytes = u64::from_ne_bytes(*header.first_chunk()?);
        let end = at.checked_add(usize::try_from(bytes).ok()?)?;
        if bytes < HEADER_BYTES || end > control.len() {
            return None;
        }
        let next = end.next_multiple_of(8).min(control.len());
        self.at = next;
        Some(ControlMessage {
            level: number(8),
            kind: number(12),
            whole: at..next,
            value: at + HEADER_BYTES.to_usize()..end,
        })
    }
}

/// Replaces the destination address in control messages that the kernel made (IP_PKTINFO,
/// IPV6_PKTINFO), unless they were truncated. Allocates nothing: a signal handler may call it.
pub fn set_destination(control: &mut [u8], to: IpAddr) {
    let mut at = 0;
    while let Some(block) = (ControlMessages { control, at }).next() {
        at = block.whole.end;
        let value = &mut control[block.value];
        match (block.level, block.kind) {
            (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                if let (IpAddr::V4(ip), Some(places)) = (to, value.get_mut(4..12)) {
                    // `ipi_spec_dst` and `ipi_addr`: one address for a datagram that came in.
                    places[..4].copy_from_slice(&ip.octets());
                    places[4..].copy_from_slice(&ip.octets());
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

/// Judges control messages that a program sends on a TCP connection, as the kernel does
/// (`tcp_sendmsg`, `__sock_cmsg_send`): descriptors, credentials and messages of another level are
/// passed over.
///
/// # Errors
/// `EINVAL`.
pub fn judge_for_tcp(control: &[u8]) -> Result<(), Errno> {
    let mut judged = 0;
    for block in ControlMessages::new(control) {
        judged = block.whole.end;
        let is_known = match block.kind {
            _ if block.level != libc::SOL_SOCKET => true,
            libc::SCM_RIGHTS | libc::SCM_CREDENTIALS => true,
            libc::SO_MARK | libc::SO_PRIORITY | libc::SO_TIMESTAMPING | SO_TIMESTAMPING_NEW => {
                block.value.len() == 4
            }
            _ => false,
        };
        if !is_known {
            return Err(Errno::INVAL);
        }
    }
    // Less than a header is passed over, as CMSG_NXTHDR(3) has it.
    if control.len().saturating_sub(judged) >= HEADER_BYTES.to_usize() {
        return Err(Errno::INVAL);
    }
    Ok(())
}

/// `include/uapi/asm-generic/socket.h`.
const SO_TIMESTAMPING_NEW: i32 = 65;
/// Bytes of `struct cmsghdr`.
pub const HEADER_BYTES: u64 = 16;

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
    fn a_connection_takes_what_the_kernel_s_takes() {
        let level = libc::SOL_SOCKET;
        for (taken, level, kind, bytes) in [
            (true, level, libc::SCM_RIGHTS, 4),
            (true, level, libc::SCM_CREDENTIALS, 12),
            (true, level, libc::SO_TIMESTAMPING, 4),
            (false, level, libc::SO_TIMESTAMPING, 1),
            (false, level, 99, 4),
            (true, libc::IPPROTO_TCP, 1, 4),
        ] {
            let one = block(level, kind, &vec![0; bytes]);
            assert_eq!(judge_for_tcp(&one).is_ok(), taken, "{level} {kind}");
        }
        assert_eq!(judge_for_tcp(&[]), Ok(()));
        assert_eq!(judge_for_tcp(&[0; 15]), Ok(()));
        assert_eq!(judge_for_tcp(&[0; 16]), Err(Errno::INVAL));
    }
}

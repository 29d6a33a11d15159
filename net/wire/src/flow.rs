//! Symmetric hash of a flow, by which flows are spread over several engines with one address.
//!
//! Why here: both directions of a flow must lead to the same engine, from either end. A stack that
//! opens a session chooses its port so that the hash selects its own engine; code that spreads
//! frames over links computes it from a frame. It has no key: NICs and the kernel use hashes of
//! their own, and a frame that reaches another engine than this hash selects is handed over anyway.
//! Must stay true: `hash(a, b) == hash(b, a)`.
//!
//! ```
//! use sidecore_net_wire::flow;
//! use std::net::SocketAddr;
//!
//! let (near, far) = (SocketAddr::from(([10, 0, 0, 1], 80)), SocketAddr::from(([10, 0, 0, 2], 9)));
//! let hash = flow::hash(near, far);
//! assert_eq!(hash, flow::hash(far, near));
//! assert!(flow::engine_of(hash, 4) < 4);
//! ```

use crate::secrets::{Ends, mix};
use crate::{Ip, ethernet, ip};
use sidecore_bare::width::{ToU64, ToUsize};
use std::net::SocketAddr;

/// Hash of the flow between two ends, the same from either side.
#[must_use]
pub fn hash(one: SocketAddr, other: SocketAddr) -> u32 {
    of_ends(&Ends {
        local: Ip::from(one.ip()),
        remote: Ip::from(other.ip()),
        local_port: one.port(),
        remote_port: other.port(),
    })
}

/// The engine of a flow with this hash, out of `count`; 0 if `count` is 0.
#[must_use]
#[inline]
pub fn engine_of(hash: u32, count: usize) -> usize {
    // The high half of the product: it depends on every bit of the hash, without a division.
    ((u64::from(hash) * count.to_u64()) >> 32).to_usize()
}

/// Hash of a frame's flow; none for a frame without ports, which no single engine owns: ARP, ICMP,
/// fragments, or a non-IP frame.
#[must_use]
pub fn hash_of_frame(frame: &[u8]) -> Option<u32> {
    let kind = u16::from_be_bytes([*frame.get(12)?, *frame.get(13)?]);
    let bytes = &frame[ethernet::HEADER_BYTES..];
    let packet = match kind {
        ethernet::IPV4 => ip::parse_v4(bytes).ok()?,
        ethernet::IPV6 => ip::parse_v6(bytes).ok()?,
        _ => return None,
    };
    if !matches!(packet.protocol, ip::TCP | ip::UDP) {
        return None;
    }
    let ports = bytes.get(packet.start..packet.start + 4)?;
    Some(of_ends(&Ends {
        local: packet.destination,
        remote: packet.source,
        local_port: u16::from_be_bytes([ports[2], ports[3]]),
        remote_port: u16::from_be_bytes([ports[0], ports[1]]),
    }))
}

/// As [`hash`].
#[must_use]
pub fn of_ends(ends: &Ends) -> u32 {
    let end = |address: &Ip, port: u16| {
        let address = u128::from_le_bytes(address.0);
        mix(address as u64 ^ u64::from(port), (address >> 64) as u64)
    };
    let local = end(&ends.local, ends.local_port);
    let remote = end(&ends.remote, ends.remote_port);
    // Sum and exclusive or are symmetric, and independent of each other.
    let hash = mix(local.wrapping_add(remote), local ^ remote);
    (hash ^ hash >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::IpAddr;

    /// Sessions of 10 hosts to one port, with consecutive ports like a kernel's.
    fn sessions(v6: bool) -> impl Iterator<Item = (SocketAddr, SocketAddr)> {
        (0..10_000_u16).map(move |number| {
            let host = |last: u8| match v6 {
                false => IpAddr::from([10, 0, 0, last]),
                true => IpAddr::from([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]),
            };
            let client = host(2 + (number % 10) as u8);
            let client = SocketAddr::new(client, 32_768 + number / 10);
            (SocketAddr::new(host(1), 80), client)
        })
    }

    #[test]
    fn both_directions_have_one_hash() {
        for v6 in [false, true] {
            for (server, client) in sessions(v6) {
                assert_eq!(hash(server, client), hash(client, server));
            }
        }
    }

    #[test]
    fn sessions_spread_within_five_percent() {
        for (v6, count) in [(false, 2), (false, 4), (true, 2), (true, 4)] {
            let mut engines = vec![0_usize; count];
            for (server, client) in sessions(v6) {
                engines[engine_of(hash(server, client), count)] += 1;
            }
            let even = 10_000 / count;
            let fair = engines.iter().all(|&has| has.abs_diff(even) * 20 <= even);
            assert!(fair, "{engines:?}");
        }
    }

    #[test]
    fn a_frame_has_its_flows_hash_from_either_side() {
        let (server, client) = sessions(false).next().expect("sessions");
        let frame = |from: SocketAddr, to: SocketAddr| {
            let mut frame = vec![0; 14 + 20 + 8];
            frame[12..14].copy_from_slice(&[8, 0]);
            let (source, destination) = (Ip::from(from.ip()), Ip::from(to.ip()));
            ip::write(&mut frame[14..], &source, &destination, ip::UDP, 64, 8);
            frame[34..36].copy_from_slice(&from.port().to_be_bytes());
            frame[36..38].copy_from_slice(&to.port().to_be_bytes());
            frame
        };
        let there = hash_of_frame(&frame(client, server));
        assert_eq!(there, Some(hash(server, client)));
        assert_eq!(there, hash_of_frame(&frame(server, client)));
        assert_eq!(hash_of_frame(&frame(client, server)[..35]), None);
        assert_eq!(hash_of_frame(&[0; 60]), None);
    }
}

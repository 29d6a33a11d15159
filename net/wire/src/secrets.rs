//! Keyed hashes for values that must not be predictable.
//!
//! Why here: the core draws no randomness from the system, so that a run can be reproduced from its
//! seed. Values that an attacker must not predict (initial sequence numbers, SYN cookies) are
//! computed by SipHash under a key drawn from the seed; the caller provides a secret seed in an
//! open network. Source: Aumasson and Bernstein, "SipHash" (2012); RFC 6528.

use crate::Ip;
use crate::sequence::Sequence;

use sidecore_random::{GAMMA, Random};
use siphasher::sip::SipHasher13;
use std::hash::Hasher;

/// The two ends of a session, as its lookups and secrets see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ends {
    /// Our address.
    pub local: Ip,
    /// The peer's address.
    pub remote: Ip,
    /// Our port.
    pub local_port: u16,
    /// The peer's port.
    pub remote_port: u16,
}

/// Secrets of one stack.
#[derive(Debug, Clone)]
pub struct Secrets {
    isn: [u64; 2],
    cookie: [u64; 2],
    port: [u64; 2],
    timestamp: [u64; 2],
    lookup: u64,
}

impl Secrets {
    /// Draws the keys.
    #[must_use]
    pub fn new(random: &mut Random) -> Self {
        let mut key = || [random.bits(), random.bits()];
        Self {
            isn: key(),
            cookie: key(),
            port: key(),
            timestamp: key(),
            lookup: random.bits() | 1,
        }
    }

    /// RFC 6528 section 3: a clock of 4 us plus a keyed hash of the ends.
    #[must_use]
    pub fn isn(&self, ends: &Ends, now_ns: u64) -> Sequence {
        Sequence::new(low(now_ns >> 12)) + low(keyed(self.isn, ends, 0))
    }

    /// The part of a SYN cookie that proves its origin: `count` is the slow clock, `sequence` the
    /// peer's initial number.
    #[must_use]
    pub fn cookie(&self, ends: &Ends, count: u32, sequence: Sequence) -> u32 {
        let more = u64::from(count) << 32 | u64::from(sequence.get());
        low(keyed(self.cookie, ends, more))
    }

    /// Start of the search for an ephemeral port (RFC 6056 section 3.3.3).
    #[must_use]
    pub fn port_offset(&self, ends: &Ends) -> u32 {
        low(keyed(self.port, ends, 0))
    }

    /// Initial value and counter index of the fragment identifications between two hosts: RFC 7739
    /// section 5.3, its functions F and G.
    #[must_use]
    pub fn identification(&self, from: &Ip, to: &Ip, protocol: u8) -> (u32, u32) {
        let ends = Ends {
            local: *from,
            remote: *to,
            local_port: 0,
            remote_port: 0,
        };
        // The key of ports, whose own hashes have a 0 in this place.
        let hash = keyed(self.port, &ends, 1 << 8 | u64::from(protocol));
        (low(hash), low(hash >> 32))
    }

    /// Offset of a session's timestamp clock (RFC 7323 section 5.4). It depends on the addresses
    /// alone, so that clocks of successive sessions between two hosts never go back and TIME-WAIT
    /// can be reused safely.
    #[must_use]
    pub fn timestamp_offset(&self, ends: &Ends) -> u32 {
        let hosts = Ends {
            local_port: 0,
            remote_port: 0,
            ..*ends
        };
        low(keyed(self.timestamp, &hosts, 0))
    }

    /// The hash for the lookup of a session: fast, and unpredictable without the key.
    #[must_use]
    #[inline]
    pub fn lookup(&self, ends: &Ends) -> u32 {
        let ports = u64::from(ends.local_port) << 16 | u64::from(ends.remote_port);
        let local = u128::from_le_bytes(ends.local.0);
        let remote = u128::from_le_bytes(ends.remote.0);
        let mut hash = mix(remote as u64 ^ self.lookup, (remote >> 64) as u64 ^ ports);
        hash = mix(hash ^ local as u64, (local >> 64) as u64 ^ self.lookup);
        low(hash ^ hash >> 32)
    }
}

/// The two halves of a product, folded: every bit of the result depends on every bit of both.
#[must_use]
#[inline]
pub fn mix(a: u64, b: u64) -> u64 {
    let product = u128::from(a ^ GAMMA) * u128::from(b ^ 0xD6E8_FEB8_6659_FD93);
    product as u64 ^ (product >> 64) as u64
}

/// The low half of a hash, or of a clock.
#[inline]
fn low(value: u64) -> u32 {
    value as u32
}

fn keyed(key: [u64; 2], ends: &Ends, more: u64) -> u64 {
    let mut hasher = SipHasher13::new_with_keys(key[0], key[1]);
    hasher.write(&ends.local.0);
    hasher.write(&ends.remote.0);
    hasher.write_u16(ends.local_port);
    hasher.write_u16(ends.remote_port);
    hasher.write_u64(more);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(port: u16) -> Ends {
        Ends {
            local: Ip::v4([10, 0, 0, 1]),
            remote: Ip::v4([10, 0, 0, 2]),
            local_port: 80,
            remote_port: port,
        }
    }

    #[test]
    fn sequence_numbers_move_with_the_clock_and_differ_between_sessions() {
        let secrets = Secrets::new(&mut Random::new(7));
        let first = secrets.isn(&ends(1), 0);
        // RFC 6528 section 3: M is a 4 us clock (4.096 us here).
        assert_eq!(secrets.isn(&ends(1), 4096 * 100) - first, 100);
        assert_ne!(secrets.isn(&ends(2), 0), first);
        let others = Secrets::new(&mut Random::new(8));
        assert_ne!(others.isn(&ends(1), 0), first, "another key");
    }

    #[test]
    fn timestamps_of_one_pair_of_hosts_share_their_clock() {
        let secrets = Secrets::new(&mut Random::new(7));
        assert_eq!(
            secrets.timestamp_offset(&ends(1)),
            secrets.timestamp_offset(&ends(2))
        );
    }

    #[test]
    #[cfg_attr(miri, ignore = "long; statistics of code without `unsafe`")]
    fn lookups_spread() {
        let secrets = Secrets::new(&mut Random::new(3));
        let mut buckets = [0_u32; 256];
        for port in 0..25_600 {
            buckets[(secrets.lookup(&ends(port)) >> 24) as usize] += 1;
        }
        // 100 expected in each; a hundred standard deviations would be a broken hash.
        assert!(buckets.iter().all(|&count| (40..180).contains(&count)));
    }
}

//! Sessions by peer prefix and by local port: shares of the memory of buffers.
//!
//! A prefix is a network of 24 bits of IPv4, 56 of IPv6: what one site has. While memory is not
//! ample, the sessions of a prefix share a quarter of it, and those of a local port, that is of a
//! listener, a half. So neither many peers of one site nor one service can take what others need.
//! Must stay true: each session in the store is counted once; nothing here is used per packet
//! while memory is ample.

use crate::buffer::pool::{CLASS_BYTES, Pool, SHARE_BYTES_MIN};
use crate::wire::Ip;
use sidecore_bare::width::ToUsize;
use std::collections::BTreeMap;

/// Numbers of sessions; entries of nought are removed.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    prefixes: BTreeMap<Ip, u32>,
    ports: BTreeMap<u16, u32>,
}

impl Shares {
    /// Counts a session.
    pub(crate) fn add(&mut self, remote: &Ip, port: u16) {
        *self.prefixes.entry(prefix_of(remote)).or_default() += 1;
        *self.ports.entry(port).or_default() += 1;
    }

    /// A session is over.
    pub(crate) fn remove(&mut self, remote: &Ip, port: u16) {
        decrement(&mut self.prefixes, &prefix_of(remote));
        decrement(&mut self.ports, &port);
    }

    /// Bytes that each ring of a session may hold while memory is not ample: a size of buffers.
    pub(crate) fn bytes(&self, pool: &Pool, remote: &Ip, port: u16) -> usize {
        let (bytes_max, _) = pool.budget();
        let of_prefix = self.count_of(remote).max(1);
        let of_port = self.ports.get(&port).map_or(1, |count| count.to_usize());
        let own = (bytes_max / PREFIX_PART / of_prefix).min(bytes_max / PORT_PART / of_port.max(1));
        let share = pool.share_bytes().min(own);
        let fitting = CLASS_BYTES.iter().rev().find(|&&size| size <= share);
        fitting.map_or(SHARE_BYTES_MIN, |&size| size.max(SHARE_BYTES_MIN))
    }

    /// True if the sessions of a peer's prefix alone may use up its part: while memory is short, it
    /// gets no more of them.
    pub(crate) fn is_full(&self, pool: &Pool, remote: &Ip) -> bool {
        let (bytes_max, _) = pool.budget();
        self.count_of(remote) * SHARE_BYTES_MIN > bytes_max / PREFIX_PART
    }

    fn count_of(&self, remote: &Ip) -> usize {
        let count = self.prefixes.get(&prefix_of(remote));
        count.map_or(0, |count| count.to_usize())
    }

    /// True if no session is counted.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.prefixes.is_empty() && self.ports.is_empty()
    }
}

fn decrement<K: Ord>(counts: &mut BTreeMap<K, u32>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}

/// The network of a peer: its address without the bits that one site chooses.
pub(crate) fn prefix_of(remote: &Ip) -> Ip {
    let kept = if remote.is_v4() { 15 } else { 7 };
    let mut prefix = *remote;
    prefix.0[kept..].fill(0);
    prefix
}

/// Bits of a prefix, of an address of this family.
pub(crate) fn prefix_bits(remote: &Ip) -> u8 {
    if remote.is_v4() { 24 } else { 56 }
}

/// One part in this many of the budget is for the sessions of one prefix, or of one local port.
const PREFIX_PART: usize = 4;
const PORT_PART: usize = 2;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Heap;

    #[test]
    fn sessions_of_a_prefix_share_and_others_do_not() {
        let pool = Pool::new(1 << 30, Box::new(Heap));
        let mut shares = Shares::default();
        let peer = |last: u8, host: u8| Ip::v4([10, 0, last, host]);
        assert_eq!(shares.bytes(&pool, &peer(0, 1), 80), pool.share_bytes());
        for host in 0..=255 {
            for _ in 0..16 {
                shares.add(&peer(0, host), 80);
            }
        }
        // A quarter of a gigabyte for 4,096 sessions, in sizes of buffers.
        assert_eq!(shares.bytes(&pool, &peer(0, 9), 80), 16 << 10);
        assert_eq!(shares.bytes(&pool, &peer(1, 9), 80), 128 << 10);
        assert_eq!(shares.bytes(&pool, &peer(1, 9), 81), pool.share_bytes());
        assert!(!shares.is_full(&pool, &peer(0, 9)));
        for _ in 0..4096 * 3 + 1 {
            shares.add(&peer(0, 7), 80);
        }
        assert!(shares.is_full(&pool, &peer(0, 9)) && !shares.is_full(&pool, &peer(1, 9)));
        for _ in 0..4096 * 3 + 1 {
            shares.remove(&peer(0, 7), 80);
        }
        for host in 0..=255 {
            for _ in 0..16 {
                shares.remove(&peer(0, host), 80);
            }
        }
        assert!(shares.is_empty());
    }

    #[test]
    fn prefixes_are_of_both_families() {
        let v6 = Ip([0x20, 1, 0xd, 0xb8, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
        let prefix = [0x20, 1, 0xd, 0xb8, 1, 2, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!((prefix_of(&v6), prefix_bits(&v6)), (Ip(prefix), 56));
        let v4 = Ip::v4([192, 0, 2, 77]);
        assert_eq!(
            (prefix_of(&v4), prefix_bits(&v4)),
            (Ip::v4([192, 0, 2, 0]), 24)
        );
    }
}

//! Path MTU cache: the largest packets on paths to other hosts, as reported by routers.
//!
//! Why here: a session keeps its own; datagrams and replies have none, and are limited by this.
//! Must stay true: at most [`PATHS_MAX`] entries, none below the family's minimum, and each expires
//! after ten minutes, because the path may have changed. Source: RFC 1191 section 6.3, RFC 8201
//! sections 4 and 5.3.

use crate::wire::Ip;
use crate::wire::ip::V6_MTU_MIN;
use std::collections::BTreeMap;

/// Entries, at most.
const PATHS_MAX: usize = 1024;
/// RFC 1191 section 6.3, RFC 8201 section 5.3: about ten minutes.
const KEPT_NS: u64 = 600_000_000_000;
/// As in Linux (`min_pmtu`): smaller values are not accepted, since they would lead to even smaller
/// fragments.
const LEAST_V4: usize = 552;
/// RFC 8200 section 5.
const LEAST_V6: usize = V6_MTU_MIN;

/// The least accepted MTU between addresses of this one's family.
pub(crate) fn least(address: &Ip) -> usize {
    if address.is_v4() { LEAST_V4 } else { LEAST_V6 }
}

/// Path MTU cache.
#[derive(Debug, Default)]
pub(crate) struct Paths {
    known: BTreeMap<Ip, (usize, u64)>,
}

impl Paths {
    /// The largest packet to this address, of at most `link` bytes.
    #[inline]
    pub(crate) fn mtu(&self, to: &Ip, link: usize, now_ns: u64) -> usize {
        if self.known.is_empty() {
            return link;
        }
        let known = self.known.get(to).filter(|known| now_ns < known.1);
        known.map_or(link, |known| known.0.min(link))
    }

    /// A router reports this MTU towards an address; true if that is new.
    pub(crate) fn shrink(&mut self, to: &Ip, mtu: usize, link: usize, now_ns: u64) -> bool {
        let mtu = mtu.max(least(to));
        if mtu >= self.mtu(to, link, now_ns) {
            return false;
        }
        if self.known.len() >= PATHS_MAX && !self.known.contains_key(to) {
            self.known.retain(|_, known| now_ns < known.1);
            // The entry that would expire first.
            let oldest = self.known.iter().min_by_key(|(_, known)| known.1);
            let oldest = oldest.map(|(to, _)| *to);
            if let Some(oldest) = oldest.filter(|_| self.known.len() >= PATHS_MAX) {
                self.known.remove(&oldest);
            }
        }
        self.known.insert(*to, (mtu, now_ns + KEPT_NS));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_routers_say_is_bounded_and_forgotten() {
        let mut paths = Paths::default();
        let to = Ip::v4([10, 0, 0, 9]);
        assert_eq!(paths.mtu(&to, 1500, 0), 1500);
        assert!(paths.shrink(&to, 1000, 1500, 0));
        assert!(!paths.shrink(&to, 1200, 1500, 1), "it does not grow");
        assert_eq!(paths.mtu(&to, 1500, 1), 1000);
        assert_eq!(paths.mtu(&to, 900, 1), 900);
        assert!(paths.shrink(&to, 0, 1500, 1));
        assert_eq!(paths.mtu(&to, 1500, 1), LEAST_V4);
        assert_eq!(paths.mtu(&to, 1500, KEPT_NS + 1), 1500);
        let far = |number: u32| Ip((u128::from(number) | 0xfd << 120).to_be_bytes());
        for number in 0..3 * PATHS_MAX as u32 {
            assert!(paths.shrink(&far(number), 1, 1500, 2));
            assert_eq!(paths.mtu(&far(number), 1500, 3), LEAST_V6);
            assert!(paths.known.len() <= PATHS_MAX);
        }
    }

    #[test]
    fn what_would_be_forgotten_first_makes_room() {
        let mut paths = Paths::default();
        let far = |number: u64| Ip((u128::from(number) | 0xfd << 120).to_be_bytes());
        let count = PATHS_MAX as u64;
        // Higher addresses are older, so that the order of addresses alone would not suffice.
        for now in 0..=count {
            assert!(paths.shrink(&far(count - now), 1, 1500, now));
        }
        assert_eq!(paths.mtu(&far(count), 1500, count), 1500);
        assert_eq!(paths.mtu(&far(count - 1), 1500, count), LEAST_V6);
        assert_eq!(paths.mtu(&far(0), 1500, count), LEAST_V6);
    }
}

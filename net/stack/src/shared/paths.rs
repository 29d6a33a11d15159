//! The largest packets that ways to others take, where routers said so.
//!
//! Why here: a session keeps its own; datagrams and answers have none, and are cut to what this
//! says. Must stay true: at most [`PATHS_MAX`] are known, none is smaller than the family's least,
//! and each is forgotten after ten minutes, because a way may have become wider. Source: RFC 1191
//! section 6.3, RFC 8201 sections 4 and 5.3.

use crate::wire::Ip;
use crate::wire::ip::V6_MTU_MIN;
use std::collections::BTreeMap;

/// Ways that are known.
const PATHS_MAX: usize = 1024;
/// RFC 1191 section 6.3, RFC 8201 section 5.3: about ten minutes.
const KEPT_NS: u64 = 600_000_000_000;
/// As Linux (`min_pmtu`): what a router says below that is not believed, its fragments are smaller
/// still.
const LEAST_V4: usize = 552;
/// RFC 8200 section 5.
const LEAST_V6: usize = V6_MTU_MIN;

/// The least MTU that is believed between addresses of this one's family.
pub(crate) fn least(address: &Ip) -> usize {
    if address.is_v4() { LEAST_V4 } else { LEAST_V6 }
}

/// Path MTU cache.
#[derive(Debug, Default)]
pub(crate) struct Paths {
    known: BTreeMap<Ip, (usize, u64)>,
}

impl Paths {
    /// The largest packet to there, of at most `link` bytes.
    #[inline]
    pub(crate) fn mtu(&self, to: &Ip, link: usize, now_ns: u64) -> usize {
        if self.known.is_empty() {
            return link;
        }
        let known = self.known.get(to).filter(|known| now_ns < known.1);
        known.map_or(link, |known| known.0.min(link))
    }

    /// A router says that packets to there are at most so long; whether that is news.
    pub(crate) fn shrink(&mut self, to: &Ip, mtu: usize, link: usize, now_ns: u64) -> bool {
        let mtu = mtu.max(least(to));
        if mtu >= self.mtu(to, link, now_ns) {
            return false;
        }
        if self.known.len() >= PATHS_MAX && !self.known.contains_key(to) {
            self.known.retain(|_, known| now_ns < known.1);
            // The one that would be forgotten first.
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
        // The higher the address the older, so that order of addresses alone would not do.
        for now in 0..=count {
            assert!(paths.shrink(&far(count - now), 1, 1500, now));
        }
        assert_eq!(paths.mtu(&far(count), 1500, count), 1500);
        assert_eq!(paths.mtu(&far(count - 1), 1500, count), LEAST_V6);
        assert_eq!(paths.mtu(&far(0), 1500, count), LEAST_V6);
    }
}

//! Room at a listener: which connections may wait to introduce themselves, and which may be served.
//!
//! Every connection costs a server something from the moment that it is accepted: a descriptor, an
//! entry, perhaps a thread. A silent one costs as much as an active one. So connections *wait*
//! until their handshake, and the waiting ones are limited: in number, in number per peer (a user,
//! an address), and in age. A connection above a limit displaces another. A peer with its full
//! share loses its own oldest connection; where all places are taken, the peer with the most of
//! them loses one. So a peer with few connections gets in, however many others crowd in.
//!
//! Why here: the daemon's acceptor, the stack's, and listeners on TCP ports need the same rules,
//! and a rule that is written twice is wrong once. Must stay true: nothing here reads a clock,
//! waits or does I/O. The limits bound the number of entries. Connections that have made their
//! request are not removed in favour of silent ones. One thread, or under its caller's lock.
//!
//! ```
//! use sidecore_attach::{Admission, AdmissionLimits, Arrival};
//! use std::time::Duration;
//!
//! let limits = AdmissionLimits {
//!     waiting_max: 8,
//!     peer_waiting_max: 2,
//!     silence_max: Duration::from_secs(5),
//!     ..AdmissionLimits::default()
//! };
//! let mut admission = Admission::new(limits);
//! let at = Duration::from_secs;
//! assert_eq!(admission.arrive(1, "203.0.113.7", false, at(0)), Arrival::Admitted);
//! assert_eq!(admission.arrive(2, "203.0.113.7", false, at(1)), Arrival::Admitted);
//! // Its third takes the place of its first, which the caller closes.
//! assert_eq!(admission.arrive(3, "203.0.113.7", false, at(2)), Arrival::Replaces(1));
//! assert!(admission.introduce(3));
//! // The second has been silent for 5 s; the third is served for as long as it likes.
//! assert_eq!(admission.expire(at(7)), [2]);
//! assert_eq!((admission.waiting(), admission.served()), (0, 1));
//! ```

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

/// The limits of a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AdmissionLimits {
    /// The most waiting connections of all peers that are not preferred.
    pub waiting_max: usize,
    /// Of these, the most of one peer.
    pub peer_waiting_max: usize,
    /// The most waiting connections of one preferred peer.
    pub preferred_waiting_max: usize,
    /// The longest time from the arrival to the request.
    pub silence_max: Duration,
    /// The most connections that are served at once.
    pub served_max: usize,
    /// Of these, the most of one peer that is not preferred.
    pub peer_served_max: usize,
}

impl Default for AdmissionLimits {
    /// 128 waiting, 32 of one peer, 2 s of silence; no limit of those that are served.
    fn default() -> Self {
        Self {
            waiting_max: PENDING_MAX,
            peer_waiting_max: USER_PENDING_MAX,
            preferred_waiting_max: PENDING_MAX,
            silence_max: INTRODUCTION_TIME_MAX,
            served_max: usize::MAX,
            peer_served_max: usize::MAX,
        }
    }
}

impl AdmissionLimits {
    /// The same for a process that has room for `descriptors` more descriptors. A silent connection
    /// takes one; at most half of the room goes to waiting connections.
    #[must_use]
    pub fn within(mut self, descriptors: usize) -> Self {
        // A sixth for root, the server's own user, and all others.
        let all_max = (descriptors / 6).max(WAITING_MIN);
        self.waiting_max = self.waiting_max.min(all_max);
        self.preferred_waiting_max = self.preferred_waiting_max.min(all_max);
        let peer_max = self.waiting_max.div_ceil(4);
        self.peer_waiting_max = self.peer_waiting_max.min(peer_max);
        self
    }
}

/// The answer to an arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// There is room.
    Admitted,
    /// There is room once the connection of this number is closed, of which nothing is known here
    /// any more.
    Replaces(u64),
    /// There is none: all connections that wait have made their requests. To be closed.
    Refused,
}

/// The connections of a listener.
#[derive(Debug)]
pub struct Admission<P> {
    limits: AdmissionLimits,
    waiting: BTreeMap<u64, Waiting<P>>,
    served: BTreeMap<u64, P>,
}

#[derive(Debug)]
struct Waiting<P> {
    peer: P,
    is_preferred: bool,
    since: Duration,
    /// It has made its request; the rest of the wait is the server's doing.
    has_asked: bool,
}

impl<P: Clone + Ord> Admission<P> {
    /// No connections.
    #[must_use]
    pub fn new(limits: AdmissionLimits) -> Self {
        Self {
            limits,
            waiting: BTreeMap::new(),
            served: BTreeMap::new(),
        }
    }

    /// Adds a connection. `id` is greater than those of all earlier ones; `now` is the time since a
    /// fixed moment. Room is kept for preferred peers, which are limited each by itself.
    pub fn arrive(&mut self, id: u64, peer: P, is_preferred: bool, now: Duration) -> Arrival {
        let victim = match self.victim(&peer, is_preferred) {
            Room::Free => None,
            Room::Of(victim) => Some(victim),
            Room::None => return Arrival::Refused,
        };
        if let Some(victim) = victim {
            self.waiting.remove(&victim);
        }
        let waiting = Waiting {
            peer,
            is_preferred,
            since: now,
            has_asked: false,
        };
        self.waiting.insert(id, waiting);
        victim.map_or(Arrival::Admitted, Arrival::Replaces)
    }

    /// The place for one more connection of a peer.
    fn victim(&self, peer: &P, is_preferred: bool) -> Room {
        // The own limit first: a peer that has its share can only replace itself.
        let own_max = if is_preferred {
            self.limits.preferred_waiting_max
        } else {
            self.limits.peer_waiting_max
        };
        let own = || self.waiting.iter().filter(|(_, it)| it.peer == *peer);
        if own().count() >= own_max.max(1) {
            // The silent first, the oldest of them first. A user above its share loses its own
            // connections only, so one that has asked goes, too.
            let oldest = own().min_by_key(|(id, it)| (it.has_asked, **id));
            return oldest.map_or(Room::None, |(id, _)| Room::Of(*id));
        }
        let others = self.waiting.values().filter(|it| !it.is_preferred);
        if is_preferred || others.count() < self.limits.waiting_max.max(1) {
            return Room::Free;
        }
        self.silent_of_the_largest(false)
            .map_or(Room::None, Room::Of)
    }

    /// The oldest silent connection of the peer that has the most waiting connections, of those
    /// peers that have silent ones.
    fn silent_of_the_largest(&self, of_preferred: bool) -> Option<u64> {
        let mut peers: BTreeMap<&P, (usize, Option<u64>)> = BTreeMap::new();
        let entries = self.waiting.iter();
        for (id, it) in entries.filter(|(_, it)| it.is_preferred == of_preferred) {
            // Entries are in the order of arrival: the first silent one is the oldest.
            let (count, oldest) = peers.entry(&it.peer).or_default();
            *count += 1;
            if !it.has_asked {
                oldest.get_or_insert(*id);
            }
        }
        let silent = peers
            .into_values()
            .filter_map(|(n, oldest)| Some((n, oldest?)));
        // Of equally large peers the oldest connection goes: it had the most time to speak.
        let largest = silent.max_by_key(|&(count, oldest)| (count, std::cmp::Reverse(oldest)));
        largest.map(|(_, oldest)| oldest)
    }

    /// Takes a waiting connection out to make room, where the process has run out of something;
    /// the caller closes it. `None` where none is silent.
    pub fn evict(&mut self) -> Option<u64> {
        let victim = self
            .silent_of_the_largest(false)
            // Preferred ones only if no other is left.
            .or_else(|| self.silent_of_the_largest(true))?;
        self.waiting.remove(&victim);
        Some(victim)
    }

    /// A waiting connection has made its request: it is closed for silence no more.
    pub fn ask(&mut self, id: u64) {
        if let Some(waiting) = self.waiting.get_mut(&id) {
            waiting.has_asked = true;
        }
    }

    /// A waiting connection is served from now on. False where that would be too many, of its peer
    /// or in all: then it is forgotten, and to be closed.
    #[must_use]
    pub fn introduce(&mut self, id: u64) -> bool {
        let Some(Waiting {
            peer, is_preferred, ..
        }) = self.waiting.remove(&id)
        else {
            return false;
        };
        let of_peer = self.served.values().filter(|other| **other == peer).count();
        // Preferred peers count in the total, but no share is held against them.
        let fits = self.served.len() < self.limits.served_max
            && (is_preferred || of_peer < self.limits.peer_served_max);
        if fits {
            self.served.insert(id, peer);
        }
        fits
    }

    /// A connection is over.
    pub fn leave(&mut self, id: u64) {
        self.waiting.remove(&id);
        self.served.remove(&id);
    }

    /// The connections that have been silent for too long; the caller closes them.
    #[must_use]
    pub fn expire(&mut self, now: Duration) -> Vec<u64> {
        let silence_max = self.limits.silence_max;
        let is_late =
            |it: &Waiting<P>| !it.has_asked && now.saturating_sub(it.since) >= silence_max;
        // A connection that has asked waits for the server, not the server for it.
        let late = self.waiting.extract_if(.., |_, it| is_late(it));
        late.map(|(id, _)| id).collect()
    }

    /// The time at which [`Self::expire`] is due next.
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        let silent = self.waiting.values().filter(|it| !it.has_asked);
        // In the order of their arrival.
        silent.map(|it| it.since + self.limits.silence_max).next()
    }

    /// True if the connection waits or is served.
    #[must_use]
    pub fn knows(&self, id: u64) -> bool {
        self.waiting.contains_key(&id) || self.served.contains_key(&id)
    }

    /// Connections that wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Connections that are served.
    #[must_use]
    pub fn served(&self) -> usize {
        self.served.len()
    }
}

/// The part of an internet address that stands for one peer: all of an IPv4 address; of an IPv6
/// address the 64 bits of a network, whose hosts may choose the rest freely.
///
/// ```
/// use sidecore_attach::network_of;
///
/// let network = |text: &str| network_of(text.parse().expect("an address"));
/// assert_eq!(network("2001:db8::1"), network("2001:db8::2:3"));
/// assert_ne!(network("2001:db8::1"), network("2001:db8:0:1::1"));
/// assert_eq!(network("::ffff:192.0.2.7"), network("192.0.2.7"));
/// assert_ne!(network("192.0.2.6"), network("192.0.2.7"));
/// ```
#[must_use]
pub fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            // A host has a /64 to choose addresses from (RFC 4291, section 2.5.4).
            let network = address.to_bits() >> 64 << 64;
            IpAddr::V6(Ipv6Addr::from_bits(network))
        }
        address => address,
    }
}

enum Room {
    Free,
    /// Place of this connection.
    Of(u64),
    None,
}

/// The longest time that a connection may stay without attaching.
pub const INTRODUCTION_TIME_MAX: Duration = Duration::from_secs(2);
/// The most connections of one user that have not attached. Enough for programs that start many
/// processes at once, some of which lose their core between connecting and asking.
pub(crate) const USER_PENDING_MAX: usize = 32;
/// The same for root, for the server's own user, and for all other users together.
pub const PENDING_MAX: usize = 128;
/// The fewest waiting connections, however few descriptors there are.
const WAITING_MIN: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn limits() -> AdmissionLimits {
        AdmissionLimits {
            waiting_max: 6,
            peer_waiting_max: 3,
            preferred_waiting_max: 4,
            silence_max: 2 * SECOND,
            served_max: 4,
            peer_served_max: 2,
        }
    }

    #[test]
    fn a_peer_with_its_full_share_replaces_its_own_oldest() {
        let mut admission = Admission::new(limits());
        for id in 1..=3 {
            assert_eq!(admission.arrive(id, 7, false, SECOND), Arrival::Admitted);
        }
        admission.ask(1);
        assert_eq!(admission.arrive(4, 7, false, SECOND), Arrival::Replaces(2));
        assert_eq!(admission.arrive(5, 8, false, SECOND), Arrival::Admitted);
        admission.ask(3);
        admission.ask(4);
        assert_eq!(admission.arrive(6, 7, false, SECOND), Arrival::Replaces(1));
    }

    #[test]
    fn a_peer_with_few_gets_in_at_the_cost_of_the_one_with_the_most() {
        let mut admission = Admission::new(limits());
        for (id, peer) in [(1, 7), (2, 8), (3, 8), (4, 8), (5, 9), (6, 9)] {
            assert_eq!(admission.arrive(id, peer, false, SECOND), Arrival::Admitted);
        }
        assert_eq!(admission.arrive(10, 5, false, SECOND), Arrival::Replaces(2));
        // Two peers have two each now: the oldest of both.
        assert_eq!(admission.arrive(11, 6, false, SECOND), Arrival::Replaces(3));
        // Preferred ones need no place of others.
        assert_eq!(admission.arrive(12, 0, true, SECOND), Arrival::Admitted);
        for id in [1, 4, 5, 6, 10, 11] {
            admission.ask(id);
        }
        assert_eq!(admission.arrive(13, 4, false, SECOND), Arrival::Refused);
        assert_eq!(admission.evict(), Some(12));
        assert_eq!(admission.evict(), None);
    }

    #[test]
    fn places_of_those_that_are_served_are_limited_and_come_back() {
        let mut admission = Admission::new(limits());
        let mut served = |id, peer| {
            let _ = admission.arrive(id, peer, false, SECOND);
            admission.introduce(id)
        };
        assert!(served(1, 7) && served(2, 7) && !served(3, 7));
        assert!(served(4, 8) && served(5, 9) && !served(6, 10));
        admission.leave(1);
        let _ = admission.arrive(7, 7, false, SECOND);
        assert!(admission.introduce(7));
        assert!(!admission.introduce(99), "never arrived");
    }

    #[test]
    fn few_descriptors_leave_room_for_several_users() {
        for descriptors in [0, 10, 64, 256, 1024, 60_000] {
            let limits = AdmissionLimits::default().within(descriptors);
            assert!(limits.peer_waiting_max >= 1, "{descriptors}");
            assert!(limits.waiting_max >= 4 * limits.peer_waiting_max.min(1));
            assert!(limits.peer_waiting_max * 2 <= limits.waiting_max);
        }
        let limits = AdmissionLimits::default();
        assert_eq!(limits.within(60_000), limits);
    }

    proptest! {
        #[test]
        fn entries_are_bounded_and_every_silent_one_ends(
            arrivals in prop::collection::vec((0u8..12, 0u64..700, any::<bool>()), 0..300),
        ) {
            let mut admission = Admission::new(limits());
            let (mut now, mut open) = (Duration::ZERO, std::collections::BTreeSet::new());
            for (id, (peer, later_ms, asks)) in (1..).zip(arrivals) {
                now += Duration::from_millis(later_ms);
                for late in admission.expire(now) {
                    prop_assert!(open.remove(&late));
                }
                match admission.arrive(id, peer, peer == 0, now) {
                    Arrival::Admitted => prop_assert!(open.insert(id)),
                    Arrival::Replaces(victim) => {
                        prop_assert!(open.remove(&victim));
                        open.insert(id);
                    }
                    Arrival::Refused => prop_assert!(peer != 0),
                }
                if asks {
                    admission.ask(id);
                }
                prop_assert_eq!(open.len(), admission.waiting());
                prop_assert!(open.len() <= limits().waiting_max + limits().preferred_waiting_max);
                let deadline = admission.deadline().unwrap_or(Duration::MAX);
                prop_assert!(deadline > now);
            }
            let _ = admission.expire(now + limits().silence_max);
            prop_assert_eq!(admission.deadline(), None);
        }
    }
}

//! Neighbours on the link: their hardware addresses, resolved by ARP or neighbour discovery.
//!
//! An entry is used while it is fresh; a stale one stays in use, and is confirmed by a unicast
//! request. If another hardware address is claimed for a known neighbour, the known one is probed
//! first, and the claim is accepted only if it does not answer (ARP and neighbour discovery are not
//! authenticated, and one forged reply would take over the neighbour). Must stay true: a packet
//! from an unknown host adds an entry while there is room, and never removes one. Source: RFC 826,
//! RFC 1122 section 2.3.2, RFC 4861 sections 7.2.5 and 7.3, RFC 5227 section 1.

use super::config::FixedNeighbor;
use crate::wire::{Ip, Mac};
use std::collections::BTreeMap;

/// Entries, at most.
const ENTRIES_MAX: usize = 4096;
/// Sessions that wait for one neighbour; others retry by their own timers.
const WAITING_MAX: usize = 4096;
/// RFC 4861 section 10: REACHABLE_TIME.
const FRESH_NS: u64 = 30_000_000_000;
/// RFC 4861 section 10: RETRANS_TIMER.
const ASK_NS: u64 = 1_000_000_000;
/// RFC 4861 section 10: MAX_MULTICAST_SOLICIT.
const ASKS_MAX: u8 = 3;
/// Requests to the known address before a claimed one replaces it.
const CLAIM_ASKS_MAX: u8 = 2;
/// Time before an unresponsive neighbour is resolved again: RFC 1122 section 2.3.2.1 allows at most
/// one request a second.
const SILENT_NS: u64 = 1_000_000_000;

/// Resolution state of a next hop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hop {
    Known(Mac),
    /// Being resolved; the session was added to the waiting list.
    Waiting,
    /// The entry was reused for another address.
    Gone,
}

#[derive(Debug)]
struct Entry {
    ip: Ip,
    mac: Option<Mac>,
    generation: u16,
    /// No request is sent before this time.
    until_ns: u64,
    asks: u8,
    used_ns: u64,
    waiting: Vec<u32>,
    /// Another hardware address that was claimed; `mac` is being probed.
    claim: Option<Mac>,
    /// Listed in `asking`.
    listed: bool,
}

/// A request to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Question {
    pub(crate) ip: Ip,
    /// Unicast to this address; multicast or broadcast if it is unknown.
    pub(crate) mac: Option<Mac>,
}

/// All entries.
#[derive(Debug, Default)]
pub(crate) struct Neighbors {
    entries: Vec<Entry>,
    numbers: BTreeMap<Ip, u16>,
    /// Requests for the stack to send.
    pub(crate) questions: Vec<Question>,
    /// Sessions whose neighbour was resolved.
    pub(crate) resolved: Vec<u32>,
    /// Sessions whose neighbour does not answer, and its entry. A session may be over by now, and
    /// its number be that of one with another neighbour.
    pub(crate) failed: Vec<(u32, u16)>,
    /// Entries that are being resolved or confirmed.
    asking: Vec<u16>,
}

impl Neighbors {
    /// The entry for a next hop, created if necessary.
    pub(crate) fn entry(&mut self, ip: &Ip, now_ns: u64) -> (u16, u16) {
        if let Some(&number) = self.numbers.get(ip) {
            return (number, self.entries[usize::from(number)].generation);
        }
        let mut entry = Entry {
            ip: *ip,
            mac: None,
            generation: 0,
            until_ns: 0,
            asks: 0,
            used_ns: now_ns,
            waiting: Vec::new(),
            claim: None,
            listed: false,
        };
        let number = if self.entries.len() < ENTRIES_MAX {
            self.entries.push(entry);
            (self.entries.len() - 1) as u16
        } else {
            // The least recently used one. Rare: the table is full.
            let oldest = (0..).zip(&self.entries);
            let oldest = oldest.min_by_key(|(_, entry)| entry.used_ns);
            let number = oldest.map_or(0, |(number, _)| number);
            let old = &mut self.entries[usize::from(number)];
            entry.generation = old.generation.wrapping_add(1);
            let waiting = std::mem::take(&mut old.waiting).into_iter();
            // The number stays listed; the next tick finds nothing to ask and removes it.
            entry.listed = old.listed;
            self.numbers.remove(&old.ip);
            *old = entry;
            self.failed.extend(waiting.map(|session| (session, number)));
            number
        };
        self.numbers.insert(*ip, number);
        (number, self.entries[usize::from(number)].generation)
    }

    /// The entry for one of our own addresses: frames to it carry our own hardware address, by
    /// which the caller recognizes loopback frames. No packet from outside changes it.
    pub(crate) fn own(&mut self, ip: &Ip, mac: Mac, now_ns: u64) -> (u16, u16) {
        let (number, generation) = self.entry(ip, now_ns);
        let entry = &mut self.entries[usize::from(number)];
        entry.mac = Some(mac);
        entry.until_ns = u64::MAX;
        (number, generation)
    }

    /// An address is ours no longer. Another host may have it: its next use asks.
    pub(crate) fn disown(&mut self, ip: &Ip, mac: Mac) {
        let Some(&number) = self.numbers.get(ip) else {
            return;
        };
        let entry = &mut self.entries[usize::from(number)];
        if entry.mac == Some(mac) && entry.until_ns == u64::MAX {
            // Sessions look for their next hop again.
            entry.generation = entry.generation.wrapping_add(1);
            (entry.mac, entry.until_ns) = (None, 0);
        }
    }

    /// As [`Neighbors::default`], with entries that nothing changes and no other displaces.
    pub(crate) fn with_fixed(fixed: &[FixedNeighbor]) -> Self {
        let mut neighbors = Self::default();
        for one in fixed {
            // Never the least recently used.
            let (number, _) = neighbors.entry(&one.address.into(), u64::MAX);
            let entry = &mut neighbors.entries[usize::from(number)];
            entry.mac = Some(one.mac);
            entry.until_ns = u64::MAX;
        }
        neighbors
    }

    /// The hardware address of an entry, for `session`, which is put into the waiting list if
    /// necessary.
    #[inline]
    pub(crate) fn hop(&mut self, number: u16, generation: u16, session: u32, now_ns: u64) -> Hop {
        let Some(entry) = self.entries.get_mut(usize::from(number)) else {
            return Hop::Gone;
        };
        if entry.generation != generation {
            return Hop::Gone;
        }
        match entry.mac {
            Some(mac) if now_ns < entry.until_ns => Hop::Known(mac),
            _ => self.hop_unsure(number, Some(session), now_ns),
        }
    }

    /// The hardware address of an entry, if it is known; no request is sent.
    pub(crate) fn mac(&self, number: u16, generation: u16) -> Option<Mac> {
        let entry = self.entries.get(usize::from(number))?;
        entry.mac.filter(|_| entry.generation == generation)
    }

    /// The same for a caller that cannot wait.
    pub(crate) fn known(&mut self, ip: &Ip, now_ns: u64) -> Option<Mac> {
        let (number, _) = self.entry(ip, now_ns);
        match self.entries[usize::from(number)].mac {
            Some(mac) if now_ns < self.entries[usize::from(number)].until_ns => Some(mac),
            _ => match self.hop_unsure(number, None, now_ns) {
                Hop::Known(mac) => Some(mac),
                _ => None,
            },
        }
    }

    #[cold]
    fn hop_unsure(&mut self, number: u16, session: Option<u32>, now_ns: u64) -> Hop {
        let entry = &mut self.entries[usize::from(number)];
        entry.used_ns = now_ns;
        if let Some(mac) = entry.mac {
            // Stale: still used, and confirmed. Later requests are sent by `tick`, so that a lost
            // neighbour is noticed even if nothing is sent for seconds.
            if entry.asks == 0 {
                self.ask(number, now_ns);
            }
            return Hop::Known(mac);
        }
        if let Some(session) = session
            && entry.waiting.len() < WAITING_MAX
        {
            entry.waiting.push(session);
        }
        if entry.asks == 0 && now_ns >= entry.until_ns {
            self.ask(number, now_ns);
        } else if entry.asks == 0 {
            // Known to be unresponsive.
            let waiting = entry.waiting.drain(..);
            self.failed.extend(waiting.map(|session| (session, number)));
        }
        Hop::Waiting
    }

    /// Sends one more request: to the known address, or to all if none is known.
    fn ask(&mut self, number: u16, now_ns: u64) {
        let entry = &mut self.entries[usize::from(number)];
        entry.asks += 1;
        entry.until_ns = now_ns + ASK_NS;
        self.questions.push(Question {
            ip: entry.ip,
            mac: entry.mac,
        });
        if !entry.listed {
            entry.listed = true;
            self.asking.push(number);
        }
    }

    /// A transport gets no answers via this neighbour: RFC 1122 section 2.3.2.1 (4), RFC 4861
    /// section 7.3.1. The next use of the entry confirms it.
    pub(crate) fn suspect(&mut self, number: u16, generation: u16, now_ns: u64) {
        if let Some(entry) = self.entries.get_mut(usize::from(number))
            && entry.generation == generation
            && entry.mac.is_some()
            && entry.asks == 0
            && entry.until_ns != u64::MAX
        {
            entry.until_ns = entry.until_ns.min(now_ns);
        }
    }

    /// Learns a neighbour's address from its own message. With `add`, an entry is created if there
    /// is none.
    pub(crate) fn learn(&mut self, ip: &Ip, mac: Mac, add: bool, now_ns: u64) {
        if mac[0] & 1 != 0 {
            // A neighbour cannot have a group's address.
            return;
        }
        let number = match self.numbers.get(ip) {
            Some(&number) => number,
            None if add && self.entries.len() < ENTRIES_MAX => self.entry(ip, now_ns).0,
            None => return,
        };
        let entry = &mut self.entries[usize::from(number)];
        if entry.until_ns == u64::MAX {
            // One of our own addresses, or a fixed neighbour.
            return;
        }
        if entry.mac.is_some_and(|known| known != mac) {
            let first = entry.claim.replace(mac).is_none();
            if first {
                // Its own requests start here, regardless of earlier ones.
                entry.asks = 0;
                self.ask(number, now_ns);
            }
            return;
        }
        entry.mac = Some(mac);
        entry.claim = None;
        entry.until_ns = now_ns + FRESH_NS;
        entry.asks = 0;
        self.resolved.append(&mut entry.waiting);
    }

    /// Learns tentatively from the source of a packet: used if nothing is known yet, and confirmed
    /// soon.
    pub(crate) fn suppose(&mut self, ip: &Ip, mac: Mac, now_ns: u64) {
        let known = self
            .numbers
            .get(ip)
            .is_some_and(|&number| self.entries[usize::from(number)].mac.is_some());
        if !known {
            self.learn(ip, mac, true, now_ns);
            if let Some(&number) = self.numbers.get(ip) {
                self.entries[usize::from(number)].until_ns = now_ns + ASK_NS;
            }
        }
    }

    /// True if there is no request to send and no session to notify.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.questions.is_empty() && self.resolved.is_empty() && self.failed.is_empty()
    }

    /// Repeats unanswered requests.
    pub(crate) fn tick(&mut self, now_ns: u64) {
        let mut at = 0;
        while at < self.asking.len() {
            let number = self.asking[at];
            let entry = &mut self.entries[usize::from(number)];
            if entry.asks == 0 {
                entry.listed = false;
                self.asking.swap_remove(at);
                continue;
            }
            if now_ns >= entry.until_ns {
                self.unanswered(number, now_ns);
            }
            at += 1;
        }
    }

    /// A request timed out.
    fn unanswered(&mut self, number: u16, now_ns: u64) {
        let entry = &mut self.entries[usize::from(number)];
        if entry.claim.is_some() && entry.asks >= CLAIM_ASKS_MAX {
            // The known neighbour is gone. The claim may still be forged: its next use confirms it.
            entry.mac = entry.claim.take();
            entry.asks = 0;
            entry.until_ns = now_ns + ASK_NS;
        } else if entry.asks < ASKS_MAX {
            self.ask(number, now_ns);
        } else if entry.mac.is_some() {
            // Its last address does not answer: multicast or broadcast.
            entry.mac = None;
            entry.asks = 0;
            self.ask(number, now_ns);
        } else {
            entry.asks = 0;
            entry.until_ns = now_ns + SILENT_NS;
            let waiting = entry.waiting.drain(..);
            self.failed.extend(waiting.map(|session| (session, number)));
        }
    }

    /// Time when [`Neighbors::tick`] has work.
    pub(crate) fn next_ns(&self) -> Option<u64> {
        self.asking
            .iter()
            .map(|&number| self.entries[usize::from(number)].until_ns)
            .min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;
    const OLD: Mac = [2, 0, 0, 0, 0, 1];
    const NEW: Mac = [2, 0, 0, 0, 0, 2];

    fn known() -> (Neighbors, Ip) {
        let (mut neighbors, ip) = (Neighbors::default(), Ip::v4([10, 0, 0, 2]));
        neighbors.learn(&ip, OLD, true, 0);
        (neighbors, ip)
    }

    #[test]
    fn a_claim_is_not_believed_while_the_known_address_answers() {
        let (mut neighbors, ip) = known();
        for second in 0..60 {
            let now_ns = second * S;
            neighbors.learn(&ip, NEW, true, now_ns);
            // The resulting request goes to the known address, and is answered.
            let questions = std::mem::take(&mut neighbors.questions);
            assert!(questions.iter().all(|question| question.mac == Some(OLD)));
            assert!(!questions.is_empty());
            neighbors.learn(&ip, OLD, false, now_ns + S / 1000);
            neighbors.tick(now_ns + S / 2);
            assert_eq!(neighbors.known(&ip, now_ns + S / 2), Some(OLD));
        }
    }

    #[test]
    fn a_fixed_neighbour_is_neither_asked_for_nor_replaced() {
        let ip = Ip::v4([10, 0, 0, 2]);
        let fixed = [FixedNeighbor {
            address: ip.to_std(),
            mac: OLD,
        }];
        let mut neighbors = Neighbors::with_fixed(&fixed);
        let (number, generation) = neighbors.entry(&ip, 0);
        for second in 0..60 {
            neighbors.learn(&ip, NEW, true, second * S);
            neighbors.suspect(number, generation, second * S);
            neighbors.tick(second * S);
            assert_eq!(neighbors.known(&ip, second * S), Some(OLD));
        }
        // Others fill the table, and displace one another only.
        for other in 0..2 * ENTRIES_MAX {
            let other = u32::try_from(other).unwrap();
            neighbors.entry(&Ip::v4((0x0b00_0000 + other).to_be_bytes()), 61 * S);
        }
        let hop = neighbors.hop(number, generation, 0, 62 * S);
        assert_eq!(hop, Hop::Known(OLD));
        assert!(neighbors.questions.is_empty());
    }

    #[test]
    fn an_address_that_is_given_up_is_asked_for() {
        let (mut neighbors, ip) = (Neighbors::default(), Ip::v4([10, 0, 0, 7]));
        let (number, generation) = neighbors.own(&ip, OLD, 0);
        assert_eq!(neighbors.hop(number, generation, 0, S), Hop::Known(OLD));
        neighbors.disown(&ip, OLD);
        assert_eq!(neighbors.hop(number, generation, 0, S), Hop::Gone);
        let (number, generation) = neighbors.entry(&ip, S);
        assert_eq!(neighbors.hop(number, generation, 0, S), Hop::Waiting);
        let asked = neighbors.questions.pop().unwrap();
        assert_eq!((asked.ip, asked.mac), (ip, None));
        neighbors.learn(&ip, NEW, false, S);
        assert_eq!(neighbors.known(&ip, S), Some(NEW));
        // Another host's entry stays.
        neighbors.disown(&ip, OLD);
        assert_eq!(neighbors.known(&ip, S), Some(NEW));
    }

    #[test]
    fn a_neighbour_that_moves_is_followed_within_two_seconds() {
        let (mut neighbors, ip) = known();
        neighbors.learn(&ip, NEW, false, 0);
        for half in 1..5 {
            neighbors.tick(half * S / 2);
        }
        assert_eq!(neighbors.known(&ip, 2 * S), Some(NEW));
    }

    #[test]
    fn a_neighbour_that_keeps_silent_is_asked_for_among_all_after_three_seconds() {
        let (mut neighbors, ip) = known();
        neighbors.suspect(0, 0, S);
        assert_eq!(neighbors.known(&ip, S), Some(OLD));
        for second in 2..4 {
            neighbors.tick(second * S);
            assert_eq!(neighbors.known(&ip, second * S), Some(OLD));
        }
        neighbors.questions.clear();
        neighbors.tick(4 * S);
        let all = Question { ip, mac: None };
        assert_eq!(neighbors.questions, [all]);
        neighbors.learn(&ip, NEW, false, 4 * S);
        assert_eq!(neighbors.known(&ip, 4 * S), Some(NEW));
    }
}

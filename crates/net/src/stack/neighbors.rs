//! Neighbours on the wire: their hardware addresses, asked for by ARP or neighbour discovery.
//!
//! An entry is used while it is fresh; when it has aged it is used on, and confirmed by a question
//! to that one neighbour. Must stay true: what a stranger sends changes an entry that we need, or
//! adds one while there is room, and never takes one away.
//! Source: RFC 826, RFC 1122 section 2.3.2, RFC 4861 section 7.3.

use crate::wire::{Ip, Mac};
use std::collections::HashMap;

/// Entries.
const ENTRIES_MAX: usize = 4096;
/// Sessions that wait for one neighbour; others find out by their own timers.
const WAITING_MAX: usize = 4096;
/// RFC 4861 section 10: REACHABLE_TIME.
const FRESH_NS: u64 = 30_000_000_000;
/// RFC 4861 section 10: RETRANS_TIMER.
const ASK_NS: u64 = 1_000_000_000;
/// RFC 4861 section 10: MAX_MULTICAST_SOLICIT.
const ASKS_MAX: u8 = 3;
/// How long a neighbour that does not answer is not asked again.
const SILENT_NS: u64 = 3_000_000_000;

/// What is known of a next hop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hop {
    Known(Mac),
    /// Asked for; whoever asked is in the list.
    Waiting,
    /// The entry is another's now.
    Gone,
}

#[derive(Debug)]
struct Entry {
    ip: Ip,
    mac: Option<Mac>,
    generation: u16,
    /// Until then nothing is asked.
    until_ns: u64,
    asks: u8,
    used_ns: u64,
    waiting: Vec<u32>,
}

/// A question that is to go out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Question {
    pub(crate) ip: Ip,
    /// To this one alone; to all where it is not known.
    pub(crate) mac: Option<Mac>,
}

/// All entries.
#[derive(Debug, Default)]
pub(crate) struct Neighbors {
    entries: Vec<Entry>,
    numbers: HashMap<Ip, u16>,
    /// For the stack to send.
    pub(crate) questions: Vec<Question>,
    /// Sessions whose neighbour is known now.
    pub(crate) resolved: Vec<u32>,
    /// Sessions whose neighbour does not answer.
    pub(crate) failed: Vec<u32>,
    /// Entries that are being asked for: their next look.
    asking: Vec<u16>,
}

impl Neighbors {
    /// The entry for a next hop, made if need be.
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
        };
        let number = if self.entries.len() < ENTRIES_MAX {
            self.entries.push(entry);
            self.entries.len() - 1
        } else {
            // The one that was not used for longest. Rare: a full table of neighbours.
            let oldest = self.entries.iter().enumerate();
            let oldest = oldest.min_by_key(|(_, entry)| entry.used_ns);
            let number = oldest.map_or(0, |(number, _)| number);
            let old = &mut self.entries[number];
            entry.generation = old.generation.wrapping_add(1);
            let waiting = std::mem::take(&mut old.waiting);
            self.numbers.remove(&old.ip);
            *old = entry;
            self.failed.extend(waiting);
            number
        };
        self.numbers.insert(*ip, number as u16);
        (number as u16, self.entries[number].generation)
    }

    /// The entry for an address of our own: frames to it carry our own hardware address, by which
    /// whoever runs the loop knows that they stay here. Nobody outside changes it.
    pub(crate) fn own(&mut self, ip: &Ip, mac: Mac, now_ns: u64) -> (u16, u16) {
        let (number, generation) = self.entry(ip, now_ns);
        let entry = &mut self.entries[usize::from(number)];
        entry.mac = Some(mac);
        entry.until_ns = u64::MAX;
        (number, generation)
    }

    /// The hardware address of an entry, for `session`, which is put into the list if it must wait.
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

    /// The hardware address of an entry, if it is known; nothing is asked.
    pub(crate) fn mac(&self, number: u16, generation: u16) -> Option<Mac> {
        let entry = self.entries.get(usize::from(number))?;
        entry.mac.filter(|_| entry.generation == generation)
    }

    /// The same for who cannot wait.
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
            if entry.asks >= ASKS_MAX {
                // It was asked in vain: ask all.
                entry.mac = None;
                entry.asks = 0;
            } else {
                // Aged: used on, and confirmed.
                entry.until_ns = now_ns + ASK_NS;
                entry.asks += 1;
                self.questions.push(Question {
                    ip: entry.ip,
                    mac: Some(mac),
                });
                return Hop::Known(mac);
            }
        }
        if let Some(session) = session
            && entry.waiting.len() < WAITING_MAX
        {
            entry.waiting.push(session);
        }
        if entry.asks == 0 && now_ns >= entry.until_ns {
            entry.asks = 1;
            entry.until_ns = now_ns + ASK_NS;
            self.questions.push(Question {
                ip: entry.ip,
                mac: None,
            });
            self.asking.push(number);
        } else if entry.asks == 0 {
            // Known not to answer.
            self.failed.append(&mut entry.waiting);
        }
        Hop::Waiting
    }

    /// A neighbour's address, as it says itself. With `add`, an entry is made where there is none.
    pub(crate) fn learn(&mut self, ip: &Ip, mac: Mac, add: bool, now_ns: u64) {
        if mac[0] & 1 != 0 {
            // No neighbour has a group's address.
            return;
        }
        let number = match self.numbers.get(ip) {
            Some(&number) => number,
            None if add && self.entries.len() < ENTRIES_MAX => self.entry(ip, now_ns).0,
            None => return,
        };
        let entry = &mut self.entries[usize::from(number)];
        if entry.until_ns == u64::MAX {
            // Our own.
            return;
        }
        entry.mac = Some(mac);
        entry.until_ns = now_ns + FRESH_NS;
        entry.asks = 0;
        self.resolved.append(&mut entry.waiting);
    }

    /// A packet came from there: used where nothing is known yet, and confirmed soon.
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

    /// Whether there is nothing to ask, and nobody to be told of an answer.
    #[inline]
    pub(crate) fn is_settled(&self) -> bool {
        self.questions.is_empty() && self.resolved.is_empty() && self.failed.is_empty()
    }

    /// Asks again where there was no answer.
    pub(crate) fn tick(&mut self, now_ns: u64) {
        let mut at = 0;
        while at < self.asking.len() {
            let number = self.asking[at];
            let entry = &mut self.entries[usize::from(number)];
            if entry.mac.is_some() || entry.asks == 0 {
                self.asking.swap_remove(at);
                continue;
            }
            if now_ns >= entry.until_ns {
                if entry.asks >= ASKS_MAX {
                    entry.asks = 0;
                    entry.until_ns = now_ns + SILENT_NS;
                    self.failed.append(&mut entry.waiting);
                    self.asking.swap_remove(at);
                    continue;
                }
                entry.asks += 1;
                entry.until_ns = now_ns + ASK_NS;
                self.questions.push(Question {
                    ip: entry.ip,
                    mac: None,
                });
            }
            at += 1;
        }
    }

    /// When [`Neighbors::tick`] has something to do.
    pub(crate) fn next_ns(&self) -> Option<u64> {
        self.asking
            .iter()
            .map(|&number| self.entries[usize::from(number)].until_ns)
            .min()
    }
}

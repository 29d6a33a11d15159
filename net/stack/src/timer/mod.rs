//! The timing wheel: finds expired timers without checking other sessions.
//!
//! Why here: 100,000 sessions each have a timer, and hardly any ever expires. Four wheels of 256
//! slots tick every 131 us, 33.6 ms, 8.6 s and 37 min; an entry moves down a wheel as its time
//! approaches. Timers are *lazy*: a session keeps its deadlines itself, the wheel only has the
//! earliest tick at which it must check. Postponing a deadline costs nothing; when the entry
//! expires the session adds itself again. Must stay true: an entry counts only if the session still
//! waits for exactly this tick, so entries are never removed; entries are stored in chunks that are
//! reused.
//! Source: Varghese and Lauck, "Hashed and Hierarchical Timing Wheels" (1987).

use crate::buffer::{NONE, Slab};
use sidecore_bare::width::{ToU64, ToUsize};

/// Nanoseconds of a tick, as a power of two: 131 us.
pub(crate) const TICK_SHIFT: u32 = 17;
const SLOT_BITS: u32 = 8;
const SLOTS: usize = 1 << SLOT_BITS;
/// Bits of a tick that number the slot of the lowest wheel.
const SLOT_MASK: u32 = (1 << SLOT_BITS) - 1;
const LEVELS: usize = 4;
/// Bits of a tick below those of each wheel's slot.
const SHIFTS: [u32; LEVELS] = [0, SLOT_BITS, 2 * SLOT_BITS, 3 * SLOT_BITS];
const CHUNK: usize = 14;
/// Chunks allocated at the start: for the timers of some thousands of sessions.
const CHUNKS_FIRST: usize = 1024;

/// A point in time of the wheel; 0 stands for never.
pub(crate) type Tick = u32;

/// The first tick that is not before `at_ns`.
#[inline]
pub(crate) fn tick_after(at_ns: u64) -> Tick {
    nonzero(tick_of(at_ns.div_ceil(1 << TICK_SHIFT)))
}

/// The tick that was reached at `now_ns`.
#[inline]
pub(crate) fn tick_at(now_ns: u64) -> Tick {
    tick_of(now_ns >> TICK_SHIFT)
}

/// Ticks wrap after 6.5 days: they are the low half of a count.
#[inline]
fn tick_of(count: u64) -> Tick {
    count as u32
}

/// True if `tick` is set and not after `now`.
#[inline]
pub(crate) fn is_due(tick: Tick, now: Tick) -> bool {
    tick != 0 && before_or_at(tick, now)
}

/// The earlier of two, each of which may be never.
#[inline]
pub(crate) fn sooner(a: Tick, b: Tick) -> Tick {
    match (a, b) {
        (0, b) => b,
        (a, 0) => a,
        (a, b) if before(a, b) => a,
        (_, b) => b,
    }
}

#[inline]
fn nonzero(tick: u32) -> Tick {
    tick.max(1)
}

/// The slot of a tick in the wheel of this level.
#[inline]
fn slot_of(tick: Tick, level: usize) -> usize {
    (tick >> SHIFTS[level] & SLOT_MASK).to_usize()
}

#[derive(Debug, Clone, Copy, Default)]
struct Entry {
    owner: u32,
    tick: Tick,
}

#[derive(Debug)]
struct Chunk {
    entries: [Entry; CHUNK],
    count: usize,
    next: u32,
}

impl Default for Chunk {
    fn default() -> Self {
        Self {
            entries: [Entry::default(); CHUNK],
            count: 0,
            next: NONE,
        }
    }
}

/// The wheel.
#[derive(Debug)]
pub(crate) struct Wheel {
    /// First chunk of each slot.
    slots: [[u32; SLOTS]; LEVELS],
    /// Bit map of the slots in use.
    used: [[u64; SLOTS / 64]; LEVELS],
    chunks: Slab<Chunk>,
    /// Everything before and at this tick has expired.
    now: Tick,
    count: usize,
}

impl Wheel {
    /// An empty wheel that starts at `now`.
    pub(crate) fn new(now: Tick) -> Self {
        Self {
            slots: [[NONE; SLOTS]; LEVELS],
            used: [[0; SLOTS / 64]; LEVELS],
            chunks: Slab::with_capacity(CHUNKS_FIRST),
            now,
            count: 0,
        }
    }

    /// Adds a check of `owner` at `tick`; at the next tick if that has passed.
    #[inline]
    pub(crate) fn insert(&mut self, owner: u32, tick: Tick) {
        self.count += 1;
        self.place(Entry { owner, tick }, 1);
    }

    /// `least` is the minimum distance of a slot from now: 1, or 0 while a wheel is being turned.
    fn place(&mut self, entry: Entry, least: i32) {
        let distance = entry.tick.wrapping_sub(self.now).cast_signed().max(least);
        let at = self.now.wrapping_add_signed(distance);
        // The level whose slots distinguish `at` from now: the highest digit in which the two
        // differ.
        let different = at ^ self.now;
        let level = ((different | 1).ilog2() / SLOT_BITS).to_usize();
        let slot = slot_of(at, level);
        let head = &mut self.slots[level][slot];
        if *head == NONE || self.chunks.get(*head).count == CHUNK {
            let new = self.chunks.take();
            let chunk = self.chunks.get_mut(new);
            chunk.count = 0;
            chunk.next = *head;
            *head = new;
            self.used[level][slot / 64] |= 1 << (slot % 64);
        }
        let chunk = self.chunks.get_mut(*head);
        chunk.entries[chunk.count] = entry;
        chunk.count += 1;
    }

    /// Turns to `now` and calls `due` with each expired owner and tick. Cost: the expired entries,
    /// and the slots in use; independent of the distance of `now`.
    pub(crate) fn advance(&mut self, now: Tick, due: &mut Vec<(u32, Tick)>) {
        if self.count == 0 {
            self.now = now;
            return;
        }
        while before(self.now, now) {
            // Up to the end of this turn of the lowest wheel, or to `now`.
            let turn_end = self.now | SLOT_MASK;
            let last = if before(turn_end, now) { turn_end } else { now };
            while let Some(slot) = self.next_used(0, slot_of(self.now, 0) + 1) {
                let at = self.now & !SLOT_MASK | tick_of(slot.to_u64());
                if before(last, at) {
                    break;
                }
                self.now = at;
                self.empty(0, slot, due);
            }
            self.now = last;
            if last == now {
                return;
            }
            // Nothing is left in this turn. Turns without entries are skipped: a clock that jumps
            // by minutes would go through thousands.
            self.now = self.last_empty_turn(now);
            if self.now == now {
                return;
            }
            // The next tick starts a turn: move down the entries in the slot of each wheel above
            // that begins there.
            self.now = self.now.wrapping_add(1);
            let mut level = 1;
            while level < LEVELS {
                let slot = slot_of(self.now, level);
                self.empty(level, slot, due);
                if slot != 0 {
                    break;
                }
                level += 1;
            }
            self.empty(0, slot_of(self.now, 0), due);
        }
    }

    /// Called at the end of a turn of the lowest wheel. The end of the last turn before entries of
    /// a wheel above move down; `now` if that is earlier.
    fn last_empty_turn(&self, now: Tick) -> Tick {
        let mut end = self.now;
        for (level, shift) in SHIFTS.into_iter().enumerate().skip(1) {
            // All bits of this wheel's turn; for the top one, of the whole tick.
            let within = SLOT_MASK << shift | ((1 << shift) - 1);
            if let Some(slot) = self.next_used(level, slot_of(end, level) + 1) {
                end = (end & !within | tick_of(slot.to_u64()) << shift).wrapping_sub(1);
                break;
            }
            // This wheel, too, has nothing left in its turn.
            end |= within;
        }
        // Both are in the future, the end perhaps by more than half of all ticks.
        let [end_away, now_away] = [end, now].map(|tick| tick.wrapping_sub(self.now));
        self.now.wrapping_add(end_away.min(now_away))
    }

    /// Removes all entries of a slot: expired ones to `due`, the others to their new places.
    fn empty(&mut self, level: usize, slot: usize, due: &mut Vec<(u32, Tick)>) {
        let mut at = std::mem::replace(&mut self.slots[level][slot], NONE);
        self.used[level][slot / 64] &= !(1 << (slot % 64));
        while at != NONE {
            let chunk = self.chunks.get(at);
            let (entries, count, next) = (chunk.entries, chunk.count, chunk.next);
            self.chunks.give(at);
            for entry in &entries[..count] {
                if before_or_at(entry.tick, self.now) {
                    self.count -= 1;
                    due.push((entry.owner, entry.tick));
                } else {
                    self.place(*entry, 0);
                }
            }
            at = next;
        }
    }

    /// Removes all entries, and turns to tick 0. Cost: the slots in use.
    pub(crate) fn clear(&mut self) {
        for level in 0..LEVELS {
            while let Some(slot) = self.next_used(level, 0) {
                let mut at = std::mem::replace(&mut self.slots[level][slot], NONE);
                self.used[level][slot / 64] &= !(1 << (slot % 64));
                while at != NONE {
                    self.chunks.give(at);
                    at = self.chunks.get(at).next;
                }
            }
        }
        (self.now, self.count) = (0, 0);
    }

    /// The first slot in use of a level, from `from` on.
    fn next_used(&self, level: usize, from: usize) -> Option<usize> {
        let mut word = from / 64;
        if word >= SLOTS / 64 {
            return None;
        }
        let mut bits = self.used[level][word] & (u64::MAX << (from % 64));
        loop {
            if bits != 0 {
                return Some(word * 64 + bits.trailing_zeros().to_usize());
            }
            word += 1;
            if word == SLOTS / 64 {
                return None;
            }
            bits = self.used[level][word];
        }
    }

    /// Number of entries, including stale ones.
    #[cfg(test)]
    pub(crate) fn entries(&self) -> usize {
        self.count
    }

    /// Time of the next check, in nanoseconds on the clock of `now_ns`: no entry expires before,
    /// and possibly none then either.
    pub(crate) fn next_ns(&self, now_ns: u64) -> Option<u64> {
        if self.count == 0 {
            return None;
        }
        let mut next = None;
        for (level, shift) in SHIFTS.into_iter().enumerate() {
            let upper = (u64::from(self.now) >> shift) & !u64::from(SLOT_MASK);
            let slot = match self.next_used(level, slot_of(self.now, level) + 1) {
                Some(slot) => upper | slot.to_u64(),
                // Wrapped: only the top wheel has slots behind it.
                None if level == LEVELS - 1 => match self.next_used(level, 0) {
                    Some(slot) => upper + (SLOTS + slot).to_u64(),
                    None => continue,
                },
                None => continue,
            };
            let tick = tick_of(slot << shift);
            next = Some(next.map_or(tick, |next| sooner(next, tick)));
        }
        let away = next?.wrapping_sub(tick_at(now_ns)).cast_signed();
        let base = now_ns >> TICK_SHIFT;
        Some((base.saturating_add_signed(i64::from(away)) << TICK_SHIFT).max(now_ns))
    }
}

// Comparison of clock readings that wrap: the microseconds and milliseconds of
// [`Common`](crate::shared::Common), and the timestamps of RFC 7323.
//
// Must stay true: the two readings are less than half of the clock's range apart.

/// True if the reading `a` is earlier than `b`.
#[inline]
pub(crate) fn before(a: u32, b: u32) -> bool {
    a.wrapping_sub(b).cast_signed() < 0
}

/// True if `a` is earlier than `b`, or the same.
#[inline]
pub(crate) fn before_or_at(a: u32, b: u32) -> bool {
    a.wrapping_sub(b).cast_signed() <= 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use sidecore_random::Random;

    #[test]
    fn every_entry_comes_once_and_at_its_tick() {
        let mut random = Random::new(11);
        for start in [1_u32, 250, 65_000, u32::MAX - 70_000] {
            let mut wheel = Wheel::new(start);
            let mut waiting = std::collections::HashMap::new();
            let mut now = start;
            let mut due = Vec::new();
            for owner in 0..if cfg!(miri) { 60 } else { 5_000_u32 } {
                let spans = [4, 300, 5_000, 100_000, 20_000_000];
                let span = spans[random.below(5) as usize];
                let away = random.below(span) as u32 + 1;
                let tick = now.wrapping_add(away);
                wheel.insert(owner, tick);
                waiting.insert(owner, tick);
                if random.below(3) == 0 {
                    let steps = [1, 10, 400, 3_000, 200_000];
                    let most = steps[random.below(5) as usize];
                    now = now.wrapping_add(random.below(most) as u32);
                    wheel.advance(now, &mut due);
                    for (owner, tick) in due.drain(..) {
                        assert_eq!(waiting.remove(&owner), Some(tick), "from {start}");
                    }
                    for (owner, tick) in &waiting {
                        let away = tick.wrapping_sub(now) as i32;
                        assert!(away > 0, "{owner} is late by {away} (from {start})");
                    }
                }
            }
            wheel.advance(now.wrapping_add(21_000_000), &mut due);
            for (owner, _) in due.drain(..) {
                waiting.remove(&owner);
            }
            assert!(waiting.is_empty(), "{} left from {start}", waiting.len());
            assert_eq!(wheel.count, 0);
        }
    }

    #[test]
    fn tells_when_to_look_and_never_too_late() {
        let mut random = Random::new(12);
        for _ in 0..if cfg!(miri) { 10 } else { 300 } {
            let start = random.below(1 << 40);
            let mut wheel = Wheel::new(tick_at(start));
            let bits = 18 + random.below(20);
            let away = random.below(1 << bits);
            let tick = tick_after(start + away);
            wheel.insert(1, tick);
            let mut now = start;
            let mut due = Vec::new();
            let mut looks = 0;
            while due.is_empty() {
                let next = wheel.next_ns(now).expect("something waits");
                assert!(next >> TICK_SHIFT <= u64::from(tick).max((start >> TICK_SHIFT) + 1));
                now = next.max(now + 1);
                wheel.advance(tick_at(now), &mut due);
                looks += 1;
                assert!(looks < 1000);
            }
            assert!(wheel.next_ns(now).is_none());
        }
    }

    #[test]
    fn never_is_later_than_all() {
        assert_eq!(sooner(0, 5), 5);
        assert_eq!(sooner(5, 0), 5);
        assert_eq!(sooner(u32::MAX, 3), u32::MAX, "before the wrap");
        assert!(!is_due(0, 9));
    }
}

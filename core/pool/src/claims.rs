//! Set of idle engines: one bit each, claimed and released by any thread.
//!
//! Why here: a caller that borrows an idle engine and an engine thread that is given work must
//! never both drive the same core. The thread that cleared the bit owns the engine until it sets it
//! again.
//! Must stay true: fences order the operations with the code around them. A releaser sets its bit
//! and *then* looks for work that came meanwhile; a poster queues its work and *then* looks for an
//! idle bit: one of the two must see the other (see README.md, "No work is left lying"). Of more
//! than 64 engines, a word of groups says which words to look at. It is a hint: a sure look reads
//! every word.

use crate::bits::{AtomicBits, WORD_BITS};
use crate::sync::{AtomicU64, Ordering};
use crossbeam_utils::CachePadded;
use sidecore_bare::width::ToUsize;
use sidecore_sync::Changed;

/// The most engines of a pool in a process: one bit each, in 16 words.
pub const ENGINES_MAX: usize = 1_024;
const _: () = assert!(ENGINES_MAX <= WORD_BITS * WORD_BITS, "a bit for each word");

/// The set of idle engines.
#[derive(Debug)]
pub(crate) struct Claims {
    idle: AtomicBits,
    /// Bit `w` says that an engine of word `w` may be idle; where there is one word it is not used.
    /// A word that has idle engines has its bit, as soon as no thread is between its two steps.
    groups: CachePadded<AtomicU64>,
}

/// Which idle engine a claimer would rather have.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Preferred<'a> {
    /// One of these: a bit each, 64 a word.
    Of(&'a [u64]),
    /// None of these.
    But(&'a [u64]),
    /// One with a higher number than this.
    After(usize),
}

impl Preferred<'_> {
    /// The preferred ones among the engines of the `index`th word.
    #[inline]
    fn word(self, index: usize) -> u64 {
        let of = |set: &[u64]| set.get(index).copied().unwrap_or(0);
        match self {
            Self::Of(set) => of(set),
            Self::But(set) => !of(set),
            Self::After(engine) => match (engine + 1).checked_sub(index * WORD_BITS) {
                None => u64::MAX,
                Some(before) => u64::MAX.checked_shl(before as u32).unwrap_or(0),
            },
        }
    }

    /// The preferred ones of that word first, then all.
    #[inline]
    fn pick(self, index: usize) -> Pick {
        Pick {
            first: self.word(index),
            then: u64::MAX,
        }
    }
}

impl Claims {
    /// All of `engines` idle; `engines` is 1 to [`ENGINES_MAX`].
    pub(crate) fn new(engines: usize) -> Self {
        Self::with(AtomicBits::full(engines))
    }

    fn with(idle: AtomicBits) -> Self {
        // Relaxed: no other thread has it yet.
        let is_idle = |word: &AtomicU64| word.load(Ordering::Relaxed) != 0;
        let words = idle.words().enumerate();
        let groups = words.map(|(index, word)| u64::from(is_idle(word)) << index);
        let groups = groups.fold(0, |all, group| all | group);
        Self {
            groups: CachePadded::new(AtomicU64::new(groups)),
            idle,
        }
    }

    /// Takes an idle engine, a preferred one if there is one.
    pub(crate) fn claim(&self, preferred: Preferred<'_>) -> Option<usize> {
        self.glance(preferred).or_else(|| {
            // Only a caller that finds none must be sure of it, so only this path pays for a fence.
            // Partner: the read-modify-write in `release`. A releaser that comes after this second
            // look at the engine's word sees the work that the caller queued before. The words are
            // read one by one, but each after the fence, and a releaser sets one bit.
            let _published = Changed::publish();
            let pick = |index| preferred.pick(index);
            match self.idle.only_word() {
                Some(word) => Some(take(word, pick(0), Ordering::SeqCst)?.bit),
                None => self.look(|_| true, pick, Ordering::SeqCst),
            }
        })
    }

    /// Takes an idle engine, a preferred one if there is one, by a look that is not sure to find
    /// one: for callers that lose nothing without it. Costs no fence where all are busy.
    #[inline]
    pub(crate) fn glance(&self, preferred: Preferred<'_>) -> Option<usize> {
        self.glance_at(|index| preferred.pick(index))
    }

    /// Takes an idle engine of this set, one with a higher number than `after` if there is one; by
    /// a look as [`Self::glance`] is.
    pub(crate) fn glance_of(&self, set: &[u64], after: usize) -> Option<usize> {
        self.glance_at(|index| {
            let set = set.get(index).copied().unwrap_or(0);
            Pick {
                first: set & Preferred::After(after).word(index),
                then: set,
            }
        })
    }

    #[inline]
    fn glance_at(&self, pick: impl Fn(usize) -> Pick) -> Option<usize> {
        // Relaxed: a bit is taken by a read-modify-write, whatever the look saw.
        let load = Ordering::Relaxed;
        if let Some(word) = self.idle.only_word() {
            return Some(take(word, pick(0), load)?.bit);
        }
        // Relaxed: a hint at which words to look.
        let groups = self.groups.load(Ordering::Relaxed);
        self.look(|index| groups >> index & 1 != 0, pick, load)
    }

    /// Looks at these of the words.
    fn look(
        &self,
        is_looked_at: impl Fn(usize) -> bool,
        pick: impl Fn(usize) -> Pick,
        load: Ordering,
    ) -> Option<usize> {
        let words = || {
            let words = self.idle.words().enumerate();
            words.filter(|(index, _)| is_looked_at(*index))
        };
        // A preferred one of a later word goes before others of an earlier one.
        let found = words().find_map(|(index, word)| {
            let first = pick(index).first;
            // Relaxed: a hint which word to try; all are tried below.
            match word.load(Ordering::Relaxed) & first {
                0 => None,
                _ => self.take_in(index, word, Pick { first, then: first }, load),
            }
        });
        found.or_else(|| {
            words().find_map(|(index, word)| self.take_in(index, word, pick(index), load))
        })
    }

    fn take_in(&self, index: usize, word: &AtomicU64, pick: Pick, load: Ordering) -> Option<usize> {
        let Taken { bit, is_last } = take(word, pick, load)?;
        if is_last {
            self.emptied(index, word);
        }
        Some(index * WORD_BITS + bit)
    }

    /// The last idle engine of a word was taken: quick looks pass it over from now on.
    #[cold]
    fn emptied(&self, index: usize, word: &AtomicU64) {
        // SeqCst, all of these: partner of `release`, whose two steps come in the other order. A
        // releaser whose bit of the group came before this step is seen by the look after it.
        self.groups.fetch_and(!(1 << index), Ordering::SeqCst);
        if word.load(Ordering::SeqCst) != 0 {
            self.groups.fetch_or(1 << index, Ordering::SeqCst);
        }
    }

    /// Takes this engine if it is idle.
    pub(crate) fn claim_exactly(&self, engine: usize) -> bool {
        let (word, bit) = self.idle.place(engine);
        // SeqCst: as in `take`.
        let before = word.fetch_and(!bit, Ordering::SeqCst);
        if before == bit && self.idle.only_word().is_none() {
            self.emptied(engine / WORD_BITS, word);
        }
        before & bit != 0
    }

    /// Gives an engine back.
    pub(crate) fn release(&self, engine: usize) {
        let (word, bit) = self.idle.place(engine);
        // SeqCst: partner of the fence in `claim`; the releaser looks for work after this. Also a
        // Release: the thread that takes the bit sees the contents of the engine's core.
        let before = word.fetch_or(bit, Ordering::SeqCst);
        debug_assert_eq!(before & bit, 0, "engine {engine} was released twice");
        if before == 0 && self.idle.only_word().is_none() {
            let group = 1 << (engine / WORD_BITS);
            // SeqCst: partner of `emptied`.
            self.groups.fetch_or(group, Ordering::SeqCst);
        }
    }

    /// Number of idle engines; of more than 64, each word at its own moment.
    pub(crate) fn idle_count(&self) -> u32 {
        // SeqCst: a thread that is about to sleep looks here after its fence, as in `claim`.
        let count = |word: &AtomicU64| word.load(Ordering::SeqCst).count_ones();
        self.idle.words().map(count).sum()
    }
}

/// Engines that rest: claimed for as long as the process may have less time than when its pool
/// started, by a quota or a set of processors that was changed meanwhile. More threads than that
/// would be stopped in the middle of their work.
#[derive(Debug)]
pub(crate) struct Resting {
    affordable_at_start: usize,
    /// Time of the last look.
    looked_ns: std::sync::atomic::AtomicU64,
    count: std::sync::atomic::AtomicU32,
    engines: parking_lot::Mutex<Vec<usize>>,
}

impl Resting {
    /// None rest, while the process may have the time of this many cores.
    pub(crate) fn new(affordable: usize) -> Self {
        Self {
            affordable_at_start: affordable,
            looked_ns: Default::default(),
            count: Default::default(),
            engines: Default::default(),
        }
    }

    /// The number of engines that rest.
    pub(crate) fn count(&self) -> u32 {
        self.count.load(Ordering::Relaxed)
    }

    /// True once a second, for one caller.
    pub(crate) fn is_due(&self, now_ns: u64) -> bool {
        // Relaxed: only the time is exchanged.
        let before = self.looked_ns.load(Ordering::Relaxed);
        let (done, lost) = (Ordering::Relaxed, Ordering::Relaxed);
        now_ns.saturating_sub(before) > RESTING_LOOK_NS
            && self
                .looked_ns
                .compare_exchange(before, now_ns, done, lost)
                .is_ok()
    }

    /// Has idle engines rest, those of the highest numbers first, where the process may have the
    /// time of `affordable` cores now; those that are to be given back. One engine never rests;
    /// one that is busy may rest after a later look.
    pub(crate) fn follow(&self, claims: &Claims, engines: usize, affordable: usize) -> Vec<usize> {
        let fewer = self.affordable_at_start.saturating_sub(affordable);
        let wanted = fewer.min(engines.saturating_sub(1));
        let mut resting = self.engines.lock();
        for engine in (1..engines).rev() {
            if resting.len() >= wanted {
                break;
            }
            if !resting.contains(&engine) && claims.claim_exactly(engine) {
                resting.push(engine);
            }
        }
        let kept = resting.len().min(wanted);
        let back = resting.split_off(kept);
        self.count.store(kept as u32, Ordering::Relaxed);
        back
    }
}

/// Time between two looks at the process's quota and processors.
const RESTING_LOOK_NS: u64 = 1_000_000_000;

/// Bits of a word that a claimer takes first, and those that it takes where none of these is set.
#[derive(Debug, Clone, Copy)]
struct Pick {
    first: u64,
    then: u64,
}

/// A bit that was taken.
struct Taken {
    bit: usize,
    /// No other is set in its word.
    is_last: bool,
}

/// Takes a bit of a word, one of the first if there is one.
#[inline]
fn take(word: &AtomicU64, pick: Pick, load: Ordering) -> Option<Taken> {
    let mut idle = word.load(load);
    loop {
        let wanted = match idle & pick.first {
            0 => idle & pick.then,
            first => first,
        };
        if wanted == 0 {
            return None;
        }
        let bit = wanted & wanted.wrapping_neg();
        // SeqCst: partner of the read-modify-write in `release`, of which it acquires the core; a
        // look that fails here counts as one after `claim`'s fence.
        match word.compare_exchange_weak(idle, idle & !bit, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) => {
                return Some(Taken {
                    bit: bit.trailing_zeros().to_usize(),
                    is_last: idle == bit,
                });
            }
            Err(now) => idle = now,
        }
    }
}

/// Engines whose threads are on each core.
#[derive(Debug)]
pub(crate) struct EnginesOnCpus {
    /// Words of each core's set.
    words_each: usize,
    words: Box<[u64]>,
}

impl EnginesOnCpus {
    /// Of cores by their number, the engines in turn.
    pub(crate) fn new(cpu_of_engine: &[usize]) -> Self {
        let cpus = cpu_of_engine.iter().max().map_or(1, |&cpu| cpu + 1);
        let words_each = cpu_of_engine.len().div_ceil(WORD_BITS).max(1);
        let mut words = vec![0; cpus * words_each];
        for (engine, &cpu) in cpu_of_engine.iter().enumerate() {
            words[cpu * words_each + engine / WORD_BITS] |= 1 << (engine % WORD_BITS);
        }
        Self {
            words_each,
            words: words.into(),
        }
    }

    /// Set of the engines on a core; empty for one that has none.
    #[inline]
    pub(crate) fn on(&self, cpu: usize) -> &[u64] {
        let start = cpu * self.words_each;
        self.words
            .get(start..start + self.words_each)
            .unwrap_or(&[])
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use sidecore_random::Random;

    /// Result of a claim by the plain rule, which the bit set is checked against.
    fn expected(idle: &[bool], is_preferred: impl Fn(usize) -> bool) -> Option<usize> {
        let all = || (0..idle.len()).filter(|&engine| idle[engine]);
        all()
            .find(|&engine| is_preferred(engine))
            .or_else(|| all().next())
    }

    #[test]
    fn claims_go_by_preference_whatever_the_number_of_engines() {
        let mut random = Random::new(7);
        let mut below = |bound: usize| (random.bits() % bound as u64) as usize;
        for engines in [1, 2, 63, 64, 65, 130, 1_024] {
            let cpus: Vec<usize> = (0..engines).map(|engine| engine % 3).collect();
            let on_cpus = EnginesOnCpus::new(&cpus);
            let claims = Claims::new(engines);
            let mut idle = vec![true; engines];
            for _ in 0..if cfg!(miri) { 10 } else { 3_000 } {
                let engine = below(engines);
                if !idle[engine] && below(2) == 0 {
                    claims.release(engine);
                    idle[engine] = true;
                }
                let cpu = below(4);
                let (taken, expected) = match below(6) {
                    4 => (
                        claims.glance(Preferred::After(engine)),
                        expected(&idle, |other| other > engine),
                    ),
                    5 => {
                        let of_cpu = |other: &usize| idle[*other] && cpus[*other] == cpu;
                        let mut later = (engine + 1..engines).filter(of_cpu);
                        let expected = later.next().or_else(|| (0..engines).find(of_cpu));
                        (claims.glance_of(on_cpus.on(cpu), engine), expected)
                    }
                    0 => (
                        claims.claim(Preferred::After(engine)),
                        expected(&idle, |other| other > engine),
                    ),
                    1 => (
                        claims.claim(Preferred::But(on_cpus.on(cpu))),
                        expected(&idle, |other| cpus[other] != cpu),
                    ),
                    2 => (
                        claims.claim(Preferred::Of(on_cpus.on(cpu))),
                        expected(&idle, |other| cpus[other] == cpu),
                    ),
                    _ => {
                        let taken = claims.claim_exactly(engine);
                        (taken.then_some(engine), idle[engine].then_some(engine))
                    }
                };
                assert_eq!(taken, expected, "of {engines}");
                if let Some(engine) = taken {
                    idle[engine] = false;
                }
                if engines > WORD_BITS {
                    // In one thread, the groups are exactly those with idle engines.
                    let groups = claims.groups.load(Ordering::Relaxed);
                    for (index, idle) in idle.chunks(WORD_BITS).enumerate() {
                        let is_set = groups >> index & 1 != 0;
                        assert_eq!(is_set, idle.contains(&true), "of {engines}");
                    }
                }
                let count = idle.iter().filter(|&&idle| idle).count();
                assert_eq!(claims.idle_count() as usize, count, "of {engines}");
            }
        }
    }

    #[test]
    fn engines_rest_while_the_process_may_have_less_time() {
        let (claims, resting) = (Claims::new(4), Resting::new(8));
        assert!(resting.follow(&claims, 4, 7).is_empty());
        assert_eq!((resting.count(), claims.idle_count()), (1, 3));
        // Engine 2 is busy: it rests after a later look. Engine 0 never does.
        assert!(claims.claim_exactly(2));
        assert!(resting.follow(&claims, 4, 1).is_empty());
        assert_eq!((resting.count(), claims.idle_count()), (2, 1));
        claims.release(2);
        assert!(resting.follow(&claims, 4, 1).is_empty());
        assert_eq!((resting.count(), claims.idle_count()), (3, 1));
        let back = resting.follow(&claims, 4, 6);
        assert_eq!((resting.count(), back.len()), (2, 1));
        assert_eq!(resting.follow(&claims, 4, 100).len(), 2);
        assert_eq!(resting.count(), 0);
        // As often as once a second, and by one caller.
        assert!(!resting.is_due(RESTING_LOOK_NS));
        assert!(resting.is_due(RESTING_LOOK_NS + 1));
        assert!(!resting.is_due(RESTING_LOOK_NS + 2));
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;

    /// README.md, "No work is left lying": a poster queues its work and then looks for an idle
    /// engine; a releaser gives its engine back and then looks at the queue. One of them finds
    /// both.
    #[test]
    fn posted_work_is_never_left_while_an_engine_is_idle() {
        loom::model(|| {
            let claims = Arc::new(Claims::new(1));
            let queued = Arc::new(AtomicU64::new(0));
            let done = Arc::new(AtomicU64::new(0));
            assert_eq!(claims.claim(Preferred::Of(&[])), Some(0));
            let drain = |claims: &Claims, queued: &AtomicU64, done: &AtomicU64| {
                loop {
                    while queued.swap(0, Ordering::SeqCst) == 1 {
                        done.fetch_add(1, Ordering::SeqCst);
                    }
                    claims.release(0);
                    if queued.load(Ordering::SeqCst) == 0
                        || claims.claim(Preferred::Of(&[])).is_none()
                    {
                        return;
                    }
                }
            };
            let poster = {
                let (claims, queued, done) =
                    (Arc::clone(&claims), Arc::clone(&queued), Arc::clone(&done));
                loom::thread::spawn(move || {
                    // A read-modify-write, as the queue's own push is.
                    queued.swap(1, Ordering::SeqCst);
                    if claims.claim(Preferred::Of(&[])).is_some() {
                        drain(&claims, &queued, &done);
                    }
                })
            };
            drain(&claims, &queued, &done);
            assert!(poster.join().is_ok());
            assert_eq!(done.load(Ordering::SeqCst), 1);
            assert_eq!(claims.idle_count(), 1);
        });
    }

    /// A word that one thread empties while another gives an engine back to it is not passed over
    /// afterwards.
    #[test]
    fn a_group_that_is_emptied_and_filled_at_once_is_looked_at() {
        loom::model(|| {
            let claims = Arc::new(Claims::with(AtomicBits::empty(WORD_BITS + 1)));
            claims.release(0);
            let taker = {
                let claims = Arc::clone(&claims);
                loom::thread::spawn(move || claims.claim(Preferred::Of(&[])))
            };
            claims.release(1);
            let taken = taker.join().expect("no panic");
            assert!(matches!(taken, Some(0 | 1)));
            let left = claims.glance(Preferred::Of(&[]));
            assert_eq!(left, taken.map(|engine| 1 - engine));
        });
    }

    /// The same with engines in two words, which a poster looks at one after the other.
    #[test]
    fn posted_work_is_found_by_an_engine_of_either_word() {
        struct Model {
            claims: Claims,
            queued: AtomicU64,
            done: AtomicU64,
        }
        /// Gives an engine back, as its thread does, and takes one again where there is work.
        fn release(model: &Model, mut engine: usize) {
            work(model);
            loop {
                model.claims.release(engine);
                if model.queued.load(Ordering::SeqCst) == 0 {
                    return;
                }
                let Some(again) = model.claims.claim(Preferred::Of(&[])) else {
                    return;
                };
                engine = again;
                work(model);
            }
        }
        fn work(model: &Model) {
            if model.queued.swap(0, Ordering::SeqCst) == 1 {
                model.done.fetch_add(1, Ordering::SeqCst);
            }
        }
        let mut orders = loom::model::Builder::new();
        orders.preemption_bound = Some(2);
        orders.check(|| {
            let model = Arc::new(Model {
                // All are busy, and only the first and the last become idle.
                claims: Claims::with(AtomicBits::empty(WORD_BITS + 1)),
                queued: AtomicU64::new(0),
                done: AtomicU64::new(0),
            });
            let engines = [0, WORD_BITS].map(|engine| {
                // Loom lets a SeqCst load see the word's initial value, even after later writes.
                model.claims.release(engine);
                assert!(model.claims.claim_exactly(engine));
                let model = Arc::clone(&model);
                loom::thread::spawn(move || release(&model, engine))
            });
            // A read-modify-write, as the queue's own push is.
            model.queued.swap(1, Ordering::SeqCst);
            if let Some(engine) = model.claims.claim(Preferred::Of(&[])) {
                work(&model);
                release(&model, engine);
            }
            for engine in engines {
                assert!(engine.join().is_ok());
            }
            assert_eq!(model.done.load(Ordering::SeqCst), 1);
            assert_eq!(model.claims.idle_count(), 2);
        });
    }
}

//! Set of idle engines: one bit each, claimed and released by any thread.
//!
//! Why here: a caller that borrows an idle engine and an engine thread that is given work must
//! never both drive the same core. The thread that cleared the bit owns the engine until it sets it
//! again.
//! Must stay true: fences order the operations with the code around them. A releaser sets its bit
//! and *then* looks for work that came meanwhile; a poster queues its work and *then* looks for an
//! idle bit: one of the two must see the other (see README.md, "No work is left lying").

use crate::bits::{AtomicBits, WORD_BITS};
use crate::sync::{AtomicU64, Ordering};
use sidecore_bare::width::ToUsize;
use sidecore_sync::Changed;

/// The most engines of a pool in a process: one bit each. A daemon's are fewer
/// (`sidecore_daemon::ENGINES_MAX`).
pub const ENGINES_MAX: usize = 1_024;

/// The set of idle engines.
#[derive(Debug)]
pub(crate) struct Claims {
    idle: AtomicBits,
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
}

impl Claims {
    /// All of `engines` idle; `engines` is 1 to [`ENGINES_MAX`].
    pub(crate) fn new(engines: usize) -> Self {
        Self {
            idle: AtomicBits::full(engines),
        }
    }

    /// Takes an idle engine, a preferred one if there is one.
    pub(crate) fn claim(&self, preferred: Preferred<'_>) -> Option<usize> {
        // Relaxed: a bit is taken by a read-modify-write, whatever the look saw.
        self.look(preferred, Ordering::Relaxed).or_else(|| {
            // Only a caller that finds none must be sure of it, so only this path pays for a fence.
            // Partner: the read-modify-write in `release`. A releaser that comes after this second
            // look at the engine's word sees the work that the caller queued before. The words are
            // read one by one, but each after the fence, and a releaser sets one bit.
            let _published = Changed::publish();
            self.look(preferred, Ordering::SeqCst)
        })
    }

    #[inline]
    fn look(&self, preferred: Preferred<'_>, load: Ordering) -> Option<usize> {
        match self.idle.only_word() {
            Some(word) => take(word, preferred.word(0), load),
            None => self.look_in_all(preferred, load),
        }
    }

    fn look_in_all(&self, preferred: Preferred<'_>, load: Ordering) -> Option<usize> {
        let words = || self.idle.words().enumerate();
        let take_in = |index, word, wanted| {
            let bit = take(word, wanted, load)?;
            Some(index * WORD_BITS + bit)
        };
        // A preferred one of a later word goes before others of an earlier one.
        let found = words().find_map(|(index, word)| {
            let wanted = preferred.word(index);
            // Relaxed: a hint which word to try; all are tried below.
            match word.load(Ordering::Relaxed) & wanted {
                0 => None,
                _ => take_in(index, word, wanted),
            }
        });
        found.or_else(|| words().find_map(|(index, word)| take_in(index, word, 0)))
    }

    /// Takes this engine if it is idle.
    pub(crate) fn claim_exactly(&self, engine: usize) -> bool {
        let (word, bit) = self.idle.place(engine);
        // SeqCst: as in `take`.
        word.fetch_and(!bit, Ordering::SeqCst) & bit != 0
    }

    /// Gives an engine back.
    pub(crate) fn release(&self, engine: usize) {
        let (word, bit) = self.idle.place(engine);
        // SeqCst: partner of the fence in `claim`; the releaser looks for work after this. Also a
        // Release: the thread that takes the bit sees the contents of the engine's core.
        let before = word.fetch_or(bit, Ordering::SeqCst);
        debug_assert_eq!(before & bit, 0, "engine {engine} was released twice");
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

/// Takes a bit of a word, a preferred one if there is one.
#[inline]
fn take(word: &AtomicU64, preferred: u64, load: Ordering) -> Option<usize> {
    let mut idle = word.load(load);
    while idle != 0 {
        let wanted = match idle & preferred {
            0 => idle,
            preferred => preferred,
        };
        let bit = wanted & wanted.wrapping_neg();
        // SeqCst: partner of the read-modify-write in `release`, of which it acquires the core; a
        // look that fails here counts as one after `claim`'s fence.
        match word.compare_exchange_weak(idle, idle & !bit, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) => return Some(bit.trailing_zeros().to_usize()),
            Err(now) => idle = now,
        }
    }
    None
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
                let (taken, expected) = match below(4) {
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
                claims: Claims {
                    idle: AtomicBits::empty(WORD_BITS + 1),
                },
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

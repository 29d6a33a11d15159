//! The data path allocates nothing: a search's steps, once a few of them have been made.
#![allow(unsafe_code, clippy::unwrap_used)] // The counting allocator; helper functions of tests.

use sidecore_likelihood::likelihood::{Likelihood, Options};
use sidecore_likelihood::model::{Model, ModelName};
use sidecore_likelihood::msa::Patterns;
use sidecore_likelihood::random::Random;
use sidecore_likelihood::runner::{Runner, Serial};
use sidecore_likelihood::simulate::{numbered_names, simulate};
use sidecore_likelihood::tree::{EdgeId, HalfId, random_tree};
use sidecore_offload::{Pool, PoolConfig};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

struct Counting;

static CALLS: AtomicU64 = AtomicU64::new(0);

// SAFETY: hands everything on to the system's allocator and only counts.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CALLS.fetch_add(1, Relaxed);
        // SAFETY: the caller's promise, handed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        CALLS.fetch_add(1, Relaxed);
        // SAFETY: the caller's promise, handed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        CALLS.fetch_add(1, Relaxed);
        // SAFETY: the caller's promise, handed on.
        unsafe { System.realloc(at, layout, size) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise, handed on.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A search's steps on a simulated alignment.
struct Steps<R> {
    likelihood: Likelihood<R>,
    random: Random,
}

const TAXA: usize = 30;

impl<R: Runner> Steps<R> {
    fn new(runner: R) -> Self {
        let mut random = Random::new(5);
        let tree = random_tree(TAXA, 0.1, &mut random);
        let text = "GTR{1.5/3.8/0.6/1.3/4.1/1}+FU{0.27/0.2/0.24/0.29}+G4m{0.3}";
        let none = &mut |_: &str| Err(std::io::ErrorKind::NotFound.into());
        let truth = Model::without_alignment(ModelName::parse(text, none).unwrap());
        let alignment = simulate(&tree, &numbered_names(TAXA), &truth, 900, 1).unwrap();
        let patterns = Patterns::new(&alignment, truth.alphabet()).unwrap();
        let options = Options {
            chunk_bytes: 16 << 10,
            ..Options::default()
        };
        let likelihood = Likelihood::new(tree, patterns, truth, runner, options).unwrap();
        assert!(likelihood.chunks() > 2);
        Self { likelihood, random }
    }

    /// One of each: a length, all lengths, a neighbour interchange, a subtree moved and put back.
    fn step(&mut self) {
        let own = &mut self.likelihood;
        let edge = EdgeId(self.random.below(2 * TAXA as u64 - 3) as u32);
        own.set_length(edge, 0.2);
        own.evaluate_at(edge).unwrap();
        own.optimise_length(edge).unwrap();
        own.optimise_lengths(0.1, 1).unwrap();
        if let Some(nni) = own.nni(edge, true) {
            own.evaluate_at(edge).unwrap();
            own.undo_nni(nni);
        }
        let half = HalfId((TAXA as u64 + self.random.below(3 * TAXA as u64 - 6)) as u32);
        let pruned = own.prune(half);
        let target = own.tree().edge(pruned.ends[0]);
        let grafted = own.regraft(pruned, target);
        let edge = own.tree().edge(half);
        own.optimise_length(edge).unwrap();
        own.evaluate_length(edge, 0.1).unwrap();
        let pruned = own.ungraft(grafted);
        own.unprune(pruned);
        own.evaluate().unwrap();
    }

    /// Allocations of `steps` steps from one seed: the same steps each time, for a new topology may
    /// need more room than all before it.
    fn count(&mut self, steps: usize) -> u64 {
        self.random = Random::new(9);
        let before = CALLS.load(Relaxed);
        (0..steps).for_each(|_| self.step());
        CALLS.load(Relaxed) - before
    }
}

#[test]
fn a_searchs_steps_allocate_nothing() {
    let mut serial = Steps::new(Serial);
    // Every direction of every node is met, in topologies as large as any that follow.
    assert!(serial.count(100) > 0, "nothing is counted");
    assert_eq!(serial.count(100), 0);
    let pool = Pool::start(PoolConfig {
        engines: 2,
        ..PoolConfig::default()
    })
    .unwrap();
    let mut pooled = Steps::new(&pool);
    // On a busy machine the second engine may come late to some of what makes it allocate.
    let counts: Vec<u64> = (0..LAPS_MAX)
        .map(|_| pooled.count(100))
        .take_while(|&count| count > 0)
        .collect();
    assert!(
        counts.len() < LAPS_MAX,
        "allocations of each lap: {counts:?}"
    );
}

/// Laps over the same steps; one of them must allocate nothing.
const LAPS_MAX: usize = 50;

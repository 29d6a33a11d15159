//! Runners of the chunks of a loop over patterns.
//!
//! Why here: the likelihood does not know if its chunks run one after the other or on several
//! engines. A chunk writes only to itself, and the chunks' results are added afterwards in a fixed
//! tree; so the result is the same to the last bit on any number of engines.
//! Chunks may belong to other processes ([`split`]): a likelihood then holds only its share of
//! them.

pub mod split;

pub use split::Share;

use sidecore_offload::{OffloadError, Pool, PoolConfig};
use sidecore_sched::{ClassId, Policy};
use std::ops::Range;
use std::time::Duration;

/// Kind of work of a loop's chunks; a scheduler measures each kind for itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// newview along a traversal, and what follows it.
    Traverse,
    /// Derivatives at a length.
    Derivatives,
    /// Consensuses of halves of the bootstraps.
    Cuts,
    /// Tallies of replicates for a tree's branches.
    Support,
}

impl Work {
    /// The class in which a scheduler measures loops of this kind that take about `ns`: one for
    /// each doubling, since the best decision for a whole traversal is not that for one node.
    fn class(self, ns: u64) -> ClassId {
        let first = match self {
            Self::Traverse => CLASS_TRAVERSE,
            Self::Derivatives => CLASS_DERIVATIVES,
            Self::Cuts => CLASS_CUTS,
            Self::Support => CLASS_SUPPORT,
        };
        let doublings = (ns / OFFLOAD_NS_MIN).max(1).ilog2() as u16;
        ClassId(first + doublings.min(DOUBLINGS_MAX))
    }
}

/// The class for asking the policy about a loop of `chunks` chunks that takes one core about `ns`
/// nanoseconds; `None` where asking costs more than it gains.
///
/// The papers' test, `t_engine + t_code + 2 t_comm < t_host`, decides here where its outcome is
/// plain; in between, the policy measures.
pub fn off_load_class(work: Work, ns: u64, chunks: usize) -> Option<ClassId> {
    (ns >= OFFLOAD_NS_MIN && chunks >= 2).then(|| work.class(ns))
}

/// Runs a loop's chunks. Blocks until all are done.
pub trait Runner: Sync {
    /// Calls `unit` once for every item of `chunks`, which may be on several threads.
    ///
    /// # Errors
    /// [`OffloadError`] when an engine failed; some chunks may then not have run.
    fn run<T: Send>(
        &self,
        work: Work,
        chunks: &mut [T],
        unit: impl Fn(&mut T) + Sync,
    ) -> Result<(), OffloadError>;

    /// As [`Runner::run`], of a loop that one core does in about `ns` nanoseconds: within a factor
    /// of a few is good enough.
    ///
    /// # Errors
    /// As [`Runner::run`].
    fn run_sized<T: Send>(
        &self,
        work: Work,
        ns: u64,
        chunks: &mut [T],
        unit: impl Fn(&mut T) + Sync,
    ) -> Result<(), OffloadError> {
        // A runner without a policy has no use for the estimate.
        let _ = ns;
        self.run(work, chunks, unit)
    }

    /// This process's share of all chunks: all of them unless a search is split.
    fn share(&self) -> Share {
        Share::WHOLE
    }

    /// Gathers the terms of all processes' chunks; see [`split::Peers::gather`].
    fn gather(&self, own: &[f64], all: &mut [f64]) {
        all.copy_from_slice(own);
    }
}

/// A pool for likelihoods: one engine after the other on `cpus` (all that this thread may use where
/// that is empty).
///
/// A search's loops of some ten microseconds follow one another after 5 to 50 microseconds. So an
/// engine that has helped spins that long before it sleeps: a wake-up costs its caller five
/// microseconds and takes fifteen.
#[must_use]
pub fn pool_config(engines: usize, cpus: &[usize], policy: Box<dyn Policy>) -> PoolConfig {
    PoolConfig {
        engines,
        cpus: cpus.to_vec(),
        policy,
        grace: ENGINE_GRACE,
        ..PoolConfig::default()
    }
}

/// One after the other, on the caller's thread.
#[derive(Debug, Clone, Copy, Default)]
pub struct Serial;

impl Runner for Serial {
    fn run<T: Send>(
        &self,
        _: Work,
        chunks: &mut [T],
        unit: impl Fn(&mut T) + Sync,
    ) -> Result<(), OffloadError> {
        chunks.iter_mut().for_each(unit);
        Ok(())
    }
}

/// On a pool's engines, as many as its policy gives; a loop that is too short for a packet, or
/// cannot be split, runs on the caller's thread.
impl Runner for Pool {
    fn run<T: Send>(
        &self,
        work: Work,
        chunks: &mut [T],
        unit: impl Fn(&mut T) + Sync,
    ) -> Result<(), OffloadError> {
        self.for_each(work.class(u64::MAX), chunks, |_, chunk| unit(chunk))
    }

    fn run_sized<T: Send>(
        &self,
        work: Work,
        ns: u64,
        chunks: &mut [T],
        unit: impl Fn(&mut T) + Sync,
    ) -> Result<(), OffloadError> {
        // Below the limit not even the policy is asked, which takes longer than the loop.
        match off_load_class(work, ns, chunks.len()).filter(|_| self.engines() > 1) {
            Some(class) => self.for_each(class, chunks, |_, chunk| unit(chunk)),
            None => {
                chunks.iter_mut().for_each(unit);
                Ok(())
            }
        }
    }
}

impl<R: Runner> Runner for &R {
    fn run<T: Send>(
        &self,
        work: Work,
        chunks: &mut [T],
        unit: impl Fn(&mut T) + Sync,
    ) -> Result<(), OffloadError> {
        (**self).run(work, chunks, unit)
    }

    fn run_sized<T: Send>(
        &self,
        work: Work,
        ns: u64,
        chunks: &mut [T],
        unit: impl Fn(&mut T) + Sync,
    ) -> Result<(), OffloadError> {
        (**self).run_sized(work, ns, chunks, unit)
    }

    fn share(&self) -> Share {
        (**self).share()
    }

    fn gather(&self, own: &[f64], all: &mut [f64]) {
        (**self).gather(own, all);
    }
}

/// Adds what `term` finds in each item, in a tree whose shape depends on their number alone.
pub(crate) fn sum_in_tree_of<I, T: std::ops::Add<Output = T> + Default>(
    items: &[I],
    term: impl Fn(&I) -> T,
) -> T {
    sum_in_tree_at(0..items.len(), &|at| term(&items[at]))
}

/// As [`sum_in_tree_of`], of what `term` gives for each number of a range.
pub(crate) fn sum_in_tree_at<T: std::ops::Add<Output = T> + Default>(
    range: Range<usize>,
    term: &impl Fn(usize) -> T,
) -> T {
    match range.len() {
        0 => T::default(),
        1 => term(range.start),
        len => {
            // The left half is a power of two: a block of chunks is then a whole subtree.
            let middle = range.start + len.next_power_of_two() / 2;
            sum_in_tree_at(range.start..middle, term) + sum_in_tree_at(middle..range.end, term)
        }
    }
}

/// See [`pool_config`].
pub(crate) const ENGINE_GRACE: Duration = Duration::from_micros(50);
const CLASS_TRAVERSE: u16 = 32;
const CLASS_DERIVATIVES: u16 = CLASS_TRAVERSE + DOUBLINGS_MAX + 1;
const CLASS_CUTS: u16 = CLASS_DERIVATIVES + DOUBLINGS_MAX + 1;
const CLASS_SUPPORT: u16 = CLASS_CUTS + DOUBLINGS_MAX + 1;
/// Loops of a millisecond and more are one class.
const DOUBLINGS_MAX: u16 = 7;
/// A loop shorter than this is not worth a packet: asking the policy, claiming an engine and
/// waiting for it takes half a microsecond if its thread spins, and five if it sleeps.
const OFFLOAD_NS_MIN: u64 = 8_000;

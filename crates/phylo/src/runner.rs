//! Who runs the chunks of a loop over patterns.
//!
//! Why here: the likelihood does not know whether its chunks run one after the other or on several
//! engines. A chunk writes only to itself, and what the chunks found is added afterwards in a fixed
//! tree ([`sum_in_tree`]); so the result is the same to the last bit, however they were run.

use sidecore_offload::{OffloadError, Pool};
use sidecore_sched::ClassId;

/// What kind of work a loop's chunks do; a scheduler measures each kind for itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// newview along a traversal, and what follows it.
    Traverse,
    /// Derivatives at a length.
    Derivatives,
    /// Consensuses of halves of the bootstraps.
    Cuts,
    /// What replicates say of a tree's branches.
    Support,
}

impl Work {
    fn class(self) -> ClassId {
        match self {
            Self::Traverse => CLASS_TRAVERSE,
            Self::Derivatives => CLASS_DERIVATIVES,
            Self::Cuts => CLASS_CUTS,
            Self::Support => CLASS_SUPPORT,
        }
    }
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

/// On a pool's engines, as many as its policy gives.
impl Runner for Pool {
    fn run<T: Send>(
        &self,
        work: Work,
        chunks: &mut [T],
        unit: impl Fn(&mut T) + Sync,
    ) -> Result<(), OffloadError> {
        self.for_each(work.class(), chunks, |_, chunk| unit(chunk))
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
}

/// Adds in a tree whose shape depends on the number of terms alone.
pub fn sum_in_tree<T: Copy + std::ops::Add<Output = T> + Default>(terms: &[T]) -> T {
    match terms {
        [] => T::default(),
        [one] => *one,
        _ => {
            let (left, right) = terms.split_at(terms.len().next_power_of_two() / 2);
            sum_in_tree(left) + sum_in_tree(right)
        }
    }
}

const CLASS_TRAVERSE: ClassId = ClassId(32);
const CLASS_DERIVATIVES: ClassId = ClassId(33);
const CLASS_CUTS: ClassId = ClassId(40);
const CLASS_SUPPORT: ClassId = ClassId(41);

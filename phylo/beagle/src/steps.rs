//! Steps: what changes the values of patterns, in the order of the client's calls.
//!
//! Why here: every step works on each pattern alone. So a chunk of patterns goes through all steps
//! since the last result while its values are in the cache, and no step waits for other chunks.

use crate::matrices::Matrix;
use std::collections::BTreeSet;

/// One change of the buffers of a chunk.
#[derive(Debug)]
pub(crate) enum Step {
    /// Partials of a node from its children.
    Update(Update),
    /// Logarithms of scale buffers are added to another, or taken from it.
    Accumulate {
        from: Vec<usize>,
        into: usize,
        sign: f64,
        partition: Option<usize>,
    },
    /// The sum of what automatic scaling took from these nodes.
    Collect { nodes: Vec<usize> },
    /// A scale buffer becomes 0.
    Reset { at: usize, partition: Option<usize> },
    /// A scale buffer becomes another's copy.
    Copy { from: usize, into: usize },
}

/// An operation.
#[derive(Debug)]
pub(crate) struct Update {
    /// Which way partials go.
    pub(crate) order: Order,
    /// The buffer that is written.
    pub(crate) destination: usize,
    /// Buffers that are read, as the order says.
    pub(crate) sources: [usize; 2],
    /// Their matrices, as the order says.
    pub(crate) matrices: [usize; 2],
    /// The kind of scaling.
    pub(crate) scaling: Scaling,
    /// The partition, or all.
    pub(crate) partition: Option<usize>,
}

/// Orders of a traversal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// Children before parents: the sources are the children, each with the matrix of its branch.
    Post,
    /// Parents before children: the sources are the parent's pre-order partials, with the matrix of
    /// the node's own branch, and the sibling's partials, with the matrix of its branch.
    Pre,
}

/// Scaling of an operation's result.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Scaling {
    /// None.
    Keep,
    /// Each pattern is divided by its largest entry.
    Write {
        /// Scale buffer for the factors.
        at: usize,
        /// Scale buffer to which their logarithms are added.
        cumulative: Option<usize>,
        /// Scale buffer that is first taken from the cumulative one.
        replaced: Option<usize>,
        /// Scale buffers, of logarithms, that are added to the factors.
        below: [Option<usize>; 2],
    },
    /// Each pattern is divided by the factor that a scale buffer holds.
    Read {
        /// The scale buffer.
        at: usize,
    },
    /// A power of two is taken where entries are far from 1; the number is of the inner node.
    Auto {
        /// Inner node.
        node: usize,
        /// Inner nodes below it: what was taken there is in its values, too.
        below: [Option<usize>; 2],
    },
}

/// A result that is wanted: the likelihood at a root or over an edge of each of some models.
#[derive(Debug)]
pub(crate) struct Group {
    /// The partition, or all.
    pub(crate) partition: Option<usize>,
    /// Models of a mixture; at least one.
    pub(crate) members: Vec<Member>,
}

/// One model of a mixture.
#[derive(Debug)]
pub(crate) struct Member {
    /// The root's buffer, or the parent's.
    pub(crate) near: usize,
    /// The child's buffer; none at a root.
    pub(crate) child: Option<usize>,
    /// With frequencies and weights in it, for an edge: the transition matrix, and its derivatives
    /// as far as they are wanted. At a root one whose table has a single span.
    pub(crate) folded: Vec<Matrix>,
    /// Scale buffer of logarithms that are added.
    pub(crate) scale: Option<usize>,
    /// Inner nodes; the logarithms that automatic scaling took there and below are added. Only
    /// members of mixtures have any.
    pub(crate) scaled: Vec<usize>,
}

/// Log-likelihood and two derivatives, weighted and summed.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Sums(pub(crate) [f64; 3]);

impl std::ops::AddAssign for Sums {
    fn add_assign(&mut self, other: Self) {
        for (sum, other) in self.0.iter_mut().zip(other.0) {
            *sum += other;
        }
    }
}

/// The derivative of the log-likelihood by the length of a branch.
#[derive(Debug, Default)]
pub(crate) struct Slope {
    /// Of each pattern, in the client's order; empty unless it is wanted.
    pub(crate) sites: Vec<f64>,
    /// Of all patterns, by their weights.
    pub(crate) sum: f64,
    /// The sum of the squares.
    pub(crate) squares: f64,
}

/// A branch whose slope is wanted.
#[derive(Debug)]
pub(crate) struct Branch {
    pub(crate) post: usize,
    pub(crate) pre: usize,
    /// The index of its differential matrix.
    pub(crate) matrix: usize,
    /// In single precision the identity and the matrix with the weights in them.
    pub(crate) folded: Option<Member>,
}

/// Slopes that are wanted.
#[derive(Debug)]
pub(crate) struct Gradient {
    pub(crate) branches: Vec<Branch>,
    /// Of the categories.
    pub(crate) weights: Vec<f64>,
    pub(crate) with_sites: bool,
}

/// Steps in runs of those that may run together, one or more.
pub(crate) fn runs(steps: &[Step]) -> Vec<&[Step]> {
    let mut rest = steps;
    let next = || {
        let (run, after) = rest.split_at_checked(together(rest).max(1))?;
        rest = after;
        Some(run)
    };
    std::iter::from_fn(next).collect()
}

/// The number of the first steps that may run together, some patterns at a time: updates after
/// their children without scaling, none into a buffer that an earlier one of them reads or writes,
/// or itself reads.
fn together(steps: &[Step]) -> usize {
    let plain = |step: &Step| match step {
        Step::Update(update) => {
            update.order == Order::Post && matches!(update.scaling, Scaling::Keep)
        }
        _ => false,
    };
    let names = |step: &Step, to: usize| match step {
        Step::Update(of) => of.destination == to || of.sources.contains(&to),
        _ => false,
    };
    // The pairs are few: a search through a list costs less than a set.
    let is_next = |at: &usize| match &steps[*at] {
        Step::Update(update) if plain(&steps[*at]) => {
            let to = update.destination;
            !update.sources.contains(&to) && !steps[..*at].iter().any(|step| names(step, to))
        }
        _ => false,
    };
    (0..steps.len().min(TOGETHER_MAX))
        .take_while(is_next)
        .count()
}

/// Steps that may run together, at most.
const TOGETHER_MAX: usize = 64;

/// The first of the last steps that may run some patterns at a time: pre-order updates without
/// scaling, none in place, and none into a buffer that one of them has read.
pub(crate) fn fused(steps: &[Step]) -> usize {
    let plain = |step: &Step| match step {
        Step::Update(update) if update.order == Order::Pre => {
            matches!(update.scaling, Scaling::Keep) && !update.sources.contains(&update.destination)
        }
        _ => false,
    };
    // Only the end of the list counts: slopes come right after it.
    let first = steps
        .iter()
        .rposition(|step| !plain(step))
        .map_or(0, |at| at + 1);
    let mut read = BTreeSet::new();
    for step in &steps[first..] {
        if let Step::Update(update) = step {
            // Room is made before the first step, which would drop values that are still read.
            if read.contains(&update.destination) {
                return steps.len();
            }
            read.extend(update.sources);
        }
    }
    first
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(destination: usize, sources: [usize; 2], scaling: Scaling) -> Step {
        Step::Update(Update {
            order: Order::Post,
            destination,
            sources,
            matrices: sources,
            scaling,
            partition: None,
        })
    }

    #[test]
    fn updates_run_together_up_to_the_first_that_hinders() {
        let plain = |destination, sources| step(destination, sources, Scaling::Keep);
        let path = || vec![plain(8, [0, 1]), plain(9, [8, 2]), plain(10, [9, 3])];
        assert_eq!(together(&[]), 0);
        assert_eq!(together(&path()), 3);
        // In place; into what was read; into what was written; with scaling; not an update.
        let last = [
            plain(11, [11, 3]),
            plain(2, [10, 3]),
            plain(9, [10, 3]),
            step(11, [10, 3], Scaling::Read { at: 0 }),
            Step::Copy { from: 0, into: 1 },
        ];
        for last in last {
            let steps = path().into_iter().chain([last, plain(12, [10, 3])]);
            assert_eq!(together(&steps.collect::<Vec<_>>()), 3);
        }
        assert_eq!(together(&[plain(4, [4, 3])]), 0);
        let many = (0..100).map(|at| plain(at + 9, [at, at + 1]));
        let many: Vec<Step> = many.collect();
        assert_eq!(together(&many), TOGETHER_MAX);
        let lengths =
            |steps: &[Step]| -> Vec<usize> { runs(steps).iter().map(|run| run.len()).collect() };
        assert_eq!(lengths(&many), [TOGETHER_MAX, 100 - TOGETHER_MAX]);
        assert_eq!(
            lengths(&[Step::Copy { from: 0, into: 1 }, plain(5, [0, 1])]),
            [1, 1]
        );
        assert!(runs(&[]).is_empty());
    }
}

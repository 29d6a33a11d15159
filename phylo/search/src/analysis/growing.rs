//! The best tree of the searches in progress, for readers that look on.
//!
//! Why here: a ledger knows finished searches alone, and one may take hours. Must stay true: what a
//! search does depends on nothing here; a step costs a lock that nothing else holds for long, and,
//! at most once a second, a copy of the tree.

use super::plan::Kind;
use crate::search::State;
use crate::tree::Tree;
use parking_lot::Mutex;
use sidecore_offload::task;

/// The best tree so far, and the number of steps. Any thread.
#[derive(Debug, Default)]
pub struct Growing(Mutex<Seen>);

#[derive(Debug, Default)]
struct Seen {
    steps: u64,
    best: Option<(f64, Tree)>,
    kept_ns: u64,
}

/// The best tree so far.
#[derive(Debug, Clone, PartialEq)]
pub struct Best {
    /// Its log-likelihood.
    pub log_likelihood: f64,
    /// The tree.
    pub newick: String,
}

impl Growing {
    /// A search has made a step.
    pub(super) fn step(&self, kind: Kind, state: &State) {
        self.see(kind, state.lnl(), state.is_done(), || state.tree().clone());
    }

    fn see(&self, kind: Kind, lnl: f64, is_done: bool, tree: impl FnOnce() -> Tree) {
        let mut seen = self.0.lock();
        seen.steps += 1;
        // Bootstraps are of other data: their likelihoods do not compare.
        if kind != Kind::Search || !lnl.is_finite() {
            return;
        }
        let is_better = seen.best.as_ref().is_none_or(|(best, _)| lnl > *best);
        let now_ns = task::now_ns();
        let is_due =
            is_done || seen.best.is_none() || now_ns.saturating_sub(seen.kept_ns) >= KEEP_EVERY_NS;
        if is_better && is_due {
            seen.best = Some((lnl, tree()));
            seen.kept_ns = now_ns;
        }
    }

    /// Steps of all searches so far, and the best tree, with the taxa's names.
    #[must_use]
    pub fn look(&self, names: &[String]) -> (u64, Option<Best>) {
        let seen = self.0.lock();
        let (steps, best) = (seen.steps, seen.best.clone());
        // The text of a large tree takes milliseconds.
        drop(seen);
        let best = best.map(|(log_likelihood, tree)| Best {
            log_likelihood,
            newick: tree.to_newick(names).to_string(),
        });
        (steps, best)
    }
}

/// Time between two copies of a tree.
const KEEP_EVERY_NS: u64 = 1_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;
    use crate::tree::random_tree;

    #[test]
    fn the_best_search_is_kept_and_bootstraps_are_not() {
        let names: Vec<String> = (0..5).map(|number| format!("t{number}")).collect();
        let tree = |seed| random_tree(5, 0.1, &mut Random::new(seed));
        let growing = Growing::default();
        assert_eq!(growing.look(&names), (0, None));
        growing.see(Kind::Bootstrap, -1.0, true, || tree(1));
        growing.see(Kind::Search, f64::NEG_INFINITY, false, || tree(1));
        assert_eq!(growing.look(&names), (2, None));
        growing.see(Kind::Search, -9.0, false, || tree(2));
        // Better, but copied only when it is due, or the search is over.
        growing.see(Kind::Search, -8.5, false, || tree(3));
        growing.see(Kind::Search, -8.0, true, || tree(4));
        growing.see(Kind::Search, -8.2, true, || panic!("worse than the best"));
        let (steps, best) = growing.look(&names);
        let best = best.expect("a tree");
        assert_eq!((steps, best.log_likelihood), (6, -8.0));
        assert_eq!(best.newick, tree(4).to_newick(&names).to_string());
    }
}

//! State of a search: everything needed to resume it as if it had never stopped.
//!
//! Must stay true: resuming from a saved state gives the same doubles as an uninterrupted run; so
//! everything that a later step depends on is here, floating-point numbers by their bits. Saved
//! under the names of version 2 of the checkpoint's format: a perturbation is `Escape` there, a
//! runner-up one of `seconds`.

use crate::random::Random;
use crate::tree::{EdgeId, HalfId, Tree};

/// Phase of a search.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub enum Phase {
    /// Lengths and parameters, coarsely, on the starting tree.
    First,
    /// SPR moves, few of which are refined.
    Fast,
    /// Lengths and parameters again.
    Middle,
    /// SPR moves, refined.
    Slow,
    /// Away from the best tree by moves of small loss, and uphill again, to find a better one.
    #[serde(rename = "Escape")]
    Perturb,
    /// Lengths and parameters to the end.
    Last,
    /// The search is over.
    Done,
}

/// State of a search, which can be saved and resumed.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct State {
    pub(super) tree: Tree,
    /// For each partition the model's numbers; empty before the first step.
    pub(super) models: Vec<Vec<Exact>>,
    pub(super) lnl: Exact,
    pub(super) phase: Phase,
    /// Number of the pass or round within the phase.
    pub(super) round: u32,
    /// The log-likelihood when the round began.
    pub(super) round_lnl: Exact,
    /// Present radius of SPR moves.
    pub(super) radius: u32,
    /// The half-edges whose subtrees this round moves, and how many are done.
    pub(super) order: Vec<HalfId>,
    pub(super) at: usize,
    /// For each half-edge: true if its subtree was tried since the last change near it.
    pub(super) quiet: Vec<bool>,
    /// Largest loss of an insertion up to which a walk continues; and the sum and number of losses,
    /// from which the next round's is computed.
    pub(super) cutoff: Exact,
    pub(super) losses: (Exact, u64),
    /// Moves that nearly gained something.
    pub(super) close: Vec<Close>,
    /// For each half-edge the best move of its subtree among those without a gain.
    #[serde(rename = "seconds")]
    pub(super) runner_up: Vec<Option<Close>>,
    /// The best tree before a perturbation.
    pub(super) best: Option<Best>,
    /// Failed perturbations in a row; and for each half-edge the number of those that began with
    /// its subtree.
    pub(super) failures: u32,
    pub(super) tries: Vec<u32>,
    /// Topologies that perturbations saw without a gain since the last gain, in order.
    pub(super) seen: Vec<u64>,
    /// True once a perturbation has gained something.
    pub(super) rugged: bool,
    /// Number of moves made.
    pub(super) moves: u64,
    pub(super) random: Random,
}

/// A move that nearly gained, and its log-likelihood (in [`State::close`]) or its loss (in
/// [`State::runner_up`]).
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
pub(super) struct Close {
    pub(super) half: HalfId,
    pub(super) edge: EdgeId,
    pub(super) lnl: Exact,
}

/// The tree to return to after a failed perturbation.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub(super) struct Best {
    pub(super) tree: Tree,
    pub(super) lnl: Exact,
    #[serde(rename = "seconds")]
    pub(super) runner_up: Vec<Option<Close>>,
}

/// A double that is saved by its bits.
#[derive(
    Debug, Clone, Copy, PartialEq, PartialOrd, Default, serde::Serialize, serde::Deserialize,
)]
#[serde(from = "u64", into = "u64")]
pub(super) struct Exact(pub(super) f64);

impl From<u64> for Exact {
    fn from(bits: u64) -> Self {
        Self(f64::from_bits(bits))
    }
}

impl From<Exact> for u64 {
    fn from(exact: Exact) -> Self {
        exact.0.to_bits()
    }
}

impl State {
    /// A search's beginning. `seed` is for the search's own draws.
    #[must_use]
    pub fn new(mut tree: Tree, seed: u64) -> Self {
        tree.resolve();
        let halves = tree.halves();
        Self {
            tree,
            models: Vec::new(),
            lnl: Exact(f64::NEG_INFINITY),
            phase: Phase::First,
            round: 0,
            round_lnl: Exact(f64::NEG_INFINITY),
            radius: 0,
            order: Vec::new(),
            at: 0,
            quiet: vec![false; halves],
            cutoff: Exact(0.0),
            losses: (Exact(0.0), 0),
            close: Vec::new(),
            runner_up: vec![None; halves],
            best: None,
            failures: 0,
            tries: vec![0; halves],
            seen: Vec::new(),
            rugged: false,
            moves: 0,
            random: Random::new(seed),
        }
    }

    /// The next cutoff: `factor` times the mean loss of the insertions since the last one, and no
    /// less than `least`.
    pub(super) fn set_cutoff(&mut self, factor: f64, lnl: f64, least: f64) {
        let (sum, count) = std::mem::take(&mut self.losses);
        let cutoff = if count == 0 {
            // RAxML's start value, before there is a mean.
            factor * -lnl / 1000.0
        } else {
            factor * sum.0 / count as f64
        };
        self.cutoff = Exact(cutoff.max(least));
    }

    /// The best tree so far.
    #[must_use]
    pub fn tree(&self) -> &Tree {
        self.best.as_ref().map_or(&self.tree, |best| &best.tree)
    }

    /// Its log-likelihood; minus infinity before the first step.
    #[must_use]
    pub fn lnl(&self) -> f64 {
        self.best.as_ref().map_or(self.lnl, |best| best.lnl).0
    }

    /// The phase.
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// True once the search is over.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.phase == Phase::Done
    }

    /// Number of the round within the phase, from 0.
    #[must_use]
    pub fn round(&self) -> u32 {
        self.round
    }

    /// Present radius of SPR moves, in nodes.
    #[must_use]
    pub fn radius(&self) -> u32 {
        self.radius
    }

    /// Share of the round that is over, from 0 to 1.
    #[must_use]
    pub fn share(&self) -> f64 {
        if self.order.is_empty() {
            0.0
        } else {
            self.at as f64 / self.order.len() as f64
        }
    }

    /// Number of moves made.
    #[must_use]
    pub fn moves(&self) -> u64 {
        self.moves
    }

    /// For each partition the model's numbers ([`crate::model::Model::set_numbers`]), and last its
    /// scale; empty before
    /// the first step.
    #[must_use]
    pub fn models(&self) -> Vec<Vec<f64>> {
        let numbers = |model: &Vec<Exact>| model.iter().map(|number| number.0).collect();
        self.models.iter().map(numbers).collect()
    }
}

//! The climb by likelihood: fits of lengths and parameters, and moves of subtrees to near places.
//!
//! Why here: places are scored without a change of the tree, and the best of them alone get their
//! lengths fitted. A walk stops where losses are above a share of the last round's mean. A subtree
//! is tried again only after a change near it.
//! Must stay true: a state is whole at the end of each round, and a run that goes on from it makes
//! the same moves. A round never ends below its start.

use crate::{Stage, Step, Watch, WideError};
use serde::{Deserialize, Serialize};
use sidecore_likelihood::likelihood::{
    Insertions, Lengths, Likelihood, LikelihoodError, Options, Part, PartOptions, clv_bytes,
};
use sidecore_likelihood::runner::Runner;
use sidecore_likelihood::tree::{HalfId, Tree};
use std::ops::ControlFlow;

/// State of a climb between two of its rounds, which can be saved; doubles are saved by their bits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct State {
    start: Tree,
    tree: Tree,
    /// For each partition the model's numbers, and last its scale; empty at first.
    models: Vec<Vec<u64>>,
    lnl: u64,
    stage: Stage,
    /// Rounds of moves that are over.
    round: u32,
    /// Largest loss of an insertion up to which a walk continues; 0 before it is known.
    cutoff: u64,
    /// For each half-edge: true if its subtree was tried since the last change near it.
    quiet: Vec<bool>,
    moves: u64,
}

impl State {
    /// A climb's beginning.
    pub(crate) fn new(tree: Tree) -> Self {
        Self {
            quiet: vec![false; tree.halves()],
            start: tree.clone(),
            tree,
            models: Vec::new(),
            lnl: f64::NEG_INFINITY.to_bits(),
            stage: Stage::Fit,
            round: 0,
            cutoff: 0,
            moves: 0,
        }
    }

    /// The tree of different sequences.
    pub(crate) fn tree(&self) -> &Tree {
        &self.tree
    }

    /// The tree by parsimony.
    pub(crate) fn start(&self) -> &Tree {
        &self.start
    }

    /// The log-likelihood; minus infinity before the first fit.
    #[must_use]
    pub fn lnl(&self) -> f64 {
        f64::from_bits(self.lnl)
    }

    /// Moves made.
    #[must_use]
    pub fn moves(&self) -> u64 {
        self.moves
    }

    /// Rounds of moves that are over.
    #[must_use]
    pub fn round(&self) -> u32 {
        self.round
    }
}

/// The end of a climb.
pub(crate) struct End {
    pub(crate) state: State,
    pub(crate) models: Vec<String>,
}

/// Bytes of memory that a climb from a state takes.
///
/// # Errors
/// [`WideError::State`] for a state of other data.
pub(crate) fn bytes(parts: &[PartOptions], state: &State) -> Result<u64, WideError> {
    let wrong = |what| Err(WideError::State { what });
    // A state may come from a file.
    let taxa = parts.first().map_or(0, |part| part.patterns.taxa());
    if state.tree.taxa() != taxa || state.start.taxa() != taxa {
        return wrong("another number of sequences");
    }
    if state.quiet.len() != state.tree.halves() {
        return wrong("subtrees that its tree does not have");
    }
    let bytes = clv_bytes(&state.tree, parts, options());
    // Moves change the tree a little, and buffers of other lengths stay for a while.
    Ok(bytes / 4 * 5)
}

/// Climbs from a state of these data to the end; `None` where the watch broke it off.
pub(crate) fn run<R: Runner>(
    parts: &[PartOptions],
    state: State,
    lengths: Lengths,
    runner: &R,
    watch: &mut Watch<'_>,
) -> Result<Option<End>, WideError> {
    let mut climb = Climb::new(parts, state, lengths, runner)?;
    while climb.state.stage != Stage::Done {
        let step = Step {
            state: Some(&climb.state),
            ..Step::at(climb.state.stage, 0, 0)
        };
        if watch(&step).is_break() || climb.advance(watch)?.is_break() {
            return Ok(None);
        }
        climb.keep();
    }
    let models = climb.likelihood.parts().iter().map(Part::model_text);
    Ok(Some(End {
        models: models.collect(),
        state: climb.state,
    }))
}

struct Climb<'r, R> {
    likelihood: Likelihood<&'r R>,
    state: State,
    /// The present log-likelihood, and the moves of this round.
    lnl: f64,
    moves: u64,
    quiet: Vec<bool>,
    /// The sum and the number of losses in this round.
    losses: (f64, u64),
    found: Insertions,
}

impl<'r, R: Runner> Climb<'r, R> {
    fn new(
        parts: &[PartOptions],
        state: State,
        lengths: Lengths,
        runner: &'r R,
    ) -> Result<Self, WideError> {
        let (tree, parts) = (state.tree.clone(), parts.to_vec());
        let mut likelihood = Likelihood::partitioned(tree, parts, runner, options())?;
        likelihood.set_lengths(lengths);
        let wrong = WideError::State {
            what: "a model of another kind",
        };
        // A new state has no models yet: those of the partitions are the start.
        if !state.models.is_empty() && state.models.len() != likelihood.parts().len() {
            return Err(wrong);
        }
        for (part, bits) in state.models.iter().enumerate() {
            let numbers: Vec<f64> = bits.iter().map(|&bits| f64::from_bits(bits)).collect();
            let mut model = likelihood.parts()[part].model().clone();
            let Some((scale, numbers)) = numbers.split_last() else {
                return Err(wrong);
            };
            if !model.set_numbers(numbers) {
                return Err(wrong);
            }
            likelihood.set_model(part, model);
            likelihood.set_scale(part, *scale);
        }
        Ok(Self {
            likelihood,
            lnl: state.lnl(),
            moves: state.moves,
            quiet: state.quiet.clone(),
            state,
            losses: (0.0, 0),
            found: Insertions::default(),
        })
    }

    /// Copies what has changed into the state.
    fn keep(&mut self) {
        let parts = self.likelihood.parts().iter();
        let numbers = |part: &Part| {
            let numbers = part.model().numbers().into_iter();
            let all = numbers.chain(std::iter::once(part.scale()));
            all.map(f64::to_bits).collect()
        };
        self.state.models = parts.map(numbers).collect();
        self.state.tree.clone_from(self.likelihood.tree());
        self.state.quiet.clone_from(&self.quiet);
        (self.state.lnl, self.state.moves) = (self.lnl.to_bits(), self.moves);
    }

    /// Does a fit, or a round of moves.
    fn advance(&mut self, watch: &mut Watch<'_>) -> Result<ControlFlow<()>, LikelihoodError> {
        match self.state.stage {
            Stage::Climb => return self.round(watch),
            Stage::Last => {
                self.fit(LAST_ROUNDS, LAST_EPSILON)?;
                self.state.stage = Stage::Done;
            }
            _ => {
                self.fit(1, FIRST_EPSILON)?;
                // There is one tree of three taxa.
                let is_only = self.likelihood.tree().taxa() < 4;
                self.state.stage = if is_only { Stage::Last } else { Stage::Climb };
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Fits lengths, then parameters, then lengths.
    fn fit(&mut self, rounds: usize, epsilon: f64) -> Result<(), LikelihoodError> {
        self.likelihood.optimise_lengths(epsilon, 1)?;
        for part in 0..self.likelihood.parts().len() {
            self.likelihood.optimise_model(part, epsilon)?;
        }
        self.lnl = self.likelihood.optimise_lengths(epsilon, rounds)?;
        Ok(())
    }

    /// Tries all subtrees that are not quiet, then fits all lengths.
    fn round(&mut self, watch: &mut Watch<'_>) -> Result<ControlFlow<()>, LikelihoodError> {
        let before = self.likelihood.evaluate()?;
        self.lnl = before;
        let tree = self.likelihood.tree();
        // Depth first: consecutive subtrees share CLVs.
        let ends = tree.edges_depth_first().into_iter();
        let ends = ends.flat_map(|edge| tree.ends(edge));
        let inner = ends.filter(|&half| !tree.is_tip(half) && !self.quiet[half.index()]);
        let order: Vec<HalfId> = inner.collect();
        let cutoff = match f64::from_bits(self.state.cutoff) {
            0.0 => CUTOFF_FIRST,
            cutoff => cutoff,
        };
        for (at, &half) in order.iter().enumerate() {
            self.try_subtree(half, cutoff)?;
            let step = Step {
                state: Some(&self.state),
                ..Step::at(Stage::Climb, at + 1, order.len())
            };
            if at.is_multiple_of(LOOK_EVERY) && watch(&step).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        let (sum, count) = std::mem::take(&mut self.losses);
        if count > 0 {
            self.state.cutoff = (CUTOFF * sum / count as f64).to_bits();
        }
        self.lnl = self.likelihood.optimise_lengths(FIRST_EPSILON, 1)?;
        self.state.round = self.state.round.saturating_add(1);
        let gain = self.lnl - before;
        let least = GAIN_SHARE * self.likelihood.tree().taxa() as f64;
        if gain < least.max(GAIN_LEAST) || self.state.round >= ROUNDS_MAX {
            self.state.stage = Stage::Last;
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Moves the subtree behind `half` to the best place near it, if that gains.
    fn try_subtree(&mut self, half: HalfId, cutoff: f64) -> Result<(), LikelihoodError> {
        self.quiet[half.index()] = true;
        let lnl = self.lnl;
        let mut found = std::mem::take(&mut self.found);
        let floor = lnl - cutoff;
        self.likelihood
            .score_insertions(half, RADIUS, &mut found, |tried| tried.lnl > floor)?;
        for tried in found.tried.iter().filter(|tried| tried.lnl < lnl) {
            self.losses.0 += lnl - tried.lnl;
            self.losses.1 += 1;
        }
        let mut places: Vec<usize> = (0..found.tried.len())
            .filter(|&k| found.tried[k].lnl > lnl - MARGIN)
            .collect();
        places.sort_by(|&a, &b| found.tried[b].lnl.total_cmp(&found.tried[a].lnl));
        places.truncate(PLACES);
        let mut best = None;
        let mut most = lnl + GAIN_MOVE;
        for k in places {
            let refined = self.likelihood.refine_insertion(&found, k, 1)?;
            if refined.lnl > most {
                (best, most) = (Some(refined), refined.lnl);
            }
        }
        self.found = found;
        let Some(to) = best else {
            return Ok(());
        };
        let gap = self.likelihood.apply_insertion(half, &to);
        let tree = self.likelihood.tree();
        let [a, b] = tree.others(half);
        for edge in [gap, tree.edge(a), tree.edge(b), tree.edge(half)] {
            self.likelihood.optimise_length(edge)?;
        }
        let stem = self.likelihood.tree().edge(half);
        self.lnl = self.likelihood.evaluate_at(stem)?;
        self.moves += 1;
        self.wake(half);
        let end = self.likelihood.tree().ends(gap)[0];
        self.wake(end);
        Ok(())
    }

    /// Subtrees near a changed place are tried again.
    fn wake(&mut self, half: HalfId) {
        let tree = self.likelihood.tree();
        for edge in tree.around(half, WAKE_RADIUS) {
            for end in tree.ends(edge) {
                self.quiet[end.index()] = false;
            }
        }
    }
}

/// Long chunks: most nodes have few tips, and of these each chunk has its own few classes.
fn options() -> Options {
    Options {
        chunk_bytes: CHUNK_BYTES,
        ..Options::default()
    }
}

/// Size of a node's CLV in a chunk.
const CHUNK_BYTES: usize = 64 << 10;
/// Radius of moves, in nodes.
const RADIUS: u32 = 5;
/// Loss up to which a walk continues in the first round, and the share of the mean loss later.
const CUTOFF_FIRST: f64 = 30.0;
const CUTOFF: f64 = 0.3;
/// Loss of an insertion up to which its lengths are fitted, and the most such fits of a subtree.
const MARGIN: f64 = 10.0;
const PLACES: usize = 2;
/// The least gain of a move.
const GAIN_MOVE: f64 = 0.01;
/// The least gain of a round for which there is another: for each taxon, and in all.
const GAIN_SHARE: f64 = 0.002;
const GAIN_LEAST: f64 = 0.5;
const ROUNDS_MAX: u32 = 12;
/// Gains below which fits end.
const FIRST_EPSILON: f64 = 10.0;
const LAST_EPSILON: f64 = 0.1;
const LAST_ROUNDS: usize = 4;
/// Subtrees between two calls of the watch.
const LOOK_EVERY: usize = 32;
/// Radius around a change, in nodes, within which subtrees are tried again.
const WAKE_RADIUS: usize = 3;

//! The search for the tree of the highest likelihood.
//!
//! Top-down: [`start_tree`] makes a starting tree, [`run`] improves it. First lengths and
//! parameters are fitted coarsely. Fast rounds of SPR moves follow while they gain, then parameters
//! again. In slow rounds more of the places are refined, and near misses get a second chance. At
//! the end parameters are fitted fully. A subtree is moved as soon as a better place is found for
//! it. Before the end come perturbations: a few cheap moves near one another; their result is kept
//! if it is better, or of near-identical sequences as good.
//!
//! Its speed: places are scored without changing the tree ([`Likelihood::score_insertions`]). A
//! walk stops where losses are above the last round's mean. Only the best places get their three
//! lengths fitted. A subtree is tried again only after a change near it.
//! Must stay true: one state, one result, on any number of engines. Resuming from any state that
//! [`Watch::step`] received gives the same result as an uninterrupted run. A log-likelihood never
//! falls from round to round.
//! Sources: Stamatakis, Ludwig, Meier, "RAxML-III" (2005) for lazy subtree moves; Stamatakis,
//! Blagojevic, Nikolopoulos, Antonopoulos (2007) for rapid hill climbing and its cutoff; Kozlov and
//! others, "RAxML-NG" (2019) for fast and slow rounds.

mod moves;
mod perturbation;
mod state;

pub use crate::constraint::Constraint;
pub use state::{Phase, State};

use crate::constraint;
use crate::likelihood::{Insertions, Lengths, Likelihood, LikelihoodError, Part};
use crate::msa::Patterns;
use crate::parsimony::{Places, are_near, mean_length, parsimony_tree};
use crate::random::Random;
use crate::runner::Runner;
use crate::tree::{HalfId, LENGTH_DEFAULT, Tree, random_tree};
use sidecore_bare::width::ToU64;
use state::{Close, Exact};
use std::ops::ControlFlow;

/// Options of a search.
#[derive(Debug, Clone)]
pub struct Options {
    /// A round that gains less log-likelihood ends the search.
    pub epsilon: f64,
    /// A walk stops where an insertion loses much more than the last round's mean loss; with a
    /// larger factor it continues longer, and the search takes more time.
    pub cutoff: f64,
    /// Leaves out the slow rounds.
    pub fast_only: bool,
    /// Failed perturbations from the best tree, for each hundred taxa, that end a search.
    pub perturbations: u32,
    /// Splits that the tree must have; the starting tree must have them, too.
    pub constraint: Option<Constraint>,
    /// Linkage of the partitions' branch lengths; `None`: the likelihood's present one.
    pub lengths: Option<Lengths>,
    /// Fits the lengths and parameters of the final tree fully, together: its log-likelihood then
    /// equals that of a separate fit. Without it only the lengths are fitted, as for bootstraps, of
    /// which only the trees count.
    pub settle: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            epsilon: 0.1,
            cutoff: 1.0,
            fast_only: false,
            perturbations: PERTURBATIONS,
            constraint: None,
            lengths: None,
            settle: true,
        }
    }
}

/// Kind of starting tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// Stepwise addition by parsimony, in random order.
    Parsimony,
    /// Any tree.
    Random,
}

/// A starting tree: the same for the same seed.
///
/// # Panics
/// When there is no partition, or there are fewer than 3 taxa.
#[must_use]
pub fn start_tree(
    kind: Start,
    parts: &[&Patterns],
    constraint: Option<&Constraint>,
    seed: u64,
) -> Tree {
    let mut random = Random::new(seed);
    let taxa = parts[0].taxa();
    let mut tree = match (kind, constraint) {
        // A parsimony tree already has its lengths.
        (Start::Parsimony, _) => {
            let places = constraint.map(|constraint| constraint as &dyn Places);
            return parsimony_tree(parts, places, &mut random);
        }
        (Start::Random, None) => random_tree(taxa, LENGTH_DEFAULT, &mut random),
        (Start::Random, Some(constraint)) => constraint::random_tree(taxa, constraint, &mut random),
    };
    // The lengths of a random tree mean nothing; the mean number of changes is a better start.
    tree.set_all_lengths(mean_length(&tree, parts));
    tree
}

/// Observer of a search's progress; it may stop the search.
pub trait Watch {
    /// Called at least once a round, and every few prunings within one. The state may be saved, and
    /// a search resumed from it.
    fn step(&mut self, state: &State) -> ControlFlow<()>;
}

impl<F: FnMut(&State) -> ControlFlow<()>> Watch for F {
    fn step(&mut self, state: &State) -> ControlFlow<()> {
        self(state)
    }
}

/// Searches from a state until it is over or `watch` stops it, and returns the final state. The
/// likelihood takes the state's tree and numbers; its earlier contents do not matter. Blocks.
///
/// # Errors
/// [`LikelihoodError`]; [`LikelihoodError::State`] where the state belongs to other data.
pub fn run<R: Runner>(
    likelihood: &mut Likelihood<R>,
    state: State,
    options: &Options,
    watch: &mut impl Watch,
) -> Result<State, LikelihoodError> {
    let mut search = Search::new(likelihood, state, options)?;
    while search.state.phase != Phase::Done {
        search.advance()?;
        // Before the watch, which may save the state: it must be whole.
        search.keep();
        if watch.step(&search.state).is_break() {
            break;
        }
    }
    Ok(search.state)
}

struct Search<'a, R> {
    likelihood: &'a mut Likelihood<R>,
    options: &'a Options,
    state: State,
    found: Insertions,
    /// For near-identical sequences the least cutoff of a walk; else `None`.
    near: Option<f64>,
}

impl<'a, R: Runner> Search<'a, R> {
    fn new(
        likelihood: &'a mut Likelihood<R>,
        state: State,
        options: &'a Options,
    ) -> Result<Self, LikelihoodError> {
        // A state may come from a file: every index in it is checked before it is used.
        let wrong = |what| Err(LikelihoodError::State { what });
        if state.tree.taxa() != likelihood.tree().taxa() {
            return wrong("another number of taxa");
        }
        let halves = state.tree.halves();
        let inner = |half: &HalfId| half.index() < halves && !state.tree.is_tip(*half);
        let edges = state.tree.edges().count();
        let within = |close: &Close| inner(&close.half) && close.edge.index() < edges;
        let sound = |runner_up: &[Option<Close>]| {
            runner_up.len() == halves && runner_up.iter().flatten().all(within)
        };
        if state.quiet.len() != halves
            || state.tries.len() != halves
            || !state.order.iter().all(inner)
            || !state.close.iter().all(within)
            || !sound(&state.runner_up)
            || !state
                .best
                .iter()
                .all(|best| best.tree.taxa() == state.tree.taxa() && sound(&best.runner_up))
        {
            return wrong("branches that its tree does not have");
        }
        // A checkpoint of a run without this constraint cannot continue with it.
        if let Some(constraint) = &options.constraint
            && !constraint.holds(&state.tree)
        {
            return wrong("a tree that does not obey the constraint");
        }
        if let Some(lengths) = options.lengths {
            likelihood.set_lengths(lengths);
        }
        // Directions that the likelihood's present tree shares with this one stay valid.
        likelihood.set_tree(state.tree.clone());
        // A new state has no models yet: those of the likelihood are the start.
        if !state.models.is_empty() {
            if state.models.len() != likelihood.parts().len() {
                return wrong("another number of partitions");
            }
            for (part, numbers) in state.models().iter().enumerate() {
                let mut model = likelihood.parts()[part].model().clone();
                // The last one is the partition's scale.
                let Some((scale, numbers)) = numbers.split_last() else {
                    return wrong("a model of another kind");
                };
                if !model.set_numbers(numbers) {
                    return wrong("a model of another kind");
                }
                likelihood.set_model(part, model);
                likelihood.set_scale(part, *scale);
            }
        }
        let near = near(likelihood);
        Ok(Self {
            likelihood,
            options,
            state,
            found: Insertions::default(),
            near,
        })
    }

    /// Copies the likelihood's tree and models into the state.
    fn keep(&mut self) {
        self.state.tree.clone_from(self.likelihood.tree());
        let parts = self.likelihood.parts().iter();
        self.state.models = parts
            .map(|part| {
                let scale = std::iter::once(part.scale());
                part.model()
                    .numbers()
                    .into_iter()
                    .chain(scale)
                    .map(Exact)
                    .collect()
            })
            .collect();
    }

    /// Does one step: a pass over lengths and parameters, or a few prunings.
    fn advance(&mut self) -> Result<(), LikelihoodError> {
        let (round, place) = (u64::from(self.state.round), self.state.at.to_u64());
        let _step = sidecore_trace::span(tracks::step(self.state.phase), round, place);
        match self.state.phase {
            Phase::First => self.fit(FIRST_EPSILON, Phase::Fast),
            Phase::Fast | Phase::Slow if self.state.order.is_empty() => self.begin_round(),
            Phase::Fast | Phase::Slow if self.state.at < self.state.order.len() => {
                self.some_prunings()
            }
            Phase::Fast | Phase::Slow => self.end_round(),
            Phase::Middle => {
                let next = if self.options.fast_only {
                    Phase::Last
                } else {
                    Phase::Slow
                };
                self.fit(MIDDLE_EPSILON.max(self.options.epsilon), next)
            }
            Phase::Perturb => self.perturb(),
            Phase::Last => self.fit(self.options.epsilon, Phase::Done),
            Phase::Done => Ok(()),
        }
    }

    fn some_prunings(&mut self) -> Result<(), LikelihoodError> {
        for _ in 0..PRUNINGS {
            let Some(&half) = self.state.order.get(self.state.at) else {
                break;
            };
            self.state.at += 1;
            self.try_subtree(half)?;
        }
        Ok(())
    }

    /// One pass over lengths and parameters; enters `next` when it gains less than `epsilon`.
    fn fit(&mut self, epsilon: f64, next: Phase) -> Result<(), LikelihoodError> {
        // A state at its start has no log-likelihood yet.
        let before = match self.state.lnl.0 {
            lnl if lnl.is_finite() => lnl,
            _ => self.likelihood.evaluate()?,
        };
        if self.state.phase == Phase::Middle && self.state.round == 0 {
            // The starting tree had its lengths fitted to wrong branches.
            self.likelihood.reconsider_lengths()?;
        }
        self.likelihood.optimise_lengths(epsilon, LENGTH_ROUNDS)?;
        // Parameters of one partition at a time: they are independent of the others'.
        for part in 0..self.likelihood.parts().len() {
            self.likelihood.optimise_model(part, 0.1 * epsilon)?;
        }
        let mut lnl = self.likelihood.evaluate()?;
        self.state.round += 1;
        if lnl - before < epsilon || self.state.round >= PASSES_MAX {
            if next == Phase::Done {
                lnl = match self.options.settle {
                    true => self.settle()?,
                    false => self
                        .likelihood
                        .optimise_lengths(LAST_EPSILON, PASSES_MAX as usize)?,
                };
            }
            self.enter(next);
        }
        self.state.lnl = Exact(lnl);
        Ok(())
    }

    /// Fits lengths and parameters together until a round gains less than [`SETTLED_EPSILON`]. The
    /// old values stay if the result is worse.
    fn settle(&mut self) -> Result<f64, LikelihoodError> {
        let before = self.likelihood.evaluate()?;
        let tree = self.likelihood.tree().clone();
        let parts = self.likelihood.parts().iter();
        let kept: Vec<_> = parts
            .map(|part| (part.model().clone(), part.scale()))
            .collect();
        let lnl = self.likelihood.optimise(SETTLED_EPSILON)?;
        // Rounding, or a worse top for the parameters, can make a fit end below its start.
        if lnl >= before {
            return Ok(lnl);
        }
        self.likelihood.set_tree(tree);
        for (part, (model, scale)) in kept.into_iter().enumerate() {
            self.likelihood.set_model(part, model);
            self.likelihood.set_scale(part, scale);
        }
        self.likelihood.evaluate()
    }

    fn enter(&mut self, phase: Phase) {
        let state = &mut self.state;
        // A new phase has rules of its own: what an earlier one found out is no longer valid.
        (state.phase, state.round, state.at, state.failures) = (phase, 0, 0, 0);
        state.order.clear();
        state.close.clear();
        state.quiet.fill(false);
        state.tries.fill(0);
        if phase == Phase::Perturb {
            let lnl = state.lnl.0;
            state.set_cutoff(self.options.cutoff * NARROW, lnl, self.near.unwrap_or(0.0));
        }
        state.radius = match phase {
            Phase::Slow | Phase::Perturb => SLOW_RADIUS,
            _ => FAST_RADIUS,
        };
    }

    fn begin_round(&mut self) -> Result<(), LikelihoodError> {
        let lnl = self.likelihood.evaluate()?;
        // There is one tree of three taxa.
        if self.likelihood.tree().taxa() < 4 {
            self.enter(Phase::Last);
            return Ok(());
        }
        let tree = self.likelihood.tree();
        let state = &mut self.state;
        (state.lnl, state.round_lnl, state.at) = (Exact(lnl), Exact(lnl), 0);
        let wide = state.phase == Phase::Slow && state.radius > SLOW_RADIUS;
        let factor = self.options.cutoff * if wide { WIDE } else { NARROW };
        state.set_cutoff(factor, lnl, self.near.unwrap_or(0.0));
        // Depth first, so that consecutive prunings share CLVs.
        let ends = tree
            .edges_depth_first()
            .into_iter()
            .flat_map(|edge| tree.ends(edge));
        let order = ends.filter(|&half| !tree.is_tip(half) && !state.quiet[half.index()]);
        state.order = order.collect();
        state.round += 1;
        if state.order.is_empty() {
            self.next_phase();
        }
        Ok(())
    }

    fn end_round(&mut self) -> Result<(), LikelihoodError> {
        // One near miss in each step, so that a watch can stop between them.
        if let Some(close) = self.state.close.pop() {
            return self.try_closely(close);
        }
        let lnl = self.likelihood.optimise_lengths(self.options.epsilon, 1)?;
        self.state.order.clear();
        self.state.lnl = Exact(lnl);
        let least = match self.state.phase {
            Phase::Fast => FAST_EPSILON.max(self.options.epsilon),
            _ => self.options.epsilon,
        };
        if lnl - self.state.round_lnl.0 < least {
            self.next_phase();
        }
        Ok(())
    }

    /// A phase without further gain increases its radius, or is followed by the next phase.
    fn next_phase(&mut self) {
        let state = &mut self.state;
        match state.phase {
            Phase::Fast => self.enter(Phase::Middle),
            Phase::Slow if state.radius < SLOW_RADIUS_MAX => {
                // Subtrees that gained nothing nearby may gain at places that are now within reach.
                state.radius = SLOW_RADIUS_MAX;
                state.quiet.fill(false);
                state.order.clear();
            }
            _ => self.enter(Phase::Perturb),
        }
    }
}

/// The least cutoff for near-identical sequences: a few changes of state. Each costs about the
/// logarithm of the number of sites, and a mean loss is less than one where most places cost
/// nothing.
fn near<R: Runner>(likelihood: &Likelihood<R>) -> Option<f64> {
    let patterns = likelihood.parts().iter().map(Part::patterns);
    let patterns: Vec<&Patterns> = patterns.collect();
    let sites: usize = patterns.iter().map(|patterns| patterns.sites()).sum();
    are_near(&patterns).then(|| NEAR_CHANGES * libm::log(sites as f64))
}

/// Mean losses up to which a walk continues: in most rounds, and in those with a large radius.
const NARROW: f64 = 0.3;
const WIDE: f64 = 3.0;
/// Changes that a walk over near-identical sequences may cost.
const NEAR_CHANGES: f64 = 2.5;
/// Failed perturbations for each hundred taxa.
const PERTURBATIONS: u32 = 80;
/// Prunings between two calls of [`Watch::step`].
const PRUNINGS: usize = 8;
/// Gains below which a fit of lengths and parameters ends for now.
const FIRST_EPSILON: f64 = 10.0;
const MIDDLE_EPSILON: f64 = 1.0;
/// Gain below which fast rounds end.
const FAST_EPSILON: f64 = 0.5;
/// Least gain of the last rounds over all lengths, and of those over lengths and parameters.
const LAST_EPSILON: f64 = 1e-3;
const SETTLED_EPSILON: f64 = 2e-5;
const LENGTH_ROUNDS: usize = 2;
const PASSES_MAX: u32 = 32;
const FAST_RADIUS: u32 = 6;
const SLOW_RADIUS: u32 = 6;
const SLOW_RADIUS_MAX: u32 = 15;

mod tracks {
    //! Names of a search's steps, as they are recorded: `docs/trace.md` explains them.

    use super::state::Phase;
    use sidecore_trace::Name;

    /// The name of a step in this phase; its argument is the number of the round.
    pub(super) fn step(phase: Phase) -> &'static Name {
        static FIRST: Name = Name::new("trees", "first fit", ["round", ""]);
        static FAST: Name = Name::new("trees", "fast SPR moves", ["round", "place"]);
        static MIDDLE: Name = Name::new("trees", "fit between", ["round", ""]);
        static SLOW: Name = Name::new("trees", "slow SPR moves", ["round", "place"]);
        static PERTURB: Name = Name::new("trees", "perturbation", ["round", ""]);
        static LAST: Name = Name::new("trees", "last fit", ["round", ""]);
        match phase {
            Phase::First => &FIRST,
            Phase::Fast => &FAST,
            Phase::Middle => &MIDDLE,
            Phase::Slow => &SLOW,
            Phase::Perturb => &PERTURB,
            Phase::Last | Phase::Done => &LAST,
        }
    }
}

#[cfg(test)]
mod tests;

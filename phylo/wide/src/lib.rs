//! Maximum-likelihood trees of thousands to tens of thousands of sequences, in one quick climb.
//!
//! Top-down: [`Inference`] keeps one of each set of identical sequences (`twins`). A tree grows by
//! stepwise addition and is improved by moves of subtrees that save changes of state (`start`), on
//! Fitch's sets (`sets`). Then the likelihood takes over (`climb`): lengths and
//! parameters are fitted, and subtrees move to near places while a round gains enough. Only
//! subtrees near an earlier change are tried again.
//!
//! Why here: a whole search tries each subtree many times at many places, and most of its time goes
//! into the last few units of log-likelihood. Of thousands of sequences one needs a good tree soon.
//! Must stay true: one seed, one result, whatever the number of engines. A run that goes on from a
//! saved [`State`] ends as if it had never stopped. The log-likelihood never falls from round to
//! round. Unsafe code: none.
//! Sources: Fitch, Systematic Zoology 20 (1971), 406-416; Stamatakis, Ludwig, Meier, "RAxML-III"
//! (2005) for lazy subtree moves; Price, Dehal, Arkin, "FastTree 2" (2010) for the kind of data.

mod climb;
mod sets;
mod start;
mod twins;

pub use climb::State;

use serde::{Deserialize, Serialize};
use sidecore_bare::width::ToU64;
use sidecore_likelihood::likelihood::{Lengths, LikelihoodError, PartOptions};
use sidecore_likelihood::msa::Patterns;
use sidecore_likelihood::parsimony::Sites;
use sidecore_likelihood::random::Random;
use sidecore_likelihood::runner::Runner;
use sidecore_likelihood::tree::Tree;
use std::ops::ControlFlow;
use twins::Twins;

/// Errors that keep a tree from being inferred.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WideError {
    /// A likelihood, or an engine.
    #[error(transparent)]
    Likelihood(#[from] LikelihoodError),
    /// Too few sequences.
    #[error("{taxa} sequences: a tree needs at least 3")]
    TooSmall {
        /// The number.
        taxa: usize,
    },
    /// The partitions differ in their numbers of taxa, or there are none.
    #[error("the partitions must have the same taxa, and there must be one at least")]
    Parts,
    /// More memory than is allowed.
    #[error(
        "the likelihood of this tree takes {} MiB of memory, {} MiB are allowed: allow more \
         (--memory), or give fewer categories of rates (+G2)",
        need >> 20,
        max >> 20
    )]
    Memory {
        /// Bytes that it takes.
        need: u64,
        /// Bytes that are allowed.
        max: u64,
    },
    /// A saved state of other data.
    #[error("the saved state has {what}: it is not of this alignment and model")]
    State {
        /// The part that does not fit.
        what: &'static str,
    },
}

/// Stages of an inference, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    /// Taxa are added one by one, by parsimony.
    Addition,
    /// Subtrees move while that saves changes of state.
    Moves,
    /// Branch lengths and parameters, coarsely.
    Fit,
    /// Subtrees move while that increases the likelihood.
    Climb,
    /// Branch lengths and parameters, to the end.
    Last,
    /// All is done.
    Done,
}

impl std::fmt::Display for Stage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Addition => "taxa added",
            Self::Moves => "subtrees tried by parsimony",
            Self::Fit => "first fit",
            Self::Climb => "subtrees tried by likelihood",
            Self::Last => "last fit",
            Self::Done => "done",
        })
    }
}

/// A step of an inference, for an observer.
#[derive(Debug, Clone, Copy)]
pub struct Step<'s> {
    /// The stage.
    pub stage: Stage,
    /// Taxa or subtrees done in it.
    pub done: usize,
    /// All of them; 0 where that is not known.
    pub all: usize,
    /// The state from which an interrupted run goes on; none before the first fit.
    pub state: Option<&'s State>,
}

impl Step<'_> {
    fn at(stage: Stage, done: usize, all: usize) -> Self {
        Self {
            stage,
            done,
            all,
            state: None,
        }
    }
}

/// Observer of an inference, called many times a second; it may break it off.
pub type Watch<'w> = dyn FnMut(&Step<'_>) -> ControlFlow<()> + 'w;

/// Options of an inference.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Linkage of the partitions' branch lengths; unlinked lengths are not taken.
    pub lengths: Lengths,
    /// Seed of the order in which taxa are added.
    pub seed: u64,
    /// Bytes of memory that the likelihood may take; see [`Inference::least_bytes`].
    pub memory: u64,
}

/// The tree that was found.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    /// The tree of all taxa, in Newick; identical sequences are siblings at no distance.
    pub tree: String,
    /// The tree by parsimony, with lengths by its changes.
    pub start: String,
    /// The log-likelihood: that of one of each set of identical sequences, which all of them have
    /// at distances of 0.
    pub lnl: f64,
    /// The model of each partition, all values given.
    pub models: Vec<String>,
    /// Moves of subtrees by likelihood.
    pub moves: u64,
}

/// An inference, ready to run.
#[derive(Debug)]
pub struct Inference<'n> {
    names: &'n [String],
    twins: Twins,
    parts: Vec<PartOptions>,
}

impl<'n> Inference<'n> {
    /// Of the partitions of an alignment with these taxa.
    ///
    /// # Errors
    /// [`WideError::TooSmall`], [`WideError::Parts`].
    pub fn new(names: &'n [String], parts: &[PartOptions]) -> Result<Self, WideError> {
        let taxa = names.len();
        if parts.is_empty() || parts.iter().any(|part| part.patterns.taxa() != taxa) {
            return Err(WideError::Parts);
        }
        if taxa < 3 {
            return Err(WideError::TooSmall { taxa });
        }
        let twins = Twins::of(parts);
        Ok(Self {
            names,
            parts: twins.reduce(parts),
            twins,
        })
    }

    /// Number of different sequences: that of the tree's tips while it is inferred.
    #[must_use]
    pub fn kept(&self) -> usize {
        self.twins.kept()
    }

    /// The least bytes of memory that [`Inference::run`] takes, but for some megabytes. How many
    /// more the CLVs take depends on the tree: it is known, and compared with
    /// [`Options::memory`], once there is one by parsimony.
    #[must_use]
    pub fn least_bytes(&self) -> u64 {
        let nodes = self.kept().to_u64();
        let each = self.parts.iter().map(|part| {
            let shape = part.model.process().shape;
            let patterns = part.patterns.len().to_u64();
            // Site repeats of a direction, and a tip's codes twice.
            let repeats = patterns * 5;
            // Three directions' sets of states, and a tip's; a bit for each site and state.
            let sites = part.patterns.sites().to_u64().next_multiple_of(256);
            let sets = sites * shape.states.to_u64() / 2;
            // Two branches' matrices.
            let matrices = 3 * 8 * shape.matrix().to_u64();
            repeats + sets + matrices
        });
        nodes * each.sum::<u64>()
    }

    /// Infers the tree, from its beginning or a saved state; `None` where the watch broke it off.
    /// Blocks.
    ///
    /// # Errors
    /// [`WideError`].
    pub fn run<R: Runner>(
        &self,
        options: Options,
        saved: Option<State>,
        runner: &R,
        watch: &mut Watch<'_>,
    ) -> Result<Option<Found>, WideError> {
        let state = match saved {
            Some(state) => state,
            None => match self.start(options.seed, runner, watch)? {
                Some(tree) => State::new(tree),
                None => return Ok(None),
            },
        };
        // Also where it goes on: the limit may be another one now.
        let need = climb::bytes(&self.parts, &state)?;
        if need > options.memory {
            return Err(WideError::Memory {
                need,
                max: options.memory,
            });
        }
        let Some(end) = climb::run(&self.parts, state, options.lengths, runner, watch)? else {
            return Ok(None);
        };
        let text = |tree| self.twins.restore(tree, self.names).to_string();
        Ok(Some(Found {
            tree: text(end.state.tree()),
            start: text(end.state.start()),
            lnl: end.state.lnl(),
            models: end.models,
            moves: end.state.moves(),
        }))
    }

    /// The tree by parsimony, each branch as long as its changes say.
    fn start<R: Runner>(
        &self,
        seed: u64,
        runner: &R,
        watch: &mut Watch<'_>,
    ) -> Result<Option<Tree>, WideError> {
        let patterns: Vec<&Patterns> = self.parts.iter().map(|part| &part.patterns).collect();
        let sites = Sites::new(&patterns);
        let mut random = Random::new(seed);
        let data = (&sites, &patterns[..]);
        let added = start::add_all(data, SCANNED, &mut random, runner, watch)?;
        let Some((mut tree, mut sets)) = added else {
            return Ok(None);
        };
        if start::improve(&mut tree, &mut sets, runner, watch)?.is_break() {
            return Ok(None);
        }
        let all: usize = patterns.iter().map(|patterns| patterns.sites()).sum();
        for edge in tree.edges() {
            // Half a change more: those that parsimony leaves to a neighbour, or does not see.
            let changes = sets.changes_on(&tree, edge) as f64 + 0.5;
            tree.set_length(edge, changes / all as f64);
        }
        Ok(Some(tree))
    }
}

/// Taxa for which all branches are tried; further ones are added near like ones.
const SCANNED: usize = 1_000;

#[cfg(test)]
mod tests;

/// Runs the README's example.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

//! Pieces of work: a search, or a chain of them on resampled alignments.
//!
//! Must stay true: the result depends only on the alignment, the models, the options, the seed and
//! the piece's kind and index. A rapid chain passes trees and models from replicate to replicate as
//! text, so that a resumed chain sees the same values.

use super::AnalysisError;
use super::plan::{Kind, Outcome, Piece, Stream, seed_of};
use super::workers::{Job, Watch};
use crate::likelihood::{Lengths, Likelihood, Options, Part, PartOptions};
use crate::model::ModelName;
use crate::msa::Patterns;
use crate::newick::Newick;
use crate::random::Random;
use crate::runner::Runner;
use crate::search::{self, Start, State, start_tree};
use crate::tree::Tree;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use sidecore_bare::width::ToUsize;
use sidecore_offload::task;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Starting trees of searches.
#[derive(Debug, Clone)]
pub enum Starts {
    /// By parsimony for even indices, random ones for odd indices.
    Mixed,
    /// By parsimony.
    Parsimony,
    /// Random ones.
    Random,
    /// These, by index, modulo their number.
    Given(Vec<Tree>),
}

impl Starts {
    /// The kind of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "mixed" => Some(Self::Mixed),
            "parsimony" => Some(Self::Parsimony),
            "random" => Some(Self::Random),
            _ => None,
        }
    }
}

/// Everything that all pieces of an analysis have in common.
#[derive(Debug)]
pub struct Searches<R> {
    /// The taxa.
    pub names: Vec<String>,
    /// The partitions.
    pub parts: Vec<PartOptions>,
    /// Options of the searches.
    pub search: search::Options,
    /// Their starting trees; bootstraps begin with parsimony trees.
    pub starts: Starts,
    /// Makes bootstraps rapid: see [`crate::bootstrap`].
    pub rapid: bool,
    /// Share of the sites that a replicate keeps, each once; `None` for draws with replacement.
    pub jackknife: Option<f64>,
    /// The seed of everything.
    pub seed: u64,
    /// The runner of the loops.
    pub runner: R,
    /// Sees the searches' steps.
    pub growing: Arc<Growing>,
}

/// A piece in progress.
#[derive(Debug, Serialize, Deserialize)]
struct Saved {
    /// The finished replicates of its chain.
    done: Vec<Outcome>,
    /// The search in progress.
    state: State,
}

impl<R: Runner + Clone> Job for Searches<R> {
    fn run(
        &self,
        piece: &Piece,
        saved: Option<&str>,
        watch: &mut dyn Watch,
    ) -> Result<Option<Vec<Outcome>>, AnalysisError> {
        let saved = saved.map(serde_json::from_str::<Saved>).transpose();
        let saved = saved.map_err(|error| AnalysisError::State {
            kind: piece.kind,
            index: piece.first,
            why: error.to_string(),
        })?;
        let (mut done, mut state) = match saved {
            Some(saved) => (saved.done, Some(saved.state)),
            None => (Vec::new(), None),
        };
        // A saved state belongs to the first unfinished result.
        for index in piece.first + done.len() as u32..piece.first + piece.count {
            match self.one(piece.kind, index, &done, state.take(), watch)? {
                Some(outcome) => done.push(outcome),
                None => return Ok(None),
            }
        }
        Ok(Some(done))
    }
}

impl<R: Runner + Clone> Searches<R> {
    /// One search, after the finished ones of its chain.
    fn one(
        &self,
        kind: Kind,
        index: u32,
        done: &[Outcome],
        state: Option<State>,
        watch: &mut dyn Watch,
    ) -> Result<Option<Outcome>, AnalysisError> {
        let began_ns = task::now_ns();
        let seed = |stream| seed_of(self.seed, kind, index, stream);
        let before = done.last().filter(|_| self.rapid);
        // A rapid bootstrap starts from the tree of the replicate before it in the chain.
        let parts = match kind {
            Kind::Search => self.parts.clone(),
            Kind::Bootstrap => self.resampled(seed(Stream::Sites), before),
        };
        let patterns: Vec<&Patterns> = parts.iter().map(|part| &part.patterns).collect();
        let parsed = |text: &str| {
            let newick = Newick::parse(text).map_err(|error| AnalysisError::State {
                kind,
                index,
                why: error.to_string(),
            })?;
            Ok::<_, AnalysisError>(Tree::from_newick(&newick, &self.names)?)
        };
        let made = |start| {
            let constraint = self.search.constraint.as_ref();
            start_tree(start, &patterns, constraint, seed(Stream::Start))
        };
        let start = match (kind, &self.starts, before) {
            (Kind::Bootstrap, _, Some(before)) => parsed(&before.tree)?,
            (Kind::Bootstrap, _, None) | (_, Starts::Parsimony, _) => made(Start::Parsimony),
            (_, Starts::Given(trees), _) => trees[index.to_usize() % trees.len()].clone(),
            // Half of the mixed starts are parsimony trees, alternating, so that any prefix of the
            // searches has both.
            (_, Starts::Mixed, _) if index.is_multiple_of(2) => made(Start::Parsimony),
            (_, Starts::Mixed | Starts::Random, _) => made(Start::Random),
        };
        let start_text = start.to_newick(&self.names);
        // A saved state continues where it stopped; the start tree is made all the same, for the
        // report.
        let state = state.unwrap_or_else(|| State::new(start.clone(), seed(Stream::Search)));
        let options = search::Options {
            fast_only: self.search.fast_only || (kind == Kind::Bootstrap && self.rapid),
            settle: self.search.settle && kind == Kind::Search,
            ..self.search.clone()
        };
        let runner = self.runner.clone();
        let mut likelihood = Likelihood::partitioned(start, parts, runner, Options::default())?;
        let mut step = |state: &State| -> ControlFlow<()> {
            self.growing.step(kind, state);
            if state.is_done() {
                return ControlFlow::Continue(());
            }
            watch.step(&mut || {
                let saved = Saved {
                    done: done.to_vec(),
                    state: state.clone(),
                };
                // Only maps with odd keys cannot be written as JSON.
                serde_json::to_string(&saved).unwrap_or_default()
            })
        };
        let state = search::run(&mut likelihood, state, &options, &mut step)?;
        if !state.is_done() {
            return Ok(None);
        }
        let models = likelihood.parts().iter();
        let unlinked = likelihood.lengths() == Lengths::Unlinked;
        // Only unlinked partitions have trees of their own.
        let parts = likelihood.parts().iter().enumerate().filter(|_| unlinked);
        let part_trees = parts.map(|(number, part)| {
            let tree = likelihood.tree().of_part(number, part.scale());
            tree.to_newick(&self.names)
        });
        Ok(Some(Outcome {
            kind,
            index,
            lnl: state.lnl(),
            tree: state.tree().to_newick(&self.names),
            start: start_text,
            models: models.map(Part::model_text).collect(),
            part_trees: part_trees.collect(),
            wall_s: task::now_ns().saturating_sub(began_ns) as f64 * 1e-9,
        }))
    }

    /// A replicate's partitions; in a rapid chain the later ones have the first one's parameters.
    fn resampled(&self, seed: u64, before: Option<&Outcome>) -> Vec<PartOptions> {
        let mut random = Random::new(seed);
        let parts = self.parts.iter().enumerate().map(|(number, part)| {
            let patterns = match self.jackknife {
                Some(share) => part.patterns.jackknifed(share, &mut random),
                None => part.patterns.resampled(&mut random),
            };
            let text = before.and_then(|before| before.models.get(number));
            let fixed = text.and_then(|text| ModelName::parse(text, &mut no_files).ok());
            let name = fixed.unwrap_or_else(|| part.model.name().clone());
            PartOptions::new(name, patterns)
        });
        parts.collect()
    }
}

/// The best tree of the searches in progress, for readers that look on, and the number of steps.
/// Any thread. A ledger knows finished searches alone, and one may take hours. A search does not
/// depend on it; a step costs a lock that nothing else holds for long, and, at most once a second,
/// a copy of the tree.
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

/// A model with all its values names no files.
pub(super) fn no_files(_: &str) -> std::io::Result<String> {
    Err(std::io::ErrorKind::Unsupported.into())
}

/// Time between two copies of a growing tree.
const KEEP_EVERY_NS: u64 = 1_000_000_000;

#[cfg(test)]
mod tests;

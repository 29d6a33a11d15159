//! A run, set up: what is done, and on what. The command line and Python begin here.
//!
//! Must stay true: one request, one result, whoever makes it.

use super::job::{Searches, Starts};
use super::plan::{Bootstraps, Goal, Ledger};
use crate::bootstrap::{self, CHAIN};
use crate::io::partitions;
use crate::likelihood::{Lengths, PartOptions};
use crate::msa::Alignment;
use crate::runner::Runner;
use crate::search::{self, Constraint};
use sidecore_bare::width::{ToU64, ToUsize};
use std::sync::Arc;

/// Request for a run.
#[derive(Debug)]
pub struct Request {
    /// Searches; 10 or as many as there are starting trees where it is not said.
    pub starts: Option<u32>,
    /// Their starting trees.
    pub trees: Starts,
    /// Bootstraps.
    pub bootstraps: Bootstraps,
    /// The most bootstraps until they have converged.
    pub bootstraps_max: u32,
    /// Makes rapid bootstraps, in chains of lazy searches.
    pub rapid: bool,
    /// Share of the sites that a replicate keeps, each once, instead of as many draws as sites.
    pub jackknife: Option<f64>,
    /// Splits that every tree must have.
    pub constraint: Option<Constraint>,
    /// Linkage of the partitions' branch lengths.
    pub lengths: Lengths,
    /// Seed of all random numbers.
    pub seed: u64,
}

/// Errors of a request that cannot be met.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SetupError {
    /// Neither searches nor bootstraps.
    #[error("0 starts without bootstraps: nothing is to be done")]
    Nothing,
    /// More searches than starting trees.
    #[error("{starts} starts, but {given} start trees are given")]
    TooFewTrees {
        /// Searches.
        starts: u32,
        /// Trees.
        given: usize,
    },
}

/// A run, ready to begin.
#[derive(Debug)]
pub struct Setup {
    /// The goal of the run.
    pub goal: Goal,
    /// Seed of all random numbers.
    pub seed: u64,
    names: Vec<String>,
    sites: usize,
    parts: Vec<PartOptions>,
    trees: Starts,
    search: search::Options,
    rapid: bool,
    jackknife: Option<f64>,
}

impl Setup {
    /// For the partitions of an alignment.
    ///
    /// # Errors
    /// [`SetupError`].
    pub fn new(
        alignment: &Alignment,
        parts: Vec<PartOptions>,
        request: Request,
    ) -> Result<Self, SetupError> {
        let given = match &request.trees {
            Starts::Given(trees) => Some(trees.len()),
            Starts::Mixed | Starts::Parsimony | Starts::Random => None,
        };
        // More trees than 2^32 do not fit into memory.
        let all = given.and_then(|given| u32::try_from(given).ok());
        let starts = request.starts.or(all).unwrap_or(STARTS);
        // Searches from the same tree twice would find the same twice.
        if let Some(given) = given.filter(|given| starts.to_usize() > *given) {
            return Err(SetupError::TooFewTrees { starts, given });
        }
        if starts == 0 && request.bootstraps == Bootstraps::Exactly(0) {
            return Err(SetupError::Nothing);
        }
        Ok(Self {
            goal: Goal {
                starts,
                bootstraps: request.bootstraps,
                chain: if request.rapid { CHAIN } else { 1 },
                convergence: bootstrap::Options {
                    most: request.bootstraps_max,
                    ..bootstrap::Options::default()
                },
            },
            seed: request.seed,
            names: alignment.names().to_vec(),
            sites: alignment.sites(),
            parts,
            trees: request.trees,
            search: search::Options {
                constraint: request.constraint,
                lengths: Some(request.lengths),
                ..search::Options::default()
            },
            rapid: request.rapid,
            jackknife: request.jackknife,
        })
    }

    /// The taxa.
    #[must_use]
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// The partitions.
    #[must_use]
    pub fn parts(&self) -> &[PartOptions] {
        &self.parts
    }

    /// Linkage of the partitions' lengths.
    #[must_use]
    pub fn lengths(&self) -> Lengths {
        self.search.lengths.unwrap_or_default()
    }

    /// Linkage of the lengths under the models of a result, which have the partitions' scales.
    #[must_use]
    pub fn lengths_of_result(&self) -> Lengths {
        match self.search.lengths {
            Some(Lengths::Unlinked) => Lengths::Unlinked,
            _ => Lengths::Linked,
        }
    }

    /// The job that does its pieces.
    pub fn searches<R: Runner + Clone>(&self, runner: R) -> Searches<R> {
        Searches {
            names: self.names.clone(),
            parts: self.parts.clone(),
            search: self.search.clone(),
            starts: self.trees.clone(),
            rapid: self.rapid,
            jackknife: self.jackknife,
            seed: self.seed,
            runner,
            growing: Arc::default(),
        }
    }

    /// Approximate size of its files, in bytes.
    #[must_use]
    pub fn bytes_about(&self) -> u64 {
        let most = match self.goal.bootstraps {
            Bootstraps::Exactly(count) => count,
            Bootstraps::UntilConverged => self.goal.convergence.most,
        };
        let labels: usize = self.names.iter().map(String::len).sum();
        // A tree has two lengths a taxon; each is in the checkpoint and in a file, starting trees
        // too.
        let tree = (labels + 32 * self.names.len()).to_u64();
        4 * tree * u64::from(self.goal.starts + most) + (64 << 10)
    }

    /// Number of site patterns of all partitions.
    #[must_use]
    pub fn patterns(&self) -> usize {
        self.parts.iter().map(|part| part.patterns.len()).sum()
    }

    /// A line for the log.
    #[must_use]
    pub fn describe(&self, engines: usize, policy: &str) -> String {
        format!(
            "sidecore {}: {} taxa, {} sites, {} patterns, {} partitions; {} searches; \
             seed {}; {engines} engines, policy {policy}",
            env!("CARGO_PKG_VERSION"),
            self.names.len(),
            self.sites,
            self.patterns(),
            self.parts.len(),
            self.goal.starts,
            self.seed
        )
    }

    /// The best search's models, as lines of a file of partitions of these names.
    #[must_use]
    pub fn best_models(&self, part_names: &[String], ledger: &Ledger) -> Vec<String> {
        let models = ledger.best().map_or(&[][..], |best| &best.models);
        let lines = models.iter().zip(part_names).zip(&self.parts);
        let line = |((model, name), part): ((&String, &String), &PartOptions)| {
            partitions::line(model, name, &part.patterns.alignment_sites())
        };
        lines.map(line).collect()
    }
}

/// Searches where none are asked for.
const STARTS: u32 = 10;

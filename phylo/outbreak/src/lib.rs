//! Trees of tens of thousands of near-identical genomes, as an outbreak gives them.
//!
//! Top-down:
//!
//! - [`Genomes::read`]: FASTA, MAPLE's format and VCF, as differences to a reference: memory is in
//!   proportion to the differences (`read`, `genome`).
//! - [`infer()`]: one genome after the other is placed on the tree, then subtrees move to better
//!   places, and lengths and rates are fitted (`infer`, `search`, `tree`).
//! - [`Outbreak`]: the tree, its likelihood, and the substitutions on its branches (`output`).
//!
//! The likelihood visits only sites at which something differs (`sparse`), under a reversible
//! model without rates across sites (`model`). It is for genomes of which most sites are equal:
//! `sparse` says what it leaves out.
//!
//! Must stay true: the result depends on the genomes and the options alone, not on the number of
//! engines. No unsafe code. Source: De Maio and others, "Maximum likelihood pandemic-scale
//! phylogenetics", Nature Genetics 55 (2023), 746-752; Ly-Trong and others, "CMAPLE: efficient
//! phylogenetic inference in the pandemic era", Molecular Biology and Evolution 41 (2024).

mod formats;
mod genome;
mod infer;
mod model;
mod output;
mod read;
mod search;
mod sparse;
mod stream;
mod tree;

pub use genome::Genomes;
pub use infer::{Outbreak, Progress, Stage, infer};
pub use model::ModelChoice;
pub use output::{Report, Style};
pub use read::{ReadOptions, ReferenceChoice};

use sidecore_offload::OffloadError;
use std::path::PathBuf;

/// Options of an inference.
#[derive(Debug, Clone)]
pub struct Options {
    /// The substitution model.
    pub model: ModelChoice,
    /// The most rounds in which subtrees move; they end sooner where none does.
    pub rounds: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            model: ModelChoice::default(),
            rounds: ROUNDS,
        }
    }
}

/// Errors of genomes, models and inferences. Lines and sites count from 1.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OutbreakError {
    /// The operating system refused, or a compressed file is damaged.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// It breaks its format's rules.
    #[error("{format}, line {line}: {what}")]
    Format {
        /// The format's name.
        format: &'static str,
        /// The line.
        line: u64,
        /// The reason.
        what: String,
    },
    /// A file that cannot be used as it is.
    #[error("{what}")]
    Input {
        /// The reason, and what to do.
        what: String,
    },
    /// The differences take more memory than is allowed.
    #[error(
        "the genomes' differences take more than {} MiB, which are allowed: give --memory to allow \
         more; are they aligned to the reference?", max >> 20
    )]
    Memory {
        /// Bytes allowed.
        max: u64,
    },
    /// Names that are not distinct.
    #[error("`{name}` is the name of several genomes: rename all but one")]
    Duplicate {
        /// The name.
        name: String,
    },
    /// A model that is not taken.
    #[error("model {name}: {what}")]
    Model {
        /// Its name.
        name: String,
        /// The reason.
        what: String,
    },
    /// A signal stopped the placement; there is no tree yet.
    #[error("stopped before all genomes were placed")]
    Stopped,
    /// An engine failed.
    #[error(transparent)]
    Engine(#[from] OffloadError),
}

/// Rounds of moves, unless given.
const ROUNDS: u32 = 6;

/// Runs the README's example.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

#[cfg(test)]
mod tests;

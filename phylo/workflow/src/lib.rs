//! Phylogenetic analyses from files to reports, as `sidecore phylo` does them.
//!
//! Top-down:
//!
//! - [`run`]: a run under a prefix: searches, one quick climb (`wide`), or gene trees; [`setup`]
//!   reads and checks what a run is asked for, `live` is its status while it works.
//! - [`trees`]: roots, supports, tests, inner nodes and places on the trees of a file, and species
//!   trees; [`outbreak`]: the tree of many near-identical genomes, with dates.
//! - [`given`]: the likelihood of given trees, under models of every kind; simulations.
//! - [`choice`]: models that an alignment or its parts ask for.
//! - [`report`]: results for people and programs; [`picture`]: trees as SVG.
//!
//! Why here: the methods are `sidecore_phylo`'s and `sidecore_wide`'s. A workflow reads their
//! input, refuses options that do not go together, calls them in order, and has all that is to be
//! shown.
//! Must stay true: nothing is printed but progress on standard error, where that is a terminal; no
//! file is written but a run's own under its prefix.

pub mod choice;
pub mod given;
mod live;
pub mod outbreak;
pub mod picture;
pub mod report;
pub mod run;
pub mod setup;
pub mod trees;
mod wide;

use sidecore_offload::OffloadError;
use sidecore_phylo::analysis::AnalysisError;
use sidecore_phylo::io::FilesError;
use sidecore_phylo::io::data::DataError;
use sidecore_phylo::io::input::InputError;
use sidecore_phylo::io::ranks::RankError;
use sidecore_phylo::likelihood::LikelihoodError;
use sidecore_phylo::model::ModelError;
use sidecore_phylo::rooting::RootError;
use sidecore_phylo::selection::SelectionError;
use sidecore_sched::PolicyError;
use sidecore_wide::WideError;

/// Errors of a workflow.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorkflowError {
    /// Options that do not go together, and what to do.
    #[error("{0}")]
    Options(String),
    /// Input that cannot be used, and its place.
    #[error(transparent)]
    Data(#[from] DataError),
    /// A step that failed, of this crate's or the caller's.
    #[error("{0}")]
    Step(#[source] Box<dyn std::error::Error + Send + Sync>),
}

macro_rules! steps {
    ($($error:ident)+) => {
        $(impl From<$error> for WorkflowError {
            fn from(error: $error) -> Self {
                Self::Step(error.into())
            }
        })+
    };
}

steps!(InputError ModelError PolicyError FilesError RankError OffloadError AnalysisError);
steps!(LikelihoodError RootError SelectionError WideError);

/// An error of options that do not go together.
fn refuse<T>(said: impl Into<String>) -> Result<T, WorkflowError> {
    Err(WorkflowError::Options(said.into()))
}

/// Runs the README's example.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

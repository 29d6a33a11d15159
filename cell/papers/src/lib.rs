//! Every figure of the source documents next to the model of the Cell and this machine, as one
//! page.
//!
//! - [`catalogue`]: the figures, their answers, and the commands that give the answers; all three
//!   are files of `data/`, built in.
//! - [`results`]: results of the commands, and the store of results of finished ones.
//! - [`answer`]: puts the two together: a row for each figure, with a value or the reason for none.
//! - [`page()`]: the same as one HTML file; `charts` draws its pictures.
//! - [`run`]: measures what is missing, by the program's own commands.
//!
//! Why here: a reader of the documents finds every one of their figures answered in one place. The
//! author of a bench need not know the page, nor its reader the benches. Must stay true: no figure
//! without an answer or a reason, and no answer without a figure (a test). A command's output is
//! text to be escaped, never markup. Only [`results::Store`] touches files, and only [`run`] starts
//! commands. Any thread may call any of it.
//! Source: own.

pub mod answer;
pub mod catalogue;
mod charts;
mod page;
pub mod results;
mod rule;
pub mod run;
mod shown;

pub use answer::{Answers, Report};
pub use catalogue::{Catalogue, Part};
pub use page::{About, page};
pub use results::{Found, Kept, Results, Store};
pub use shown::Bar;

/// Errors of the page builder.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PapersError {
    /// One of the built-in files contradicts itself or another; a mistake in this program.
    #[error("data/{file}: {what}")]
    Data {
        /// Name of the file.
        file: &'static str,
        /// The contradiction.
        what: String,
    },
    /// A part that is not there.
    #[error("no part `{0}`; `sidecore papers --list` names them")]
    NoPart(String),
    /// No directory for results.
    #[error("neither XDG_CACHE_HOME nor HOME is set; name a place with --state DIR")]
    NoPlace,
    /// A picture could not be drawn.
    #[error(transparent)]
    Plot(#[from] sidecore_plot::PlotError),
    /// A command could not be run.
    #[error(transparent)]
    Command(#[from] sidecore_measure::child::ChildError),
    /// The directory of kept results could not be used.
    #[error("cannot {what} {}: {source}; name another place with --state DIR", .path.display())]
    Keep {
        /// The operation that failed.
        what: &'static str,
        /// File or directory.
        path: std::path::PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
}

/// The README's example: it compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

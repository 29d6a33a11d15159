//! Every figure of the source documents beside the model of the Cell and this machine, as one page.
//!
//! - [`catalogue`]: the figures, what answers each, and the commands that give the answers; all
//!   three are files of `data/`, built in.
//! - [`results`]: what the commands came to, and where results of finished ones are kept.
//! - [`answer`]: puts the two together: a row for each figure, with a value or why there is none.
//! - [`page()`]: the same as one HTML file; `charts` draws its pictures.
//!
//! Why here: a reader who knows the documents finds every one of their figures answered in one
//! place; nobody who writes a bench has to know the page, and nobody who reads it which bench. Must
//! stay true: no figure without an answer or a reason, and no answer without a figure (a test);
//! everything that comes out of a command is text to be escaped, never markup; nothing here runs a
//! command or measures. Only [`results::Store`] touches files. Any thread may call any of it.
//! Source: own.

pub mod answer;
pub mod catalogue;
mod charts;
mod date;
mod page;
pub mod results;
mod rule;

pub use answer::{Answers, Report};
pub use catalogue::{Catalogue, Part};
pub use page::{About, page};
pub use results::{Found, Kept, Results, Store};

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
    /// A picture could not be drawn.
    #[error(transparent)]
    Plot(#[from] sidecore_plot::PlotError),
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

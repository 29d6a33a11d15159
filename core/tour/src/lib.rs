//! Guided tours of a program's commands: steps with needs, run for real, and a page of what was
//! seen.
//!
//! - [`Script`]: the steps, as a file has them.
//! - [`run()`]: takes them, one after the other; [`Show`] receives the lines for the screen, which
//!   [`Terminal`] is.
//! - [`Report`]: each step's end and figures; it writes the page.
//! - [`place()`]: the folder in which the page stays.
//!
//! Why here: which commands a tour shows is its program's affair; how steps are taken, left out,
//! undone and shown is not. Must stay true: a step is done, left out with a remedy, or a problem;
//! whatever happens, what a step mounted, attached or started is undone, and the temporary folder
//! is removed. One thread, which lives until the program ends.

mod needs;
mod page;
mod report;
mod run;
mod sample;
mod script;
mod server;
mod shell;

#[cfg(test)]
mod tests;

pub use page::place;
pub use report::{End, Report, Taken};
pub use run::{Options, run};
pub use sample::LARGE_FOLDERS;
pub use script::Script;
pub use shell::{Show, Terminal};

use std::io;
use std::path::PathBuf;

/// Errors that end a tour.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TourError {
    /// The script cannot be used.
    #[error("the tour's script is wrong: {0}")]
    Script(String),
    /// The named folder cannot be worked on.
    #[error("cannot take {} (--dir): {why}", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// There is no place for the tour's files.
    #[error(
        "cannot work in {}: {source}; free space there, or name another folder in TMPDIR",
        path.display()
    )]
    Scratch {
        /// The folder of temporary files.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The page cannot be kept where the user wants it.
    #[error("cannot write in {}: {source}; name another folder with --keep", path.display())]
    Keep {
        /// The folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A picture cannot be drawn.
    #[error(transparent)]
    Plot(#[from] sidecore_plot::PlotError),
    /// The screen cannot be written to.
    #[error("cannot print: {0}")]
    Show(io::Error),
    /// The user ended it; everything is undone.
    #[error("interrupted; what was mounted and started is undone")]
    Interrupted,
}

/// The README's example: it is a script.
#[cfg(test)]
const README: &str = include_str!("../README.md");

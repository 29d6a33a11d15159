//! Reasons for which a driver does not become its tool.

use std::path::PathBuf;

/// A driver could not do its work.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file or folder of the kit could not be read, written or moved.
    #[error("cannot {doing} {}: {source}", path.display())]
    File {
        /// The operation, as a verb.
        doing: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The operating system's reason.
        source: std::io::Error,
    },
    /// The cache's folder could be written by others.
    #[error(
        "{} belongs to user {owner} with mode {mode:o}; it must be user {user}'s and no one else's \
         to write; remove it, or name another folder in SIDECORE_SPE_CACHE", path.display()
    )]
    Foreign {
        /// The folder.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// Its permission bits.
        mode: u32,
        /// The user of this process.
        user: u32,
    },
    /// Neither HOME nor XDG_CACHE_HOME nor SIDECORE_SPE_CACHE is set.
    #[error("no folder for the cache: set HOME, XDG_CACHE_HOME or SIDECORE_SPE_CACHE")]
    NoCache,
    /// The user's compiler cannot make the objects that are needed.
    #[error("{compiler} {option} cannot compile: run `apt-get install {packages}`\n{output}")]
    Compiler {
        /// The compiler.
        compiler: String,
        /// The option that chooses the ABI.
        option: &'static str,
        /// The Debian packages that provide it.
        packages: &'static str,
        /// The first lines that the compiler printed.
        output: String,
    },
    /// A tool could not be started.
    #[error("cannot run {tool}: {source}")]
    Start {
        /// The tool.
        tool: String,
        /// The operating system's reason.
        source: std::io::Error,
    },
    /// Something that is not offered here.
    #[error("{0}")]
    Refused(String),
    /// The driver was called in a way that it does not know.
    #[error("usage: {0}")]
    Usage(String),
}

impl Error {
    /// The operation `doing` on `path` failed.
    pub(crate) fn file(
        doing: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::File {
            doing,
            path,
            source,
        }
    }
}

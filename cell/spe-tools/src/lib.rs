//! Compiler drivers, headers and C library for programs of the Cell: `spu-gcc`, `ppu-gcc`,
//! `ppu-embedspu` and their like, by the user's own gcc.
//!
//! Why here: no distribution has an SPU compiler any more, but SPU source is C, and `gcc -mx32` has
//! the SPU's sizes. The drivers translate the options of the time, add our headers and, for the
//! SPU, our start code and library.
//!
//! Must stay true: everything that a driver needs is in this program and in Debian's packages. The
//! kit that it unpacks lies in a folder of the user's own, written whole or not at all. A driver
//! ends with the exit status of the tool that it became, or 2 and one line.

mod assembly;
mod document;
mod embed;
mod files;
mod floats;
mod implicit;
mod kit;
mod lanes;
mod names;
mod narrow;
mod native;
mod options;
mod places;
mod ppu;
mod print;
mod rewrite;
mod spu;
mod stack;
mod step;
mod text;
mod tokens;
mod tool;
mod view;

pub use document::{DocumentReport, document_report};
pub use kit::{Kit, Parts};
pub use names::{Driver, driver_named};
pub use view::{Traced, table, timeline};

use names::Kind;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

impl Driver {
    /// Does the driver's work with the arguments behind its name; becomes the tool where it can.
    ///
    /// # Errors
    /// The kit cannot be unpacked, the tool is missing, or an argument is refused.
    pub fn run(self, kit: &Kit, arguments: Vec<OsString>) -> Result<ExitCode, Error> {
        let arguments = if self.is_ibm() {
            options::of_ibm(arguments)
        } else {
            arguments
        };
        match self.kind {
            Kind::Spu { plus } => spu::compile(kit, plus, arguments),
            Kind::Ppu { plus, narrow } => ppu::compile(kit, plus, narrow, arguments),
            Kind::Alone => tool::become_tool(&kit.alone_program()?, &arguments),
            Kind::Embed => embed::run(self.name(), &arguments),
            Kind::SpuLink => spu::link(kit, &arguments),
            Kind::SpuAssemble => native::assemble_source(self.name(), &arguments),
            Kind::SpuDisassemble => native::disassemble(&arguments),
            Kind::Binutils(tool) => tool::become_tool(tool, &arguments),
            Kind::Refused(reason) => Err(Error::Refused(reason.into())),
            Kind::Step => step::run(kit, &arguments),
        }
    }
}

/// A driver could not do its work: reasons for which it does not become its tool.
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

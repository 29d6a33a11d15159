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
mod error;
mod files;
mod flags;
mod implicit;
mod kit;
mod lanes;
mod names;
mod narrow;
mod options;
mod places;
mod ppu;
mod print;
mod rewrite;
mod single;
mod spu;
mod stack;
mod step;
mod text;
mod tokens;
mod tool;
mod view;

pub use document::{DocumentReport, document_report};
pub use error::Error;
pub use kit::{Kit, Parts};
pub use names::{Driver, driver_named};
pub use view::{Live, Traced, table, timeline};

use names::Kind;
use std::ffi::OsString;
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
            Kind::Binutils(tool) => tool::become_tool(tool, &arguments),
            Kind::Refused(reason) => Err(Error::Refused(reason.into())),
            Kind::Step => step::run(kit, &arguments),
        }
    }
}

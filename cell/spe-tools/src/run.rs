//! The work of a driver, by its kind.
//!
//! Why apart from the names: the kit needs the names for its links, and drivers need the kit.

use crate::names::{Driver, Kind};
use crate::{Error, Kit, embed, options, ppu, spu, step, tool};
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

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
mod edits;
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
mod run;
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

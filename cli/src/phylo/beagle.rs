//! `sidecore phylo beagle`: a program with this machine's kernels in place of BEAGLE's.
//!
//! Must stay true: this process becomes the program, so that its exit status, signals, terminal and
//! children are its own; nothing is printed unless it cannot start.

use crate::Outcome;
use anyhow::Result;
use sidecore_sys::preload::Library;
use std::ffi::OsString;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The most cores for likelihoods [default: all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    engines: Option<u16>,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

impl Args {
    /// Runs the command; returns only where the program could not be started.
    pub(crate) fn run(self) -> Result<Outcome> {
        let engines = self.engines.map(|engines| engines.to_string().into());
        match LIBRARY.exec(&self.command, ("SIDECORE_BEAGLE_ENGINES", engines))? {}
    }
}

// Programs load it by its soname, which the file's name need not be: the dynamic linker compares
// sonames.
pub(in crate::phylo) const LIBRARY: Library = Library {
    name: "libhmsbeagle.so",
    installed_name: Some("libhmsbeagle.so.1"),
    variable: "SIDECORE_BEAGLE_LIBRARY",
};

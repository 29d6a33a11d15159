//! `sidecore offload run`: a program with zlib's functions off-loaded.
//!
//! Why here: the library is preloaded by the dynamic linker, which a person should not have to
//! spell out. Must stay true: this process becomes the program, so that its exit status, signals,
//! terminal and children are its own; nothing is printed unless it cannot start.

use crate::Outcome;
use anyhow::Result;
use sidecore_sys::preload::Library;
use std::ffi::OsString;
use std::path::PathBuf;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The daemon's socket [default: the own user's, else /run/sidecore/daemon.sock]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

impl Args {
    /// Runs the command; returns only where the program could not be started.
    pub(crate) fn run(self) -> Result<Outcome> {
        // The program may change its directory before it first needs a daemon.
        let socket = self
            .socket
            .map(|path| std::path::absolute(&path).unwrap_or(path).into_os_string());
        match LIBRARY.exec(&self.command, ("SIDECORE_ZLIB_SOCKET", socket))? {}
    }
}

const LIBRARY: Library = Library {
    name: "libsidecore_z.so",
    installed_name: None,
    variable: "SIDECORE_ZLIB_LIBRARY",
};

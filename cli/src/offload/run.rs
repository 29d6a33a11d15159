//! `sidecore offload run`: a program with zlib's functions off-loaded.
//!
//! Why here: the library is preloaded by the dynamic linker, which a person should not have to
//! spell out. Must stay true: this process becomes the program, so that its exit status, signals,
//! terminal and children are its own; nothing is printed unless it cannot start.

use crate::Outcome;
use anyhow::{Context, Result, bail};
use sidecore_sys::preload::{self, Library, PRELOAD};
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

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
        become_program(&LIBRARY, &self.command, ("SIDECORE_ZLIB_SOCKET", socket))
    }
}

/// Becomes the program of a command line, with `library` preloaded and a variable of the
/// environment set, if it has a value. Returns only where the program could not be started.
pub(crate) fn become_program(
    library: &Library,
    command_line: &[OsString],
    (variable, value): (&str, Option<OsString>),
) -> Result<Outcome> {
    let library = preload::for_glibc(library.find()?);
    let [program, arguments @ ..] = command_line else {
        bail!("no program is named; write it behind `--`");
    };
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env(PRELOAD, preload::list(PRELOAD, library));
    if let Some(value) = value {
        command.env(variable, value);
    }
    let error = command.exec();
    Err(error).with_context(|| format!("cannot run {}", Path::new(program).display()))
}

const LIBRARY: Library = Library {
    name: "libsidecore_z.so",
    installed_name: None,
    variable: "SIDECORE_ZLIB_LIBRARY",
};

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

/// Arguments of `offload run`.
#[derive(clap::Args)]
#[command(after_help = "\
Runs the program with libsidecore_z.so preloaded: large buffers are deflated on a daemon's engines \
where one serves, else by the program itself; the output is the same. Programs that are linked \
statically or with musl, or run as another user than who starts them, are not reached.

SIDECORE_ZLIB=local in the environment looks for no daemon, SIDECORE_ZLIB=off leaves all to the \
library beneath, SIDECORE_ZLIB_LIBRARY=FILE names the library.

Exit status: the program's; 2 if it could not be started.")]
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
        let library = preload::for_glibc(LIBRARY.find()?);
        let [program, arguments @ ..] = self.command.as_slice() else {
            bail!("no program is named; write it behind `--`");
        };
        let mut command = Command::new(program);
        command.args(arguments).env(PRELOAD, preload::list(library));
        if let Some(socket) = self.socket {
            // The program may change its directory before it first needs a daemon.
            let socket = std::path::absolute(&socket).unwrap_or(socket);
            command.env("SIDECORE_ZLIB_SOCKET", socket);
        }
        let error = command.exec();
        Err(error).with_context(|| format!("cannot run {}", Path::new(program).display()))
    }
}

const LIBRARY: Library = Library {
    name: "libsidecore_z.so",
    installed_name: None,
    variable: "SIDECORE_ZLIB_LIBRARY",
};

//! `sidecore net run`: an unmodified program whose sockets are the stack's.
//!
//! Must stay true: the exit status is the program's, also where a signal ended it; nothing is
//! printed unless the program cannot start.

use super::up::{StackArgs, read_setup};
use crate::Outcome;
use anyhow::{Context, Result};
use sidecore_net_run::{Engine, Options, Status};
use sidecore_sys::preload::{self, Library, PRELOAD};
use std::ffi::OsString;
use std::process::Command;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    stack: StackArgs,
    /// Serve 127.0.0.0/8 and ::1 among programs under `net run`
    #[arg(long)]
    loopback: bool,
    /// Move all bytes through local socket pairs, as for static programs
    #[arg(long)]
    no_rings: bool,
    /// Leave no address to the kernel except the loopback's
    #[arg(long)]
    all: bool,
    /// The pipe to the waiting process, in the supervisor
    #[arg(long, hide = true, value_name = "DESCRIPTOR")]
    supervise: Option<i32>,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

impl Args {
    pub(crate) fn run(self) -> Result<Outcome> {
        if let Some(pipe) = self.supervise {
            sidecore_net_run::supervise(&self.options()?, &self.command, pipe)?;
            return Ok(Outcome::Done);
        }
        let program = std::env::current_exe().context("cannot find this program")?;
        let mut supervisor = Command::new(program);
        // The same words up to the program, which must stand behind `--`.
        supervisor.args(std::env::args_os().skip(1).take_while(|word| word != "--"));
        supervisor.arg("--supervise");
        match sidecore_net_run::run(supervisor, &self.command)? {
            Status::Exited(status) => std::process::exit(status),
            Status::Killed(signal) => {
                // The parent must see the program's own end, so this process ends by the same
                // signal.
                signal_hook::low_level::emulate_default_handler(signal).ok();
                std::process::exit(128 + signal)
            }
        }
    }

    fn options(&self) -> Result<Options> {
        let running = &self.stack.running;
        let trust = running.server.trust();
        let engine = match (&self.stack.config, &running.socket) {
            (Some(path), _) => Engine::Hosted(Box::new(read_setup(path)?)),
            (None, Some(socket)) => Engine::At(std::path::absolute(socket)?, trust),
            (None, None) => Engine::find(trust, self.loopback),
        };
        // Without it, programs are served as static ones are.
        let library = if self.no_rings {
            None
        } else {
            LIBRARY
                .find()
                .inspect_err(|why| tracing::warn!("slower, without rings in shared memory: {why}"))
                .ok()
        };
        Ok(Options {
            preload: library.map(|library| preload::list(PRELOAD, library)),
            is_all: self.all,
            ..Options::new(engine, self.loopback)
        })
    }
}

const LIBRARY: Library = Library {
    name: "libsidecore_net_preload.so",
    installed_name: None,
    variable: "SIDECORE_NET_LIBRARY",
};

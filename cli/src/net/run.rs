//! `sidecore net run`: an unmodified program whose sockets are the stack's.
//!
//! Must stay true: the exit status is the program's, also where a signal ended it; nothing is
//! printed unless the program cannot start.

use super::up::StackArgs;
use crate::Outcome;
use anyhow::{Context, Result};
use sidecore_net_run::{Engine, Options, Status};
use std::ffi::OsString;

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
        let supervisor = sidecore_net_run::supervisor("--supervise");
        let supervisor = supervisor.context("cannot find this program")?;
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
        let StackArgs { running, config } = &self.stack;
        let whole = running.socket.as_deref().map(std::path::absolute);
        let (config, socket) = (config.as_deref(), whole.transpose()?);
        let trust = running.server.trust();
        let engine = Engine::of(config, socket.as_deref(), trust, self.loopback)?;
        let options = Options {
            is_all: self.all,
            ..Options::new(engine, self.loopback)
        };
        Ok(match self.no_rings {
            true => options,
            false => options.with_rings(),
        })
    }
}

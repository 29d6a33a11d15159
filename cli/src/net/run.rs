//! `sidecore net run`: an unmodified program whose sockets are the stack's.
//!
//! Must stay true: the exit status is the program's, also where a signal ended it; nothing is
//! printed unless the program cannot start.

use super::up::read_setup;
use crate::Outcome;
use anyhow::{Context, Result};
use sidecore_attach::Trust;
use sidecore_net_run::{Engine, Options, Status};
use sidecore_sys::preload::{self, Library, PRELOAD};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The stack's socket [default: the own user's, else /run/sidecore/net.sock]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Run a stack for this program, by this configuration (as `net up` has it), instead of using
    /// one that runs
    #[arg(long, value_name = "FILE", conflicts_with = "socket")]
    config: Option<PathBuf>,
    /// Serve 127.0.0.0/8 and ::1 among programs under `net run`
    #[arg(long)]
    loopback: bool,
    /// Move all bytes through local socket pairs, as for static programs
    #[arg(long)]
    no_rings: bool,
    /// Leave no address to the kernel except the loopback's
    #[arg(long)]
    all: bool,
    /// Use the stack of this user, too
    #[arg(long, value_name = "UID")]
    server_uid: Option<u32>,
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
        supervisor.args(["net", "run"]);
        // The program may change its directory before the stack is looked up again.
        let whole = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        for (option, path) in [("--socket", &self.socket), ("--config", &self.config)] {
            if let Some(path) = path {
                supervisor.arg(option).arg(whole(path));
            }
        }
        let flags = [
            ("--loopback", self.loopback),
            ("--all", self.all),
            ("--no-rings", self.no_rings),
        ];
        for (flag, _) in flags.iter().filter(|(_, is_given)| *is_given) {
            supervisor.arg(flag);
        }
        if let Some(uid) = self.server_uid {
            supervisor.arg("--server-uid").arg(uid.to_string());
        }
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
        let mut trust = Trust::default();
        if let Some(uid) = self.server_uid {
            trust = trust.and(uid);
        }
        let engine = match (&self.config, &self.socket) {
            (Some(path), _) => Engine::Hosted(Box::new(read_setup(path)?)),
            (None, Some(socket)) => Engine::At(socket.clone(), trust),
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

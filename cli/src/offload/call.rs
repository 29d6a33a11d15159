//! `sidecore offload call`: one kernel of a daemon, called from this process. `kernels`: those that
//! it has, with the hashes that name a build. `run`: a program with zlib's functions off-loaded.
//!
//! Why here: to try a daemon out by hand; programs use `sidecore_daemon::client`. Must stay true:
//! without a daemon the call runs in this process, and the output says where it ran. Under `run`
//! this process becomes the program, so that its exit status, signals, terminal and children are
//! its own; nothing is printed unless it cannot start.

use crate::live::Running;
use crate::{Outcome, output};
use anyhow::{Context, Result};
use serde_json::json;
use sidecore_daemon::client::{Client, Trial, options_for, status};
use sidecore_daemon::find_socket;
use sidecore_daemon::served::KernelHash;
use sidecore_measure::stats::median;
use sidecore_sys::input;
use sidecore_sys::preload::Library;
use sidecore_terminal::quantity;
use std::ffi::OsString;
use std::path::PathBuf;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The kernel's name
    #[arg(value_name = "KERNEL")]
    kernel: String,
    /// Words for it, at most 6
    #[arg(value_name = "WORD")]
    words: Vec<u64>,
    /// A file whose bytes are its input
    #[arg(long, value_name = "FILE")]
    input: Option<PathBuf>,
    /// Bytes of output that the kernel may write; they are discarded
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = quantity::size)]
    output: u64,
    /// The hash that the daemon's kernel must have, from `offload kernels`; a kernel with another
    /// hash is not called
    #[arg(long, value_name = "HASH")]
    hash: Option<KernelHash>,
    /// Number of calls
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    count: u64,
    #[command(flatten)]
    daemon: Running,
}

impl Args {
    pub(crate) fn run(self) -> Result<Outcome> {
        let (socket, trust) = self.daemon.find(find_socket);
        let input = self.input.as_ref().map(|path| {
            let read = input::read(path, INPUT_BYTES_MAX);
            read.with_context(|| format!("cannot read {}", path.display()))
        });
        let input = input.transpose()?;
        let trial = Trial {
            words: &self.words,
            input: input.as_deref(),
            output_bytes: usize::try_from(self.output).unwrap_or(usize::MAX),
            count: self.count,
        };
        let built_in = super::built_in(true)?;
        let mut options = options_for(&self.kernel, self.hash, built_in, &socket, &trust)?;
        options.arena_bytes = options.arena_bytes.max(trial.arena_bytes());
        let client = Client::attach_with(&socket, options)?;
        let kernel = client.kernel(&self.kernel)?;
        let name = &self.kernel;
        let tried = match trial.run(&client, kernel) {
            Ok(tried) => tried,
            Err(error) => {
                output::note!("sidecore: {name}: {error}");
                return Ok(Outcome::Problem);
            }
        };
        let us = median(&tried.taken_us);
        let words = tried.words.map(|word| word.to_string()).join(" ");
        let counters = client.counters();
        let (on_engines, on_host) = (counters.on_engines, counters.on_host);
        output::line(&format!("{name}: {words}"))?;
        output::line(&format!(
            "{on_engines} calls on the daemon's engines, {on_host} on this core; median {us:.2} us"
        ))?;
        Ok(Outcome::Done)
    }
}

#[derive(clap::Args)]
pub(crate) struct KernelsArgs {
    #[command(flatten)]
    daemon: Running,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl KernelsArgs {
    pub(crate) fn run(self) -> Result<Outcome> {
        let (socket, trust) = self.daemon.find(find_socket);
        let status = status(&socket, &trust)?;
        if self.json {
            output::json_line(&json!({ "kernels": status.served }))?;
            return Ok(Outcome::Done);
        }
        output::show(&status.kernels_table().into())?;
        Ok(Outcome::Done)
    }
}

/// Bounds of a call.
const INPUT_BYTES_MAX: u64 = 1 << 30;

#[derive(clap::Args)]
pub(crate) struct RunArgs {
    /// The daemon's socket [default: the own user's, else /run/sidecore/daemon.sock]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

impl RunArgs {
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

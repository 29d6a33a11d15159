//! `sidecore offload call`: one kernel of a daemon, called from this process.
//!
//! Why here: to try a daemon out by hand; programs use `sidecore_daemon::client`.
//! Must stay true: without a daemon the call runs in this process, and the output says where it
//! ran.

use crate::{Outcome, output};
use anyhow::{Context, Result};
use sidecore_attach::Trust;
use sidecore_daemon::client::{self, Args as CallArgs, Buffer, Client, ClientOptions};
use sidecore_daemon::find_socket;
use sidecore_daemon::served::{KernelHash, Registry};
use sidecore_measure::stats::median;
use sidecore_sys::input;
use sidecore_terminal::quantity;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Arguments of `offload call`.
#[derive(clap::Args)]
#[command(after_help = "\
Kernels: those that `sidecore offload kernels` lists; what the words of the built-in ones mean is \
in docs/daemon.md.

Exit status: 0 called, 1 the kernel failed, 2 could not run.")]
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
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        value_parser = clap::value_parser!(u64).range(1..)
    )]
    count: u64,
    /// The daemon's socket [default: the own user's, else /run/sidecore/daemon.sock]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    #[command(flatten)]
    server: crate::live::Server,
}

impl Args {
    /// Runs the command.
    pub(crate) fn run(self) -> Result<Outcome> {
        let trust = self.server.trust();
        let socket = self.socket.clone();
        let socket = socket.unwrap_or_else(|| find_socket(&trust));
        let bytes = match &self.input {
            None => None,
            Some(path) => {
                let read = input::read(path, INPUT_BYTES_MAX);
                Some(read.with_context(|| format!("cannot read {}", path.display()))?)
            }
        };
        let registry = self.registry(&socket, &trust)?;
        // This process cannot run a kernel that only the daemon has, so it waits while the daemon
        // is busy.
        let defaults = match super::built_in(true)?.find(&self.kernel) {
            Some(_) => ClientOptions::default(),
            None => ClientOptions::patient(),
        };
        let mut options = ClientOptions {
            registry,
            trust,
            ..defaults
        };
        // Room for both, and for the arena's own bookkeeping.
        let output_bytes = usize::try_from(self.output).unwrap_or(usize::MAX);
        let needed = bytes
            .as_ref()
            .map_or(0, Vec::len)
            .saturating_add(output_bytes);
        options.arena_bytes = options.arena_bytes.max((needed as u64).saturating_mul(2));
        let client = Client::attach_with(&socket, options)?;
        let kernel = client.kernel(&self.kernel)?;
        let input = bytes.map(|bytes| {
            let mut buffer = client.buffer(bytes.len());
            buffer.bytes_mut().copy_from_slice(&bytes);
            buffer
        });
        let mut out = (output_bytes > 0).then(|| client.buffer(output_bytes));
        let mut reply = None;
        let mut taken_us = Vec::with_capacity(TIMES_KEPT_MAX.min(self.count as usize));
        for _ in 0..self.count {
            let begun = Instant::now();
            match client.call(kernel, self.arguments(input.as_ref(), out.as_mut())) {
                Ok(words) => reply = Some(words),
                Err(error) => {
                    output::note!("sidecore: {}: {error}", self.kernel);
                    return Ok(Outcome::Problem);
                }
            }
            if taken_us.len() < TIMES_KEPT_MAX {
                taken_us.push(begun.elapsed().as_secs_f64() * 1e6);
            }
        }
        let us = median(&taken_us);
        let words = reply.map_or([0; 6], |reply| reply.words);
        let words: Vec<String> = words.iter().map(u64::to_string).collect();
        let counters = client.counters();
        output::line(&format!("{}: {}", self.kernel, words.join(" ")))?;
        output::line(&format!(
            "{} calls on the daemon's engines, {} on this core; median {us:.2} us",
            counters.on_engines, counters.on_host
        ))?;
        Ok(Outcome::Done)
    }

    /// The built-in kernels, and the daemon's loaded kernel of that name.
    fn registry(&self, socket: &Path, trust: &Trust) -> Result<Registry> {
        let built_in = super::built_in(true)?;
        if built_in.find(&self.kernel).is_some() {
            return Ok(match self.hash {
                Some(hash) => built_in.expecting(&self.kernel, hash)?,
                None => built_in,
            });
        }
        let served = client::status(socket, trust)?.served;
        let found = served.iter().find(|served| served.name == self.kernel);
        Ok(match found {
            Some(found) => built_in.with_remote(&self.kernel, found.version, self.hash)?,
            None => built_in,
        })
    }

    fn arguments<'a>(
        &self,
        input: Option<&'a Buffer>,
        output: Option<&'a mut Buffer>,
    ) -> CallArgs<'a> {
        let mut arguments = CallArgs::new().words(&self.words);
        if let Some(input) = input {
            arguments = arguments.input(input);
        }
        if let Some(output) = output {
            arguments = arguments.output(output);
        }
        arguments
    }
}

/// Call times that are kept for the median.
const TIMES_KEPT_MAX: usize = 1 << 20;
/// Bounds of a call.
const INPUT_BYTES_MAX: u64 = 1 << 30;

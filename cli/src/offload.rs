//! `sidecore offload`. `call`: one kernel of a daemon, called from this process. `kernels`: those
//! that it has, with the hashes that name a build. `run`: a program with zlib's functions
//! off-loaded.
//!
//! Why here: to try a daemon out by hand; programs use `sidecore_daemon::client`. Must stay true:
//! without a daemon the call runs in this process, and the output says where it ran. Under `run`
//! this process becomes the program, so that its exit status, signals, terminal and children are
//! its own; nothing is printed unless it cannot start.

#[cfg(feature = "bench")]
use crate::bench::OffloadArgs as BenchArgs;
use crate::live::Running;
#[cfg(not(feature = "bench"))]
use crate::no_bench::Args as BenchArgs;
use crate::{Outcome, output};
use anyhow::{Context, Result};
use clap::Subcommand;
use serde_json::json;
use sidecore_block::codec::{CodecId, Inflater, make_inflater};
use sidecore_daemon::client::{Client, Trial, options_for, status};
use sidecore_daemon::find_socket;
use sidecore_daemon::served::{KernelHash, Registry, RegistryError};
use sidecore_kernels::codec::{FrameDecoders, InflateFrame};
use sidecore_measure::stats::median;
use sidecore_sys::input;
use sidecore_sys::preload::Library;
use sidecore_terminal::quantity;
use std::ffi::OsString;
use std::path::PathBuf;

/// Commands about off-loading.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Round trips, tasks, throughput: compared with other libraries and with processes, in one
    /// run.
    Bench(BenchArgs),
    /// Call a kernel of a daemon, to try it out.
    Call(CallArgs),
    /// List a daemon's kernels, with their versions and hashes.
    Kernels(KernelsArgs),
    /// Run a program whose calls to zlib use a daemon's engines.
    Run(RunArgs),
    /// The process that runs an object's kernels; a daemon starts it.
    #[command(hide = true)]
    Host,
    /// Another process of the bench; it starts these itself.
    #[cfg(feature = "bench")]
    #[command(hide = true)]
    Peer(crate::bench::Peer),
}

impl Command {
    pub(crate) fn run(self) -> Result<Outcome> {
        match self {
            Self::Bench(args) => args.run(),
            Self::Call(args) => args.run(),
            Self::Kernels(args) => args.run(),
            Self::Run(args) => args.run(),
            Self::Host => sidecore_loader::serve_as_host(),
            #[cfg(feature = "bench")]
            Self::Peer(args) => args.run(),
        }
    }
}

/// The kernels that `sidecore daemon` has built in; `spin_us` on request.
pub(crate) fn built_in(spin_us: bool) -> Result<Registry, RegistryError> {
    let registry = if spin_us {
        Registry::with_spin_us()
    } else {
        Registry::builtin()
    };
    let registry = registry.with::<InflateFrame<ImageDecoders>>()?;
    sidecore_kernels::register(sidecore_deflate::served::register(registry)?)
}

/// An engine's decoders of images' frames, as [`CodecId`] numbers them, each made on first use.
#[derive(Default)]
struct ImageDecoders([Option<Box<dyn Inflater>>; CodecId::ALL.len()]);

impl FrameDecoders for ImageDecoders {
    const CODECS: usize = CodecId::ALL.len();

    fn decode(&mut self, codec: usize, frame: &[u8], raw: &mut [u8]) -> Result<(), String> {
        let made = || make_inflater(CodecId::ALL[codec]);
        let inflater = self.0[codec].get_or_insert_with(made);
        inflater.set_verified(false);
        let inflated = inflater.inflate(frame, raw);
        inflated.map_err(|error| error.to_string())
    }
}

#[derive(clap::Args)]
pub(crate) struct CallArgs {
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

impl CallArgs {
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
        let built_in = built_in(true)?;
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
        output::lines(&tried.lines(name, &client, us))?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use sidecore_block::codec::make_deflater;
    use sidecore_daemon::client::{Args, Client, ClientOptions};
    use sidecore_daemon::served::Served as _;
    use sidecore_daemon::{Daemon, DaemonOptions};

    fn registry() -> Registry {
        Registry::builtin()
            .with::<InflateFrame<ImageDecoders>>()
            .unwrap()
    }

    /// Frames of all codecs through `client`; then a damaged one.
    fn inflate_all(client: &Client) {
        let inflate = client.kernel(InflateFrame::<ImageDecoders>::NAME).unwrap();
        let raw: Vec<u8> = (0..64_u32 << 10)
            .map(|at| ((at * at) >> 12) as u8)
            .collect();
        for codec in CodecId::ALL {
            let mut frame = Vec::new();
            make_deflater(codec, None)
                .unwrap()
                .deflate(&raw, &mut frame)
                .unwrap();
            let mut input = client.buffer(frame.len());
            input.bytes_mut().copy_from_slice(&frame);
            let mut output = client.buffer(raw.len());
            let args = Args::new()
                .words(&[codec as u64])
                .input(&input)
                .output(&mut output);
            let reply = client.call(inflate, args).unwrap();
            assert_eq!(reply.words[0], raw.len() as u64, "{codec}");
            assert!(output.bytes() == raw, "{codec}");
        }
        let rubbish = client.buffer(100);
        let mut output = client.buffer(raw.len());
        let args = Args::new()
            .words(&[CodecId::Zlib as u64])
            .input(&rubbish)
            .output(&mut output);
        let error = client.call(inflate, args).unwrap_err().to_string();
        assert!(error.contains("inflate_frame"), "{error}");
        let args = Args::new().words(&[99]).input(&rubbish).output(&mut output);
        assert!(client.call(inflate, args).is_err());
    }

    #[test]
    fn frames_of_all_codecs_are_inflated_by_a_daemon_and_without_one() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("daemon.sock");
        let options = || ClientOptions {
            registry: registry(),
            ..ClientOptions::patient()
        };
        inflate_all(&Client::detached(&socket, options()));
        let daemon = Daemon::start(DaemonOptions {
            socket: socket.clone(),
            engines: 1,
            registry: registry(),
            ..DaemonOptions::default()
        })
        .unwrap();
        let client = Client::attach_with(&socket, options()).unwrap();
        inflate_all(&client);
        assert!(client.counters().on_engines > 0, "{:?}", client.counters());
        daemon.stop();
    }
}

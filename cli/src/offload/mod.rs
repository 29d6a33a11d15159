//! `sidecore offload ...`: benchmarks of off-loading, calls by hand, and programs that off-load.

mod call;

use crate::Outcome;
#[cfg(feature = "bench")]
use crate::bench::OffloadArgs as BenchArgs;
#[cfg(not(feature = "bench"))]
use crate::no_bench::Args as BenchArgs;
use anyhow::Result;
use clap::Subcommand;
use sidecore_block::codec::{CodecId, Inflater, make_inflater};
use sidecore_daemon::served::{Registry, RegistryError};
use sidecore_kernels::codec::{FrameDecoders, InflateFrame};

/// Commands about off-loading.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Round trips, tasks, throughput: compared with other libraries and with processes, in one
    /// run.
    Bench(BenchArgs),
    /// Call a kernel of a daemon, to try it out.
    Call(call::Args),
    /// List a daemon's kernels, with their versions and hashes.
    Kernels(call::KernelsArgs),
    /// Run a program whose calls to zlib use a daemon's engines.
    Run(call::RunArgs),
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

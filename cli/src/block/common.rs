//! Arguments and helpers shared by the commands that read and write whole images.

use super::image::{AccessArgs, Opened, make_absolute};
use anyhow::{Context, Result};
use indicatif::ProgressBar;
use sidecore_block::device::{Device, DeviceConfig};
use sidecore_block::pack::{Deadline, Existing, Limits, Target};
use sidecore_offload::{ENGINES_MAX, Pool, PoolConfig};
use sidecore_remote::access::AccessError;
use sidecore_remote::{TraceWriter, frames_of_metadata, read_trace};
use sidecore_sys::cpu;
use sidecore_terminal::progress::{Shape, bar};
use sidecore_terminal::quantity;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Number of engines that work on frames.
#[derive(clap::Args, Clone, Copy)]
pub(crate) struct Engines {
    /// Number of engines; one for each core unless given
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u16).range(1..=ENGINES_MAX as i64)
    )]
    engines: Option<u16>,
}

impl Engines {
    /// The number asked for, or that of the cores whose time this process may have.
    pub(crate) fn count(self) -> usize {
        match self.engines {
            Some(engines) => engines.into(),
            None => cpu::affordable().min(ENGINES_MAX),
        }
    }
}

/// Bounds of a command that goes over a whole image once.
#[derive(clap::Args, Clone, Copy)]
pub(crate) struct WholeArgs {
    #[command(flatten)]
    memory: MemoryArgs,
    #[command(flatten)]
    time: TimeArgs,
}

/// Bound of the memory of a command that goes over a whole image, or its tables, once.
#[derive(clap::Args, Clone, Copy)]
pub(crate) struct MemoryArgs {
    /// Upper bound of the memory held: the image's index, frames on their way, engines, the
    /// process's heap
    #[arg(long, value_name = "SIZE", value_parser = quantity::size, default_value = "160MiB")]
    memory: u64,
}

/// Bound of the time of a command.
#[derive(clap::Args, Clone, Copy)]
pub(crate) struct TimeArgs {
    /// Give up after this time (`90`, `5min`), and leave nothing behind [default: never]
    #[arg(long, value_name = "SECONDS", value_parser = quantity::duration)]
    time: Option<Duration>,
}

impl TimeArgs {
    /// The end of the time, which begins now.
    pub(crate) fn deadline(self) -> Option<Deadline> {
        self.time.and_then(Deadline::after)
    }
}

impl MemoryArgs {
    /// The bound.
    pub(crate) fn bytes(self) -> u64 {
        self.memory
    }

    /// Opens an image by `open`, which gets the memory bound of a remote image, and checks that the
    /// image's index fits.
    pub(crate) fn open(
        self,
        open: impl FnOnce(u64) -> Result<Opened, AccessError>,
    ) -> Result<Opened> {
        let opened = open(self.memory / 2)?;
        let index_bytes = opened.index.memory_bytes() as u64;
        let memory_bytes = self.memory;
        anyhow::ensure!(
            index_bytes < memory_bytes,
            "the image's index takes {index_bytes} bytes of memory, --memory allows \
             {memory_bytes}; allow more"
        );
        Ok(opened)
    }
}

impl WholeArgs {
    /// The bound of the memory.
    pub(crate) fn memory(self) -> MemoryArgs {
        self.memory
    }

    /// The bounds of a walk over `opened`, whose time begins now.
    pub(crate) fn limits(self, opened: &Opened) -> Limits {
        Limits {
            memory_bytes: match opened.remote {
                Some(_) => self.memory.memory - self.memory.memory / 2,
                None => self.memory.memory,
            },
            deadline: self.time.deadline(),
        }
    }

    /// The bounds of a walk that has all of `memory_bytes`, a part of those allowed.
    pub(crate) fn limits_of(self, memory_bytes: u64) -> Limits {
        Limits {
            memory_bytes,
            deadline: self.time.deadline(),
        }
    }
}

/// The image, and the resources for reading it.
#[derive(clap::Args, Clone)]
pub(crate) struct OpenArgs {
    /// The image: a file, or the URL of one (http://, https://, s3://BUCKET/KEY,
    /// oci://REGISTRY/REPOSITORY:TAG)
    pub(crate) image: PathBuf,
    #[command(flatten)]
    pub(crate) engines: Engines,
    /// Upper bound of the memory held for it: index, cache of decompressed frames, engines, the
    /// process's heap, and pages of the image that are mapped in
    #[arg(long, value_name = "SIZE", value_parser = quantity::size, default_value = "128MiB")]
    pub(crate) memory: u64,
    /// Take the file's bytes as they are, whatever they look like
    #[arg(long)]
    pub(crate) raw: bool,
    #[command(flatten)]
    access: AccessArgs,
    /// Record which parts of the image are read, in the order of their first use
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Prefetch the parts of a remote image that this trace names, in its order, from the start
    #[arg(long, value_name = "TRACE")]
    prefetch: Option<PathBuf>,
}

impl OpenArgs {
    /// Makes relative paths absolute, for a server that changes its directory. The image's path
    /// stays: the image is opened before that and never again.
    pub(crate) fn make_absolute(&mut self) -> Result<()> {
        self.access.make_absolute()?;
        let files = [&mut self.trace, &mut self.prefetch];
        files.into_iter().flatten().try_for_each(make_absolute)
    }

    /// True where keys that open an encrypted image are named.
    pub(crate) fn has_secrets(&self) -> bool {
        self.access.has_secrets()
    }
}

/// Opens an image for reading, and starts the engines that decompress it.
pub(crate) fn open_device(args: &OpenArgs) -> Result<Arc<Device>> {
    open_device_within(args, args.memory)
}

/// As [`open_device`], with a part of the memory that is allowed.
pub(crate) fn open_device_within(args: &OpenArgs, memory: u64) -> Result<Arc<Device>> {
    // Of a remote image, half is for compressed frames in flight.
    let Opened {
        image,
        index,
        remote,
    } = args
        .access
        .access()?
        .open(&args.image, args.raw, memory / 2)?;
    let memory_bytes = match remote {
        Some(_) => memory - memory / 2,
        None => memory,
    };
    if let (Some(remote), None) = (&remote, &args.prefetch) {
        remote.fetch_together(&index, &frames_of_metadata(&image, &index));
    }
    if let Some(path) = &args.prefetch {
        let failed = || format!("cannot prefetch by {}", path.display());
        let frames = read_trace(path, &index).with_context(failed)?;
        match &remote {
            Some(remote) => remote.prefetch(&index, &frames),
            None => tracing::info!("a file of this machine is not prefetched"),
        }
    }
    let trace = args.trace.as_ref().map(|path| {
        let trace = TraceWriter::create(path, &index);
        trace.with_context(|| format!("cannot write the trace {}", path.display()))
    });
    let trace = trace.transpose()?;
    let engines = args.engines.count();
    let pool = Pool::start(PoolConfig {
        engines,
        ..PoolConfig::default()
    })?;
    let config = DeviceConfig {
        memory_bytes,
        ..DeviceConfig::default()
    };
    let device = Device::open_indexed(image, index, Arc::new(pool), config)
        .with_context(|| format!("cannot open {}", super::image::name(&args.image)))?;
    if let Some(trace) = trace {
        device.trace_into(Arc::new(trace));
    }
    Ok(device)
}

/// Output that `-o` names: a file, a device or standard output.
pub(super) fn target(path: &Path, no_clobber: bool, force: bool) -> Target<'_> {
    if path.as_os_str() == "-" {
        return Target::Stdout;
    }
    let existing = match (no_clobber, force) {
        (true, _) => Existing::Keep,
        (_, true) => Existing::Force,
        _ => Existing::Replace,
    };
    Target::Path(path, existing)
}

/// A progress bar over an image's contents.
pub(super) fn image_progress(image: &Opened, doing: &'static str) -> ProgressBar {
    let bar = bar(Shape::Bytes, image.index.raw_bytes());
    bar.set_message(doing);
    bar
}

//! Arguments that commands share: resources, access to images, outputs.

use crate::Outcome;
use crate::output::{self, Timed};
use anyhow::Result;
use serde::Serialize;
use sidecore_block::device::Device;
use sidecore_block::format::tree::Signer;
use sidecore_block::opened::Opened as Served;
use sidecore_block::overlay::{open_to_read, open_to_write};
use sidecore_block::pack::{Deadline, Existing, Limits, Target};
use sidecore_block::secret::Secrets;
use sidecore_block::source::BlockSource;
use sidecore_block::trust::{Trust, signer};
use sidecore_offload::ENGINES_MAX;
use sidecore_remote::access::{Access, DeviceOptions, name};
use sidecore_sys::cpu;
use sidecore_terminal::values::fitting_size;
use sidecore_terminal::{Text, quantity};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Number of engines that work on frames.
#[derive(clap::Args, Clone, Copy)]
pub(crate) struct Engines {
    /// Number of engines; one for each core unless given
    #[arg(long, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=ENGINES_MAX as i64))]
    engines: Option<u16>,
}

impl Engines {
    /// The number asked for, or that of the cores whose time this process may have.
    pub(crate) fn count(self) -> usize {
        let affordable = || cpu::affordable().min(ENGINES_MAX);
        self.engines.map_or_else(affordable, usize::from)
    }
}

/// Bounds of a command that goes over a whole image once.
#[derive(clap::Args, Clone, Copy)]
pub(crate) struct WholeArgs {
    #[command(flatten)]
    pub(super) memory: MemoryArgs,
    #[command(flatten)]
    time: TimeArgs,
}

/// Bound of the memory of a command that goes over a whole image, or its tables, once.
#[derive(clap::Args, Clone, Copy)]
pub(crate) struct MemoryArgs {
    /// Upper bound of the memory held: the image's index, frames on their way, engines, the
    /// process's heap
    #[arg(long = "memory", value_name = "SIZE", value_parser = quantity::size)]
    #[arg(default_value = "160MiB")]
    pub(super) bytes: u64,
}

/// Bound of the time of a command.
#[derive(clap::Args, Clone, Copy)]
pub(crate) struct TimeArgs {
    /// Give up after this time (`90`, `5min`), and leave nothing behind [default: never]
    #[arg(long, value_name = "SECONDS", value_parser = quantity::duration)]
    time: Option<Duration>,
}

impl TimeArgs {
    /// The bounds of work that begins now, and may hold `memory_bytes`.
    pub(crate) fn limits(self, memory_bytes: u64) -> Limits {
        Limits {
            memory_bytes,
            deadline: self.time.and_then(Deadline::after),
        }
    }
}

impl WholeArgs {
    /// The bounds of work that begins now.
    pub(crate) fn limits(self) -> Limits {
        self.time.limits(self.memory.bytes)
    }
}

/// The image, and the resources for reading it.
#[derive(clap::Args, Clone)]
pub(crate) struct OpenArgs {
    /// The image: a file, the URL of one (http://, https://, s3://BUCKET/KEY,
    /// oci://REGISTRY/REPOSITORY:TAG), or a version of a store (store:STORE#NAME)
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
    /// True where keys that open an encrypted image are named.
    pub(super) fn has_secrets(&self) -> bool {
        let access = &self.access;
        let is_named = !access.identity.is_empty() || access.domain.is_some();
        is_named || access.passphrase_file.is_some()
    }

    /// Opens the image, and starts the engines that decompress it.
    pub(crate) fn device(&self) -> Result<Arc<Device>> {
        self.device_of(&self.image, self.memory)
    }

    /// The file of keys for versions of an encrypted store.
    pub(super) fn domain(&self) -> Option<&Path> {
        self.access.domain.as_deref()
    }

    /// As [`Self::device`], of another image and with another bound of the memory.
    pub(crate) fn device_of(&self, image: &Path, memory_bytes: u64) -> Result<Arc<Device>> {
        let options = DeviceOptions {
            engines: self.engines.count(),
            memory_bytes,
            raw: self.raw,
            trace: self.trace.as_deref(),
            prefetch: self.prefetch.as_deref(),
        };
        Ok(self.access.access()?.open_device(image, options)?)
    }
}

/// The contents of an image, and of an overlay on it.
#[derive(clap::Args)]
pub(super) struct ContentsArgs {
    #[command(flatten)]
    pub(super) open: OpenArgs,
    /// Contents with the writes in this overlay
    #[arg(long, value_name = "FILE")]
    overlay: Option<PathBuf>,
}

impl ContentsArgs {
    /// The image's device, and the contents.
    pub(super) fn source(&self) -> Result<(Arc<Device>, Arc<dyn BlockSource>)> {
        let device = self.open.device()?;
        let source: Arc<dyn BlockSource> = match &self.overlay {
            Some(path) => Arc::new(open_to_read(Arc::clone(&device), path)?),
            None => Arc::clone(&device) as _,
        };
        Ok((device, source))
    }
}

/// The sectors of a disk that is served.
#[derive(clap::Args, Clone, Copy)]
pub(super) struct SectorArgs {
    /// Logical sector of the disk: 512, or 4KiB for a disk that takes no smaller requests (4Kn)
    #[arg(long, value_name = "SIZE", default_value = "512", value_parser = fitting_size::<u32>(
        |bytes| bytes == 512 || bytes == 4096,
        "must be 512 or 4KiB",
    ))]
    pub(super) sector_size: u32,
}

/// The destination of writes.
#[derive(clap::Args, Clone)]
pub(crate) struct OverlayArgs {
    /// Take writes, which go to this overlay; made where it is not there
    #[arg(long, value_name = "FILE")]
    overlay: Option<PathBuf>,
    /// Bytes that are copied where a part of them is written, in an overlay that is made: a power
    /// of two from 4KiB to 64KiB [default: 4KiB, and more for devices of more than 1 TiB]
    #[arg(long, value_name = "SIZE", value_parser = quantity::size, requires = "overlay")]
    grain: Option<u64>,
    /// Size of the device of an overlay that is made, at least the image's: zeros lie behind the
    /// image's end [default: the image's]
    #[arg(long, value_name = "SIZE", value_parser = quantity::size, requires = "overlay")]
    size: Option<u64>,
}

impl OverlayArgs {
    /// The overlay's file.
    pub(crate) fn path(&self) -> Option<&Path> {
        self.overlay.as_deref()
    }

    /// Opens the image, and the overlay to be written where one is named.
    pub(crate) fn open(&self, args: &OpenArgs) -> Result<Served> {
        let device = args.device()?;
        let overlay = self.overlay.as_ref().map(|path| {
            let name = name(&args.image);
            open_to_write(&device, path, self.grain, self.size, &name)
        });
        Ok(Served::new(Arc::clone(&device), overlay.transpose()?))
    }
}

/// Signed roots of a new image.
#[derive(clap::Args)]
pub(super) struct SealArgs {
    /// Add a hash tree over all frames to the image: a reader that has its root hash can check
    /// every byte (`--root-hash` of mount, serve, attach, verify and unpack)
    #[arg(long)]
    tree: bool,
    /// Sign the root with this private Ed25519 key in PEM (`openssl genpkey -algorithm ed25519`),
    /// for readers with `--verify-key`; may be given again; implies --tree
    #[arg(long, value_name = "KEY")]
    sign: Vec<PathBuf>,
}

impl SealArgs {
    /// Keys that sign the hash tree, where one is to be made.
    pub(super) fn keys(&self) -> Option<&[PathBuf]> {
        (self.tree || !self.sign.is_empty()).then_some(&self.sign)
    }

    /// The same, read.
    pub(super) fn signer(&self) -> Result<Option<Signer>> {
        Ok(self.keys().map(signer).transpose()?)
    }
}

/// Output of a command that writes one file: its treatment where it exists, and the report on it.
#[derive(clap::Args)]
pub(super) struct OutputArgs {
    /// File to write; `-` is standard output
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Refuse when the file exists already
    #[arg(long, conflicts_with = "force")]
    no_clobber: bool,
    /// Write straight onto the file though it is no regular file (a block device)
    #[arg(long)]
    force: bool,
    /// Report in JSON on standard output
    #[arg(long)]
    pub(super) json: bool,
}

impl OutputArgs {
    /// The file.
    pub(super) fn path(&self) -> &Path {
        &self.output
    }

    /// True where it is standard output.
    pub(super) fn is_stdout(&self) -> bool {
        self.output.as_os_str() == "-"
    }

    /// The same, as the library takes it.
    pub(super) fn target(&self) -> Target<'_> {
        let existing = Existing::of(self.no_clobber, self.force);
        match self.is_stdout() {
            true => Target::Stdout,
            false => Target::Path(&self.output, existing),
        }
    }

    /// Prints the report of a command that has written it: nothing for people where it is standard
    /// output.
    pub(super) fn report<R: Serialize>(
        &self,
        timed: &Timed<R>,
        text: impl FnOnce(&R, &Path, f64) -> Text,
    ) -> Result<Outcome> {
        match self.json {
            true => output::json(timed)?,
            false if self.is_stdout() => {}
            false => output::show(&text(&timed.report, &self.output, timed.seconds))?,
        }
        Ok(Outcome::Done)
    }
}

/// Cache and trust of an image.
#[derive(clap::Args, Clone)]
pub(crate) struct AccessArgs {
    /// Directory that caches frames of a remote image; processes may share it
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,
    /// Upper bound of the cache; the least recently used goes first
    #[arg(long, value_name = "SIZE", value_parser = quantity::size, default_value = "4GiB")]
    cache_size: u64,
    /// Take the image only if this is its root hash, as `pack --tree` printed it; every frame is
    /// checked against it before it is used
    #[arg(long, value_name = "HASH")]
    root_hash: Option<String>,
    /// Take the image only if the owner of this key has signed it: a public Ed25519 key in PEM; one
    /// match among several keys is enough
    #[arg(long, value_name = "KEY")]
    verify_key: Vec<PathBuf>,
    /// Index of a zstd file that has none, as `block index` makes it; FILE.sidx next to the file is
    /// used automatically
    #[arg(long, value_name = "FILE")]
    sidx: Option<PathBuf>,
    /// File with identities (`AGE-SECRET-KEY-1...`) that open an encrypted image; may be given
    /// again
    #[arg(long, value_name = "FILE")]
    identity: Vec<PathBuf>,
    /// File whose first line is the passphrase of an encrypted image
    #[arg(long, value_name = "FILE")]
    passphrase_file: Option<PathBuf>,
    /// File of the keys of an encrypted store, as `sidecore store domain` makes it
    #[arg(long, value_name = "FILE")]
    domain: Option<PathBuf>,
}

impl AccessArgs {
    /// The same, its files of keys read.
    pub(crate) fn access(&self) -> Result<Access> {
        Ok(Access {
            cache: self.cache.clone().map(|folder| (folder, self.cache_size)),
            trust: Trust::of(self.root_hash.as_deref(), &self.verify_key)?,
            sidx: self.sidx.clone(),
            secrets: Secrets::of(&self.identity, self.passphrase_file.as_deref())?,
            domain: self.domain.clone(),
        })
    }
}

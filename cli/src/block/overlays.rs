//! `sidecore block clone` (of an overlay, or a first one of an image), `rebase`, `snapshot`,
//! `resize` and `commit`.

use super::common::{AccessArgs, MemoryArgs, OpenArgs, OutputArgs, SealArgs, TimeArgs};
use crate::Outcome;
use crate::output::{JsonArgs, Timed};
use anyhow::{Context, Result};
use serde_json::json;
use sidecore_block::format::lock::Cipher;
use sidecore_block::overlay::identity::Identity;
use sidecore_block::overlay::tools::{self, CloneKind, clone_sized};
use sidecore_block::overlay::{grain, open_to_read, uppermost};
use sidecore_block::pack::{Committed, Guard, Options, commit, rebase};
use sidecore_block::secret::Readers;
use sidecore_export::live::{self, Resized, Snapshot};
use sidecore_remote::access::name;
use sidecore_sys::width::ToU64;
use sidecore_terminal::progress::watched;
use sidecore_terminal::quantity;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

#[derive(clap::Args)]
pub(crate) struct CloneArgs {
    /// Overlay to clone, which no process may have open to write; or an image
    overlay: PathBuf,
    /// The clone: a file that is not there yet
    #[arg(value_name = "NEW")]
    new: PathBuf,
    /// Make a layer also where blocks could be shared
    #[arg(long)]
    layer: bool,
    /// Grain of a first overlay of an image: a power of two from 4KiB to 64KiB [default: 4KiB, and
    /// more for devices of more than 1 TiB]
    #[arg(long, value_name = "SIZE", value_parser = quantity::size)]
    grain: Option<u64>,
    /// Size of the clone's device, at least that of the image or OVERLAY: zeros lie behind its end.
    /// A larger clone is a layer [default: the same size]
    #[arg(long, value_name = "SIZE", value_parser = quantity::size)]
    size: Option<u64>,
    #[command(flatten)]
    base: BaseArgs,
    #[command(flatten)]
    form: JsonArgs,
}

impl CloneArgs {
    pub(crate) fn run(self) -> Result<Outcome> {
        let kind = match tools::is_overlay_file(&self.overlay)? {
            true => {
                let base = self.base.identity()?;
                let how = (!self.layer, self.size);
                clone_sized(&self.overlay, &self.new, base.as_ref(), how)?
            }
            false => {
                let identity = self.base.identity_of(&self.overlay)?;
                let size = self.size.unwrap_or(identity.size_bytes);
                let sizes = (size, grain(self.grain, size));
                let name = name(&self.overlay);
                tools::create_sized(&self.new, &identity, sizes, &name)?;
                CloneKind::New
            }
        };
        self.form.report(&json!({ "kind": kind }), |_| {
            kind.text(&self.overlay, &self.new)
        })
    }
}

/// The image below an overlay that is no server's.
#[derive(clap::Args)]
struct BaseArgs {
    /// Image that OVERLAY stands on: needed where that is encrypted, with --identity or
    /// --passphrase-file
    #[arg(long, value_name = "IMAGE")]
    base: Option<PathBuf>,
    #[command(flatten)]
    access: AccessArgs,
    #[command(flatten)]
    memory: MemoryArgs,
}

impl BaseArgs {
    /// The identity of an image, with its key if it is encrypted.
    fn identity_of(&self, image: &Path) -> Result<Identity> {
        let opened = self.access.access()?.open_whole(image, self.memory.bytes)?;
        let identity = Identity::of(&opened.index, &opened.image);
        identity.context("cannot read the image")
    }

    /// The same of the image that `--base` names, where it does.
    fn identity(&self) -> Result<Option<Identity>> {
        let found = self.base.as_deref().map(|image| self.identity_of(image));
        found.transpose()
    }
}

#[derive(clap::Args)]
pub(crate) struct RebaseArgs {
    #[command(flatten)]
    open: OpenArgs,
    /// Overlay above it: of layers that stand on one another the uppermost
    #[arg(value_name = "OVERLAY")]
    overlay: PathBuf,
    /// The new overlay: a file that is not there yet
    #[arg(value_name = "NEW")]
    new: PathBuf,
    /// Image that NEW stands on; at most as large as OVERLAY's device [default: IMAGE]
    #[arg(long, value_name = "IMAGE")]
    onto: Option<PathBuf>,
    /// Grain of NEW: a power of two from 4KiB to 64KiB [default: as OVERLAY has it]
    #[arg(long, value_name = "SIZE", value_parser = quantity::size)]
    grain: Option<u64>,
    #[command(flatten)]
    form: JsonArgs,
}

impl RebaseArgs {
    pub(crate) fn run(self) -> Result<Outcome> {
        let open = |path: &Path, memory_bytes| self.open.device_of(path, memory_bytes);
        let path = &self.open.image;
        let (image, onto) = match &self.onto {
            // Each of the two has its own frames in memory.
            Some(onto) => {
                let memory_bytes = self.open.memory / 2;
                (open(path, memory_bytes)?, open(onto, memory_bytes)?)
            }
            None => {
                let image = open(path, self.open.memory)?;
                (Arc::clone(&image), image)
            }
        };
        let name = name(self.onto.as_ref().unwrap_or(path));
        let from = (&image, self.overlay.as_path());
        let to = (self.new.as_path(), self.grain);
        let total = Some(image.index().raw_bytes());
        let rebased = watched(total, "comparing", |on_bytes| {
            rebase(from, (&onto, &name), to, on_bytes)
        })?;
        self.form
            .report(&rebased, |rebased| rebased.text(&self.new, &name))
    }
}

#[derive(clap::Args)]
pub(crate) struct SnapshotArgs {
    /// The image, directory, device or address (unix:PATH, tcp:HOST:PORT) that is served with
    /// --overlay
    #[arg(value_name = "EXPORT")]
    export: String,
    /// File of the new overlay [default: the overlay's name and a number]
    #[arg(value_name = "NEW")]
    new: Option<PathBuf>,
    #[command(flatten)]
    form: JsonArgs,
}

impl SnapshotArgs {
    pub(crate) fn run(self) -> Result<Outcome> {
        let taken = live::snapshot(&self.export, self.new.as_deref(), PATIENCE);
        let taken = taken.map_err(anyhow::Error::msg)?;
        self.form.report(&taken, Snapshot::text)
    }
}

#[derive(clap::Args)]
pub(crate) struct ResizeArgs {
    /// The image, directory, device or address that is served with --overlay; or an overlay
    #[arg(value_name = "EXPORT|OVERLAY")]
    name: String,
    /// Size of the device, at least its present one
    #[arg(value_name = "SIZE", value_parser = quantity::size)]
    size: u64,
    #[command(flatten)]
    base: BaseArgs,
    #[command(flatten)]
    form: JsonArgs,
}

impl ResizeArgs {
    pub(crate) fn run(self) -> Result<Outcome> {
        let path = Path::new(&self.name);
        let resized = match tools::is_overlay_file(path)? {
            true => {
                let base = self.base.identity()?;
                Resized {
                    size_bytes: self.size,
                    former_bytes: tools::grow(path, base.as_ref(), self.size)?,
                }
            }
            false => {
                let resized = live::resize(&self.name, self.size, PATIENCE);
                resized.map_err(anyhow::Error::msg)?
            }
        };
        self.form
            .report(&resized, |resized| resized.text(&self.name))
    }
}

/// Time for a server to make all writes before a snapshot durable.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(clap::Args)]
pub(crate) struct CommitArgs {
    #[command(flatten)]
    open: OpenArgs,
    /// Overlays, the lowest first; of layers that stand on one another the uppermost will do
    #[arg(required = true, value_name = "OVERLAY")]
    overlays: Vec<PathBuf>,
    /// Compression level of the frames that are compressed again
    #[arg(long, value_name = "N")]
    level: Option<i32>,
    #[command(flatten)]
    seal: SealArgs,
    /// Public key (`age1...`) of a reader: only the named readers can open the new image; may be
    /// given again
    #[arg(long, value_name = "KEY")]
    recipient: Vec<String>,
    /// File whose first line is a passphrase that opens the new image
    #[arg(long, value_name = "FILE")]
    new_passphrase_file: Option<PathBuf>,
    #[command(flatten)]
    time: TimeArgs,
    #[command(flatten)]
    output: OutputArgs,
}

impl CommitArgs {
    pub(crate) fn run(self) -> Result<Outcome> {
        let began = Instant::now();
        let top = uppermost(&self.overlays)?.context("name an overlay")?;
        let seal = self.seal.signer()?;
        let readers = Readers::named(&self.recipient, self.new_passphrase_file.as_deref())?;
        // In-flight frames get a quarter.
        let on_their_way = self.open.memory / 4;
        let memory_bytes = self.open.memory - on_their_way;
        let device = self.open.device_of(&self.open.image, memory_bytes)?;
        let index = device.index();
        let cipher = index.lock().map(|lock| lock.cipher());
        let lock = readers
            .map(|it| it.locker(cipher.unwrap_or_else(Cipher::fastest)))
            .transpose()?;
        let overlay = open_to_read(device.clone(), top)?;
        let held_bytes = on_their_way + index.memory_bytes().to_u64();
        let limits = self.time.limits(held_bytes);
        let options = Options::zstd(self.level, self.open.engines.count(), limits);
        let target = self.output.target();
        let guard = Guard { seal, lock };
        let report = watched(Some(index.raw_bytes()), "committing", |on_bytes| {
            let image = device.image();
            commit(image, index, &overlay, target, &options, guard, on_bytes)
        })?;
        let timed = Timed::since(began, None, report);
        self.output.report(&timed, Committed::text)
    }
}

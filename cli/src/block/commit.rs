//! `sidecore block commit`.

use super::common::{OpenArgs, TimeArgs, target, written};
use crate::Outcome;
use crate::output::Timed;
use anyhow::{Context, Result};
use sidecore_block::codec::Tune;
use sidecore_block::format::Format;
use sidecore_block::format::lock::Cipher;
use sidecore_block::overlay::{open_to_read, uppermost};
use sidecore_block::pack::{FRAME_BYTES, Guard, Limits, Options, Thin, commit};
use sidecore_block::secret::Readers;
use sidecore_block::trust::signer;
use sidecore_sys::width::ToU64;
use sidecore_terminal::progress::watched;
use std::path::PathBuf;
use std::time::Instant;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    open: OpenArgs,
    /// Overlays, the lowest first; of layers that stand on one another the uppermost will do
    #[arg(required = true, value_name = "OVERLAY")]
    overlays: Vec<PathBuf>,
    /// Image to write
    #[arg(short, long, value_name = "IMAGE")]
    output: PathBuf,
    /// Compression level of the frames that are compressed again
    #[arg(long, value_name = "N")]
    level: Option<i32>,
    /// Have the new image carry a hash tree
    #[arg(long)]
    tree: bool,
    /// Sign its root with this private Ed25519 key in PEM; may be given again; implies --tree
    #[arg(long, value_name = "KEY")]
    sign: Vec<PathBuf>,
    /// Public key (`age1...`) of a reader: only the named readers can open the new image; may be
    /// given again
    #[arg(long, value_name = "KEY")]
    recipient: Vec<String>,
    /// File whose first line is a passphrase that opens the new image
    #[arg(long, value_name = "FILE")]
    new_passphrase_file: Option<PathBuf>,
    #[command(flatten)]
    time: TimeArgs,
    /// Refuse when the image exists already
    #[arg(long, conflicts_with = "force")]
    no_clobber: bool,
    /// Write straight onto the output though it is no regular file (a block device)
    #[arg(long)]
    force: bool,
    /// Report in JSON on standard output
    #[arg(long)]
    json: bool,
}

impl Args {
    pub(crate) fn run(self) -> Result<Outcome> {
        let began = Instant::now();
        let top = uppermost(&self.overlays)?.context("name an overlay")?;
        let seal = (self.tree || !self.sign.is_empty()).then(|| signer(&self.sign));
        let seal = seal.transpose()?;
        let is_named = !self.recipient.is_empty() || self.new_passphrase_file.is_some();
        let readers =
            is_named.then(|| Readers::of(&self.recipient, self.new_passphrase_file.as_deref()));
        let readers = readers.transpose()?;
        // In-flight frames get a quarter.
        let on_their_way = self.open.memory / 4;
        let memory_bytes = self.open.memory - on_their_way;
        let device = self.open.device_of(&self.open.image, memory_bytes)?;
        let index = device.index();
        let cipher = index
            .lock()
            .map_or_else(Cipher::fastest, |lock| lock.cipher());
        let lock = readers.map(|it| it.locker(cipher)).transpose()?;
        let overlay = open_to_read(device.clone(), top)?;
        let options = Options {
            format: Format::Zstd,
            frame_bytes: FRAME_BYTES,
            level: self.level,
            tune: Tune::Speed,
            cdc: false,
            engines: self.open.engines.count(),
            thin: Thin::Auto,
            limits: Limits {
                memory_bytes: on_their_way + index.memory_bytes().to_u64(),
                deadline: self.time.deadline(),
            },
        };
        let target = target(&self.output, self.no_clobber, self.force);
        let guard = Guard { seal, lock };
        let report = watched(Some(index.raw_bytes()), "committing", |on_bytes| {
            let image = device.image();
            commit(image, index, &overlay, target, &options, guard, on_bytes)
        })?;
        let timed = Timed {
            report,
            engines: None,
            seconds: began.elapsed().as_secs_f64(),
        };
        written(&self.output, self.json, &timed, |committed, seconds| {
            committed.text(&self.output, seconds)
        })
    }
}

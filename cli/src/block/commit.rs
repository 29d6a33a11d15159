//! `sidecore block commit`.

use super::common::{OpenArgs, open_device_within};
use crate::{Outcome, output};
use anyhow::{Context, Result};
use sidecore_block::codec::Tune;
use sidecore_block::format::Format;
use sidecore_block::format::lock::{Cipher, Locker};
use sidecore_block::overlay::{open_to_read, tools};
use sidecore_block::pack::{Committed, FRAME_BYTES, Guard, Limits, Options, Thin, commit};
use sidecore_block::secret::Readers;
use sidecore_block::trust::signer;
use sidecore_sys::text::bytes;
use sidecore_terminal::progress::{Shape, bar};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Arguments of `block commit`.
#[derive(clap::Args)]
#[command(after_help = "\
Frames that no layer has written to are copied as they are. The new image has the format and the \
frames of the old one where that is zstd or LZ4 as Sidecore packs them, and is packed anew as zstd \
otherwise. The overlays are left as they are.

Of an encrypted image the new one is encrypted, under another key: for those who can read the old \
one, or for those that --recipient and --new-passphrase-file name. These encrypt the contents of \
another image, too.")]
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
    time: super::common::TimeArgs,
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
    /// Runs the command.
    pub(crate) fn run(self) -> Result<Outcome> {
        let began = Instant::now();
        let top = check_chain(&self.overlays)?;
        let seal = match self.tree || !self.sign.is_empty() {
            true => Some(signer(&self.sign)?),
            false => None,
        };
        let readers = self.readers()?;
        // In-flight frames get a quarter.
        let on_their_way = self.open.memory / 4;
        let device = open_device_within(&self.open, self.open.memory - on_their_way)?;
        let cipher = device.index().lock().map(|lock| lock.cipher());
        let cipher = cipher.unwrap_or_else(Cipher::fastest);
        let lock: Option<Locker> = readers.map(|it| it.locker(cipher)).transpose()?;
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
                memory_bytes: on_their_way + device.index().memory_bytes() as u64,
                deadline: self.time.deadline(),
            },
        };
        let index = device.index();
        let bar = bar(Shape::Bytes, index.raw_bytes());
        bar.set_message("committing");
        let target = super::common::target(&self.output, self.no_clobber, self.force);
        let image = device.image();
        let committed = commit(
            image,
            index,
            &overlay,
            target,
            &options,
            Guard { seal, lock },
            &mut |done| bar.set_position(done),
        );
        bar.finish_and_clear();
        let committed = committed?;
        let seconds = began.elapsed().as_secs_f64();
        if self.json {
            output::json(&Json { committed, seconds })?;
        } else if self.output.as_os_str() != "-" {
            output::line(&format!(
                "{}: {} in {} frames, {} of them copied, {} stored as {} in {seconds:.1} s",
                self.output.display(),
                bytes(committed.raw_bytes),
                committed.frames,
                committed.copied_frames,
                bytes(committed.stored_bytes),
                committed.format,
            ))?;
            if let Some(root) = &committed.root_hash {
                output::line(&format!("root hash {root}"))?;
            }
        }
        Ok(Outcome::Done)
    }
}

impl Args {
    /// Readers of the new image; `None` where none are named.
    fn readers(&self) -> Result<Option<Readers>> {
        if self.recipient.is_empty() && self.new_passphrase_file.is_none() {
            return Ok(None);
        }
        let mut readers = Readers::default();
        for recipient in &self.recipient {
            readers.add_recipient(recipient)?;
        }
        if let Some(path) = &self.new_passphrase_file {
            readers.add_passphrase(path)?;
        }
        Ok(Some(readers))
    }
}

/// The uppermost of these overlays, each of which stands on the one before.
fn check_chain(overlays: &[PathBuf]) -> Result<&Path> {
    for pair in overlays.windows(2) {
        let below = tools::describe(&pair[1])?.parent;
        let same = below.is_some_and(|below| {
            let paths = (below.canonicalize(), pair[0].canonicalize());
            matches!(paths, (Ok(one), Ok(other)) if one == other)
        });
        anyhow::ensure!(
            same,
            "{} does not stand on {}; name overlays from the lowest to the uppermost",
            pair[1].display(),
            pair[0].display()
        );
    }
    overlays
        .last()
        .map(PathBuf::as_path)
        .context("name an overlay")
}

#[derive(serde::Serialize)]
struct Json {
    #[serde(flatten)]
    committed: Committed,
    seconds: f64,
}

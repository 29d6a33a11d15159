//! `sidecore block clone`: of an overlay, or a first one of an image.

use crate::{Outcome, output};
use anyhow::{Context, Result};
use sidecore_block::overlay::grain;
use sidecore_block::overlay::identity::Identity;
use sidecore_block::overlay::tools::{self, CloneKind, clone};
use sidecore_terminal::quantity;
use std::path::{Path, PathBuf};

/// Arguments of `block clone`.
#[derive(clap::Args)]
#[command(after_help = "\
Of an image NEW is an overlay that holds nothing yet. Where the file system shares blocks (XFS, \
btrfs) the clone is a copy, and both go on. Elsewhere it is a layer above OVERLAY, which \
takes no more writes from then on: clone it again to go on with it.

An overlay on an encrypted image is encrypted, too: its clone takes --base and the image's key.")]
pub(crate) struct Args {
    /// Overlay to clone, which no process may have open to write; or an image
    overlay: PathBuf,
    #[command(flatten)]
    access: super::image::AccessArgs,
    /// The clone: a file that is not there yet
    #[arg(value_name = "NEW")]
    new: PathBuf,
    /// Image that OVERLAY stands on: needed where that is encrypted, with --identity or
    /// --passphrase-file
    #[arg(long, value_name = "IMAGE")]
    base: Option<PathBuf>,
    /// Make a layer also where blocks could be shared
    #[arg(long)]
    layer: bool,
    /// Grain of a first overlay of an image: a power of two from 4KiB to 64KiB [default: 4KiB, and
    /// more for devices of more than 1 TiB]
    #[arg(long, value_name = "SIZE", value_parser = quantity::size)]
    grain: Option<u64>,
    #[command(flatten)]
    memory: super::common::MemoryArgs,
    /// Report in JSON on standard output
    #[arg(long)]
    json: bool,
}

impl Args {
    /// Runs the command.
    pub(crate) fn run(self) -> Result<Outcome> {
        let kind = match tools::is_overlay_file(&self.overlay)? {
            true => {
                let base = self.base.as_deref().map(|base| self.identity(base));
                let base = base.transpose()?;
                clone(&self.overlay, &self.new, base.as_ref(), !self.layer)?
            }
            false => {
                let identity = self.identity(&self.overlay)?;
                let grain = grain(self.grain, identity.size_bytes);
                let name = super::image::name(&self.overlay);
                tools::create(&self.new, &identity, grain, &name)?;
                CloneKind::New
            }
        };
        if self.json {
            output::json(&Json { kind })?;
            return Ok(Outcome::Done);
        }
        let (overlay, new) = (self.overlay.display(), self.new.display());
        output::line(&match kind {
            CloneKind::New => format!("{new}: an overlay on {overlay}, with nothing in it"),
            CloneKind::Reflink => format!("{new}: a copy that shares blocks with {overlay}"),
            CloneKind::Layer => {
                format!("{new}: a layer above {overlay}, which takes no more writes")
            }
        })?;
        Ok(Outcome::Done)
    }
}

impl Args {
    fn identity(&self, image: &Path) -> Result<Identity> {
        let access = self.access.access()?;
        let open = |bytes| access.open_whole(image, bytes);
        let opened = self.memory.open(open)?;
        let identity = Identity::of(&opened.index, &opened.image);
        identity.context("cannot read the image")
    }
}

#[derive(serde::Serialize)]
struct Json {
    kind: CloneKind,
}

//! `sidecore block info` and `diff` describe images, `list` and `status` this machine's live
//! exports.
//!
//! Must stay true: none changes anything, and a server that hangs costs a bounded time.

use super::common::{AccessArgs, MemoryArgs, OpenArgs};
use crate::output::JsonArgs;
use crate::{Outcome, output};
use anyhow::Result;
use serde_json::json;
use sidecore_block::overlay::{describe, tools};
use sidecore_block::pack::{Differences, ImageInfo, compare, sides};
use sidecore_export::live;
use sidecore_terminal::progress::watched;
use std::path::{Path, PathBuf};
use std::time::Duration;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Image to look at: a file, a URL, or `-`; or an overlay
    #[arg(value_name = "IMAGE")]
    image: PathBuf,
    #[command(flatten)]
    access: AccessArgs,
    #[command(flatten)]
    memory: MemoryArgs,
    #[command(flatten)]
    form: JsonArgs,
}

impl Args {
    pub(crate) fn run(self) -> Result<Outcome> {
        let has_name = self.image.as_os_str() != "-";
        if has_name && tools::is_overlay_file(&self.image)? {
            let overlay = describe(&self.image)?;
            return self.form.report(&overlay.json(), |_| overlay.text());
        }
        let access = self.access.access()?;
        let index = access.open_to_look(&self.image, self.memory.bytes)?.index;
        self.form.report(&ImageInfo::of(&index), |info| {
            info.text(&index, &access.keys_valid(&index))
        })
    }
}

#[derive(clap::Args)]
pub(crate) struct DiffArgs {
    #[command(flatten)]
    open: OpenArgs,
    /// The other: an image, or an overlay on the first
    #[arg(value_name = "OTHER")]
    other: PathBuf,
    /// Compare overlays: the image that both stand on
    #[arg(long, value_name = "IMAGE")]
    base: Option<PathBuf>,
    #[command(flatten)]
    form: JsonArgs,
}

impl DiffArgs {
    pub(crate) fn run(self) -> Result<Outcome> {
        let paths = [self.open.image.as_path(), self.other.as_path()];
        let open = |path: &Path| self.open.device_of(path, self.open.memory);
        let ([one, two], share_base) = sides(paths, self.base.as_deref(), open)?;
        let found = watched(Some(one.size_bytes()), "comparing", |on_bytes| {
            compare(&one, &two, share_base, on_bytes)
        })?;
        self.form.report(&found, Differences::text)
    }
}

#[derive(clap::Args)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    form: JsonArgs,
}

#[derive(clap::Args)]
pub(crate) struct StatusArgs {
    /// The image, directory, device or address (unix:PATH, tcp:HOST:PORT) to describe
    #[arg(value_name = "IMAGE|DIR|DEVICE|ADDRESS")]
    name: Option<String>,
    #[command(flatten)]
    form: JsonArgs,
}

impl ListArgs {
    pub(crate) fn run(self) -> Result<Outcome> {
        let exports = live::list(PATIENCE);
        if self.form.json {
            output::json(&json!({ "exports": exports }))?;
        } else if exports.is_empty() {
            output::note!("nothing is mounted, attached or served");
        } else {
            output::show(&live::table(&exports).into())?;
        }
        Ok(Outcome::Done)
    }
}

impl StatusArgs {
    pub(crate) fn run(self) -> Result<Outcome> {
        let mut exports = live::list(PATIENCE);
        if let Some(name) = &self.name {
            exports.retain(|export| export.is(name));
            if exports.is_empty() {
                output::note!(
                    "sidecore: no server that answers serves {name}; `sidecore block list` lists \
                     what is served"
                );
            }
        }
        let is_found = self.name.is_none() || !exports.is_empty();
        self.form.report(&json!({ "exports": exports }), |_| {
            live::descriptions(&exports)
        })?;
        Ok(Outcome::of(is_found))
    }
}

/// Time for all silent servers together.
const PATIENCE: Duration = Duration::from_millis(500);

//! What the commands that read and write whole images share.

use crate::output;
use anyhow::{Context, Result};
use indicatif::ProgressBar;
use sidecore_block::format::Index;
use sidecore_block::pack::{Existing, Target};
use std::fs::File;
use std::path::Path;

/// How many engines work on frames.
#[derive(clap::Args)]
pub(super) struct Engines {
    /// How many engines work side by side; as many as there are cores unless given
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    engines: Option<u16>,
}

impl Engines {
    /// The number asked for, or that of the cores that this process may use.
    pub(super) fn count(&self) -> usize {
        match self.engines {
            Some(engines) => engines.into(),
            None => std::thread::available_parallelism().map_or(1, usize::from),
        }
    }
}

/// Where `-o` points.
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

/// Opens an image and reads its tables.
pub(super) fn open_index(path: &Path) -> Result<Index> {
    let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    Index::open(&file).with_context(|| path.display().to_string())
}

/// A progress bar over an image's contents.
pub(super) fn image_progress(path: &Path, doing: &'static str) -> Result<ProgressBar> {
    let bar = output::byte_progress(open_index(path)?.raw_bytes());
    bar.set_message(doing);
    Ok(bar)
}

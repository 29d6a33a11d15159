//! Arguments and helpers shared by the commands that read and write whole images.

use crate::{output, size};
use anyhow::{Context, Result};
use indicatif::ProgressBar;
use sidecore_block::device::{Device, DeviceConfig};
use sidecore_block::format::Index;
use sidecore_block::pack::{Existing, Target};
use sidecore_offload::{ENGINES_MAX, Pool, PoolConfig};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

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
    /// The number asked for, or that of the cores that this process may use.
    pub(crate) fn count(self) -> usize {
        match self.engines {
            Some(engines) => engines.into(),
            None => std::thread::available_parallelism()
                .map_or(1, usize::from)
                .min(ENGINES_MAX),
        }
    }
}

/// The image, and the resources for reading it.
#[derive(clap::Args, Clone)]
pub(crate) struct OpenArgs {
    /// The image
    pub(crate) image: PathBuf,
    #[command(flatten)]
    pub(crate) engines: Engines,
    /// Upper bound of the memory held for it: index, cache of inflated frames, engines, and pages
    /// of the image that are mapped in
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "128MiB")]
    pub(crate) memory: u64,
    /// Take the file's bytes as they are, whatever they look like
    #[arg(long)]
    pub(crate) raw: bool,
}

/// Opens an image for reading, and starts the engines that inflate it.
pub(crate) fn open_device(args: &OpenArgs) -> Result<Arc<Device>> {
    let image = args.image.display();
    let file = File::open(&args.image).with_context(|| format!("cannot open {image}"))?;
    let engines = args.engines.count();
    let pool = Pool::start(PoolConfig {
        engines,
        ..PoolConfig::default()
    })?;
    let config = DeviceConfig {
        memory_bytes: args.memory,
        ..DeviceConfig::default()
    };
    let index = if args.raw {
        Index::open_raw(&file)
    } else {
        Index::open(&file)
    };
    let failed = || format!("cannot open {image}");
    let index = index.with_context(failed)?;
    Device::open_indexed(file, index, Arc::new(pool), config).with_context(failed)
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

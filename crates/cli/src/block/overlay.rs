//! Opening an image with an overlay above it.
//!
//! Why here: `serve`, `mount`, `attach`, `export` and others take the same two options.
//! Must stay true: an overlay is opened after its image was accepted, and never made for an image
//! that cannot be opened.

use super::common::{OpenArgs, open_device};
use crate::size;
use anyhow::{Context, Result};
use sidecore_block::device::Device;
use sidecore_block::overlay::identity::Identity;
use sidecore_block::overlay::{Overlay, tools};
use sidecore_block::source::BlockSource;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Where writes go.
#[derive(clap::Args, Clone)]
pub(crate) struct OverlayArgs {
    /// Take writes, which go to this overlay; made where it is not there
    #[arg(long, value_name = "FILE")]
    overlay: Option<PathBuf>,
    /// Bytes that are copied where a part of them is written, in an overlay that is made: a power
    /// of two from 4KiB to 64KiB [default: 4KiB, and more for devices of more than 1 TiB]
    #[arg(long, value_name = "SIZE", value_parser = size::parse, requires = "overlay")]
    grain: Option<u64>,
}

/// A device, with or without an overlay.
pub(crate) struct Opened {
    pub(crate) source: Arc<dyn BlockSource>,
    overlay: Option<Arc<Overlay>>,
}

impl OverlayArgs {
    /// Opens the image, and the overlay to be written where one is named.
    pub(crate) fn open(&self, args: &OpenArgs) -> Result<Opened> {
        let device = open_device(args)?;
        let Some(path) = &self.overlay else {
            return Ok(Opened {
                source: device,
                overlay: None,
            });
        };
        let identity = identity(&device)?;
        let is_new = !path.exists();
        if is_new {
            let grain = match self.grain {
                Some(grain) => u32::try_from(grain).unwrap_or(u32::MAX),
                None => tools::grain_bytes_for(identity.size_bytes),
            };
            tools::create(path, &identity, grain, &super::far::name(&args.image))?;
        }
        let opened = tools::open(path, device, &identity, true);
        if opened.is_err() && is_new {
            // Nothing was written to it.
            let _ = std::fs::remove_file(path);
        }
        let overlay = Arc::new(opened?);
        Ok(Opened {
            source: overlay.clone(),
            overlay: Some(overlay),
        })
    }
}

impl Opened {
    /// True where writes are taken.
    pub(crate) fn is_writable(&self) -> bool {
        self.overlay.is_some()
    }

    /// Leaves the overlay so that all is durable. Call it when nobody writes any more.
    pub(crate) fn close(&self) -> Result<()> {
        match &self.overlay {
            Some(overlay) => overlay.close().context("cannot close the overlay in order"),
            None => Ok(()),
        }
    }
}

/// An image with an overlay that is only read.
pub(crate) fn open_to_read(device: Arc<Device>, path: &Path) -> Result<Overlay> {
    let identity = identity(&device)?;
    Ok(tools::open(path, device, &identity, false)?)
}

fn identity(device: &Device) -> Result<Identity> {
    let identity = Identity::of(device.index(), device.image());
    identity.context("cannot read the image")
}

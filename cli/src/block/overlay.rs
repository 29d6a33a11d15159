//! Opening an image with an overlay above it.
//!
//! Why here: `serve`, `mount`, `attach`, `export` and others take the same two options.
//! Must stay true: an overlay is opened after its image was accepted, and never made for an image
//! that cannot be opened.

use super::common::{OpenArgs, open_device};
use super::image::make_absolute;
use crate::size;
use anyhow::{Context, Result};
use sidecore_block::device::Device;
use sidecore_block::overlay::identity::Identity;
use sidecore_block::overlay::{Overlay, OverlayError, tools};
use sidecore_block::source::BlockSource;
use sidecore_sys::folder::remove_named;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

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
    /// Makes a relative path absolute, for a server that leaves its directory.
    pub(crate) fn make_absolute(&mut self) -> Result<()> {
        self.overlay.as_mut().map_or(Ok(()), make_absolute)
    }

    /// The overlay's file.
    pub(crate) fn path(&self) -> Option<&Path> {
        self.overlay.as_deref()
    }

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
            tools::create(path, &identity, grain, &super::image::name(&args.image))?;
        }
        let opened = open_soon(path, &device, &identity);
        if opened.is_err() && is_new {
            // Nothing was written to it.
            let _ = remove_named(path);
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

    /// Closes the overlay durably. Call it after the last write, and end the process after it: the
    /// image and its engines are left as they are, since a thread may hang in a source that does
    /// not answer.
    pub(crate) fn close(self) -> Result<()> {
        let closed = match &self.overlay {
            Some(overlay) => overlay.close().context("cannot close the overlay in order"),
            None => Ok(()),
        };
        std::mem::forget(self);
        closed
    }
}

/// Opens an overlay to be written; waits a moment for a server that is about to end.
fn open_soon(
    path: &Path,
    device: &Arc<Device>,
    identity: &Identity,
) -> Result<Overlay, OverlayError> {
    let begun = Instant::now();
    loop {
        let base: Arc<dyn BlockSource> = device.clone();
        let opened = tools::open(path, base, identity, true);
        let is_in_use = |error: &OverlayError| match error {
            OverlayError::File { source, .. } => matches!(**source, OverlayError::InUse),
            error => matches!(error, OverlayError::InUse),
        };
        if begun.elapsed() > ENDING_MAX || !opened.as_ref().is_err_and(is_in_use) {
            return opened;
        }
        std::thread::sleep(Duration::from_millis(20));
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

/// Time for an idle server to close its overlay.
const ENDING_MAX: Duration = Duration::from_secs(2);

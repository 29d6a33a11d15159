//! Opening an image with an overlay above it.
//!
//! Why here: `serve`, `mount`, `attach`, `export` and others take the same two options.

use super::common::{OpenArgs, make_absolute};
use crate::Outcome;
use anyhow::{Context, Result};
use sidecore_block::meter::Meter;
use sidecore_block::overlay::{Overlay, open_to_write};
use sidecore_block::source::BlockSource;
use sidecore_export::live;
use sidecore_remote::access::name;
use sidecore_status::Status;
use sidecore_terminal::quantity;
use std::path::{Path, PathBuf};
use std::sync::Arc;

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

/// A device, with or without an overlay.
pub(crate) struct Opened {
    pub(crate) source: Arc<dyn BlockSource>,
    meter: Arc<Meter>,
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
        let device = args.device()?;
        let overlay = self.overlay.as_ref().map(|path| {
            let name = name(&args.image);
            open_to_write(&device, path, self.grain, self.size, &name).map(Arc::new)
        });
        let overlay = overlay.transpose()?;
        let meter = Meter::new(device, overlay.clone());
        Ok(Opened {
            source: Arc::clone(&meter) as _,
            meter,
            overlay,
        })
    }
}

impl Opened {
    /// The status of its server, which serves `image` in some way at some places.
    pub(crate) fn status(&self, image: &str, way: &'static str, places: &[String]) -> Arc<Status> {
        let meter = Arc::clone(&self.meter);
        let figures = move || serde_json::to_value(meter.figures()).unwrap_or_default();
        let status = live::status(image, way, places, figures);
        match self.overlay.clone() {
            Some(overlay) => live::with_snapshots(status, move |new| {
                overlay.snapshot(new).map_err(|error| error.to_string())
            }),
            None => status,
        }
    }

    /// Serves it by `work`, and closes the overlay durably behind the last write, also where
    /// serving failed. End the process after it: the image and its engines are left as they are,
    /// since a thread may hang in a source that does not answer.
    pub(crate) fn serve<L>(self, work: impl FnOnce(&Self) -> Result<L>) -> Result<Outcome> {
        let served = work(&self);
        // Acknowledged writes must become durable, whatever else failed.
        let closed = match &self.overlay {
            Some(overlay) => overlay.close().context("cannot close the overlay in order"),
            None => Ok(()),
        };
        std::mem::forget(self);
        // A server is listed until all is closed.
        let live = served?;
        closed?;
        drop(live);
        Ok(Outcome::Done)
    }
}

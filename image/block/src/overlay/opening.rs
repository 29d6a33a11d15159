//! Opening an overlay above an open device, made where it is not there.
//!
//! Must stay true: an overlay is opened after its image was accepted, and never made for an image
//! that cannot be opened.

use super::identity::Identity;
use super::{Overlay, OverlayError, tools};
use crate::device::Device;
use crate::source::BlockSource;
use sidecore_sys::folder::remove_named;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time for an idle server to close its overlay.
const ENDING_MAX: Duration = Duration::from_secs(2);
/// Time between two tries to open it.
const POLL: Duration = Duration::from_millis(20);

/// An image with an overlay that is only read.
///
/// # Errors
/// [`OverlayError`], also where the image cannot be read.
pub fn open_to_read(device: Arc<Device>, path: &Path) -> Result<Overlay, OverlayError> {
    let identity = identity(&device)?;
    tools::open(path, device, &identity, false)
}

/// An image with an overlay that takes writes, made in grains of `grain_bytes` where it is not
/// there; `name` is the image's. A new overlay may be larger than its image: the device then has
/// `size_bytes`, zeros behind the image's end.
///
/// # Errors
/// [`OverlayError`], also where the image cannot be read; a new file is removed then.
/// [`OverlayError::Size`] where it would be smaller than the image, or is there already with
/// another size.
pub fn open_to_write(
    device: &Arc<Device>,
    path: &Path,
    grain_bytes: Option<u64>,
    size_bytes: Option<u64>,
    name: &str,
) -> Result<Overlay, OverlayError> {
    let identity = identity(device)?;
    let is_new = !path.exists();
    if is_new {
        let size = size_bytes.unwrap_or(identity.size_bytes);
        tools::create_sized(path, &identity, (size, grain(grain_bytes, size)), name)?;
    } else if let Some(wanted) = size_bytes {
        let size_bytes = tools::describe(path)?.size_bytes;
        if size_bytes != wanted {
            return Err(OverlayError::Size { wanted, size_bytes }.of(path));
        }
    }
    let opened = open_soon(path, device, &identity);
    if let Err(error) = &opened
        && is_new
        && !is_in_use(error)
    {
        // Nothing was written to it. Of a server that began at the same moment and has the file
        // open by now, it would take the writes.
        let _ = remove_named(path);
    }
    opened
}

/// The grain of a new overlay on a device of this size. One that no overlay can have is refused
/// when the overlay is made.
#[must_use]
pub fn grain(wanted_bytes: Option<u64>, size_bytes: u64) -> u32 {
    match wanted_bytes {
        Some(wanted) => u32::try_from(wanted).unwrap_or(u32::MAX),
        None => tools::grain_bytes_for(size_bytes),
    }
}

fn identity(device: &Device) -> Result<Identity, OverlayError> {
    Identity::of(device.index(), device.image()).map_err(OverlayError::read)
}

/// True if another process has the overlay open.
fn is_in_use(error: &OverlayError) -> bool {
    match error {
        OverlayError::File { source, .. } => matches!(**source, OverlayError::InUse),
        error => matches!(error, OverlayError::InUse),
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
        if begun.elapsed() > ENDING_MAX || !opened.as_ref().is_err_and(is_in_use) {
            return opened;
        }
        std::thread::sleep(POLL);
    }
}

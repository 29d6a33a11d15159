//! Opening an overlay above an open device, made where it is not there; and what its file says.
//!
//! Must stay true: an overlay is opened after its image was accepted, and never made for an image
//! that cannot be opened.

use super::format::Parent;
use super::identity::Identity;
use super::load;
use super::store::FileStore;
use super::tools::{LOWER_MAP_BYTES, access};
use super::{Overlay, OverlayError, tools};
use crate::device::Device;
use crate::source::BlockSource;
use sidecore_bare::text::bytes;
use sidecore_sys::folder::{open_named, remove_named};
use sidecore_terminal::Text;
use std::path::{Path, PathBuf};
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
        let size_bytes = describe(path)?.size_bytes;
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

/// Description of an overlay's file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Description {
    /// Size of the device in bytes.
    pub size_bytes: u64,
    /// Bytes of a grain.
    pub grain_bytes: u32,
    /// Name of the overlay, as hexadecimal digits.
    pub id: String,
    /// True when it is frozen.
    pub frozen: bool,
    /// Path of the overlay below, where there is one.
    pub parent: Option<PathBuf>,
    /// Name of the image at the bottom.
    pub base_name: String,
    /// Identity of that image, as hexadecimal digits.
    pub base: String,
    /// True while a process has it open to write.
    pub in_use: bool,
    /// True if its grains are encrypted, as its image is.
    pub encrypted: bool,
    /// Bytes of the file that hold grains and the map; `None` if it is in use or encrypted.
    pub stored_bytes: Option<u64>,
    /// Bytes of changes that a crash has left in the log; `None` if it is in use or encrypted.
    pub log_bytes: Option<u64>,
}

impl Description {
    /// The same as an object of JSON.
    #[must_use]
    pub fn json(&self) -> serde_json::Value {
        serde_json::json!({
            "format": "overlay",
            "raw_bytes": self.size_bytes,
            "stored_bytes": self.stored_bytes,
            "grain_bytes": self.grain_bytes,
            "log_bytes": self.log_bytes,
            "id": self.id,
            "frozen": self.frozen,
            "encrypted": self.encrypted,
            "in_use": self.in_use,
            "parent": self.parent.as_ref().map(|path| path.display().to_string()),
            "base": self.base_name,
            "base_identity": self.base,
        })
    }

    /// The same for people.
    #[must_use]
    pub fn text(&self) -> Text {
        let state = match (self.in_use, self.frozen) {
            (true, _) => "a process has it open",
            (_, true) => "frozen: a clone stands on it",
            _ => "takes writes",
        };
        let mut text = Text::new();
        let grain = bytes(self.grain_bytes.into());
        text.fact("format", format!("overlay in grains of {grain}"));
        let size = self.size_bytes;
        text.fact("contents", format!("{} ({size} bytes)", bytes(size)));
        if let Some(stored) = self.stored_bytes {
            text.fact("stored", format!("{} with its map", bytes(stored)));
        }
        text.fact("state", state);
        if self.encrypted {
            text.fact("encrypted", "with the key of its image");
        }
        if let Some(parent) = &self.parent {
            text.fact("stands on", parent.display().to_string());
        }
        text.fact("image", &self.base_name);
        text
    }
}

/// Describes the overlay at `path`. Reads all of its map unless it is in use or encrypted.
///
/// # Errors
/// [`OverlayError`].
pub fn describe(path: &Path) -> Result<Description, OverlayError> {
    let describe = || {
        let file = open_named(path, access(false), 0).map_err(OverlayError::read)?;
        let again = file.try_clone().map_err(OverlayError::read)?;
        // No lock means that another process writes the file: then only its superblock is read.
        let locked = FileStore::lock(file, false).map_err(OverlayError::read)?;
        let (superblock, _) = load::superblock(&FileStore::unlocked(again))?;
        let (superblock, loaded) = match &locked {
            // The map of a sealed overlay cannot be read without the key.
            Some(store) if superblock.lock.is_none() => {
                let loaded = load::load(store, None, LOWER_MAP_BYTES)?;
                let grain_bytes = u64::from(loaded.superblock.grain_bytes);
                let bytes = (loaded.slots.used() * grain_bytes, loaded.log_used);
                (loaded.superblock, Some(bytes))
            }
            _ => (superblock, None),
        };
        let parent = match superblock.parent {
            Parent::Base => None,
            Parent::Overlay { path: below, .. } => {
                Some(path.parent().unwrap_or(Path::new("")).join(below))
            }
        };
        Ok(Description {
            size_bytes: superblock.size_bytes,
            grain_bytes: superblock.grain_bytes,
            id: crate::trust::digits_of(&superblock.id),
            frozen: superblock.frozen,
            parent,
            base_name: superblock.base_name,
            base: crate::trust::digits_of(&superblock.base),
            encrypted: superblock.lock.is_some(),
            in_use: locked.is_none(),
            stored_bytes: loaded.map(|it| it.0),
            log_bytes: loaded.map(|it| it.1),
        })
    };
    describe().map_err(|error: OverlayError| error.of(path))
}

/// The uppermost of these overlays, the lowest of which is first; `None` where there is none.
///
/// # Errors
/// [`OverlayError::NoChain`] where one does not stand on the one before.
pub fn uppermost(overlays: &[PathBuf]) -> Result<Option<&Path>, OverlayError> {
    for pair in overlays.windows(2) {
        let below = describe(&pair[1])?.parent;
        let is_same = below.is_some_and(|below| {
            let paths = (below.canonicalize(), pair[0].canonicalize());
            matches!(paths, (Ok(one), Ok(other)) if one == other)
        });
        if !is_same {
            let [lower, upper] = [&pair[0], &pair[1]].map(PathBuf::clone);
            return Err(OverlayError::NoChain { lower, upper });
        }
    }
    Ok(overlays.last().map(PathBuf::as_path))
}

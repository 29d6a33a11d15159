//! Overlays: copy-on-write files next to an image that stays unchanged.
//!
//! Top-down:
//!
//! - [`Overlay`] (`chain`): an image and the layers above it, as one device that exports serve;
//!   writes to the same grain take turns.
//! - `layer`: one overlay's file: reads, writes, flushes, snapshots.
//! - `load`: a layer from its file, with what its log holds.
//! - `map` (which grains it has), `slots` (which places of the file are in use; pure).
//! - `seal`: checks of the parts, and the encryption of grains over an encrypted image.
//! - `format`: the bytes (`docs/formats/overlay.md`; pure); [`store`]: the file.
//! - [`identity`]: identifies a layer's base.
//! - [`tools`]: creates, clones and describes overlays.
//!
//! **A write never overwrites bytes that a crash may make current again.** It takes a free slot. A
//! flush appends one checksummed group of changes to the log and makes data and group durable with
//! one `fdatasync`; the slots that were replaced are free after that. A group that a crash has
//! torn, or whose data did not reach the disk, is dropped as a whole when the file is opened: it
//! was never durable. When the log is full, a snapshot of the map is written and the log begins
//! again in its other half.
//!
//! Must stay true: bytes are delivered only after their checksum; after a crash every grain holds
//! what it held at the last flush, or a later write to it as a whole; a full disk fails writes and
//! nothing else; memory is bounded (`map`; `layer::write::PENDING_MAX` changes).

mod chain;
mod enlarged;
mod format;
pub mod identity;
mod layer;
mod load;
mod map;
mod opening;
mod pointers;
mod seal;
mod slots;
pub mod store;
pub mod tools;

#[cfg(test)]
mod tests;

use chain::LAYERS_MAX;
pub use chain::{Changed, Overlay};
pub use format::GRAIN_BYTES_RANGE;
pub use layer::Used;
pub use opening::{Description, describe, grain, open_to_read, open_to_write, uppermost};
pub use sidecore_format::is_overlay;

use format::{Change, SLOTS_AT};
use std::io;
use std::path::PathBuf;

/// Why an overlay cannot be made, opened or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OverlayError {
    /// One file of a chain.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: Box<OverlayError>,
    },
    /// Writes may not be durable, at the end.
    #[error("cannot close the overlay in order: {source}")]
    NotClosed {
        /// The reason.
        source: Box<OverlayError>,
    },
    /// The file is no overlay.
    #[error("it is no overlay; name another file, or one that is not there yet to make one")]
    NotOverlay,
    /// The grain size is not valid.
    #[error(
        "a grain of {grain_bytes} bytes is not possible: it is a power of two from 4KiB to 64KiB"
    )]
    Grain {
        /// Requested size.
        grain_bytes: u32,
    },
    /// The device has too many grains, or no bytes.
    #[error(
        "a device of {size_bytes} bytes does not fit grains of {grain_bytes}, of which it may have \
         {largest} bytes; take a larger --grain"
    )]
    TooLarge {
        /// The device's size.
        size_bytes: u64,
        /// The grain.
        grain_bytes: u32,
        /// The largest device for it.
        largest: u64,
    },
    /// A size that an overlay cannot have.
    #[error(
        "a device of {wanted} bytes is asked for, and it has {size_bytes}; --size is for a new \
         overlay, as large as what it stands on or larger: `sidecore block resize`, or `sidecore \
         block clone --size` for a new one, makes one larger later"
    )]
    Size {
        /// The size asked for.
        wanted: u64,
        /// The size that it has, or what it stands on.
        size_bytes: u64,
    },
    /// A smaller size.
    #[error(
        "it has {size_bytes} bytes and does not become smaller ({wanted}): what lies behind would \
         be lost; copy what you need to a new disk"
    )]
    Smaller {
        /// The size asked for.
        wanted: u64,
        /// The size that it has.
        size_bytes: u64,
    },
    /// Bytes that do not match their checksum, or are not valid.
    #[error(
        "{what} is damaged ({at}); take the file from a backup, or begin a new overlay: nothing of \
         the image itself is lost"
    )]
    Damaged {
        /// The part.
        what: &'static str,
        /// Its number.
        at: u64,
    },
    /// Another process has it open.
    #[error("another process has this overlay open; stop it first, or use a clone made before")]
    InUse,
    /// Another overlay has it as its parent.
    #[error(
        "it takes no more writes, for a clone stands on it; go on with `sidecore block clone` of it"
    )]
    Frozen,
    /// The overlay was made for another image.
    #[error(
        "it was made for another image ({name}); the bytes of both together would mean nothing"
    )]
    WrongBase {
        /// Name of the right one.
        name: String,
    },
    /// The overlay was made for another layer below.
    #[error(
        "{} is not the overlay that this one stands on, or it was written to since",
        path.display()
    )]
    WrongParent {
        /// The layer below.
        path: PathBuf,
    },
    /// No file next to it can be the next layer.
    #[error("it has no free name for an overlay")]
    NoName,
    /// Overlays that were named as if one stood on the other.
    #[error(
        "{} does not stand on {}; name overlays from the lowest to the uppermost",
        upper.display(),
        lower.display()
    )]
    NoChain {
        /// The one that should be below.
        lower: PathBuf,
        /// The one above it.
        upper: PathBuf,
    },
    /// An unencrypted overlay on an encrypted image.
    #[error(
        "it is not encrypted, and its image is: whoever could write the file could have made it \
         up; begin a new overlay, and copy what you trust"
    )]
    NotSealed,
    /// An overlay of an encrypted image whose code is wrong.
    #[error(
        "it was not written with the key of this image, or was changed by somebody without it; \
         name its own image, or take the file from a backup"
    )]
    Forged,
    /// A clone of an overlay on an encrypted image, without the key.
    #[error(
        "it is encrypted, as its image ({name}) is; name that with --base and its key with \
         --identity or --passphrase-file"
    )]
    Locked {
        /// Name of the image.
        name: String,
    },
    /// Too many layers.
    #[error(
        "it has more than {LAYERS_MAX} layers; put them into a new image with `sidecore block \
         commit`"
    )]
    TooManyLayers,
    /// The path of the layer below is too long for the file.
    #[error("the path of the layer below is longer than 1,024 bytes or not UTF-8; move it nearer")]
    LongPath,
    /// The file system is full.
    #[error(
        "no room for the overlay's file, which takes {mib} MiB and what is written ({0}); make \
         room, or keep it on another file system",
        mib = SLOTS_AT.div_ceil(1 << 20)
    )]
    NoSpace(io::Error),
    /// The operating system's error.
    #[error("{what}: {source}")]
    Io {
        /// The operation that failed.
        what: &'static str,
        /// The operating system's error.
        source: io::Error,
    },
    /// A snapshot or another size of an overlay that takes no writes.
    #[error("it takes no writes: there is nothing to take a snapshot of, or to make larger")]
    NotWritable,
    /// A sync failed before; the contents of the file are not known any more.
    #[error("an earlier write failed for good ({0}); open the overlay again")]
    Broken(String),
}

impl OverlayError {
    pub(crate) fn read(source: io::Error) -> Self {
        let what = "cannot read the overlay";
        Self::Io { what, source }
    }

    pub(crate) fn write(source: io::Error) -> Self {
        match source.raw_os_error() {
            Some(libc::ENOSPC | libc::EDQUOT | libc::EFBIG) => Self::NoSpace(source),
            _ => {
                let what = "cannot write the overlay";
                Self::Io { what, source }
            }
        }
    }

    pub(crate) fn of(self, path: &std::path::Path) -> Self {
        match self {
            named @ Self::File { .. } => named,
            source => Self::File {
                path: path.to_owned(),
                source: Box::new(source),
            },
        }
    }
}

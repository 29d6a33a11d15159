//! Compressed images, decompressed by engines: opening, reading, writing and packing them.
//!
//! Top-down, in the order of a read:
//!
//! - [`device`]: maps a read to frames, keeps a bounded cache of decompressed frames, reads ahead,
//!   and chooses the parallelism.
//! - [`overlay`]: copy-on-write layers above an unchanged image, each in a file of its own.
//! - [`image`]: the compressed bytes, of a local file or a remote source.
//! - [`meter`]: counters of a served device, for its server's status.
//! - [`opened`]: a served device with its overlay, until an end in order.
//! - [`pack`]: packing an image, compressed on all engines.
//!
//! Formats, codecs and the trait that exports read ([`source`]) are re-exported from
//! `sidecore-format`; the exports (FUSE, loop, ublk, NBD) are in `sidecore-export`.
//!
//! Source: the user-mode SPE driver of 2007 (a compressed loop device whose 64 KiB blocks were
//! decompressed by SPEs).

pub mod device;
pub mod image;
pub mod meter;
pub mod opened;
pub mod overlay;
pub mod pack;
#[cfg(test)]
mod secret_tests;
#[cfg(test)]
mod trust_tests;

pub use sidecore_format::{self as format, codec, inner, secret, source, trust};

mod tracks {
    //! Names of what a device and its overlay record: `docs/trace.md` explains them.

    use sidecore_trace::Name;
    use sidecore_trace::summary::IDLE;

    /// A read of the device: from the request to the last delivery.
    pub(crate) static READ: Name = Name::new("image", "read", ["offset", "bytes"]);
    /// A frame's bytes were in the cache.
    pub(crate) static HIT: Name = Name::new("image", "cache hit", ["frame", ""]);
    /// A frame's bytes were not, and this reader decompresses them.
    pub(crate) static MISS: Name = Name::new("image", "cache miss", ["frame", ""]);
    /// A read of several frames looked them up.
    pub(crate) static LOOK_UP: Name = Name::new("image", "look up", ["frames", "missing"]);
    /// A reader waits for another one that decompresses the same frame.
    pub(crate) static JOIN: Name = Name::new(IDLE, "wait for a frame", ["frame", ""]);
    /// From the reader, or the read-ahead, to the engine that decompresses the frame.
    pub(crate) static FRAME: Name = Name::new("image", "frame", ["", ""]);
    /// An engine decompresses a frame.
    pub(crate) static DECOMPRESS: Name =
        Name::new("image", "decompress", ["frame", "stored_bytes"]).with_result("valid_bytes");
    /// The compressed bytes are read from the map or the file.
    pub(crate) static GET: Name = Name::new("image", "get", ["stored_bytes", ""]);
    /// They are checked, and decrypted.
    pub(crate) static CHECK: Name = Name::new("image", "check", ["stored_bytes", ""]);
    /// The wanted bytes go to the reader.
    pub(crate) static DELIVER: Name = Name::new("image", "deliver", ["bytes", ""]);
    /// Frames come from the object store.
    pub(crate) static FETCH: Name = Name::new("image", "fetch", ["first_frame", "frames"]);
    /// Bytes are read from an overlay's file.
    pub(crate) static OVERLAY_READ: Name = Name::new("image", "overlay read", ["offset", "bytes"]);
    /// Bytes are written to it.
    pub(crate) static OVERLAY_WRITE: Name =
        Name::new("image", "overlay write", ["offset", "bytes"]);
    /// Earlier writes are made durable.
    pub(crate) static OVERLAY_SYNC: Name = Name::new("image", "overlay sync", ["", ""]);
}

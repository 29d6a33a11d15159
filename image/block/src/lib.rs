//! Compressed images, decompressed by engines: opening, reading, writing and packing them.
//!
//! Top-down, in the order of a read:
//!
//! - [`device`]: maps a read to frames, keeps a bounded cache of decompressed frames, reads ahead,
//!   and chooses the parallelism.
//! - [`overlay`]: copy-on-write layers above an unchanged image, each in a file of its own.
//! - [`image`]: the compressed bytes, of a local file or a remote source.
//! - [`meter`]: counters of a served device, for its server's status.
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
pub mod overlay;
pub mod pack;
#[cfg(test)]
mod secret_tests;
#[cfg(test)]
mod trust_tests;

pub use sidecore_format::{self as format, codec, inner, secret, source, trust};

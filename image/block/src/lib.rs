//! Compressed images, decompressed by engines: what opens, reads, writes and packs them.
//!
//! Top-down, the way a read travels:
//!
//! - [`device`]: maps a read to frames, keeps a bounded cache of decompressed frames, reads ahead,
//!   chooses the grain.
//! - [`overlay`]: writes to an image that stays as it is, in a file of its own.
//! - [`image`]: the compressed bytes, of a local file or a remote source.
//! - [`pack`]: making an image, all engines compressing.
//!
//! Formats, codecs and the trait that exports read ([`source`]) are `sidecore-format`'s, which is
//! passed on here; the exports (FUSE, loop, ublk, NBD) are `sidecore-export`'s.
//!
//! Source: the user-mode SPE driver of 2007 (a compressed loop device whose 64 KiB blocks were
//! decompressed by SPEs).

pub mod device;
pub mod image;
pub mod overlay;
pub mod pack;
#[cfg(test)]
mod secret_tests;
#[cfg(test)]
mod trust_tests;

pub use sidecore_format::{self as format, codec, inner, secret, source, trust};

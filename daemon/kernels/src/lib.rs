#![doc = include_str!("../README.md")]
//!
//! Top-down: [`register`] adds all kernels to a registry; [`hash`] digests, [`codec`] compresses
//! and decompresses (with a file per format), [`aes`] seals and opens, [`color`] converts frames;
//! `table` is the form that their requests share.
//!
//! Must stay true: inputs are untrusted and may change meanwhile, so each item is copied once and
//! only the copy is read. An output is bounded by the room that its row names, and written when it
//! is whole (a frame's: piece by piece). Between pieces of work `table::go_on` is called, the one
//! place where long requests yield. Called on engines, or on a client's own thread: same code, same
//! bytes. No `unsafe`.

pub mod aes;
pub mod codec;
pub mod color;
pub mod hash;
mod table;

pub use table::{ITEM_BYTES_MAX, ItemStatus, REQUEST_BYTES_MAX};

use sidecore_daemon::served::{Registry, RegistryError};

/// Adds the kernels of this crate to a registry.
///
/// # Errors
/// As [`Registry::with`].
pub fn register(registry: Registry) -> Result<Registry, RegistryError> {
    registry
        .with::<hash::Xxh3Of64>()?
        .with::<hash::Xxh3Of128>()?
        .with::<hash::Sha256>()?
        .with::<hash::Blake3>()?
        .with::<hash::Crc32c>()?
        .with::<aes::Seal>()?
        .with::<aes::Open>()?
        .with::<codec::DeflateCompress>()?
        .with::<codec::DeflateDecompress>()?
        .with::<codec::ZstdCompress>()?
        .with::<codec::ZstdDecompress>()?
        .with::<codec::Lz4Compress>()?
        .with::<codec::Lz4Decompress>()?
        .with::<color::YuvToRgb>()?
        .with::<color::RgbToYuv>()
}

//! LZO1X, our own: decompression at several times the usual speed, compression from fast to strong.
//!
//! Why here: the images of 2007 held miniLZO blocks, and cloop's V4.0 with compressor 4 still does.
//! The only well-maintained library is GPL, which this crate cannot link.
//!
//! - [`Inflate`]: the codec's [`Inflater`](super::Inflater): `fast` while the margins allow it,
//!   otherwise `reference`.
//! - [`Deflate`]: the codec's [`Deflater`](super::Deflater), levels 1 to 9: `greedy` up to 3,
//!   `optimal` above.
//! - `emit`: the only place that turns literals and matches into instruction bytes.
//!
//! Must stay true: whatever the bytes, decompression neither panics nor leaves its slices; every
//! stream made here is accepted by liblzo2's `lzo1x_decompress_safe`, with the same bytes. `unsafe`
//! is in `fast` alone.
//!
//! Source: docs/formats/lzo1x.md (its own sources: Linux's Documentation/staging/lzo.rst, and
//! liblzo2 2.10 as a program to compare with). `README.md` in this folder explains the fast loop
//! and its margins. Any thread; no state is shared.

mod deflate;
mod emit;
mod fast;
mod finder;
mod greedy;
mod inflate;
mod optimal;
mod reference;
#[cfg(test)]
mod tests;

pub use deflate::{Deflate, LEVEL_MAX, LEVEL_MIN, bound};

pub(crate) use deflate::LEVEL_DEFAULT;
pub use inflate::Inflate;
pub use reference::{Lzo1xError, inflate as inflate_plainly};

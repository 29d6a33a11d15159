#![doc = include_str!("../README.md")]
//!
//! Top-down: [`Deflater`] makes one block of a stream (`block`); `seam` finds the two places in a
//! block that must change so that another can follow; `bits` reads its bits; [`served`] has the
//! kernels `deflate` and `inflate` that `sidecore daemon` serves.
//!
//! Must stay true: a block's bytes depend only on its input, its level and on being the last one,
//! never on the engine or thread that made it. No `unsafe`, no I/O, no threads outside [`served`].
//! Source: RFC 1951.

mod bits;
mod block;
mod check;
mod seam;
pub mod served;

pub use block::{BLOCK_BYTES, Deflater, LEVEL_MAX, block_bytes_max};
pub use check::CheckKind;

#[cfg(test)]
mod tests;

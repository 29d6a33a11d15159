#![doc = include_str!("../README.md")]
//!
//! Top-down: [`Deflater`] makes one block of a stream (`block`); `seam` finds the two places in a
//! block where it must be changed so that another can follow; `bits` reads its bits; [`served`] are
//! the kernels `deflate` and `inflate` that `sidecore daemon` serves.
//!
//! Must stay true: a block's bytes depend on its input, its level and on being the last one only,
//! never on who made it. No `unsafe`, no I/O, no threads outside [`served`]. Source: RFC 1951.

mod bits;
mod block;
mod check;
mod seam;
pub mod served;

pub use block::{BLOCK_BYTES, Deflater, LEVEL_MAX, block_bytes_max};
pub use check::CheckKind;

#[cfg(test)]
mod tests;

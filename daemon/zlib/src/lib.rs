#![doc = include_str!("../README.md")]
//!
//! Top-down: `deflate`, `inflate`, `whole` (one buffer to another) and `gz` have the functions that
//! programs call; `forward` those of the base library (zlib-rs). `engines` makes blocks, on engines
//! or on the caller; `memory`, `io`, `settings`, `guard` and `foreign` are the base of the others.
//!
//! Must stay true: whatever a program may rely on in zlib's manual holds here. No panic unwinds
//! into the program, nothing is printed, no thread is started. Any thread may call, each stream one
//! at a time, as zlib has it. Source: zlib's manual (zlib.h), RFC 1950, 1951, 1952.

#![allow(unsafe_code, reason = "a C surface")]

mod deflate;
mod engines;
mod foreign;
mod forward;
mod guard;
mod gz;
mod inflate;
mod io;
mod memory;
mod process;
mod whole;

pub use deflate::*;
pub use forward::{
    adler32, adler32_combine, adler32_combine64, adler32_z, crc32, crc32_combine,
    crc32_combine_gen, crc32_combine_gen64, crc32_combine_op, crc32_combine64, crc32_z,
    get_crc_table, zError, zlibCompileFlags, zlibVersion,
};
pub use gz::*;
pub use inflate::*;
pub use process::prctl;
pub use whole::*;

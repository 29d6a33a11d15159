#![doc = include_str!("../README.md")]
//!
//! Top-down: [`Decoder`] goes through frames (`decoder`, `frame`); a block's `literals` are coded
//! by a `huffman` tree, its `sequences` by three `fse` tables; `execute` executes the sequences;
//! `bits` reads backwards, with checks.
//!
//! Must stay true: safe for any input: no panic, no access outside the given slices, time linear in
//! their lengths; a frame that libzstd decodes without a dictionary gives the same bytes. No I/O,
//! no threads, no allocation after [`Decoder::new`].
//! Source: RFC 8878.

mod bits;
mod decoder;
mod error;
mod execute;
pub mod frame;
mod fse;
mod huffman;
mod literals;
mod sequences;

pub use decoder::{Decoder, Progress};
pub use error::Error;

/// True if the fast loops may use BMI2; the standard library caches the result.
#[cfg(target_arch = "x86_64")]
fn has_bmi2() -> bool {
    std::is_x86_feature_detected!("bmi2") && std::is_x86_feature_detected!("bmi1")
}

/// True if copies may also use AVX2's registers.
#[cfg(target_arch = "x86_64")]
fn has_avx2() -> bool {
    has_bmi2() && std::is_x86_feature_detected!("avx2")
}

#![doc = include_str!("../README.md")]
//!
//! Top-down: [`Decoder`] goes through frames (`decoder`, `frame`); a block's `literals` are coded
//! by a `huffman` tree, its `sequences` by three `fse` tables; `execute` carries the sequences out;
//! `bits` reads backwards, carefully.
//!
//! Must stay true: safe against any input: no panic, no access outside the slices given, time
//! linear in their lengths; a frame that libzstd decodes without a dictionary gives the same bytes.
//! No I/O, no threads, no allocation after [`Decoder::new`]. Source: RFC 8878.

mod bits;
mod decoder;
mod error;
mod execute;
pub mod frame;
mod fse;
#[doc(hidden)]
pub mod fuzzing;
mod huffman;
mod literals;
mod sequences;

pub use decoder::{Decoder, Progress};
pub use error::Error;

/// True where the fast loops may use BMI2; the library remembers what the processor said.
#[cfg(target_arch = "x86_64")]
fn has_bmi2() -> bool {
    std::is_x86_feature_detected!("bmi2") && std::is_x86_feature_detected!("bmi1")
}

/// True where copies may take AVX2's registers, too.
#[cfg(target_arch = "x86_64")]
fn has_avx2() -> bool {
    has_bmi2() && std::is_x86_feature_detected!("avx2")
}

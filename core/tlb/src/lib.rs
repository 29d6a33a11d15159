//! Cost of address translation (TLB levels, page walks) to a core's loads and an engine's DMA.
//!
//! Top-down:
//!
//! - `measure`: the measuring part: memory of every page size, chases over it, curves.
//! - [`report`]: the results; [`markdown`], [`terminal`], [`picture`]: the same, for `docs/results`
//!   and for people; [`access`]: the paths to memory and the kinds of pages in it.
//! - [`cpuid`]: the processor's own description of its levels, decoded; nothing measured uses it.
//! - The pure core: [`curve`], [`detect`] (from a curve to levels), `sets` (from knees against
//!   strides to sets and ways), `chain` (the places of a chase's nodes).
//!
//! Must stay true: the machine's settings are as they were when a run has ended, however it ended;
//! nothing is changed at all without a request. No unsafe code. Source: papers/003; docs/tlb.md.

pub mod access;
mod chain;
pub mod cpuid;
pub mod curve;
pub mod detect;
pub mod markdown;
mod measure;
pub mod picture;
pub mod report;
mod sets;
pub mod terminal;

pub use measure::{Config, TlbError, run};
pub use report::Report;

/// The README's example: it compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

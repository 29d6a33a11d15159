//! Unmodified programs under a supervisor: one binary, so that it is linked once.
//!
//! `cargo test -p sidecore-net-run --test suite NAME::` runs one part. The program under test is
//! `tests/program`, which calls this crate as `sidecore net run` does.
#![allow(clippy::unwrap_used)] // Helper functions of tests.

mod cases;
mod comparison;
mod runs;
mod trust;
mod unpack;

//! Small servers with the programs of others as clients: one binary, so that it is linked once.
#![allow(clippy::unwrap_used)] // Helper functions of tests.

mod bottleneck_kernel;
mod engine;
mod engines;
#[path = "../../../../net/engine/tests/common/namespace.rs"]
mod namespace;
mod programs;
#[path = "../common/running.rs"]
mod running;

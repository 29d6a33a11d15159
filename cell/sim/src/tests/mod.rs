//! The model compared with the papers, and descriptions of machines.
#![allow(clippy::unwrap_used, clippy::print_stderr)] // Helper functions of tests.

mod machines;
mod paper;

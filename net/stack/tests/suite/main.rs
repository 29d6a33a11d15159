//! The stack against rules, peers and itself: one binary, so that it is linked once.
#![allow(clippy::unwrap_used)] // Helper functions of tests.

mod accurate_ecn;
mod across;
mod basics;
mod bottleneck;
#[path = "../common/mod.rs"]
mod common;
#[path = "../common/fragments.rs"]
mod common_fragments;
mod cost;
mod differential;
mod direct_placement;
mod ecn;
mod fragments;
mod hostile;
mod hosts;
mod interleaving;
mod last_flow;
mod link;
mod losses;
mod rules;
mod simulation;
mod wire;

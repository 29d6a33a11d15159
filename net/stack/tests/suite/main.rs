//! The stack beside rules, peers and itself: one binary, so that it is linked once.

mod accurate_ecn;
mod across;
mod basics;
mod bbr;
mod bottleneck;
#[path = "../common/mod.rs"]
mod common;
mod cost;
mod differential;
mod direct_placement;
mod ecn;
mod fragments;
mod hostile;
mod hosts;
mod interleaving;
mod last_flow;
mod losses;
mod rules;
mod simulation;
mod wire;

//! The engine, its NICs and its sockets, compared with the kernel: one binary, so that it is linked
//! once. `memory` and `other_user` are processes of their own.
#![allow(clippy::unwrap_used)] // Helper functions of tests.

mod across;
mod against_kernel;
#[path = "../../../stack/tests/common/mod.rs"]
mod common;
mod ecn_kernel;
mod engines;
#[path = "../../../stack/tests/common/fragments.rs"]
mod fragments;
mod fragments_kernel;
mod hosted;
#[path = "../common/kernel/mod.rs"]
mod kernel;
#[path = "../common/loopback.rs"]
mod loopback;
mod loopback_storm;
#[path = "../common/namespace.rs"]
mod namespace;
mod nic;
mod sock;

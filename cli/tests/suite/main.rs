//! The program as its users see it: one binary, so that it is linked once.
//!
//! `cargo test -p sidecore-cli --test suite NAME::` runs one part. `path_races` is a binary of its
//! own because `scripts/check-path-races` runs it for long.
#![allow(clippy::unwrap_used)] // Helper functions of tests.

mod bench;
mod benchmarks;
mod cell;
mod commands;
#[path = "../common/mod.rs"]
mod common;
mod daemon;
mod doctor;
mod document;
mod english;
mod far;
mod fits;
mod glossary;
mod guest;
mod house;
mod kernels;
mod limits;
mod manners;
mod manual;
mod messages;
mod mount;
#[path = "../../../net/engine/tests/common/namespace.rs"]
mod namespace;
mod net;
mod net_bench;
mod offload;
mod one_dependency;
mod operate;
mod overlay;
mod pack;
mod pages;
mod papers;
mod phylo;
mod phylo_inputs;
mod phylo_limits;
mod phylo_models;
mod phylo_search;
mod phylo_workflow;
mod rdma;
mod release;
mod repository;
mod serve;
mod serve_tls;
#[path = "../../../image/remote/tests/common/server.rs"]
mod server;
#[path = "../common/serving.rs"]
mod serving;
mod sessions;
mod shown;
mod siw;
mod spe;
mod store_keys;
mod terminal;
mod threads;
mod tlb;
mod tour;
mod trace;
mod trust;
mod walks;
#[path = "../common/watching.rs"]
mod watching;

//! Off-loading in one process: a pool of engines, and tasks whose loops and calls run on them.
//!
//! [`Pool`] owns the engines of one process. A caller hands it work with borrowed data in one of
//! these ways, and a policy of `sidecore-sched` decides its width:
//!
//! - [`Pool::run`] / [`Pool::call`]: one task on one engine (TLP). An idle engine on the caller's
//!   own core is *called*: the caller drives it itself, and nothing crosses to another core.
//! - [`Pool::for_each`]: one task's units across several engines (LLP). The caller is the first of
//!   them; the others are woken with a request packet.
//! - [`par`]: loops as iterators, over slices, ranges and chunks, whose bodies need no engine.
//! - [`Pool::reduce`]: a loop whose values are combined, with the same bits for any number of
//!   engines.
//! - [`Pool::tasks`]: any number of tasks as fibers, whose ordinary code does all of the above;
//!   while one waits, another runs. See [`task`].
//! - [`Pool::post`]: background work without a waiter (read-ahead), done by whichever engine is
//!   idle, dropped when its bounded queue is full.
//!
//! Engines for other processes are `sidecore-daemon`'s.
//!
//! `README.md` next to this file describes the protocol between callers and engines.

mod bits;
mod claims;
mod command;
mod config;
mod driver;
mod error;
mod job;
mod loops;
mod packet;
pub mod par;
mod partition;
mod pool;
mod reduce;
mod send;
mod shared;
mod short_loops;
mod stalls;
mod sync;
pub mod task;
mod tracks;
mod wait_queue;

pub use claims::ENGINES_MAX;
pub use config::{Background, PoolConfig};
pub use error::{Cancelled, OffloadError};
pub use pool::{EngineCounters, Pool, Seat, Snapshot, TaskCounters};
pub use reduce::{PIECES_MAX, Piece};
pub use task::{JoinHandle, Priority, Scope, Task, TaskOptions, TasksOptions};

/// The crates that kernels and policies are written with, for users that depend on this one alone.
pub use {sidecore_engine as engine, sidecore_sched as sched};

/// Names that a program which uses engines needs: `use sidecore_offload::prelude::*`.
pub mod prelude {
    pub use crate::{OffloadError, Pool, PoolConfig, Task, TaskOptions, TasksOptions};
    pub use sidecore_engine::{Core, Ctx, In, Kernel, KernelError, Out};
    pub use sidecore_sched::ClassId;
}

#[cfg(test)]
mod tests;

/// The README's example, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

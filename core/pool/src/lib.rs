//! Off-loading in one process: a pool of engines, and tasks whose loops and calls run on them.
//!
//! [`Pool`] owns the engines of one process. A caller hands it work with borrowed data in one of
//! these ways, and a policy of `sidecore-sched` decides its width:
//!
//! - [`Pool::run`] / [`Pool::call`]: one task on one engine (TLP). An idle engine on the caller's
//!   own core is *called*: the caller drives it itself, and nothing crosses to another core.
//! - [`Pool::for_each`]: one task's units across several engines (LLP). The caller is the first of
//!   them; the others are woken with a request packet.
//! - [`par`]: loops as iterators, over slices, ranges, chunks and other iterators, whose bodies
//!   need no engine; with deadlines and flags that stop them.
//! - [`Pool::join`]: two halves at once, for recursion, and sorts made of it ([`Pool::par_sort`]).
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
mod error;
mod fork;
mod job;
mod loops;
mod neighbours;
mod packet;
pub mod par;
mod partition;
mod pool;
mod reduce;
mod send;
mod shared;
mod stalls;
pub mod task;
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

mod tracks {
    //! Names of what a pool records: `docs/trace.md` explains them.
    //!
    //! An engine's work stands on the engine's own track, whichever thread drives it.

    use sidecore_trace::Name;
    use sidecore_trace::summary::IDLE;

    /// A caller drives the engine itself.
    pub(crate) static CALL: Name = Name::new("engine", "call", ["", ""]);
    /// The engine's thread runs a packet.
    pub(crate) static PACKET: Name = Name::new("engine", "packet", ["", ""]);
    /// The engine's thread helps with a loop.
    pub(crate) static HELP: Name = Name::new("engine", "help", ["", ""]);
    /// The engine's thread does posted work.
    pub(crate) static BACKGROUND: Name = Name::new("engine", "background", ["token", ""]);
    /// Neighbouring items of a loop, done in one go.
    pub(crate) static CHUNK: Name = Name::new("engine", "chunk", ["items", ""]);
    /// A loop, at its caller: until all engines have left it.
    pub(crate) static LOOP: Name = Name::new("engine", "loop", ["items", "engines_max"]);
    /// A caller sends a packet and waits for the reply.
    pub(crate) static OFF_LOAD: Name = Name::new("engine", "off-load", ["", ""]);
    /// From the sender of a command to the engine's thread.
    pub(crate) static ASKS: Name = Name::new("engine", "command", ["", ""]);
    /// A caller waits until an engine is idle.
    pub(crate) static WAIT: Name = Name::new(IDLE, "wait for an engine", ["", ""]);
    /// An engine's thread looks for commands.
    pub(crate) static POLL: Name = Name::new(IDLE, "poll", ["", ""]);
    /// It sleeps.
    pub(crate) static SLEEP: Name = Name::new(IDLE, "sleep", ["", ""]);
}

mod sync {
    //! The atomics and the lock that the modelled parts are written on: the real ones, or loom's.
    //!
    //! Why here: model-checked code may use nothing that loom cannot see.

    pub(crate) use sidecore_sync::atomic::{AtomicU32, AtomicU64, Ordering};

    #[cfg(not(loom))]
    pub(crate) use parking_lot::Mutex;

    #[cfg(loom)]
    pub(crate) use model::Mutex;

    #[cfg(loom)]
    mod model {
        /// Loom's mutex with the interface of the real one.
        #[derive(Debug)]
        pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

        impl<T> Mutex<T> {
            pub(crate) fn new(value: T) -> Self {
                Self(loom::sync::Mutex::new(value))
            }

            pub(crate) fn lock(&self) -> loom::sync::MutexGuard<'_, T> {
                // Nothing panics while it holds one.
                self.0
                    .lock()
                    .unwrap_or_else(std::sync::PoisonError::into_inner)
            }
        }
    }
}

/// The README's example, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

#[cfg(test)]
mod tests;

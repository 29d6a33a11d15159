//! One engine: a core with a local store, tagged DMA, mailboxes and signals; and the kernels on it.
//!
//! Top-down, the way a job travels:
//!
//! - [`Engine`]: a pinned thread that runs jobs; [`Engine::scope`] lends them borrowed memory.
//! - [`Core`]: an engine's hardware without a thread. Its owner may drive it: the engine's thread,
//!   or a caller on its own core, for which an off-load is then a call.
//! - [`Kernel`]: code that an engine runs; [`Ctx`]: the interface that it runs with.
//! - [`mfc`]: tagged DMA between main memory ([`In`], [`Out`], [`Area`]) and the local store.
//! - `store`: the local store and its buffers.
//! - [`page_advice`]: the best way to make such memory on this machine.
//! - [`Ring`]: a typed ring of buffers between a producer and a consumer: acquire, commit, wait,
//!   release.
//! - [`mail`]: mailboxes and signals between a host and an engine; `wait`: waiting that spins,
//!   yields, then blocks.
//!
//! Must stay true: no unsafe code but in `engine/lend.rs`, where a scope lends its jobs to a thread
//! that outlives it. Source: the Cell Broadband Engine Architecture, and the papers that used it.

mod core;
mod engine;
mod error;
mod kernel;
mod limits;
pub mod mail;
mod memory;
pub mod mfc;
pub mod page_advice;
pub mod ring;
mod store;
mod wait;

pub use crate::core::{Core, CoreCounters, CoreOptions, KERNELS_MAX, StageTimes};
pub use engine::{Engine, EngineOptions, JOBS_MAX, JobHandle, Scope};
pub use error::{DmaError, EngineError, KernelError, StoreError};
pub use kernel::{Ctx, Kernel};
pub use mail::{HostPorts, Ports, SignalMode};
pub use memory::{Area, In, Out, Source, Target};
pub use mfc::{DmaMode, Get, Mfc, Put, Tag, TagMask, View, Window};
pub use ring::Ring;
pub use sidecore_sync::EventCount;
pub use store::{Arena, Buf};
pub use wait::{WaitOptions, Waiter};

/// Types that the hardware's memory can hold: values that are the same thing as their bytes.
pub use sidecore_sys::Plain;

/// The README's example, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

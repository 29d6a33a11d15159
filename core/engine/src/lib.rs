//! One engine: a core with a local store and DMA; and the kernels that run on it.
//!
//! Top-down, the way a job travels:
//!
//! - [`Core`]: an engine's hardware without a thread. Its owner drives it: an engine's thread, or
//!   a caller on its own core, for which an off-load is then a call.
//! - [`Kernel`]: code that an engine runs; [`Ctx`]: the interface that it runs with.
//! - [`mfc`]: DMA between main memory ([`In`], [`Out`]) and the local store.
//! - `store`: the local store and its buffers.
//! - [`page_advice`]: the best way to make such memory on this machine.
//!
//! Must stay true: no unsafe code. Source: the Cell Broadband Engine Architecture, and the papers
//! that used it; its mailboxes, signals and reservations are `sidecore-spe`'s.

mod core;
mod error;
mod kernel;
mod memory;
pub mod mfc;
pub mod page_advice;
mod store;

pub use crate::core::{Core, CoreCounters, CoreOptions, KERNELS_MAX};
pub use error::{DmaError, KernelError, StoreError};
pub use kernel::{Ctx, Kernel};
pub use memory::{In, Out, Source, Target};
pub use mfc::{DmaMode, Get, Mfc, Put, View, Window};
pub use store::{Arena, Buf};

/// Types that the hardware's memory can hold: values that are the same thing as their bytes.
pub use sidecore_sys::Plain;

mod limits {
    //! Limits of an MFC: the hardware's own numbers.
    //!
    //! Why here: errors name them and the MFC keeps them; neither needs the other for that.
    //! Source: the Cell Broadband Engine Architecture.

    /// Bytes that one command moves at most.
    pub(crate) const TRANSFER_BYTES_MAX: usize = 16 << 10;
    /// Elements that a list, as which a large transfer counts, has at most.
    pub(crate) const LIST_ELEMENTS_MAX: usize = 2048;
}

/// The README's example, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

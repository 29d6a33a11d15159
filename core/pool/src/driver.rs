//! The parts of an engine that work runs with, and the panics of that work.
//!
//! Why here: packets, loops and engines' threads all run work, and none of them may end by it. Any
//! thread that holds the engine's claim, or has a core that is no engine's.

use crate::error::{OffloadError, message_of};
use sidecore_engine::Core;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Working parts of an engine.
pub(crate) struct Driver {
    pub(crate) core: Core,
    /// Units of loops that it has done since its counters were last updated.
    pub(crate) units: u64,
}

/// Runs `work`, turning a panic into an error.
pub(crate) fn guarded<R>(work: impl FnOnce() -> R) -> Result<R, OffloadError> {
    caught(work).map_err(|message| OffloadError::Panicked { message })
}

/// Runs `work`, turning a panic into its message.
pub(crate) fn caught<R>(work: impl FnOnce() -> R) -> Result<R, String> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| message_of(panic.as_ref()))
}

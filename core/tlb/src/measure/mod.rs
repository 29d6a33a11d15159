//! The measuring part.
//!
//! Why here: everything that needs a clock, memory and a core. [`run`] measures on a thread of its
//! own, which it pins; any thread may call it. It takes tens of seconds.
//! Must stay true: when it returns or panics, the machine's settings are restored.

mod corroborate;
mod memory;
mod probe;
mod rows;
mod settings;
mod stride;
mod survey;
mod sweep;
mod touch;

use crate::report::Report;
use sidecore_engine::KernelError;
use sidecore_measure::Machine;
use sidecore_sys::{SysError, cpu};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Options of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Config {
    /// Fewer points and windows: under ten seconds, less certain.
    pub quick: bool,
    /// Change the machine's settings where that provides more kinds of pages; they are put back.
    pub reserve: bool,
    /// The core to measure on; the last one that is allowed unless given.
    pub core: Option<usize>,
    /// Measure loads over small pages only.
    pub levels_only: bool,
    /// Seed of the random orders.
    pub seed: u64,
}

/// Errors of a run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlbError {
    /// The operating system refused something.
    #[error(transparent)]
    Sys(#[from] SysError),
    /// An engine failed.
    #[error("an engine failed: {0}")]
    Engine(KernelError),
    /// A setting could not be changed.
    #[error("cannot change {path}: {source}; run as root, or without --reserve")]
    Setting {
        /// The setting's file.
        path: String,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// Too little memory.
    #[error("needs {needed_mib} MiB of memory, {free_mib} MiB are available; end something first")]
    Memory {
        /// Memory that a run needs, in MiB.
        needed_mib: usize,
        /// Memory available, in MiB.
        free_mib: usize,
    },
    /// The core may not be used.
    #[error("core {core} is not one of those that this process may use: {allowed:?}")]
    Core {
        /// The requested core.
        core: usize,
        /// Cores that this process may use.
        allowed: Vec<usize>,
    },
    /// The run was cancelled.
    #[error("interrupted")]
    Interrupted,
    /// A chase over no pages.
    #[error("no pages to access")]
    NoPages,
}

/// Sampling density of a run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    /// Points in an octave of the coarse curve.
    pub(crate) points_per_octave: u32,
    /// Points around a knee, in each refinement.
    pub(crate) points_at_knee: usize,
    /// Rounds of refinement.
    pub(crate) refinements: usize,
    /// Passes over a curve.
    pub(crate) passes: usize,
    /// Windows of a point in each pass.
    pub(crate) windows: usize,
    /// Pages of 4 KiB at the curves' end.
    pub(crate) pages_max: usize,
    /// Rounds of a first use.
    pub(crate) first_uses: usize,
    /// Time after the start for which unconfirmed points may have more windows.
    pub(crate) patience: Duration,
}

impl Plan {
    /// Density for the curves that levels are found in.
    fn levels(quick: bool) -> Self {
        match quick {
            false => Self {
                points_per_octave: 8,
                points_at_knee: 24,
                refinements: 2,
                passes: 3,
                windows: 12,
                pages_max: 16384,
                first_uses: 400,
                patience: Duration::from_secs(12),
            },
            true => Self {
                points_per_octave: 6,
                points_at_knee: 16,
                refinements: 1,
                passes: 2,
                windows: 5,
                pages_max: 16384,
                first_uses: 100,
                patience: Duration::from_secs(3),
            },
        }
    }

    /// Density for curves that are compared with those.
    fn compared(self) -> Self {
        Self {
            refinements: 1,
            points_at_knee: self.points_at_knee / 2,
            passes: 2,
            windows: self.windows * 2 / 3,
            // Beyond, the curve measures the caches.
            pages_max: self.pages_max.min(8192),
            ..self
        }
    }
}

/// Measures everything that `config` asks for. Calls `say` with the name of each step; setting
/// `cancel` ends the run with [`TlbError::Interrupted`].
///
/// # Errors
/// [`TlbError`].
pub fn run(
    config: &Config,
    cancel: &AtomicBool,
    say: &mut (dyn FnMut(&str) + Send),
) -> Result<Report, TlbError> {
    let allowed = cpu::allowed()?;
    // The last one: interrupts and other programs are most often on the first.
    let core = config.core.or(allowed.last().copied()).unwrap_or(0);
    if !allowed.contains(&core) {
        return Err(TlbError::Core { core, allowed });
    }
    // Refused before the start: swapping would look like a level of translation.
    let free = settings::memory_available();
    if free < MEMORY_NEEDED {
        return Err(TlbError::Memory {
            needed_mib: MEMORY_NEEDED >> 20,
            free_mib: free >> 20,
        });
    }
    // Before the thread is pinned: afterwards it may use one core only.
    let machine = Machine::of_this_program();
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().spawn_scoped(scope, || {
            cpu::pin(core)?;
            survey::all(config, (machine, core), cancel, say)
        });
        let thread = thread.map_err(|source| SysError::Call {
            call: "pthread_create",
            source,
        })?;
        match thread.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// Two maps of 64 MiB, page tables, and some air.
const MEMORY_NEEDED: usize = 256 << 20;

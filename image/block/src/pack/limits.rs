//! Bounds of a command's memory and time.
//!
//! Why here: whole images are walked by several commands, each with frames in progress; a frame may
//! have 64 MiB, and a file of a few KiB may decompress to TiBs.
//! Must stay true: memory is counted before it is allocated; there is room for at least one frame,
//! or the command refuses.

use super::PackError;
use sidecore_bare::width::ToU64;
use std::time::{Duration, Instant};

/// Bounds of a command's memory and time.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// The most bytes held: the index, frames in progress, engines, the process's heap.
    pub memory_bytes: u64,
    /// Time limit.
    pub deadline: Option<Deadline>,
}

/// The end of a command's time.
#[derive(Debug, Clone, Copy)]
pub struct Deadline {
    at: Instant,
    after: Duration,
}

impl Deadline {
    /// The deadline of a command that begins now and may take this long.
    #[must_use]
    pub fn after(after: Duration) -> Option<Self> {
        let at = Instant::now().checked_add(after)?;
        Some(Self { at, after })
    }
}

impl Limits {
    /// Default bound of memory: two frames of the largest size and their compressed bytes.
    pub const MEMORY_BYTES_DEFAULT: u64 = 160 << 20;
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            memory_bytes: Self::MEMORY_BYTES_DEFAULT,
            deadline: None,
        }
    }
}

/// Engines that a command uses, and its bounds.
#[derive(Debug, Clone, Copy)]
pub struct Work {
    /// Number of the engines.
    pub engines: usize,
    /// The bounds.
    pub limits: Limits,
}

impl From<usize> for Work {
    fn from(engines: usize) -> Self {
        Self::of(engines, Limits::default())
    }
}

impl Work {
    /// These engines, with these bounds.
    #[must_use]
    pub fn of(engines: usize, limits: Limits) -> Self {
        Self { engines, limits }
    }

    /// Jobs of `job_bytes` that fit in memory in addition to `held_bytes`, at least one.
    ///
    /// # Errors
    /// [`PackError::Memory`].
    pub(super) fn jobs(&self, held_bytes: u64, job_bytes: u64) -> Result<usize, PackError> {
        let fixed_bytes = held_bytes + PROCESS_BYTES + self.engines.to_u64() * ENGINE_BYTES;
        let needed_bytes = fixed_bytes.saturating_add(job_bytes);
        let memory_bytes = self.limits.memory_bytes;
        if needed_bytes > memory_bytes {
            return Err(PackError::Memory {
                needed_bytes,
                index_bytes: held_bytes,
                job_bytes,
                memory_bytes,
            });
        }
        let jobs = (memory_bytes - fixed_bytes) / job_bytes.max(1);
        Ok(usize::try_from(jobs).unwrap_or(usize::MAX).max(1))
    }

    /// Checks that there is time left.
    ///
    /// # Errors
    /// [`PackError::Time`].
    pub(super) fn check_time(&self) -> Result<(), PackError> {
        match self.limits.deadline {
            Some(deadline) if Instant::now() >= deadline.at => Err(PackError::Time {
                seconds: deadline.after.as_secs_f64(),
            }),
            _ => Ok(()),
        }
    }
}

/// Memory of an engine in addition to frames: the codec's tables, the stack.
const ENGINE_BYTES: u64 = 1 << 20;
/// Other memory of the process.
const PROCESS_BYTES: u64 = 4 << 20;

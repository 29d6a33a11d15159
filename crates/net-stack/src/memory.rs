//! The memory that a stack works in, which its caller provides.
//!
//! Why here: the stack makes no system calls. Huge pages, locked pages and their sizes are the
//! caller's; whoever does not care uses [`Heap`].

use sidecore_bare::Memory;
use std::fmt::Debug;

/// Use that a run of memory is meant for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// The local store: touched by nearly every packet, present before the first.
    LocalStore,
    /// Large, and used bit by bit: need not be present before its first use.
    Sparse,
}

/// Provider of zeroed memory, aligned to a page.
pub trait MemorySource: Debug + Send + Sync {
    /// At least `bytes` bytes.
    ///
    /// # Errors
    /// [`MemoryError`] where there is none.
    fn provide(&mut self, bytes: usize, purpose: Use) -> Result<Memory, MemoryError>;
}

/// A refusal of memory.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{bytes} bytes cannot be had: {reason}")]
pub struct MemoryError {
    /// Bytes asked for.
    pub bytes: usize,
    /// The source's reason, with the way out.
    pub reason: String,
}

/// Memory of the process's allocator.
#[derive(Debug, Clone, Copy, Default)]
pub struct Heap;

impl MemorySource for Heap {
    fn provide(&mut self, bytes: usize, _purpose: Use) -> Result<Memory, MemoryError> {
        Memory::zeroed(bytes).ok_or_else(|| MemoryError {
            bytes,
            reason: "the allocator has no more; lower `sessions_max` or `buffers_bytes`".to_owned(),
        })
    }
}

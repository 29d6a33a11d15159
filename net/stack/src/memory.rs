//! The memory of a stack, which its caller provides.
//!
//! Why here: the stack makes no system calls. The caller decides on huge pages, locked pages and
//! their sizes.
//!
//! ```
//! use sidecore_bare::Memory;
//! use sidecore_net_stack::memory::{MemoryError, MemorySource, Use};
//!
//! /// The heap, up to a limit.
//! #[derive(Debug)]
//! struct Limited {
//!     left_bytes: usize,
//! }
//!
//! impl MemorySource for Limited {
//!     fn provide(&mut self, bytes: usize, _purpose: Use) -> Result<Memory, MemoryError> {
//!         let refused = || MemoryError {
//!             bytes,
//!             reason: "the limit is reached".to_owned(),
//!         };
//!         self.left_bytes = self.left_bytes.checked_sub(bytes).ok_or_else(refused)?;
//!         Memory::zeroed(bytes).ok_or_else(refused)
//!     }
//! }
//!
//! let mut source = Limited { left_bytes: 8192 };
//! assert_eq!(source.provide(4096, Use::Sparse)?.bytes()[4095], 0);
//! assert!(source.provide(8192, Use::Sparse).is_err());
//! # Ok::<(), MemoryError>(())
//! ```

use sidecore_bare::Memory;
use std::fmt::Debug;

/// Intended use of a block of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// The local store: used by nearly every packet, present before the first.
    LocalStore,
    /// Large, and used gradually: need not be present before its first use.
    Sparse,
}

/// Provider of zeroed memory, aligned to a page.
pub trait MemorySource: Debug + Send + Sync {
    /// At least `bytes` bytes.
    ///
    /// # Errors
    /// [`MemoryError`] if there is none.
    fn provide(&mut self, bytes: usize, purpose: Use) -> Result<Memory, MemoryError>;
}

/// A refusal of memory.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{bytes} bytes cannot be had: {reason}")]
pub struct MemoryError {
    /// Bytes asked for.
    pub bytes: usize,
    /// The source's reason, with the remedy.
    pub reason: String,
}

/// Memory of the process's allocator.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Heap;

impl MemorySource for Heap {
    fn provide(&mut self, bytes: usize, _purpose: Use) -> Result<Memory, MemoryError> {
        Memory::zeroed(bytes).ok_or_else(|| MemoryError {
            bytes,
            reason: "the allocator has no more; lower `sessions_max` or `buffers_bytes`".to_owned(),
        })
    }
}

//! The stack's memory from the operating system: huge pages if available, the local store locked
//! and populated before the first frame.

use crate::{Config, NetError, Stack};
use sidecore_net_stack::frame::Capabilities;
use sidecore_net_stack::memory::{MemoryError, MemorySource, Use};
use sidecore_sys::{HugePages, Region, RegionOptions};

/// Memory mapped for the stack.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Mapped {
    /// Huge pages to try for. The caller knows the best choice for the machine (`sidecore tlb
    /// --learn`).
    pub huge_pages: HugePages,
}

impl MemorySource for Mapped {
    fn provide(&mut self, bytes: usize, purpose: Use) -> Result<sidecore_sys::Memory, MemoryError> {
        let options = RegionOptions {
            huge: self.huge_pages,
            // A page fault in a round would hold up all sessions; other memory is touched on
            // demand.
            lock: purpose == Use::LocalStore,
            touch: purpose == Use::LocalStore,
        };
        let region = Region::new(bytes, options).map_err(|error| MemoryError {
            bytes,
            reason: error.to_string(),
        })?;
        Ok(region.into())
    }
}

/// A stack in mapped memory, on a NIC with these capabilities.
///
/// # Errors
/// As [`Stack::new`].
pub fn mapped_stack(config: Config, nic: &Capabilities) -> Result<Stack, NetError> {
    Stack::with_memory(config, nic, Box::new(Mapped::default()))
}

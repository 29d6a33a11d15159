//! The processor's event counters, for this thread.
//!
//! Why here: only the kernel can program them. They often are missing (virtual machines) or
//! forbidden; then opening one fails, and its user goes without.
//! One thread: a counter counts for the thread that opened it. Source: perf_event_open(2).
//!
//! ```
//! use sidecore_sys::counters::{Event, EventCounter};
//!
//! match EventCounter::open(Event::LoadTranslationMisses) {
//!     Ok(mut counter) => {
//!         let before = counter.read()?;
//!         assert!(counter.read()? >= before);
//!     }
//!     Err(error) => println!("no counters here: {error}"),
//! }
//! # Ok::<(), sidecore_sys::SysError>(())
//! ```

use crate::SysError;
use perf_event::events::{Cache, CacheId, CacheOp, CacheResult, Raw, Software};
use perf_event::{Builder, Counter};

/// Hardware event to count, in user code only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// An event by the number that the processor's maker gives it.
    Raw(u64),
    /// Loads that missed the first-level TLB, as the kernel defines the event.
    LoadTranslationMisses,
    /// Page faults; counted by the kernel, so it is there on every machine.
    PageFaults,
}

/// One event of this thread, counted from when it was opened.
#[derive(Debug)]
pub struct EventCounter(Counter);

impl EventCounter {
    /// Starts to count.
    ///
    /// # Errors
    /// [`SysError::Call`] where the machine has no such counter or this process may not use it.
    pub fn open(event: Event) -> Result<Self, SysError> {
        let mut builder = match event {
            Event::Raw(config) => Builder::new(Raw::new(config)),
            Event::LoadTranslationMisses => Builder::new(Cache {
                which: CacheId::DTLB,
                operation: CacheOp::READ,
                result: CacheResult::MISS,
            }),
            Event::PageFaults => Builder::new(Software::PAGE_FAULTS),
        };
        let opened = builder.exclude_kernel(event != Event::PageFaults).build();
        let failed = |source| SysError::Call {
            call: "perf_event_open",
            source,
        };
        let mut counter = opened.map_err(failed)?;
        counter.enable().map_err(failed)?;
        Ok(Self(counter))
    }

    /// The count so far. A system call, about 0.3 us.
    ///
    /// # Errors
    /// [`SysError::Call`] where the kernel does not answer.
    pub fn read(&mut self) -> Result<u64, SysError> {
        self.0.read().map_err(|source| SysError::Call {
            call: "reading an event counter",
            source,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{HugePages, Region, RegionOptions};

    #[test]
    fn faults_are_counted_where_the_kernel_lets_us() {
        // A kernel may forbid all counting; then the error must name the call.
        let mut counter = match EventCounter::open(Event::PageFaults) {
            Ok(counter) => counter,
            Err(error) => {
                assert!(error.to_string().contains("perf_event_open"), "{error}");
                return;
            }
        };
        let before = counter.read().unwrap();
        let options = RegionOptions {
            huge: HugePages::None,
            lock: false,
            touch: false,
        };
        let mut region = Region::new(64 << 12, options).unwrap();
        for byte in region.bytes_mut().iter_mut().step_by(4096) {
            *byte = 1;
        }
        let faults = counter.read().unwrap() - before;
        assert!(faults >= 64, "{faults} faults");
    }

    #[test]
    fn an_event_that_is_not_there_is_an_error() {
        match EventCounter::open(Event::Raw(u64::MAX)) {
            Ok(mut counter) => assert!(counter.read().is_ok()),
            Err(error) => assert!(error.to_string().contains("perf_event_open"), "{error}"),
        }
    }
}

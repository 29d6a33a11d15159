//! What the measurements mean for memory that is about to be made.
//!
//! Why here: page size and touching are chosen by guess everywhere; this chooses by what a machine
//! showed, and hands it on as the options that [`sidecore_sys::Region`], the local stores and the
//! pools take. Pure.
//!
//! ```
//! use sidecore_engine::{Core, CoreOptions};
//! use sidecore_tlb::advice::Learned;
//!
//! // From `sidecore_tlb::run`; here of a machine that is not known.
//! let learned = Learned::default();
//! let advice = learned.advise(256 << 10);
//! let core = Core::new(CoreOptions {
//!     region: advice.region_options(),
//!     ..CoreOptions::default()
//! })?;
//! assert!(core.store().region().touched());
//! # Ok::<(), sidecore_sys::SysError>(())
//! ```

use serde::Serialize;
use sidecore_sys::{HugePages, RegionOptions};

/// What pages of one size cost, by how much memory is in use.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PageCost {
    /// Which pages: their size in bytes.
    pub page_bytes: usize,
    /// Whether they must be reserved (`vm.nr_hugepages`).
    pub reserved: bool,
    /// Working set in bytes, ascending, and cycles per access above those of a small one.
    pub cycles: Vec<(usize, f64)>,
}

impl PageCost {
    /// Cycles above those of a small working set, at the next larger one that was measured; the
    /// last beyond the end.
    #[must_use]
    pub fn at(&self, working_set_bytes: usize) -> Option<f64> {
        let larger = self
            .cycles
            .iter()
            .find(|&&(bytes, _)| bytes >= working_set_bytes);
        larger.or(self.cycles.last()).map(|&(_, cycles)| cycles)
    }
}

/// What was learned of a machine.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Learned {
    /// What pages cost, small ones first.
    pub pages: Vec<PageCost>,
    /// How many times longer the first DMA from memory takes that was not touched before.
    pub first_touch_factor: Option<f64>,
}

/// How memory should be made.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Advice {
    /// Bytes of the pages that are best.
    pub page_bytes: usize,
    /// Whether these must be reserved.
    pub reserved: bool,
    /// Cycles that they save per access, against small pages.
    pub saves_cycles: f64,
    /// Whether to touch the memory before it is used.
    pub touch: bool,
}

impl Learned {
    /// What to do for memory of which `working_set_bytes` are in use at a time. Larger pages must
    /// save at least a cycle per access to be worth asking for, and reserved ones a cycle more than
    /// those that need no reserving.
    #[must_use]
    pub fn advise(&self, working_set_bytes: usize) -> Advice {
        let small = self.pages.iter().min_by_key(|pages| pages.page_bytes);
        let small_cycles = small
            .and_then(|pages| pages.at(working_set_bytes))
            .unwrap_or(0.0);
        let mut best = Advice {
            page_bytes: small.map_or(sidecore_sys::region::page_bytes(), |pages| pages.page_bytes),
            reserved: false,
            saves_cycles: 0.0,
            touch: self
                .first_touch_factor
                .is_none_or(|factor| factor >= TOUCH_FACTOR_MIN),
        };
        let mut larger: Vec<&PageCost> = self.pages.iter().collect();
        larger.sort_by_key(|pages| pages.reserved);
        for pages in larger {
            let saves = small_cycles - pages.at(working_set_bytes).unwrap_or(small_cycles);
            if saves >= best.saves_cycles + SAVING_MIN_CYCLES {
                best.page_bytes = pages.page_bytes;
                best.reserved = pages.reserved;
                best.saves_cycles = saves;
            }
        }
        best
    }
}

impl Advice {
    /// The same as options for memory; it is locked where it is touched, so that it stays so.
    #[must_use]
    pub fn region_options(&self) -> RegionOptions {
        let huge = if self.page_bytes <= sidecore_sys::region::page_bytes() {
            HugePages::None
        } else if self.reserved {
            HugePages::Reserved
        } else {
            HugePages::Transparent
        };
        RegionOptions {
            huge,
            lock: self.touch,
            touch: self.touch,
        }
    }
}

/// Below this, larger pages are not worth asking for.
const SAVING_MIN_CYCLES: f64 = 1.0;
/// Above this, touching ahead is worth its time.
const TOUCH_FACTOR_MIN: f64 = 2.0;

#[cfg(test)]
mod tests {
    use super::*;
    use sidecore_sys::Region;

    fn learned(reserved_saves: f64) -> Learned {
        let cost = |page_bytes, reserved, saves: f64| PageCost {
            page_bytes,
            reserved,
            cycles: vec![
                (1 << 18, 0.0),
                (1 << 22, 7.0 - saves.min(7.0)),
                (1 << 26, 40.0 - saves),
            ],
        };
        Learned {
            pages: vec![
                cost(4096, false, 0.0),
                cost(2 << 20, true, reserved_saves),
                cost(2 << 20, false, 30.0),
            ],
            first_touch_factor: Some(30.0),
        }
    }

    #[test]
    fn the_cheapest_pages_that_do_are_advised() {
        let learned = learned(30.5);
        let small = learned.advise(100 << 10);
        assert_eq!((small.page_bytes, small.saves_cycles), (4096, 0.0));
        assert_eq!(small.region_options().huge, HugePages::None);
        let large = learned.advise(1 << 30);
        assert_eq!((large.page_bytes, large.reserved), (2 << 20, false));
        assert!((large.saves_cycles - 30.0).abs() < 1e-9);
        assert_eq!(large.region_options(), RegionOptions::default());
        assert_eq!(
            self::learned(35.0).advise(1 << 30).region_options().huge,
            HugePages::Reserved
        );
    }

    #[test]
    fn memory_is_made_as_advised() {
        let advice = learned(0.0).advise(1 << 30);
        let region = Region::new(4 << 20, advice.region_options()).unwrap();
        assert!(region.touched());
        let indifferent = Learned {
            first_touch_factor: Some(1.1),
            ..Learned::default()
        };
        let region = Region::new(8192, indifferent.advise(8192).region_options()).unwrap();
        assert!(!region.touched());
        assert!(
            Learned::default().advise(1).touch,
            "unknown: as the papers found it"
        );
    }
}

//! Checks of memory against the kernel's figures for this process; one test, alone in its process,
//! because the figures are of the whole process.

#![allow(clippy::unwrap_used)] // Helper functions of tests.

use sidecore_sys::clock::memory_in_use;
use sidecore_sys::{HugePages, Region, RegionOptions, Slab};

fn anonymous_bytes() -> u64 {
    memory_in_use().unwrap().anonymous_bytes
}

fn options(lock: bool, touch: bool) -> RegionOptions {
    RegionOptions {
        huge: HugePages::None,
        lock,
        touch,
    }
}

#[test]
fn touched_pages_are_present_and_released_ones_are_not() {
    let before = anonymous_bytes();
    let untouched = Region::new(16 << 20, options(false, false)).unwrap();
    assert!(anonymous_bytes() < before + (4 << 20));
    let touched = Region::new(16 << 20, options(false, true)).unwrap();
    assert!(anonymous_bytes() >= before + (15 << 20));
    drop((untouched, touched));

    for lock in [false, true] {
        let slab = Slab::new(8 << 20, 1, options(lock, true)).unwrap();
        let mut slot = slab.take().unwrap();
        slot.fill(9);
        let before = anonymous_bytes();
        assert!(slot.release_pages().unwrap(), "locked: {}", slab.locked());
        assert!(anonymous_bytes() + (7 << 20) <= before);
        assert!(slot.iter().all(|&byte| byte == 0));
        slot.fill(1);
        assert!(slot.iter().all(|&byte| byte == 1));
    }
}

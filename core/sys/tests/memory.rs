//! Checks of memory against the kernel's figures for this process; one test, alone in its process,
//! because the figures are of the whole process.

#![allow(clippy::unwrap_used)] // Helper functions of tests.

use sidecore_sys::{HugePages, Region, RegionOptions, Slab};

/// Not by `/proc/self/status`, which may be off by some pages of each core (proc_pid_status(5)).
fn anonymous_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("Anonymous:"));
    let kib = line.unwrap().split_whitespace().next().unwrap();
    kib.parse::<u64>().unwrap() << 10
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

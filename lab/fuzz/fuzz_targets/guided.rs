//! libFuzzer's way into a target of [`sidecore_fuzz::TARGETS`]: the one that the environment names.
#![no_main]

use sidecore_fuzz::TARGETS;
use std::sync::LazyLock;

/// The variable that names the target.
const VARIABLE: &str = "SIDECORE_FUZZ_TARGET";

static TARGET: LazyLock<fn(&[u8])> = LazyLock::new(|| {
    let wanted = std::env::var(VARIABLE).unwrap_or_default();
    let found = TARGETS.iter().find(|(name, _)| *name == wanted);
    let Some((_, target)) = found else {
        panic!("{VARIABLE} names no target, but `{wanted}`");
    };
    *target
});

libfuzzer_sys::fuzz_target!(|data: &[u8]| TARGET(data));

//! libFuzzer's way into [`sidecore_fuzz::newick`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sidecore_fuzz::newick(data));

//! libFuzzer's way into [`sidecore_fuzz::search_state`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sidecore_fuzz::search_state(data));

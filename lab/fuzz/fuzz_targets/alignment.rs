//! libFuzzer's way into [`sidecore_fuzz::alignment`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sidecore_fuzz::alignment(data));

//! libFuzzer's way into [`sidecore_fuzz::daemon`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sidecore_fuzz::daemon(data));

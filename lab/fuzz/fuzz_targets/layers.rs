//! libFuzzer's way into [`sidecore_fuzz::layers`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sidecore_fuzz::layers(data));

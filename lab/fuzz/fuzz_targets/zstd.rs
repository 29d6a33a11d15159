//! libFuzzer's way into [`sidecore_fuzz::zstd`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sidecore_fuzz::zstd(data));

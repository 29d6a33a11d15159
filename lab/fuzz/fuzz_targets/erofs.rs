//! libFuzzer's way into [`sidecore_fuzz::erofs`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sidecore_fuzz::erofs(data));

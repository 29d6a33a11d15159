//! libFuzzer's way into [`sidecore_fuzz::lzo1x`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sidecore_fuzz::lzo1x(data));

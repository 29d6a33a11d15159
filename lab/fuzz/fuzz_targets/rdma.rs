//! libFuzzer's way into [`sidecore_fuzz::rdma`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sidecore_fuzz::rdma(data));

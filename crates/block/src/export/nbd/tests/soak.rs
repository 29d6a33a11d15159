//! Clients that read small and large pieces of an image which does not fit its cache.
//!
//! `examples/soak_nbd.rs` does the same for as long as it is told, and says how long reads took.

use super::live::Running;
use crate::device::tests::{open_least, packed};
use crate::export::nbd::Options;
use crate::format::Format;
use sidecore_random::Random;
use std::sync::mpsc::channel;
use std::time::Duration;

#[test]
fn small_and_large_readers_of_a_small_cache_all_get_there() {
    let seed = 0x50A4_u64;
    let packed = packed(Format::Zstd, 6 << 20);
    let device = open_least(&packed.image, 2);
    assert!(device.cache_slots() as u64 * 2 < device.index().frames());
    let server = Running::new(device, Options::default());
    let (done, reads) = channel();
    let raw: std::sync::Arc<[u8]> = packed.raw.into();
    for reader in 0..8_u64 {
        let (mut client, raw, done) = (server.client(), raw.clone(), done.clone());
        std::thread::spawn(move || {
            let mut random = Random::new(seed ^ (reader + 1) << 32);
            for read in 1..=READS {
                let len = match reader % 2 {
                    0 => 4096,
                    _ => (128 << 10) + random.below(128 << 10) as usize,
                };
                let offset = random.below((raw.len() - len) as u64) as usize;
                let mut got = vec![0; len];
                client.read_at(offset as u64, &mut got).unwrap();
                assert!(
                    got == raw[offset..offset + len],
                    "seed {seed:#x}: {len} at {offset}"
                );
                done.send((reader, read)).unwrap();
            }
        });
    }
    drop(done);
    // Every reader has a fixed number of reads: if one waits for ever, all others end, and nothing
    // is heard any more.
    let mut last = [0; 8];
    for _ in 0..8 * READS {
        let heard = reads.recv_timeout(Duration::from_secs(30));
        let (reader, read) =
            heard.unwrap_or_else(|error| panic!("seed {seed:#x}: {error}; reads done: {last:?}"));
        last[reader as usize] = read;
    }
}

const READS: u32 = 200;

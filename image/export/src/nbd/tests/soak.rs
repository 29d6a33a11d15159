//! Clients that read small and large pieces of an image which does not fit its cache.
//!
//! `examples/soak_nbd.rs` does the same for a given time, and reports how long reads took.

use super::live::Running;
use crate::nbd::Options;
use sidecore_block::codec::Tune;
use sidecore_block::device::{Device, DeviceConfig, DeviceError};
use sidecore_block::format::Format;
use sidecore_block::pack::{self, Existing, Source, Target};
use sidecore_offload::{Pool, PoolConfig};
use sidecore_random::Random;
use std::fs::File;
use std::io::Cursor;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

/// Bytes of which half is noise, and an image of them.
fn packed(bytes: usize) -> (Vec<u8>, File) {
    let mut random = Random::new(0x5eed);
    let mut raw = vec![0; bytes];
    for piece in raw.chunks_exact_mut(16) {
        piece[..8].copy_from_slice(&random.bits().to_le_bytes());
    }
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    let options = pack::Options {
        format: Format::Zstd,
        frame_bytes: 16 << 10,
        level: Some(1),
        tune: Tune::Size,
        cdc: false,
        engines: 2,
        thin: Default::default(),
        limits: Default::default(),
    };
    let source = Source::from_reader(Box::new(Cursor::new(raw.clone())), "memory");
    let target = Target::Path(&image, Existing::Keep);
    pack::pack(source, target, &options, &mut |_| ()).unwrap();
    (raw, File::open(&image).unwrap())
}

/// With the least memory that will do, in which the image does not fit.
fn open_least(image: &File) -> Arc<Device> {
    let open = |memory_bytes| {
        let config = DeviceConfig {
            memory_bytes,
            ..DeviceConfig::default()
        };
        let engines = PoolConfig {
            engines: 2,
            ..PoolConfig::default()
        };
        let pool = Arc::new(Pool::start(engines).unwrap());
        Device::open(image.try_clone().unwrap(), pool, config)
    };
    match open(1 << 20) {
        Err(DeviceError::Memory { needed_bytes, .. }) => open(needed_bytes).unwrap(),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("1 MiB was enough"),
    }
}

#[test]
fn small_and_large_readers_of_a_small_cache_all_get_there() {
    let seed = 0x50A4_u64;
    let (raw, image) = packed(6 << 20);
    let device = open_least(&image);
    assert!(device.cache_slots() as u64 * 2 < device.index().frames());
    let server = Running::new(device, Options::default());
    let (done, reads) = channel();
    let raw: Arc<[u8]> = raw.into();
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
    // Every reader has a fixed number of reads: if one waits for ever, all others end, and no more
    // results arrive.
    let mut last = [0; 8];
    for _ in 0..8 * READS {
        let heard = reads.recv_timeout(Duration::from_secs(30));
        let (reader, read) =
            heard.unwrap_or_else(|error| panic!("seed {seed:#x}: {error}; reads done: {last:?}"));
        last[reader as usize] = read;
    }
}

const READS: u32 = 200;

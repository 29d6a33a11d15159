//! Cost of the counters of a served device: cached reads of 4 KiB, with and without a meter, in
//! turns on one thread; processor time, medians.
//!
//!     cargo run --release -p sidecore-block --example metered_read
#![allow(clippy::print_stdout)] // It shows figures.

use sidecore_block::device::{Device, DeviceConfig};
use sidecore_block::meter::Meter;
use sidecore_block::source::BlockSource;
use sidecore_offload::{Pool, PoolConfig};
use sidecore_sys::clock::thread_cpu_ns;
use std::fs::File;
use std::sync::Arc;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("raw");
    std::fs::write(&path, vec![7; BYTES])?;
    let config = PoolConfig {
        engines: 1,
        ..PoolConfig::default()
    };
    let pool = Arc::new(Pool::start(config)?);
    let device = Device::open(File::open(&path)?, pool, DeviceConfig::default())?;
    let meter = Meter::new(Arc::clone(&device), None);
    let mut samples = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        samples[0].push(round_ns(&*device));
        samples[1].push(round_ns(&*meter));
    }
    let [direct, metered] = samples.map(|mut samples| {
        samples.sort_by(f64::total_cmp);
        samples[ROUNDS / 2]
    });
    println!("a cached read of 4 KiB: {direct:.0} ns, with a meter {metered:.0} ns");
    Ok(())
}

/// Processor time of one read.
fn round_ns(source: &dyn BlockSource) -> f64 {
    let begun = thread_cpu_ns();
    for number in 0..READS {
        let offset = (number * 4096) % BYTES;
        source.read_with(offset as u64, 4096, &mut |pieces| {
            std::hint::black_box(pieces.is_ok());
        });
    }
    (thread_cpu_ns() - begun) as f64 / READS as f64
}

const BYTES: usize = 1 << 20;
const READS: usize = 20_000;
const ROUNDS: usize = 41;

//! Throughput of decompressing an image on 1 to N engines, compared with as many plain threads.
//!
//! `cargo run --release -p sidecore-block --example scaling -- IMAGE [SECONDS]`
//!
//! Why here: threads that share nothing but a counter show what the machine allows. Where reads are
//! slower than these threads, the device's read path is the limit.
//! Source: own.

#![allow(clippy::print_stdout)] // A program for people.

use sidecore_block::codec::make_inflater;
use sidecore_block::device::stages::Stage;
use sidecore_block::device::{Device, DeviceConfig};
use sidecore_block::source::BlockSource;
use sidecore_offload::{Pool, PoolConfig};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let image = args.next().ok_or("usage: scaling IMAGE [SECONDS]")?;
    let seconds: f64 = args.next().map_or(Ok(1.0), |text| text.parse())?;
    let span = Duration::from_secs_f64(seconds);
    let cores = std::thread::available_parallelism()?.get();
    let counts = (0..).map(|shift| 1 << shift).take_while(|&n| n < cores);
    let counts: Vec<usize> = counts.chain([cores]).collect();
    println!("engines, MB/s: plain threads; reads of 1, 4, 16 MiB; 4 readers of 256 KiB");
    for engines in counts {
        let device = open(&image, engines)?;
        let threads = plain(&image, &device, engines, span)?;
        print!("{engines:3} {threads:7.0};");
        for mib in [1, 4, 16] {
            device.stages().reset();
            let rate = reads(&device, mib << 20, span)?;
            print!(" {rate:6.0} ({})", stages(&device));
        }
        device.stages().reset();
        let rate = readers(&device, 4, span);
        println!("; {rate:6.0} ({})", stages(&device));
    }
    Ok(())
}

fn open(image: &str, engines: usize) -> Result<Arc<Device>> {
    let pool = Arc::new(Pool::start(PoolConfig {
        engines,
        ..PoolConfig::default()
    })?);
    let config = DeviceConfig::default();
    Ok(Device::open(File::open(image)?, pool, config)?)
}

/// Mean times of a frame in microseconds.
fn stages(device: &Device) -> String {
    let of = |stage| device.stages().mean_ns(stage) / 1e3;
    let (hand_over, get) = (of(Stage::HandOver), of(Stage::Get));
    format!("{hand_over:.0}+{get:.0}+{:.0} us", of(Stage::Inflate))
}

/// Frames decompressed by threads, each into a buffer of its own.
fn plain(image: &str, device: &Device, threads: usize, span: Duration) -> Result<f64> {
    let file = File::open(image)?;
    let index = device.index();
    let (next, bytes) = (AtomicU64::new(0), AtomicU64::new(0));
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let mut stored = vec![0; index.stored_bytes_max() as usize];
                let mut out = vec![0; index.frame_bytes() as usize];
                while begun.elapsed() < span {
                    let frame = index.frame(next.fetch_add(1, Ordering::Relaxed) % index.frames());
                    let stored = &mut stored[..frame.stored_bytes as usize];
                    file.read_exact_at(stored, frame.offset).expect("reads");
                    let out = &mut out[..frame.raw_bytes as usize];
                    let whole = out.len();
                    let mut inflater = make_inflater(frame.codec);
                    inflater.set_verified(true);
                    inflater.advance(stored, out, whole).expect("inflates");
                    bytes.fetch_add(whole as u64, Ordering::Relaxed);
                }
            });
        }
    });
    let bytes = bytes.load(Ordering::Relaxed) as f64;
    Ok(bytes / 1e6 / begun.elapsed().as_secs_f64())
}

/// One reader, again and again from beginning to end.
fn reads(device: &Device, len: usize, span: Duration) -> Result<f64> {
    let mut buffer = vec![1; len];
    let (mut bytes, mut at) = (0, 0);
    let begun = Instant::now();
    while begun.elapsed() < span {
        if at >= device.size_bytes() {
            at = 0;
        }
        let here = (device.size_bytes() - at).min(len as u64) as usize;
        device.read_into(at, &mut buffer[..here])?;
        at += here as u64;
        bytes += here;
    }
    Ok(bytes as f64 / 1e6 / begun.elapsed().as_secs_f64())
}

/// Several readers of neighbouring pieces, as the threads of a server.
fn readers(device: &Device, readers: usize, span: Duration) -> f64 {
    const LEN: u64 = 256 << 10;
    let (next, bytes) = (AtomicU64::new(0), AtomicU64::new(0));
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..readers {
            scope.spawn(|| {
                let pieces = device.size_bytes() / LEN;
                while begun.elapsed() < span {
                    let at = next.fetch_add(1, Ordering::Relaxed) % pieces * LEN;
                    device.read_with(at, LEN as usize, &mut |result| {
                        let pieces = result.expect("reads");
                        let len: usize = pieces.iter().map(|piece| piece.len()).sum();
                        bytes.fetch_add(len as u64, Ordering::Relaxed);
                    });
                }
            });
        }
    });
    let bytes = bytes.load(Ordering::Relaxed) as f64;
    bytes / 1e6 / begun.elapsed().as_secs_f64()
}

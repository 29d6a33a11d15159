//! Extracts files of an image into a folder.
//!
//! `cargo run --release -p sidecore-files --example extract_image -- IMAGE FOLDER [PATH...]`
//! Source: own.

#![allow(clippy::print_stdout)] // A program for people.

use sidecore_block::device::{Device, DeviceConfig};
use sidecore_files::walk::Wanted;
use sidecore_files::{Options, extract, open};
use sidecore_offload::{Pool, PoolConfig};
use sidecore_sys::folder::Folder;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [image, folder, paths @ ..] = &args[..] else {
        return Err("usage: extract_image IMAGE FOLDER [PATH...]".into());
    };
    let began = Instant::now();
    let pool = Arc::new(Pool::start(PoolConfig::default())?);
    let config = DeviceConfig {
        memory_bytes: 128 << 20,
        ..DeviceConfig::default()
    };
    let tree = open(Device::open(File::open(image)?, pool, config)?)?;
    let patterns: Vec<&[u8]> = paths.iter().map(|path| path.as_bytes()).collect();
    let mut wanted = Wanted::new(&patterns)?;
    std::fs::create_dir_all(folder)?;
    let into = Folder::open(Path::new(folder))?;
    let threads = std::thread::available_parallelism()?.get();
    let report = extract(
        &*tree,
        &mut wanted,
        &into,
        Options::new(threads),
        &AtomicU64::new(0),
    )?;
    println!(
        "{} files, {} bytes in {:.2} s; {} failed",
        report.files,
        report.bytes,
        began.elapsed().as_secs_f64(),
        report.failed
    );
    Ok(())
}

//! Opens an image and copies some of its contents to standard output.
//!
//! `cargo run -p sidecore-block --example read_image -- IMAGE [OFFSET [BYTES]]`
//! Source: own.

use sidecore_block::device::{Device, DeviceConfig};
use sidecore_block::source::BlockSource;
use sidecore_offload::{Pool, PoolConfig};
use std::fs::File;
use std::io::{self, Write};
use std::sync::Arc;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let image = args
        .next()
        .ok_or("usage: read_image IMAGE [OFFSET [BYTES]]")?;
    let offset: u64 = args.next().map_or(Ok(0), |text| text.parse())?;
    let bytes: usize = args.next().map_or(Ok(512), |text| text.parse())?;

    // One engine a core; a device shares them with whatever else uses the pool.
    let pool = Arc::new(Pool::start(PoolConfig::default())?);
    let config = DeviceConfig {
        memory_bytes: 64 << 20,
        ..DeviceConfig::default()
    };
    let device = Device::open(File::open(image)?, pool, config)?;

    // Without a copy: the pieces lie in the device's cache, and only inside the closure.
    let longest = device.read_with_max_bytes();
    let end = device.size_bytes().min(offset + bytes as u64);
    let mut at = offset;
    while at < end {
        let len = longest.min((end - at) as usize);
        let mut result = Ok(());
        device.read_with(at, len, &mut |delivered| {
            result = match delivered {
                Ok(pieces) => (pieces.iter()).try_for_each(|piece| io::stdout().write_all(piece)),
                Err(error) => Err(io::Error::other(error.clone())),
            };
        });
        result?;
        at += len as u64;
    }
    Ok(())
}

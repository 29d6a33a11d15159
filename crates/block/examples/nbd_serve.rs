//! Serves a file's bytes from memory over NBD until standard input ends.
//!
//! Why here: it measures the way in alone, with a device that costs nothing:
//! `cargo run --release -p sidecore-block --example nbd_serve -- unix:/tmp/x.sock FILE`.
//! Source: own.

#![allow(clippy::print_stdout)]

use sidecore_block::source::{BlockSource, Deliver, Extent, MemorySource, ReadError};
use sidecore_block::ways::nbd::{Address, Options, Server};
use std::io::Read;
use std::sync::Arc;

/// Memory whose extents cost nothing to look up either.
struct Flat(MemorySource);

impl BlockSource for Flat {
    fn size_bytes(&self) -> u64 {
        self.0.size_bytes()
    }

    fn preferred_bytes(&self) -> u32 {
        self.0.preferred_bytes()
    }

    fn read_with_max_bytes(&self) -> usize {
        self.0.read_with_max_bytes()
    }

    fn read_into(&self, offset: u64, dst: &mut [u8]) -> Result<(), ReadError> {
        self.0.read_into(offset, dst)
    }

    fn read_with(&self, offset: u64, len: usize, deliver: &mut Deliver<'_>) {
        self.0.read_with(offset, len, deliver);
    }

    fn extent(&self, offset: u64) -> Extent {
        Extent {
            len: self.size_bytes().saturating_sub(offset),
            zero: false,
        }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(address), Some(file)) = (args.next(), args.next()) else {
        return Err("usage: nbd_serve unix:PATH|tcp:HOST:PORT FILE [WORKERS] [SEND_BUFFER]".into());
    };
    let mut options = Options::default();
    if let Some(workers) = args.next() {
        options.workers_max = workers.parse()?;
    }
    if let Some(bytes) = args.next() {
        options.send_buffer_bytes = bytes.parse()?;
    }
    let source = Arc::new(Flat(MemorySource::new(std::fs::read(file)?)));
    let address: Address = address.parse()?;
    let server = Server::bind(source, &[address], options)?;
    let stopper = server.stopper();
    println!("ready at {}", server.addresses()[0]);
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        stopper.stop();
    });
    server.run()?;
    Ok(())
}

//! Serves a file's bytes from memory over NBD until standard input ends.
//!
//! Why here: it measures the export alone, with a device that costs nothing:
//! `cargo run --release -p sidecore-export --example nbd_serve -- unix:/tmp/x.sock FILE`.
//! Source: own.

#![allow(clippy::print_stdout)] // A program for people.

use sidecore_block::source::{BlockSource, Deliver, Extent, MemorySource, ReadError};
use sidecore_export::nbd::{Address, Options, Server};
use std::io::Read;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Memory whose extents cost nothing to look up either.
struct Flat {
    memory: MemorySource,
    /// Work before and after a delivery, as a decompressing device has it.
    work: [Duration; 2],
}

/// Keeps this core busy.
fn work(time: Duration) {
    let began = Instant::now();
    while began.elapsed() < time {
        std::hint::spin_loop();
    }
}

impl BlockSource for Flat {
    fn size_bytes(&self) -> u64 {
        self.memory.size_bytes()
    }

    fn preferred_bytes(&self) -> u32 {
        self.memory.preferred_bytes()
    }

    fn read_with_max_bytes(&self) -> usize {
        self.memory.read_with_max_bytes()
    }

    fn read_into(&self, offset: u64, dst: &mut [u8]) -> Result<(), ReadError> {
        self.memory.read_into(offset, dst)
    }

    fn read_with(&self, offset: u64, len: usize, deliver: &mut Deliver<'_>) {
        work(self.work[0]);
        self.memory.read_with(offset, len, deliver);
        work(self.work[1]);
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
        let usage = "nbd_serve ADDRESS FILE [WORKERS [SEND_BUFFER [US_BEFORE [US_AFTER]]]]";
        return Err(format!("usage: {usage}").into());
    };
    let mut options = Options::default();
    if let Some(workers) = args.next() {
        options.workers_max = workers.parse()?;
    }
    if let Some(bytes) = args.next() {
        options.send_buffer_bytes = bytes.parse()?;
    }
    let mut work = [Duration::ZERO; 2];
    for (work, us) in work.iter_mut().zip(args) {
        *work = Duration::from_micros(us.parse()?);
    }
    let memory = MemorySource::new(std::fs::read(file)?);
    let source = Arc::new(Flat { memory, work });
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

//! Small and large readers over NBD on an image larger than its cache; none may wait a second.
//!
//! `cargo run --release -p sidecore-export --example soak_nbd -- [SECONDS [SEED]]` packs 32 MiB,
//! opens them with 16 MiB of memory, and lets four clients read 4 KiB and four read 128 to 256 KiB
//! at random places. Every byte is compared. Ends with status 1 when a read took a second or
//! longer.
//! Source: own.

#![allow(clippy::print_stdout)] // A program for people.

use sidecore_block::codec::Tune;
use sidecore_block::device::{Device, DeviceConfig};
use sidecore_block::format::Format;
use sidecore_block::pack::{self, Existing, Source, Target};
use sidecore_export::nbd::client::Client;
use sidecore_export::nbd::{Address, Options, Server};
use sidecore_offload::{Pool, PoolConfig};
use sidecore_random::Random;
use std::fs::File;
use std::io::Cursor;
use std::sync::Arc;
use std::time::{Duration, Instant};

type Failure = Box<dyn std::error::Error + Send + Sync>;

fn main() -> Result<(), Failure> {
    let mut args = std::env::args().skip(1);
    let seconds = args.next().map_or(Ok(10), |text| text.parse())?;
    let seed = args.next().map_or(Ok(1), |text| text.parse())?;
    let mut random = Random::new(seed);
    let raw = contents(&mut random);
    let directory = std::env::temp_dir().join(format!("soak-{}", std::process::id()));
    std::fs::create_dir(&directory)?;
    let image = directory.join("image");
    let socket = directory.join("nbd.sock");
    let result = (|| {
        pack::pack(
            Source::from_reader(Box::new(Cursor::new(raw.clone())), "memory"),
            Target::Path(&image, Existing::Keep),
            &pack::Options {
                format: Format::Zstd,
                frame_bytes: 64 << 10,
                level: Some(3),
                tune: Tune::Speed,
                cdc: false,
                engines: 2,
                thin: Default::default(),
                limits: Default::default(),
            },
            &mut |_| (),
        )?;
        let config = DeviceConfig {
            memory_bytes: 16 << 20,
            ..DeviceConfig::default()
        };
        let pool = Arc::new(Pool::start(PoolConfig::default())?);
        let device = Device::open(File::open(&image)?, pool, config)?;
        let server = Server::bind(device, &[Address::Unix(socket.clone())], Options::default())?;
        let stopper = server.stopper();
        let serving = std::thread::spawn(move || server.run());
        let until = Instant::now() + Duration::from_secs(seconds);
        let slowest = std::thread::scope(|scope| {
            let readers: Vec<_> = (1..=READERS)
                .map(|reader| {
                    let (raw, socket) = (&raw, &socket);
                    let random = Random::new(seed ^ reader << 32);
                    scope.spawn(move || {
                        read(reader, Client::connect(socket, "")?, raw, random, until)
                    })
                })
                .collect();
            readers
                .into_iter()
                .map(|reader| reader.join().map_err(|_| "a reader panicked")?)
                .try_fold(Duration::ZERO, |most, one| one.map(|one| most.max(one)))
        });
        stopper.stop();
        serving.join().map_err(|_| "the server panicked")??;
        slowest
    })();
    std::fs::remove_dir_all(&directory)?;
    match result? {
        slowest if slowest < Duration::from_secs(1) => Ok(()),
        slowest => Err(format!("seed {seed}: a read took {slowest:?}").into()),
    }
}

/// Reads until it is time; how long the slowest read took.
fn read(
    reader: u64,
    mut client: Client,
    raw: &[u8],
    mut random: Random,
    until: Instant,
) -> Result<Duration, Failure> {
    let (mut slowest, mut reads) = (Duration::ZERO, 0_u64);
    let mut buffer = vec![0; 256 << 10];
    while Instant::now() < until {
        let len = match reader % 2 {
            0 => 4096,
            _ => (128 << 10) + random.below(128 << 10) as usize,
        };
        let offset = random.below((raw.len() - len) as u64) as usize;
        let begun = Instant::now();
        client.read_at(offset as u64, &mut buffer[..len])?;
        slowest = slowest.max(begun.elapsed());
        reads += 1;
        if buffer[..len] != raw[offset..offset + len] {
            return Err(format!("wrong bytes: {len} at {offset}").into());
        }
    }
    let size = if reader.is_multiple_of(2) {
        "4 KiB"
    } else {
        "128 to 256 KiB"
    };
    println!("reader {reader} ({size}): {reads} reads, the slowest {slowest:.1?}");
    Ok(slowest)
}

/// 32 MiB that compress about 2:1.
fn contents(random: &mut Random) -> Vec<u8> {
    let words: Vec<[u8; 8]> = (0..256).map(|_| random.bits().to_le_bytes()).collect();
    let mut raw = Vec::with_capacity(32 << 20);
    while raw.len() < 32 << 20 {
        match random.below(3) {
            0 => raw.extend_from_slice(&random.bits().to_le_bytes()),
            _ => raw.extend_from_slice(&words[random.below(256) as usize]),
        }
    }
    raw
}

const READERS: u64 = 8;

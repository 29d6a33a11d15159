//! Writers that are killed (`kill -9`), on a disk that loses what was not flushed: every flushed
//! byte is there afterwards, and no grain is torn.
//!
//! The writer is this program, started again. Its store keeps writes in memory until a sync, which
//! writes them sector by sector in any order; meanwhile single sectors go to the file early, as a
//! kernel's write-back does. So a kill at any time leaves what a power cut might.
//! `SIDECORE_KILLS=1000` makes it long; a failure says its seed, which `SIDECORE_KILLS_SEED` takes.

#![allow(clippy::unwrap_used, clippy::print_stdout)] // A failure here is a failed test.

use bech32::{Bech32, Hrp};
use sidecore_block::codec::Tune;
use sidecore_block::format::lock::{Cipher, FrameKey};
use sidecore_block::format::{Format, Index};
use sidecore_block::inner::Kind;
use sidecore_block::overlay::identity::Identity;
use sidecore_block::overlay::store::{FileStore, Store};
use sidecore_block::overlay::tools;
use sidecore_block::pack::{Existing, Guard, Options, Source, Target, pack_guarded};
use sidecore_block::secret::{Readers, Secrets};
use sidecore_block::source::{BlockSource, BlockWrites, MemorySource};
use sidecore_random::split_mix;
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::ops::Range;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;
use x25519_dalek::{PublicKey, StaticSecret};

const GRAIN: usize = 4096;
const SIZE: usize = 600 * GRAIN - 300;
const SECTOR: u64 = 512;
const OPERATIONS_MAX: u64 = 20_000;
/// Maximum number of operations of a writer after its last flush; one in eight is a flush.
const REACH: u64 = 400;

/// The image's identity; with its key where the overlay at `path` is to be sealed.
fn identity(path: &Path) -> Identity {
    let is_sealed = path.extension().is_some_and(|it| it == "sealed");
    Identity {
        size_bytes: SIZE as u64,
        hash: [9; 32],
        key: is_sealed.then(|| key(path.parent().unwrap())),
    }
}

/// Key of the encrypted image in `folder`, which is created if it is missing.
fn key(folder: &Path) -> Arc<FrameKey> {
    let (image, words) = (folder.join("image"), folder.join("identity"));
    if !image.exists() {
        let secret = StaticSecret::from([7; 32]);
        let text = |prefix: &str, bytes: &[u8]| {
            bech32::encode::<Bech32>(Hrp::parse(prefix).unwrap(), bytes).unwrap()
        };
        std::fs::write(&words, text("age-secret-key-", &[7; 32])).unwrap();
        let raw = folder.join("raw");
        std::fs::write(&raw, [1; 5000]).unwrap();
        let mut readers = Readers::default();
        let public = text("age", PublicKey::from(&secret).as_bytes());
        readers.add_recipient(&public).unwrap();
        let options = Options {
            format: Format::Lz4,
            frame_bytes: 4096,
            level: None,
            tune: Tune::Speed,
            cdc: false,
            engines: 1,
            thin: Default::default(),
            limits: Default::default(),
        };
        let guard = Guard {
            seal: None,
            lock: Some(readers.locker(Cipher::fastest()).unwrap()),
        };
        let source = Source::open(&raw, Kind::Erofs, folder).unwrap();
        let target = Target::Path(&image, Existing::Keep);
        pack_guarded(source, target, &options, guard, &mut |_| ()).unwrap();
    }
    let mut secrets = Secrets::default();
    secrets.add_identities(&words).unwrap();
    let mut index = Index::open(&File::open(image).unwrap()).unwrap();
    secrets.apply(&mut index).unwrap();
    Arc::clone(index.key().unwrap())
}

fn base() -> Vec<u8> {
    (0..SIZE).map(|at| (at / 31) as u8).collect()
}

/// A step of a writer.
enum Operation {
    Flush,
    Zero(Range<usize>),
    Write(usize, Vec<u8>),
}

/// Operation `number` of the writer with this seed.
fn operation(seed: u64, number: u64) -> Operation {
    let mut random = seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let kind = split_mix(&mut random) % 16;
    let mut offset = split_mix(&mut random) as usize % SIZE;
    let mut len = 1 + split_mix(&mut random) as usize % (4 * GRAIN);
    if kind > 5 {
        offset -= offset % GRAIN;
        len = GRAIN * (1 + len / (3 * GRAIN));
    }
    let len = len.min(SIZE - offset);
    match kind {
        0 | 1 => Operation::Flush,
        2 => Operation::Zero(offset..offset + len),
        _ => {
            let words = std::iter::repeat_with(|| split_mix(&mut random).to_le_bytes());
            Operation::Write(offset, words.flatten().take(len).collect())
        }
    }
}

type Waiting = Arc<Mutex<BTreeMap<u64, [u8; SECTOR as usize]>>>;

/// A file whose writes wait for a sync.
struct Forgetful {
    file: FileStore,
    waiting: Waiting,
    random: Mutex<u64>,
}

impl Forgetful {
    fn sector(&self, number: u64) -> io::Result<[u8; SECTOR as usize]> {
        let mut bytes = [0; SECTOR as usize];
        let size = self.file.size_bytes()?;
        let there = size.saturating_sub(number * SECTOR).min(SECTOR) as usize;
        self.file.read_at(&mut bytes[..there], number * SECTOR)?;
        Ok(bytes)
    }

    /// Calls `each` with a sector, the range in it and the range in a buffer for `offset` that are
    /// the same bytes.
    fn each(
        offset: u64,
        len: usize,
        each: &mut dyn FnMut(u64, Range<usize>, Range<usize>) -> io::Result<()>,
    ) -> io::Result<()> {
        let end = offset + len as u64;
        for number in offset / SECTOR..end.div_ceil(SECTOR) {
            let (from, to) = (offset.max(number * SECTOR), end.min((number + 1) * SECTOR));
            let within = (from - number * SECTOR) as usize..(to - number * SECTOR) as usize;
            each(
                number,
                within,
                (from - offset) as usize..(to - offset) as usize,
            )?;
        }
        Ok(())
    }
}

impl Store for Forgetful {
    fn size_bytes(&self) -> io::Result<u64> {
        let waiting = self.waiting.lock().unwrap();
        let last = waiting.last_key_value().map_or(0, |it| (it.0 + 1) * SECTOR);
        Ok(self.file.size_bytes()?.max(last))
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let waiting = self.waiting.lock().unwrap();
        Self::each(offset, buf.len(), &mut |number, within, part| {
            let bytes = match waiting.get(&number) {
                Some(bytes) => *bytes,
                None => self.sector(number)?,
            };
            buf[part].copy_from_slice(&bytes[within]);
            Ok(())
        })
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut waiting = self.waiting.lock().unwrap();
        Self::each(offset, bytes.len(), &mut |number, within, part| {
            let mut sector = match waiting.get(&number) {
                Some(bytes) => *bytes,
                None => self.sector(number)?,
            };
            sector[within].copy_from_slice(&bytes[part]);
            waiting.insert(number, sector);
            Ok(())
        })
    }

    fn sync(&self) -> io::Result<()> {
        // Held: the early writer must not write its older bytes later.
        let mut waiting = self.waiting.lock().unwrap();
        let mut sectors: Vec<_> = std::mem::take(&mut *waiting).into_iter().collect();
        let mut random = self.random.lock().unwrap();
        while !sectors.is_empty() {
            let at = split_mix(&mut random) as usize % sectors.len();
            let (number, bytes) = sectors.swap_remove(at);
            self.file.write_at(&bytes, number * SECTOR)?;
        }
        Ok(())
    }

    fn reserve(&self, offset: u64, len: u64) -> io::Result<()> {
        self.file.reserve(offset, len)
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        // Not before a sync, like everything.
        let size = self.size_bytes()?;
        let len = size.saturating_sub(offset).min(len);
        self.write_at(&vec![0; len as usize], offset)
    }
}

/// Writes single sectors before their sync, for ever.
fn write_early(file: &FileStore, waiting: &Waiting, mut random: u64) -> ! {
    loop {
        {
            let waiting = waiting.lock().unwrap();
            let skip = split_mix(&mut random) as usize % waiting.len().max(1);
            // It stays in the list: the next sync writes it again.
            if let Some((number, bytes)) = waiting.iter().nth(skip) {
                file.write_at(bytes, number * SECTOR).unwrap();
            }
        }
        std::thread::sleep(Duration::from_micros(split_mix(&mut random) % 300));
    }
}

/// The writer: until it is killed. Says the number of each flush that is done.
#[test]
fn writer() {
    let Some(path) = std::env::var_os("SIDECORE_KILLS_WRITER") else {
        return;
    };
    let seed: u64 = std::env::var("SIDECORE_KILLS_SEED")
        .unwrap()
        .parse()
        .unwrap();
    let open = || {
        OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .unwrap()
    };
    let file = FileStore::lock(open(), true)
        .unwrap()
        .expect("the one before is dead");
    let waiting = Waiting::default();
    let (early, again) = (Arc::clone(&waiting), FileStore::unlocked(open()));
    std::thread::spawn(move || write_early(&again, &early, seed));
    let store = Forgetful {
        file,
        waiting,
        random: Mutex::new(seed),
    };
    let base = Arc::new(MemorySource::new(base()));
    let identity = identity(Path::new(&path));
    let overlay = tools::open_in(Box::new(store), base, &identity, true, 32 << 20).unwrap();
    let mut out = io::stdout();
    writeln!(out, "opened").unwrap();
    for number in 0..OPERATIONS_MAX {
        match operation(seed, number) {
            Operation::Flush => {
                match number % 7 {
                    0 => overlay.close().unwrap(),
                    _ => overlay.flush().unwrap(),
                }
                writeln!(out, "flushed {number}").unwrap();
                out.flush().unwrap();
            }
            Operation::Zero(range) => {
                overlay
                    .write_zeroes(range.start as u64, range.len() as u64)
                    .unwrap();
            }
            Operation::Write(offset, bytes) => overlay.write(offset as u64, &bytes).unwrap(),
        }
    }
    loop {
        std::thread::sleep(Duration::from_secs(1));
    }
}

fn contents(path: &Path) -> Vec<u8> {
    let base = Arc::new(MemorySource::new(base()));
    let overlay = tools::open(path, base, &identity(path), false).unwrap();
    let mut bytes = vec![0; SIZE];
    overlay.read_into(0, &mut bytes).unwrap();
    bytes
}

/// Runs one writer and kills it `delay` after it has opened the overlay and done `flushes` flushes;
/// the number of its last one.
fn kill_one(path: &Path, seed: u64, flushes: u64, delay: Duration) -> Option<u64> {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "writer", "--nocapture", "--test-threads=1"])
        .env("SIDECORE_KILLS_WRITER", path)
        .env("SIDECORE_KILLS_SEED", seed.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let (sender, said) = mpsc::channel();
    let reader = std::thread::spawn(move || {
        let mut last = None;
        for line in lines.map_while(Result::ok) {
            // The test runner's own output may precede the first.
            if let Some((_, number)) = line.split_once("flushed ") {
                last = number.trim().parse::<u64>().ok();
            } else if !line.contains("opened") {
                continue;
            }
            sender.send(()).ok();
        }
        last
    });
    // Counted in what it has done: on a busy machine its start alone may take longer than a life.
    for _ in 0..=flushes {
        // The error of a writer that has ended by itself shows in what it did.
        said.recv().ok();
    }
    std::thread::sleep(delay);
    child.kill().unwrap();
    child.wait().unwrap();
    reader.join().unwrap()
}

/// The contents that each grain may have after a kill: those of the last flush, and later ones.
fn model(seed: u64, flushed: Option<u64>, mut now: Vec<u8>) -> Vec<Vec<Vec<u8>>> {
    let only = |now: &[u8]| {
        now.chunks(GRAIN)
            .map(|grain| vec![grain.to_vec()])
            .collect()
    };
    let mut may: Vec<Vec<Vec<u8>>> = only(&now);
    for number in 0..flushed.unwrap_or(0) + REACH {
        let range = match operation(seed, number) {
            Operation::Flush => {
                if flushed.is_some_and(|last| number <= last) {
                    may = only(&now);
                }
                continue;
            }
            Operation::Zero(range) => {
                now[range.clone()].fill(0);
                range
            }
            Operation::Write(offset, bytes) => {
                let range = offset..offset + bytes.len();
                now[range.clone()].copy_from_slice(&bytes);
                range
            }
        };
        for grain in range.start / GRAIN..range.end.div_ceil(GRAIN) {
            let bytes = &now[grain * GRAIN..((grain + 1) * GRAIN).min(SIZE)];
            may[grain].push(bytes.to_vec());
        }
    }
    may
}

#[test]
fn kills_lose_nothing_that_was_flushed_and_tear_nothing() {
    kill_writers("overlay");
}

#[test]
fn kills_of_sealed_overlays_lose_nothing_either() {
    kill_writers("overlay.sealed");
}

fn kill_writers(name: &str) {
    if std::env::var_os("SIDECORE_KILLS_WRITER").is_some() {
        return;
    }
    let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    let kills = number("SIDECORE_KILLS").unwrap_or(20);
    let first = number("SIDECORE_KILLS_SEED").unwrap_or(1);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(name);
    tools::create(&path, &identity(&path), GRAIN as u32, "base").unwrap();
    let mut known = contents(&path);
    let (mut flushed_ones, mut grains_ahead) = (0, 0);
    for seed in first..first + kills {
        let mut random = seed;
        let flushes = split_mix(&mut random) % 6;
        let delay = Duration::from_micros(split_mix(&mut random) % 10_000);
        let flushed = kill_one(&path, seed, flushes, delay);
        flushed_ones += u64::from(flushed.is_some());
        let found = contents(&path);
        let may = model(seed, flushed, known);
        for (grain, bytes) in found.chunks(GRAIN).enumerate() {
            let at = may[grain].iter().position(|may| may == bytes);
            let at = at.unwrap_or_else(|| {
                panic!("seed {seed}: grain {grain} is torn or lost what flush {flushed:?} kept")
            });
            grains_ahead += u64::from(at > 0);
        }
        known = found;
    }
    println!("{kills} kills, {flushed_ones} after a flush; {grains_ahead} grains newer than it");
    assert!(
        flushed_ones > kills / 8,
        "only {flushed_ones} of {kills} writers came to a flush"
    );
}

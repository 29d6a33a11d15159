//! Many readers, few slots: whatever they hold and want, each read ends, with the right bytes.
//!
//! Why here: a cache is sized so that slots seldom run out; these devices have one to a few slots,
//! so that they always do. A reader that waits for ever is found by progress, not by the clock: the
//! number of reads is fixed, so sooner or later no other reader makes progress.

use super::tests::{FRAME_BYTES, Packed, packed, pool, read_into, read_with};
use super::*;
use sidecore_offload::{TaskOptions, TasksOptions};
use sidecore_random::Random;
use std::collections::BTreeSet;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};

/// A device with `slots` slots, however many its frames and engines call for.
fn open_with_slots(image: &File, pool: Arc<Pool>, slots: u64, maps: bool) -> Arc<Device> {
    let file = image.try_clone().unwrap();
    let index = Index::open(&file).unwrap();
    let budget = Budget {
        slots,
        slots_min: slots,
        maps,
    };
    Device::open_divided(file, index, pool, &budget, 64 << 10).unwrap()
}

/// Damages the middle of a frame.
fn damage(packed: &Packed, frame: u64) {
    let frame = Index::open(&packed.image).unwrap().frame(frame);
    let at = frame.offset + u64::from(frame.stored_bytes) / 2;
    let mut byte = [0];
    packed.image.read_exact_at(&mut byte, at).unwrap();
    packed.image.write_all_at(&[byte[0] ^ 0x10], at).unwrap();
}

/// One reader: small reads at random, large ones, and runs in sequence.
struct Reader<'d> {
    device: &'d Device,
    raw: &'d [u8],
    /// Damaged frames.
    bad: &'d [u64],
    random: Random,
    next: u64,
}

impl Reader<'_> {
    fn read(&mut self) {
        let (frame_bytes, size) = (u64::from(FRAME_BYTES), self.raw.len() as u64);
        let (offset, len) = match self.random.below(8) {
            0..3 => (self.random.below(size), 1 + self.random.below(4096)),
            3..6 => (self.random.below(size), self.random.below(9 * frame_bytes)),
            6 => (self.random.below(size), frame_bytes),
            _ => (self.next, 1 + self.random.below(frame_bytes)),
        };
        let len = len.min(size - offset);
        self.next = (offset + len) % size;
        let got = match self.random.below(4) {
            0 => read_into(self.device, offset, len as usize),
            _ => read_with(self.device, offset, len as usize),
        };
        let frames = offset / frame_bytes..(offset + len).div_ceil(frame_bytes);
        let touches = len > 0 && self.bad.iter().any(|bad| frames.contains(bad));
        match got {
            Ok(bytes) => {
                assert!(!touches, "{len} bytes at {offset} of a damaged frame");
                let expected = &self.raw[offset as usize..(offset + len) as usize];
                assert!(bytes == expected, "{len} bytes at {offset} differ");
            }
            Err(error) => assert!(touches, "{len} bytes at {offset}: {error}"),
        }
    }
}

/// Count of all finished reads, and which readers have ended.
#[derive(Clone)]
struct Progress {
    reads: Arc<AtomicU64>,
    ended: Sender<()>,
}

/// Waits for `readers` that run in other threads. Fails when none of them makes progress: a
/// deadlock, which depends only a little on the machine's speed.
fn watch(case: &str, readers: usize, run: impl FnOnce(Progress)) {
    let (ended, endings) = channel();
    let reads = Arc::new(AtomicU64::new(0));
    run(Progress {
        reads: Arc::clone(&reads),
        ended,
    });
    let (mut left, mut before) = (readers, 0);
    while left > 0 {
        match endings.recv_timeout(STANDSTILL) {
            Ok(()) => left -= 1,
            Err(RecvTimeoutError::Timeout) => {
                let now = reads.load(Ordering::Relaxed);
                assert!(
                    now > before,
                    "{case}: {left} readers wait for ever after {now} reads"
                );
                before = now;
            }
            Err(RecvTimeoutError::Disconnected) => panic!("{case}: a reader failed, see above"),
        }
    }
}

/// No read takes a thousandth of it.
const STANDSTILL: Duration = Duration::from_secs(30);

#[test]
fn readers_of_a_tiny_cache_all_get_there() {
    let seed = 0x51_07_u64;
    for case in 0..24 {
        let mut random = Random::new(seed + case);
        let format = [Format::Zstd, Format::Lz4, Format::Cloop][random.below(3) as usize];
        let packed = Arc::new(packed(format, 1 << 20));
        // From the front half: behind it are frames of zeros, which are not read at all.
        let bad: BTreeSet<_> = (0..random.below(4)).map(|_| random.below(30)).collect();
        let bad: Arc<[u64]> = bad.into_iter().collect();
        bad.iter().for_each(|&frame| damage(&packed, frame));
        let slots = 1 + random.below(8);
        let engines = 1 + random.below(3) as usize;
        let readers = 2 + random.below(7) as usize;
        let maps = random.below(2) == 0;
        let text = format!(
            "seed {seed:#x}, case {case}: {format}, {slots} slots, {engines} engines, {readers} \
             readers, damaged {bad:?}"
        );
        let device = open_with_slots(&packed.image, pool(engines), slots, maps);
        watch(&text, readers, |progress| {
            for reader in 0..readers as u64 {
                let (device, packed, bad) = (device.clone(), packed.clone(), bad.clone());
                let progress = progress.clone();
                std::thread::spawn(move || {
                    let mut reader = Reader {
                        device: &device,
                        raw: &packed.raw,
                        bad: &bad,
                        random: Random::new(seed ^ case << 32 ^ (reader + 1) << 48),
                        next: 0,
                    };
                    for _ in 0..READS {
                        reader.read();
                        progress.reads.fetch_add(1, Ordering::Relaxed);
                    }
                    progress.ended.send(()).unwrap();
                });
            }
        });
    }
}

/// As above, with readers that share few threads: one that blocked its thread would block those it
/// waits for.
#[test]
fn tasks_that_read_a_tiny_cache_all_get_there() {
    let seed = 0x7A_51_u64;
    let packed = Arc::new(packed(Format::Zstd, 1 << 20));
    damage(&packed, 9);
    for slots in 1..=4 {
        let hosts = 1 + slots as usize % 2;
        let text = format!("seed {seed:#x}: {slots} slots, {hosts} hosts");
        let device = open_with_slots(&packed.image, pool(2), slots, false);
        let packed = Arc::clone(&packed);
        watch(&text, 1, |progress| {
            std::thread::spawn(move || {
                let options = TasksOptions {
                    hosts,
                    live_max: Some(5),
                    ..TasksOptions::default()
                };
                let (device, packed, progress) = (&device, &packed, &progress);
                let run = device.pool().tasks(options, |scope| {
                    for task in 0..7_u64 {
                        scope.spawn(TaskOptions::default(), move |_| {
                            let mut reader = Reader {
                                device,
                                raw: &packed.raw,
                                bad: &[9],
                                random: Random::new(seed ^ slots << 32 ^ (task + 1) << 48),
                                next: 0,
                            };
                            for _ in 0..READS {
                                reader.read();
                                progress.reads.fetch_add(1, Ordering::Relaxed);
                            }
                        });
                    }
                });
                run.unwrap();
                progress.ended.send(()).unwrap();
            });
        });
    }
}

/// A reader of several frames has joined another's work on one of them and holds all slots besides.
/// When the other fails, it must not look for a slot while it holds them.
#[test]
fn a_reader_let_down_by_another_gives_its_slots_back() {
    let packed = Arc::new(packed(Format::Zstd, 1 << 20));
    damage(&packed, 3);
    let device = open_with_slots(&packed.image, pool(1), 4, true);
    // As long as this holds the only engine, readers claim their frames and get no further.
    let seat = device.pool().seat();
    let frame = u64::from(FRAME_BYTES);
    let (ended, endings) = channel();
    let start = |offset, len| {
        let (device, ended) = (device.clone(), ended.clone());
        std::thread::spawn(move || {
            ended
                .send(read_with(&device, offset, len).map(drop))
                .unwrap();
        });
    };
    start(3 * frame, 100);
    wait_for(|| device.cache_counts().misses == 1);
    // Not from the frame's beginning: a part of a frame goes through the cache.
    start(3 * frame + 1, 4 * frame as usize - 1);
    wait_for(|| device.cache_counts().misses == 4 && device.cache_counts().joins == 1);
    drop(seat);
    for _ in 0..2 {
        let result = endings.recv_timeout(STANDSTILL);
        let error = result.expect("a reader waits for itself").unwrap_err();
        assert!(
            matches!(error, ReadError::BadFrame { frame: 3, .. }),
            "{error}"
        );
    }
}

fn wait_for(mut is_so: impl FnMut() -> bool) {
    while !is_so() {
        std::thread::yield_now();
    }
}

const READS: usize = 150;

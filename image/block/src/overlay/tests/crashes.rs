//! Random writes, zeros, discards and flushes; crashes at any sync and between; the model says what
//! may be there.

use super::super::format::{Change, LOG_AT, Log, encode_group};
use super::super::layer::Layer;
use super::super::store::Store;
use super::*;
use crate::source::{BlockSource, BlockWrites};
use parking_lot::Mutex;
use sidecore_random::split_mix;
use std::io;

/// The contents that each grain may have after a crash: the flushed version, and those written
/// since.
struct Model {
    now: Vec<u8>,
    /// For each grain: contents at the last flush, and every content it had since.
    may: Vec<Vec<Vec<u8>>>,
}

impl Model {
    fn new(now: Vec<u8>) -> Self {
        let may = now
            .chunks(GRAIN)
            .map(|grain| vec![grain.to_vec()])
            .collect();
        Self { now, may }
    }

    fn write(&mut self, offset: usize, bytes: &[u8]) {
        self.now[offset..offset + bytes.len()].copy_from_slice(bytes);
        for grain in offset / GRAIN..(offset + bytes.len()).div_ceil(GRAIN) {
            let end = ((grain + 1) * GRAIN).min(self.now.len());
            self.may[grain].push(self.now[grain * GRAIN..end].to_vec());
        }
    }

    fn flushed(&mut self) {
        *self = Self::new(std::mem::take(&mut self.now));
    }

    /// Takes the state after a crash, if it is allowed.
    fn settle(&mut self, found: Vec<u8>, seed: u64) {
        for (number, grain) in found.chunks(GRAIN).enumerate() {
            assert!(
                self.may[number].iter().any(|may| may == grain),
                "grain {number} holds what it never did, or lost what was flushed (seed {seed})"
            );
        }
        *self = Self::new(found);
    }
}

fn contents(overlay: &Overlay) -> Vec<u8> {
    let mut bytes = vec![0; overlay.size_bytes() as usize];
    overlay.read_into(0, &mut bytes).unwrap();
    bytes
}

/// One life of a disk: operations, then a crash. `map_bytes` of 64 KiB make snapshots frequent.
fn live(disk: &Disk, model: &mut Model, base: &[u8], random: &mut u64, seed: u64) {
    let map_bytes = if split_mix(random).is_multiple_of(2) {
        16 << 10
    } else {
        1 << 20
    };
    let layers = vec![layer(disk, true, map_bytes).unwrap()];
    let overlay = Overlay::new(Arc::new(MemorySource::new(base.to_vec())), layers, true);
    model.settle(contents(&overlay), seed);
    let size = base.len();
    for _ in 0..split_mix(random) % 60 {
        let offset = split_mix(random) as usize % size;
        let mut len = (split_mix(random) as usize % (5 * GRAIN)).min(size - offset);
        let mut offset = offset;
        if split_mix(random).is_multiple_of(2) {
            offset -= offset % GRAIN;
            len = (len.next_multiple_of(GRAIN)).min(size - offset);
        }
        match split_mix(random) % 12 {
            0 => {
                overlay.flush().unwrap();
                model.flushed();
            }
            1 => {
                overlay.write_zeroes(offset as u64, len as u64).unwrap();
                model.write(offset, &vec![0; len]);
            }
            2 => {
                overlay.discard(offset as u64, len as u64).unwrap();
                // Whole grains are zeros then, and no others.
                let first = offset.next_multiple_of(GRAIN);
                let end = offset + len;
                let end = if end == size { end } else { end - end % GRAIN };
                if first < end {
                    model.write(first, &vec![0; end - first]);
                }
            }
            3 if split_mix(random).is_multiple_of(4) => {
                overlay.close().unwrap();
                model.flushed();
            }
            _ => {
                let bytes = noise(len, split_mix(random));
                overlay.write(offset as u64, &bytes).unwrap();
                model.write(offset, &bytes);
            }
        }
        if split_mix(random).is_multiple_of(8) {
            let mut read = vec![0; len];
            overlay.read_into(offset as u64, &mut read).unwrap();
            assert_eq!(read, &model.now[offset..offset + len], "seed {seed}");
        }
    }
    assert_eq!(contents(&overlay), model.now, "seed {seed}");
    drop(overlay);
    let kept = [0, 0, 40, 128, 250, 256][split_mix(random) as usize % 6];
    disk.crash(random, kept);
}

#[test]
fn after_any_crash_every_flushed_byte_is_there_and_no_grain_is_torn() {
    for seed in 0..72 {
        let mut random = seed;
        // 300 grains, the last one short: two leaves.
        let base = noise(300 * GRAIN - 700, 1000 + seed);
        let size = base.len() as u64;
        // Every third one sealed.
        let disk = match seed % 3 {
            0 => fresh_sealed(size, GRAIN as u32, Cipher::fastest()),
            _ => fresh(size, GRAIN as u32),
        };
        let mut model = Model::new(base.clone());
        for _ in 0..12 {
            live(&disk, &mut model, &base, &mut random, seed);
        }
    }
}

#[test]
fn a_crash_within_a_snapshot_loses_nothing() {
    // A disk that crashes after its nth sync, for every n that a run has.
    for (cut, is_sealed) in (1..40).flat_map(|cut| [(cut, false), (cut, true)]) {
        let base = vec![0; 64 * GRAIN];
        let disk = match is_sealed {
            true => fresh_sealed(base.len() as u64, GRAIN as u32, Cipher::ChaCha20Poly1305),
            false => fresh(base.len() as u64, GRAIN as u32),
        };
        let over = overlay(&disk, base.clone());
        let begun = disk.syncs();
        let mut kept = vec![0_u8; 64];
        let mut image = None;
        'run: for round in 1..20_u8 {
            for grain in 0..64_u64 {
                over.write(grain * GRAIN as u64, &[round; GRAIN]).unwrap();
            }
            match round % 3 {
                0 => over.close().unwrap(),
                _ => over.flush().unwrap(),
            }
            if disk.syncs() - begun >= cut {
                image = Some(disk.clone());
                kept = vec![round; 64];
                // Later writes are not durable.
                over.write(0, &[200; GRAIN]).unwrap();
                break 'run;
            }
        }
        let Some(disk) = image else { continue };
        drop(over);
        disk.crash(&mut cut.clone(), 0);
        let bytes = contents(&overlay(&disk, base));
        for (grain, round) in bytes.chunks(GRAIN).zip(&kept) {
            assert!(grain.iter().all(|byte| byte == round), "after sync {cut}");
        }
    }
}

/// The disk fails at a sync within the growth, each in turn, and loses some of what was not synced.
#[test]
fn a_crash_while_a_device_grows_leaves_one_of_both_sizes() {
    let (small, large) = (300 * GRAIN - 700, 900 * GRAIN - 100);
    let mut found = [0; 2];
    for seed in 0..48_u64 {
        let mut random = seed;
        let base = noise(small, 1000 + seed);
        let disk = match seed % 3 {
            0 => fresh_sealed(small as u64, GRAIN as u32, Cipher::fastest()),
            _ => fresh(small as u64, GRAIN as u32),
        };
        let over = overlay(&disk, base.clone());
        let mut expected = base.clone();
        // The last grain is short.
        for grain in [0, 7, 255, 299] {
            let range = grain * GRAIN..((grain + 1) * GRAIN).min(small);
            let bytes = noise(range.len(), split_mix(&mut random));
            over.write(range.start as u64, &bytes).unwrap();
            expected[range].copy_from_slice(&bytes);
        }
        over.flush().unwrap();
        disk.fail_after(Some(seed / 3 % 4));
        let grown = over.grow(large as u64);
        drop(over);
        disk.fail_after(None);
        disk.crash(&mut random, [0, 128, 256][seed as usize / 12 % 3]);
        let over = overlay(&disk, base.clone());
        let size = over.size_bytes() as usize;
        assert!(size == small || size == large, "seed {seed}: {size}");
        assert!(size == large || grown.is_err(), "seed {seed}");
        found[usize::from(size == large)] += 1;
        expected.resize(size, 0);
        assert!(contents(&over) == expected, "seed {seed}");
        // It goes on, with either size.
        over.grow(large as u64).unwrap();
        expected.resize(large, 0);
        for at in [small - 5, large - 10] {
            over.write(at as u64, &[6; 10]).unwrap();
            expected[at..at + 10].fill(6);
        }
        over.close().unwrap();
        drop(over);
        let over = overlay(&disk, base);
        assert!(contents(&over) == expected, "seed {seed}");
    }
    assert!(found[0] > 4 && found[1] > 4, "{found:?}");
}

/// Writers on both sides of the end, while it moves through a grain.
#[test]
fn a_device_grows_under_its_writers() {
    let size = 40 * GRAIN + 512;
    let disk = fresh(size as u64, GRAIN as u32);
    let over = overlay(&disk, vec![1; size]);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..100 {
                over.write(size as u64 - 512, &[2; 512]).unwrap();
                if round % 10 == 0 {
                    over.discard(0, size as u64).unwrap();
                }
            }
        });
        for step in 1..=20_u64 {
            let end = size as u64 + step * 512;
            assert_eq!(over.grow(end).unwrap(), end - 512);
            over.write(end - 512, &[3; 512]).unwrap();
        }
    });
    over.close().unwrap();
    let bytes = contents(&over);
    assert!(bytes[size..].iter().all(|&byte| byte == 3));
    drop(over);
    assert!(contents(&overlay(&disk, vec![1; size])) == bytes);
}

#[test]
fn a_full_disk_keeps_a_device_s_size() {
    let size = 64 * GRAIN;
    let disk = fresh(size as u64, GRAIN as u32);
    let over = overlay(&disk, vec![0; size]);
    over.write(0, &[5; GRAIN]).unwrap();
    disk.limit(Some(slot_at(1)));
    let refused = over.grow(1 << 30).unwrap_err();
    assert!(matches!(refused, OverlayError::NoSpace(_)), "{refused}");
    assert_eq!(over.size_bytes(), size as u64);
    disk.limit(None);
    over.flush().unwrap();
    over.grow(1 << 30).unwrap();
    over.write((1 << 30) - 1, &[7]).unwrap();
    over.close().unwrap();
    drop(over);
    let over = overlay(&disk, vec![0; size]);
    let mut byte = [0];
    over.read_into((1 << 30) - 1, &mut byte).unwrap();
    assert_eq!((over.size_bytes(), byte), (1 << 30, [7]));
}

#[test]
fn a_flush_of_nothing_costs_no_sync_and_one_of_much_costs_one() {
    let disk = fresh(1 << 20, GRAIN as u32);
    let over = overlay(&disk, vec![0; 1 << 20]);
    let before = disk.syncs();
    over.flush().unwrap();
    assert_eq!(disk.syncs(), before);
    for grain in 0..200 {
        over.write(grain * GRAIN as u64, &[1; GRAIN]).unwrap();
    }
    over.flush().unwrap();
    over.flush().unwrap();
    assert_eq!(disk.syncs(), before + 1);
}

#[test]
fn slots_come_back_and_the_file_stays_small() {
    let disk = fresh(256 * GRAIN as u64, GRAIN as u32);
    let over = overlay(&disk, vec![0; 256 * GRAIN]);
    for round in 0..100_u8 {
        for grain in 0..256 {
            over.write(grain * GRAIN as u64, &[round; GRAIN]).unwrap();
        }
        over.flush().unwrap();
    }
    over.close().unwrap();
    let slots = (disk.bytes().len() - slot_at(0)) / GRAIN;
    assert!(slots < 1024, "{slots} slots for 256 grains");
}

#[test]
fn a_full_disk_fails_the_write_and_nothing_else() {
    let size = 2000 * GRAIN;
    let disk = fresh(size as u64, GRAIN as u32);
    let over = overlay(&disk, vec![0; size]);
    disk.limit(Some(slot_at(500)));
    let mut model = vec![0_u8; 2000];
    let mut refused = 0;
    for (grain, held) in model.iter_mut().enumerate() {
        match over.write((grain * GRAIN) as u64, &[7; GRAIN]) {
            Ok(()) => *held = 7,
            Err(error) => {
                assert_eq!(error.errno(), libc::ENOSPC);
                refused += 1;
            }
        }
    }
    assert!((1000..1600).contains(&refused), "{refused}");
    // Accepted writes can be made durable without space, and read.
    over.flush().unwrap();
    let check = |over: &Overlay, model: &[u8]| {
        let bytes = contents(over);
        for (grain, held) in bytes.chunks(GRAIN).zip(model) {
            assert!(grain.iter().all(|byte| byte == held));
        }
    };
    check(&over, &model);
    drop(over);
    disk.crash(&mut 1, 0);
    let over = overlay(&disk, vec![0; size]);
    check(&over, &model);
    assert_eq!(
        over.write(1999 * GRAIN as u64, &[8; GRAIN])
            .unwrap_err()
            .errno(),
        libc::ENOSPC
    );
    // Room is made: it continues.
    disk.limit(None);
    for (grain, held) in model.iter_mut().enumerate() {
        over.write((grain * GRAIN) as u64, &[9; GRAIN]).unwrap();
        *held = 9;
    }
    over.close().unwrap();
    check(&over, &model);
}

#[test]
fn a_full_disk_in_a_snapshot_changes_nothing() {
    let size = 4096 * GRAIN;
    let disk = fresh(size as u64, GRAIN as u32);
    let over = overlay(&disk, vec![0; size]);
    // 16 leaves; slots for the data and not for the map.
    for grain in (0..4096_u64).step_by(64) {
        over.write(grain * GRAIN as u64, &[5; GRAIN]).unwrap();
    }
    disk.limit(Some(slot_at(70)));
    over.close().unwrap_err();
    over.write(0, &[6; GRAIN]).unwrap();
    over.flush().unwrap();
    disk.limit(None);
    over.close().unwrap();
    let bytes = contents(&over);
    assert!(bytes[..GRAIN].iter().all(|&byte| byte == 6));
    assert!(bytes[64 * GRAIN..65 * GRAIN].iter().all(|&byte| byte == 5));
    drop(over);
    disk.crash(&mut 3, 0);
    assert_eq!(contents(&overlay(&disk, vec![0; size])), bytes);
}

#[test]
fn readers_beside_writers_see_whole_writes() {
    readers_beside_writers(&fresh(64 * GRAIN as u64, GRAIN as u32));
    let sealed = fresh_sealed(64 * GRAIN as u64, GRAIN as u32, Cipher::fastest());
    readers_beside_writers(&sealed);
}

fn readers_beside_writers(disk: &Disk) {
    let over = Arc::new(overlay(disk, vec![0; 64 * GRAIN]));
    std::thread::scope(|scope| {
        for writer in 0..2_u64 {
            let over = &over;
            scope.spawn(move || {
                for round in 0..150_u64 {
                    let grain = (round * 7 + writer) % 64;
                    let bytes = [(round % 250) as u8 + 1; GRAIN];
                    over.write(grain * GRAIN as u64, &bytes).unwrap();
                    if round % 5 == writer {
                        over.flush().unwrap();
                    }
                }
            });
        }
        scope.spawn(|| {
            for round in 0..400_u64 {
                let mut bytes = [0; GRAIN];
                over.read_into(round * 5 % 64 * GRAIN as u64, &mut bytes)
                    .unwrap();
                assert!(bytes.iter().all(|&byte| byte == bytes[0]), "a torn grain");
            }
        });
    });
    // Parts of one grain by several writers at once: none is lost.
    std::thread::scope(|scope| {
        for writer in 0..4_u64 {
            let over = &over;
            scope.spawn(move || {
                for round in 0..50_u8 {
                    over.write(writer * 1024, &[round + writer as u8; 1024])
                        .unwrap();
                }
            });
        }
    });
    let mut bytes = [0; GRAIN];
    over.read_into(0, &mut bytes).unwrap();
    for (writer, part) in bytes.chunks(1024).enumerate() {
        assert!(part.iter().all(|&byte| byte == 49 + writer as u8));
    }
}

#[test]
fn a_log_that_fills_begins_again() {
    let size = 1 << 20;
    let disk = fresh(size, GRAIN as u32);
    let one: Layer = layer(&disk, true, 1 << 20).unwrap();
    let first = one.superblock().generation;
    // Small groups: 48 bytes for each change, of which 87,381 fit.
    let bytes = [1; GRAIN];
    for round in 0..90_000_u64 {
        one.write(round % 8, &bytes).unwrap();
        one.flush().unwrap();
    }
    assert!(one.superblock().generation > first);
    drop(one);
    disk.crash(&mut 1, 0);
    let again = layer(&disk, false, 1 << 20).unwrap();
    let mut read = [0; GRAIN];
    for grain in 0..8 {
        let entry = again.entry(grain).unwrap();
        let super::super::format::Entry::Data { slot, .. } = entry else {
            panic!("grain {grain} is gone")
        };
        again.read_slots(slot, &mut read).unwrap();
        assert_eq!(again.judge(grain, entry, &mut read).unwrap(), Some(true));
    }
}

type Step = Box<dyn FnOnce() + Send>;

/// A disk on which another thread's step comes before the next write of a grain.
struct Meanwhile(Disk, Arc<Mutex<Option<Step>>>);

impl Store for Meanwhile {
    fn size_bytes(&self) -> io::Result<u64> {
        self.0.size_bytes()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.0.read_at(buf, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let step = match offset >= SLOTS_AT {
            true => self.1.lock().take(),
            false => None,
        };
        if let Some(step) = step {
            step();
        }
        self.0.write_at(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync()
    }

    fn reserve(&self, offset: u64, len: u64) -> io::Result<()> {
        self.0.reserve(offset, len)
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        self.0.punch(offset, len)
    }
}

/// Two writes are admitted while the log has room for one group of both; each is flushed alone.
#[test]
fn flushes_between_admitted_writes_do_not_outgrow_the_log() {
    let disk = fresh(64 * GRAIN as u64, GRAIN as u32);
    let step = Arc::new(Mutex::new(None));
    let store = Box::new(Meanwhile(disk.clone(), Arc::clone(&step)));
    let layer = Arc::new(Layer::open(store, None, true, 1 << 20).unwrap());
    // Changes without data: of the 174,762 pieces that the log has room for, three are left.
    for changes in [100_000, 74_757] {
        for number in 0..changes {
            let grain = 1 + number % 2 * 2;
            layer.zero(grain..grain + 1).unwrap();
        }
        layer.flush().unwrap();
    }
    let other = Arc::clone(&layer);
    *step.lock() = Some(Box::new(move || {
        other.write(10, &[2; GRAIN]).unwrap();
        other.flush().unwrap();
    }));
    layer.write(20, &[1; GRAIN]).unwrap();
    layer.flush().unwrap();
    disk.crash(&mut 7, 0);
    let over = overlay(&disk, vec![9; 64 * GRAIN]);
    let found = contents(&over);
    for (grain, byte) in [(10, 2_u8), (20, 1), (1, 0), (2, 9)] {
        assert_eq!(found[grain * GRAIN..][..GRAIN], [byte; GRAIN], "{grain}");
    }
}

/// Of two writes to a grain the first was at the end of the file, which a crash has cut off there;
/// the second is whole.
#[test]
fn a_replaced_change_may_point_past_the_end_of_the_file() {
    let disk = fresh(64 * GRAIN as u64, GRAIN as u32);
    drop(layer(&disk, true, 1 << 20).unwrap());
    let bytes = [5; GRAIN];
    let change = |slot, check| Change::Data {
        grain: 3,
        slot,
        check,
    };
    let check = xxhash_rust::xxh3::xxh3_64(&bytes);
    let log = Log {
        seal: &Seal::Open,
        salt: 99,
    };
    let group = encode_group(1, log, &[change(7, 1), change(0, check)]);
    disk.write_at(&group, LOG_AT).unwrap();
    disk.write_at(&bytes, SLOTS_AT).unwrap();
    disk.sync().unwrap();
    // It stays so when other groups follow it.
    for grain in [10, 11] {
        let over = overlay(&disk, vec![9; 64 * GRAIN]);
        assert_eq!(contents(&over)[3 * GRAIN..4 * GRAIN], bytes);
        over.write_zeroes(grain * GRAIN as u64, GRAIN as u64)
            .unwrap();
        over.flush().unwrap();
    }
    let over = overlay(&disk, vec![9; 64 * GRAIN]);
    assert_eq!(contents(&over)[3 * GRAIN..4 * GRAIN], bytes);
}

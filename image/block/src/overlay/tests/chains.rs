//! Several layers, zeros among them, against plain bytes.

use super::*;
use crate::source::{BlockSource, BlockWrites};
use sidecore_random::split_mix;

#[test]
fn layers_read_as_the_uppermost_says() {
    for (seed, grain) in [(1_u64, 4096_u32), (2, 16384), (3, 65536)] {
        let mut random = seed;
        let size = 40 * 65536 - 1234;
        let base = noise(size, seed);
        let source = Arc::new(MemorySource::new(base.clone()));
        let mut expected = base;
        let mut disks: Vec<Disk> = Vec::new();
        for _ in 0..5 {
            let disk = match disks.len() % 2 {
                0 => fresh(size as u64, grain),
                _ => fresh_sealed(size as u64, grain, Cipher::fastest()),
            };
            let mut layers = vec![layer(&disk, true, 1 << 20).unwrap()];
            let below = disks
                .iter()
                .rev()
                .map(|disk| layer(disk, false, 1 << 20).unwrap());
            layers.extend(below);
            let over = Overlay::new(source.clone(), layers, true);
            for _ in 0..60 {
                let offset = split_mix(&mut random) as usize % size;
                let len = (split_mix(&mut random) as usize % 200_000).min(size - offset);
                if split_mix(&mut random).is_multiple_of(4) {
                    over.write_zeroes(offset as u64, len as u64).unwrap();
                    expected[offset..offset + len].fill(0);
                } else {
                    let bytes = noise(len, split_mix(&mut random));
                    over.write(offset as u64, &bytes).unwrap();
                    expected[offset..offset + len].copy_from_slice(&bytes);
                }
                let mut read = vec![0; len];
                over.read_with(offset as u64, len, &mut |pieces| {
                    read = pieces.unwrap().concat()
                });
                assert_eq!(read, &expected[offset..offset + len]);
            }
            over.close().unwrap();
            let mut read = vec![0; size];
            over.read_into(0, &mut read).unwrap();
            assert!(read == expected);
            check_extents(&over, &expected);
            drop(over);
            disks.push(disk);
        }
    }
}

/// Extents cover the device, and those marked as zeros are zeros.
fn check_extents(over: &Overlay, expected: &[u8]) {
    let mut at = 0;
    while at < over.size_bytes() {
        let extent = over.extent(at);
        assert!(extent.len > 0 && at + extent.len <= over.size_bytes());
        let bytes = &expected[at as usize..(at + extent.len) as usize];
        assert!(!extent.zero || bytes.iter().all(|&byte| byte == 0));
        at += extent.len;
    }
    assert_eq!(over.extent(at).len, 0);
}

#[test]
fn what_changed_is_told_by_layers() {
    let size = 600 * GRAIN;
    let lower = fresh(size as u64, GRAIN as u32);
    let over = overlay(&lower, vec![1; size]);
    over.write(10 * GRAIN as u64, &[2; 2 * GRAIN]).unwrap();
    over.write_zeroes(500 * GRAIN as u64, GRAIN as u64).unwrap();
    over.close().unwrap();
    drop(over);
    let upper = fresh(size as u64, GRAIN as u32);
    let layers = vec![
        layer(&upper, true, 1 << 20).unwrap(),
        layer(&lower, false, 1 << 20).unwrap(),
    ];
    let over = Overlay::new(Arc::new(MemorySource::new(vec![1; size])), layers, true);
    over.write(12 * GRAIN as u64 + 5, &[3; 10]).unwrap();
    let all = |depth| {
        let mut found = Vec::new();
        let mut at = 0;
        while let Some(changed) = over.next_changed(at, depth).unwrap() {
            found.push((changed.offset / GRAIN as u64, changed.len / GRAIN as u64));
            at = changed.offset + changed.len;
        }
        found
    };
    assert_eq!(all(2), [(10, 3), (500, 1)]);
    assert_eq!(all(1), [(12, 1)]);
    let inside = over
        .next_changed(11 * GRAIN as u64 + 1, 2)
        .unwrap()
        .unwrap();
    assert_eq!(inside.offset, 11 * GRAIN as u64 + 1);
}

#[test]
fn writes_past_the_end_are_refused_and_a_short_last_grain_is_kept() {
    let size = 3 * GRAIN + 100;
    let disk = fresh(size as u64, GRAIN as u32);
    let over = overlay(&disk, vec![9; size]);
    let error = over.write(size as u64 - 1, &[0; 2]).unwrap_err();
    assert_eq!(error.errno(), libc::EINVAL);
    assert!(over.discard(u64::MAX, 2).is_err());
    over.write(size as u64 - 50, &[8; 50]).unwrap();
    let mut read = vec![0; 100];
    over.read_into(3 * GRAIN as u64, &mut read).unwrap();
    assert_eq!(read, [[9; 50], [8; 50]].concat());
    over.discard(3 * GRAIN as u64, 100).unwrap();
    over.read_into(3 * GRAIN as u64, &mut read).unwrap();
    assert_eq!(read, [0; 100]);
}

#[test]
fn a_small_map_serves_a_large_device() {
    // 64 leaves, of which 16 fit in memory.
    let size = 64 * 256 * GRAIN;
    let disk = fresh(size as u64, GRAIN as u32);
    let layers = vec![layer(&disk, true, 1).unwrap()];
    let base: Arc<dyn BlockSource> = Arc::new(MemorySource::new(vec![0; size]));
    let over = Overlay::new(base, layers, true);
    for round in 0..3_u8 {
        for leaf in 0..64_u64 {
            over.write(leaf * 256 * GRAIN as u64, &[round + 1; GRAIN])
                .unwrap();
        }
    }
    for leaf in 0..64_u64 {
        let mut read = [0; GRAIN];
        over.read_into(leaf * 256 * GRAIN as u64, &mut read)
            .unwrap();
        assert_eq!(read, [3; GRAIN]);
    }
}

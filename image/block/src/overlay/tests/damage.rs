//! Files that rot, or are made to harm.

use super::super::format::{LOG_AT, SUPERBLOCK_BYTES};
use super::*;
use crate::source::{BlockSource, BlockWrites};
use sidecore_random::split_mix;

/// A disk with 8 flushed grains, in 4 groups; none in a snapshot.
fn groups() -> Disk {
    let disk = fresh(1 << 20, GRAIN as u32);
    let over = overlay(&disk, vec![0; 1 << 20]);
    for grain in 0..8_u64 {
        over.write(grain * GRAIN as u64, &[grain as u8 + 1; GRAIN])
            .unwrap();
        if grain % 2 == 1 {
            over.flush().unwrap();
        }
    }
    disk
}

fn grain(over: &Overlay, grain: u64) -> Result<u8, String> {
    let mut bytes = [0; GRAIN];
    let read = over.read_into(grain * GRAIN as u64, &mut bytes);
    read.map(|()| bytes[0]).map_err(|error| error.to_string())
}

#[test]
fn a_torn_tail_is_dropped_and_a_damaged_middle_refused() {
    // Head and two changes of a group: 72 bytes.
    let disk = groups();
    disk.damage(LOG_AT as usize + 3 * 72 + 30, 1);
    let over = overlay(&disk, vec![0; 1 << 20]);
    assert_eq!(
        (0..8)
            .map(|at| grain(&over, at).unwrap())
            .collect::<Vec<_>>(),
        [1, 2, 3, 4, 5, 6, 0, 0]
    );
    let disk = groups();
    disk.damage(LOG_AT as usize + 72 + 30, 1);
    let error = layer(&disk, true, 1 << 20).err().unwrap().to_string();
    assert!(error.contains("a group of its log is damaged"), "{error}");
}

#[test]
fn a_dropped_group_never_comes_back() {
    let disk = groups();
    // Its data did not arrive, its group did.
    disk.damage(slot_at(7), 1);
    let over = overlay(&disk, vec![0; 1 << 20]);
    assert_eq!(grain(&over, 7), Ok(0));
    drop(over);
    disk.damage(slot_at(7), 1);
    let over = overlay(&disk, vec![0; 1 << 20]);
    assert_eq!(grain(&over, 7), Ok(0));
}

#[test]
fn damaged_bytes_are_an_error_for_their_reads_alone() {
    let disk = groups();
    disk.damage(slot_at(2) + 100, 1);
    let over = overlay(&disk, vec![0; 1 << 20]);
    let error = grain(&over, 2).unwrap_err();
    assert!(error.contains("damaged at byte 8192"), "{error}");
    assert_eq!(grain(&over, 3), Ok(4));
    over.write(2 * GRAIN as u64, &[50; GRAIN]).unwrap();
    assert_eq!(grain(&over, 2), Ok(50));
}

#[test]
fn a_damaged_leaf_and_a_damaged_snapshot_are_said() {
    let disk = groups();
    overlay(&disk, vec![0; 1 << 20]).close().unwrap();
    // 8 grains, the one leaf, the snapshot.
    let leaf = disk.clone();
    leaf.damage(slot_at(8), 1);
    let over = overlay(&leaf, vec![0; 1 << 20]);
    assert!(
        grain(&over, 0)
            .unwrap_err()
            .contains("a leaf of its map is damaged")
    );
    assert!(over.write(0, &[1; GRAIN]).is_err());
    leaf.damage(slot_at(8), 1);
    leaf.damage(slot_at(9), 1);
    let error = layer(&leaf, false, 1 << 20).err().unwrap().to_string();
    assert!(
        error.contains("the snapshot of its map is damaged"),
        "{error}"
    );
}

#[test]
fn one_superblock_of_two_is_enough() {
    for at in [0, SUPERBLOCK_BYTES] {
        let disk = groups();
        overlay(&disk, vec![0; 1 << 20]).close().unwrap();
        disk.damage(at + 50, 1);
        let over = overlay(&disk, vec![0; 1 << 20]);
        assert_eq!(grain(&over, 5), Ok(6));
    }
    let disk = groups();
    disk.damage(0, 1);
    disk.damage(SUPERBLOCK_BYTES, 1);
    let error = layer(&disk, false, 1 << 20).err().unwrap();
    assert!(matches!(error, OverlayError::NotOverlay));
}

#[test]
fn any_damage_is_an_error_or_the_right_bytes() {
    let mut random = 4;
    let sound = groups();
    overlay(&sound, vec![0; 1 << 20]).close().unwrap();
    let over = overlay(&sound, vec![0; 1 << 20]);
    over.write(20 * GRAIN as u64, &[21; GRAIN]).unwrap();
    over.flush().unwrap();
    drop(over);
    let parts = [
        0..200,
        LOG_AT as usize..LOG_AT as usize + 100,
        slot_at(0)..sound.bytes().len(),
    ];
    for _ in 0..150 {
        let disk = Disk::default();
        super::super::store::Store::write_at(&disk, &sound.bytes(), 0).unwrap();
        for _ in 0..=split_mix(&mut random) % 3 {
            let part = &parts[split_mix(&mut random) as usize % parts.len()];
            let at = part.start + split_mix(&mut random) as usize % part.len();
            disk.damage(
                at,
                1 + split_mix(&mut random) as usize % (part.end - at).min(8),
            );
        }
        let Ok(one) = layer(&disk, false, 1 << 20) else {
            continue;
        };
        let base = Arc::new(MemorySource::new(vec![0; 1 << 20]));
        let over = Overlay::new(base, vec![one], false);
        for at in 0..8 {
            if let Ok(byte) = grain(&over, at) {
                // The last group may be dropped as if it were torn, and no other.
                assert_eq!(byte, at as u8 + 1);
            }
        }
    }
}

//! A file that shrinks under a live map: readers go on, the map reports it, other faults still
//! kill.

#![allow(clippy::unwrap_used)] // Helper functions of tests.

use sidecore_sys::{FileMap, SysError};
use std::fs::File;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;

fn file_of(bytes: usize) -> File {
    let mut file = tempfile::tempfile().unwrap();
    let contents: Vec<u8> = (0..bytes).map(|index| (index % 251) as u8 + 1).collect();
    file.write_all(&contents).unwrap();
    file
}

#[test]
fn bytes_are_the_files_at_any_offset() {
    let file = file_of(20_000);
    for (offset, len) in [
        (0, 20_000),
        (1, 19_999),
        (4096, 1),
        (5000, 9000),
        (19_999, 1),
    ] {
        let map = FileMap::new(&file, offset, len).unwrap();
        let expected: Vec<u8> = (offset as usize..offset as usize + len)
            .map(|index| (index % 251) as u8 + 1)
            .collect();
        assert_eq!(map.bytes(0..len).unwrap(), expected);
        let mut copy = vec![0; len];
        assert!(map.copy_to(0, &mut copy));
        assert_eq!(copy, expected);
        assert!(map.bytes(0..len + 1).is_none());
        assert!(!map.copy_to(1, &mut copy));
        map.advise_willneed(0..len);
        map.drop_resident();
        assert_eq!(map.bytes(0..len).unwrap(), expected);
        assert!(!map.damaged());
    }
}

#[test]
fn past_the_end_and_nothing_are_refused() {
    let file = file_of(100);
    for (offset, len) in [(0, 101), (100, 1), (50, 0), (u64::MAX, 2)] {
        let refused = FileMap::new(&file, offset, len);
        assert!(
            matches!(refused, Err(SysError::Size { .. })),
            "{offset} {len}"
        );
    }
}

/// As many as a supervisor of programs with thousands of sessions has.
#[test]
fn thousands_of_maps_are_guarded_at_once() {
    let file = file_of(8192);
    let map = || FileMap::new(&file, 0, 8192).unwrap();
    let mut maps: Vec<FileMap> = (0..3000).map(|_| map()).collect();
    // Places that became free are taken again, whichever they are.
    for index in [2999, 1500, 0] {
        drop(maps.swap_remove(index));
        maps.push(map());
    }
    file.set_len(4096).unwrap();
    for map in &maps {
        let mut copy = [1; 4096];
        assert!(!map.damaged() && map.copy_to(0, &mut copy));
        assert!(!map.damaged() && map.copy_to(4096, &mut copy));
        assert!(map.damaged() && copy == [0; 4096]);
    }
}

#[test]
fn a_truncated_file_reads_as_zeros_and_says_so() {
    let file = file_of(1 << 20);
    let other_file = file_of(1 << 20);
    let map = FileMap::new(&file, 0, 1 << 20).unwrap();
    let other = FileMap::new(&other_file, 0, 1 << 20).unwrap();
    assert_eq!(map.bytes(0..3), Some(&[1, 2, 3][..]));
    file.set_len(4096).unwrap();
    assert_eq!(map.bytes(0..3), Some(&[1, 2, 3][..]));
    assert!(!map.damaged(), "only what is touched counts");
    assert!(
        map.bytes(4096..1 << 20)
            .unwrap()
            .iter()
            .all(|&byte| byte == 0)
    );
    assert!(map.damaged());
    map.drop_resident();
    let mut copy = vec![1; 5000];
    assert!(map.copy_to(8192, &mut copy));
    assert!(copy.iter().all(|&byte| byte == 0));
    assert!(!other.damaged());
    assert_eq!(other.bytes(0..3), Some(&[1, 2, 3][..]));
    // A new map in the same place starts undamaged.
    drop(map);
    assert!(!FileMap::new(&file, 0, 4096).unwrap().damaged());
}

#[test]
fn many_threads_fault_at_once() {
    let file = file_of(4 << 20);
    let map = FileMap::new(&file, 0, 4 << 20).unwrap();
    file.set_len(0).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for page in map.bytes(0..4 << 20).unwrap().chunks(4096) {
                    assert_eq!(page[0], 0);
                }
                assert!(map.damaged());
            });
        }
    });
}

#[test]
fn maps_come_and_go_while_others_fault() {
    let file = file_of(1 << 20);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..500 {
                let whole = file_of(8192);
                let map = FileMap::new(&whole, 0, 8192).unwrap();
                assert_eq!(map.bytes(5000..5001).unwrap()[0], (5000 % 251) as u8 + 1);
                assert!(!map.damaged());
            }
        });
        scope.spawn(|| {
            for _ in 0..50 {
                let map = FileMap::new(&file, 0, 1 << 20).unwrap();
                file.set_len(0).unwrap();
                assert_eq!(
                    map.bytes(0..1 << 20)
                        .unwrap()
                        .iter()
                        .map(|&b| u64::from(b))
                        .sum::<u64>(),
                    0
                );
                assert!(map.damaged());
                file.set_len(1 << 20).unwrap();
            }
        });
    });
}

#[test]
fn a_fault_elsewhere_still_kills() {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "dies_of_a_foreign_fault", "--nocapture"])
        .env("SIDECORE_DIE_OF_SIGBUS", "1")
        .status()
        .unwrap();
    assert_eq!(child.signal(), Some(7), "{child:?}");
}

/// The body of the child above; does nothing when run with the others.
#[test]
#[allow(unsafe_code)] // Maps a file without the guard, to fault on it.
fn dies_of_a_foreign_fault() {
    if std::env::var_os("SIDECORE_DIE_OF_SIGBUS").is_none() {
        return;
    }
    let file = file_of(8192);
    let guarded = FileMap::new(&file, 0, 8192).unwrap();
    // SAFETY: a new read-only map of a file at an address of the kernel's choice.
    let foreign = unsafe {
        rustix::mm::mmap(
            std::ptr::null_mut(),
            8192,
            rustix::mm::ProtFlags::READ,
            rustix::mm::MapFlags::SHARED,
            &file,
            0,
        )
    }
    .unwrap();
    file.set_len(0).unwrap();
    assert_eq!(guarded.bytes(0..1).unwrap()[0], 0);
    assert!(guarded.damaged());
    // SAFETY: the address is mapped; its page is missing, which is the point.
    let byte = unsafe { foreign.cast::<u8>().add(4096).read_volatile() };
    panic!("read {byte} where a fault had to kill");
}

//! Overlays by their files: made, opened, cloned, refused.

use super::super::describe;
use super::super::identity::Identity;
use super::super::tools::{
    CloneKind, clone, clone_sized, create, create_sized, grow, is_overlay_file, open,
};
use super::*;
use crate::source::{BlockSource, BlockWrites};
use std::path::{Path, PathBuf};

const SIZE: usize = 1 << 20;

struct Files {
    directory: tempfile::TempDir,
    identity: Identity,
}

impl Files {
    fn new() -> Self {
        let identity = Identity {
            size_bytes: SIZE as u64,
            hash: [1; 32],
            key: None,
        };
        let files = Self {
            directory: tempfile::tempdir().unwrap(),
            identity,
        };
        create(&files.path("one"), &files.identity, 4096, "disk.img").unwrap();
        files
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn open(&self, name: &str, writable: bool) -> Result<Overlay, OverlayError> {
        let base = Arc::new(MemorySource::new(vec![0; SIZE]));
        open(&self.path(name), base, &self.identity, writable)
    }

    fn byte(&self, name: &str, grain: u64) -> u8 {
        let over = self.open(name, false).unwrap();
        let mut byte = [0];
        over.read_into(grain * GRAIN as u64, &mut byte).unwrap();
        byte[0]
    }
}

#[test]
fn one_writer_at_a_time_and_what_it_wrote_is_there_the_next_time() {
    let files = Files::new();
    let over = files.open("one", true).unwrap();
    over.write(0, &[5; GRAIN]).unwrap();
    let error = files.open("one", true).err().unwrap().to_string();
    assert!(
        error.contains("another process has this overlay open"),
        "{error}"
    );
    assert!(describe(&files.path("one")).unwrap().in_use);
    over.close().unwrap();
    drop(over);
    assert_eq!(files.byte("one", 0), 5);
    let told = describe(&files.path("one")).unwrap();
    assert_eq!(
        (told.size_bytes, told.log_bytes, told.frozen),
        (SIZE as u64, Some(0), false)
    );
    assert!(!told.in_use && told.base_name == "disk.img" && told.parent.is_none());
    assert!(is_overlay_file(&files.path("one")).unwrap());
    assert!(!is_overlay_file(&files.path("none")).unwrap());
    // A file that cannot be read is not an image for that.
    is_overlay_file(Path::new("/proc/self/mem")).unwrap_err();
}

#[test]
fn a_device_becomes_larger_and_not_smaller() {
    let files = Files::new();
    let size = SIZE as u64;
    let over = files.open("one", true).unwrap();
    over.write(0, &[5; GRAIN]).unwrap();
    assert_eq!(over.grow(2 * size).unwrap(), size);
    assert_eq!(over.grow(2 * size).unwrap(), 2 * size);
    let refused = over.grow(size).unwrap_err().to_string();
    assert!(refused.contains("does not become smaller"), "{refused}");
    let refused = over.grow(u64::MAX / 2).unwrap_err();
    assert!(matches!(refused, OverlayError::TooLarge { .. }));
    over.write(2 * size - 1, &[7]).unwrap();
    // The layer that comes on top has the size of then.
    over.take_snapshot(&files.path("two")).unwrap();
    assert_eq!(over.grow(3 * size).unwrap(), 2 * size);
    let refused = grow(&files.path("two"), None, 4 * size).unwrap_err();
    assert!(refused.to_string().contains("another process"), "{refused}");
    over.close().unwrap();
    drop(over);
    assert_eq!(grow(&files.path("two"), None, 4 * size).unwrap(), 3 * size);
    assert_eq!(describe(&files.path("two")).unwrap().size_bytes, 4 * size);
    let refused = grow(&files.path("one"), None, 8 * size).unwrap_err();
    assert!(refused.to_string().contains("no more writes"), "{refused}");
    let over = files.open("two", true).unwrap();
    assert_eq!(over.size_bytes(), 4 * size);
    let mut bytes = vec![1; 4 * SIZE];
    over.read_into(0, &mut bytes).unwrap();
    assert!(bytes[..GRAIN].iter().all(|&byte| byte == 5));
    assert_eq!(bytes.iter().filter(|&&byte| byte != 0).count(), GRAIN + 1);
    assert_eq!(bytes[2 * SIZE - 1], 7);
}

#[test]
fn clones_go_different_ways() {
    let files = Files::new();
    let over = files.open("one", true).unwrap();
    over.write(0, &[5; GRAIN]).unwrap();
    let error = clone(&files.path("one"), &files.path("two"), None, false).unwrap_err();
    assert!(error.to_string().contains("open"), "{error}");
    over.close().unwrap();
    drop(over);
    for name in ["two", "three"] {
        let kind = clone(&files.path("one"), &files.path(name), None, false).unwrap();
        assert_eq!(kind, CloneKind::Layer);
    }
    let error = files.open("one", true).err().unwrap().to_string();
    assert!(error.contains("a clone stands on it"), "{error}");
    for (name, byte) in [("two", 6), ("three", 7)] {
        let over = files.open(name, true).unwrap();
        assert_eq!(over.layers(), 2);
        over.write(GRAIN as u64, &[byte; GRAIN]).unwrap();
        over.close().unwrap();
    }
    assert_eq!([files.byte("two", 0), files.byte("two", 1)], [5, 6]);
    assert_eq!([files.byte("three", 0), files.byte("three", 1)], [5, 7]);
    assert_eq!(
        describe(&files.path("two")).unwrap().parent,
        Some(files.path("one"))
    );
    // A clone while the one below is being read.
    let reading = files.open("two", false).unwrap();
    clone(&files.path("one"), &files.path("four"), None, false).unwrap();
    assert_eq!(files.byte("four", 1), 0);
    drop(reading);
    assert!(clone(&files.path("one"), &files.path("four"), None, false).is_err());
    assert_eq!(files.byte("four", 0), 5);
}

#[test]
fn wrong_bases_and_wrong_layers_are_refused() {
    let mut files = Files::new();
    clone(&files.path("one"), &files.path("two"), None, false).unwrap();
    std::fs::rename(files.path("one"), files.path("away")).unwrap();
    let error = files.open("two", false).err().unwrap().to_string();
    assert!(
        error.contains("one") && error.contains("cannot read"),
        "{error}"
    );
    create(&files.path("one"), &files.identity, 4096, "").unwrap();
    let error = files.open("two", false).err().unwrap().to_string();
    assert!(
        error.contains("is not the overlay that this one stands on"),
        "{error}"
    );
    files.identity.hash = [2; 32];
    let error = files.open("away", false).err().unwrap().to_string();
    assert!(error.contains("another image (disk.img)"), "{error}");
    std::fs::write(files.path("text"), "some text").unwrap();
    let error = files.open("text", true).err().unwrap().to_string();
    assert!(error.contains("it is no overlay"), "{error}");
    let error = create(&files.path("text"), &files.identity, 4096, "").unwrap_err();
    assert!(error.to_string().contains("exists"), "{error}");
    assert!(create(&files.path("odd"), &files.identity, 5000, "").is_err());
    assert!(!files.path("odd").exists());
}

#[test]
fn the_number_of_layers_is_bounded() {
    let files = Files::new();
    let mut name = "one".to_owned();
    for number in 0..super::super::LAYERS_MAX {
        let next = format!("layer{number}");
        clone(&files.path(&name), &files.path(&next), None, false).unwrap();
        name = next;
    }
    let error = files.open(&name, true).err().unwrap().to_string();
    assert!(error.contains("more than 64 layers"), "{error}");
    let before = format!("layer{}", super::super::LAYERS_MAX - 2);
    assert!(files.open(&before, false).is_ok());
}

/// The device has zeros behind the image's end, which are read, written and reported as others.
#[test]
fn an_overlay_may_be_larger_than_its_image() {
    let files = Files::new();
    let path = files.path("large");
    let size = SIZE as u64 + 3 * 4096 + 512;
    let small = create_sized(&path, &files.identity, (SIZE as u64 - 1, 4096), "disk.img");
    assert!(matches!(small, Err(OverlayError::Size { .. })));
    create_sized(&path, &files.identity, (size, 4096), "disk.img").unwrap();
    let base = Arc::new(MemorySource::new(vec![1; SIZE]));
    let over = open(&path, base.clone(), &files.identity, true).unwrap();
    assert_eq!(over.size_bytes(), size);
    let mut bytes = vec![7; 8192];
    over.read_into(SIZE as u64 - 4096, &mut bytes).unwrap();
    assert_eq!(bytes, [[1; 4096], [0; 4096]].concat());
    let mut seen = Vec::new();
    over.read_with(SIZE as u64 - 100, 300, &mut |pieces| {
        seen = pieces.unwrap().concat();
    });
    assert_eq!(seen, [&[1; 100][..], &[0; 200]].concat());
    let extent = over.extent(SIZE as u64);
    assert!(extent.zero && extent.len == size - SIZE as u64);
    over.write(size - 600, &[9; 600]).unwrap();
    over.close().unwrap();
    drop(over);
    let over = open(&path, base, &files.identity, false).unwrap();
    let mut bytes = vec![7; 700];
    over.read_into(size - 700, &mut bytes).unwrap();
    assert_eq!(bytes, [&[0; 100][..], &[9; 600]].concat());
    assert!(over.read_into(size - 1, &mut [0; 2]).is_err());
}

/// A larger layer above a smaller one: zeros lie behind the former end, found in long runs.
#[test]
fn a_clone_may_be_larger_than_its_overlay() {
    let files = Files::new();
    let over = files.open("one", true).unwrap();
    over.write((SIZE - GRAIN) as u64, &[5; GRAIN]).unwrap();
    over.close().unwrap();
    drop(over);
    let (one, two) = (files.path("one"), files.path("two"));
    let clone_to = |size: u64| clone_sized(&one, &two, None, (true, Some(size)));
    let small = clone_to(SIZE as u64 - 1).unwrap_err().to_string();
    assert!(small.contains("--size") && !two.exists(), "{small}");
    assert!(!describe(&one).unwrap().frozen);
    let size = 1 << 36;
    assert_eq!(clone_to(size).unwrap(), CloneKind::Layer);
    assert_eq!(describe(&two).unwrap().size_bytes, size);
    let over = files.open("two", true).unwrap();
    assert_eq!(over.size_bytes(), size);
    let extent = over.extent(SIZE as u64);
    assert!(extent.zero && extent.len > 1 << 30, "{extent:?}");
    let changed = over.next_changed(0, usize::MAX).unwrap().unwrap();
    assert_eq!(changed.offset, (SIZE - GRAIN) as u64);
    assert_eq!(over.next_changed(SIZE as u64, usize::MAX).unwrap(), None);
    // Across the former end, and at the new one.
    over.write(SIZE as u64 - 100, &[6; 200]).unwrap();
    over.write(size - 4096, &[7; GRAIN]).unwrap();
    over.close().unwrap();
    drop(over);
    let over = files.open("two", false).unwrap();
    let mut bytes = vec![9; 2 * GRAIN];
    over.read_into((SIZE - GRAIN) as u64, &mut bytes).unwrap();
    assert!(bytes[..GRAIN - 100].iter().all(|&byte| byte == 5));
    assert_eq!(bytes[GRAIN - 100..GRAIN + 100], [6; 200]);
    assert!(bytes[GRAIN + 100..].iter().all(|&byte| byte == 0));
    drop(over);
    assert_eq!(files.byte("two", size / GRAIN as u64 - 1), 7);
    // A frozen overlay may have a second one above it.
    let three = files.path("three");
    let kind = clone_sized(&one, &three, None, (false, Some(2 * SIZE as u64)));
    assert_eq!(kind.unwrap(), CloneKind::Layer);
    assert_eq!(files.byte("three", SIZE as u64 / GRAIN as u64), 0);
}

/// A snapshot keeps all that had been written before it, whatever goes on; later writes are
/// reported grain by grain, also after the overlay was closed.
#[test]
fn a_snapshot_of_a_running_overlay_parts_before_from_since() {
    let files = Files::new();
    let over = Arc::new(files.open("one", true).unwrap());
    over.write(0, &[1; 3 * GRAIN]).unwrap();
    // A writer goes on all the while: rising numbers in its own grains.
    let writer = {
        let over = Arc::clone(&over);
        std::thread::spawn(move || {
            for number in 0..200_u8 {
                over.write(8 * GRAIN as u64, &[number; 2 * GRAIN]).unwrap();
                over.write(9 * GRAIN as u64 + 100, &[number; 50]).unwrap();
                over.flush().unwrap();
            }
        })
    };
    for number in 0..3 {
        over.take_snapshot(&files.path(&format!("since{number}")))
            .unwrap();
    }
    writer.join().unwrap();
    over.take_snapshot(&files.path("last")).unwrap();
    assert_eq!(over.layers(), 5);
    let exists = over.take_snapshot(&files.path("one")).unwrap_err();
    assert!(exists.to_string().contains("exists"), "{exists}");
    over.write(GRAIN as u64, &[2; GRAIN]).unwrap();
    over.write_zeroes(2 * GRAIN as u64, GRAIN as u64).unwrap();
    let told = |over: &Overlay| {
        let mut at = 0;
        let mut found = Vec::new();
        while at < SIZE as u64 {
            let written = over.written(at).unwrap();
            found.push((at / GRAIN as u64, written.since));
            at += written.len;
        }
        found
    };
    assert_eq!(told(&over), [(0, false), (1, true), (3, false)]);
    over.close().unwrap();
    drop(over);
    let over = files.open("last", true).unwrap();
    assert_eq!(told(&over), [(0, false), (1, true), (3, false)]);
    drop(over);
    assert_eq!(
        [0, 1, 2, 8].map(|grain| files.byte("last", grain)),
        [1, 2, 0, 199]
    );
    assert_eq!([0, 1, 2].map(|grain| files.byte("since0", grain)), [1; 3]);
    assert_eq!(files.byte("since2", 8), 199);
    let frozen = files.open("one", true).err().unwrap().to_string();
    assert!(frozen.contains("takes no more writes"), "{frozen}");
}

/// Room that was trimmed goes back to the file system once that is durable.
#[test]
fn trimmed_room_is_given_back() {
    use std::os::unix::fs::MetadataExt;
    let files = Files::new();
    let over = files.open("one", true).unwrap();
    let blocks = || std::fs::metadata(files.path("one")).unwrap().blocks();
    over.write(0, &[5; SIZE]).unwrap();
    over.flush().unwrap();
    let full = blocks();
    over.discard(0, SIZE as u64).unwrap();
    over.flush().unwrap();
    let trimmed = blocks();
    // 512 bytes each; the log stays.
    let given = full.saturating_sub(trimmed) * 512;
    assert!(given >= SIZE as u64 * 9 / 10, "{given} of {SIZE} bytes");
}

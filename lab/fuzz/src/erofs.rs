//! A walk over arbitrary bytes as the file system inside an image, and small seed images.

#[path = "../../../image/erofs/src/tests/fixtures.rs"]
mod fixtures;

use fixtures::{META, SUPERBLOCK};
use sidecore_erofs::{Bytes, Erofs, Extent, Inode, Kind, Unreadable};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Reads everything that an image holds, up to `STEPS_MAX` steps.
///
/// # Panics
/// If the reader breaks a promise: a place outside of the image, a name that is not valid, more
/// bytes read than a call may need.
pub fn fuzz_erofs(image: &[u8]) {
    let bytes = Counted {
        image,
        read: AtomicUsize::new(0),
    };
    let Ok(erofs) = Erofs::open(&bytes) else {
        return;
    };
    let mut waiting = vec![erofs.root()];
    for nid in 0..image.len() as u64 / 32 {
        waiting.push(nid);
    }
    let mut steps = 0;
    // A cycle of directories ends with the steps.
    while let Some(nid) = waiting.pop().filter(|_| steps < STEPS_MAX) {
        steps += 1;
        if let Ok(inode) = erofs.inode(nid) {
            look_at(&erofs, &inode, image.len() as u64);
            let mut names = Vec::new();
            let _ = erofs.list(&inode, 0, &mut |entry| {
                names.push((entry.name.to_vec(), entry.nid, entry.next));
                names.len() < NAMES_MAX
            });
            let mut before = 0;
            for (name, child, next) in names {
                assert!(!name.is_empty() && name.len() <= 255 && !name.contains(&b'/'));
                assert!(next > before, "positions go forward");
                before = next;
                let _ = erofs.look_up(&inode, &name);
                if waiting.len() < STEPS_MAX {
                    waiting.push(child);
                }
            }
        }
        assert!(
            bytes.read.swap(0, Relaxed) < READ_BYTES_MAX,
            "a bounded step"
        );
    }
}

fn look_at(erofs: &Erofs<&Counted<'_>>, inode: &Inode, image_bytes: u64) {
    assert!(inode.size_bytes <= i64::MAX as u64 && inode.mtime_ns < 1_000_000_000);
    let half = inode.size_bytes / 2;
    for offset in [
        0,
        half.saturating_sub(3000),
        inode.size_bytes.saturating_sub(1),
    ] {
        let mut found = Vec::new();
        if erofs.extents(inode, offset, 5000, &mut found).is_ok() {
            let len: u64 = found.iter().map(|extent| extent.len).sum();
            let expected = match inode.kind {
                Kind::File | Kind::Directory | Kind::Link => inode.size_bytes - offset,
                _ => 0,
            };
            assert_eq!(
                len,
                expected.min(5000),
                "the extents are what was asked for"
            );
            let inside =
                |extent: &Extent| extent.at.is_none_or(|at| at + extent.len <= image_bytes);
            assert!(found.iter().all(inside), "places lie inside the image");
        }
    }
    assert!(erofs.link(inode).map_or(0, |target| target.len()) < 4096);
    for name in erofs
        .attribute_names(inode)
        .unwrap_or_default()
        .split(|&byte| byte == 0)
    {
        let value = erofs.attribute(inode, name);
        assert!(
            name.is_empty() || value != Ok(None),
            "a name that is listed is found"
        );
    }
}

/// An image that counts the bytes read from it.
struct Counted<'i> {
    image: &'i [u8],
    read: AtomicUsize,
}

impl Bytes for &Counted<'_> {
    fn size_bytes(&self) -> u64 {
        self.image.size_bytes()
    }

    fn read_into(&self, offset: u64, dst: &mut [u8]) -> Result<(), Unreadable> {
        self.read.fetch_add(dst.len(), Relaxed);
        self.image.read_into(offset, dst)
    }
}

/// Images that hold every kind of file, layout and attribute.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
    let whole = fixtures::image();
    let with = |changes: &[(usize, u8)]| {
        let mut image = whole.clone();
        changes.iter().for_each(|&(at, byte)| image[at] = byte);
        image
    };
    let inode = |nid: usize| META + nid * 32;
    vec![
        whole.clone(),
        // No long prefixes.
        with(&[(SUPERBLOCK + 80, 4), (SUPERBLOCK + 91, 0)]),
        // The root in itself.
        with(&[(inode(2) + 7 * 12, 0)]),
        // A directory in chunks.
        with(&[(inode(16) + 5, 0x41)]),
        // A file of 2^62 bytes; an overlong link.
        with(&[(inode(16) + 15, 0x40), (inode(34) + 10, 1)]),
        // The root in blocks of 64 KiB.
        with(&[
            (SUPERBLOCK + 12, 16),
            (SUPERBLOCK + 40, 0),
            (SUPERBLOCK + 14, 48),
        ]),
        // 65,535 words of attributes.
        with(&[(inode(26) + 2, 0xFF), (inode(26) + 3, 0xFF)]),
        whole[..whole.len() - 700].to_vec(),
    ]
}

const STEPS_MAX: usize = 400;
const NAMES_MAX: usize = 64;
/// Upper bound of all calls of one step together: names of 64 entries are looked up.
const READ_BYTES_MAX: usize = 256 << 20;

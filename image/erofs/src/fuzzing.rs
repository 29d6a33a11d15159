//! A walk over arbitrary bytes, and small seed images, for the fuzzer and for tests.

use crate::{Bytes, Erofs, Error, Inode, Kind, Unreadable};
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
                |extent: &crate::Extent| extent.at.is_none_or(|at| at + extent.len <= image_bytes);
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
    let whole = image();
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

/// A small image with blocks of 512 bytes. [`NAMES`] lists the names in the root with their inodes'
/// numbers.
#[must_use]
pub fn image() -> Vec<u8> {
    let mut image = Image(vec![0; DATA]);
    image.superblock();
    let root: Vec<(&str, u64, u8)> = [(".", 0, 2), ("..", 0, 2)]
        .into_iter()
        .chain(NAMES)
        .collect();
    let root = directory(&root);
    image.extended(0, INLINE, (0o40_755, root.len() as u64), 0, &[], &root);
    // "chunks": three of 1 KiB, the middle one a hole, the last one the first again.
    let first = image.data(&pattern(1024));
    let entries: Vec<u8> = [first, u32::MAX, first]
        .iter()
        .flat_map(|block| [0u32.to_le_bytes(), block.to_le_bytes()].concat())
        .collect();
    image.extended(16, CHUNKS, (0o100_644, 3000), 0x21, &[], &entries);
    // "map": the same by bare block numbers.
    let entries: Vec<u8> = [first, u32::MAX]
        .iter()
        .flat_map(|block| block.to_le_bytes())
        .collect();
    image.compact(22, CHUNKS, (0o100_600, 2000), 1, &[], &entries);
    let plain = image.data(&pattern(700));
    image.compact(26, PLAIN, (0o104_755, 700), plain, &attributes(), &[]);
    image.compact(34, INLINE, (0o120_777, 6), 0, &[], b"chunks");
    image.compact(38, PLAIN, (0o020_666, 0), 0x0103, &[], &[]);
    image.compact(40, PLAIN, (0o010_600, 0), 0, &[], &[]);
    image.compact(42, PLAIN, (0o140_600, 0), 0, &[], &[]);
    // "tail": one block and a tail after the inode.
    let head = image.data(&pattern(512));
    image.extended(
        48,
        INLINE,
        (0o100_400, 612),
        head,
        &[],
        &pattern(612)[512..],
    );
    image.0
}

/// Names in the root of [`image`], their inodes and kinds.
pub const NAMES: [(&str, u64, u8); 8] = [
    ("attributes", 26, 1),
    ("chunks", 16, 1),
    ("device", 38, 3),
    ("fifo", 40, 5),
    ("link", 34, 7),
    ("map", 22, 1),
    ("socket", 42, 6),
    ("tail", 48, 1),
];

/// Bytes that differ from place to place.
#[must_use]
pub fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 256 + 1) as u8).collect()
}

fn directory(entries: &[(&str, u64, u8)]) -> Vec<u8> {
    let mut name_at = entries.len() * 12;
    let mut out = Vec::new();
    for (name, nid, kind) in entries {
        out.extend(nid.to_le_bytes());
        out.extend((name_at as u16).to_le_bytes());
        out.extend([*kind, 0]);
        name_at += name.len();
    }
    entries
        .iter()
        .for_each(|entry| out.extend(entry.0.as_bytes()));
    out
}

/// Two attributes after the inode, one of them with a long prefix, and a shared one.
fn attributes() -> Vec<u8> {
    let mut out = vec![0; 12];
    out[4] = 1;
    out.extend(1u32.to_le_bytes());
    out.extend(attribute(1, b"own", b"value"));
    out.extend(attribute(0x80, b"tail", b"of a long name"));
    out
}

fn attribute(index: u8, name: &[u8], value: &[u8]) -> Vec<u8> {
    let mut out = vec![name.len() as u8, index];
    out.extend((value.len() as u16).to_le_bytes());
    out.extend([name, value].concat());
    out.resize(out.len().next_multiple_of(4), 0);
    out
}

struct Image(Vec<u8>);

impl Image {
    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn superblock(&mut self) {
        let at = SUPERBLOCK;
        self.put(at, &0xE0F5_E1E2_u32.to_le_bytes());
        self.0[at + 12] = 9;
        self.put(at + 16, &9u64.to_le_bytes());
        self.put(at + 24, &1_700_000_000_u64.to_le_bytes());
        self.put(at + 40, &((META / 512) as u32).to_le_bytes());
        self.put(at + 44, &((SHARED / 512) as u32).to_le_bytes());
        self.put(at + 80, &0x44u32.to_le_bytes());
        self.0[at + 91] = 1;
        self.put(at + 92, &((PREFIXES / 4) as u32).to_le_bytes());
        // The shared attribute has number 1.
        self.put(SHARED + 4, &attribute(6, b"shared", b"by many"));
        self.put(PREFIXES, &[6, 0, 1]);
        self.put(PREFIXES + 3, b"long.");
    }

    fn data(&mut self, bytes: &[u8]) -> u32 {
        let block = self.0.len() / 512;
        self.0.extend(bytes);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
        block as u32
    }

    fn compact(
        &mut self,
        nid: usize,
        layout: u16,
        (mode, size): (u16, u32),
        union: u32,
        attributes: &[u8],
        behind: &[u8],
    ) {
        let at = META + nid * 32;
        self.put(at, &(layout << 1).to_le_bytes());
        self.put(at + 2, &count(attributes).to_le_bytes());
        self.put(at + 4, &mode.to_le_bytes());
        self.put(at + 6, &1u16.to_le_bytes());
        self.put(at + 8, &size.to_le_bytes());
        self.put(at + 16, &union.to_le_bytes());
        self.put(at + 24, &[0xE8, 3, 0xE9, 3]);
        self.put(at + 32, &[attributes, behind].concat());
    }

    fn extended(
        &mut self,
        nid: usize,
        layout: u16,
        (mode, size): (u16, u64),
        union: u32,
        attributes: &[u8],
        behind: &[u8],
    ) {
        let at = META + nid * 32;
        self.put(at, &(layout << 1 | 1).to_le_bytes());
        self.put(at + 2, &count(attributes).to_le_bytes());
        self.put(at + 4, &mode.to_le_bytes());
        self.put(at + 8, &size.to_le_bytes());
        self.put(at + 16, &union.to_le_bytes());
        self.put(at + 24, &100_000_u32.to_le_bytes());
        self.put(at + 28, &100_001_u32.to_le_bytes());
        self.put(at + 32, &1_600_000_000_u64.to_le_bytes());
        self.put(at + 40, &5u32.to_le_bytes());
        self.put(at + 44, &2u32.to_le_bytes());
        self.put(at + 64, &[attributes, behind].concat());
    }
}

fn count(attributes: &[u8]) -> u16 {
    match attributes.len() {
        0 => 0,
        len => ((len - 12) / 4 + 1) as u16,
    }
}

/// The error that reading a damaged inode returns, for tests.
#[must_use]
pub fn error_of(image: &[u8], nid: u64) -> Option<Error> {
    Erofs::open(image).ok()?.inode(nid).err()
}

const SUPERBLOCK: usize = 1024;
const META: usize = 1536;
const SHARED: usize = META + 2560;
const PREFIXES: usize = SHARED + 256;
const DATA: usize = SHARED + 512;
const PLAIN: u16 = 0;
const INLINE: u16 = 2;
const CHUNKS: u16 = 4;
const STEPS_MAX: usize = 400;
const NAMES_MAX: usize = 64;
/// Upper bound of all calls of one step together: names of 64 entries are looked up.
const READ_BYTES_MAX: usize = 256 << 20;

//! A small image of every kind of file, layout and attribute.
//!
//! Why here: this crate's tests read it. `lab/fuzz` includes this file for its seeds, so it uses
//! nothing of the crate.

/// A small image with blocks of 512 bytes. [`NAMES`] lists the names in the root with their inodes'
/// numbers.
pub(crate) fn image() -> Vec<u8> {
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
pub(crate) const NAMES: [(&str, u64, u8); 8] = [
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
pub(crate) fn pattern(len: usize) -> Vec<u8> {
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

/// Place of the superblock.
pub(crate) const SUPERBLOCK: usize = 1024;
/// Place of inode 0.
pub(crate) const META: usize = 1536;
const SHARED: usize = META + 2560;
const PREFIXES: usize = SHARED + 256;
const DATA: usize = SHARED + 512;
const PLAIN: u16 = 0;
const INLINE: u16 = 2;
const CHUNKS: u16 = 4;

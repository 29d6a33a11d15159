//! Random trees, and their images.
//!
//! Why here: this crate's tests compare them with the result of reading. `lab/fuzz` includes this
//! file and damages the images; names of the public interface are imported from the parent module,
//! which differs.

use super::{BLOCK_BYTES, CHUNK_BYTES, Id, Kind, Layout, Meta, Node, Tree, Unfit};
use std::collections::BTreeMap;

/// Numbers from a seed (SplitMix64).
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut bits = self.0;
        bits = (bits ^ bits >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ bits >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        (bits ^ bits >> 31) % limit
    }

    /// A number below one of several limits.
    pub(crate) fn below_one_of(&mut self, limits: &[u64]) -> u64 {
        let limit = limits[self.below(limits.len() as u64) as usize];
        self.below(limit)
    }

    pub(crate) fn bytes(&mut self, len: u64, alphabet: u64, first: u8) -> Vec<u8> {
        let byte = |dice: &mut Self| first + dice.below(alphabet) as u8;
        (0..len).map(|_| byte(self)).collect()
    }
}

/// An inode that is put into a tree and must be read back from the image.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Fact {
    pub(crate) kind: Option<Kind>,
    pub(crate) meta: Meta,
    pub(crate) target: Vec<u8>,
    pub(crate) device: (u32, u32),
    pub(crate) attributes: BTreeMap<Vec<u8>, Vec<u8>>,
    pub(crate) size_bytes: u64,
    /// Chunks of a file: `None` for a hole.
    pub(crate) chunks: Vec<Option<Vec<u8>>>,
    pub(crate) names: BTreeMap<Vec<u8>, Id>,
    pub(crate) links: u32,
}

impl Fact {
    fn add(&self, tree: &mut Tree) -> Result<Id, Unfit> {
        let (major, minor) = self.device;
        let node = match self.kind.expect("each fact has a kind") {
            Kind::File => Node::File {
                size_bytes: self.size_bytes,
                may_be_hole: self.chunks == [None],
            },
            Kind::Directory => Node::Directory,
            Kind::Link => Node::Link(&self.target),
            Kind::CharacterDevice => Node::CharacterDevice(major, minor),
            Kind::BlockDevice => Node::BlockDevice(major, minor),
            Kind::Fifo => Node::Fifo,
            Kind::Socket => Node::Socket,
        };
        tree.add(self.meta, node, self.each_attribute())
    }

    pub(crate) fn each_attribute(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        (self.attributes.iter()).map(|(name, value)| (&name[..], &value[..]))
    }
}

const KINDS: [Kind; 12] = [
    Kind::File,
    Kind::File,
    Kind::File,
    Kind::File,
    Kind::File,
    Kind::Directory,
    Kind::Directory,
    Kind::Link,
    Kind::CharacterDevice,
    Kind::BlockDevice,
    Kind::Fifo,
    Kind::Socket,
];

fn meta(dice: &mut Dice) -> Meta {
    let narrow = dice.below(2) == 0;
    let times = [-315_619_200, 0, 1_700_000_000, 4_102_444_800];
    Meta {
        permissions: dice.below(0o10000) as u16,
        uid: dice.below(if narrow { 1000 } else { 1 << 32 }) as u32,
        gid: dice.below(if narrow { 1000 } else { 1 << 32 }) as u32,
        mtime_s: times[dice.below(4) as usize],
        mtime_ns: [0, 0, 999_999_999][dice.below(3) as usize],
    }
}

fn attributes(dice: &mut Dice) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let prefixes = ["user.", "trusted.", "security."];
    let mut found = BTreeMap::new();
    for _ in 0..dice.below(5).saturating_sub(2) {
        let len = 1 + dice.below(60);
        let prefix = prefixes[dice.below(3) as usize].as_bytes();
        let name = [prefix, &dice.bytes(len, 26, b'a')].concat();
        let len = dice.below_one_of(&[10, 300, 6000]);
        found.insert(name, dice.bytes(len, 256, 0));
    }
    if dice.below(8) == 0 {
        found.insert(b"system.posix_acl_access".to_vec(), dice.bytes(28, 256, 0));
    }
    found
}

/// A tree of `count` inodes, the root first.
pub(crate) fn facts(dice: &mut Dice, count: u64) -> Vec<Fact> {
    let mut facts = vec![Fact {
        kind: Some(Kind::Directory),
        meta: meta(dice),
        links: 2,
        ..Fact::default()
    }];
    let mut directories = vec![0];
    // Few distinct chunks, so that many are stored once.
    let stock: Vec<Vec<u8>> = (0..6).map(|_| dice.bytes(CHUNK_BYTES, 4, b'a')).collect();
    for id in 1..count as Id {
        let kind = KINDS[dice.below(KINDS.len() as u64) as usize];
        let mut fact = Fact {
            kind: Some(kind),
            meta: meta(dice),
            attributes: attributes(dice),
            links: if kind == Kind::Directory { 2 } else { 0 },
            ..Fact::default()
        };
        match kind {
            Kind::File => {
                let limit = [1, 5000, 3 * CHUNK_BYTES, 12 * CHUNK_BYTES][dice.below(4) as usize];
                fact.size_bytes = dice.below(limit);
                for at in (0..fact.size_bytes).step_by(CHUNK_BYTES as usize) {
                    let len = (fact.size_bytes - at).min(CHUNK_BYTES) as usize;
                    let number = dice.below(8) as usize;
                    fact.chunks
                        .push(stock.get(number).map(|it| it[..len].to_vec()));
                }
            }
            Kind::Link => {
                let len = 1 + dice.below_one_of(&[50, 4095]);
                fact.target = dice.bytes(len, 26, b'a');
            }
            Kind::CharacterDevice | Kind::BlockDevice => {
                fact.device = (dice.below(1 << 12) as u32, dice.below(1 << 20) as u32);
            }
            _ => {}
        }
        let names = if kind == Kind::Directory {
            1
        } else {
            1 + dice.below(6) / 5
        };
        for _ in 0..names {
            let directory = directories[dice.below(directories.len() as u64) as usize];
            let len = 1 + dice.below_one_of(&[12, 255]);
            // All bytes but `/` and zero, `.` among the first.
            let mut name = dice.bytes(len, 255, 1);
            name.iter_mut()
                .filter(|it| **it == b'/')
                .for_each(|it| *it = b'.');
            name.extend(id.to_string().bytes());
            name.truncate(255);
            if facts[directory as usize].names.insert(name, id).is_none() {
                fact.links += u32::from(kind != Kind::Directory);
                facts[directory as usize].links += u32::from(kind == Kind::Directory);
            }
        }
        if kind == Kind::Directory {
            directories.push(id);
        }
        facts.push(fact);
    }
    facts
}

/// Writes a tree to an image; equal chunks share a place.
pub(crate) fn image(facts: &[Fact]) -> Result<(Vec<u8>, u64), Unfit> {
    let root = &facts[0];
    let mut tree = Tree::new(root.meta, root.each_attribute())?;
    for fact in &facts[1..] {
        fact.add(&mut tree)?;
    }
    for (directory, fact) in facts.iter().enumerate() {
        for (name, id) in &fact.names {
            tree.link(directory as Id, name, *id)?;
        }
    }
    let mut layout = Layout::new(tree)?;
    let data_at = layout.data_at();
    let mut data = Vec::new();
    let mut places = BTreeMap::new();
    for (id, fact) in facts.iter().enumerate() {
        for chunk in &fact.chunks {
            let at = chunk.as_ref().map(|chunk| {
                *places.entry(chunk).or_insert_with(|| {
                    let at = data_at + data.len() as u64;
                    data.extend(chunk);
                    data.resize(data.len().next_multiple_of(BLOCK_BYTES as usize), 0);
                    at
                })
            });
            layout.place(id as Id, 1, at)?;
        }
    }
    let mut image = vec![0; data_at as usize];
    image.extend(data);
    let sealed = layout.seal(image.len() as u64, [7; 16])?;
    assert_eq!(sealed.image_bytes(), image.len() as u64);
    let mut taken = vec![false; data_at as usize];
    let done: Result<(), ()> = sealed.write(|at, bytes| {
        let at = at as usize;
        image[at..][..bytes.len()].copy_from_slice(bytes);
        let taken = &mut taken[at..][..bytes.len()];
        assert!(!taken.contains(&true), "two pieces at {at}");
        taken.fill(true);
        Ok(())
    });
    assert_eq!(done, Ok(()));
    Ok((image, data_at))
}

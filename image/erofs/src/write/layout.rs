//! Places of all metadata, assigned while only the sizes of the contents are known.
//!
//! A file's inode is followed by room for the places of all its chunks. If they turn out to lie in
//! one run, the inode alone records that, and the room stays zeros. This costs one byte per 16,000
//! bytes of contents, before compression; in return contents are read and stored once.
//!
//! Must stay true: no two places overlap; an inode that is followed by contents (a link's target,
//! the last names of a directory) lies in one block with them.

use super::tree::{Body, Id, Inode, Tree};
use super::{BLOCK_BYTES, CHUNK_BYTES, Fault, Unfit};
use crate::Kind;
use crate::inode::{COMPACT_BYTES, DIRECTORY_BYTES_MAX, EXTENDED_BYTES, SLOT_BYTES};
use crate::superblock::{SUPERBLOCK_AT, SUPERBLOCK_BYTES};
use sidecore_bare::width::{ToU64, ToUsize};
use std::collections::HashMap;
use std::collections::VecDeque;

/// A tree whose inodes have their places.
#[derive(Debug)]
pub struct Layout {
    pub(super) tree: Tree,
    /// Indexed by inode number.
    pub(super) places: Vec<Place>,
    /// Inodes that have a name, in the order of their places.
    pub(super) order: Vec<Id>,
    /// The time of compact inodes: the one that most files have.
    pub(super) time: (i64, u32),
    /// First block of contents.
    pub(super) data_block: u32,
    /// Contents of files, indexed by inode number.
    pub(super) contents: Vec<Vec<Run>>,
}

/// Place and form of an inode.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Place {
    /// Byte of the image; 0 for one without a name.
    pub(super) at: u64,
    /// The values of a compact inode; `None` for an extended one.
    pub(super) compact: Option<Compact>,
    /// Size of the inode's contents in bytes.
    pub(super) size_bytes: u64,
    /// First of its own blocks, for a directory or a long link.
    pub(super) block: u32,
    /// True if the last, partial block of the contents follows the inode.
    pub(super) is_inline: bool,
}

/// Values that fit the narrow fields of a compact inode.
#[derive(Debug, Clone, Copy)]
pub(super) struct Compact {
    pub(super) links: u16,
    pub(super) size_bytes: u32,
    pub(super) uid: u16,
    pub(super) gid: u16,
}

/// Adjacent chunks of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) chunks: u64,
    /// First block; `None` for zeros that are not stored.
    pub(super) block: Option<u32>,
}

impl Layout {
    /// Gives every inode of a tree its place. Sorts the names of directories.
    ///
    /// # Errors
    /// [`Unfit`].
    pub fn new(tree: Tree) -> Result<Self, Unfit> {
        let mut layout = Self {
            places: vec![Place::default(); tree.len()],
            order: Vec::with_capacity(tree.len()),
            time: most_frequent_time(&tree),
            data_block: 0,
            contents: vec![Vec::new(); tree.len()],
            tree,
        };
        // The root follows the superblock: its number has only 16 bits there.
        let mut room = Room {
            at: SUPERBLOCK_AT + SUPERBLOCK_BYTES.to_u64(),
            end: BLOCK_BYTES,
            next: 1,
        };
        layout.put(0, &mut room)?;
        layout.put_all(&mut room)?;
        layout.data_block = room.blocks(0).map_err(|what| Unfit { id: 0, what })?;
        Ok(layout)
    }

    /// Places the contents of directories: breadth first for the first `BREADTH_BYTES`, which
    /// programs look up first; then depth first, as a program walks over a tree.
    fn put_all(&mut self, room: &mut Room) -> Result<(), Unfit> {
        let mut is_done = vec![false; self.tree.len()];
        let mut waiting = VecDeque::from([0]);
        while room.next * BLOCK_BYTES < BREADTH_BYTES
            && let Some(id) = waiting.pop_front()
        {
            self.put_entries(id, room)?;
            is_done[id.to_usize()] = true;
            waiting.extend(self.directories_in(id));
        }
        let mut waiting = vec![0];
        while let Some(id) = waiting.pop() {
            if !is_done[id.to_usize()] {
                self.put_entries(id, room)?;
            }
            let before = waiting.len();
            // Reversed, since the last one pushed is the next one visited.
            waiting.extend(self.directories_in(id));
            waiting[before..].reverse();
        }
        Ok(())
    }

    fn put_entries(&mut self, directory: Id, room: &mut Room) -> Result<(), Unfit> {
        let Body::Directory { entries, .. } = &mut self.tree.inodes[directory.to_usize()].body
        else {
            return Ok(());
        };
        // The order of the names is that of the inodes, so that a listing reads them in order.
        entries.sort_unstable();
        for child in entries.iter().map(|(_, child)| *child).collect::<Vec<_>>() {
            // A hard link has its place already.
            if self.places[child.to_usize()].at == 0 {
                self.put(child, room)?;
            }
        }
        Ok(())
    }

    fn directories_in(&self, directory: Id) -> impl Iterator<Item = Id> {
        let entries = match &self.tree.inodes[directory.to_usize()].body {
            Body::Directory { entries, .. } => &entries[..],
            _ => &[],
        };
        let inodes = &self.tree.inodes;
        let children = entries.iter().map(|(_, child)| *child);
        children.filter(|child| inodes[child.to_usize()].kind == Kind::Directory)
    }

    /// First byte of the image at which contents may be stored; a multiple of the block size.
    #[must_use]
    pub fn data_at(&self) -> u64 {
        u64::from(self.data_block) * BLOCK_BYTES
    }

    /// Assigns the next `chunks` chunks of a file a place: contiguous from byte `at` of the image,
    /// which begins a block and is not below [`Self::data_at`]; `None` for zeros. The last chunk of
    /// a file takes as many blocks as it needs.
    ///
    /// # Errors
    /// [`Unfit`]: a place that is not valid, or beyond the last block that the format can count.
    /// [`Self::seal`] checks the number of chunks.
    ///
    /// # Panics
    /// If the tree has no such number.
    pub fn place(&mut self, id: Id, chunks: u64, at: Option<u64>) -> Result<(), Unfit> {
        let unfit = |what| Unfit { id, what };
        let block = match at {
            None => None,
            Some(at) => {
                let block = at / BLOCK_BYTES;
                if !at.is_multiple_of(BLOCK_BYTES) || block < self.data_block.into() {
                    return Err(unfit(Fault::Places));
                }
                let end = (chunks.checked_mul(CHUNK_BLOCKS)).and_then(|len| len.checked_add(block));
                match (u32::try_from(block), end) {
                    (Ok(block), Some(end)) if end <= BLOCKS_MAX => Some(block),
                    _ => return Err(unfit(Fault::Full)),
                }
            }
        };
        let runs = &mut self.contents[id.to_usize()];
        match (runs.last_mut(), block) {
            _ if chunks == 0 => {}
            (Some(last), None) if last.block.is_none() => last.chunks += chunks,
            (Some(last), Some(block)) if last.ends_at(block) => last.chunks += chunks,
            _ => runs.push(Run { chunks, block }),
        }
        Ok(())
    }

    fn put(&mut self, id: Id, room: &mut Room) -> Result<(), Unfit> {
        let unfit = |what| Unfit { id, what };
        let inode = &self.tree.inodes[id.to_usize()];
        let size_bytes = size_bytes(id, inode).map_err(unfit)?;
        let compact = Compact::of(inode, size_bytes, self.time);
        let own = match compact {
            None => EXTENDED_BYTES,
            Some(_) => COMPACT_BYTES,
        };
        let head = (own + inode.attributes.len()).to_u64();
        let mut place = Place {
            compact,
            size_bytes,
            ..Place::default()
        };
        match inode.body {
            Body::Nothing | Body::Device(_) => place.at = room.whole(head),
            Body::File { may_be_hole, .. } => {
                // Room for all chunks now: their places are known only after the contents.
                let chunks = room_of_chunks(size_bytes, may_be_hole);
                let bytes = chunks.checked_mul(4).and_then(|it| it.checked_add(head));
                place.at = room.whole(
                    bytes
                        .filter(|&it| it < ARRAY_BYTES_MAX)
                        .ok_or_else(|| unfit(Fault::Full))?,
                );
            }
            Body::Link(_) | Body::Directory { .. } => {
                // What does not fill a block follows the inode, if both fit one block.
                let tail = size_bytes % BLOCK_BYTES;
                let tail_at = (tail > 0)
                    .then(|| room.in_one_block(head + tail, tail))
                    .flatten();
                place.is_inline = tail_at.is_some();
                place.at = tail_at.unwrap_or_else(|| room.whole(head));
                let blocks = match place.is_inline {
                    true => size_bytes / BLOCK_BYTES,
                    false => size_bytes.div_ceil(BLOCK_BYTES),
                };
                place.block = room.blocks(blocks).map_err(unfit)?;
            }
        }
        // Checked for each inode: the numbers of blocks must not overflow meanwhile.
        room.blocks(0).map_err(unfit)?;
        self.places[id.to_usize()] = place;
        self.order.push(id);
        Ok(())
    }
}

impl Run {
    /// True if data that begin at `block` continue this run.
    fn ends_at(&self, block: u32) -> bool {
        let end = |start: u32| u64::from(start) + self.chunks * CHUNK_BLOCKS;
        self.block.is_some_and(|start| end(start) == block.into())
    }
}

/// Size of an inode's contents in bytes, as stored in the inode.
fn size_bytes(id: Id, inode: &Inode) -> Result<u64, Fault> {
    Ok(match &inode.body {
        Body::Nothing | Body::Device(_) => 0,
        Body::Link(target) => target.len().to_u64(),
        Body::File { size_bytes, .. } => *size_bytes,
        Body::Directory { entries, parent } => {
            let names = in_order(id, parent.unwrap_or(id), entries)?;
            let (mut count, mut last) = (0, 0);
            for block in blocks(&names) {
                count += 1;
                last = block_bytes(block);
            }
            let bytes = (count - 1) * BLOCK_BYTES + last;
            match bytes <= DIRECTORY_BYTES_MAX {
                true => bytes,
                false => return Err(Fault::DirectoryLength(bytes)),
            }
        }
    })
}

impl Compact {
    /// The values of an inode; `None` if one of them does not fit, or if its time is not `time`.
    fn of(inode: &Inode, size_bytes: u64, time: (i64, u32)) -> Option<Self> {
        let meta = &inode.meta;
        // A compact inode has no time of its own: it has that of the superblock.
        if (meta.mtime_s, meta.mtime_ns) != time {
            return None;
        }
        Some(Self {
            links: inode.links.try_into().ok()?,
            size_bytes: size_bytes.try_into().ok()?,
            uid: meta.uid.try_into().ok()?,
            gid: meta.gid.try_into().ok()?,
        })
    }
}

impl Place {
    /// Byte of the image at which its own blocks begin.
    pub(super) fn block_at(&self) -> u64 {
        u64::from(self.block) * BLOCK_BYTES
    }
}

/// Number of chunks for which a file's inode reserves places.
pub(super) fn room_of_chunks(size_bytes: u64, may_be_hole: bool) -> u64 {
    match size_bytes.div_ceil(CHUNK_BYTES) {
        // One chunk that has bytes is one run, which the inode alone records.
        1 if !may_be_hole => 0,
        chunks => chunks,
    }
}

/// The most frequent time of inodes; the earliest of equally frequent ones.
fn most_frequent_time(tree: &Tree) -> (i64, u32) {
    let mut counts: HashMap<(i64, u32), u32> = HashMap::new();
    for inode in &tree.inodes {
        *counts
            .entry((inode.meta.mtime_s, inode.meta.mtime_ns))
            .or_default() += 1;
    }
    // A hash map has no order: among equal counts the time decides, so that equal trees give equal
    // bytes.
    let most = counts
        .into_iter()
        .max_by_key(|(time, count)| (*count, std::cmp::Reverse(*time)));
    most.map_or((0, 0), |(time, _)| time)
}

/// Blocks that are allocated in order, and a stretch of them for inodes.
struct Room {
    /// First free byte for an inode, and the end of the stretch.
    at: u64,
    end: u64,
    /// First block that is not allocated yet.
    next: u64,
}

impl Room {
    /// Allocates blocks for contents; [`Fault::Full`] if the format cannot count them.
    fn blocks(&mut self, count: u64) -> Result<u32, Fault> {
        let first = self.next;
        self.next += count;
        match u32::try_from(first) {
            Ok(first) if self.next < BLOCKS_MAX => Ok(first),
            _ => Err(Fault::Full),
        }
    }

    /// A place for an inode of `bytes` that may cross block boundaries.
    fn whole(&mut self, bytes: u64) -> u64 {
        self.at = self.at.next_multiple_of(SLOT_BYTES);
        if self.at + bytes > self.end {
            // If the next block is free, the inode begins here and continues there.
            if self.end != self.next * BLOCK_BYTES || self.at >= self.end {
                self.at = self.next * BLOCK_BYTES;
                self.end = self.at;
            }
            self.next += (self.at + bytes - self.end).div_ceil(BLOCK_BYTES);
            self.end = self.next * BLOCK_BYTES;
        }
        let at = self.at;
        self.at += bytes;
        at
    }

    /// A place in one block for an inode of `bytes`, including the data after it: for a link the
    /// kernel accepts no other layout. `None` if the last `tail` bytes had better get a block of
    /// their own.
    fn in_one_block(&mut self, bytes: u64, tail: u64) -> Option<u64> {
        self.at = self.at.next_multiple_of(SLOT_BYTES);
        if self.at % BLOCK_BYTES + bytes > BLOCK_BYTES {
            // Either the rest of this block is wasted, or the rest of a block for the tail alone.
            if tail > BLOCK_BYTES / 2 || bytes > BLOCK_BYTES {
                return None;
            }
            self.at = self.end;
        }
        Some(self.whole(bytes))
    }
}

/// Number of blocks that 32-bit numbers can count; the last number means none.
pub(super) const BLOCKS_MAX: u64 = u32::MAX as u64;
pub(super) const CHUNK_BLOCKS: u64 = CHUNK_BYTES / BLOCK_BYTES;
/// Metadata that are placed breadth first: one frame's contents, as directories are packed.
const BREADTH_BYTES: u64 = 128 << 10;
/// The longest useful array of places: it would fill the image.
const ARRAY_BYTES_MAX: u64 = BLOCKS_MAX * BLOCK_BYTES;

/// A name and the inode that it names.
pub(super) type Name<'t> = (&'t [u8], Id);

/// A directory's names in order, `.` and `..` included: that of the kernel's binary search, first
/// over blocks, then over entries.
pub(super) fn in_order<'t>(
    own: Id,
    parent: Id,
    entries: &'t [(Box<[u8]>, Id)],
) -> Result<Vec<Name<'t>>, Fault> {
    let mut names: Vec<Name<'t>> = Vec::with_capacity(entries.len() + 2);
    names.extend([(&b"."[..], own), (&b".."[..], parent)]);
    names.extend(entries.iter().map(|(name, id)| (&name[..], *id)));
    // `.` and `..` among the others: the kernel looks all names up in the same way.
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        Some(pair) => Err(Fault::Twice(String::from_utf8_lossy(pair[0].0).into())),
        None => Ok(names),
    }
}

/// Splits names into blocks: the names of each block, from the first on.
pub(super) fn blocks<'n, 't>(names: &'n [Name<'t>]) -> impl Iterator<Item = &'n [Name<'t>]> {
    let mut rest = names;
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fits = rest.iter().take_while(|name| {
            bytes += ENTRY_BYTES + name.0.len();
            bytes <= BLOCK_BYTES.to_usize()
        });
        let (block, behind) = rest.split_at(fits.count());
        rest = behind;
        (!block.is_empty()).then_some(block)
    })
}

/// Size of a block's entries and names in bytes.
pub(super) fn block_bytes(block: &[Name<'_>]) -> u64 {
    let bytes = block.iter().map(|name| ENTRY_BYTES + name.0.len());
    bytes.sum::<usize>().to_u64()
}

/// Writes a block's bytes to `out`, with the number and kind of each inode.
pub(super) fn encode(
    block: &[Name<'_>],
    inode: &mut dyn FnMut(Id) -> (u64, Kind),
    out: &mut Vec<u8>,
) {
    let mut name_at = block.len() * ENTRY_BYTES;
    for (name, id) in block {
        let (nid, kind) = inode(*id);
        out.extend(nid.to_le_bytes());
        // Always below the size of a block.
        out.extend((name_at as u16).to_le_bytes());
        out.extend([kind.entry_byte(), 0]);
        name_at += name.len();
    }
    block.iter().for_each(|(name, _)| out.extend(*name));
}

const ENTRY_BYTES: usize = 12;

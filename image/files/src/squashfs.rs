//! The tree of a squashfs 4.0, whichever of gzip, xz, LZ4 and zstd compresses it.
//!
//! A file's number is its inode's reference (the place of its block of metadata, shifted left by
//! 16 bits, and the place in it), which all of its names share.
//!
//! Must stay true: see the crate. Memory: 8 MiB of metadata, 16 MiB of fragments, and a block of
//! data for each thread.
//! Source: `fs/squashfs/squashfs_fs.h` of Linux.

mod blocks;

use crate::le::{le16, le32, le64};
use crate::{Attribute, FilesError, Kind, Names, Node, Piece, Sink, Tree, is_dots, is_name};
use blocks::{Blocks, Codec, Cursor, METADATA_BYTES};
use sidecore_format::source::BlockSource;
use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;

/// See the module.
pub(crate) struct Squashfs {
    blocks: Blocks,
    root: u64,
    ids: Vec<u32>,
    fragments: u32,
    inodes_at: u64,
    directories_at: u64,
    fragments_at: u64,
    attributes: Option<AttributeTable>,
}

/// Places of the extended attributes.
struct AttributeTable {
    pairs_at: u64,
    count: u32,
    /// Start of the list of the index's blocks.
    index_at: u64,
}

/// An inode: its attributes, and where the rest lies.
struct Inode {
    node: Node,
    rest: Rest,
    attributes: u32,
}

/// The part of an inode besides its attributes.
enum Rest {
    /// Of a directory: place of its block behind the table, place in the block.
    Directory { block: u32, offset: u16 },
    /// Of a file: its first block, its fragment, and where in it its tail begins.
    File {
        start: u64,
        fragment: u32,
        tail_at: u32,
    },
    /// Of a symbolic link: the target.
    Link(Vec<u8>),
    /// Of others.
    Nothing,
}

impl Squashfs {
    pub(crate) fn open(source: Arc<dyn BlockSource>) -> Result<Self, FilesError> {
        let mut raw = [0; SUPERBLOCK_BYTES];
        source.read_into(0, &mut raw)?;
        // Before any other field: earlier versions have others at these places.
        let (major, minor) = (le16(&raw, 28), le16(&raw, 30));
        if (major, minor) != (4, 0) {
            let text = format!("the squashfs is of version {major}.{minor}, only 4.0 is read here");
            return Err(FilesError::Unsupported(text));
        }
        let block_bytes = le32(&raw, 12);
        if !block_bytes.is_power_of_two() || !(4096..=1 << 20).contains(&block_bytes) {
            return Err(FilesError::damaged(0, "the squashfs's superblock"));
        }
        // The block size is checked by now: caches are cut to it.
        let blocks = Blocks::new(source, Codec::of(le16(&raw, 20))?, block_bytes);
        let mut squashfs = Self {
            root: le64(&raw, 32),
            ids: Vec::new(),
            fragments: le32(&raw, 16),
            inodes_at: le64(&raw, 64),
            directories_at: le64(&raw, 72),
            fragments_at: le64(&raw, 80),
            attributes: None,
            blocks,
        };
        let ids_at = le64(&raw, 48);
        // At most 65,535 owners, each a table entry: read once, since every inode names two.
        for index in 0..le16(&raw, 26) {
            let mut cursor = Cursor::of_entry(&squashfs.blocks, ids_at, index.into(), 4)?;
            squashfs.ids.push(cursor.u32()?);
        }
        let attributes_at = le64(&raw, 56);
        // All ones is the format's word for a table that is not there.
        if attributes_at != u64::MAX {
            let mut head = [0; 16];
            let source = &squashfs.blocks.source;
            source.read_into(attributes_at, &mut head)?;
            squashfs.attributes = Some(AttributeTable {
                pairs_at: le64(&head, 0),
                count: le32(&head, 8),
                index_at: attributes_at.saturating_add(16),
            });
        }
        // An image whose root is no directory is refused here, and not at its first use.
        let root = squashfs.inode(squashfs.root)?;
        match root.rest {
            Rest::Directory { .. } => Ok(squashfs),
            _ => Err(FilesError::damaged(squashfs.root, "the root directory")),
        }
    }

    fn inode(&self, id: u64) -> Result<Inode, FilesError> {
        let damaged = || FilesError::damaged(id, "an inode");
        let mut cursor = Cursor::of_reference(&self.blocks, self.inodes_at, id);
        let head: [u8; 16] = cursor.array()?;
        let owner = |index: u16| self.ids.get(usize::from(index)).copied();
        let mut node = Node {
            id,
            kind: Kind::File,
            permissions: le16(&head, 2) & 0o7777,
            links: 1,
            uid: owner(le16(&head, 4)).ok_or_else(damaged)?,
            gid: owner(le16(&head, 6)).ok_or_else(damaged)?,
            size_bytes: 0,
            mtime_s: le32(&head, 8).into(),
            mtime_ns: 0,
            device: (0, 0),
        };
        let kind = le16(&head, 0);
        // Types from 8 on are the same with more fields.
        let is_extended = kind > 7;
        let mut attributes = NONE;
        let rest = match kind {
            1 | 8 => {
                node.kind = Kind::Directory;
                directory(&mut cursor, is_extended, &mut node, &mut attributes)?
            }
            2 | 9 => file(&mut cursor, is_extended, &mut node, &mut attributes)?,
            3 | 10 => {
                node.kind = Kind::Link;
                node.links = cursor.u32()?;
                let len = cursor.u32()?;
                node.size_bytes = len.into();
                // Checked before memory is taken for it; Linux has no longer target (PATH_MAX).
                if len == 0 || len > LINK_BYTES_MAX {
                    return Err(damaged());
                }
                let mut target = vec![0; usize::try_from(len).unwrap_or(0)];
                cursor.fill(&mut target)?;
                if is_extended {
                    attributes = cursor.u32()?;
                }
                // Such a target would be cut short where it is made, and lead elsewhere than it was
                // shown to.
                if target.contains(&0) {
                    return Err(damaged());
                }
                Rest::Link(target)
            }
            4 | 5 | 11 | 12 => {
                node.kind = match kind % 7 {
                    4 => Kind::BlockDevice,
                    _ => Kind::CharacterDevice,
                };
                node.links = cursor.u32()?;
                node.device = crate::unpacked_device(cursor.u32()?);
                if is_extended {
                    attributes = cursor.u32()?;
                }
                Rest::Nothing
            }
            6 | 7 | 13 | 14 => {
                node.kind = match kind {
                    6 | 13 => Kind::Fifo,
                    _ => Kind::Socket,
                };
                node.links = cursor.u32()?;
                if is_extended {
                    attributes = cursor.u32()?;
                }
                Rest::Nothing
            }
            _ => return Err(damaged()),
        };
        Ok(Inode {
            node,
            rest,
            attributes,
        })
    }

    /// Bytes of an inode before the sizes of its blocks.
    fn sizes_of(&self, id: u64) -> Result<Cursor<'_>, FilesError> {
        let mut cursor = Cursor::of_reference(&self.blocks, self.inodes_at, id);
        let head: [u8; 16] = cursor.array()?;
        let mut rest = [0; 40];
        // The list of sizes stands behind the inode's fixed part, whose length depends on its type.
        let len = if le16(&head, 0) == 9 { 40 } else { 16 };
        cursor.fill(&mut rest[..len])?;
        Ok(cursor)
    }

    /// The block of fragment `index`.
    fn fragment(&self, id: u64, index: u32) -> Result<Arc<[u8]>, FilesError> {
        if index >= self.fragments {
            return Err(FilesError::damaged(id, "a file's fragment"));
        }
        let mut cursor = Cursor::of_entry(&self.blocks, self.fragments_at, index, 16)?;
        let entry: [u8; 16] = cursor.array()?;
        self.blocks.fragment(le64(&entry, 0), le32(&entry, 8))
    }

    /// Passes the part of a file's tail that lies in `range`; `from` is where the tail begins.
    fn tail(
        &self,
        node: &Node,
        (fragment, tail_at): (u32, u32),
        from: u64,
        range: Range<u64>,
        sink: &mut Sink<'_>,
    ) -> Result<(), FilesError> {
        let block = self.fragment(node.id, fragment)?;
        // Any place of a hostile inode: `get` below compares it with the fragment's real length.
        let place = |at: u64| usize::try_from(u64::from(tail_at) + (at - from)).ok();
        let bytes = place(range.start.max(from)).zip(place(range.end));
        let bytes = bytes.and_then(|(start, end)| block.get(start..end));
        let bytes = bytes.ok_or(FilesError::damaged(node.id, "a file's tail"))?;
        sink(Piece::Bytes(bytes)).map_err(FilesError::Output)
    }

    fn value(&self, table: &AttributeTable, reference: u64) -> Result<Vec<u8>, FilesError> {
        let mut cursor = Cursor::of_reference(&self.blocks, table.pairs_at, reference);
        value(&mut cursor)
    }
}

fn directory(
    cursor: &mut Cursor<'_>,
    is_extended: bool,
    node: &mut Node,
    attributes: &mut u32,
) -> Result<Rest, FilesError> {
    let (size, block, offset) = if is_extended {
        let raw: [u8; 24] = cursor.array()?;
        node.links = le32(&raw, 0);
        *attributes = le32(&raw, 20);
        (le32(&raw, 4), le32(&raw, 8), le16(&raw, 18))
    } else {
        let raw: [u8; 16] = cursor.array()?;
        node.links = le32(&raw, 4);
        (le16(&raw, 8).into(), le32(&raw, 0), le16(&raw, 10))
    };
    node.size_bytes = size.into();
    Ok(Rest::Directory { block, offset })
}

fn file(
    cursor: &mut Cursor<'_>,
    is_extended: bool,
    node: &mut Node,
    attributes: &mut u32,
) -> Result<Rest, FilesError> {
    let (start, size, fragment, tail_at) = if is_extended {
        let raw: [u8; 40] = cursor.array()?;
        node.links = le32(&raw, 24);
        *attributes = le32(&raw, 36);
        (le64(&raw, 0), le64(&raw, 8), le32(&raw, 28), le32(&raw, 32))
    } else {
        let raw: [u8; 16] = cursor.array()?;
        (
            le32(&raw, 0).into(),
            le32(&raw, 12).into(),
            le32(&raw, 4),
            le32(&raw, 8),
        )
    };
    // Linux' offsets are signed: sums of two offsets then stay below 2^64.
    if size > i64::MAX.cast_unsigned() {
        return Err(FilesError::damaged(node.id, "a file's size"));
    }
    node.size_bytes = size;
    Ok(Rest::File {
        start,
        fragment,
        tail_at,
    })
}

/// An attribute's value at a place: its length, then its bytes.
fn value(cursor: &mut Cursor<'_>) -> Result<Vec<u8>, FilesError> {
    let len = cursor.u32()?;
    if len > VALUE_BYTES_MAX {
        return Err(FilesError::damaged(0, "an extended attribute"));
    }
    let mut value = vec![0; usize::try_from(len).unwrap_or(0)];
    cursor.fill(&mut value)?;
    Ok(value)
}

impl Tree for Squashfs {
    fn name(&self) -> &'static str {
        "squashfs"
    }

    fn root(&self) -> u64 {
        self.root
    }

    fn node(&self, id: u64) -> Result<Node, FilesError> {
        Ok(self.inode(id)?.node)
    }

    fn list(&self, directory: &Node, visit: &mut Names<'_>) -> Result<(), FilesError> {
        let inode = self.inode(directory.id)?;
        let Rest::Directory { block, offset } = inode.rest else {
            return Ok(());
        };
        let damaged = || FilesError::damaged(directory.id, "a directory");
        // The size counts three bytes for `.` and `..`, which are not stored.
        let mut left = inode.node.size_bytes.saturating_sub(3);
        let at = self.directories_at.saturating_add(block.into());
        let mut cursor = Cursor::new(&self.blocks, at, offset.into());
        let mut name = [0; NAME_BYTES_MAX];
        while left > 0 {
            let head: [u8; 12] = cursor.array()?;
            let (count, start) = (le32(&head, 0), le32(&head, 4));
            left = left.checked_sub(12).ok_or_else(damaged)?;
            // The count is one less than the entries of a run, of which the format allows 256.
            if count >= RUN_MAX {
                return Err(damaged());
            }
            for _ in 0..=count {
                let entry: [u8; 8] = cursor.array()?;
                let len = usize::from(le16(&entry, 6)) + 1;
                let name = name.get_mut(..len).ok_or_else(damaged)?;
                cursor.fill(name)?;
                let bytes = 8 + u64::try_from(len).unwrap_or(0);
                left = left.checked_sub(bytes).ok_or_else(damaged)?;
                // A name with a slash, or of dots, would lead an extraction out of its folder.
                if !is_name(name) || is_dots(name) {
                    return Err(damaged());
                }
                visit(name, (u64::from(start) << 16) | u64::from(le16(&entry, 0)))?;
            }
        }
        Ok(())
    }

    fn link(&self, node: &Node) -> Result<Vec<u8>, FilesError> {
        match self.inode(node.id)?.rest {
            Rest::Link(target) => Ok(target),
            _ => Err(FilesError::damaged(node.id, "a symbolic link")),
        }
    }

    fn contents(
        &self,
        node: &Node,
        range: Range<u64>,
        sink: &mut Sink<'_>,
    ) -> Result<(), FilesError> {
        let inode = self.inode(node.id)?;
        let Rest::File {
            start,
            fragment,
            tail_at,
        } = inode.rest
        else {
            return Ok(());
        };
        let (size, block_bytes) = (inode.node.size_bytes, u64::from(self.blocks.block_bytes));
        // A fragment holds the rest behind whole blocks: a file of whole blocks has none, whatever
        // it names.
        let has_tail = fragment != NONE && size % block_bytes != 0;
        let blocks_end = match has_tail {
            true => size - size % block_bytes,
            false => size,
        };
        let mut at = start;
        let mut sizes = self.sizes_of(node.id)?;
        BUFFERS.with_borrow_mut(|(stored, out)| {
            let mut from = 0;
            while from < blocks_end.min(range.end) {
                // Every size is read, also in front of the range: a block's place is the sum of
                // those before it.
                let word = sizes.u32()?;
                let end = (from + block_bytes).min(blocks_end);
                let part = range.start.max(from)..range.end.min(end);
                if part.start < part.end {
                    if word == 0 {
                        sink(Piece::Hole(part.end - part.start)).map_err(FilesError::Output)?;
                    } else {
                        self.blocks.data(at, word, stored, out)?;
                        let place = |at: u64| usize::try_from(at - from).unwrap_or(usize::MAX);
                        let bytes = out.get(place(part.start)..place(part.end));
                        let bytes = bytes.filter(|_| out.len() == place(end));
                        let damaged = FilesError::damaged(node.id, "a file's block");
                        sink(Piece::Bytes(bytes.ok_or(damaged)?)).map_err(FilesError::Output)?;
                    }
                }
                at = at.saturating_add(u64::from(word & 0xFF_FFFF));
                from = end;
            }
            Ok::<(), FilesError>(())
        })?;
        if has_tail && range.end > blocks_end {
            return self.tail(node, (fragment, tail_at), blocks_end, range, sink);
        }
        Ok(())
    }

    fn attributes(&self, node: &Node) -> Result<Vec<Attribute>, FilesError> {
        let index = self.inode(node.id)?.attributes;
        let Some(table) = self.attributes.as_ref().filter(|_| index != NONE) else {
            return Ok(Vec::new());
        };
        let damaged = || FilesError::damaged(node.id, "an extended attribute");
        // An index of all ones means none; others must be in the table.
        if index >= table.count {
            return Err(damaged());
        }
        let mut cursor = Cursor::of_entry(&self.blocks, table.index_at, index, 16)?;
        let entry: [u8; 16] = cursor.array()?;
        let count = le32(&entry, 8);
        let mut cursor = Cursor::of_reference(&self.blocks, table.pairs_at, le64(&entry, 0));
        let mut found = Vec::new();
        let mut bytes = 0;
        for _ in 0..count {
            let head: [u8; 4] = cursor.array()?;
            let kind = le16(&head, 0);
            let mut name = vec![0; le16(&head, 2).into()];
            cursor.fill(&mut name)?;
            let mut value = value(&mut cursor)?;
            // The value of several files is stored once; here stands its place.
            if kind & ELSEWHERE != 0 {
                value = self.value(table, le64(&value, 0))?;
            }
            // The value of one place may be named again and again: the sum is bounded, not each
            // one.
            bytes += name.len() + value.len() + 8;
            if bytes > ATTRIBUTES_BYTES_MAX {
                return Err(damaged());
            }
            let prefix: &[u8] = match kind & 0xFF {
                0 => b"user.",
                1 => b"trusted.",
                2 => b"security.",
                _ => continue,
            };
            if name.contains(&0) || name.len() + prefix.len() > NAME_BYTES_MAX {
                return Err(damaged());
            }
            found.push(([prefix, &name].concat(), value));
        }
        Ok(found)
    }
}

thread_local! {
    /// Bytes of a block in the image, and its contents.
    static BUFFERS: RefCell<(Vec<u8>, Vec<u8>)> = RefCell::default();
}

const SUPERBLOCK_BYTES: usize = 96;
/// No fragment; no attributes.
const NONE: u32 = u32::MAX;
const NAME_BYTES_MAX: usize = 256;
const LINK_BYTES_MAX: u32 = 4095;
const VALUE_BYTES_MAX: u32 = 64 << 10;
/// Of one file: what xattr(7) allows, and names.
const ATTRIBUTES_BYTES_MAX: usize = 1 << 20;
/// Entries below one head of a directory.
const RUN_MAX: u32 = 256;
const ELSEWHERE: u16 = 0x100;
const _: () = assert!(METADATA_BYTES == 8192);

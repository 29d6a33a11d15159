//! The tree of an ext2, ext3 or ext4.
//!
//! A file's number is its inode's. A journal is not replayed, as `block mount` does not replay it:
//! of a file system that was not unmounted, the last changes may be missing.
//!
//! Must stay true: see the crate. No call allocates more than a block, a directory's block or a
//! link, all of at most 64 KiB, and values of attributes.
//! Source: `Documentation/filesystems/ext4/` of Linux.

mod attributes;
mod places;

use crate::le::{le16, le32};
use crate::{Attribute, FilesError, Kind, Names, Node, Piece, Sink, Tree, is_dots, is_name, pass};
use places::EXTENTS;
use sidecore_format::source::BlockSource;
use std::ops::Range;
use std::sync::Arc;

/// See the module.
pub(crate) struct Ext4 {
    source: Arc<dyn BlockSource>,
    block_bytes: u32,
    blocks: u64,
    inodes: u32,
    inode_bytes: u16,
    inodes_per_group: u32,
    /// Start of the descriptors of the groups, and bytes of each.
    groups_at: u64,
    group_bytes: u16,
}

/// An inode, with all its bytes.
struct Inode {
    id: u64,
    node: Node,
    flags: u32,
    /// The places of its blocks, or contents.
    block: [u8; 60],
    raw: Vec<u8>,
    /// Bytes of fields behind the first 128.
    extra_bytes: u16,
    /// Block of its attributes; 0 for none.
    attributes_at: u64,
}

impl Inode {
    fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }
}

impl Ext4 {
    pub(crate) fn open(source: Arc<dyn BlockSource>) -> Result<Self, FilesError> {
        let mut raw = [0; 1024];
        source.read_into(1024, &mut raw)?;
        let incompatible = match le32(&raw, 76) {
            0 => 0,
            _ => le32(&raw, 96),
        };
        let unknown = incompatible & !FEATURES_READ;
        if unknown != 0 {
            let text = format!(
                "the ext4 uses features that are not read here (incompatible features {unknown:#x})"
            );
            return Err(FilesError::Unsupported(text));
        }
        let damaged = || FilesError::damaged(0, "the ext4's superblock");
        let bits = le32(&raw, 24);
        if bits > 6 {
            return Err(damaged());
        }
        let block_bytes = 1024_u32 << bits;
        let is_64bit = incompatible & FEATURE_64BIT != 0;
        let high = if is_64bit { le32(&raw, 336) } else { 0 };
        let ext4 = Self {
            block_bytes,
            blocks: u64::from(high) << 32 | u64::from(le32(&raw, 4)),
            inodes: le32(&raw, 0),
            inode_bytes: match le32(&raw, 76) {
                0 => 128,
                _ => le16(&raw, 88),
            },
            inodes_per_group: le32(&raw, 40),
            groups_at: (u64::from(le32(&raw, 20)) + 1) * u64::from(block_bytes),
            group_bytes: if is_64bit { le16(&raw, 254) } else { 32 },
            source,
        };
        let sound = ext4.inodes_per_group > 0
            && (128..=4096).contains(&ext4.inode_bytes)
            && ext4.inode_bytes.is_power_of_two()
            && (32..=1024).contains(&ext4.group_bytes)
            && ext4.blocks.checked_mul(block_bytes.into()).is_some();
        if !sound {
            return Err(damaged());
        }
        if incompatible & FEATURE_RECOVER != 0 {
            tracing::warn!(
                "the file system was not unmounted, and its journal is not replayed: the last \
                 changes may be missing"
            );
        }
        match ext4.inode(ROOT)?.node.kind {
            Kind::Directory => Ok(ext4),
            _ => Err(FilesError::damaged(ROOT, "the root directory")),
        }
    }

    fn read(&self, at: u64, out: &mut [u8]) -> Result<(), FilesError> {
        Ok(self.source.read_into(at, out)?)
    }

    fn inode(&self, id: u64) -> Result<Inode, FilesError> {
        let damaged = || FilesError::damaged(id, "an inode");
        let index = id.checked_sub(1).filter(|_| id <= self.inodes.into());
        let index = index.ok_or_else(damaged)?;
        let group = index / u64::from(self.inodes_per_group);
        let mut descriptor = [0; 64];
        let len = usize::from(self.group_bytes).min(64);
        let at = self.groups_at + group * u64::from(self.group_bytes);
        self.read(at, &mut descriptor[..len])?;
        let table = u64::from(le32(&descriptor, 40)) << 32 | u64::from(le32(&descriptor, 8));
        if table >= self.blocks {
            return Err(damaged());
        }
        let within = index % u64::from(self.inodes_per_group) * u64::from(self.inode_bytes);
        let mut raw = vec![0; self.inode_bytes.into()];
        self.read(table * u64::from(self.block_bytes) + within, &mut raw)?;
        let mode = le16(&raw, 0);
        let kind = Kind::of_mode(mode).ok_or_else(damaged)?;
        let extra_bytes = match raw.len() > INODE_BYTES {
            true => le16(&raw, 128),
            false => 0,
        };
        // The time's further bits stand behind the first 128 bytes.
        let (seconds, extra) = (le32(&raw, 16).cast_signed(), le32(&raw, 136));
        let extra = if extra_bytes >= 12 { extra } else { 0 };
        let mut block = [0; 60];
        block.copy_from_slice(raw.get(40..100).ok_or_else(damaged)?);
        let (low, high) = (le32(&raw, 4), le32(&raw, 108));
        let mut node = Node {
            id,
            kind,
            permissions: mode & 0o7777,
            links: le16(&raw, 26).into(),
            uid: u32::from(le16(&raw, 120)) << 16 | u32::from(le16(&raw, 2)),
            gid: u32::from(le16(&raw, 122)) << 16 | u32::from(le16(&raw, 24)),
            size_bytes: u64::from(high) << 32 | u64::from(low),
            mtime_s: i64::from(seconds) + (i64::from(extra & 3) << 32),
            mtime_ns: (extra >> 2).min(999_999_999),
            device: (0, 0),
        };
        if matches!(kind, Kind::CharacterDevice | Kind::BlockDevice) {
            // The old form of 16 bits, or the new one in the second word.
            node.device = match le32(&block, 0) {
                0 => crate::unpacked_device(le32(&block, 4)),
                old => ((old >> 8) & 0xFF, old & 0xFF),
            };
        }
        let limit = match kind {
            Kind::File => i64::MAX.cast_unsigned(),
            Kind::Link => LINK_BYTES_MAX,
            Kind::Directory => DIRECTORY_BYTES_MAX,
            _ => u64::MAX,
        };
        if node.size_bytes > limit {
            return Err(damaged());
        }
        if !matches!(kind, Kind::File | Kind::Link | Kind::Directory) {
            node.size_bytes = 0;
        }
        Ok(Inode {
            id,
            node,
            flags: le32(&raw, 32),
            block,
            extra_bytes,
            attributes_at: u64::from(le16(&raw, 118)) << 32 | u64::from(le32(&raw, 104)),
            raw,
        })
    }

    /// Contents that lie in the inode.
    fn inline(&self, inode: &Inode) -> Result<Vec<u8>, FilesError> {
        let mut bytes = inode.block.to_vec();
        let attributes = self.raw_attributes(inode)?;
        if let Some((_, rest)) = attributes.iter().find(|(name, _)| name == b"system.data") {
            bytes.extend(rest);
        }
        Ok(bytes)
    }

    /// The first `len` bytes of contents, which are few.
    fn bytes(&self, inode: &Inode, len: u64) -> Result<Vec<u8>, FilesError> {
        let mut bytes = Vec::new();
        self.pass(inode, 0..len, &mut |piece| {
            match piece {
                Piece::Bytes(part) => bytes.extend(part),
                Piece::Hole(len) => {
                    bytes.resize(bytes.len() + usize::try_from(len).unwrap_or(0), 0);
                }
            }
            Ok(())
        })?;
        Ok(bytes)
    }

    fn pass(
        &self,
        inode: &Inode,
        range: Range<u64>,
        sink: &mut Sink<'_>,
    ) -> Result<(), FilesError> {
        if inode.has(ENCRYPTED) {
            let text = "the file is encrypted by ext4, which is not read here".into();
            return Err(FilesError::Unsupported(text));
        }
        if inode.has(INLINE) {
            let bytes = self.inline(inode)?;
            let place = |at| usize::try_from(at).unwrap_or(usize::MAX);
            let part = bytes.get(place(range.start)..place(range.end));
            let part = part.ok_or(FilesError::damaged(inode.id, "a file's contents"))?;
            return sink(Piece::Bytes(part)).map_err(FilesError::Output);
        }
        let block_bytes = u64::from(self.block_bytes);
        let mut at = range.start;
        while at < range.end {
            let run = self.run(inode, at / block_bytes)?;
            let within = at % block_bytes;
            let len = (run.len * block_bytes - within).min(range.end - at);
            match run.at {
                Some(block) => {
                    let start = block * block_bytes + within;
                    pass(&*self.source, start..start + len, sink)?;
                }
                None => sink(Piece::Hole(len)).map_err(FilesError::Output)?,
            }
            at += len;
        }
        Ok(())
    }

    /// Visits the names in a block of a directory, or in a part of one.
    fn names(
        &self,
        directory: &Node,
        mut block: &[u8],
        visit: &mut Names<'_>,
    ) -> Result<(), FilesError> {
        let damaged = || FilesError::damaged(directory.id, "a directory");
        while block.len() >= 8 {
            let len = match le16(block, 4) {
                // A block of 64 KiB in one entry.
                0 | 65535 => 65536.min(block.len()),
                len => len.into(),
            };
            let name = block.get(8..8 + usize::from(block[6]));
            let name = name.filter(|name| len >= 8 + name.len() && len <= block.len());
            let name = name.ok_or_else(damaged)?;
            let id = le32(block, 0);
            // Number 0: free room, a checksum, or the inner node of a tree of hashes.
            if id != 0 && !is_dots(name) {
                if !is_name(name) {
                    return Err(damaged());
                }
                visit(name, id.into())?;
            }
            block = &block[len..];
        }
        Ok(())
    }
}

impl Tree for Ext4 {
    fn name(&self) -> &'static str {
        "ext4"
    }

    fn root(&self) -> u64 {
        ROOT
    }

    fn node(&self, id: u64) -> Result<Node, FilesError> {
        Ok(self.inode(id)?.node)
    }

    fn list(&self, directory: &Node, visit: &mut Names<'_>) -> Result<(), FilesError> {
        let inode = self.inode(directory.id)?;
        if inode.node.kind != Kind::Directory {
            return Ok(());
        }
        if inode.has(ENCRYPTED) {
            let text = "a directory is encrypted by ext4, which is not read here".into();
            return Err(FilesError::Unsupported(text));
        }
        if inode.has(INLINE) {
            let bytes = self.inline(&inode)?;
            // The number of the directory above stands first; the block array is one part, the
            // attribute another.
            let (first, rest) = bytes.split_at(60.min(bytes.len()));
            self.names(directory, first.get(4..).unwrap_or(&[]), visit)?;
            return self.names(directory, rest, visit);
        }
        let block_bytes = u64::from(self.block_bytes);
        let blocks = inode.node.size_bytes / block_bytes;
        let mut block = 0;
        while block < blocks {
            let run = self.run(&inode, block)?;
            let end = (block + run.len).min(blocks);
            if let Some(at) = run.at {
                for place in at..at + (end - block) {
                    self.names(directory, &self.block(&inode, place)?, visit)?;
                }
            }
            block = end;
        }
        Ok(())
    }

    fn link(&self, node: &Node) -> Result<Vec<u8>, FilesError> {
        let inode = self.inode(node.id)?;
        let len = inode.node.size_bytes;
        // A short target stands in place of the blocks' places.
        let is_short = len < 60 && !inode.has(EXTENTS | INLINE);
        let target = match is_short {
            true => inode.block[..usize::try_from(len).unwrap_or(0)].to_vec(),
            false => self.bytes(&inode, len)?,
        };
        match inode.node.kind != Kind::Link || target.is_empty() || target.contains(&0) {
            true => Err(FilesError::damaged(node.id, "a symbolic link")),
            false => Ok(target),
        }
    }

    fn contents(
        &self,
        node: &Node,
        range: Range<u64>,
        sink: &mut Sink<'_>,
    ) -> Result<(), FilesError> {
        self.pass(&self.inode(node.id)?, range, sink)
    }

    fn attributes(&self, node: &Node) -> Result<Vec<Attribute>, FilesError> {
        let mut found = self.raw_attributes(&self.inode(node.id)?)?;
        // Contents, not an attribute.
        found.retain(|(name, _)| name != b"system.data");
        Ok(found)
    }
}

const ROOT: u64 = 2;
/// Bytes that each inode has.
const INODE_BYTES: usize = 128;
const LINK_BYTES_MAX: u64 = 4095;
const DIRECTORY_BYTES_MAX: u64 = 1 << 30;
/// Flags of inodes.
const ENCRYPTED: u32 = 0x800;
const INLINE: u32 = 0x1000_0000;
/// Features that change how something is read.
const FEATURE_RECOVER: u32 = 0x4;
const FEATURE_64BIT: u32 = 0x80;
/// Kinds in directories, recovery, extents, 64 bits, mount protection, flexible groups, values in
/// inodes, seeds of checksums, large directories, inline data, encryption, folded case.
const FEATURES_READ: u32 = 0x2
    | FEATURE_RECOVER
    | 0x40
    | FEATURE_64BIT
    | 0x100
    | 0x200
    | 0x400
    | 0x2000
    | 0x4000
    | 0x8000
    | 0x1_0000
    | 0x2_0000;

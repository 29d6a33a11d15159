//! Places of the blocks of an ext4 file: trees of extents, and the older tables of blocks.
//!
//! Must stay true: a tree is at most [`DEPTH_MAX`] high, and each step goes down by one; a place
//! lies inside the file system or is an error.

use super::{Ext4, Inode};
use crate::FilesError;
use crate::le::{le16, le32};

/// A run of a file's blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Run {
    /// First block in the file system; `None` for zeros.
    pub(super) at: Option<u64>,
    /// Blocks, at least 1.
    pub(super) len: u64,
}

impl Ext4 {
    /// The run that begins with `block` of a file.
    pub(super) fn run(&self, inode: &Inode, block: u64) -> Result<Run, FilesError> {
        let run = match inode.has(EXTENTS) {
            true => self.run_of_extents(inode, block)?,
            false => self.run_of_tables(inode, block)?,
        };
        let inside = |at: u64| at > 0 && at.saturating_add(run.len) <= self.blocks;
        match run.at.is_none_or(inside) && run.len > 0 {
            true => Ok(run),
            false => Err(outside(inode)),
        }
    }

    fn run_of_extents(&self, inode: &Inode, block: u64) -> Result<Run, FilesError> {
        let damaged = || FilesError::damaged(inode.id, "a tree of extents");
        let mut node = inode.block.to_vec();
        // Blocks from here on belong to another branch of the tree.
        let mut end = FILE_BLOCKS_MAX;
        let mut depth_max = DEPTH_MAX;
        loop {
            let (magic, count, depth) = (le16(&node, 0), le16(&node, 2), le16(&node, 6));
            let entries = node.get(12..12 + usize::from(count) * 12);
            let entries = entries.filter(|_| magic == EXTENT_MAGIC && depth <= depth_max);
            let entries = entries.ok_or_else(damaged)?;
            let entries = entries.chunks_exact(12);
            // The last entry that does not begin behind the block.
            let mut found = None;
            for entry in entries {
                let first = u64::from(le32(entry, 0));
                if first > block {
                    end = end.min(first);
                    break;
                }
                found = Some(entry);
            }
            let hole = Run {
                at: None,
                len: end.saturating_sub(block),
            };
            let Some(entry) = found else {
                return Ok(hole);
            };
            if depth == 0 {
                let first = u64::from(le32(entry, 0));
                let word = le16(entry, 4);
                // Longer ones are reserved but not written: zeros.
                let is_written = word <= WRITTEN_MAX;
                let len = u64::from(if is_written { word } else { word - WRITTEN_MAX });
                if block >= first + len {
                    return Ok(hole);
                }
                let at = u64::from(le16(entry, 6)) << 32 | u64::from(le32(entry, 8));
                return Ok(Run {
                    at: is_written.then_some(at + (block - first)),
                    len: (first + len).min(end.max(block + 1)) - block,
                });
            }
            let below = u64::from(le16(entry, 8)) << 32 | u64::from(le32(entry, 4));
            depth_max = depth - 1;
            node = self.block(inode, below)?;
        }
    }

    fn run_of_tables(&self, inode: &Inode, block: u64) -> Result<Run, FilesError> {
        let per_table = u64::from(self.block_bytes) / 4;
        let mut index = block;
        let mut table = inode.block[..48].to_vec();
        if index >= DIRECT {
            index -= DIRECT;
            let mut span = 1;
            let mut level = 0;
            // Single, double and triple: each reaches as many times further as a table has places.
            loop {
                let reach = per_table * span;
                if index < reach {
                    break;
                }
                index -= reach;
                span *= per_table;
                level += 1;
                if level == 3 {
                    return Err(outside(inode));
                }
            }
            let mut at = le32(&inode.block, 48 + 4 * level);
            loop {
                if at == 0 {
                    let len = span * per_table - index % (span * per_table);
                    return Ok(Run { at: None, len });
                }
                table = self.block(inode, at.into())?;
                if span == 1 {
                    break;
                }
                at = entry(&table, index / span);
                index %= span;
                span /= per_table;
            }
        }
        let first = entry(&table, index);
        let entries = u64::try_from(table.len() / 4).unwrap_or(0);
        let mut len = 1;
        while index + len < entries {
            let next = entry(&table, index + len);
            let follows = match first {
                0 => next == 0,
                _ => u64::from(next) == u64::from(first) + len,
            };
            if !follows {
                break;
            }
            len += 1;
        }
        let at = (first != 0).then_some(first.into());
        Ok(Run { at, len })
    }

    /// A block of the file system.
    pub(super) fn block(&self, inode: &Inode, at: u64) -> Result<Vec<u8>, FilesError> {
        if at == 0 || at >= self.blocks {
            return Err(outside(inode));
        }
        let mut bytes = vec![0; usize::try_from(self.block_bytes).unwrap_or(0)];
        self.read(at * u64::from(self.block_bytes), &mut bytes)?;
        Ok(bytes)
    }
}

fn entry(table: &[u8], index: u64) -> u32 {
    let at = usize::try_from(index).unwrap_or(usize::MAX);
    le32(table, at.saturating_mul(4))
}

fn outside(inode: &Inode) -> FilesError {
    FilesError::damaged(inode.id, "the place of a file's contents")
}

/// Flag of an inode: its places are a tree of extents.
pub(super) const EXTENTS: u32 = 0x8_0000;
const EXTENT_MAGIC: u16 = 0xF30A;
const DEPTH_MAX: u16 = 5;
const WRITTEN_MAX: u16 = 32768;
/// Places in an inode without a table.
const DIRECT: u64 = 12;
/// The most blocks of a file: their numbers have 32 bits.
const FILE_BLOCKS_MAX: u64 = 1 << 32;

//! Contents of files: the bytes of the image that hold them.
//!
//! Must stay true: returned extents lie inside the image; the work is bounded by the requested
//! length.

use crate::bytes::{Bytes, fill, le16, le32};
use crate::inode::Layout;
use crate::superblock::Superblock;
use crate::{Corrupt, Error, Inode};
use sidecore_bare::width::{ToU64, ToUsize};

/// A contiguous part of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Byte offset in the image; `None` for a part that is all zeros.
    pub at: Option<u64>,
    /// Length in bytes, at least 1.
    pub len: u64,
}

/// Appends the extents of `len` bytes from `offset`, up to the file's end, adjacent ones joined.
pub(crate) fn extents(
    bytes: &dyn Bytes,
    sb: &Superblock,
    inode: &Inode,
    offset: u64,
    len: u64,
    found: &mut Vec<Extent>,
) -> Result<(), Error> {
    let end = inode.size_bytes.min(offset.saturating_add(len));
    if offset >= end {
        return Ok(());
    }
    let mut add = |at: Option<u64>, len: u64| {
        let image_bytes = bytes.size_bytes();
        // Nothing behind this check looks at places again.
        let inside = at.is_none_or(|at| at.checked_add(len).is_some_and(|end| end <= image_bytes));
        if !inside {
            return Err(Error::corrupt(inode.nid, Corrupt::Outside));
        }
        match found.last_mut() {
            Some(last) if continues(last, at) => last.len += len,
            _ if len > 0 => found.push(Extent { at, len }),
            _ => {}
        }
        Ok(())
    };
    match inode.layout {
        Layout::Nothing => Ok(()),
        Layout::Plain { at } => add(at.checked_add(offset), end - offset),
        Layout::Tail {
            at,
            tail_at,
            tail_from,
        } => {
            if offset < tail_from {
                add(at.checked_add(offset), end.min(tail_from) - offset)?;
            }
            if end > tail_from {
                let from = offset.max(tail_from);
                add(Some(tail_at + (from - tail_from)), end - from)?;
            }
            Ok(())
        }
        Layout::Chunks {
            entries_at,
            entry_bytes,
            bits,
        } => {
            let entry_bytes = usize::from(entry_bytes);
            // A part of the array at a time: it may be longer than the memory.
            let mut entries = [0; ENTRIES_BYTES];
            let last = (end - 1) >> bits;
            let mut chunk = offset >> bits;
            while chunk <= last {
                let count = (last - chunk + 1).min((ENTRIES_BYTES / entry_bytes).to_u64());
                let entries = &mut entries[..count.to_usize() * entry_bytes];
                let place = chunk.checked_mul(entry_bytes.to_u64());
                let place = place.and_then(|place| place.checked_add(entries_at));
                let place = place.ok_or(Error::corrupt(inode.nid, Corrupt::Outside))?;
                fill(bytes, place, entries, inode.nid)?;
                for entry in entries.chunks_exact(entry_bytes) {
                    // No overflow: chunks begin below the end of the file, which is below 2^63.
                    let (from, to) = (chunk << bits, (chunk + 1) << bits);
                    let within = offset.saturating_sub(from);
                    let len = to.min(end) - from - within;
                    add(place_of(entry, sb, inode, within)?, len)?;
                    chunk += 1;
                }
            }
            Ok(())
        }
    }
}

/// Byte offset in the image of byte `within` of a chunk; `None` for a hole.
fn place_of(
    entry: &[u8],
    sb: &Superblock,
    inode: &Inode,
    within: u64,
) -> Result<Option<u64>, Error> {
    let block = match entry.len() {
        4 => le32(entry, 0),
        _ => {
            // An index names a device, too: 0 is the image itself.
            if le16(entry, 2) != 0 {
                return Err(Error::corrupt(inode.nid, Corrupt::Device));
            }
            le32(entry, 4)
        }
    };
    if block == HOLE {
        return Ok(None);
    }
    Ok(Some((u64::from(block) << sb.block_bits) + within))
}

fn continues(last: &Extent, at: Option<u64>) -> bool {
    match (last.at, at) {
        (None, None) => true,
        (Some(start), Some(at)) => start + last.len == at,
        _ => false,
    }
}

/// Fills `dst` from `offset` of a file; an error if the file ends before.
pub(crate) fn read(
    bytes: &dyn Bytes,
    sb: &Superblock,
    inode: &Inode,
    offset: u64,
    dst: &mut [u8],
) -> Result<(), Error> {
    let mut found = Vec::new();
    extents(bytes, sb, inode, offset, dst.len().to_u64(), &mut found)?;
    let mut rest = dst;
    // The extents are in order and end where the file does: a shorter file leaves a rest.
    for extent in found {
        let (part, others) = rest.split_at_mut(extent.len.to_usize());
        match extent.at {
            Some(at) => fill(bytes, at, part, inode.nid)?,
            None => part.fill(0),
        }
        rest = others;
    }
    match rest.is_empty() {
        true => Ok(()),
        false => Err(Error::corrupt(inode.nid, Corrupt::Size)),
    }
}

/// Bytes of a chunk array that are read at once.
const ENTRIES_BYTES: usize = 2048;
const HOLE: u32 = u32::MAX;

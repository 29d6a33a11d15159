//! Directories: blocks of entries in the order of their names.
//!
//! A block begins with its entries, 12 bytes each, followed by their names. A name ends where the
//! next one begins, the last one at a zero byte or at the block's end.
//!
//! Must stay true: a name is 1 to 255 bytes without `/` and zero bytes; a look-up reads at most one
//! block per bit of the directory's length, whatever the order of the names.
//! Source: `Documentation/filesystems/erofs.rst` of Linux, "Directories".

use crate::bytes::{Bytes, le16, le64};
use crate::contents;
use crate::inode::Kind;
use crate::superblock::Superblock;
use crate::{Corrupt, Error, Inode};
use sidecore_bare::width::{ToU64, ToUsize};
use std::cmp::Ordering;

/// One name in a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry<'b> {
    /// The name: never empty, no `/`, at most 255 bytes.
    pub name: &'b [u8],
    /// Number of the inode, which may be missing in a damaged image.
    pub nid: u64,
    /// Kind, according to the directory.
    pub kind: Option<Kind>,
    /// Position after this entry, from which a listing continues; never 0.
    pub next: u64,
}

/// One block of a directory; its head is checked.
struct Block<'b> {
    bytes: &'b [u8],
    entries: usize,
    nid: u64,
}

impl<'b> Block<'b> {
    fn new(bytes: &'b [u8], nid: u64) -> Result<Self, Error> {
        // The first name begins behind the last entry, so its place gives their number.
        let block = (bytes.len() >= ENTRY_BYTES).then(|| usize::from(le16(bytes, 8)));
        let names_at = block.filter(|&at| at >= ENTRY_BYTES && at <= bytes.len());
        let names_at = names_at.ok_or(Error::corrupt(nid, Corrupt::Directory))?;
        Ok(Self {
            bytes,
            entries: names_at / ENTRY_BYTES,
            nid,
        })
    }

    fn name(&self, index: usize) -> Result<&'b [u8], Error> {
        let place = |index| usize::from(le16(self.bytes, index * ENTRY_BYTES + 8));
        let start = place(index);
        let is_last = index + 1 == self.entries;
        let end = match is_last {
            true => self.bytes.len(),
            false => place(index + 1),
        };
        let corrupt = Error::corrupt(self.nid, Corrupt::Directory);
        // Places that do not ascend give an empty or a missing range here.
        let mut name = self.bytes.get(start..end).ok_or(corrupt)?;
        if is_last && let Some(end) = name.iter().position(|&byte| byte == 0) {
            name = &name[..end];
        }
        // A name with a slash would lead out of its directory, for programs that join paths.
        let sound = (1..=NAME_BYTES_MAX).contains(&name.len())
            && start >= self.entries * ENTRY_BYTES
            && !name.iter().any(|&byte| byte == 0 || byte == b'/');
        if sound { Ok(name) } else { Err(corrupt) }
    }

    fn target(&self, index: usize) -> (u64, Option<Kind>) {
        let at = index * ENTRY_BYTES;
        (le64(self.bytes, at), Kind::of_entry(self.bytes[at + 10]))
    }
}

/// Reads block `number` of a directory into `buffer`.
fn read_block<'b>(
    bytes: &dyn Bytes,
    sb: &Superblock,
    directory: &Inode,
    number: u64,
    buffer: &'b mut Vec<u8>,
) -> Result<Block<'b>, Error> {
    let offset = number << sb.block_bits;
    let len = (directory.size_bytes - offset)
        .min(sb.block_bytes())
        .to_usize();
    buffer.resize(len, 0);
    contents::read(bytes, sb, directory, offset, buffer)?;
    Block::new(buffer, directory.nid)
}

/// Number of the inode with this name.
pub(crate) fn look_up(
    bytes: &dyn Bytes,
    sb: &Superblock,
    directory: &Inode,
    name: &[u8],
) -> Result<Option<u64>, Error> {
    let mut buffer = Vec::new();
    let (mut low, mut high) = (0, directory.size_bytes.div_ceil(sb.block_bytes()));
    // Binary search: the last block whose first name is not after this one.
    while low < high {
        let middle = low + (high - low) / 2;
        let block = read_block(bytes, sb, directory, middle, &mut buffer)?;
        match block.name(0)?.cmp(name) {
            Ordering::Equal => return Ok(Some(block.target(0).0)),
            Ordering::Greater => high = middle,
            Ordering::Less => {
                // It may be in this block, or in a later one; this block's last name decides.
                if let Some(index) = find(&block, name)? {
                    return Ok(Some(block.target(index).0));
                }
                if block.name(block.entries - 1)? > name {
                    return Ok(None);
                }
                low = middle + 1;
            }
        }
    }
    Ok(None)
}

fn find(block: &Block<'_>, name: &[u8]) -> Result<Option<usize>, Error> {
    // Names out of order, in a damaged image, may hide a name; the search ends all the same.
    let (mut low, mut high) = (0, block.entries);
    while low < high {
        let middle = low + (high - low) / 2;
        match block.name(middle)?.cmp(name) {
            Ordering::Equal => return Ok(Some(middle)),
            Ordering::Greater => high = middle,
            Ordering::Less => low = middle + 1,
        }
    }
    Ok(None)
}

/// Visits entries from position `from` (0: the beginning) until `visit` returns false.
pub(crate) fn list(
    bytes: &dyn Bytes,
    sb: &Superblock,
    directory: &Inode,
    from: u64,
    visit: &mut dyn FnMut(&Entry<'_>) -> bool,
) -> Result<(), Error> {
    let mut buffer = Vec::new();
    let mut number = from >> INDEX_BITS;
    let mut first = (from & ((1 << INDEX_BITS) - 1)).to_usize();
    while number < directory.size_bytes.div_ceil(sb.block_bytes()) {
        let block = read_block(bytes, sb, directory, number, &mut buffer)?;
        for index in first..block.entries {
            let (nid, kind) = block.target(index);
            // Block and entry are all that a listing needs to continue in a later call.
            let next = (number << INDEX_BITS) + index.to_u64() + 1;
            let name = block.name(index)?;
            let entry = Entry {
                name,
                nid,
                kind,
                next,
            };
            if !visit(&entry) {
                return Ok(());
            }
        }
        first = 0;
        number += 1;
    }
    Ok(())
}

const ENTRY_BYTES: usize = 12;
const NAME_BYTES_MAX: usize = 255;
/// Low bits of a position: the entry in its block, of which there are at most 2^16 / 12.
const INDEX_BITS: u32 = 16;

//! Blocks of a directory: entries in the order of their names' bytes, then the names.
//!
//! Must stay true: the order is that of the kernel's binary search, first over blocks, then over
//! entries; `.` and `..` are sorted like any other name.

use super::tree::Id;
use super::{BLOCK_BYTES, Fault};
use crate::Kind;
use sidecore_bare::width::{ToU64, ToUsize};

/// A name and the inode that it names.
pub(super) type Name<'t> = (&'t [u8], Id);

/// A directory's names in order, `.` and `..` included.
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

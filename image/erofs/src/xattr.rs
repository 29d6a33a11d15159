//! Extended attributes: after the inode, or in a table that inodes share.
//!
//! Must stay true: the work for one inode is bounded by its own attributes' bytes (at most 256 KiB)
//! and 255 shared ones.
//! Source: `fs/erofs/erofs_fs.h` of Linux, `struct erofs_xattr_ibody_header`, `_entry` and
//! `_long_prefix`.

use crate::bytes::{Bytes, array, fill, le16, le32};
use crate::inode::XATTR_HEAD_BYTES;
use crate::superblock::Superblock;
use crate::{Corrupt, Error, Inode};
use sidecore_bare::width::{ToU64, ToUsize};

/// A prefix of names that the image defines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Prefix {
    base: u8,
    infix: Box<[u8]>,
}

/// Reads the table of long prefixes.
pub(crate) fn prefixes(bytes: &dyn Bytes, sb: &Superblock) -> Result<Box<[Prefix]>, Error> {
    let mut at = sb.prefixes_at;
    let mut found = Vec::with_capacity(sb.prefixes.into());
    for _ in 0..sb.prefixes {
        at = at.next_multiple_of(4);
        let len = usize::from(le16(&array::<2>(bytes, at, sb.root_nid)?, 0));
        // The kernel has the same limit: the infix is a part of a name.
        if len == 0 || len > 1 + NAME_BYTES_MAX {
            return Err(Error::corrupt(sb.root_nid, Corrupt::Attributes));
        }
        let mut raw = vec![0; len];
        fill(bytes, at + 2, &mut raw, sb.root_nid)?;
        found.push(Prefix {
            base: raw[0],
            infix: raw[1..].into(),
        });
        at += 2 + len.to_u64();
    }
    Ok(found.into())
}

/// One attribute: its name, and the place of its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Attribute {
    /// The name, with its prefix.
    pub(crate) name: Vec<u8>,
    /// Length of the value in bytes.
    pub(crate) value_bytes: u16,
    pub(crate) value_at: u64,
}

/// Visits an inode's attributes until `visit` returns false. Names with an unknown prefix are left
/// out, as the kernel does.
pub(crate) fn each(
    bytes: &dyn Bytes,
    sb: &Superblock,
    prefixes: &[Prefix],
    inode: &Inode,
    visit: &mut dyn FnMut(Attribute) -> Result<bool, Error>,
) -> Result<(), Error> {
    if inode.xattrs_bytes == 0 {
        return Ok(());
    }
    let corrupt = || Error::corrupt(inode.nid, Corrupt::Attributes);
    let mut body = vec![0; inode.xattrs_bytes.to_usize()];
    fill(bytes, inode.xattrs_at, &mut body, inode.nid)?;
    // The head has the count of shared attributes, whose numbers follow it.
    let mut at = XATTR_HEAD_BYTES.to_usize();
    let shared_end = at + 4 * usize::from(body[4]);
    let shared = body.get(at..shared_end).ok_or_else(corrupt)?;
    for number in shared.chunks_exact(4) {
        let place = sb.xattr_at + u64::from(le32(number, 0)) * 4;
        // The table is anywhere in the image; each read of it is checked on its own.
        let head = array::<{ ENTRY_BYTES }>(bytes, place, inode.nid)?;
        let mut name = vec![0; head[0].into()];
        let name_at = place + ENTRY_BYTES.to_u64();
        fill(bytes, name_at, &mut name, inode.nid)?;
        if let Some(name) = full_name(prefixes, head[1], &name) {
            let attribute = Attribute {
                name,
                value_bytes: le16(&head, 2),
                value_at: name_at + u64::from(head[0]),
            };
            if !visit(attribute)? {
                return Ok(());
            }
        }
    }
    at = shared_end;
    while at < body.len() {
        let head = body.get(at..at + ENTRY_BYTES).ok_or_else(corrupt)?;
        let name_at = at + ENTRY_BYTES;
        let value_at = name_at + usize::from(head[0]);
        let value_bytes = le16(head, 2);
        let end = value_at + usize::from(value_bytes);
        if end > body.len() {
            return Err(corrupt());
        }
        if let Some(name) = full_name(prefixes, head[1], &body[name_at..value_at]) {
            let attribute = Attribute {
                name,
                value_bytes,
                value_at: inode.xattrs_at + value_at.to_u64(),
            };
            if !visit(attribute)? {
                return Ok(());
            }
        }
        // The last entry may lack its padding: then this is past the end.
        at = end.next_multiple_of(4);
    }
    Ok(())
}

/// The full name: its prefix's text, then its own. `None` for a prefix number that is not defined,
/// or a name that is not valid.
fn full_name(prefixes: &[Prefix], index: u8, name: &[u8]) -> Option<Vec<u8>> {
    let (base, infix): (u8, &[u8]) = match index & LONG {
        0 => (index, &[]),
        _ => {
            let prefix = prefixes.get(usize::from(index & !LONG))?;
            (prefix.base, &prefix.infix)
        }
    };
    // Number 5 is Lustre's, for which the kernel has no handler either.
    let base: &[u8] = match base {
        1 => b"user.",
        2 => b"system.posix_acl_access",
        3 => b"system.posix_acl_default",
        4 => b"trusted.",
        6 => b"security.",
        _ => return None,
    };
    let full = [base, infix, name].concat();
    // A zero byte would end the name early in the list that programs get.
    (full.len() <= NAME_BYTES_MAX && !full.contains(&0)).then_some(full)
}

const ENTRY_BYTES: usize = 4;
const NAME_BYTES_MAX: usize = 255;
/// Bit of a prefix's number that selects the image's own table.
const LONG: u8 = 0x80;

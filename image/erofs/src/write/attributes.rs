//! Extended attributes as stored after an inode.
//!
//! Every inode carries its own copy; none is shared. If many files have the same attributes, the
//! compression around the image shrinks them, and a reader finds them next to the inode.
//! Source: `fs/erofs/erofs_fs.h` of Linux, `struct erofs_xattr_ibody_header` and `_entry`.

use super::Fault;
use crate::inode::XATTR_HEAD_BYTES;
use sidecore_bare::width::ToUsize;

/// True for an attribute whose name erofs can hold: `user.`, `trusted.`, `security.` and access
/// lists. Others belong to the source file system.
#[must_use]
pub fn is_storable(name: &[u8]) -> bool {
    split(name).is_some()
}

/// Number of a name's prefix, and the rest of the name.
fn split(name: &[u8]) -> Option<(u8, &[u8])> {
    match name {
        b"system.posix_acl_access" => return Some((2, b"")),
        b"system.posix_acl_default" => return Some((3, b"")),
        _ => {}
    }
    let (index, rest) = PREFIXES
        .iter()
        .find_map(|(index, prefix)| Some((*index, name.strip_prefix(*prefix)?)))?;
    let fits = !rest.is_empty() && name.len() <= NAME_BYTES_MAX && !rest.contains(&0);
    fits.then_some((index, rest))
}

/// The bytes after an inode, in the order of the attributes' names; empty without attributes.
pub(super) fn encode<'a>(
    attributes: impl IntoIterator<Item = (&'a [u8], &'a [u8])>,
) -> Result<Box<[u8]>, Fault> {
    let mut attributes: Vec<_> = attributes.into_iter().collect();
    if attributes.is_empty() {
        return Ok(Box::default());
    }
    // Sources list them in any order; equal trees must give equal bytes.
    attributes.sort_unstable();
    // A name filter (not used) and a count of shared attributes.
    let mut out = vec![0; XATTR_HEAD_BYTES.to_usize()];
    for (name, value) in attributes {
        let fault = || Fault::Attribute {
            name: String::from_utf8_lossy(name).into(),
            bytes: value.len(),
        };
        let (index, rest) = split(name).ok_or_else(fault)?;
        let value_bytes = u16::try_from(value.len()).map_err(|_| fault())?;
        let rest_bytes = u8::try_from(rest.len()).map_err(|_| fault())?;
        out.extend([rest_bytes, index]);
        out.extend(value_bytes.to_le_bytes());
        out.extend(rest);
        out.extend(value);
        // Entries begin at multiples of 4.
        out.resize(out.len().next_multiple_of(4), 0);
        if out.len() > BODY_BYTES_MAX {
            return Err(Fault::Attributes(out.len()));
        }
    }
    Ok(out.into())
}

/// The inode's count of the attributes' words.
pub(super) fn count(body: &[u8]) -> u16 {
    match body.len() {
        0 => 0,
        // No body is longer than `BODY_BYTES_MAX`, where the count is at its largest.
        bytes => u16::try_from((bytes - XATTR_HEAD_BYTES.to_usize()) / 4 + 1).unwrap_or(u16::MAX),
    }
}

const PREFIXES: [(u8, &[u8]); 3] = [(1, b"user."), (4, b"trusted."), (6, b"security.")];
const NAME_BYTES_MAX: usize = 255;
/// The head, and the largest number of words that the inode can count.
const BODY_BYTES_MAX: usize = XATTR_HEAD_BYTES as usize + 4 * (u16::MAX as usize - 1);

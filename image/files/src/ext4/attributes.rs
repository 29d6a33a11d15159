//! Extended attributes of ext4: behind an inode, in a block of their own, or in other inodes.
//!
//! Must stay true: a value lies in the region of its entry; a list holds at most what an inode and
//! a block have room for, and values of 64 KiB.

use super::{Ext4, INODE_BYTES, Inode};
use crate::le::{le16, le32};
use crate::{Attribute, FilesError};

impl Ext4 {
    /// Attributes, those of the file system's own use included: `system.data`.
    pub(super) fn raw_attributes(&self, inode: &Inode) -> Result<Vec<Attribute>, FilesError> {
        let mut found = Vec::new();
        let body = inode
            .raw
            .get(INODE_BYTES + usize::from(inode.extra_bytes)..);
        if let Some(body) = body.filter(|body| le32(body, 0) == MAGIC) {
            let region = &body[4..];
            self.entries(inode, region, region, &mut found)?;
        }
        if inode.attributes_at != 0 {
            let block = self.block(inode, inode.attributes_at)?;
            if le32(&block, 0) != MAGIC {
                return Err(damaged(inode));
            }
            self.entries(inode, block.get(32..).unwrap_or(&[]), &block, &mut found)?;
        }
        Ok(found)
    }

    /// Reads the entries; places of values count from the beginning of `values`.
    fn entries(
        &self,
        inode: &Inode,
        mut entries: &[u8],
        values: &[u8],
        found: &mut Vec<Attribute>,
    ) -> Result<(), FilesError> {
        // Four zero bytes end the list; so does the region.
        while entries.len() >= 16 && le32(entries, 0) != 0 {
            let name_len = usize::from(entries[0]);
            let name = entries
                .get(16..16 + name_len)
                .ok_or_else(|| damaged(inode))?;
            let len = usize::try_from(le32(entries, 8)).unwrap_or(usize::MAX);
            if len > VALUE_BYTES_MAX || name.contains(&0) {
                return Err(damaged(inode));
            }
            let value = match le32(entries, 4) {
                0 => {
                    let at = usize::from(le16(entries, 2));
                    let value = values.get(at..at + len);
                    value.ok_or_else(|| damaged(inode))?.to_vec()
                }
                number => self.value_of(inode, number, len)?,
            };
            if let Some(attribute) = named(entries[1], name, value) {
                found.push(attribute);
            }
            let next = (16 + name_len).next_multiple_of(4);
            entries = entries.get(next..).unwrap_or(&[]);
        }
        Ok(())
    }

    /// A value that has an inode of its own.
    fn value_of(&self, inode: &Inode, number: u32, len: usize) -> Result<Vec<u8>, FilesError> {
        let holder = self.inode(number.into())?;
        let end = u64::try_from(len).unwrap_or(u64::MAX);
        if !holder.has(HOLDS_A_VALUE) || holder.node.size_bytes < end {
            return Err(damaged(inode));
        }
        self.bytes(&holder, end)
    }
}

/// The attribute with the name that `index` and the rest of it stand for.
fn named(index: u8, name: &[u8], value: Vec<u8>) -> Option<Attribute> {
    let prefix: &[u8] = match index {
        1 => b"user.",
        2 => return Some((b"system.posix_acl_access".to_vec(), acl(&value)?)),
        3 => return Some((b"system.posix_acl_default".to_vec(), acl(&value)?)),
        4 => b"trusted.",
        6 => b"security.",
        7 => b"system.",
        _ => return None,
    };
    let name = [prefix, name].concat();
    (name.len() <= 255).then_some((name, value))
}

/// An access control list as programs get it (`linux/posix_acl_xattr.h`), of ext4's shorter form.
fn acl(stored: &[u8]) -> Option<Vec<u8>> {
    let mut rest = stored.strip_prefix(&1_u32.to_le_bytes())?;
    let mut list = 2_u32.to_le_bytes().to_vec();
    while rest.len() >= 4 {
        // Entries of a named user (2) or group (8) have a number.
        let (entry, id) = match le16(rest, 0) {
            2 | 8 => (rest.get(..8)?, le32(rest, 4)),
            _ => (&rest[..4], u32::MAX),
        };
        list.extend(&entry[..4]);
        list.extend(id.to_le_bytes());
        rest = &rest[entry.len()..];
    }
    Some(list)
}

fn damaged(inode: &Inode) -> FilesError {
    FilesError::damaged(inode.id, "an extended attribute")
}

const MAGIC: u32 = 0xEA02_0000;
const VALUE_BYTES_MAX: usize = 64 << 10;
/// Flag of an inode that holds a value.
const HOLDS_A_VALUE: u32 = 0x20_0000;

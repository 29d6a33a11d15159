//! The superblock: size of blocks, places of the tables, and required features.
//!
//! Must stay true: an unknown feature that changes how anything is read is refused.
//! Source: `fs/erofs/erofs_fs.h` of Linux, `struct erofs_super_block`.

use crate::bytes::{Bytes, Unreadable, le16, le32, le64};
use crate::{Error, Unsupported};
use sidecore_bare::width::ToU64;

/// Fields of the superblock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Superblock {
    pub(crate) block_bits: u8,
    pub(crate) root_nid: u64,
    pub(crate) inodes: u64,
    pub(crate) blocks: u64,
    pub(crate) build_time_s: i64,
    pub(crate) build_time_ns: u32,
    /// Byte from which inode numbers count.
    pub(crate) meta_at: u64,
    /// Byte from which numbers of shared attributes count.
    pub(crate) xattr_at: u64,
    pub(crate) prefixes: u8,
    /// Byte at which the table of long prefixes begins.
    pub(crate) prefixes_at: u64,
}

impl Superblock {
    pub(crate) fn read(bytes: &dyn Bytes) -> Result<Self, Error> {
        if bytes.size_bytes() < SUPERBLOCK_AT + SUPERBLOCK_BYTES.to_u64() {
            return Err(Error::NotErofs);
        }
        let mut raw = [0; SUPERBLOCK_BYTES];
        bytes
            .read_into(SUPERBLOCK_AT, &mut raw)
            .map_err(|Unreadable| Error::Unreadable)?;
        if le32(&raw, 0) != MAGIC {
            return Err(Error::NotErofs);
        }
        // The incompatible features. Compatible ones, in another word, change nothing that is read.
        let features = le32(&raw, 80);
        if features & !FEATURES_READ != 0 {
            return Err(Unsupported::Features(features).into());
        }
        let block_bits = raw[12];
        // Names' places in a directory block have 16 bits, so no block is longer than 64 KiB.
        if !(BLOCK_BITS_MIN..=BLOCK_BITS_MAX).contains(&block_bits) {
            return Err(Unsupported::BlockBits(block_bits).into());
        }
        if raw[90] != 0 {
            return Err(Unsupported::DirectoryBits(raw[90]).into());
        }
        // Without the feature both of its fields may hold anything.
        let has_prefixes = features & FEATURE_XATTR_PREFIXES != 0;
        Ok(Self {
            block_bits,
            root_nid: le16(&raw, 14).into(),
            inodes: le64(&raw, 16),
            build_time_s: le64(&raw, 24).cast_signed(),
            build_time_ns: le32(&raw, 32),
            blocks: le32(&raw, 36).into(),
            meta_at: u64::from(le32(&raw, 40)) << block_bits,
            xattr_at: u64::from(le32(&raw, 44)) << block_bits,
            prefixes: if has_prefixes { raw[91] } else { 0 },
            prefixes_at: u64::from(le32(&raw, 92)) << 2,
        })
    }

    pub(crate) fn block_bytes(&self) -> u64 {
        1 << self.block_bits
    }
}

pub(crate) const SUPERBLOCK_AT: u64 = 1024;
pub(crate) const SUPERBLOCK_BYTES: usize = 128;
pub(crate) const MAGIC: u32 = 0xE0F5_E1E2;
const BLOCK_BITS_MIN: u8 = 9;
const BLOCK_BITS_MAX: u8 = 16;

pub(crate) const FEATURE_CHUNKED_FILE: u32 = 0x4;
const FEATURE_XATTR_PREFIXES: u32 = 0x40;
const FEATURES_READ: u32 = FEATURE_CHUNKED_FILE | FEATURE_XATTR_PREFIXES;

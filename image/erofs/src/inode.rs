//! Inodes: attributes, and how the contents are laid out.
//!
//! Must stay true: an [`Inode`] has been checked; arithmetic on its fields does not overflow, and
//! the contents of a directory are no longer than the image.
//! Source: `fs/erofs/erofs_fs.h` of Linux, `struct erofs_inode_compact` and `_extended`.

use crate::bytes::{Bytes, fill, le16, le32, le64};
use crate::superblock::Superblock;
use crate::{Corrupt, Error};
use sidecore_bare::width::{ToU64, ToUsize};

/// Kind of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Regular file.
    File,
    /// Directory.
    Directory,
    /// Symbolic link.
    Link,
    /// Character device.
    CharacterDevice,
    /// Block device.
    BlockDevice,
    /// Named pipe.
    Fifo,
    /// Socket.
    Socket,
}

impl Kind {
    /// Kind by the bits of a mode (stat(2)); `None` where they are none.
    #[must_use]
    pub fn of_mode(mode: u16) -> Option<Self> {
        Some(match mode & 0o170_000 {
            0o100_000 => Self::File,
            0o040_000 => Self::Directory,
            0o120_000 => Self::Link,
            0o020_000 => Self::CharacterDevice,
            0o060_000 => Self::BlockDevice,
            0o010_000 => Self::Fifo,
            0o140_000 => Self::Socket,
            _ => return None,
        })
    }

    /// Bits of a mode for this kind.
    pub(crate) fn mode_bits(self) -> u16 {
        match self {
            Self::File => 0o100_000,
            Self::Directory => 0o040_000,
            Self::Link => 0o120_000,
            Self::CharacterDevice => 0o020_000,
            Self::BlockDevice => 0o060_000,
            Self::Fifo => 0o010_000,
            Self::Socket => 0o140_000,
        }
    }

    /// Byte of a directory entry for this kind.
    pub(crate) fn entry_byte(self) -> u8 {
        match self {
            Self::File => 1,
            Self::Directory => 2,
            Self::CharacterDevice => 3,
            Self::BlockDevice => 4,
            Self::Fifo => 5,
            Self::Socket => 6,
            Self::Link => 7,
        }
    }

    /// Kind by the byte in a directory entry.
    pub(crate) fn of_entry(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::File,
            2 => Self::Directory,
            3 => Self::CharacterDevice,
            4 => Self::BlockDevice,
            5 => Self::Fifo,
            6 => Self::Socket,
            7 => Self::Link,
            _ => return None,
        })
    }
}

/// Attributes of a file, and the place of its contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Inode {
    /// Its number, which alone identifies the inode. Hard links share it.
    pub nid: u64,
    /// Kind.
    pub kind: Kind,
    /// Permissions, with the set-user-id, set-group-id and sticky bits.
    pub permissions: u16,
    /// Number of hard links.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Size of the contents in bytes; at most 2^63 - 1.
    pub size_bytes: u64,
    /// Time of the last change: seconds since 1970, negative before.
    pub mtime_s: i64,
    /// Nanoseconds of that time, below 10^9.
    pub mtime_ns: u32,
    /// Device number, as the kernel packs it into 32 bits (`new_encode_dev`); 0 for others.
    pub rdev: u32,
    pub(crate) layout: Layout,
    /// Byte after the inode, where its attributes begin.
    pub(crate) xattrs_at: u64,
    pub(crate) xattrs_bytes: u32,
}

/// Places of a file's contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout {
    /// No contents: devices, pipes, sockets.
    Nothing,
    /// In one contiguous run.
    Plain { at: u64 },
    /// In one run except for the last, partial block, which follows the inode.
    Tail {
        at: u64,
        tail_at: u64,
        tail_from: u64,
    },
    /// In chunks of 2^`bits` bytes; an array holds their places.
    Chunks {
        entries_at: u64,
        entry_bytes: u8,
        bits: u16,
    },
}

impl Inode {
    pub(crate) fn read(bytes: &dyn Bytes, sb: &Superblock, nid: u64) -> Result<Self, Error> {
        let (at, raw, format) = read_raw(bytes, sb, nid)?;
        let mode = le16(&raw, 4);
        let kind = Kind::of_mode(mode).ok_or(Error::corrupt(nid, Corrupt::Mode))?;
        let xattrs_bytes = match le16(&raw, 2) {
            0 => 0,
            // The first word of the count stands for the whole head.
            count => XATTR_HEAD_BYTES + 4 * (u32::from(count) - 1),
        };
        let is_extended = format & EXTENDED != 0;
        let xattrs_at = at + own_bytes(is_extended).to_u64();
        let behind = xattrs_at + u64::from(xattrs_bytes);
        let union = le32(&raw, 16);
        let mut inode = Self {
            nid,
            kind,
            permissions: mode & 0o7777,
            links: le16(&raw, 6).into(),
            uid: le16(&raw, 24).into(),
            gid: le16(&raw, 26).into(),
            size_bytes: le32(&raw, 8).into(),
            // Compact inodes have no time of their own.
            mtime_s: sb.build_time_s,
            mtime_ns: sb.build_time_ns,
            rdev: 0,
            layout: Layout::Nothing,
            xattrs_at,
            xattrs_bytes,
        };
        if is_extended {
            inode.links = le32(&raw, 44);
            inode.uid = le32(&raw, 24);
            inode.gid = le32(&raw, 28);
            inode.size_bytes = le64(&raw, 8);
            inode.mtime_s = le64(&raw, 32).cast_signed();
            inode.mtime_ns = le32(&raw, 40);
        }
        // Programs get this value, and some of them rely on it being below 10^9.
        inode.mtime_ns = inode.mtime_ns.min(999_999_999);
        match kind {
            Kind::File | Kind::Directory | Kind::Link => {
                inode.layout = layout(sb, &inode, format >> 1, union, behind)?;
                inode.check_size(bytes.size_bytes())?;
            }
            Kind::CharacterDevice | Kind::BlockDevice => {
                inode.rdev = union;
                inode.size_bytes = 0;
            }
            Kind::Fifo | Kind::Socket => inode.size_bytes = 0,
        }
        Ok(inode)
    }

    fn check_size(&self, image_bytes: u64) -> Result<(), Error> {
        // Chunks may be holes or share their places: such a file may be longer than the image.
        let may_have_holes = matches!(self.layout, Layout::Chunks { .. });
        let limit = match self.kind {
            Kind::Link => LINK_BYTES_MAX,
            Kind::File if may_have_holes => i64::MAX.cast_unsigned(),
            Kind::File => image_bytes,
            // All chunks may have the same place, so a few bytes could claim a huge directory. The
            // limit bounds the cost of a listing.
            _ => image_bytes.min(DIRECTORY_BYTES_MAX),
        };
        if self.size_bytes > limit {
            return Err(Error::corrupt(self.nid, Corrupt::Size));
        }
        Ok(())
    }
}

/// Place, bytes and format word of an inode that lies inside the image as a whole.
fn read_raw(
    bytes: &dyn Bytes,
    sb: &Superblock,
    nid: u64,
) -> Result<(u64, [u8; EXTENDED_BYTES], u16), Error> {
    let outside = || Error::corrupt(nid, Corrupt::Outside);
    let at = (nid.checked_mul(SLOT_BYTES)).and_then(|at| at.checked_add(sb.meta_at));
    let at = at
        .filter(|&at| at < bytes.size_bytes())
        .ok_or_else(outside)?;
    // An inode of either size may be the last thing in the image, so the read is cut off at its
    // end.
    let len = (bytes.size_bytes() - at).to_usize().min(EXTENDED_BYTES);
    if len < COMPACT_BYTES {
        return Err(outside());
    }
    let mut raw = [0; EXTENDED_BYTES];
    fill(bytes, at, &mut raw[..len], nid)?;
    let format = le16(&raw, 0);
    // A bit that is unknown here may mean that the rest has another layout.
    if format & !FORMAT_BITS != 0 {
        return Err(Error::corrupt(nid, Corrupt::Format));
    }
    match len < own_bytes(format & EXTENDED != 0) {
        true => Err(outside()),
        false => Ok((at, raw, format)),
    }
}

fn own_bytes(is_extended: bool) -> usize {
    match is_extended {
        true => EXTENDED_BYTES,
        false => COMPACT_BYTES,
    }
}

/// Layout number `layout` with the inode's union; `behind` is the first byte after the inode and
/// its attributes.
fn layout(
    sb: &Superblock,
    inode: &Inode,
    layout: u16,
    union: u32,
    behind: u64,
) -> Result<Layout, Error> {
    let corrupt = |what| Error::corrupt(inode.nid, what);
    let at = u64::from(union) << sb.block_bits;
    let block_bytes = sb.block_bytes();
    match layout {
        FLAT_PLAIN => Ok(Layout::Plain { at }),
        FLAT_INLINE => {
            if inode.size_bytes == 0 {
                return Ok(Layout::Plain { at });
            }
            // A size of whole blocks has a tail, too: the last block.
            let tail_from = (inode.size_bytes - 1) / block_bytes * block_bytes;
            let tail_bytes = inode.size_bytes - tail_from;
            // The tail lies in the inode's own block.
            if behind % block_bytes + tail_bytes > block_bytes {
                return Err(corrupt(Corrupt::Size));
            }
            Ok(Layout::Tail {
                at,
                tail_at: behind,
                tail_from,
            })
        }
        CHUNK_BASED => {
            // The union's other half is reserved: the kernel does not look at it either.
            let [low, high, ..] = union.to_le_bytes();
            let format = u16::from_le_bytes([low, high]);
            let bits = u16::from(sb.block_bits) + (format & CHUNK_BITS);
            if format & !(CHUNK_BITS | CHUNK_INDEXES) != 0 || bits > CHUNK_BITS_MAX {
                return Err(corrupt(Corrupt::Format));
            }
            let entry_bytes: u8 = if format & CHUNK_INDEXES != 0 { 8 } else { 4 };
            Ok(Layout::Chunks {
                entries_at: behind.next_multiple_of(entry_bytes.into()),
                entry_bytes,
                bits,
            })
        }
        COMPRESSED_FULL | COMPRESSED_COMPACT => Err(corrupt(Corrupt::Compressed)),
        _ => Err(corrupt(Corrupt::Format)),
    }
}

/// The longest symbolic link (`PATH_MAX`, without the byte that ends it in C).
pub(crate) const LINK_BYTES_MAX: u64 = 4095;
/// The longest directory: tens of millions of names.
pub(crate) const DIRECTORY_BYTES_MAX: u64 = 1 << 30;
/// Head of the attributes after an inode.
pub(crate) const XATTR_HEAD_BYTES: u32 = 12;
/// Inode numbers count in steps of this many bytes.
pub(crate) const SLOT_BYTES: u64 = 32;
pub(crate) const COMPACT_BYTES: usize = 32;
pub(crate) const EXTENDED_BYTES: usize = 64;
/// Bits of the format word that are read: [`EXTENDED`], and the layout above it.
const FORMAT_BITS: u16 = 0xF;
const EXTENDED: u16 = 1;
pub(crate) const FLAT_PLAIN: u16 = 0;
const COMPRESSED_FULL: u16 = 1;
pub(crate) const FLAT_INLINE: u16 = 2;
const COMPRESSED_COMPACT: u16 = 3;
pub(crate) const CHUNK_BASED: u16 = 4;
const CHUNK_BITS: u16 = 0x1F;
const CHUNK_INDEXES: u16 = 0x20;
/// No chunk is longer than the largest offset; a larger shift would overflow.
const CHUNK_BITS_MAX: u16 = 47;

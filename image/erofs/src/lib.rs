//! A reader of erofs images whose contents erofs itself does not compress; and a
//! [writer](mod@write) of such images.
//!
//! Pure: bytes come in through [`Bytes`], attributes, names and places in the image are returned.
//! No I/O, no mutable state, no `unsafe`.
//!
//! - `superblock`: sizes of blocks, places of tables, features.
//! - `inode`: attributes, and the layout of contents.
//! - `contents`: places of a file's contents in the image.
//! - `directory`: names.
//! - `xattr`: extended attributes.
//! - `write`: the writer, with a page of its own.
//!
//! For images from untrusted sources: every place is checked against the image's size, every number
//! before it is used. A fault is an error for the file that it concerns; all others stay readable.
//! No call allocates more than 256 KiB, and its time is bounded by the length of its request.
//! Directories may form cycles; a caller that walks a tree has to detect them.
//!
//! Not read: compression, several devices, fragments, 48-bit block numbers (refused by
//! [`Erofs::open`]). The superblock's own checksum is not verified: an attacker that can change the
//! image can also change the checksum.
//!
//! Source: `Documentation/filesystems/erofs.rst` and `fs/erofs/erofs_fs.h` of Linux.

mod bytes;
mod contents;
mod directory;
mod error;
mod inode;
mod superblock;
pub mod write;
mod xattr;

pub use bytes::{Bytes, Unreadable};
pub use contents::Extent;
pub use directory::Entry;
pub use error::{Corrupt, Error, Unsupported};
pub use inode::{Inode, Kind};

use sidecore_bare::width::ToUsize;
use superblock::Superblock;
use xattr::{Attribute, Prefix};

/// An erofs image, open for reading. Callable from any thread.
#[derive(Debug)]
pub struct Erofs<B> {
    bytes: B,
    superblock: Superblock,
    prefixes: Box<[Prefix]>,
}

impl<B: Bytes> Erofs<B> {
    /// Reads the superblock, and checks that the root is a directory.
    ///
    /// # Errors
    /// [`Error`]; [`Error::Unsupported`] names the feature that is not read here.
    pub fn open(bytes: B) -> Result<Self, Error> {
        let superblock = Superblock::read(&bytes)?;
        let prefixes = xattr::prefixes(&bytes, &superblock)?;
        let erofs = Self {
            bytes,
            superblock,
            prefixes,
        };
        let root = erofs.inode(erofs.root())?;
        match root.kind {
            Kind::Directory => Ok(erofs),
            _ => Err(Error::corrupt(root.nid, Corrupt::Mode)),
        }
    }

    /// Number of the root directory.
    #[must_use]
    pub fn root(&self) -> u64 {
        self.superblock.root_nid
    }

    /// Number of inodes, according to the superblock.
    #[must_use]
    pub fn inodes(&self) -> u64 {
        self.superblock.inodes
    }

    /// Size of a block in bytes, a power of two from 512 to 65,536.
    #[must_use]
    pub fn block_bytes(&self) -> u32 {
        1 << self.superblock.block_bits
    }

    /// Number of blocks, according to the superblock.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.superblock.blocks
    }

    /// An inode by its number.
    ///
    /// # Errors
    /// [`Error`]; any number may be passed.
    pub fn inode(&self, nid: u64) -> Result<Inode, Error> {
        Inode::read(&self.bytes, &self.superblock, nid)
    }

    /// Number of the inode that has this name in a directory.
    ///
    /// # Errors
    /// [`Error`].
    pub fn look_up(&self, directory: &Inode, name: &[u8]) -> Result<Option<u64>, Error> {
        if directory.kind != Kind::Directory {
            return Ok(None);
        }
        directory::look_up(&self.bytes, &self.superblock, directory, name)
    }

    /// Visits a directory's entries, `.` and `..` included, from position `from` (0, or
    /// [`Entry::next`] of an earlier entry) until `visit` returns false.
    ///
    /// # Errors
    /// [`Error`]; entries before the fault have been visited.
    pub fn list(
        &self,
        directory: &Inode,
        from: u64,
        visit: &mut dyn FnMut(&Entry<'_>) -> bool,
    ) -> Result<(), Error> {
        if directory.kind != Kind::Directory {
            return Ok(());
        }
        directory::list(&self.bytes, &self.superblock, directory, from, visit)
    }

    /// Target of a symbolic link, at most 4,095 bytes.
    ///
    /// # Errors
    /// [`Error`]; [`Corrupt::Link`] for other kinds of files.
    pub fn link(&self, inode: &Inode) -> Result<Vec<u8>, Error> {
        if inode.kind != Kind::Link {
            return Err(Error::corrupt(inode.nid, Corrupt::Link));
        }
        // At most 4,095 bytes: a longer link is no `Inode`.
        let mut target = vec![0; inode.size_bytes.to_usize()];
        contents::read(&self.bytes, &self.superblock, inode, 0, &mut target)?;
        // Programs get the target as a C string: a zero byte would cut it.
        match target.is_empty() || target.contains(&0) {
            true => Err(Error::corrupt(inode.nid, Corrupt::Link)),
            false => Ok(target),
        }
    }

    /// Appends the places of `len` bytes of a file from `offset`, in order, up to its end; each
    /// lies inside the image.
    ///
    /// # Errors
    /// [`Error`]; `found` may then hold some of them.
    pub fn extents(
        &self,
        inode: &Inode,
        offset: u64,
        len: u64,
        found: &mut Vec<Extent>,
    ) -> Result<(), Error> {
        contents::extents(&self.bytes, &self.superblock, inode, offset, len, found)
    }

    /// Names of an inode's extended attributes, each ended by a zero byte, in the format of
    /// `listxattr(2)`.
    ///
    /// # Errors
    /// [`Error`]; [`Error::TooLong`] past 64 KiB.
    pub fn attribute_names(&self, inode: &Inode) -> Result<Vec<u8>, Error> {
        let mut names = Vec::new();
        self.each_attribute(inode, &mut |attribute| {
            names.extend(attribute.name);
            names.push(0);
            // Its own and the shared attributes may have more names than `listxattr(2)` returns.
            match names.len() > NAMES_BYTES_MAX {
                true => Err(Error::TooLong(inode.nid)),
                false => Ok(true),
            }
        })?;
        Ok(names)
    }

    /// Value of an extended attribute; `None` if the inode has no attribute of that name.
    ///
    /// # Errors
    /// [`Error`].
    pub fn attribute(&self, inode: &Inode, name: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let mut found = None;
        self.each_attribute(inode, &mut |attribute| {
            if attribute.name == name {
                found = Some(attribute);
            }
            Ok(found.is_none())
        })?;
        let Some(attribute) = found else {
            return Ok(None);
        };
        // Read only now: values of the attributes before it are not needed.
        let mut value = vec![0; attribute.value_bytes.into()];
        bytes::fill(&self.bytes, attribute.value_at, &mut value, inode.nid)?;
        Ok(Some(value))
    }

    fn each_attribute(
        &self,
        inode: &Inode,
        visit: &mut dyn FnMut(Attribute) -> Result<bool, Error>,
    ) -> Result<(), Error> {
        xattr::each(&self.bytes, &self.superblock, &self.prefixes, inode, visit)
    }
}

/// End of an image's metadata, if the superblock implies it: the beginning of the shared
/// attributes, after which our [writer](mod@write) puts only contents. A hint for read-ahead;
/// `None` if the bytes are not an erofs, or one that is not read here.
///
/// ```
/// assert_eq!(sidecore_erofs::metadata_end(&&[0; 4096][..]), None);
/// ```
#[must_use]
pub fn metadata_end(bytes: &dyn Bytes) -> Option<u64> {
    let superblock = Superblock::read(bytes).ok()?;
    Some(superblock.xattr_at)
}

/// The longest list of names that `listxattr(2)` returns.
const NAMES_BYTES_MAX: usize = 64 << 10;

#[cfg(test)]
mod tests;

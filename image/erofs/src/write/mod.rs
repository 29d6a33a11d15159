//! A writer of erofs images whose contents erofs itself does not compress.
//!
//! Pure, like the reader in this crate: a [`Tree`] goes in, bytes and their places are returned.
//! The caller supplies the contents of files and writes the bytes.
//!
//! 1. [`Tree`]: inodes, and the names that directories have for them.
//! 2. [`Layout::new`] assigns every inode a place. This fixes its number, and the byte at which
//!    contents may begin ([`Layout::data_at`]).
//! 3. The caller stores the contents of files after that byte, in whole blocks, and reports the
//!    place of each chunk ([`Layout::place`]). Two files may share places.
//! 4. [`Layout::seal`] and [`Sealed::write`] return the metadata.
//!
//! All metadata lie in one run at the image's beginning, the inodes of one directory contiguous, so
//! a walk over the tree reads no contents. The first 128 KiB are laid out breadth first, so that
//! the names that a program looks up first are in the first blocks. The rest is laid out depth
//! first, in the order of a walk, so that the inodes of one path lie near each other.
//!
//! Must stay true: equal trees with equal places give equal bytes; the reader accepts all that is
//! written; a tree that erofs cannot hold is an error that names the inode.
//!
//! - `tree`: input of the writer.
//! - `layout`: places, and directories' blocks.
//! - `emit`: bytes.
//! - `attributes`: extended attributes after an inode.
//!
//! Source: `Documentation/filesystems/erofs.rst` and `fs/erofs/erofs_fs.h` of Linux.

mod attributes;
mod emit;
mod layout;
mod tree;

pub use attributes::is_storable;
pub use emit::Sealed;
pub use layout::Layout;
pub use tree::{Id, Meta, Node, Tree};

/// Size of a block in bytes, of metadata and of contents.
pub const BLOCK_BYTES: u64 = 4096;
/// Size of a chunk in bytes; the last one of a file may be shorter.
pub const CHUNK_BYTES: u64 = 64 << 10;

/// A tree that erofs cannot hold.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct Unfit {
    /// The inode at fault.
    pub id: Id,
    /// The fault.
    pub what: Fault,
}

/// A property of an inode that erofs cannot hold.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// An empty name, one with `/` or a zero byte in it, `.` or `..`.
    #[error("`{0}` is no name of a file")]
    Name(String),
    /// A name of more than 255 bytes.
    #[error("a name has {0} bytes; erofs holds at most 255")]
    NameLength(usize),
    /// A name that the directory already has.
    #[error("the directory has two entries called `{0}`")]
    Twice(String),
    /// An entry in an inode that is not a directory.
    #[error("only a directory has entries")]
    NoDirectory,
    /// A directory with a second name.
    #[error("a directory has one name only")]
    DirectoryLinked,
    /// A directory of more than 1 GiB.
    #[error("the directory's names take {0} bytes; at most 1 GiB is read")]
    DirectoryLength(u64),
    /// A symbolic link whose target is empty or too long.
    #[error("the link's target has {0} bytes; erofs holds 1 to 4095, none of them zero")]
    Link(usize),
    /// An attribute without a prefix in erofs, or with a name or value that is too long.
    #[error(
        "the attribute `{name}` of {bytes} bytes does not fit; erofs holds user, trusted and \
         security attributes and access lists of at most 65,535 bytes"
    )]
    Attribute {
        /// Its name.
        name: String,
        /// Length of its value in bytes.
        bytes: usize,
    },
    /// Attributes whose total is too long.
    #[error("the attributes take {0} bytes together; erofs holds 262,148")]
    Attributes(usize),
    /// A device number that does not fit in 32 bits.
    #[error("the device number {0}:{1} does not fit; erofs holds 4095:1048575")]
    Device(u32, u32),
    /// More files, links, or bytes than the format can count.
    #[error("the tree does not fit into an erofs of 2^32 blocks (16 TiB)")]
    Full,
    /// Contents at places that do not match the layout.
    #[error("the file's contents were not given their places")]
    Places,
}

#[cfg(test)]
mod tests;

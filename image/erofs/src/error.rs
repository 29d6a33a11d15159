//! Reasons why a part of an image cannot be read.

/// See the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The bytes could not be read; the implementation of `Bytes` has logged the cause.
    #[error("the image's bytes cannot be read")]
    Unreadable,
    /// There is no erofs superblock.
    #[error("no erofs begins the image")]
    NotErofs,
    /// A file system that this reader does not support.
    #[error("{0}")]
    Unsupported(#[from] Unsupported),
    /// An inode, or its contents or attributes, is not valid.
    #[error("inode {nid} is damaged: {what}")]
    Corrupt {
        /// The inode's number.
        nid: u64,
        /// The fault.
        what: Corrupt,
    },
    /// More bytes than one call may return: a list of attributes' names.
    #[error("the attributes of inode {0} have names of more than 64 KiB")]
    TooLong(u64),
}

/// A property of a file system that this reader does not support.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unsupported {
    /// Blocks of another size.
    #[error("its blocks have 2^{0} bytes; 2^9 to 2^16 are read")]
    BlockBits(u8),
    /// Directory blocks that differ from the others.
    #[error("its directory blocks are 2^{0} blocks long; only single ones are read")]
    DirectoryBits(u8),
    /// Features.
    #[error(
        "the erofs inside uses features that are not read here (incompatible features {0:#x}): \
         compression of its own, several devices, or newer ones"
    )]
    Features(u32),
}

/// A fault in an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Corrupt {
    /// Metadata or contents outside of the image.
    #[error("it lies outside of the image")]
    Outside,
    /// A format word with unknown bits.
    #[error("its format is unknown")]
    Format,
    /// An unknown kind of file.
    #[error("its mode names no kind of file")]
    Mode,
    /// A size that its contents cannot have.
    #[error("its size is impossible")]
    Size,
    /// Contents compressed by erofs.
    #[error("its contents are compressed by erofs, which is not read here")]
    Compressed,
    /// A directory block.
    #[error("a directory block is damaged")]
    Directory,
    /// A symbolic link.
    #[error("the symbolic link is damaged")]
    Link,
    /// Attributes.
    #[error("its extended attributes are damaged")]
    Attributes,
    /// A chunk of another device, which is not supported.
    #[error("a chunk lies on another device")]
    Device,
}

impl Error {
    pub(crate) fn corrupt(nid: u64, what: Corrupt) -> Self {
        Self::Corrupt { nid, what }
    }
}

//! Files of an image without a mount: the trees of erofs, squashfs and ext4, read in this process.
//!
//! Top-down:
//!
//! - [`extract()`]: files into a folder, in parallel; [`archive()`]: as a tar stream.
//! - [`walk`]: which files are meant (paths, globs), and a walk over them.
//! - [`Tree`]: a file system as the others see it; `erofs`, `squashfs`, `ext4` implement it.
//!
//! Why own readers of squashfs and ext4: of the published ones, `backhand` drops extended
//! attributes and hard links and panics on names that are not UTF-8. `ext4-view` is sound but
//! shows neither inode numbers nor attributes, devices or holes, all of which an extraction
//! restores.
//!
//! Must stay true: images come from untrusted makers. Every place and length is checked before it
//! is used; damage is an error of the file that has it. Memory is bounded by
//! [`walk::ENTRIES_MAX`] names, 2 GiB of their paths and the caches of the
//! readers (`squashfs`).
//! Called from: any thread; blocks on the image.

mod archive;
mod erofs;
mod ext4;
mod extract;
pub mod listing;
mod squashfs;
pub mod walk;

#[cfg(test)]
mod tests;

pub use archive::archive;
pub use extract::{Options, Report, extract, extract_watched};
pub use sidecore_erofs::Kind;

use sidecore_format::source::{BlockSource, ReadError};
use std::io::{self, Write};
use std::ops::Range;
use std::sync::Arc;

mod le {
    //! Little-endian numbers out of bytes. Bytes past the end count as zeros, so that no place
    //! panics; lengths are checked where they matter. Pure.

    fn bytes<const N: usize>(raw: &[u8], at: usize) -> [u8; N] {
        let mut found = [0; N];
        if let Some(part) = at.checked_add(N).and_then(|end| raw.get(at..end)) {
            found.copy_from_slice(part);
        }
        found
    }

    /// 16 bits at a place.
    pub(crate) fn le16(raw: &[u8], at: usize) -> u16 {
        u16::from_le_bytes(bytes(raw, at))
    }

    /// 32 bits at a place.
    pub(crate) fn le32(raw: &[u8], at: usize) -> u32 {
        u32::from_le_bytes(bytes(raw, at))
    }

    /// 64 bits at a place.
    pub(crate) fn le64(raw: &[u8], at: usize) -> u64 {
        u64::from_le_bytes(bytes(raw, at))
    }
}

/// Attributes of one file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Node {
    /// Its number: hard links share it.
    pub id: u64,
    /// Kind.
    pub kind: Kind,
    /// Permissions, with the set-user-id, set-group-id and sticky bits.
    pub permissions: u16,
    /// Number of names, according to the image.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Size of the contents in bytes.
    pub size_bytes: u64,
    /// Time of the last change: seconds since 1970, negative before.
    pub mtime_s: i64,
    /// Nanoseconds of that time, below 10^9.
    pub mtime_ns: u32,
    /// Major and minor number of a device.
    pub device: (u32, u32),
}

/// An extended attribute: its whole name, and its value.
pub type Attribute = (Vec<u8>, Vec<u8>);

/// A part of a file's contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Piece<'b> {
    /// Bytes.
    Bytes(&'b [u8]),
    /// That number of zeros, which the image does not store.
    Hole(u64),
}

impl Piece<'_> {
    /// Its bytes, those of a hole too.
    pub(crate) fn len(self) -> u64 {
        match self {
            Self::Bytes(bytes) => u64::try_from(bytes.len()).unwrap_or(u64::MAX),
            Self::Hole(len) => len,
        }
    }

    /// Writes it; a hole as zeros.
    ///
    /// # Errors
    /// Those of `output`.
    pub fn write_to(self, output: &mut dyn Write) -> io::Result<()> {
        static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
        let mut len = match self {
            Self::Bytes(bytes) => return output.write_all(bytes),
            Self::Hole(len) => len,
        };
        while len > 0 {
            let part = usize::try_from(len).unwrap_or(ZEROS.len()).min(ZEROS.len());
            output.write_all(&ZEROS[..part])?;
            len -= u64::try_from(part).unwrap_or(len);
        }
        Ok(())
    }
}

/// Receives the parts of a file's contents in their order.
pub type Sink<'a> = dyn FnMut(Piece<'_>) -> io::Result<()> + 'a;

/// Receives a name and the number of its file.
pub type Names<'a> = dyn FnMut(&[u8], u64) -> Result<(), FilesError> + 'a;

/// Receives a range of bytes of an image.
pub type Places<'a> = dyn FnMut(Range<u64>) + 'a;

/// A file system, open for reading. Any thread may call it; all methods block on the image.
pub trait Tree: Send + Sync {
    /// The kernel's name for it.
    fn name(&self) -> &'static str;

    /// Number of the root directory.
    fn root(&self) -> u64;

    /// A file by its number; any number may be passed.
    ///
    /// # Errors
    /// [`FilesError`].
    fn node(&self, id: u64) -> Result<Node, FilesError>;

    /// Visits the names of a directory, `.` and `..` left out: each is 1 to 255 bytes long and has
    /// no slash and no zero byte.
    ///
    /// # Errors
    /// [`FilesError`]; names before the fault have been visited.
    fn list(&self, directory: &Node, visit: &mut Names<'_>) -> Result<(), FilesError>;

    /// Target of a symbolic link.
    ///
    /// # Errors
    /// [`FilesError`].
    fn link(&self, node: &Node) -> Result<Vec<u8>, FilesError>;

    /// Passes the bytes of a file in `range`, which lies in its size, to `sink`.
    ///
    /// # Errors
    /// [`FilesError`]; parts before the fault have been passed. [`FilesError::Output`] where `sink`
    /// failed.
    fn contents(
        &self,
        node: &Node,
        range: Range<u64>,
        sink: &mut Sink<'_>,
    ) -> Result<(), FilesError>;

    /// Extended attributes.
    ///
    /// # Errors
    /// [`FilesError`].
    fn attributes(&self, node: &Node) -> Result<Vec<Attribute>, FilesError>;

    /// Passes the places of a file's contents in the image to `visit`, in order; holes have none.
    ///
    /// # Errors
    /// [`FilesError`]; [`FilesError::NoPlaces`] of a file system whose places are not looked up.
    fn places(&self, node: &Node, visit: &mut Places<'_>) -> Result<(), FilesError> {
        let _ = (node, visit);
        Err(FilesError::NoPlaces(self.name()))
    }
}

/// Opens the file system that `source` holds.
///
/// # Errors
/// [`FilesError::NoFileSystem`], or the fault of one that is there.
pub fn open(source: Arc<dyn BlockSource>) -> Result<Box<dyn Tree>, FilesError> {
    let mut head = [0; 2048];
    let len = usize::try_from(source.size_bytes()).unwrap_or(head.len());
    let len = len.min(head.len());
    // One read has the magic numbers of all: each lies within the first 2 KiB.
    source.read_into(0, &mut head[..len])?;
    let has = |at: usize, magic: &[u8]| head[at..].starts_with(magic);
    Ok(if has(1024, &0xE0F5_E1E2_u32.to_le_bytes()) {
        Box::new(erofs::ErofsTree::open(source)?)
    } else if has(0, b"hsqs") {
        Box::new(squashfs::Squashfs::open(source)?)
    } else if has(1024 + 56, &0xEF53_u16.to_le_bytes()) {
        Box::new(ext4::Ext4::open(source)?)
    } else if has(512, b"EFI PART") {
        return Err(FilesError::Partitions);
    } else {
        return Err(FilesError::NoFileSystem);
    })
}

/// Why files cannot be listed, read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FilesError {
    /// The image cannot be read there.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A fault of an erofs.
    #[error(transparent)]
    Erofs(#[from] sidecore_erofs::Error),
    /// A fault of another file system.
    #[error("{what} is damaged (inode {id:#x})")]
    Damaged {
        /// The file's number.
        id: u64,
        /// The part.
        what: &'static str,
    },
    /// A feature of a file system that is not read here.
    #[error("{0}; `sidecore block mount` lets the kernel read it")]
    Unsupported(String),
    /// Nothing that is read here.
    #[error(
        "the image holds no erofs, squashfs or ext4, which are read without a mount; \
         `sidecore block mount --fs` mounts others, and `--raw` takes a file as it is"
    )]
    NoFileSystem,
    /// Places of files in a file system that is not looked through for them.
    #[error(
        "files are found by a trace in an erofs, as `sidecore block pack DIR` makes it; this is {0}"
    )]
    NoPlaces(&'static str),
    /// A disk.
    #[error(
        "the image is a disk with partitions, of which none is read here; \
         `sidecore block attach` shows them as devices"
    )]
    Partitions,
    /// A directory has two names, so that a walk would not end.
    #[error("a directory has two names (inode {0:#x}); the image is damaged or made to mislead")]
    Twice(u64),
    /// More names than a walk takes.
    #[error("more than {} files; name a part of the image", walk::ENTRIES_MAX)]
    TooMany,
    /// Longer paths than a walk takes.
    #[error(
        "the paths of the files have more than {} MiB together; name a part of the image",
        walk::PATHS_BYTES_MAX >> 20
    )]
    TooDeep,
    /// More bytes than may be written.
    #[error("the files have more than {0} bytes together; allow more with --limit")]
    Limit(u64),
    /// A pattern that cannot be meant.
    #[error("`{0}` leads out of the image; paths in it begin at its root")]
    Outside(String),
    /// A path with too many links on its way.
    #[error("too many symbolic links on the way to `{0}`")]
    Links(String),
    /// No thread for the work.
    #[error("cannot start a thread: {0}")]
    Thread(#[source] io::Error),
    /// The receiver of the bytes failed.
    #[error("cannot write: {0}")]
    Output(#[source] io::Error),
}

impl FilesError {
    fn damaged(id: u64, what: &'static str) -> Self {
        Self::Damaged { id, what }
    }
}

/// Major and minor number out of the kernel's 32 bits (`new_decode_dev`).
fn unpacked_device(packed: u32) -> (u32, u32) {
    let major = (packed & 0xF_FF00) >> 8;
    let minor = (packed & 0xFF) | ((packed >> 12) & 0xF_FF00);
    (major, minor)
}

/// True for a name that a directory may have.
fn is_name(name: &[u8]) -> bool {
    (1..=NAME_BYTES_MAX).contains(&name.len())
        && !name.iter().any(|&byte| byte == 0 || byte == b'/')
}

/// True for the two names that each directory has.
fn is_dots(name: &[u8]) -> bool {
    matches!(name, b"." | b"..")
}

/// Reads `range` of the source and passes it on, in pieces that lie in the source's cache.
fn pass(
    source: &dyn BlockSource,
    range: Range<u64>,
    sink: &mut Sink<'_>,
) -> Result<(), FilesError> {
    let max = u64::try_from(source.read_with_max_bytes()).unwrap_or(64 << 10);
    let mut at = range.start;
    while at < range.end {
        let len = (range.end - at).min(max);
        let mut result = Ok(());
        source.read_with(at, usize::try_from(len).unwrap_or(0), &mut |pieces| {
            result = match pieces {
                Ok(pieces) => pieces
                    .iter()
                    .try_for_each(|piece| sink(Piece::Bytes(piece)))
                    .map_err(FilesError::Output),
                Err(error) => Err(error.clone().into()),
            };
        });
        result?;
        at += len;
    }
    Ok(())
}

const NAME_BYTES_MAX: usize = 255;

//! An image's compressed bytes: a local file, or a remote object that is read by ranges.
//!
//! Why here: the device and the walks over whole images ([`crate::pack`]) need the same two things
//! of an image, its bytes at offsets and whole frames. Over a network, frames take long to arrive
//! and many may be in flight at once. The crates above know the protocol (HTTP, S3, a registry).
//! Must stay true: an engine never waits for a network: frames are fetched first, on the thread
//! that requested them. Nothing that a remote source delivers is trusted: the frames' checks are
//! made here, as for a file.
//! Called from: any thread.

use crate::format::{FormatError, Frame, Index, ReadAt};
use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use zeroize::Zeroizing;

/// The compressed bytes of one frame, shared by all readers that wait for them.
pub type Stored = Arc<[u8]>;

/// A source whose bytes come over a network. Its [`ReadAt`] serves the image's tables and single
/// frames that were not fetched ahead of time.
pub trait RemoteSource: ReadAt + Send {
    /// Fetches the compressed bytes of `wanted`, which are in the image's order, and blocks until
    /// all are there. Prefetches those of `ahead`, after the wanted ones, without waiting.
    ///
    /// # Errors
    /// The reason why one of `wanted` cannot be fetched, after the source's retries.
    fn fetch(
        &self,
        wanted: &[Frame],
        ahead: &mut dyn Iterator<Item = Frame>,
    ) -> io::Result<Vec<Stored>>;

    /// Compressed bytes that should be in flight ahead of a sequential reader, so that the link is
    /// never idle. Changes as the source measures the link.
    fn window_bytes(&self) -> u64;

    /// Its traffic since it was opened.
    fn traffic(&self) -> Traffic;

    /// The server's name of the image's version, if it has one.
    fn version(&self) -> Option<String> {
        None
    }
}

/// Totals of a network source.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes of the image that came over the network and were used.
    pub fetched_bytes: u64,
    /// Requests that were repeated.
    pub retries: u64,
}

/// The former name of [`RemoteSource`].
#[deprecated(note = "it is called RemoteSource")]
pub use self::RemoteSource as Far;

/// An image, opened.
#[derive(Clone)]
pub enum Image {
    /// A file or a block device of this machine.
    File(Arc<File>),
    /// An image that is read over a network.
    Remote(Arc<dyn RemoteSource>),
}

impl Image {
    /// Reads the image's tables; with `raw`, takes its bytes as they are.
    ///
    /// # Errors
    /// As [`Index::read`]. Blocks on the file or the network.
    pub fn index(&self, raw: bool) -> Result<Index, FormatError> {
        match raw {
            true => Index::read_raw(self),
            false => Index::read(self),
        }
    }

    /// The file, if the image is local.
    #[must_use]
    pub fn file(&self) -> Option<&File> {
        match self {
            Self::File(file) => Some(file),
            Self::Remote(_) => None,
        }
    }

    /// The source, if the image is remote.
    #[must_use]
    pub fn remote(&self) -> Option<&dyn RemoteSource> {
        match self {
            Self::File(_) => None,
            Self::Remote(source) => Some(&**source),
        }
    }
}

impl From<File> for Image {
    fn from(file: File) -> Self {
        Self::File(Arc::new(file))
    }
}

impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(file) => f.debug_tuple("File").field(file).finish(),
            Self::Remote(_) => f.write_str("Remote"),
        }
    }
}

impl ReadAt for Image {
    fn size_bytes(&self) -> io::Result<u64> {
        match self {
            Self::File(file) => file.size_bytes(),
            Self::Remote(source) => source.size_bytes(),
        }
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        match self {
            Self::File(file) => ReadAt::read_exact_at(&**file, buf, offset),
            Self::Remote(source) => source.read_exact_at(buf, offset),
        }
    }

    fn will_read(&self, range: Range<u64>) {
        match self {
            Self::File(file) => file.will_read(range),
            Self::Remote(source) => source.will_read(range),
        }
    }

    fn digest(&self) -> Option<[u8; 32]> {
        match self {
            Self::File(file) => file.digest(),
            Self::Remote(source) => source.digest(),
        }
    }

    fn secret(&self) -> Option<Zeroizing<[u8; 32]>> {
        match self {
            Self::File(file) => file.secret(),
            Self::Remote(source) => source.secret(),
        }
    }
}

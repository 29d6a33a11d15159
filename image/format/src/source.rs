//! A device as exports (FUSE, loop, ublk, NBD) see it: a flat run of bytes; some devices also
//! accept writes ([`BlockWrites`]).
//!
//! Why here: exports must not know images, overlays, caches or engines, and can be tested with
//! [`MemorySource`].
//! Must stay true: every method may be called from any thread at any time; delivered bytes are
//! right, or an error is delivered instead, never wrong bytes.

use sidecore_bare::width::{ToU64, ToUsize};
use std::time::Duration;

/// Reasons why a read could not be served. The device has already logged the cause once; clients
/// get EIO or EINVAL.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The read reaches past the end of the device.
    #[error("read of {len} bytes at offset {offset} ends past the device's {size_bytes} bytes")]
    OutOfRange {
        /// First byte requested.
        offset: u64,
        /// Bytes requested.
        len: usize,
        /// The device's size.
        size_bytes: u64,
    },
    /// A frame that the read touches is damaged.
    #[error("frame {frame} is damaged: {reason}")]
    BadFrame {
        /// Index of the frame in the image.
        frame: u64,
        /// The fault that was found.
        reason: String,
    },
    /// The image's bytes could not be read.
    #[error("cannot read the image: {reason}")]
    Io {
        /// The operating system's error.
        reason: String,
    },
}

impl ReadError {
    /// The error number for a client of a block interface: `EINVAL` for a bad range, otherwise
    /// `EIO`.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::OutOfRange { .. } => libc::EINVAL,
            Self::BadFrame { .. } | Self::Io { .. } => libc::EIO,
        }
    }
}

/// Reasons why a write was not done. The bytes that it would have replaced are unchanged, or partly
/// replaced.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The write reaches past the end of the device.
    #[error("write of {len} bytes at offset {offset} ends past the device's {size_bytes} bytes")]
    OutOfRange {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
        /// The device's size.
        size_bytes: u64,
    },
    /// The file system that stores the writes is full; later ones may fit.
    #[error("no room for the write: {reason}")]
    NoSpace {
        /// The operating system's error.
        reason: String,
    },
    /// The write failed, or the read of the rest of a partly replaced unit.
    #[error("cannot write: {reason}")]
    Io {
        /// The operating system's error, or the damage that was found.
        reason: String,
    },
}

impl WriteError {
    /// The error number for a client of a block interface.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::OutOfRange { .. } => libc::EINVAL,
            Self::NoSpace { .. } => libc::ENOSPC,
            Self::Io { .. } => libc::EIO,
        }
    }
}

/// The writing half of a device. All methods block until the write is visible to all readers; only
/// [`Self::flush`] makes it durable. Any thread may call them at any time; of two concurrent writes
/// to the same bytes either may win.
pub trait BlockWrites: Send + Sync {
    /// Replaces the bytes from `offset`.
    ///
    /// # Errors
    /// [`WriteError`].
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), WriteError>;

    /// Makes `len` bytes from `offset` read as zeros, without storing any.
    ///
    /// # Errors
    /// [`WriteError`].
    fn write_zeroes(&self, offset: u64, len: u64) -> Result<(), WriteError>;

    /// Discards `len` bytes from `offset`: they read as zeros, or as before, afterwards.
    ///
    /// # Errors
    /// [`WriteError`].
    fn discard(&self, offset: u64, len: u64) -> Result<(), WriteError>;

    /// Makes all earlier writes durable. Blocks on the disk.
    ///
    /// # Errors
    /// [`WriteError`]; earlier writes may then be lost.
    fn flush(&self) -> Result<(), WriteError>;

    /// Unit in which the device writes, in bytes, a power of two: smaller writes read it first.
    fn grain_bytes(&self) -> u32;
}

/// A range of a device that is all data or all zeros (NBD block status, `lseek` holes).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Length in bytes, at least 1.
    pub len: u64,
    /// True when every byte in it is known to read as zero.
    pub zero: bool,
}

/// A range of a device that was written since its checkpoint, or not (NBD's dirty bitmaps).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    /// Length in bytes, at least 1.
    pub len: u64,
    /// True where some of it may have been written since.
    pub since: bool,
}

/// Called once with the bytes of a read, in order, as one or more pieces that add up to the
/// requested length; or with the error. Runs on the thread that called [`BlockSource::read_with`].
pub type Deliver<'a> = dyn FnMut(Result<&[&[u8]], &ReadError>) + 'a;

/// A run of bytes that exports serve.
pub trait BlockSource: Send + Sync {
    /// Size of the device in bytes.
    fn size_bytes(&self) -> u64;

    /// The request size in bytes at which this source is most efficient (an image's frame size), a
    /// power of two.
    fn preferred_bytes(&self) -> u32;

    /// The largest `len` that [`Self::read_with`] serves without a copy; callers split larger
    /// reads. At least 64 KiB.
    fn read_with_max_bytes(&self) -> usize;

    /// Fills `dst` from `offset`. Blocks until all bytes are available.
    ///
    /// # Errors
    /// See [`ReadError`]; the contents of `dst` are then unspecified and must not be delivered.
    fn read_into(&self, offset: u64, dst: &mut [u8]) -> Result<(), ReadError>;

    /// Reads without a copy: calls `deliver` exactly once, on this thread, as soon as the requested
    /// bytes are available. It may then continue (finish a frame for the cache, start read-ahead)
    /// before it returns. The pieces borrow the source's cache and are valid only inside `deliver`.
    fn read_with(&self, offset: u64, len: usize, deliver: &mut Deliver<'_>);

    /// The range that begins at `offset`: a lower bound of its length, never 0 unless `offset` is
    /// at or past the end.
    fn extent(&self, offset: u64) -> Extent;

    /// The range that begins at `offset`, by whether it was written since the device's checkpoint;
    /// `None` for a device without one. As for [`Self::extent`], `len` is a lower bound.
    fn written(&self, offset: u64) -> Option<Written> {
        let _ = offset;
        None
    }

    /// The writing half, if there is one.
    fn writes(&self) -> Option<&dyn BlockWrites> {
        None
    }

    /// A file descriptor whose bytes *are* the device (raw images), for kernel passthrough.
    fn passthrough(&self) -> Option<&std::fs::File> {
        None
    }

    /// True if a read may take as long as a network round trip: the exports then use more threads,
    /// most of which wait.
    fn waits_for_a_network(&self) -> bool {
        false
    }

    /// Text by which these contents are known again: another server may go on with a device that
    /// this one served only if both have the same. `None` where nothing tells contents apart.
    /// Takes as long as a pass over an image's index.
    fn identity(&self) -> Option<String> {
        None
    }

    /// Frees memory that has not been used for `idle`. Called periodically by exports; cheap.
    fn release_idle(&self, idle: Duration) {
        let _ = idle;
    }
}

/// Checks a range against a device's size.
///
/// # Errors
/// [`ReadError::OutOfRange`] if any byte of it lies outside.
pub fn check_range(offset: u64, len: usize, size_bytes: u64) -> Result<(), ReadError> {
    match offset.checked_add(len.to_u64()) {
        Some(end) if end <= size_bytes => Ok(()),
        _ => Err(ReadError::OutOfRange {
            offset,
            len,
            size_bytes,
        }),
    }
}

/// A source that serves bytes from memory: it replaces a device in the tests and fuzzing of
/// exports.
#[derive(Debug, Default, Clone)]
pub struct MemorySource {
    bytes: Vec<u8>,
}

impl MemorySource {
    /// Serves `bytes`.
    #[must_use]
    pub fn new(bytes: Vec<u8>) -> Self {
        Self { bytes }
    }
}

impl BlockSource for MemorySource {
    fn size_bytes(&self) -> u64 {
        self.bytes.len().to_u64()
    }

    fn preferred_bytes(&self) -> u32 {
        65536
    }

    fn read_with_max_bytes(&self) -> usize {
        1 << 20
    }

    fn read_into(&self, offset: u64, dst: &mut [u8]) -> Result<(), ReadError> {
        check_range(offset, dst.len(), self.size_bytes())?;
        let start = offset.to_usize();
        dst.copy_from_slice(&self.bytes[start..start + dst.len()]);
        Ok(())
    }

    fn read_with(&self, offset: u64, len: usize, deliver: &mut Deliver<'_>) {
        match check_range(offset, len, self.size_bytes()) {
            Ok(()) => {
                let start = offset.to_usize();
                deliver(Ok(&[&self.bytes[start..start + len]]));
            }
            Err(error) => deliver(Err(&error)),
        }
    }

    fn extent(&self, offset: u64) -> Extent {
        let start = offset.min(self.size_bytes()).to_usize();
        let rest = &self.bytes[start..];
        let zero = rest.first() == Some(&0);
        let len = rest
            .iter()
            .position(|&byte| (byte == 0) != zero)
            .unwrap_or(rest.len());
        Extent {
            len: len.to_u64(),
            zero,
        }
    }
}

//! Reading an image's headers and tables from any source of bytes at offsets.
//!
//! Why here: parsers are run on files, on block devices and (fuzzing) on plain memory.
//! Must stay true: nothing here allocates by a length from the image; tables are read in pieces of
//! [`PIECE_BYTES`].

use super::FormatError;
use sidecore_bare::width::{ToU64, ToUsize};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use zeroize::Zeroizing;

/// A run of bytes of known size that can be read from any thread.
pub trait ReadAt: Sync {
    /// Number of bytes.
    ///
    /// # Errors
    /// The operating system's error.
    fn size_bytes(&self) -> io::Result<u64>;

    /// Fills `buf` from `offset`.
    ///
    /// # Errors
    /// The operating system's error; `UnexpectedEof` when the bytes end too early.
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()>;

    /// Announces that these bytes will be read soon, in order and in small pieces. Does nothing for
    /// sources where a piece costs little.
    fn will_read(&self, range: Range<u64>) {
        let _ = range;
    }

    /// A digest by which all bytes are known again, where the source has one: equal digests stand
    /// for equal bytes. `None` for sources that would have to read them.
    fn digest(&self) -> Option<[u8; 32]> {
        None
    }

    /// The secret from which keys of overlays are derived, for a source that is encrypted by means
    /// of its own. It belongs to these bytes alone.
    fn secret(&self) -> Option<Zeroizing<[u8; 32]>> {
        None
    }
}

impl ReadAt for File {
    fn size_bytes(&self) -> io::Result<u64> {
        let metadata = self.metadata()?;
        if metadata.is_file() {
            return Ok(metadata.len());
        }
        if metadata.is_dir() {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        // Only the end of a block device gives its size. All other reads are by offset, so moving
        // the cursor is harmless.
        Ok(rustix::fs::seek(self, rustix::fs::SeekFrom::End(0))?)
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        FileExt::read_exact_at(self, buf, offset)
    }
}

impl ReadAt for &[u8] {
    fn size_bytes(&self) -> io::Result<u64> {
        Ok(self.len().to_u64())
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let bytes = usize::try_from(offset)
            .ok()
            .and_then(|start| self.get(start..)?.get(..buf.len()))
            .ok_or(io::ErrorKind::UnexpectedEof)?;
        buf.copy_from_slice(bytes);
        Ok(())
    }
}

/// An image being parsed: its bytes, and their number, queried once.
#[derive(Clone, Copy)]
pub(super) struct Bytes<'a> {
    source: &'a dyn ReadAt,
    /// The file's size.
    pub(super) size: u64,
}

impl<'a> Bytes<'a> {
    /// Queries the size.
    ///
    /// # Errors
    /// [`FormatError::Directory`], [`FormatError::Io`].
    pub(super) fn new(source: &'a dyn ReadAt) -> Result<Self, FormatError> {
        let size = source.size_bytes().map_err(|source| match source.kind() {
            io::ErrorKind::IsADirectory => FormatError::Directory,
            _ => FormatError::Io {
                doing: "read",
                offset: 0,
                source,
            },
        })?;
        Ok(Self { source, size })
    }

    /// Fills `buf` from `offset`.
    ///
    /// # Errors
    /// [`FormatError::Io`].
    pub(super) fn fill(&self, buf: &mut [u8], offset: u64) -> Result<(), FormatError> {
        self.source
            .read_exact_at(buf, offset)
            .map_err(|source| FormatError::Io {
                doing: "read",
                offset,
                source,
            })
    }

    /// See [`ReadAt::will_read`].
    pub(super) fn will_read(&self, range: Range<u64>) {
        self.source.will_read(range);
    }

    /// The `N` bytes at `offset`, or `None` if the file has no such bytes.
    ///
    /// # Errors
    /// [`FormatError::Io`].
    pub(super) fn array<const N: usize>(
        &self,
        offset: u64,
    ) -> Result<Option<[u8; N]>, FormatError> {
        match offset.checked_add(N.to_u64()) {
            Some(end) if end <= self.size => {
                let mut buf = [0; N];
                self.fill(&mut buf, offset)?;
                Ok(Some(buf))
            }
            _ => Ok(None),
        }
    }

    /// The last `N` bytes of the file, or `None` if it is smaller.
    ///
    /// # Errors
    /// [`FormatError::Io`].
    pub(super) fn tail<const N: usize>(&self) -> Result<Option<[u8; N]>, FormatError> {
        match self.size.checked_sub(N.to_u64()) {
            Some(offset) => self.array(offset),
            None => Ok(None),
        }
    }

    /// Calls `each` with the records of `N` bytes at `offset`, in order, with their numbers. The
    /// caller has checked that they lie inside the file.
    ///
    /// # Errors
    /// [`FormatError::Io`], or what `each` returns.
    pub(super) fn records<const N: usize>(
        &self,
        offset: u64,
        count: u64,
        mut each: impl FnMut(u64, &[u8; N]) -> Result<(), FormatError>,
    ) -> Result<(), FormatError> {
        self.pieces(
            offset,
            count * N.to_u64(),
            // Pieces of whole records.
            PIECE_BYTES / N * N,
            |start, piece| {
                for (i, record) in piece.as_chunks::<N>().0.iter().enumerate() {
                    each(start / N.to_u64() + i.to_u64(), record)?;
                }
                Ok(())
            },
        )
    }

    /// Calls `each` with the `length` bytes at `offset`, in order, at most `piece_bytes` at a time,
    /// and with the start of each piece relative to `offset`.
    ///
    /// # Errors
    /// [`FormatError::Io`], or what `each` returns.
    pub(super) fn pieces(
        &self,
        offset: u64,
        length: u64,
        piece_bytes: usize,
        mut each: impl FnMut(u64, &[u8]) -> Result<(), FormatError>,
    ) -> Result<(), FormatError> {
        // A remote source fetches ahead; pieces of 64 KiB would be a round trip each.
        self.will_read(offset..offset.saturating_add(length));
        let mut buf = vec![0; length.min(piece_bytes.to_u64()).to_usize()];
        let mut done = 0;
        while done < length {
            let take = (length - done).min(buf.len().to_u64()).to_usize();
            self.fill(&mut buf[..take], offset + done)?;
            each(done, &buf[..take])?;
            done += take.to_u64();
        }
        Ok(())
    }
}

/// Tables are read this many bytes at a time.
pub(super) const PIECE_BYTES: usize = 64 << 10;

//! The bytes of an overlay's file, behind a trait.
//!
//! Why here: crash tests replace the disk under a layer by one that loses, wholly or partly, the
//! bytes that were not made durable.
//! Called from: any thread; every call may block on the disk.

use crate::tracks;
use rustix::fs::{FallocateFlags, FlockOperation};
use sidecore_bare::width::{ToU64, ToUsize};
use sidecore_trace::span;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// A file that is read and written at offsets.
pub trait Store: Send + Sync {
    /// Size in bytes.
    ///
    /// # Errors
    /// Those of the operating system, as for all methods.
    fn size_bytes(&self) -> io::Result<u64>;

    /// Fills `buf` from `offset`; bytes past the end are an error.
    #[allow(clippy::missing_errors_doc)]
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()>;

    /// Writes all of `bytes` at `offset`; the file grows.
    #[allow(clippy::missing_errors_doc)]
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Makes all earlier writes durable.
    #[allow(clippy::missing_errors_doc)]
    fn sync(&self) -> io::Result<()>;

    /// Reserves room for `len` bytes from `offset`, so that writes there do not fail.
    #[allow(clippy::missing_errors_doc)]
    fn reserve(&self, offset: u64, len: u64) -> io::Result<()>;

    /// Lets other processes read it, too; nothing is written any more.
    ///
    /// # Errors
    /// The operating system's.
    fn share(&self) -> io::Result<()> {
        Ok(())
    }

    /// Gives the room of `len` bytes from `offset` back; they read as zeros afterwards.
    #[allow(clippy::missing_errors_doc)]
    fn punch(&self, offset: u64, len: u64) -> io::Result<()>;
}

/// A file of the operating system.
#[derive(Debug)]
pub struct FileStore(File);

impl FileStore {
    /// Takes `file`, with a lock that excludes other writers (or, with `exclusive`, all others) as
    /// long as this lives; `None` where another process has it.
    ///
    /// # Errors
    /// The operating system's.
    pub fn lock(file: File, exclusive: bool) -> io::Result<Option<Self>> {
        let how = match exclusive {
            true => FlockOperation::NonBlockingLockExclusive,
            false => FlockOperation::NonBlockingLockShared,
        };
        match rustix::fs::flock(&file, how) {
            Ok(()) => Ok(Some(Self(file))),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Takes `file` without a lock: for reading its superblock.
    #[must_use]
    pub fn unlocked(file: File) -> Self {
        Self(file)
    }
}

impl Store for FileStore {
    fn size_bytes(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let _read = span(&tracks::OVERLAY_READ, offset, buf.len().to_u64());
        self.0.read_exact_at(buf, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let _write = span(&tracks::OVERLAY_WRITE, offset, bytes.len().to_u64());
        self.0.write_all_at(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        let _sync = span(&tracks::OVERLAY_SYNC, 0, 0);
        self.0.sync_data()
    }

    fn reserve(&self, offset: u64, len: u64) -> io::Result<()> {
        match rustix::fs::fallocate(&self.0, FallocateFlags::empty(), offset, len) {
            Ok(()) => Ok(()),
            // On a file system without this call, zeros are written to reserve room.
            Err(rustix::io::Errno::OPNOTSUPP) => self.fill(offset, len),
            Err(error) => Err(error.into()),
        }
    }

    fn share(&self) -> io::Result<()> {
        let how = FlockOperation::NonBlockingLockShared;
        Ok(rustix::fs::flock(&self.0, how)?)
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match rustix::fs::fallocate(&self.0, flags, offset, len) {
            Ok(()) | Err(rustix::io::Errno::OPNOTSUPP) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl FileStore {
    /// Writes zeros past the end of the file, up to the end of a range.
    fn fill(&self, offset: u64, len: u64) -> io::Result<()> {
        let mut at = self.size_bytes()?.max(offset);
        let zeros = [0; 4096];
        while at < offset + len {
            let step = (offset + len - at).min(zeros.len().to_u64());
            self.write_at(&zeros[..step.to_usize()], at)?;
            at += step;
        }
        Ok(())
    }
}

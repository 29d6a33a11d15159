//! The FUSE file system itself: a root directory with one file, answered from a [`BlockSource`].
//!
//! Why here: [`super`] mounts and ends it; this answers the kernel's requests.
//! Must stay true: every request is answered exactly once; a read is answered before its source
//! finishes frames or reads ahead; no read allocates after its thread's first.
//!
//! Threads: the session's, any number at once.
//! Source: `include/uapi/linux/fuse.h`.

use super::FuseOptions;
use super::abi::{Attributes, REQUEST_BYTES_MAX, ROOT, flag, opened};
use super::behind::Behind;
use super::nodes::{
    Answer, List, Nodes, Opened, ReadReply, Space, Terms, read_through, with_scratch,
};
use parking_lot::Mutex;
use rustix::io::Errno;
use sidecore_bare::width::{ToU64, ToUsize};
use sidecore_format::source::{BlockSource, WriteError};
use sidecore_sys::fuse_device;
use std::ffi::OsString;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::SystemTime;

/// The file system: a root directory with one file.
pub(super) struct ImageFs {
    source: Arc<dyn BlockSource>,
    /// The file's size is a multiple of this.
    pad_to_bytes: u64,
    file_name: OsString,
    file: Attributes,
    root: Attributes,
    read_with_max_bytes: usize,
    passthrough: bool,
    /// The kernel's registration of a raw image's file; one for all opens, made by the first, kept
    /// until the end.
    backing: Mutex<Option<Backing>>,
    behind: Option<Behind>,
}

impl ImageFs {
    pub(super) fn new(source: Arc<dyn BlockSource>, options: &FuseOptions) -> Self {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let now = now.unwrap_or_default();
        let root = Attributes {
            node: ROOT,
            size_bytes: 0,
            blocks: 0,
            time: (now.as_secs() as i64, now.subsec_nanos()),
            mode: libc::S_IFDIR | 0o555,
            links: 2,
            uid: options.uid,
            gid: options.gid,
            rdev: 0,
            block_bytes: source.preferred_bytes(),
            may_change: false,
        };
        // No execute bits: the file is a disk.
        let permissions = match source.writes() {
            Some(_) => options.mode & 0o666,
            None => options.mode & 0o444,
        };
        let file = Attributes {
            node: FILE,
            mode: libc::S_IFREG | permissions,
            links: 1,
            // A device that takes writes may grow.
            may_change: source.writes().is_some(),
            ..root
        };
        let pad_to_bytes = options.pad_to_bytes.max(1);
        // A padded file's last bytes are not in the raw image, so the kernel cannot read them
        // there.
        let is_whole = source.size_bytes().is_multiple_of(pad_to_bytes);
        let passthrough = options.passthrough && is_whole;
        Self {
            read_with_max_bytes: source.read_with_max_bytes(),
            source,
            pad_to_bytes,
            file_name: options.file_name.clone(),
            file,
            root,
            passthrough,
            backing: Mutex::new(None),
            behind: None,
        }
    }

    /// Size as readers see it: the source's, padded.
    fn size_bytes(&self) -> u64 {
        self.source.size_bytes().next_multiple_of(self.pad_to_bytes)
    }

    /// Attributes of the file as of now.
    fn file(&self) -> Attributes {
        let size_bytes = self.size_bytes();
        Attributes {
            size_bytes,
            blocks: size_bytes.div_ceil(512),
            ..self.file
        }
    }

    /// Reports every answered read to `behind`.
    pub(super) fn drop_behind(&mut self, behind: Behind) {
        self.behind = Some(behind);
    }

    /// Reads that touch the padding, or are larger than the source delivers in pieces: through the
    /// thread's buffer, at once, so that the source can spread all their frames over its engines.
    fn read_gathered(&self, offset: u64, len: usize, reply: ReadReply<'_>) {
        with_scratch(len, |buffer| {
            let real = self
                .source
                .size_bytes()
                .saturating_sub(offset)
                .min(len.to_u64())
                .to_usize();
            let (data, padding) = buffer.split_at_mut(real);
            padding.fill(0);
            match self.source.read_into(offset, data) {
                Ok(()) => reply.pieces(&[buffer]),
                Err(error) => reply.error(Errno::from_raw_os_error(error.errno())),
            }
        });
    }
}

impl Nodes for ImageFs {
    fn agree(&mut self, terms: &mut Terms) {
        // Asynchronous direct reads let a loop device with direct I/O keep several requests in
        // flight.
        terms.take(flag::ASYNC_DIO);
        terms.take(flag::PARALLEL_DIROPS);
        self.passthrough = self.passthrough
            && self.source.passthrough().is_some()
            && terms.take(flag::PASSTHROUGH);
        if self.source.writes().is_some() {
            terms.write_bytes_max = REQUEST_BYTES_MAX;
        }
    }

    fn look_up(&self, parent: u64, name: &[u8]) -> Answer<Option<Attributes>> {
        match parent == ROOT && name == self.file_name.as_bytes() {
            true => Ok(Some(self.file())),
            false => Err(Errno::NOENT),
        }
    }

    fn attributes(&self, node: u64) -> Answer<Attributes> {
        match node {
            ROOT => Ok(self.root),
            FILE => Ok(self.file()),
            _ => Err(Errno::NOENT),
        }
    }

    fn open(&self, node: u64, flags: u32, device: BorrowedFd<'_>) -> Answer<Opened> {
        if node != FILE {
            return Err(Errno::ISDIR);
        }
        let writes = flags & libc::O_ACCMODE.cast_unsigned() != libc::O_RDONLY.cast_unsigned();
        if writes && self.source.writes().is_none() {
            return Err(Errno::ROFS);
        }
        if writes {
            // A loop device with direct I/O may have several writes in flight.
            return Ok(Opened {
                flags: opened::KEEP_CACHE | opened::PARALLEL_DIRECT_WRITES,
                backing: 0,
            });
        }
        if let Some(file) = self.source.passthrough().filter(|_| self.passthrough) {
            let mut backing = self.backing.lock();
            // Under the lock: the kernel limits registrations, and one serves all opens.
            if backing.is_none() {
                *backing = Backing::register(device, file);
            }
            if let Some(backing) = backing.as_ref() {
                return Ok(Opened {
                    flags: opened::PASSTHROUGH,
                    backing: backing.number,
                });
            }
        }
        Ok(Opened {
            flags: opened::KEEP_CACHE | opened::NOFLUSH,
            backing: 0,
        })
    }

    fn open_directory(&self) -> Answer<()> {
        Ok(())
    }

    fn read(&self, node: u64, offset: u64, len: usize, reply: ReadReply<'_>) {
        if node != FILE {
            return reply.error(Errno::ISDIR);
        }
        let len = self
            .size_bytes()
            .saturating_sub(offset)
            .min(len.to_u64())
            .to_usize();
        if len == 0 {
            return reply.pieces(&[]);
        }
        if let Some(behind) = &self.behind {
            behind.delivered(offset, len);
        }
        // The padding has no bytes in the source that could be lent.
        let inside = offset + len.to_u64() <= self.source.size_bytes();
        if !inside || len > self.read_with_max_bytes {
            return self.read_gathered(offset, len, reply);
        }
        read_through(&*self.source, offset, len, reply);
    }

    fn write(&self, node: u64, offset: u64, bytes: &[u8]) -> Answer<()> {
        let writes = self.source.writes().filter(|_| node == FILE);
        let writes = writes.ok_or(Errno::ROFS)?;
        let end = offset.checked_add(bytes.len().to_u64());
        // A disk does not grow by a write.
        if end.is_none_or(|end| end > self.size_bytes()) {
            return Err(Errno::FBIG);
        }
        // The padding up to a whole sector is not stored.
        let source_bytes = self.source.size_bytes();
        let real = source_bytes.saturating_sub(offset);
        let real = real.min(bytes.len().to_u64()).to_usize();
        let written = writes.write(offset.min(source_bytes), &bytes[..real]);
        written.map_err(|error| errno(&error))
    }

    fn sync(&self) -> Answer<()> {
        match self.source.writes() {
            None => Ok(()),
            Some(writes) => writes.flush().map_err(|error| errno(&error)),
        }
    }

    /// Discards and zeros, as requested by a loop device.
    fn allocate(&self, node: u64, offset: u64, len: u64, mode: u32) -> Answer<()> {
        let writes = self.source.writes().filter(|_| node == FILE);
        let writes = writes.ok_or(Errno::ROFS)?;
        // Zeros in the padding are there already.
        let end = offset.saturating_add(len).min(self.source.size_bytes());
        let len = end.saturating_sub(offset);
        // Both modes promise zeros.
        let zeros = (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE).cast_unsigned();
        if mode & zeros == 0 {
            return Err(Errno::OPNOTSUPP);
        }
        let zeroed = writes.write_zeroes(offset.min(end), len);
        zeroed.map_err(|error| errno(&error))
    }

    fn resize(&self, node: u64, size_bytes: Option<u64>) -> Answer<Attributes> {
        // A disk's size is not the file system's to change; times are those of the start.
        let attributes = self.attributes(node)?;
        let resized = node == FILE && size_bytes.is_some_and(|size| size != attributes.size_bytes);
        match resized {
            true => Err(Errno::PERM),
            false => Ok(attributes),
        }
    }

    fn seek(&self, node: u64, offset: u64, whence: u32) -> Answer<u64> {
        let size_bytes = self.size_bytes();
        if node != FILE || offset >= size_bytes {
            return Err(Errno::NXIO);
        }
        let want_zero = match whence.cast_signed() {
            libc::SEEK_DATA => false,
            libc::SEEK_HOLE => true,
            _ => return Err(Errno::INVAL),
        };
        let mut at = offset;
        // Any correct position is allowed, so a long run of short extents is cut off: the rest is
        // reported as data.
        for _ in 0..SEEK_EXTENTS_MAX {
            if at >= self.source.size_bytes() {
                break;
            }
            let extent = self.source.extent(at);
            if extent.zero == want_zero || extent.len == 0 {
                return Ok(at);
            }
            at += extent.len;
        }
        match want_zero {
            true => Ok(size_bytes),
            false if at >= size_bytes => Err(Errno::NXIO),
            false => Ok(at),
        }
    }

    fn list(&self, node: u64, from: u64, list: &mut List) -> Answer<()> {
        if node != ROOT {
            return Err(Errno::NOTDIR);
        }
        let entries: [(Attributes, &[u8]); 3] = [
            (self.root, b"."),
            (self.root, b".."),
            (self.file(), self.file_name.as_bytes()),
        ];
        for (index, (attributes, name)) in entries.into_iter().enumerate() {
            let kind = (attributes.node, attributes.mode);
            let wanted = index.to_u64() >= from;
            if wanted && !list.add(kind, index.to_u64() + 1, name, || attributes) {
                break;
            }
        }
        Ok(())
    }

    fn space(&self) -> Space {
        Space {
            blocks: self.size_bytes().div_ceil(4096),
            block_bytes: 4096,
            nodes: 1,
        }
    }
}

/// The kernel's registration of a file that it reads by itself.
struct Backing {
    device: OwnedFd,
    number: u32,
}

impl Backing {
    /// Needs `CAP_SYS_ADMIN`, and a file system below that allows stacking.
    fn register(device: BorrowedFd<'_>, file: &File) -> Option<Self> {
        let registered = device.try_clone_to_owned().and_then(|device| {
            let number = fuse_device::register_backing(&device, file.as_fd())?;
            Ok(Self { device, number })
        });
        let log = |error: &std::io::Error| tracing::debug!("no passthrough: {error}");
        registered.inspect_err(log).ok()
    }
}

impl Drop for Backing {
    fn drop(&mut self) {
        // Refused only where the session, and with it the registration, is gone.
        let _ = fuse_device::release_backing(&self.device, self.number);
    }
}

fn errno(error: &WriteError) -> Errno {
    Errno::from_raw_os_error(error.errno())
}

/// Node of the one file.
pub(super) const FILE: u64 = 2;
/// Extents that one `lseek` examines at most.
const SEEK_EXTENTS_MAX: usize = 4096;

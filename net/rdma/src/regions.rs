//! Bytes of registered regions: vectors, and the application's own memory. [`Vectors`] has the
//! kernel read and write them.
//!
//! Must stay true: an offset passed here was checked against the region's registration
//! (`Domain::check`), and is checked against its length once more; the application's own memory is
//! accessed only between its registration and its deregistration.
#![allow(unsafe_code)] // memory that the application registers by its address

use sidecore_bare::width::ToU64;
use sidecore_rdma_wire::{Gone, Memory, PIECES_MAX, RegionId};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

/// The whole address space, for unregistered memory of the process itself.
pub(crate) const EVERYTHING: RegionId = RegionId(u64::MAX);

/// All regions of an adapter.
#[derive(Debug, Default)]
pub(crate) struct Regions {
    regions: Vec<Option<Bytes>>,
    free: Vec<usize>,
    has_everything: bool,
}

#[derive(Debug)]
enum Bytes {
    Owned(Vec<u8>),
    /// Memory of the application, by its address and length.
    Lent(usize, usize),
}

impl Regions {
    pub(crate) fn add(&mut self, bytes: Vec<u8>) -> RegionId {
        self.insert(Bytes::Owned(bytes))
    }

    /// Registers `count` bytes at `address`.
    ///
    /// # Safety
    /// They are readable and writable until [`Self::remove`], and no reference to them is used
    /// during any of [`Memory`]'s calls.
    pub(crate) unsafe fn lend(&mut self, address: *mut u8, count: usize) -> RegionId {
        self.insert(Bytes::Lent(address.expose_provenance(), count))
    }

    /// Makes [`EVERYTHING`] a region.
    ///
    /// # Safety
    /// Every range that is used with it satisfies the conditions of [`Self::lend`], from its
    /// posting to its completion.
    pub(crate) unsafe fn lend_everything(&mut self) {
        self.has_everything = true;
    }

    fn insert(&mut self, bytes: Bytes) -> RegionId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.regions.push(None);
            self.regions.len() - 1
        });
        self.regions[index] = Some(bytes);
        RegionId(index.to_u64())
    }

    /// Removes a region; the bytes, if it is a vector.
    pub(crate) fn remove(&mut self, region: RegionId) -> Option<Vec<u8>> {
        let index = usize::try_from(region.0).ok()?;
        let bytes = self.regions.get_mut(index)?.take()?;
        self.free.push(index);
        match bytes {
            Bytes::Owned(bytes) => Some(bytes),
            Bytes::Lent(..) => None,
        }
    }

    /// Bytes of a vector; empty for other regions.
    pub(crate) fn bytes(&self, region: RegionId) -> &[u8] {
        match usize::try_from(region.0).map(|index| self.regions.get(index)) {
            Ok(Some(Some(Bytes::Owned(bytes)))) => bytes,
            _ => &[],
        }
    }

    /// The same, mutable.
    pub(crate) fn bytes_mut(&mut self, region: RegionId) -> &mut [u8] {
        match usize::try_from(region.0).map(|index| self.regions.get_mut(index)) {
            Ok(Some(Some(Bytes::Owned(bytes)))) => bytes,
            _ => &mut [],
        }
    }

    /// The address of an offset in the application's own memory.
    pub(crate) fn address(&self, region: RegionId, offset: u64) -> Option<*mut u8> {
        let index = usize::try_from(region.0).ok()?;
        match self.regions.get(index)? {
            Some(Bytes::Lent(address, _)) => {
                let address = address.checked_add(usize::try_from(offset).ok()?)?;
                Some(ptr::with_exposed_provenance_mut(address))
            }
            _ => None,
        }
    }

    /// The memory of `count` bytes of a region.
    fn range(&mut self, region: RegionId, offset: u64, count: usize) -> Result<*mut u8, Gone> {
        let start = usize::try_from(offset).map_err(|_| Gone)?;
        let end = start.checked_add(count).ok_or(Gone)?;
        // Offsets are addresses here: `Domain::check` has limited them to the address space.
        if region == EVERYTHING && self.has_everything {
            return Ok(ptr::with_exposed_provenance_mut(start));
        }
        let index = usize::try_from(region.0).map_err(|_| Gone)?;
        match self.regions.get_mut(index) {
            Some(Some(Bytes::Owned(bytes))) => bytes
                .get_mut(start..end)
                .map(<[u8]>::as_mut_ptr)
                .ok_or(Gone),
            Some(Some(Bytes::Lent(address, bytes))) if end <= *bytes => {
                Ok(ptr::with_exposed_provenance_mut(*address + start))
            }
            _ => Err(Gone),
        }
    }
}

impl Memory for Regions {
    fn place(&mut self, region: RegionId, offset: u64, bytes: &[u8]) -> Result<(), Gone> {
        let target = self.range(region, offset, bytes.len())?;
        // SAFETY: `range` found that many bytes in a vector of ours, or in memory that its owner
        // promised (`lend`); `bytes` are in a stream's buffer, which is neither.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len()) };
        Ok(())
    }

    fn fetch(&mut self, region: RegionId, offset: u64, target: &mut [u8]) -> Result<(), Gone> {
        let source = self.range(region, offset, target.len())?;
        // SAFETY: as in `place`.
        unsafe { ptr::copy_nonoverlapping(source, target.as_mut_ptr(), target.len()) };
        Ok(())
    }

    fn update(
        &mut self,
        region: RegionId,
        offset: u64,
        change: &mut dyn FnMut(u64) -> u64,
    ) -> Result<u64, Gone> {
        let word = self.range(region, offset, 8)?;
        if word.addr().is_multiple_of(8) {
            // SAFETY: eight bytes as in `place`, aligned; the application's threads may change them
            // by atomic instructions, too.
            let word = unsafe { AtomicU64::from_ptr(word.cast()) };
            // AcqRel: the application's writes before its own change of the word are visible, and
            // data placed before this change is visible to a reader of the word.
            let old =
                word.fetch_update(Ordering::AcqRel, Ordering::Acquire, |old| Some(change(old)));
            return Ok(old.unwrap_or_else(|old| old));
        }
        // A vector of bytes may be unaligned: it has no other user.
        let mut old = [0; 8];
        self.fetch(region, offset, &mut old)?;
        let old = u64::from_ne_bytes(old);
        self.place(region, offset, &change(old).to_ne_bytes())?;
        Ok(old)
    }
}

/// Most parts of one call: a unit's memory, and the bytes around it.
const PARTS_MAX: usize = PIECES_MAX + 3;

/// Parts of one call that sends to, or receives from, a socket: bytes, and memory of regions, which
/// no call registers or deregisters meanwhile.
pub(crate) struct Vectors<'a> {
    regions: &'a mut Regions,
    parts: [libc::iovec; PARTS_MAX],
    used: usize,
    bytes: usize,
    /// Some of them may only be read.
    has_sources: bool,
}

impl<'a> Vectors<'a> {
    pub(crate) fn new(regions: &'a mut Regions) -> Self {
        let none = libc::iovec {
            iov_base: ptr::null_mut(),
            iov_len: 0,
        };
        Self {
            regions,
            parts: [none; PARTS_MAX],
            used: 0,
            bytes: 0,
            has_sources: false,
        }
    }

    /// Length of all parts.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    fn add(&mut self, address: *mut u8, count: usize) -> Result<(), Gone> {
        // There are no more than the parts of a unit.
        let part = self.parts.get_mut(self.used).ok_or(Gone)?;
        *part = libc::iovec {
            iov_base: address.cast(),
            iov_len: count,
        };
        self.used += 1;
        self.bytes += count;
        Ok(())
    }

    /// Adds checked memory of a region.
    pub(crate) fn memory(
        &mut self,
        region: RegionId,
        offset: u64,
        count: usize,
    ) -> Result<(), Gone> {
        let address = self.regions.range(region, offset, count)?;
        self.add(address, count)
    }

    /// Adds bytes to send.
    pub(crate) fn source(&mut self, bytes: &'a [u8]) -> Result<(), Gone> {
        self.has_sources = true;
        // The kernel only reads what is sent.
        self.add(bytes.as_ptr().cast_mut(), bytes.len())
    }

    /// Sends them; the number of bytes that the socket has taken, 0 if it has no room.
    pub(crate) fn send(&mut self, socket: BorrowedFd<'_>) -> io::Result<usize> {
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        let header = self.header();
        // SAFETY: `header` names `used` parts, which are bytes that `'a` keeps, or memory that
        // `range` found in a vector of ours or that its owner promised (`lend`); the regions are
        // borrowed, so that none is deregistered meanwhile. The call only reads them.
        let result = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const header, flags) };
        Ok(count(result)?.unwrap_or(0))
    }

    /// Receives into them, and behind them into `bytes`; the number of bytes, none if there are
    /// none, 0 at the end.
    pub(crate) fn receive(
        &mut self,
        socket: BorrowedFd<'_>,
        bytes: &mut [u8],
    ) -> io::Result<Option<usize>> {
        if self.has_sources || self.add(bytes.as_mut_ptr(), bytes.len()).is_err() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        if self.used == 1 {
            // The usual case, and the cheaper call.
            // SAFETY: `bytes` is borrowed for this call, which writes at most its length.
            let result = unsafe {
                libc::recv(
                    socket.as_raw_fd(),
                    bytes.as_mut_ptr().cast(),
                    bytes.len(),
                    libc::MSG_DONTWAIT,
                )
            };
            return count(result);
        }
        let mut header = self.header();
        // SAFETY: as in `send`; none of the parts was added by `source`, so that each may be
        // written; `bytes` is borrowed for it, and is no part of a region.
        let result =
            unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, libc::MSG_DONTWAIT) };
        count(result)
    }

    fn header(&mut self) -> libc::msghdr {
        // SAFETY: numbers and pointers, for which zeros are values.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        header.msg_iov = self.parts.as_mut_ptr();
        header.msg_iovlen = self.used as _;
        header
    }
}

/// The result of a call that returns a number of bytes; none if it would wait.
fn count(result: isize) -> io::Result<Option<usize>> {
    let Ok(count) = usize::try_from(result) else {
        let error = io::Error::last_os_error();
        return match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
            _ => Err(error),
        };
    };
    Ok(Some(count))
}

//! Access to an image's bytes, and little-endian numbers out of them.
//!
//! Why here: the reader does no I/O of its own; the owner of the bytes implements [`Bytes`].
//! Callable from any thread.

use crate::{Corrupt, Error};
use sidecore_bare::width::ToU64;

/// Random access to the bytes of an image.
pub trait Bytes: Send + Sync {
    /// Size of the image in bytes.
    fn size_bytes(&self) -> u64;

    /// Fills all of `dst` from `offset`, or fails. Blocks until the bytes are read.
    ///
    /// # Errors
    /// [`Unreadable`]; the implementation logs the cause.
    fn read_into(&self, offset: u64, dst: &mut [u8]) -> Result<(), Unreadable>;
}

/// Bytes that could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unreadable;

impl Bytes for &[u8] {
    fn size_bytes(&self) -> u64 {
        self.len().to_u64()
    }

    fn read_into(&self, offset: u64, dst: &mut [u8]) -> Result<(), Unreadable> {
        let start = usize::try_from(offset).map_err(|_| Unreadable)?;
        let end = start.checked_add(dst.len()).ok_or(Unreadable)?;
        dst.copy_from_slice(self.get(start..end).ok_or(Unreadable)?);
        Ok(())
    }
}

/// Reads `N` bytes of the metadata of inode `nid`.
pub(crate) fn array<const N: usize>(
    bytes: &dyn Bytes,
    offset: u64,
    nid: u64,
) -> Result<[u8; N], Error> {
    let mut dst = [0; N];
    fill(bytes, offset, &mut dst, nid)?;
    Ok(dst)
}

/// Fills `dst` with metadata of inode `nid`; a place outside of the image makes the inode corrupt.
pub(crate) fn fill(bytes: &dyn Bytes, offset: u64, dst: &mut [u8], nid: u64) -> Result<(), Error> {
    let end = offset.checked_add(dst.len().to_u64());
    if end.is_none_or(|end| end > bytes.size_bytes()) {
        return Err(Error::corrupt(nid, Corrupt::Outside));
    }
    bytes
        .read_into(offset, dst)
        .map_err(|Unreadable| Error::Unreadable)
}

pub(crate) fn le16(bytes: &[u8], at: usize) -> u16 {
    let mut out = [0; 2];
    out.copy_from_slice(&bytes[at..at + 2]);
    u16::from_le_bytes(out)
}

pub(crate) fn le32(bytes: &[u8], at: usize) -> u32 {
    let mut out = [0; 4];
    out.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(out)
}

pub(crate) fn le64(bytes: &[u8], at: usize) -> u64 {
    let mut out = [0; 8];
    out.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(out)
}

//! The bytes of regions, accessed through their owner.
//!
//! Must stay true: offsets passed here are within the registered range of the region; an
//! implementation returns [`Gone`] if its memory is smaller.

use sidecore_bare::width::ToU64;

/// A region, by its owner's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RegionId(pub u64);

/// The memory of a region is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the memory of a registered region is not there")]
pub struct Gone;

/// Memory of regions. Offsets count from a region's first byte.
pub trait Memory {
    /// Writes `bytes`.
    ///
    /// # Errors
    /// [`Gone`].
    fn place(&mut self, region: RegionId, offset: u64, bytes: &[u8]) -> Result<(), Gone>;

    /// Reads into all of `target`.
    ///
    /// # Errors
    /// [`Gone`].
    fn fetch(&mut self, region: RegionId, offset: u64, target: &mut [u8]) -> Result<(), Gone>;

    /// Replaces the aligned word of 8 bytes, in native byte order, by the result of `change`,
    /// atomically for all other users of this call; returns the old word.
    ///
    /// # Errors
    /// [`Gone`].
    fn update(
        &mut self,
        region: RegionId,
        offset: u64,
        change: &mut dyn FnMut(u64) -> u64,
    ) -> Result<u64, Gone>;
}

/// Regions on the heap with a single user.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Buffers {
    buffers: Vec<Option<Vec<u8>>>,
}

impl Buffers {
    /// Adds `bytes` as a new region.
    pub fn add(&mut self, bytes: Vec<u8>) -> RegionId {
        self.buffers.push(Some(bytes));
        RegionId(self.buffers.len().to_u64() - 1)
    }

    /// The bytes of a region; empty if there is no such region.
    #[must_use]
    pub fn bytes(&self, region: RegionId) -> &[u8] {
        let buffer = usize::try_from(region.0)
            .ok()
            .and_then(|index| self.buffers.get(index));
        buffer.and_then(Option::as_deref).unwrap_or_default()
    }

    /// The bytes of a region, mutable.
    pub fn bytes_mut(&mut self, region: RegionId) -> &mut [u8] {
        let index = usize::try_from(region.0).ok();
        let buffer = index.and_then(|index| self.buffers.get_mut(index));
        buffer.and_then(Option::as_deref_mut).unwrap_or_default()
    }

    /// Removes a region; its bytes.
    pub fn remove(&mut self, region: RegionId) -> Option<Vec<u8>> {
        let index = usize::try_from(region.0).ok()?;
        self.buffers.get_mut(index)?.take()
    }

    fn range(&mut self, region: RegionId, offset: u64, count: usize) -> Result<&mut [u8], Gone> {
        // The domain has checked the registered range; the vector itself may be shorter.
        let start = usize::try_from(offset).map_err(|_| Gone)?;
        let end = start.checked_add(count).ok_or(Gone)?;
        self.bytes_mut(region).get_mut(start..end).ok_or(Gone)
    }
}

impl Memory for Buffers {
    fn place(&mut self, region: RegionId, offset: u64, bytes: &[u8]) -> Result<(), Gone> {
        self.range(region, offset, bytes.len())?
            .copy_from_slice(bytes);
        Ok(())
    }

    fn fetch(&mut self, region: RegionId, offset: u64, target: &mut [u8]) -> Result<(), Gone> {
        target.copy_from_slice(self.range(region, offset, target.len())?);
        Ok(())
    }

    fn update(
        &mut self,
        region: RegionId,
        offset: u64,
        change: &mut dyn FnMut(u64) -> u64,
    ) -> Result<u64, Gone> {
        let word = self.range(region, offset, 8)?;
        let old = u64::from_ne_bytes((&*word).try_into().map_err(|_| Gone)?);
        word.copy_from_slice(&change(old).to_ne_bytes());
        Ok(old)
    }
}

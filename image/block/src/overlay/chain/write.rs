//! Writes to an overlay: all go to the top layer, whole grains as they are, parts by a copy.

use super::super::OverlayError;
use super::super::layer::Layer;
use super::Overlay;
use crate::source::{BlockWrites, WriteError};
use sidecore_bare::width::{ToU64, ToUsize};
use std::ops::Range;

/// A part of a grain to be written.
enum Part<'b> {
    Bytes(&'b [u8]),
    Zeros(usize),
}

impl Part<'_> {
    fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Zeros(len) => *len,
        }
    }
}

impl Overlay {
    /// Replaces a part of one grain in the top layer. The caller holds the grain, and the list.
    fn write_part(&self, top: &Layer, offset: u64, part: Part<'_>) -> Result<(), WriteError> {
        let grain = offset / self.grain_bytes;
        let start = grain * self.grain_bytes;
        // The last grain may extend beyond the device.
        let there = (self.size() - start).min(self.grain_bytes).to_usize();
        let skip = (offset - start).to_usize();
        let mut bytes = vec![0; self.grain_bytes.to_usize()];
        // A whole grain is replaced without reading it.
        if skip > 0 || part.len() < there {
            let read = self.read(start, &mut bytes[..there], true);
            read.map_err(|error| WriteError::Io {
                reason: error.to_string(),
            })?;
        }
        match part {
            Part::Bytes(part) => bytes[skip..skip + part.len()].copy_from_slice(part),
            Part::Zeros(len) => bytes[skip..skip + len].fill(0),
        }
        Ok(top.write(grain, &bytes)?)
    }

    fn check(&self, offset: u64, len: u64) -> Result<(), WriteError> {
        let size_bytes = self.size();
        match offset.checked_add(len) {
            Some(end) if end <= size_bytes => Ok(()),
            _ => Err(WriteError::OutOfRange {
                offset,
                len,
                size_bytes,
            }),
        }
    }

    /// The grains that lie wholly in a range; the device's last one may be shorter than others.
    fn whole_grains(&self, offset: u64, len: u64) -> Range<u64> {
        let size_bytes = self.size();
        let end = match offset + len == size_bytes {
            true => size_bytes.div_ceil(self.grain_bytes),
            false => (offset + len) / self.grain_bytes,
        };
        offset.div_ceil(self.grain_bytes)..end
    }
}

impl BlockWrites for Overlay {
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), WriteError> {
        self.check(offset, bytes.len().to_u64())?;
        if bytes.is_empty() {
            return Ok(());
        }
        // The range is held, since partial grains are read, changed and written back.
        let _held = self.ranges.hold(self.grains_of(offset, bytes.len()));
        let list = self.layers.read();
        let top = &list[0];
        let grain_bytes = self.grain_bytes.to_usize();
        let head = (offset.next_multiple_of(self.grain_bytes) - offset).min(bytes.len().to_u64());
        let (head, rest) = bytes.split_at(head.to_usize());
        let (whole, tail) = rest.split_at(rest.len() / grain_bytes * grain_bytes);
        if !head.is_empty() {
            self.write_part(top, offset, Part::Bytes(head))?;
        }
        let at = offset + head.len().to_u64();
        if !whole.is_empty() {
            top.write(at / self.grain_bytes, whole)?;
        }
        if !tail.is_empty() {
            self.write_part(top, at + whole.len().to_u64(), Part::Bytes(tail))?;
        }
        Ok(())
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<(), WriteError> {
        self.check(offset, len)?;
        if len == 0 {
            return Ok(());
        }
        let end = offset + len;
        let last = (end - 1) / self.grain_bytes;
        let _held = self.ranges.hold(offset / self.grain_bytes..last + 1);
        let list = self.layers.read();
        let top = &list[0];
        let whole = self.whole_grains(offset, len);
        if whole.start >= whole.end {
            // Parts of one grain, or of two neighbours.
            let middle = (offset / self.grain_bytes + 1) * self.grain_bytes;
            let first_end = middle.min(end);
            self.write_part(top, offset, Part::Zeros((first_end - offset).to_usize()))?;
            if first_end < end {
                self.write_part(top, first_end, Part::Zeros((end - first_end).to_usize()))?;
            }
            return Ok(());
        }
        let (start, stop) = (whole.start * self.grain_bytes, whole.end * self.grain_bytes);
        // Partial grains are read, modified and written; whole grains between them only change the
        // map.
        if offset < start {
            self.write_part(top, offset, Part::Zeros((start - offset).to_usize()))?;
        }
        top.zero(whole)?;
        if stop < end {
            self.write_part(top, stop, Part::Zeros((end - stop).to_usize()))?;
        }
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), WriteError> {
        self.check(offset, len)?;
        if len == 0 {
            return Ok(());
        }
        // Held first: the last grain is whole only as long as the device ends in it.
        let grains = offset / self.grain_bytes..(offset + len).div_ceil(self.grain_bytes);
        let _held = self.ranges.hold(grains);
        let whole = self.whole_grains(offset, len);
        if whole.start < whole.end {
            self.layers.read()[0].zero(whole)?;
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), WriteError> {
        self.flush_layers()?;
        Ok(())
    }

    fn grain_bytes(&self) -> u32 {
        u32::try_from(self.grain_bytes).unwrap_or(u32::MAX)
    }
}

impl From<OverlayError> for WriteError {
    fn from(error: OverlayError) -> Self {
        let reason = error.to_string();
        match error {
            OverlayError::NoSpace(_) => Self::NoSpace { reason },
            _ => Self::Io { reason },
        }
    }
}

//! Segments received out of order, and placed early (RFC 5044, section 5; RFC 5041, section 5.3): a
//! complete unit at the front of a segment of TCP, with a correct CRC, does not depend on the data
//! missing before it.
//!
//! Tagged messages only: the buffer of an untagged one depends on the order. Nothing is delivered
//! here: when its turn comes, each segment is checked like any other, and only the copy is skipped.
//!
//! Must stay true: memory ends up as if everything had arrived in order; therefore a placement is
//! forgotten, and repeated in order, once anything else is placed over it.

use super::{Outstanding, Pair};
use crate::domain::{Access, Domain};
use crate::framing::whole_unit;
use crate::memory::{Memory, RegionId};
use crate::wire::ddp::{Header, Opcode, Target};

/// Remembered placements, at most.
pub const AHEAD_MAX: usize = 64;

#[derive(Debug)]
pub(super) struct Ahead {
    /// The unit: its position in the stream and its CRC.
    mark: (u64, u32),
    region: RegionId,
    offset: u64,
    bytes: u64,
}

impl Ahead {
    fn overlaps(&self, region: RegionId, offset: u64, bytes: u64) -> bool {
        self.region == region && self.offset < offset + bytes && offset < self.offset + self.bytes
    }
}

impl Pair {
    /// Bytes of the peer's messages, including markers, that were received in order: the base of
    /// positions in [`Self::place_ahead`].
    #[must_use]
    pub fn awaited(&self) -> u64 {
        self.deframer.awaited()
    }

    /// Places what it can of `bytes`, which begin with a unit at `position` of the stream; returns
    /// the number of bytes placed. All of them are passed again, in order, to [`Self::receive`].
    pub fn place_ahead<M: Memory + ?Sized>(
        &mut self,
        mut position: u64,
        mut bytes: &[u8],
        domain: &Domain,
        memory: &mut M,
    ) -> usize {
        let mut placed = 0;
        // Without a CRC nothing shows that a unit begins here.
        if !self.is_open() || !self.deframer.crc || self.deframer.markers {
            return 0;
        }
        while position >= self.awaited()
            && self.ahead.len() < AHEAD_MAX
            && let Some((segment, count, crc)) = whole_unit(bytes)
            && self
                .place_one(segment, (position, crc), domain, memory)
                .is_some()
        {
            placed += count;
            position += count as u64;
            bytes = &bytes[count..];
        }
        placed
    }

    fn place_one<M: Memory + ?Sized>(
        &mut self,
        segment: &[u8],
        mark: (u64, u32),
        domain: &Domain,
        memory: &mut M,
    ) -> Option<()> {
        let (header, payload) = Header::read(segment)?;
        let Target::Tagged { stag, offset } = header.target else {
            return None;
        };
        if !header.ddp_version || !header.rdmap_version || payload.is_empty() {
            return None;
        }
        let bytes = payload.len() as u64;
        let rights = match Opcode::of(header.opcode)? {
            Opcode::Write => Access::REMOTE_WRITE,
            Opcode::ReadResponse => {
                // Only into a pending read.
                let end = offset.checked_add(bytes)?;
                let mut reads = self.outstanding.iter();
                reads.find(|one| {
                    matches!(one, Outstanding::Read { into, .. } if into.stag == stag
                        && into.offset <= offset
                        && end <= into.offset + u64::from(into.bytes))
                })?;
                Access::LOCAL_WRITE
            }
            _ => return None,
        };
        let (region, offset) = domain.check(self.id, stag, offset, bytes, rights).ok()?;
        if self.ahead.iter().any(|ahead| ahead.mark == mark) {
            return Some(()); // it came twice
        }
        self.forget_ahead(region, offset, bytes);
        memory.place(region, offset, payload).ok()?;
        self.ahead.push(Ahead {
            mark,
            region,
            offset,
            bytes,
        });
        Some(())
    }

    /// True if exactly this placement was done early; its turn has come.
    pub(super) fn was_placed(
        &mut self,
        region: RegionId,
        offset: u64,
        bytes: usize,
        mark: (u64, u32),
    ) -> bool {
        if self.ahead.is_empty() {
            return false;
        }
        let was_placed = self.ahead.iter().any(|ahead| {
            ahead.mark == mark
                && (ahead.region, ahead.offset, ahead.bytes) == (region, offset, bytes as u64)
        });
        // Remembered placements at earlier positions were never units.
        self.ahead.retain(|ahead| ahead.mark.0 > mark.0);
        was_placed
    }

    /// Forgets placements that are about to be overwritten.
    pub(super) fn forget_ahead(&mut self, region: RegionId, offset: u64, bytes: u64) {
        if !self.ahead.is_empty() {
            self.ahead
                .retain(|ahead| !ahead.overlaps(region, offset, bytes));
        }
    }
}

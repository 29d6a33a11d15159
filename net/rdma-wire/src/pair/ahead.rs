//! Segments that came out of order, placed before their turn (RFC 5044, section 5; RFC 5041,
//! section 5.3): a unit that lies whole at the front of a segment of TCP, with a right CRC, needs
//! nothing of what is missing before it.
//!
//! Tagged messages alone: which buffer an untagged one has, its turn decides. Nothing is delivered
//! here: when its turn comes, each segment is checked as any other, and left out is only the copy.
//!
//! Must stay true: memory ends up as if everything had come in order; so a placement is forgotten,
//! and done again in its turn, once anything else is placed over it.

use super::{Outstanding, Pair};
use crate::domain::{Access, Domain};
use crate::framing::whole_unit;
use crate::memory::{Memory, RegionId};
use crate::wire::ddp::{Header, Opcode, Target};

/// Placements that are remembered.
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
    /// Bytes of the peer's messages, markers included, that have been taken in order: positions of
    /// [`Self::place_ahead`] count like this.
    #[must_use]
    pub fn awaited(&self) -> u64 {
        self.deframer.awaited()
    }

    /// Places what can be placed of `bytes`, which begin with a unit at `position` of the stream;
    /// how many of them. All of them come again, in order, by [`Self::receive`].
    pub fn place_ahead<M: Memory + ?Sized>(
        &mut self,
        mut position: u64,
        mut bytes: &[u8],
        domain: &Domain,
        memory: &mut M,
    ) -> usize {
        let mut placed = 0;
        // Without a CRC nothing says that a unit begins here.
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
                // Into a read that waits, or nowhere.
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

    /// True if this very placement was done ahead of its turn; its turn has come.
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
        // Whatever else is remembered of earlier positions was never a unit.
        self.ahead.retain(|ahead| ahead.mark.0 > mark.0);
        was_placed
    }

    /// Forgets placements that others are about to be placed over.
    pub(super) fn forget_ahead(&mut self, region: RegionId, offset: u64, bytes: u64) {
        if !self.ahead.is_empty() {
            self.ahead
                .retain(|ahead| !ahead.overlaps(region, offset, bytes));
        }
    }
}

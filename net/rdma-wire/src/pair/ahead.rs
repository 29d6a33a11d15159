//! Segments received out of order, and placed early (RFC 5044, section 5; RFC 5041, section 5.3): a
//! complete unit at the front of a segment of TCP, with a correct CRC, does not depend on the data
//! missing before it.
//!
//! Tagged messages only: the buffer of an untagged one depends on the order. Nothing is delivered
//! here: when its turn comes, each segment is checked like any other, and only the copy is skipped.
//!
//! Must stay true: memory ends up as if everything had arrived in order; therefore a placement is
//! forgotten, and repeated in order, once anything else is placed over it. All writes of a pair to
//! memory go through [`Placements`].

use super::sends::Outstanding;
use super::{Pair, State};
use crate::domain::{Access, Domain, PairId};
use crate::framing::whole_unit;
use crate::memory::{Gone, Memory, RegionId};
use crate::wire::ddp::{AtomicRequest, Header, Opcode, Target};
use sidecore_bare::width::ToU64;
use std::collections::VecDeque;

/// Remembered placements, at most.
const AHEAD_MAX: usize = 64;

/// A unit's position in the stream and its CRC.
pub(super) type Mark = (u64, u32);

/// Placements in memory, those that were made early among them.
#[derive(Debug, Default)]
pub(super) struct Placements {
    early: Vec<Placement>,
}

#[derive(Debug)]
struct Placement {
    mark: Mark,
    region: RegionId,
    offset: u64,
    bytes: u64,
}

impl Placement {
    fn overlaps(&self, region: RegionId, offset: u64, bytes: u64) -> bool {
        self.region == region && self.offset < offset + bytes && offset < self.offset + self.bytes
    }
}

impl Placements {
    /// Writes to memory, unless exactly that was done early by the unit `mark`.
    pub(super) fn write<M: Memory + ?Sized>(
        &mut self,
        (region, offset): (RegionId, u64),
        bytes: &[u8],
        mark: Option<Mark>,
        memory: &mut M,
    ) -> Result<(), Gone> {
        let count = bytes.len().to_u64();
        if let Some(mark) = mark
            && self.was_placed(region, offset, count, mark)
        {
            return Ok(());
        }
        self.forget(region, offset, count);
        memory.place(region, offset, bytes)
    }

    /// Executes an atomic at a checked place; returns the old word.
    pub(super) fn change<M: Memory + ?Sized>(
        &mut self,
        (region, offset): (RegionId, u64),
        request: &AtomicRequest,
        memory: &mut M,
    ) -> Result<u64, Gone> {
        self.forget(region, offset, 8);
        let mut change = |word| request.apply(word).unwrap_or(word);
        memory.update(region, offset, &mut change)
    }

    pub(super) fn clear(&mut self) {
        self.early.clear();
    }

    /// Places a segment's payload early, if it does not depend on the order.
    fn place<M: Memory + ?Sized>(
        &mut self,
        pair: PairId,
        segment: &[u8],
        mark: Mark,
        outstanding: &VecDeque<Outstanding>,
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
        let bytes = payload.len().to_u64();
        let rights = match Opcode::of(header.opcode)? {
            Opcode::Write => Access::REMOTE_WRITE,
            Opcode::ReadResponse => {
                // Only into a pending read: otherwise a peer could write wherever this side may.
                let end = offset.checked_add(bytes)?;
                let mut reads = outstanding.iter();
                reads.find(|one| {
                    matches!(one, Outstanding::Read { into, .. } if into.stag == stag
                        && into.offset <= offset
                        && end <= into.offset + u64::from(into.bytes))
                })?;
                Access::LOCAL_WRITE
            }
            _ => return None,
        };
        // A fault is not reported here: the data before it may change what the tag gives access to.
        let (region, offset) = domain.check(pair, stag, offset, bytes, rights).ok()?;
        if self.early.iter().any(|early| early.mark == mark) {
            return Some(()); // TCP has received it twice
        }
        self.forget(region, offset, bytes);
        memory.place(region, offset, payload).ok()?;
        self.early.push(Placement {
            mark,
            region,
            offset,
            bytes,
        });
        Some(())
    }

    /// True if exactly this placement was done early; its turn has come.
    fn was_placed(&mut self, region: RegionId, offset: u64, bytes: u64, mark: Mark) -> bool {
        if self.early.is_empty() {
            return false;
        }
        // The CRC, too: a peer may have sent other data at this position the first time.
        let was_placed = self.early.iter().any(|early| {
            early.mark == mark
                && (early.region, early.offset, early.bytes) == (region, offset, bytes)
        });
        // Remembered placements at earlier positions were never units.
        self.early.retain(|early| early.mark.0 > mark.0);
        was_placed
    }

    /// Forgets placements that are about to be overwritten.
    fn forget(&mut self, region: RegionId, offset: u64, bytes: u64) {
        if !self.early.is_empty() {
            self.early
                .retain(|early| !early.overlaps(region, offset, bytes));
        }
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
        // Without a CRC nothing shows that a unit begins here; with markers a unit's length would
        // depend on its position.
        if self.state != State::Open || !self.deframer.crc || self.deframer.markers {
            return 0;
        }
        let outstanding = &self.sends.outstanding;
        let (id, awaited) = (self.id, self.deframer.awaited());
        while position >= awaited
            && self.placements.early.len() < AHEAD_MAX
            && let Some((segment, count, crc)) = whole_unit(bytes)
            && self
                .placements
                .place(id, segment, (position, crc), outstanding, domain, memory)
                .is_some()
        {
            placed += count;
            position += count.to_u64();
            bytes = &bytes[count..];
        }
        placed
    }
}

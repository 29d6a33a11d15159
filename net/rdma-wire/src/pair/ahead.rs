//! Segments received out of order, and placed early (RFC 5044, section 5; RFC 5041, section 5.3): a
//! complete unit at the front of a segment of TCP, with a correct CRC, does not depend on the data
//! missing before it.
//!
//! Tagged messages only: the buffer of an untagged one depends on the order. Nothing is delivered
//! here: when its turn comes, each segment is checked like any other, and only the copy is skipped.
//!
//! And long units without a CRC whose payload is placed as it comes, by [`Pair::receive`] or by the
//! owner, which may read a stream straight into the place ([`Pair::landing`]). Their heads are
//! checked first, and nothing behind the payload can refuse it.
//!
//! Must stay true: memory ends up as if everything had arrived in order; therefore a placement is
//! forgotten, and repeated in order, once anything else is placed over it. All writes of a pair to
//! memory go through [`Placements`], except for those of [`Landing`]: where these are, no CRC is,
//! and without CRCs nothing is placed out of order.

use super::input::{Places, message_places};
use super::receives::Mark;
use super::sends::Outstanding;
use super::{Pair, State, tagged_cause};
use crate::domain::{Access, Domain, PairId};
use crate::framing::{tail_bytes, whole_unit};
use crate::memory::{Gone, Memory, RegionId};
use crate::wire::ddp::{AtomicRequest, Header, Opcode, QUEUE_SEND, Target, UNTAGGED_BYTES};
use crate::wire::terminate::{Cause, Terminate};
use arrayvec::ArrayVec;
use sidecore_bare::width::{ToU64, ToUsize};
use std::collections::VecDeque;

/// Remembered placements, at most.
const AHEAD_MAX: usize = 64;

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

/// A long unit whose payload is placed as it comes.
#[derive(Debug)]
pub(super) struct Landing {
    header: Header,
    /// Bytes of the payload, and those of them that are placed.
    bytes: u32,
    at: u32,
    /// Padding and the field of the CRC, as far as they are still to come.
    tail: usize,
}

impl Pair {
    /// Begins to place a long unit whose head has come. One that a check refuses is buffered as a
    /// whole: its turn finds the same fault.
    pub(super) fn begin_landing<M: Memory + ?Sized>(
        &mut self,
        domain: &mut Domain,
        memory: &mut M,
    ) {
        let Some((head, length)) = self.deframer.head() else {
            return;
        };
        let Some((header, payload)) = Header::read(head) else {
            // The head is as long as any; if not, the whole unit says what is wrong.
            self.deframer.refuse_head();
            return;
        };
        // A short header leaves some of the payload behind it.
        let payload: ArrayVec<u8, UNTAGGED_BYTES> = payload.iter().copied().collect();
        let is_missing = self.lacks_receive(head, domain);
        let landing = Landing {
            header,
            bytes: u32::try_from(length - header.count()).unwrap_or(0),
            at: 0,
            tail: tail_bytes(length),
        };
        if is_missing || !may_land(self, &landing, domain) {
            self.deframer.refuse_head();
            return;
        }
        self.deframer.leave_head();
        self.landing = Some(landing);
        let mut rest = &payload[..];
        if let Err(cause) = land_payload(self, &mut rest, domain, memory) {
            fail_landing(self, cause);
        }
    }

    /// Places what has come of a long unit.
    pub(super) fn land<M: Memory + ?Sized>(
        &mut self,
        bytes: &mut &[u8],
        domain: &mut Domain,
        memory: &mut M,
    ) {
        if let Err(cause) = land_payload(self, bytes, domain, memory) {
            fail_landing(self, cause);
            return;
        }
        let Some(landing) = self.landing.as_mut() else {
            return;
        };
        let count = bytes.len().min(landing.tail);
        if landing.at == landing.bytes {
            *bytes = &bytes[count..];
            landing.tail -= count;
            self.deframer.pass(count);
        }
        if landing.tail > 0 {
            return;
        }
        let (header, count) = (landing.header, landing.bytes);
        if let Err(cause) = self.take_placed(&header, count, domain, memory) {
            fail_landing(self, cause);
        }
        self.landing = None;
    }

    /// The places of the stream's next bytes, each with its region, its offset and its length: the
    /// owner may put those bytes there itself, in this order, and then calls [`Self::landed`]. The
    /// number of bytes; 0 unless a long unit without a CRC is arriving.
    pub fn landing(&self, domain: &Domain, place: &mut dyn FnMut(RegionId, u64, usize)) -> usize {
        let Some(landing) = &self.landing else {
            return 0;
        };
        // The next bytes report what is wrong.
        let places = landing_places(self, landing, domain).unwrap_or_default();
        places
            .iter()
            .map(|&((region, offset), bytes)| {
                place(region, offset, bytes.to_usize());
                bytes.to_usize()
            })
            .sum()
    }

    /// The stream's next `count` bytes, of those of [`Self::landing`], are in their places.
    pub fn landed(&mut self, count: usize) {
        if let Some(landing) = &mut self.landing {
            let rest = landing.bytes - landing.at;
            landing.at += u32::try_from(count).map_or(rest, |count| count.min(rest));
            self.deframer.pass(count);
        }
    }

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

/// True if the whole unit passes its checks. Its receive is begun, which its fault would flush.
fn may_land(pair: &mut Pair, landing: &Landing, domain: &mut Domain) -> bool {
    let header = &landing.header;
    let Some(opcode) = Opcode::of(header.opcode) else {
        return false;
    };
    let is_right = match header.target {
        Target::Tagged { stag, offset } if opcode == Opcode::ReadResponse => pair
            .check_response(stag, offset, landing.bytes, header.last)
            .is_ok(),
        Target::Tagged { .. } => opcode == Opcode::Write,
        Target::Untagged {
            queue, msn, offset, ..
        } => {
            let is_next = pair.msn_in.of(QUEUE_SEND) == Some(msn) && queue == QUEUE_SEND;
            is_next && may_fill(pair, opcode, offset, landing.bytes, domain)
        }
    };
    header.ddp_version
        && header.rdmap_version
        && is_right
        && landing_places(pair, landing, domain).is_ok()
}

/// True if a segment at `offset` of a message continues, or begins, one with room for it.
fn may_fill(pair: &mut Pair, opcode: Opcode, offset: u32, bytes: u32, domain: &mut Domain) -> bool {
    use Opcode::{Send, SendInvalidate, SendSolicited, SendSolicitedInvalidate};
    if !matches!(
        opcode,
        Send | SendInvalidate | SendSolicited | SendSolicitedInvalidate
    ) {
        return false;
    }
    if pair.receives.incoming.is_none() {
        // Otherwise a message that begins in its middle would take a receive.
        if offset != 0 {
            return false;
        }
        let unread = pair.completions.receives();
        let Ok(incoming) = pair.receives.begin(opcode, unread, domain) else {
            return false;
        };
        pair.receives.incoming = Some(incoming);
    }
    pair.receives.incoming.as_ref().is_some_and(|incoming| {
        incoming.opcode == opcode && incoming.at == offset && bytes <= incoming.room - incoming.at
    })
}

/// Places of the rest of its payload.
fn landing_places(pair: &Pair, landing: &Landing, domain: &Domain) -> Result<Places, Cause> {
    let (at, bytes) = (landing.at, landing.bytes - landing.at);
    let rights = match Opcode::of(landing.header.opcode) {
        Some(Opcode::Write) => Access::REMOTE_WRITE,
        _ => Access::LOCAL_WRITE,
    };
    match landing.header.target {
        Target::Tagged { stag, offset } => {
            let offset = offset.checked_add(at.into()).ok_or(Cause::TaggedWrap)?;
            // Each time: the region may be deregistered between two parts of a unit.
            let place = domain.check(pair.id, stag, offset, bytes.into(), rights);
            Ok(Places::from_iter([(place.map_err(tagged_cause)?, bytes)]))
        }
        Target::Untagged { .. } => match &pair.receives.incoming {
            Some(incoming) => message_places(pair, incoming, incoming.at + at, bytes, domain),
            None => Err(Cause::LocalCatastrophic), // never: it was begun
        },
    }
}

fn land_payload<M: Memory + ?Sized>(
    pair: &mut Pair,
    bytes: &mut &[u8],
    domain: &Domain,
    memory: &mut M,
) -> Result<(), Cause> {
    let Some(landing) = &pair.landing else {
        return Ok(());
    };
    if landing.at == landing.bytes || bytes.is_empty() {
        return Ok(());
    }
    for (place, room) in landing_places(pair, landing, domain)? {
        let (now, later) = bytes.split_at(bytes.len().min(room.to_usize()));
        if now.is_empty() {
            break;
        }
        *bytes = later;
        memory
            .place(place.0, place.1, now)
            .map_err(|_| Cause::DdpCatastrophic)?;
        pair.landed(now.len());
    }
    Ok(())
}

/// Ends with a fault of the unit that was being placed.
fn fail_landing(pair: &mut Pair, cause: Cause) {
    let mut terminate = Terminate::new(cause);
    if let Some(landing) = pair.landing.take() {
        terminate.ddp = landing.header.bytes();
        let length = landing.bytes.to_usize() + landing.header.count();
        terminate.segment_bytes = Some(u16::try_from(length).unwrap_or(u16::MAX));
    }
    pair.fail(terminate);
}

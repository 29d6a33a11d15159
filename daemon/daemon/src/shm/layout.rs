//! The layout of shared memory, and the limits. docs/daemon.md has the same as a byte map.
//!
//! Must stay true: a change here changes [`VERSION`] and docs/daemon.md.

use super::ring::{JOBS_MAX, JobRing, JobSleep, JobSlot};
use super::slot::{CallSlot, SleepSlot};
use sidecore_sys::SharedSlice;

/// The first bytes of every message and every shared memory.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"SIDECOR1");
/// Version of the protocol between a daemon and its clients, messages and shared memory
/// (docs/daemon.md). Both sides must have the same.
pub const VERSION: u32 = 4;

/// The most engines of one daemon. Every table of engines, shared or not, has as many entries as
/// the daemon has engines, so a small daemon costs no more for this.
pub const ENGINES_MAX: usize = 1_024;
/// The most engines that one answer to a question for the status describes.
pub(crate) const STATUS_ENGINES_MAX: usize = 128;
/// The most clients at once: an engine sleeps on a word of each, and the kernel takes 128.
pub const CLIENTS_MAX: usize = 120;
/// The largest arena that a client may ask for, unless the daemon is configured otherwise.
pub(crate) const ARENA_BYTES_MAX: u64 = 256 << 20;
/// Bytes of an arena unless a client asks for more or less.
pub(crate) const ARENA_BYTES_DEFAULT: u64 = 16 << 20;
/// The alignment of arenas and of the buffers in them.
pub(crate) const ARENA_ALIGN: usize = 128;

const PAGE: usize = 4096;
/// The lines of one engine: request and answer, sleepers.
const LINES: usize = 256 + 128;

/// The offset of the lines of `engine` in a segment.
#[inline]
const fn pair_offset(engine: usize) -> usize {
    PAGE + engine * LINES
}

/// The offset of the jobs in a segment: sleepers, ring of submissions, ring of completions, slots.
const fn jobs_offset(engines: usize) -> usize {
    pair_offset(engines).next_multiple_of(PAGE)
}

const SUBMITTED: usize = size_of::<JobSleep>();
const COMPLETED: usize = SUBMITTED + size_of::<JobRing>();
const SLOTS: usize = COMPLETED + size_of::<JobRing>();
const JOBS_BYTES: usize = SLOTS + JOBS_MAX * size_of::<JobSlot>();

/// The offset of the arena in a segment.
pub const fn arena_offset(engines: usize) -> usize {
    (jobs_offset(engines) + JOBS_BYTES).next_multiple_of(PAGE)
}

/// Bytes of a segment, a whole number of pages.
pub fn segment_bytes(engines: usize, arena_bytes: u64) -> Option<usize> {
    let arena = usize::try_from(arena_bytes).ok()?;
    arena_offset(engines)
        .checked_add(arena)?
        .checked_next_multiple_of(PAGE)
}

/// The lines that one client and one engine share.
#[derive(Debug, Clone, Copy)]
pub struct Pair<'m> {
    /// The request and its answer.
    pub call: &'m CallSlot,
    pub(crate) sleep: &'m SleepSlot,
}

/// The pair of `engine`. `None` only where the segment is too short.
#[inline]
pub(crate) fn pair(segment: SharedSlice<'_>, engine: usize) -> Option<Pair<'_>> {
    let offset = pair_offset(engine);
    Some(Pair {
        call: segment.overlay(offset)?,
        sleep: segment.overlay(offset + 256)?,
    })
}

/// The jobs of a client.
#[derive(Debug, Clone, Copy)]
pub struct Jobs<'m> {
    area: SharedSlice<'m>,
    pub(crate) sleep: &'m JobSleep,
    /// The client's ring.
    pub submitted: &'m JobRing,
    /// The engines' ring.
    pub completed: &'m JobRing,
}

/// The jobs of the client of a segment. `None` only where the segment is too short.
#[inline]
pub(crate) fn jobs(segment: SharedSlice<'_>, engines: usize) -> Option<Jobs<'_>> {
    let offset = jobs_offset(engines);
    let area = segment.range(offset..offset + JOBS_BYTES)?;
    Some(Jobs {
        area,
        sleep: area.overlay(0)?,
        submitted: area.overlay(SUBMITTED)?,
        completed: area.overlay(COMPLETED)?,
    })
}

impl<'m> Jobs<'m> {
    /// The slot of that place. `None` where there is no such place.
    #[inline]
    pub fn slot(self, place: usize) -> Option<&'m JobSlot> {
        if place >= JOBS_MAX {
            return None;
        }
        self.area.overlay(SLOTS + place * size_of::<JobSlot>())
    }
}

/// The outcome of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Status {
    /// Done, with a reply.
    Done = 0,
    /// There is no kernel of that number.
    UnknownKernel = 1,
    /// A range outside the arena, or outputs that overlap.
    BadRange = 2,
    /// The kernel gave an error; the text says which.
    Failed = 3,
    /// The client took the job back before an engine began it.
    TakenBack = 4,
}

impl Status {
    /// The status of that number.
    pub(crate) fn from_number(number: u32) -> Option<Self> {
        [
            Self::Done,
            Self::UnknownKernel,
            Self::BadRange,
            Self::Failed,
            Self::TakenBack,
        ]
        .into_iter()
        .find(|status| *status as u32 == number)
    }
}

/// Offsets on the activity page, in bytes; every field is a word of 64 bits.
pub(crate) mod activity {
    use super::CLIENTS_MAX;

    pub(crate) const MAGIC: usize = 0;
    /// The version in the lower half, the number of engines in the upper.
    pub(crate) const SHAPE: usize = 8;
    /// 0 while the daemon serves, 1 when it is about to end.
    pub(crate) const ENDING: usize = 16;
    /// Grows every [`super::TICK_MS`] while the daemon lives and is not stopped.
    pub(crate) const HEARTBEAT: usize = 64;

    /// Offset of a word about the client that the engine serves at this moment. The lower half is
    /// its number plus 1, or 0 for none; the upper half counts the requests that the engine began.
    pub(crate) const fn serving(engine: usize) -> usize {
        128 + engine * 128
    }

    /// Offset of the number of the engine's core.
    pub(crate) const fn cpu(engine: usize) -> usize {
        serving(engine) + 8
    }

    /// The heartbeat at which a client was last served.
    pub(crate) const fn active(engines: usize, client: usize) -> usize {
        serving(engines) + client * 8
    }

    pub(crate) const fn bytes(engines: usize) -> usize {
        active(engines, CLIENTS_MAX).next_multiple_of(super::PAGE)
    }
}

/// Milliseconds between two heartbeats.
pub(crate) const TICK_MS: u64 = 20;
/// A daemon without a heartbeat for this long is given up. With the client's longest nap this stays
/// below 100 ms.
pub(crate) const STALE_MS: u64 = 85;

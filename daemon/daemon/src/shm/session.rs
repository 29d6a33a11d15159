//! A client's segment as the daemon sees it: memory that its holders may write to at any time.
//!
//! Why here: this is the trust boundary. A request's ranges are checked here, on a copy, before a
//! kernel sees them; behind it a kernel can only copy in and out of the client's own arena. Must
//! stay true: the daemon keeps its own copy of every size and never reads one back from the
//! segment. Any thread; a pair only by its engine.

use super::layout::{self, Jobs, Pair, Status};
use super::load::UserLoad;
use super::ring::{JOB_RANGES_MAX, JobHeads, JobPacket, SLOT_RANGES_MAX};
use super::slot::{Packet, RANGES_MAX};
use crate::served::{Attached, Companions, KeptCompanions, Memory};
use crossbeam_utils::CachePadded;
use parking_lot::{Mutex, MutexGuard};
use sidecore_attach::Segment;
use sidecore_bare::width::{ToU64, ToUsize};
use sidecore_sys::SharedSlice;
use sidecore_sys::local_socket::{self, Peer};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

/// One client, from its attachment to its end.
#[derive(Debug)]
pub struct Session {
    /// Values that kernels keep for it at each engine. Before the memory: it may hold maps of it.
    companions: Box<[CachePadded<KeptCompanions>]>,
    map: Segment,
    /// Its number, below the most clients at once; used again after its end.
    pub(crate) client: u32,
    /// Its serial number among all clients since the daemon started.
    pub(crate) serial: u64,
    pub(crate) peer: Peer,
    pub(crate) arena_bytes: u64,
    arena_offset: usize,
    /// Set when the client has disconnected; long kernels may poll it.
    pub(crate) gone: AtomicBool,
    /// Each engine's account of it; written by that engine only.
    pub(crate) served: Box<[CachePadded<ServedCounters>]>,
    /// Reason of the last failure of its requests and jobs, with the kernel's name.
    last_failure: Mutex<Option<String>>,
    /// Shared by all sessions of a user whose requests in flight are limited.
    pub(crate) load: Option<Arc<UserLoad>>,
    /// The engines' positions among its jobs.
    pub heads: CachePadded<JobHeads>,
    /// This side's end of the descriptor that says that jobs are done.
    bell: Option<OwnedFd>,
}

/// One engine's account of one client.
#[derive(Debug, Default)]
pub(crate) struct ServedCounters {
    pub(crate) calls: AtomicU64,
    pub(crate) failures: AtomicU64,
    pub(crate) cycles: AtomicU64,
}

/// The names of a session.
#[derive(Debug, Clone, Copy)]
pub struct Names {
    /// As `Session::client`.
    pub client: u32,
    /// As `Session::serial`.
    pub serial: u64,
    /// The attached process.
    pub peer: Peer,
}

impl Session {
    /// A session over a segment that was made for it, `layout::segment_bytes` long.
    pub fn new(names: Names, engines: usize, arena_bytes: u64, map: Segment) -> Self {
        Self {
            companions: (0..engines).map(|_| CachePadded::default()).collect(),
            map,
            client: names.client,
            serial: names.serial,
            peer: names.peer,
            arena_bytes,
            arena_offset: layout::arena_offset(engines),
            gone: AtomicBool::new(false),
            served: (0..engines).map(|_| CachePadded::default()).collect(),
            last_failure: Mutex::new(None),
            load: None,
            heads: CachePadded::default(),
            bell: None,
        }
    }

    /// With the end of a socket pair whose other end the client has.
    pub(crate) fn with_bell(mut self, bell: OwnedFd) -> Self {
        self.bell = Some(bell);
        self
    }

    /// With a limit of its user's requests in flight.
    pub(crate) fn limited(mut self, load: Option<Arc<UserLoad>>) -> Self {
        self.load = load;
        self
    }

    /// True while its user's requests leave room for one more.
    #[inline]
    pub(crate) fn may_be_served(&self) -> bool {
        self.load.as_ref().is_none_or(|load| load.has_room())
    }

    pub(crate) fn bytes(&self) -> usize {
        self.map.slice().len()
    }

    pub(crate) fn locked(&self) -> bool {
        self.map.locked()
    }

    /// True if the client took memory away that could not be had again.
    pub(crate) fn damaged(&self) -> bool {
        self.map.damaged()
    }

    /// All of the segment, as its client has it: for the fuzzer, which is that client.
    pub fn segment(&self) -> SharedSlice<'_> {
        self.map.slice()
    }

    /// The pair that belongs to `engine`. It was laid out when the segment was made.
    #[inline]
    pub fn pair(&self, engine: usize) -> Option<Pair<'_>> {
        layout::pair(self.map.slice(), engine)
    }

    /// The client's jobs.
    #[inline]
    pub fn jobs(&self) -> Option<Jobs<'_>> {
        layout::jobs(self.map.slice(), self.served.len())
    }

    /// True if a job of the client waits for an engine.
    #[inline]
    pub(crate) fn has_job(&self) -> bool {
        self.jobs()
            .is_some_and(|jobs| self.heads.waits(jobs.submitted))
    }

    /// Requests and jobs of the client that wait for an engine, at this moment. A request at an
    /// engine that is `at_work` for the client counts as begun.
    pub(crate) fn waiting(&self, at_work: impl Fn(usize) -> bool) -> usize {
        let waits = |engine: &usize| {
            let pair = self.pair(*engine);
            let rung = pair.and_then(|pair| pair.call.rung(pair.call.last_answered()));
            rung.is_some() && !at_work(*engine)
        };
        let requests = (0..self.served.len()).filter(waits).count();
        let jobs = self.jobs();
        requests + jobs.map_or(0, |jobs| self.heads.waiting(jobs.submitted))
    }

    /// Notes why a request or a job failed, for reports. `text` is the kernel's, where it has one.
    #[cold]
    pub(crate) fn note_failure(&self, kernel: Option<&str>, status: Status, text: Option<&str>) {
        let reason = match status {
            Status::UnknownKernel => "no such kernel",
            Status::BadRange => "a range outside its arena, or two that overlap",
            _ => text.unwrap_or("failed"),
        };
        // A report may hold the lock, and an engine waits for none: this reason is then left out.
        if let Some(mut last) = self.last_failure.try_lock() {
            let mut line = kernel.map_or_else(String::new, |kernel| format!("{kernel}: "));
            let plain = reason.chars().map(|c| if c.is_control() { ' ' } else { c });
            line.extend(plain.take(REASON_CHARS_MAX));
            *last = Some(line);
        }
    }

    /// The reason that was noted last.
    pub(crate) fn last_failure(&self) -> Option<String> {
        self.last_failure.lock().clone()
    }

    /// Wakes the waiter for a job of this client, after one was completed.
    #[inline]
    pub(crate) fn tell_of_job(&self, jobs: Jobs<'_>) {
        if jobs.sleep.tell()
            && let Some(bell) = &self.bell
        {
            // It fails while the client does not read: then it is readable, or its client has
            // disconnected.
            local_socket::send(bell.as_fd(), &[1], &[]).ok();
        }
    }

    /// The stretches of the arena that a job names, checked, into `stretches`.
    ///
    /// # Errors
    /// As [`Self::lend`].
    pub(crate) fn stretches<'m>(
        &'m self,
        packet: &JobPacket,
        stretches: &mut [SharedSlice<'m>; JOB_RANGES_MAX],
    ) -> Result<(), Status> {
        let used = packet.used();
        let mut ranges = [(0, 0); JOB_RANGES_MAX];
        let Some(ranges) = ranges.get_mut(..used) else {
            return Err(Status::BadRange);
        };
        if used <= SLOT_RANGES_MAX {
            ranges.copy_from_slice(&packet.ranges[..used]);
        } else {
            // The list is copied once, as the slot was; it may be changing.
            let (offset, bytes) = packet.ranges[0];
            let list = self.stretch(offset, bytes).ok_or(Status::BadRange)?;
            if bytes != (used * RANGE_BYTES).to_u64() || offset % 8 != 0 {
                return Err(Status::BadRange);
            }
            for (index, range) in ranges.iter_mut().enumerate() {
                let at = index * RANGE_BYTES;
                *range = (list.load_u64(at), list.load_u64(at + 8));
            }
        }
        self.check(ranges, usize::from(packet.inputs), |index, slice| {
            stretches[index] = slice;
        })
    }

    /// The memory that a request lets its kernel touch: checked stretches of this client's arena,
    /// added to `memory`, which is empty.
    ///
    /// # Errors
    /// [`Status::BadRange`] for more ranges than there are, a range that is not within the arena,
    /// and an output that overlaps another range.
    #[inline]
    pub(crate) fn lend<'m>(
        &'m self,
        packet: &Packet,
        memory: &mut Memory<'m>,
    ) -> Result<(), Status> {
        // Most small calls carry words only; their lines of ranges are not even looked at.
        if packet.inputs == 0 && packet.outputs == 0 {
            return Ok(());
        }
        let inputs = usize::from(packet.inputs);
        let used = inputs + usize::from(packet.outputs);
        // Four bits each in the bell: their sum may be more than there is room for.
        if used > RANGES_MAX {
            return Err(Status::BadRange);
        }
        self.check(&packet.ranges[..used], inputs, |index, slice| {
            if index < inputs {
                memory.add_input(slice);
            } else {
                memory.add_output(slice);
            }
        })
    }

    /// Gives `found` the stretch of each range, of which the first `inputs` are inputs.
    #[inline]
    fn check<'m>(
        &'m self,
        ranges: &[(u64, u64)],
        inputs: usize,
        mut found: impl FnMut(usize, SharedSlice<'m>),
    ) -> Result<(), Status> {
        for (index, &(offset, bytes)) in ranges.iter().enumerate() {
            let slice = self.stretch(offset, bytes).ok_or(Status::BadRange)?;
            if index < inputs {
                found(index, slice.read_only());
                continue;
            }
            // A kernel may put before it has got all of its inputs, and outputs move one by one
            // when a call is given up: an overlap would make the result depend on the order.
            let overlaps = |&(other, other_bytes): &(u64, u64)| {
                offset < other + other_bytes && other < offset + bytes
            };
            // Earlier ranges are known to lie within, so that the sums above cannot overflow.
            if ranges[..index].iter().any(overlaps) {
                return Err(Status::BadRange);
            }
            found(index, slice);
        }
        Ok(())
    }

    fn stretch(&self, offset: u64, bytes: u64) -> Option<SharedSlice<'_>> {
        // Against our own copy of the size, never one that lies in the segment.
        if offset.checked_add(bytes)? > self.arena_bytes {
            return None;
        }
        let start = self.arena_offset + offset.to_usize();
        self.map.slice().range(start..start + bytes.to_usize())
    }
}

impl Attached for Session {
    fn file(&self) -> BorrowedFd<'_> {
        self.map.file()
    }

    fn segment(&self) -> SharedSlice<'_> {
        self.map.slice()
    }

    fn arena_offset(&self) -> usize {
        self.arena_offset
    }

    fn companions(&self, engine: usize) -> MutexGuard<'_, Companions> {
        self.companions[engine].lock()
    }
}

/// Bytes of a range in a list.
pub(crate) const RANGE_BYTES: usize = 16;

/// Characters of a failure's reason in reports; of all clients, they fit a status.
const REASON_CHARS_MAX: usize = 80;

#[cfg(test)]
mod tests {
    use super::*;
    use sidecore_sys::SharedMap;
    use sidecore_sys::Sharing;

    fn session() -> Session {
        let peer = Peer {
            pid: 1,
            uid: 0,
            gid: 0,
        };
        let names = Names {
            client: 0,
            serial: 0,
            peer,
        };
        let bytes = layout::segment_bytes(2, 4096).unwrap();
        let map = SharedMap::create("test", bytes, Sharing::ReadWrite).unwrap();
        Session::new(names, 2, 4096, Segment::uncharged(map))
    }

    fn memory<'m>(session: &'m Session, packet: &Packet) -> Result<Memory<'m>, Status> {
        let mut memory = Memory::new(&session.gone);
        session.lend(packet, &mut memory)?;
        Ok(memory)
    }

    fn packet(inputs: u8, outputs: u8, ranges: [(u64, u64); RANGES_MAX]) -> Packet {
        Packet {
            inputs,
            outputs,
            ranges,
            ..Packet::default()
        }
    }

    #[test]
    fn only_stretches_of_the_arena_pass() {
        let session = session();
        let good = packet(1, 1, [(0, 100), (100, 3996), (0, 0), (0, 0)]);
        let good = memory(&session, &good).unwrap();
        assert_eq!(good.input(0).unwrap().len(), 100);
        assert!(!good.input(0).unwrap().is_writable());
        assert_eq!(good.output(0).unwrap().len(), 3996);
        assert!(good.input(1).is_err() && good.output(1).is_err());
        let none = (0, 0);
        for bad in [
            packet(1, 0, [(0, 4097), none, none, none]),
            packet(1, 0, [(4097, 0), none, none, none]),
            packet(1, 0, [(u64::MAX, 2), none, none, none]),
            packet(1, 0, [(2, u64::MAX), none, none, none]),
            packet(255, 255, [none; 4]),
            packet(5, 0, [none; 4]),
            packet(1, 1, [(0, 100), (99, 1), none, none]),
            packet(0, 2, [(0, 100), (50, 10), none, none]),
            packet(0, 2, [(50, 10), (0, 100), none, none]),
        ] {
            assert_eq!(
                memory(&session, &bad).unwrap_err(),
                Status::BadRange,
                "{bad:?}"
            );
        }
        let shared_inputs = packet(2, 1, [(0, 100), (50, 100), (150, 10), none]);
        assert!(memory(&session, &shared_inputs).is_ok());
    }

    #[test]
    fn ranges_may_touch_one_another_and_the_arenas_end() {
        let session = session();
        let none = (0, 0);
        for good in [
            packet(1, 0, [(4096, 0), none, none, none]),
            packet(0, 1, [(0, 4096), none, none, none]),
            // An output behind, before and between others.
            packet(1, 1, [(0, 100), (100, 1), none, none]),
            packet(1, 1, [(100, 100), (99, 1), none, none]),
            packet(2, 1, [(0, 100), (101, 100), (100, 1), none]),
            packet(0, 4, [(0, 1), (2, 1), (1, 1), (3, 1)]),
        ] {
            assert!(memory(&session, &good).is_ok(), "{good:?}");
        }
        let last = packet(1, 0, [(4000, 96), none, none, none]);
        let start = session.segment().address() + layout::arena_offset(2);
        let input = memory(&session, &last).unwrap().input(0).unwrap();
        assert_eq!((input.address(), input.len()), (start + 4000, 96));
    }

    #[test]
    fn a_sessions_user_may_be_limited() {
        let session = session();
        assert_eq!(session.bytes(), layout::segment_bytes(2, 4096).unwrap());
        assert!(session.may_be_served() && !session.damaged());
        assert!(session.pair(0).is_some() && session.pair(1).is_some());
        let load = Arc::new(UserLoad::new(1));
        let session = session.limited(Some(Arc::clone(&load)));
        assert!(session.may_be_served());
        let one = load.begin();
        assert!(!session.may_be_served());
        drop(one);
        assert!(session.may_be_served());
    }

    proptest::proptest! {
        #[test]
        fn what_passes_lies_within(
            counts in (0u8..6, 0u8..6),
            ranges in proptest::array::uniform4((0u64..5000, 0u64..5000)),
        ) {
            let session = session();
            if let Ok(memory) = memory(&session, &packet(counts.0, counts.1, ranges)) {
                let used = usize::from(counts.0 + counts.1);
                proptest::prop_assert!(used <= RANGES_MAX);
                for &(offset, bytes) in &ranges[..used] {
                    proptest::prop_assert!(offset + bytes <= 4096);
                }
                proptest::prop_assert_eq!(memory.outputs(), usize::from(counts.1));
            }
        }
    }
}

//! A client's segment as the daemon sees it: memory that anybody may write to at any time.
//!
//! Why here: this is the wall. What a request names is checked here, on a copy, before a kernel
//! sees it; behind it a kernel can only copy in and out of the client's own arena. Must stay true:
//! the daemon keeps its own copy of every size and never reads one back from the segment. Any
//! thread; a pair only by its engine.

use super::layout::{self, Pair, Status};
use super::slot::{Packet, RANGES_MAX};
use crate::served::Memory;
use crossbeam_utils::CachePadded;
use sidecore_sys::local_socket::Peer;
use sidecore_sys::{SharedMap, SharedSlice, Sharing, SysError};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU64};

/// One client, from its attachment to its end.
#[derive(Debug)]
pub(crate) struct Session {
    map: SharedMap,
    /// Its number, below the most clients at once; used again after its end.
    pub(crate) client: u32,
    /// Its number among all clients that ever were.
    pub(crate) serial: u64,
    pub(crate) peer: Peer,
    pub(crate) arena_bytes: u64,
    arena_offset: usize,
    /// Set when the client is gone: long kernels may look.
    pub(crate) gone: AtomicBool,
    /// What each engine did for it; written by that engine only.
    pub(crate) served: Box<[CachePadded<ServedCounters>]>,
}

/// What one engine did for one client.
#[derive(Debug, Default)]
pub(crate) struct ServedCounters {
    pub(crate) calls: AtomicU64,
    pub(crate) cycles: AtomicU64,
}

impl Session {
    /// Makes the segment of a new client.
    pub(crate) fn new(
        client: u32,
        serial: u64,
        peer: Peer,
        engines: usize,
        arena_bytes: u64,
    ) -> Result<Self, SysError> {
        let bytes = layout::segment_bytes(engines, arena_bytes).ok_or(SysError::Size {
            what: "an arena",
            value: usize::MAX,
            rule: "less than the address space",
        })?;
        let map = SharedMap::create("sidecore-client", bytes, Sharing::ReadWrite)?;
        Ok(Self {
            map,
            client,
            serial,
            peer,
            arena_bytes,
            arena_offset: layout::arena_offset(engines),
            gone: AtomicBool::new(false),
            served: (0..engines).map(|_| CachePadded::default()).collect(),
        })
    }

    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.map.file()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.map.slice().len()
    }

    pub(crate) fn locked(&self) -> bool {
        self.map.locked()
    }

    /// Whether the client took memory away that could not be had again.
    pub(crate) fn damaged(&self) -> bool {
        self.map.damaged()
    }

    /// The pair that belongs to `engine`. It was laid out when the segment was made.
    #[inline]
    pub(crate) fn pair(&self, engine: usize) -> Option<Pair<'_>> {
        layout::pair(self.map.slice(), engine)
    }

    /// What a request lets its kernel touch: checked stretches of this client's arena, added to
    /// `memory`, which is empty.
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
        if packet.inputs == 0 && packet.outputs == 0 {
            return Ok(());
        }
        let inputs = usize::from(packet.inputs);
        let used = inputs + usize::from(packet.outputs);
        if used > RANGES_MAX {
            return Err(Status::BadRange);
        }
        let ranges = &packet.ranges[..used];
        for (index, &(offset, bytes)) in ranges.iter().enumerate() {
            let slice = self.stretch(offset, bytes).ok_or(Status::BadRange)?;
            if index < inputs {
                memory.add_input(slice);
                continue;
            }
            let overlaps = |&(other, other_bytes): &(u64, u64)| {
                offset < other + other_bytes && other < offset + bytes
            };
            // Earlier ranges are known to lie within, so that the sums above cannot overflow.
            if ranges[..index].iter().any(overlaps) {
                return Err(Status::BadRange);
            }
            memory.add_output(slice);
        }
        Ok(())
    }

    fn stretch(&self, offset: u64, bytes: u64) -> Option<SharedSlice<'_>> {
        if offset.checked_add(bytes)? > self.arena_bytes {
            return None;
        }
        let start = self.arena_offset + offset as usize;
        self.map.slice().range(start..start + bytes as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session() -> Session {
        let peer = Peer {
            pid: 1,
            uid: 0,
            gid: 0,
        };
        Session::new(0, 0, peer, 2, 4096).unwrap()
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

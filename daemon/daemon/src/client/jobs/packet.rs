//! The packet by which a job goes to the daemon.
//!
//! Must stay true: everything that the packet names lies in the segment's arena, and stays there
//! until the job is over: the leases of copies go into the book with it.

use super::super::call::place_input;
use super::super::link::Link;
use super::job::Job;
use crate::shm::ring::{JOB_RANGES_MAX, JobPacket, SLOT_RANGES_MAX};
use crate::shm::segment::Lease;
use crate::shm::session::RANGE_BYTES;
use sidecore_bare::width::ToU64;

/// The packet of a job, and the leases that hold copies of inputs outside the arena. Outputs move
/// to the arena for good. `None` where the daemon has no such kernel, or the arena no room.
pub(super) fn packet(link: &Link, job: &mut Job) -> Option<(JobPacket, Vec<Lease>)> {
    let words = job.request().words;
    let mut ranges = [(0, 0); JOB_RANGES_MAX];
    // A job whose buffers are all in the arena has its places already.
    if let Some(places) = &job.places {
        let used = places.ranges.len();
        ranges.get_mut(..used)?.copy_from_slice(&places.ranges);
        let packet = JobPacket {
            kernel: places.number,
            words,
            inputs: places.inputs as u8,
            outputs: (used - places.inputs) as u8,
            ..JobPacket::default()
        };
        return with_ranges(link, packet, &ranges, Vec::new());
    }
    let packet = JobPacket {
        kernel: link.number(job.kernel.index)?,
        words,
        inputs: job.inputs.len() as u8,
        outputs: job.output_count() as u8,
        ..JobPacket::default()
    };
    let mut staged = Vec::new();
    let mut places = ranges.iter_mut();
    for (buffer, range) in &job.inputs {
        let (copy, place) = place_input(link, buffer, range)?;
        staged.extend(copy);
        *places.next()? = place;
    }
    for (buffer, parts) in &mut job.outputs {
        if !buffer.move_to(&link.segment) {
            return None;
        }
        let offset = buffer.offset_in(&link.segment)?;
        for part in parts {
            *places.next()? = ((offset + part.start).to_u64(), part.len().to_u64());
        }
    }
    with_ranges(link, packet, &ranges, staged)
}

/// Puts the ranges into the packet, or into a list in the arena where they are too many.
fn with_ranges(
    link: &Link,
    mut packet: JobPacket,
    ranges: &[(u64, u64); JOB_RANGES_MAX],
    mut staged: Vec<Lease>,
) -> Option<(JobPacket, Vec<Lease>)> {
    let used = packet.used();
    // Most jobs have few ranges, and need no room in the arena for a list.
    if used <= SLOT_RANGES_MAX {
        packet.ranges.copy_from_slice(&ranges[..SLOT_RANGES_MAX]);
        return Some((packet, staged));
    }
    let mut list = link.segment.lease(used * RANGE_BYTES).ok()?;
    let entries = list.bytes_mut().as_chunks_mut::<RANGE_BYTES>().0;
    for (entry, (offset, bytes)) in entries.iter_mut().zip(ranges) {
        entry[..8].copy_from_slice(&offset.to_le_bytes());
        entry[8..].copy_from_slice(&bytes.to_le_bytes());
    }
    packet.ranges[0] = (list.offset().to_u64(), (used * RANGE_BYTES).to_u64());
    staged.push(list);
    Some((packet, staged))
}

//! Bytes and ends of one stream with rings.

use super::super::rings::Rings;
use crate::socket::files::is_hung_up;
use crate::socket::{Notice, Outbound, Path, RingEnd, Stream};
use rustix::io::Errno;
use rustix::net::{RecvFlags, Shutdown};
use sidecore_net_rings::{Broken, Stream as View};
use sidecore_sync::Changed;
use std::os::fd::OwnedFd;

/// Bytes that a program wrote: first those in rings, then those in the pair.
///
/// # Errors
/// `EAGAIN`: none are there. `ECONNRESET`: the program has closed with unread bytes.
pub(super) fn fetch(
    rings: &mut Rings,
    stream: &mut Stream,
    far: &OwnedFd,
    room: &mut [u8],
) -> Result<usize, Errno> {
    let is_in_use = stream.path.rings().is_some();
    if let Some(ring) = stream.path.all_rings_mut() {
        // A stream with rings has no filler left.
        let taken = take(ring, room)?;
        if taken > 0 {
            let _ = Changed::publish();
            let view = ring.view();
            if view.is_some_and(View::program_waits) {
                rings.notify(ring);
            }
            return Ok(taken);
        }
        // Bytes of the pair would be another process's; its end is read only once it was reported.
        if is_in_use && !matches!(stream.outbound, Outbound::Ending(_)) {
            return Err(Errno::AGAIN);
        }
    }
    let received = rustix::net::recv(far, &mut *room, RecvFlags::DONTWAIT);
    let received = received.map(|(_, count)| count);
    if received == Ok(0)
        && let Some(ring) = stream.path.all_rings_mut()
    {
        // Bytes in the rings were written before the pair was closed.
        let taken = take(ring, room)?;
        if taken == 0 && is_in_use && has_unread(ring) && is_hung_up(far) {
            return Err(Errno::CONNRESET);
        }
        return Ok(taken);
    }
    received
}

fn take(ring: &mut RingEnd, room: &mut [u8]) -> Result<usize, Errno> {
    let view = ring.view().ok_or(Errno::CONNRESET)?;
    let mut served = ring.served;
    let taken = view.take(&mut served, room);
    ring.served = served;
    taken.map_err(|Broken| Errno::CONNRESET)
}

/// True if the program has left bytes unread in a ring.
fn has_unread(ring: &RingEnd) -> bool {
    let view = ring.view();
    let unread = view.and_then(|view| view.unread(&ring.served).ok());
    unread.is_some_and(|unread| !unread.is_empty())
}

/// Writes to a ring; if it is full, the program notifies when it has room.
///
/// # Errors
/// The program has corrupted its positions.
pub(super) fn give(ring: &mut RingEnd, bytes: &[u8]) -> Result<usize, Broken> {
    let view = ring.view().ok_or(Broken)?;
    let mut served = ring.served;
    let mut given = view.give(&mut served, bytes)?;
    if given == 0 {
        // The program may have read between the look and the announcement: look once more.
        view.wait_for_reading();
        let _ = Changed::publish();
        given = view.give(&mut served, bytes)?;
    }
    ring.served = served;
    Ok(given)
}

/// Reports that the peer sends no more: through the rings if there are any, else through the pair,
/// which then takes no more bytes.
pub(super) fn give_end(rings: &mut Rings, stream: &mut Stream, far: &OwnedFd) {
    let has_rings = stream.path.rings().is_some();
    match stream.inbound.end(has_rings) {
        Some(Notice::Rings) => {
            if let Path::Rings(ring) = &stream.path
                && let Some(view) = ring.view()
            {
                view.end();
                rings.notify(ring);
            }
        }
        Some(Notice::Pair) => {
            rustix::net::shutdown(far, Shutdown::Write).ok();
        }
        None => {}
    }
}

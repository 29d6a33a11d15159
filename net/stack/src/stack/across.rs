//! Copying bytes between two sessions of this stack that are each other's peer.
//!
//! Why here: two applications of one engine communicate over a connection whose two ends are
//! control blocks in the same memory. Cutting the bytes into segments, queueing and acknowledging
//! them costs two more copies of each and changes nothing visible to either application. So written
//! bytes are copied directly to the reader, and both blocks are updated as if a segment with these
//! bytes had been received and acknowledged: numbers, windows and the time of the last segment.
//! (Solaris called this TCP fusion.)
//!
//! Must stay true: bytes are copied only while nothing is in flight in either direction, nothing is
//! out of order and no FIN was sent, so that they cannot overtake each other and any segment of the
//! two that is still queued carries only an old acknowledgment; never more than the window that the
//! reader has advertised. All other data is sent in segments. Opening, closing and resetting always
//! use segments.

use super::SessionId;
use super::{Host, Stack};
use crate::buffer::NONE;
use crate::error::NetError;
use crate::secrets::Ends;
use crate::state::ecn::EcnState;
use crate::state::flags::{Flags, SendTail};
use crate::state::hot::{Hot, State};
use crate::state::window::field_of;
use sidecore_bare::width::{ToU64, ToUsize};

impl Stack {
    /// Lets the other end's owner take bytes of a session: `take` gets the reading session and the
    /// number of bytes it accepts, copies at most that many to it, and returns their number. They
    /// are counted as written, sent, acknowledged and read. Returns 0 without calling `take` if
    /// bytes cannot be copied or the other end has unread data.
    #[inline]
    pub fn carry_across(
        &mut self,
        id: SessionId,
        take: impl FnOnce(SessionId, usize) -> usize,
    ) -> usize {
        let Some((writer, reader)) = self.host.across(id) else {
            return 0;
        };
        let hot = self.host.sessions.store.hot(reader);
        let room = hot.receive.left().to_usize();
        // Bytes in the ring are older than those to be taken, and must be read first.
        if room == 0 || hot.rx.len() > 0 {
            return 0;
        }
        let count = take(self.host.sessions.id(reader), room);
        debug_assert!(count <= room, "{count} bytes were taken, {room} had room");
        if count > 0 {
            self.host.count_across(writer, reader, count.min(room));
        }
        count
    }

    /// Lets `fill` write up to `count` bytes, in up to two pieces, directly into the receive ring
    /// of the other end, within its window; their number. 0 if bytes cannot be copied: then use
    /// [`Stack::write_in_place`].
    ///
    /// # Errors
    /// [`NetError::Gone`].
    #[inline]
    pub fn write_across(
        &mut self,
        id: SessionId,
        count: usize,
        mut fill: impl FnMut(&mut [u8]),
    ) -> Result<usize, NetError> {
        self.host.sessions.number(id)?;
        let Some((writer, reader)) = self.host.across(id) else {
            return Ok(0);
        };
        let (hot, _, _) = self.host.sessions.store.session(reader);
        let room = hot.receive.left().to_usize();
        let pool = &mut self.host.common.pool;
        // Without memory there is no room: segments handle that case.
        let taken = hot
            .rx
            .append_with(pool, count.min(room), usize::MAX, &mut fill);
        if taken > 0 {
            self.host.count_across(writer, reader, taken);
            self.host
                .sessions
                .access(&mut self.host.common, reader)
                .notify();
        }
        Ok(taken)
    }
}

impl Host {
    /// Numbers of both sessions, the writer's first.
    fn across(&mut self, id: SessionId) -> Option<(u32, u32)> {
        let writer = self.sessions.number(id).ok()?;
        let (hot, path) = (
            self.sessions.store.hot(writer),
            self.sessions.store.path(writer),
        );
        let ends = Ends {
            local: path.remote,
            remote: path.local,
            local_port: path.remote_port,
            remote_port: path.local_port,
        };
        let is_plain = path.tail == SendTail::EMPTY && !hot.has(Flags::CORKED);
        if !is_plain || !is_still(hot) || !self.common.interface.is_ours(&ends.local) {
            return None;
        }
        let written = hot.send.nxt;
        let hash = self.common.secrets.lookup(&ends);
        // The table has the other end under the reversed addresses, if it is of this stack.
        let reader = self.sessions.find(&ends, hash).filter(|&it| it != writer)?;
        let hot = self.sessions.store.hot(reader);
        let reads = is_still(hot)
            && hot.state() == State::Established
            && !hot.has(Flags::DETACHED | Flags::READ_SHUTDOWN)
            && hot.receive.nxt == written;
        reads.then_some((writer, reader))
    }

    /// Updates both control blocks after `count` bytes and their acknowledgment.
    fn count_across(&mut self, writer: u32, reader: u32, count: usize) {
        let now_ms = self.common.now_ms;
        let (hot, path) = (
            self.sessions.store.hot(writer),
            self.sessions.store.path(writer),
        );
        let scale = path.scales.receive();
        let (stamp, left) = (hot.timestamps.at(now_ms), hot.receive.left());
        let mut read = self.sessions.access(&mut self.common, reader);
        read.hot.receive.nxt = read.hot.receive.nxt.after(count);
        read.hot.receive.acked = read.hot.receive.nxt;
        read.hot.last_received_ms = now_ms;
        read.hot.timestamps.keep_up(stamp);
        // With the number, the window: an update that is still queued is older now, and ignored.
        let offered = u32::from(field_of(left >> scale)) << scale;
        if offered > read.hot.send.wnd {
            read.cold.window_max = read.cold.window_max.max(offered);
        }
        let (sequence, ack) = (read.hot.receive.nxt, read.hot.send.una);
        read.hot.send.set(offered, sequence, ack);
        let stamp = read.hot.timestamps.at(now_ms);
        let window = u32::from(read.window_field()) << read.path.scales.receive();
        let (hot, path, cold) = self.sessions.store.session(writer);
        hot.send.nxt = hot.send.nxt.after(count);
        hot.send.una = hot.send.nxt;
        hot.send.wnd = window;
        hot.send.wl2 = hot.send.una;
        hot.last_received_ms = now_ms;
        hot.timestamps.keep_up(stamp);
        // Sequence comparisons with these would fail once they are two gigabytes behind.
        path.small_end = hot.send.una;
        cold.flight.restart(hot.send.una);
        self.common.counters.across_bytes += count.to_u64();
    }
}

/// True if a session is quiescent: all data is acknowledged, nothing waits, and no loss recovery is
/// in progress.
fn is_still(hot: &Hot) -> bool {
    matches!(hot.state(), State::Established | State::CloseWait)
        && hot.send.in_flight() == 0
        && hot.tx.len() == 0
        && hot.scoreboard == NONE
        && hot.out_of_order == NONE
        && !hot.has(STIRRED)
        && !hot.ecn.has(EcnState::REDUCED)
}

/// Flags that a quiescent session does not have.
const STIRRED: Flags = Flags::FIN_QUEUED
    .union(Flags::FAILED)
    .union(Flags::RECOVERY)
    .union(Flags::RETRANSMIT_OWED)
    .union(Flags::PACED)
    .union(Flags::SEND_SYN)
    .union(Flags::UNRESOLVED);

//! The send buffer as its application sees it: how much a write may take, and when there is room.
//!
//! Why here: the bounds of unsent data (`TCP_NOTSENT_LOWAT`) and of memory (`SO_SNDBUF`) count
//! whole super-segments, as Linux's do. Source: tcp(7), socket(7).

use super::Session;
use super::cold::Cold;
use crate::buffer::pool::{BUFFER_BYTES_MAX, SHARE_BYTES_MIN};
use crate::state::flags::SendTail;
use crate::state::hot::{Hot, Path};
use sidecore_bare::width::ToUsize;

/// Overhead of each super-segment in a send buffer whose size the application gave as for Linux
/// ([`SendMemory`]). It is not actually used here; applications expect the sizes of Linux, which
/// doubles `SO_SNDBUF` for its overhead (socket(7)) and uses about as much.
///
/// [`SendMemory`]: crate::SessionOption::SendMemory
const PIECE_OVERHEAD_BYTES: usize = 1_280;

/// Windows of data that a session may hold while memory is not ample.
const WINDOWS_HELD: usize = 4;

/// Limits of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Allowance {
    /// Bytes of the write.
    pub(crate) offered: usize,
    /// Bytes that the ring may hold afterwards.
    pub(crate) held_max: usize,
}

/// A session's buffer, for reading.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SendBuffer<'s> {
    pub(crate) hot: &'s Hot,
    pub(crate) path: &'s Path,
    pub(crate) cold: &'s Cold,
}

impl SendBuffer<'_> {
    /// True if an application that found the buffer full is to be notified of room: a third is
    /// free, and less than half of the bound of unsent data is used.
    pub(crate) fn has_room(&self) -> bool {
        let low = self.path.tail.has(SendTail::LOW_WATER);
        self.is_a_third_free()
            && !(low && self.hot.unsent().saturating_mul(2) >= self.cold.unsent_low.to_usize())
    }

    #[inline]
    fn is_a_third_free(&self) -> bool {
        let most = self.path.send_bytes.to_usize();
        let mut bytes = self.hot.tx.len();
        if self.path.tail.has(SendTail::SIZED) {
            bytes = charged_bytes(bytes, self.piece_bytes_max());
        }
        bytes * 3 <= most * 2
    }

    /// The limits of a write of `count` bytes, if the session has bounds; `leaves_now`: bytes that
    /// both windows allow to send now.
    fn allowance(&self, count: usize, leaves_now: usize) -> Allowance {
        let most = self.path.send_bytes.to_usize();
        let unsent = self.hot.unsent();
        let mut offered = count;
        if self.path.tail.has(SendTail::LOW_WATER) {
            let low = self.cold.unsent_low.to_usize();
            // Whole super-segments, the last of which reaches the bound.
            let piece = self.piece_bytes_max();
            let held = unsent.saturating_sub(leaves_now);
            let pieces = low.saturating_sub(held).div_ceil(piece) * piece;
            offered = count.min(leaves_now.saturating_sub(unsent) + pieces);
        }
        if !self.path.tail.has(SendTail::SIZED) {
            return Allowance {
                offered,
                held_max: most,
            };
        }
        // Data that can be sent now makes room; the rest fills whole super-segments.
        let held = self.hot.tx.len() + leaves_now.saturating_sub(unsent);
        let piece = self.piece_bytes_max();
        let free = most.saturating_sub(charged_bytes(held, piece));
        let limit = held + free.div_ceil(piece + PIECE_OVERHEAD_BYTES) * piece;
        Allowance {
            offered,
            held_max: limit.min(BUFFER_BYTES_MAX),
        }
    }

    /// Bytes of the largest super-segment: at most half of the peer's window, as in Linux.
    fn piece_bytes_max(&self) -> usize {
        let mss = usize::from(self.hot.mss).max(1);
        let half = self.cold.window_max.to_usize() / 2;
        let piece = usize::from(self.path.super_bytes).min(half);
        (piece - piece % mss).max(mss)
    }
}

/// Part of a send buffer that `bytes` take, in super-segments of `piece` bytes.
fn charged_bytes(bytes: usize, piece: usize) -> usize {
    bytes + bytes.div_ceil(piece) * PIECE_OVERHEAD_BYTES
}

impl Session<'_> {
    /// Bytes that its send ring may hold while memory is not ample: what the peer takes in some
    /// round trips, and no more than its share. A peer that takes nothing gets the least.
    #[cold]
    pub(crate) fn pressed_send_bytes(&self) -> usize {
        let send = &self.hot.send;
        let taken = send
            .cwnd
            .min(send.wnd)
            .to_usize()
            .saturating_mul(WINDOWS_HELD);
        taken.clamp(SHARE_BYTES_MIN, self.share_bytes())
    }

    /// Bytes that each of its rings may hold while memory is not ample.
    #[cold]
    pub(crate) fn share_bytes(&self) -> usize {
        let (common, path) = (&*self.common, &*self.path);
        common
            .shares
            .bytes(&common.pool, &path.remote, path.local_port)
    }

    /// Its send buffer.
    pub(crate) fn send_buffer(&self) -> SendBuffer<'_> {
        SendBuffer {
            hot: self.hot,
            path: self.path,
            cold: self.cold,
        }
    }

    /// Prepares a write with hints or bounds; `more`: the application announced more,
    /// `ends_record`: a record ends with it.
    #[cold]
    pub(crate) fn before_write(
        &mut self,
        count: usize,
        more: bool,
        ends_record: bool,
    ) -> Allowance {
        let tail = &mut self.path.tail;
        tail.clear(SendTail::FLUSH | SendTail::HELD | SendTail::UNPUSHED);
        if more && !ends_record {
            tail.set(SendTail::HELD | SendTail::UNPUSHED);
        }
        let held_max = self.path.send_bytes.to_usize();
        if ends_record && !self.cold.marks.takes_record_end() {
            return Allowance {
                offered: 0,
                held_max,
            };
        }
        if !self.path.tail.has(SendTail::LOW_WATER | SendTail::SIZED) {
            return Allowance {
                offered: count,
                held_max,
            };
        }
        // Bytes that both windows allow to send now; a segment that a window would truncate waits.
        let mut leaves_now = 0;
        if self.hot.state().is_synchronized() {
            let window = self.hot.send.cwnd.saturating_sub(self.pipe()).to_usize();
            let bytes = window.min(self.hot.send.left());
            leaves_now = bytes - bytes % usize::from(self.hot.mss).max(1);
        }
        self.send_buffer().allowance(count, leaves_now)
    }

    /// Marks the end of the written data; `ends_record`: also as a record's end.
    pub(crate) fn mark_write(&mut self, ends_record: bool) {
        let start = if self.hot.state().is_synchronized() {
            self.hot.send.una
        } else {
            // After our SYN.
            self.cold.iss + 1
        };
        self.path.tail.set(SendTail::MARKED);
        let end = start.after(self.hot.tx.len());
        self.cold.marks.mark(end, ends_record);
    }

    /// Bounds the unsent bytes; `u32::MAX` for no bound.
    pub(crate) fn set_unsent_low(&mut self, bytes: u32) {
        self.cold.unsent_low = bytes;
        if bytes == u32::MAX {
            self.path.tail.clear(SendTail::LOW_WATER);
        } else {
            self.path.tail.set(SendTail::LOW_WATER);
        }
    }
}

//! Undo of a window that was lowered for nothing: what seemed lost was late.
//!
//! The state before a repair is kept until the next. Two things tell that it was needless: an
//! acknowledgment of the first segment that was sent again, but with the timestamp of the first time
//! (the Eifel algorithm, RFC 3522), and reports that the peer had got already all that was sent again
//! (D-SACK, RFC 3708). Then the window and what the congestion control knew are as before (RFC 4015
//! section 3, RFC 9438 section 4.9), and the late ones teach RACK to be patient.

use super::Session;
use super::congestion::Congestion;
use super::sequence::{Range, before, before_or_at};
use crate::buffer::slab::NONE;
use crate::state::hot::flag;

/// What was before the last repair.
#[derive(Debug, Clone, Default)]
pub(crate) struct Undo {
    /// `snd_una` when it began; none where nothing can be undone.
    from: Option<u32>,
    /// The congestion window then, in bytes, and the algorithm's state.
    window: u32,
    congestion: Congestion,
    /// Bytes that were sent again, less those that the peer reported as duplicates.
    resent: u32,
    /// The first segment that was sent again: our timestamp in it, and its end.
    first: Option<(u32, u32)>,
}

impl Undo {
    /// Whether reports of duplicates may yet undo something.
    pub(crate) fn waits(&self) -> bool {
        self.from.is_some() && self.resent > 0
    }
}

impl Session<'_> {
    /// Before the window is lowered for a repair that begins now.
    pub(crate) fn undo_remember(&mut self) {
        let undo = &mut self.cold.undo;
        undo.from = Some(self.hot.snd_una);
        undo.window = self.hot.cwnd;
        undo.congestion.clone_from(&self.cold.congestion);
        undo.resent = 0;
        undo.first = None;
    }

    /// Nothing is left to be undone.
    pub(crate) fn undo_forget(&mut self) {
        self.cold.undo.from = None;
    }

    /// A range goes out again.
    pub(crate) fn undo_resent(&mut self, range: Range, stamp: u32) {
        let undo = &mut self.cold.undo;
        if undo.from.is_some() && self.hot.has(flag::RECOVERY) {
            undo.resent = undo.resent.saturating_add(range.len());
            undo.first.get_or_insert((stamp, range.end));
        }
    }

    /// RFC 3522 section 3.2 step 5: the first acknowledgment of what was sent again first tells by
    /// its echo which of the two it is for.
    pub(crate) fn undo_by_echo(&mut self, ack: u32, echo: Option<u32>) {
        let undo = &mut self.cold.undo;
        let (Some(_), Some((stamp, end))) = (undo.from, undo.first) else {
            return;
        };
        if before(ack, end) || !self.hot.has(flag::RECOVERY) {
            return;
        }
        // Later ones tell nothing: their echo is of the second time, or of something else.
        let late = echo.is_some_and(|echo| before(echo, stamp));
        if late {
            self.undo();
        } else {
            undo.first = Some((stamp.wrapping_sub(STAMP_PAST), end));
        }
    }

    /// RFC 3708 section 2 (A) to (C): the peer reports to have got `range` twice. True if it is of
    /// what was sent again in the last repair.
    pub(crate) fn undo_by_duplicate(&mut self, range: Range) -> bool {
        let undo = &mut self.cold.undo;
        let Some(from) = undo.from else { return false };
        let ours = undo.resent > 0
            && before_or_at(from, range.start)
            && before_or_at(range.end, self.cold.recover);
        if ours {
            undo.resent = undo.resent.saturating_sub(range.len());
            if undo.resent == 0 {
                self.undo();
            }
        }
        ours
    }

    fn undo(&mut self) {
        let undo = &mut self.cold.undo;
        undo.from = None;
        let window = self.hot.cwnd.max(undo.window);
        std::mem::swap(&mut self.cold.congestion, &mut undo.congestion);
        self.cold.rack.reordering = true;
        self.common.counters.undone += 1;
        if self.cold.after_timeout {
            // So it was for the timeout's slow start alone.
            self.hot.clear(flag::CWND_LIMITED);
        }
        if self.hot.has(flag::RECOVERY) {
            // What was given up for lost is under way, until RACK's time for it is over.
            if self.hot.board != NONE {
                self.common.boards.get_mut(self.hot.board).hope();
            }
            self.leave_recovery();
        }
        self.hot.cwnd = window;
        self.make_ready();
    }
}

/// So far back that no echo comes before it.
const STAMP_PAST: u32 = 1 << 30;

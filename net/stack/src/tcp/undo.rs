//! Undo of a spurious recovery: the segments were not lost, only late.
//!
//! The state before a recovery is kept until the next one. Two signals show that it was spurious:
//! an acknowledgment of the first retransmission that echoes the timestamp of the original (the
//! Eifel algorithm, RFC 3522), and reports that the peer had already received all retransmitted
//! data (D-SACK, RFC 3708). Then the window and the state of the congestion control are restored
//! (RFC 4015 section 3, RFC 9438 section 4.9), and RACK adapts to the reordering.

use super::Session;
use crate::buffer::slab::NONE;
use crate::congestion::Congestion;
use crate::state::hot::{EcnFlags, Flags};
use crate::wire::sequence::{Range, before, before_or_at};

/// Congestion state saved on entering recovery; restored when the recovery proves spurious (RFC
/// 4015).
#[derive(Debug, Clone, Default)]
pub(crate) struct Undo {
    /// `snd_una` on entry; none if nothing can be undone.
    from: Option<u32>,
    /// Congestion window on entry, in bytes, and the algorithm's state.
    window: u32,
    /// None before the first recovery.
    congestion: Option<Box<Congestion>>,
    /// Retransmitted bytes, less those that the peer reported as duplicates.
    resent: u32,
    first: FirstRepair,
}

/// The first retransmission of a recovery, for the Eifel detection (RFC 3522 section 3.2), which is
/// evaluated once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum FirstRepair {
    /// Nothing was retransmitted yet.
    #[default]
    Unsent,
    /// Our timestamp in it, and its end.
    Sent { stamp: u32, end: u32 },
    /// Acknowledged, and its echo evaluated. Later echoes belong to other segments.
    Judged,
}

impl Undo {
    /// True while reports of duplicates (D-SACK) could still show the recovery to be spurious.
    pub(crate) fn waits(&self) -> bool {
        self.from.is_some() && self.resent > 0
    }
}

impl Session<'_> {
    /// Saves the congestion state; called on entering recovery, before the window is reduced.
    pub(crate) fn undo_remember(&mut self) {
        let undo = &mut self.cold.undo;
        undo.from = Some(self.hot.snd_una);
        undo.window = self.hot.cwnd;
        match &mut undo.congestion {
            Some(saved) => saved.as_mut().clone_from(&self.cold.congestion),
            None => undo.congestion = Some(Box::new(self.cold.congestion.clone())),
        }
        // Both detections restart: earlier retransmissions belong to a recovery that is over.
        undo.resent = 0;
        undo.first = FirstRepair::Unsent;
    }

    /// Discards the saved state.
    pub(crate) fn undo_forget(&mut self) {
        self.cold.undo.from = None;
    }

    /// Records a retransmission.
    pub(crate) fn undo_resent(&mut self, range: Range, stamp: u32) {
        let undo = &mut self.cold.undo;
        if undo.from.is_some() && self.hot.has(Flags::RECOVERY) {
            undo.resent = undo.resent.saturating_add(range.len());
            if undo.first == FirstRepair::Unsent {
                let end = range.end;
                undo.first = FirstRepair::Sent { stamp, end };
            }
        }
    }

    /// RFC 3522 section 3.2 step 5: the first acknowledgment of the first retransmission shows by
    /// its echo which transmission it belongs to.
    pub(crate) fn undo_by_echo(&mut self, ack: u32, echo: Option<u32>) {
        let undo = &mut self.cold.undo;
        let (Some(_), FirstRepair::Sent { stamp, end }) = (undo.from, undo.first) else {
            return;
        };
        if before(ack, end) || !self.hot.has(Flags::RECOVERY) {
            return;
        }
        undo.first = FirstRepair::Judged;
        if echo.is_some_and(|echo| before(echo, stamp)) {
            self.undo();
        }
    }

    /// RFC 3708 section 2 (A) to (C): the peer reports `range` as a duplicate. True if it was
    /// retransmitted in the last recovery.
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
        // Never below the window that the recovery itself reached.
        let window = self.hot.cwnd.max(undo.window);
        if let Some(saved) = &mut undo.congestion {
            std::mem::swap(&mut self.cold.congestion, saved);
        }
        // The network reorders: from now on RACK waits before it marks a loss.
        self.cold.rack.reordering = true;
        self.common.counters.undone += 1;
        // The peer need not be informed of an undone reduction, and the next signal is a new one.
        self.hot.clear_ecn(EcnFlags::CWR_OWED | EcnFlags::REDUCED);
        if self.cold.after_timeout {
            // It was set only for the slow start after the timeout.
            self.hot.clear(Flags::CWND_LIMITED);
        }
        if self.hot.has(Flags::RECOVERY) {
            // Data that was marked as lost counts as in flight, until RACK's timeout.
            if self.hot.scoreboard != NONE {
                self.common
                    .scoreboards
                    .get_mut(self.hot.scoreboard)
                    .unmark_lost();
            }
            self.leave_recovery();
        }
        // Last, because leaving the recovery sets the window to its threshold.
        self.hot.cwnd = window;
        self.make_ready();
    }
}

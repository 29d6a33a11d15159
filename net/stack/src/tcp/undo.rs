//! Undo of a spurious recovery: the segments were not lost, only late.
//!
//! The state before a recovery is kept until the next one. Two signals show that it was spurious:
//! an acknowledgment of the first retransmission that echoes the timestamp of the original (the
//! Eifel algorithm, RFC 3522), and reports that the peer had already received all retransmitted
//! data (D-SACK, RFC 3708). Then the window and the state of the congestion control are restored
//! (RFC 4015 section 3, RFC 9438 section 4.9), and RACK adapts to the reordering.

use crate::congestion::Congestion;
use crate::timer::before;
use crate::wire::sequence::{Range, Sequence};

/// Congestion state saved on entering recovery; restored when the recovery proves spurious (RFC
/// 4015).
#[derive(Debug, Clone, Default)]
pub(crate) struct Undo {
    /// `send.una` on entry; none if nothing can be undone.
    from: Option<Sequence>,
    /// Congestion window on entry, in bytes, and the algorithm's state.
    window: u32,
    /// None before the first recovery.
    congestion: Option<Box<Congestion>>,
    /// Retransmitted bytes, less those that the peer reported as duplicates.
    resent: u32,
    first: FirstRetransmission,
}

/// The first retransmission of a recovery, for the Eifel detection (RFC 3522 section 3.2), which is
/// evaluated once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum FirstRetransmission {
    /// Nothing was retransmitted yet.
    #[default]
    Unsent,
    /// Our timestamp in it, and its end.
    Sent { stamp: u32, end: Sequence },
    /// Acknowledged, and its echo evaluated. Later echoes belong to other segments.
    Judged,
}

impl Undo {
    /// True while reports of duplicates (D-SACK) could still show the recovery to be spurious.
    pub(crate) fn waits(&self) -> bool {
        self.from.is_some() && self.resent > 0
    }

    /// Saves the congestion state; called on entering recovery, before the window is reduced.
    pub(crate) fn remember(&mut self, una: Sequence, window: u32, congestion: &Congestion) {
        self.from = Some(una);
        self.window = window;
        match &mut self.congestion {
            Some(saved) => saved.as_mut().clone_from(congestion),
            None => self.congestion = Some(Box::new(congestion.clone())),
        }
        // Both detections restart: earlier retransmissions belong to a recovery that is over.
        self.resent = 0;
        self.first = FirstRetransmission::Unsent;
    }

    /// Discards the saved state.
    pub(crate) fn forget(&mut self) {
        self.from = None;
    }

    /// Records a retransmission during recovery; `stamp` is our timestamp in it.
    pub(crate) fn note_resent(&mut self, range: Range, stamp: u32) {
        if self.from.is_none() {
            return;
        }
        self.resent = self.resent.saturating_add(range.len());
        if self.first == FirstRetransmission::Unsent {
            let end = range.end;
            self.first = FirstRetransmission::Sent { stamp, end };
        }
    }

    /// RFC 3522 section 3.2 step 5: the first acknowledgment of the first retransmission shows by
    /// its echo which transmission it belongs to. True if the recovery was spurious.
    pub(crate) fn is_spurious_by_echo(&mut self, ack: Sequence, echo: Option<u32>) -> bool {
        let (Some(_), FirstRetransmission::Sent { stamp, end }) = (self.from, self.first) else {
            return false;
        };
        if ack < end {
            return false;
        }
        self.first = FirstRetransmission::Judged;
        echo.is_some_and(|echo| before(echo, stamp))
    }

    /// RFC 3708 section 2 (A) to (C): the peer reports `range` as a duplicate; `end` is that of the
    /// last recovery.
    pub(crate) fn note_duplicate(&mut self, range: Range, end: Sequence) -> Duplicate {
        let Some(from) = self.from else {
            return Duplicate::Unknown;
        };
        if self.resent == 0 || range.start < from || end < range.end {
            return Duplicate::Unknown;
        }
        self.resent = self.resent.saturating_sub(range.len());
        if self.resent == 0 {
            Duplicate::Last
        } else {
            Duplicate::Retransmission
        }
    }

    /// Restores the state of the congestion control, and returns the window before the recovery.
    pub(crate) fn restore(&mut self, congestion: &mut Congestion) -> u32 {
        self.from = None;
        if let Some(saved) = &mut self.congestion {
            std::mem::swap(congestion, saved);
        }
        self.window
    }
}

/// Meaning of a reported duplicate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Duplicate {
    /// Not of data that was retransmitted in the last recovery.
    Unknown,
    /// Of a retransmission.
    Retransmission,
    /// Of the last retransmission without one: all were unnecessary, and the recovery spurious.
    Last,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::congestion::{Algorithm, Control};

    fn entered() -> (Undo, Congestion, Sequence) {
        let (mut undo, una) = (Undo::default(), Sequence::new(u32::MAX));
        let mut congestion = Congestion::new(Algorithm::Reno);
        undo.remember(una, 20_000, &congestion);
        congestion.on_loss(20_000, 20_000, 1_000, 0);
        (undo, congestion, una)
    }

    fn range(start: Sequence, len: u32) -> Range {
        Range {
            start,
            end: start + len,
        }
    }

    #[test]
    fn reports_of_all_retransmissions_restore_the_window() {
        let (mut undo, mut congestion, una) = entered();
        assert!(!undo.waits());
        undo.note_resent(range(una, 1_000), 5);
        undo.note_resent(range(una + 1_000, 1_000), 5);
        let end = una + 9_000;
        assert_eq!(
            undo.note_duplicate(range(una - 1, 1), end),
            Duplicate::Unknown
        );
        assert_eq!(
            undo.note_duplicate(range(una, 1_000), end),
            Duplicate::Retransmission
        );
        assert_eq!(
            undo.note_duplicate(range(una + 1_000, 1_000), end),
            Duplicate::Last
        );
        assert_eq!(congestion.threshold(), 10_000);
        assert_eq!(undo.restore(&mut congestion), 20_000);
        assert_eq!((congestion.threshold(), undo.waits()), (u32::MAX, false));
    }

    #[test]
    fn the_echo_of_the_first_retransmission_is_judged_once() {
        let (mut undo, _, una) = entered();
        undo.note_resent(range(una, 1_000), 5);
        assert!(
            !undo.is_spurious_by_echo(una + 999, Some(4)),
            "not acknowledged yet"
        );
        assert!(!undo.is_spurious_by_echo(una + 1_000, Some(5)), "its own");
        assert!(
            !undo.is_spurious_by_echo(una + 1_000, Some(4)),
            "of another segment"
        );
        let (mut undo, _, una) = entered();
        undo.note_resent(range(una, 1_000), 5);
        assert!(undo.is_spurious_by_echo(una + 1_000, Some(4)));
        undo.forget();
        assert!(!undo.is_spurious_by_echo(una + 1_000, Some(4)));
    }
}

//! Accurate ECN: reports the number of marked packets, not only that there were some.
//!
//! Why here: the echo of RFC 3168 gives one signal per round trip. Here three bits of each segment
//! (ACE: the flags AE, CWR and ECE) are the low bits of a free-running counter of marked packets,
//! so that a sender learns of each mark, even after a reduction. A session's reaction is the same
//! as in [`super`]: one reduction in a window of data.
//! Must stay true: both ends count from 5; the first negotiated mode stays; marks are counted and
//! reported even if none of our packets may be marked; an overtaken segment reports nothing. The
//! option with byte counters (section 3.2.3) is neither sent nor parsed.
//! Source: RFC 9768, whose sections are named below.

use super::{ASKS, ASKS_CLASSIC, Opening, TAKES_CLASSIC};
use super::{Ecn, Noted, Side};
use crate::state::ecn::EcnState;
use crate::state::hot::State;
use crate::timer::before;
use crate::wire::ip::Codepoint;
use crate::wire::sequence::Sequence;
use crate::wire::tcp::{ACK, FIN, SYN, Segment};

/// ACE of a SYN-ACK or final ACK if the SYN or SYN-ACK was marked: tables 2 and 3.
const SAYS_MARKED: u8 = 0b110;
/// Both counters start here, so that a cleared field does not look like a counter: section 3.2.1.
const FIRST: u32 = 5;
/// SYNs, or SYN-ACKs, of one session that ask for or accept accurate ECN: sections 3.1.4.1 and
/// 3.2.3.2.2 require a second attempt before a fallback.
const ATTEMPTS: u8 = 2;
/// Marks after which an acknowledgment is sent, with data to acknowledge and without: section
/// 3.2.2.5.1.
const MARKS_WITH_DATA: u32 = 2;
const MARKS_WITHOUT: u32 = 3;
/// All packets, as a share of marked ones.
const ALL: u32 = 256;
/// Weight of one acknowledgment in the share of marked packets, as a fraction of one.
const WEIGHT: u32 = 8;

/// The part of a session's ECN that its usual segments do not need: the counters of accurate ECN,
/// and the end of the reduced window of data.
#[derive(Debug, Clone)]
pub(crate) struct EcnCounters {
    /// End of the window of data for which the window was last reduced; valid while
    /// [`EcnState::REDUCED`] is set.
    pub(super) reduced_until: Sequence,
    /// Marked packets received: r.cep.
    received: u32,
    /// Of these, packets that no acknowledgment has reported yet.
    unreported: u32,
    /// Marked packets of ours, as reported by the peer: s.cep.
    reported: u32,
    /// Share of recently marked packets, in units of 1 / [`ALL`].
    marking: u32,
    /// ECN field of the peer's last SYN or SYN-ACK, which the reply echoes.
    opening: Codepoint,
    /// The peer reports nothing, or nothing credible: table 4, note 1.
    distrusted: bool,
    /// Timestamp of the last segment with a report.
    stamp: u32,
}

impl Default for EcnCounters {
    fn default() -> Self {
        Self {
            reduced_until: Sequence::default(),
            received: FIRST,
            unreported: 0,
            reported: FIRST,
            marking: 0,
            opening: Codepoint::NotEct,
            distrusted: false,
            stamp: 0,
        }
    }
}

/// Form of ECN that both ends use: section 3.1.2, table 2, its last column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    None,
    Classic,
    Accurate,
}

impl Mode {
    /// The mode that a SYN leads to at a host with accurate ECN.
    fn asked(bits: u8) -> Self {
        match bits {
            0 => Self::None,
            ASKS_CLASSIC => Self::Classic,
            // Section 3.1.3: other values are reserved for the future, and request at least this.
            _ => Self::Accurate,
        }
    }

    /// The mode that the reply to a SYN with all three flags leads to.
    fn answered(bits: u8) -> Self {
        match bits {
            TAKES_CLASSIC => Self::Classic,
            // 101 is reserved, and counts as acceptance (section 3.1.3).
            0b010..=0b110 => Self::Accurate,
            // 111 is from a host that copies reserved bits.
            _ => Self::None,
        }
    }
}

/// The flags that report an ECN field: tables 2 and 3.
pub(crate) fn echo_of(codepoint: Codepoint) -> u8 {
    match codepoint {
        Codepoint::NotEct => 0b010,
        Codepoint::Ect1 => 0b011,
        Codepoint::Ect0 => 0b100,
        Codepoint::Ce => SAYS_MARKED,
    }
}

/// True if `bits` report an ECN field that the SYN or SYN-ACK was not sent with: ours are never
/// ECN-capable, and must not become so in transit (section 3.2.2.3).
fn is_mangled(bits: u8) -> bool {
    matches!(bits, 0b011 | 0b100 | SAYS_MARKED)
}

/// The flags of a SYN that was answered without keeping state, reconstructed from the final ACK:
/// section 5.1. Accurate ECN never begins with the two lowest values.
pub(crate) fn asked_by(final_ack: &Segment<'_>) -> Option<u8> {
    (final_ack.ace() > TAKES_CLASSIC).then_some(ASKS)
}

impl Ecn<'_> {
    /// [`Ecn::agree`] where accurate ECN is configured.
    pub(super) fn agree_accurately(&mut self, side: Side, opening: Opening) -> u32 {
        let mode = if opening.answer {
            Mode::answered(opening.bits)
        } else {
            Mode::asked(opening.bits)
        };
        if mode == Mode::None {
            return 0;
        }
        self.state.set(EcnState::NEGOTIATED);
        // One of our SYNs asked and a later one did not. A client that gets an accurate ECN reply
        // knows the server's mode, and may use it (section 3.1.5); others do not.
        let asked_no_more = side.state == State::SynSent && side.retries >= ATTEMPTS;
        if asked_no_more && !(opening.answer && mode == Mode::Accurate) {
            self.state.set(EcnState::NO_ECT);
        }
        if mode != Mode::Accurate {
            return 0;
        }
        self.state.set(EcnState::ACCURATE);
        self.counters.opening = opening.codepoint;
        self.state.set_ace(self.counters.received);
        if !opening.answer {
            return 0;
        }
        let marks = self.take_answer(opening);
        self.state.set(EcnState::OPENING);
        marks
    }

    /// Learns from a SYN-ACK how our SYN arrived, and its own mark; returns the number of marks.
    fn take_answer(&mut self, opening: Opening) -> u32 {
        if is_mangled(opening.bits) {
            self.state.set(EcnState::NO_ECT);
        }
        self.count_opening(opening)
    }

    /// The mark of a SYN-ACK. Section 3.2.2.2: counted once, because the server counts it once.
    fn count_opening(&mut self, opening: Opening) -> u32 {
        if opening.codepoint != Codepoint::Ce || self.counters.received != FIRST {
            return 0;
        }
        self.count_marks(1);
        1
    }

    /// The three flags of our SYN, or of our SYN-ACK in accurate ECN.
    pub(super) fn accurate_setup(&mut self, side: Side) -> u8 {
        if side.retries >= ATTEMPTS {
            // A middlebox may drop SYNs that ask for it.
            if side.state != State::SynSent {
                // Section 3.1.5: the client may have accepted this reply, or an earlier one.
                self.state.set(EcnState::NO_ECT);
            }
            return 0;
        }
        match side.state {
            State::SynSent => ASKS,
            _ => echo_of(self.counters.opening),
        }
    }

    /// [`Ecn::agree_again`] where accurate ECN is configured; false if the session must be refused.
    pub(super) fn agree_accurately_again(&mut self, opening: Opening) -> bool {
        if !self.state.is_negotiated() {
            return true;
        }
        let mode = Mode::asked(opening.bits);
        let first = if self.state.is_accurate() {
            Mode::Accurate
        } else {
            Mode::Classic
        };
        if mode == Mode::None {
            // Section 3.1.5: the mode stays, but the client's interpretation is unknown.
            self.state.set(EcnState::NO_ECT);
        } else if mode != first {
            // The two ends could end up in different modes without noticing.
            return false;
        }
        self.counters.opening = opening.codepoint;
        true
    }

    /// The SYN-ACK that crossed ours: the mode is that of the SYNs (section 3.1.2).
    pub(super) fn agree_accurately_at_once(&mut self, opening: Opening) -> u32 {
        if Mode::answered(opening.bits) != Mode::Accurate {
            self.state.set(EcnState::NO_ECT);
        }
        self.take_answer(opening)
    }

    /// Another SYN-ACK like the one that opened this session: its reply belongs to the handshake,
    /// too (section 3.2.2.1). Returns the number of marks that it reports.
    #[cold]
    pub(crate) fn opened_again(&mut self, segment: &Segment<'_>, irs: Sequence) -> u32 {
        let opening = Opening::of(segment);
        if !self.state.is_accurate()
            || segment.sequence != irs
            || !opening.answer
            || Mode::answered(opening.bits) != Mode::Accurate
        {
            return 0;
        }
        self.counters.opening = opening.codepoint;
        self.state.set(EcnState::OPENING);
        self.count_opening(opening)
    }

    /// The acknowledgment of our SYN-ACK (table 4); true if it reports that the SYN-ACK was marked.
    pub(crate) fn take_final_ack(&mut self, segment: &Segment<'_>) -> bool {
        let bare = segment.is_empty() && segment.options.block_count == 0;
        if !self.state.is_accurate() || segment.has(SYN) || !bare {
            return false;
        }
        let bits = segment.ace();
        if bits == 0 {
            // Note 1: the peer is in no such mode, or its flags are lost on the path.
            self.state.set(EcnState::NO_ECT);
            self.counters.distrusted = true;
        }
        if is_mangled(bits) {
            self.state.set(EcnState::NO_ECT);
        }
        if bits == SAYS_MARKED {
            self.counters.reported = FIRST + 1;
        }
        bits == SAYS_MARKED
    }

    /// True if `bits` report that our SYN, or our SYN-ACK, was marked (section 3.2.2.2).
    pub(crate) fn is_opening_marked(&self, bits: u8) -> bool {
        self.state.is_accurate() && bits == SAYS_MARKED
    }

    /// The three flags of an outgoing segment other than a SYN; `bare`: a pure acknowledgment
    /// without SACK blocks.
    #[inline]
    pub(super) fn accurate_flags(&self, bare: bool) -> u8 {
        if bare && self.state.has(EcnState::OPENING) {
            // Section 3.2.2.1.
            return echo_of(self.counters.opening);
        }
        self.state.ace()
    }

    /// A segment was sent, and has reported all marks.
    #[inline]
    pub(super) fn marks_reported(&mut self, bare: bool) {
        self.counters.unreported = 0;
        if bare {
            self.state.clear(EcnState::OPENING);
        }
    }

    fn count_marks(&mut self, packets: u32) {
        self.counters.received = self.counters.received.wrapping_add(packets);
        self.counters.unreported = self.counters.unreported.saturating_add(packets);
        self.state.set_ace(self.counters.received);
    }

    /// An acceptable segment was received in accurate ECN, with data or without: section 3.2.
    /// `owed`: an acknowledgment is owed already.
    pub(crate) fn note_accurate(&mut self, segment: &Segment<'_>, mss: u16, owed: bool) -> Noted {
        let has_data = !segment.payload.is_empty();
        if has_data && segment.ecn != Codepoint::NotEct {
            self.state.set(EcnState::ECT_SEEN);
        }
        if segment.ecn != Codepoint::Ce {
            self.state.clear(EcnState::CE_LAST);
            return Noted::default();
        }
        let after_another = self.state.has(EcnState::CE_LAST);
        self.state.set(EcnState::CE_LAST);
        // A merged segment was marked packet by packet; the packets are not larger than ours.
        let packets = segment.payload.len().div_ceil(usize::from(mss.max(1)));
        let marks = u32::try_from(packets.max(1)).unwrap_or(u32::MAX);
        self.count_marks(marks);
        // Section 3.2.2.5.1. Packets of one batch are one event, and get one reply.
        let most = if has_data || owed {
            MARKS_WITH_DATA
        } else {
            MARKS_WITHOUT
        };
        Noted {
            marks,
            acknowledge: has_data && !after_another || self.counters.unreported >= most,
        }
    }

    /// True if a segment's counter differs from the last one, and is credible.
    pub(super) fn is_reported(&self, segment: &Segment<'_>, iss: Sequence) -> bool {
        !self.counters.distrusted
            && !segment.has(SYN)
            && self.counters.advance(segment) != 0
            && !is_of_handshake(segment, iss)
    }

    /// Processes the counter of a segment after its acknowledgment: section 3.2.2.2. Returns the
    /// number of our packets that were marked.
    pub(crate) fn take_reported(&mut self, segment: &Segment<'_>, report: Report) -> u32 {
        if self.counters.distrusted || segment.has(SYN) || is_of_handshake(segment, report.iss) {
            return 0;
        }
        // Appendix A.1: it acknowledges more, or is later than the last report. A data segment is
        // later if its window was accepted.
        let later = report.delivered > 0
            || report
                .stamp
                .is_some_and(|value| before(self.counters.stamp, value))
            || !segment.payload.is_empty() && report.has_newest_window;
        if !later {
            return 0;
        }
        if let Some(value) = report.stamp {
            self.counters.stamp = value;
        }
        let packets = report.delivered.div_ceil(u32::from(report.mss.max(1)));
        self.counters.take(self.counters.advance(segment), packets)
    }
}

/// Further fields of a segment that reports marks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Report {
    /// Our initial sequence number.
    pub(crate) iss: Sequence,
    /// Bytes that it newly delivers.
    pub(crate) delivered: u32,
    /// Its timestamp, if the option was negotiated.
    pub(crate) stamp: Option<u32>,
    /// Its window was accepted.
    pub(crate) has_newest_window: bool,
    /// Payload bytes of a full packet of ours.
    pub(crate) mss: u16,
}

/// True if the segment may have the handshake's encoding of the three flags (section 3.2.2.1), late
/// or repeated: as long as only our SYN has arrived, a pure acknowledgment has nothing else to
/// report.
fn is_of_handshake(segment: &Segment<'_>, iss: Sequence) -> bool {
    segment.acknowledgment == iss + 1 && segment.is_empty() && segment.options.block_count == 0
}

impl EcnCounters {
    /// Marked packets that an acknowledgment of `packets` reports, if its three bits have advanced
    /// by `least`: appendix A.2.1. The counter may have wrapped unnoticed. The safest case assumes
    /// that all were marked, which would find marks in each acknowledgment of eight packets; here
    /// the recent share is assumed (the appendix's `newlyAckedPktHeur`).
    fn likely(&self, least: u32, packets: u32) -> u32 {
        let likely = (packets * self.marking).div_ceil(ALL);
        if likely > least {
            likely - (likely - least) % 8
        } else {
            // The counter is right and the packets were smaller: section 3.2.2.5.2.
            least
        }
    }

    fn note_marking(&mut self, marked: u32, packets: u32) {
        if packets == 0 {
            return;
        }
        let share = (marked * ALL / packets).min(ALL);
        let before = self.marking;
        // Rounded so that it decays to zero.
        self.marking = before - before.div_ceil(WEIGHT) + share.div_ceil(WEIGHT);
    }

    /// Takes the report of an acknowledgment of `packets`, whose three bits have advanced by
    /// `least`; returns the number of marks.
    fn take(&mut self, least: u32, packets: u32) -> u32 {
        let marked = self.likely(least, packets);
        self.reported = self.reported.wrapping_add(marked);
        self.note_marking(marked, packets);
        marked
    }

    /// Advance of a segment's three bits since the last report.
    #[inline]
    fn advance(&self, segment: &Segment<'_>) -> u32 {
        u32::from(segment.ace()).wrapping_sub(self.reported) & 7
    }

    /// True if the segment reports nothing, and no conclusion may be drawn from that.
    #[inline]
    pub(super) fn is_quiet(&self, segment: &Segment<'_>) -> bool {
        self.advance(segment) == 0 && self.marking == 0
    }
}

/// True if the sent frame is the pure acknowledgment of section 3.2.2.1.
#[inline]
pub(crate) fn is_bare(flags: u8, len: usize, blocks: usize) -> bool {
    len == 0 && blocks == 0 && flags & (SYN | FIN | ACK) == ACK
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lately(marking: u32) -> EcnCounters {
        EcnCounters {
            marking,
            ..EcnCounters::default()
        }
    }

    /// The examples of appendix A.2.1, with all packets marked.
    #[test]
    fn the_counter_may_have_gone_round() {
        assert_eq!(lately(256).likely(2, 9), 2);
        assert_eq!(lately(256).likely(2, 10), 10);
        assert_eq!(lately(256).likely(0, 8), 8);
        assert_eq!(lately(256).likely(7, 3), 7);
        assert_eq!(lately(128).likely(2, 19), 10);
        assert_eq!(lately(0).likely(0, 44), 0);
        assert_eq!(lately(0).likely(3, 44), 3);
    }

    #[test]
    fn the_share_of_marks_follows_them_and_comes_to_nothing() {
        let mut counters = EcnCounters::default();
        for _ in 0..60 {
            counters.note_marking(4, 4);
        }
        assert!(counters.marking > 240, "{}", counters.marking);
        assert!(counters.likely(0, 32) >= 24);
        for _ in 0..60 {
            counters.note_marking(0, 2);
        }
        assert_eq!(counters.marking, 0);
    }

    #[test]
    fn flags_are_read_as_tables_2_and_4_have_them() {
        let modes = [0, 1, 2, 3, 4, 5, 6, 7].map(Mode::answered);
        let (none, classic, accurate) = (Mode::None, Mode::Classic, Mode::Accurate);
        let expected = [
            none, classic, accurate, accurate, accurate, accurate, accurate, none,
        ];
        assert_eq!(modes, expected);
        let modes = [0, 1, 2, 3, 4, 5, 6, 7].map(Mode::asked);
        let expected = [
            none, accurate, accurate, classic, accurate, accurate, accurate, accurate,
        ];
        assert_eq!(modes, expected);
    }
}

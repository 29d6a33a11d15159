//! Accurate ECN: reports the number of marked packets, not only that there were some.
//!
//! Why here: the echo of RFC 3168 gives one signal per round trip. Here three bits of each segment
//! (ACE: the flags AE, CWR and ECE) are the low bits of a free-running counter of marked packets,
//! so that a sender learns of each mark, even after a reduction. A session's reaction is the same
//! as in [`super::ecn`]: one reduction in a window of data.
//! Must stay true: both ends count from 5; the first negotiated mode stays; marks are counted and
//! reported even if none of our packets may be marked; an overtaken segment reports nothing. The
//! option with byte counters (section 3.2.3) is neither sent nor parsed.
//! Source: RFC 9768, whose sections are named below.

use super::Session;
use super::opening::{ASKS, ASKS_CLASSIC, Opening, TAKES_CLASSIC};
use crate::buffer::slab::NONE;
use crate::error::SessionError;
use crate::state::hot::{EcnFlags, Flags, Path, State};
use crate::wire::ip::Codepoint;
use crate::wire::sequence::before;
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

/// A session's state of accurate ECN.
#[derive(Debug, Clone)]
pub(crate) struct Accurate {
    /// Marked packets received: r.cep.
    received: u32,
    /// Of these, packets that no acknowledgment has reported yet.
    untold: u32,
    /// Marked packets of ours, as reported by the peer: s.cep.
    reported: u32,
    /// Share of recently marked packets, in units of 1 / [`ALL`].
    marking: u16,
    /// ECN field of the peer's last SYN or SYN-ACK, which the reply echoes.
    opening: Codepoint,
    /// The peer reports nothing, or nothing credible: table 4, note 1.
    unheeded: bool,
    /// Timestamp of the last segment with a report.
    stamp: u32,
}

impl Default for Accurate {
    fn default() -> Self {
        Self {
            received: FIRST,
            untold: 0,
            reported: FIRST,
            marking: 0,
            opening: Codepoint::NotEct,
            unheeded: false,
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

impl Session<'_> {
    /// True if the session's ECN is accurate.
    #[inline]
    pub(crate) fn is_accurate(&self) -> bool {
        self.path.ecn & Path::ACCURATE != 0
    }

    /// [`Session::agree_ecn`] where accurate ECN is configured.
    pub(crate) fn agree_accurately(&mut self, opening: Opening) {
        let mode = if opening.answer {
            Mode::answered(opening.bits)
        } else {
            Mode::asked(opening.bits)
        };
        if mode == Mode::None {
            return;
        }
        self.hot.set_ecn(EcnFlags::NEGOTIATED);
        // One of our SYNs asked and a later one did not. A client that gets an accurate ECN reply
        // knows the server's mode, and may use it (section 3.1.5); others do not.
        let asked_no_more = self.hot.state() == State::SynSent && self.path.retries >= ATTEMPTS;
        if asked_no_more && !(opening.answer && mode == Mode::Accurate) {
            self.path.ecn |= Path::NO_ECT;
        }
        if mode != Mode::Accurate {
            return;
        }
        self.path.ecn |= Path::ACCURATE;
        self.cold.accurate.opening = opening.codepoint;
        self.tell_marks();
        if opening.answer {
            self.take_answer(opening);
            self.path.ecn |= Path::OPENING;
        }
    }

    /// Learns from a SYN-ACK how our SYN arrived, and its own mark.
    fn take_answer(&mut self, opening: Opening) {
        if is_mangled(opening.bits) {
            self.path.ecn |= Path::NO_ECT;
        }
        // Section 3.2.2.2: counted once, because the server counts it once.
        if opening.codepoint == Codepoint::Ce && self.cold.accurate.received == FIRST {
            self.count_marks(1);
        }
    }

    /// The three flags of our SYN, or of our SYN-ACK in accurate ECN.
    pub(crate) fn accurate_setup(&mut self) -> u8 {
        if self.path.retries >= ATTEMPTS {
            // A middlebox may drop SYNs that ask for it.
            if self.hot.state() != State::SynSent {
                // Section 3.1.5: the client may have accepted this reply, or an earlier one.
                self.path.ecn |= Path::NO_ECT;
            }
            return 0;
        }
        match self.hot.state() {
            State::SynSent => ASKS,
            _ => echo_of(self.cold.accurate.opening),
        }
    }

    /// [`Session::agree_ecn_again`] where accurate ECN is configured; false if the session is over.
    pub(crate) fn agree_accurately_again(&mut self, opening: Opening) -> bool {
        if !self.hot.has_ecn(EcnFlags::NEGOTIATED) {
            return true;
        }
        let mode = Mode::asked(opening.bits);
        let first = if self.is_accurate() {
            Mode::Accurate
        } else {
            Mode::Classic
        };
        if mode == Mode::None {
            // Section 3.1.5: the mode stays, but the client's interpretation is unknown.
            self.path.ecn |= Path::NO_ECT;
        } else if mode != first {
            // The two ends could end up in different modes without noticing.
            self.reset(Some(SessionError::Refused));
            return false;
        }
        self.cold.accurate.opening = opening.codepoint;
        true
    }

    /// The SYN-ACK that crossed ours: the mode is that of the SYNs (section 3.1.2).
    pub(crate) fn agree_accurately_at_once(&mut self, opening: Opening) {
        if Mode::answered(opening.bits) != Mode::Accurate {
            self.path.ecn |= Path::NO_ECT;
        }
        self.take_answer(opening);
    }

    /// Another SYN-ACK like the one that opened this session: its reply belongs to the handshake,
    /// too (section 3.2.2.1).
    #[cold]
    pub(crate) fn opened_again(&mut self, segment: &Segment<'_>) {
        let opening = Opening::of(segment);
        if !self.is_accurate()
            || segment.sequence != self.cold.irs
            || !opening.answer
            || Mode::answered(opening.bits) != Mode::Accurate
        {
            return;
        }
        self.cold.accurate.opening = opening.codepoint;
        if opening.codepoint == Codepoint::Ce && self.cold.accurate.received == FIRST {
            self.count_marks(1);
        }
        self.path.ecn |= Path::OPENING;
    }

    /// The acknowledgment of our SYN-ACK (table 4); true if it reports that the SYN-ACK was marked.
    pub(crate) fn take_final_ack(&mut self, segment: &Segment<'_>) -> bool {
        let bare = segment.is_empty() && segment.options.block_count == 0;
        if !self.is_accurate() || segment.has(SYN) || !bare {
            return false;
        }
        let bits = segment.ace();
        if bits == 0 {
            // Note 1: the peer is in no such mode, or its flags are lost on the path.
            self.path.ecn |= Path::NO_ECT;
            self.cold.accurate.unheeded = true;
        }
        if is_mangled(bits) {
            self.path.ecn |= Path::NO_ECT;
        }
        if bits == SAYS_MARKED {
            self.cold.accurate.reported = FIRST + 1;
        }
        bits == SAYS_MARKED
    }

    /// Our SYN, or our SYN-ACK, was marked (section 3.2.2.2): the first window is reduced like any
    /// other.
    pub(crate) fn opening_marked(&mut self, bits: u8) {
        if self.is_accurate() && bits == SAYS_MARKED {
            self.reduce_by_echo(self.hot.cwnd, self.hot.cwnd);
        }
    }

    /// The three flags of an outgoing segment other than a SYN; `bare`: a pure acknowledgment
    /// without SACK blocks.
    #[inline]
    pub(crate) fn accurate_flags(&self, bare: bool) -> u8 {
        if bare && self.path.ecn & Path::OPENING != 0 {
            // Section 3.2.2.1.
            return echo_of(self.cold.accurate.opening);
        }
        self.path.ecn >> Path::ACE_SHIFT
    }

    /// A segment was sent, and has reported all marks.
    #[inline]
    pub(crate) fn marks_told(&mut self, bare: bool) {
        self.cold.accurate.untold = 0;
        if bare {
            self.path.ecn &= !Path::OPENING;
        }
    }

    /// Stores the low bits of the counter where each outgoing segment reads them.
    fn tell_marks(&mut self) {
        let ace = self.cold.accurate.received as u8 & 7;
        let others = self.path.ecn & !(7 << Path::ACE_SHIFT);
        self.path.ecn = others | ace << Path::ACE_SHIFT;
    }

    fn count_marks(&mut self, packets: u32) {
        let accurate = &mut self.cold.accurate;
        accurate.received = accurate.received.wrapping_add(packets);
        accurate.untold = accurate.untold.saturating_add(packets);
        self.common.counters.ecn_ce_received += u64::from(packets);
        self.tell_marks();
    }

    /// An acceptable segment was received, with data or without: section 3.2.
    pub(crate) fn note_accurate_ecn(&mut self, segment: &Segment<'_>) {
        let has_data = !segment.payload.is_empty();
        if has_data && segment.ecn != Codepoint::NotEct {
            self.path.ecn |= Path::ECT_SEEN;
        }
        if segment.ecn != Codepoint::Ce {
            self.path.ecn &= !Path::CE_LAST;
            return;
        }
        let after_another = self.path.ecn & Path::CE_LAST != 0;
        self.path.ecn |= Path::CE_LAST;
        // A merged segment was marked packet by packet; the packets are not larger than ours.
        let mss = usize::from(self.hot.mss.max(1));
        self.count_marks(segment.payload.len().div_ceil(mss).max(1) as u32);
        // Section 3.2.2.5.1. Packets of one batch are one event, and get one reply.
        let owed = has_data || self.hot.has(Flags::ACK_LATER | Flags::ACK_NOW);
        let most = if owed { MARKS_WITH_DATA } else { MARKS_WITHOUT };
        if has_data && !after_another || self.cold.accurate.untold >= most {
            self.acknowledge_now();
        }
    }

    /// True if a segment's counter differs from the last one, and is credible.
    pub(crate) fn is_reported(&self, segment: &Segment<'_>) -> bool {
        let accurate = &self.cold.accurate;
        !accurate.unheeded
            && !segment.has(SYN)
            && segment.ace() != accurate.reported as u8 & 7
            && !self.is_of_handshake(segment)
    }

    /// True if the segment may have the handshake's encoding of the three flags (section 3.2.2.1),
    /// late or repeated: as long as only our SYN has arrived, a pure acknowledgment has nothing
    /// else to report.
    fn is_of_handshake(&self, segment: &Segment<'_>) -> bool {
        segment.acknowledgment == self.cold.iss.wrapping_add(1)
            && segment.is_empty()
            && segment.options.block_count == 0
    }

    /// [`Session::delivered`], if ECN is accurate.
    #[inline]
    pub(crate) fn delivered_if_accurate(&self) -> Option<u32> {
        self.is_accurate().then(|| self.delivered())
    }

    /// End of the data reported as delivered, minus its holes: compared before and after an
    /// acknowledgment.
    fn delivered(&self) -> u32 {
        let mut end = self.hot.snd_una;
        if self.hot.scoreboard != NONE {
            let scoreboard = self.common.scoreboards.get(self.hot.scoreboard);
            end = end.wrapping_add(scoreboard.sacked_bytes);
        }
        end
    }

    /// Processes the counter of a segment after its acknowledgment: section 3.2.2.2. `delivered` is
    /// [`Session::delivered`] before that. True if packets of ours were marked.
    pub(crate) fn take_reported(&mut self, segment: &Segment<'_>, delivered: u32) -> bool {
        if self.cold.accurate.unheeded || segment.has(SYN) || self.is_of_handshake(segment) {
            return false;
        }
        // Data that SACK reported and the peer reneged on (RFC 2018 section 8) is negative.
        let newly = (self.delivered().wrapping_sub(delivered) as i32).max(0) as u32;
        let stamps = segment.options.timestamps;
        let stamp = stamps.filter(|_| self.hot.has(Flags::TIMESTAMPS));
        let stamp = stamp.map(|(value, _)| value);
        let accurate = &mut self.cold.accurate;
        // Appendix A.1: it acknowledges more, or is later than the last report. A data segment is
        // later if its window was accepted.
        let later = newly > 0
            || stamp.is_some_and(|value| before(accurate.stamp, value))
            || !segment.payload.is_empty() && self.hot.snd_wl1 == segment.sequence;
        if !later {
            return false;
        }
        if let Some(value) = stamp {
            accurate.stamp = value;
        }
        let least = u32::from(segment.ace().wrapping_sub(accurate.reported as u8) & 7);
        let packets = newly.div_ceil(u32::from(self.hot.mss.max(1)));
        let marked = accurate.likely(least, packets);
        accurate.reported = accurate.reported.wrapping_add(marked);
        accurate.note_marking(marked, packets);
        self.common.counters.accurate_ecn_reported += u64::from(marked);
        marked > 0
    }
}

impl Accurate {
    /// Marked packets that an acknowledgment of `packets` reports, if its three bits have advanced
    /// by `least`: appendix A.2.1. The counter may have wrapped unnoticed. The safest case assumes
    /// that all were marked, which would find marks in each acknowledgment of eight packets; here
    /// the recent share is assumed (the appendix's `newlyAckedPktHeur`).
    fn likely(&self, least: u32, packets: u32) -> u32 {
        let likely = (packets * u32::from(self.marking)).div_ceil(ALL);
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
        let before = u32::from(self.marking);
        // Rounded so that it decays to zero.
        self.marking = (before - before.div_ceil(WEIGHT) + share.div_ceil(WEIGHT)) as u16;
    }

    /// True if the segment reports nothing, and no conclusion may be drawn from that.
    #[inline]
    pub(crate) fn is_quiet(&self, segment: &Segment<'_>) -> bool {
        segment.ace() == self.reported as u8 & 7 && self.marking == 0
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

    fn lately(marking: u16) -> Accurate {
        Accurate {
            marking,
            ..Accurate::default()
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
        let mut accurate = Accurate::default();
        for _ in 0..60 {
            accurate.note_marking(4, 4);
        }
        assert!(accurate.marking > 240, "{}", accurate.marking);
        assert!(accurate.likely(0, 32) >= 24);
        for _ in 0..60 {
            accurate.note_marking(0, 2);
        }
        assert_eq!(accurate.marking, 0);
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

//! Compares two runs of one case, and checks the traffic of each.
//!
//! The checked rules are those that every stack must follow, given the packets that it has received
//! so far; the kernel's ends are checked by the same rules, to detect a rule that no stack follows.
//! Source: RFC 9293 sections 3.4 and 3.8.6, RFC 2018, RFC 2883, RFC 7323, RFC 6691.

use super::case::{Case, Kind};
use super::segment::{ACK, FIN, RST, SYN, Segment, before};
use super::wire::{DROPPED, Flow};
use super::{PAIRINGS, Pairing, Run};
use std::collections::HashSet;

/// All violations; empty if there are none.
pub(crate) fn judge(case: &Case, runs: &[Run; 3]) -> Vec<String> {
    let mut wrong = Vec::new();
    for (run, pairing) in runs.iter().zip(PAIRINGS) {
        for side in 0..2 {
            let name = ["client", "server"][side];
            if run.logs[side] != runs[0].logs[side] {
                wrong.push(format!(
                    "{pairing:?}: the {name} saw {:?}; between kernels {:?}",
                    run.logs[side], runs[0].logs[side]
                ));
            }
            let ours = match pairing {
                Pairing::Kernels => false,
                Pairing::OursServes => side == 1,
                Pairing::OursConnects => side == 0,
            };
            let mut end = End {
                ours,
                ..End::default()
            };
            for complaint in end.follow(&run.flow, side) {
                wrong.push(format!("{pairing:?}: the {name}: {complaint}"));
            }
        }
        if pairing != Pairing::Kernels {
            wrong.extend(beside(case, run, &runs[0], pairing));
        }
    }
    wrong
}

/// Frames of the two ends of a session that a bottleneck's full queue dropped: between kernels, and
/// with our stack in place of each.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Drops {
    pub(crate) kernels: usize,
    /// From our end.
    pub(crate) ours: usize,
    /// From the kernel's end, with our stack at the other end.
    pub(crate) towards_ours: usize,
}

impl Drops {
    /// For the frames from `side`.
    pub(crate) fn of(runs: &[Run; 3], side: usize) -> Self {
        let [kernels, served, connected] = [0, 1, 2].map(|at: usize| {
            let all = runs[at].flow.passed.iter();
            let dropped = all.filter(|it| it.direction == side && it.fate == DROPPED);
            dropped.count()
        });
        // We are the server in the second run, and the client in the third.
        let (ours, towards_ours) = if side == 1 {
            (served, connected)
        } else {
            (connected, served)
        };
        Self {
            kernels,
            ours,
            towards_ours,
        }
    }

    /// True if ours are more than twice the kernel's, and by more than `chance`.
    pub(crate) fn are_too_many(self, chance: usize) -> bool {
        self.ours > 2 * self.kernels + chance
    }
}

/// Complaints about the drops in `attempts` at a case: for a side with too many in each of them.
///
/// The drops of one run depend on microseconds of timing, and on random losses: slow start ends
/// just before the end of the queue, or half a window beyond it, in either stack. That half is
/// therefore tolerated, and a case is repeated with other random losses before it fails; a real
/// defect shows each time.
pub(crate) fn judge_drops(case: &Case, attempts: &[&[Run; 3]]) -> Vec<String> {
    let mut wrong = Vec::new();
    for (side, bottleneck) in case.bottlenecks.iter().enumerate() {
        let drops: Vec<Drops> = attempts.iter().map(|runs| Drops::of(runs, side)).collect();
        let chance = DROPS_MORE + case.held_frames(side) / 2;
        if bottleneck.is_some() && drops.iter().all(|it| it.are_too_many(chance)) {
            let name = ["client", "server"][side];
            wrong.push(format!("a queue drops too much of the {name}'s: {drops:?}"));
        }
    }
    wrong
}

/// Properties that our end must share with the kernel's in the same place.
fn beside(case: &Case, run: &Run, kernels: &Run, pairing: Pairing) -> Vec<String> {
    let side = usize::from(pairing == Pairing::OursServes);
    let mut wrong = Vec::new();
    let mut complain = |text: String| wrong.push(format!("{pairing:?}: {text}"));
    let [ours, theirs] = [run, kernels].map(|run| Tally::of(&run.flow, side));
    if ours.opening != theirs.opening {
        let (ours, theirs) = (&ours.opening, &theirs.opening);
        complain(format!(
            "options of our SYN: {ours:?}; the kernel's {theirs:?}"
        ));
    }
    let unlucky = ours.unlucky + ours.dropped;
    let most = 2 * theirs.again + 2 * (unlucky + run.flow.stalls) + AGAIN_MORE;
    // If small segments with their overhead fill the buffer, the kernel drops data that has
    // arrived.
    let drops = case.segment_bytes() < SEGMENT_BYTES_MIN;
    if ours.again > most && !drops {
        let (ours, theirs) = (ours.again, theirs.again);
        complain(format!(
            "{ours} segments were sent again, {most} at most expected; by the kernel {theirs}"
        ));
    }
    // A message that is repeated until the peer receives it takes as long as the outage.
    let most = 3 * theirs.sent + 4 * unlucky + SENT_MORE;
    // RFC 5681 section 4.2: each segment behind a gap is answered at once, which Linux compresses
    // if there are many (net.ipv4.tcp_comp_sack_nr). More replies than segments are too many.
    let sent = ours.sent - ours.reports.min(ours.got);
    if case.kind != Kind::FullWindow && sent > most {
        let (ours, theirs) = (ours.sent, theirs.sent);
        complain(format!("{ours} segments in all; by the kernel {theirs}"));
    }
    wrong
}

/// Totals of a side's traffic.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) sent: usize,
    /// Acknowledgments without data that report a gap.
    reports: usize,
    /// Segments that arrived from the other side.
    got: usize,
    /// Segments with retransmitted data.
    pub(crate) again: usize,
    /// Lost, damaged or late, in either direction.
    pub(crate) unlucky: usize,
    /// Dropped by a bottleneck's queue, in either direction.
    pub(crate) dropped: usize,
    /// The options of its SYN, or SYN-ACK.
    opening: Vec<u8>,
}

impl Tally {
    pub(crate) fn of(flow: &Flow, side: usize) -> Self {
        let mut tally = Self::default();
        let mut highest = None;
        for passed in &flow.passed {
            if passed.arrived {
                tally.got += usize::from(passed.direction != side);
                continue;
            }
            match passed.fate {
                "" => {}
                DROPPED => tally.dropped += 1,
                _ => tally.unlucky += 1,
            }
            if passed.direction != side {
                continue;
            }
            let segment = &passed.segment;
            tally.sent += 1;
            let is_report = segment.payload_bytes == 0 && !segment.blocks.is_empty();
            tally.reports += usize::from(is_report);
            if segment.has(SYN) {
                tally.opening.clone_from(&segment.kinds);
            }
            if segment.has(RST) || segment.payload_bytes == 0 {
                continue;
            }
            let known = highest.get_or_insert(segment.sequence);
            tally.again += usize::from(before(segment.sequence, *known));
            if before(*known, segment.end()) {
                *known = segment.end();
            }
        }
        tally
    }
}

/// One end, as far as the wire shows.
#[derive(Default)]
struct End {
    /// Checked more strictly than the kernel's: under memory pressure the kernel shrinks windows,
    /// and then reports data that it has acknowledged.
    ours: bool,
    /// The peer's SYN: its number, MSS and scale.
    peer: Option<(u32, u16, u8)>,
    /// Our own: number and scale.
    own: Option<(u32, u8)>,
    /// Received ranges of the peer's sequence numbers, relative to its SYN: sorted, disjoint.
    got: Vec<(u32, u32)>,
    /// The end of the largest window that the peer advertised.
    edge: Option<u32>,
    /// Of our segments: the end, the FIN, the last acknowledgment, the last timestamp, the window's
    /// end.
    end: Option<u32>,
    fin: Option<u32>,
    acknowledged: Option<u32>,
    clock: Option<u32>,
    offered: Option<u32>,
    /// Timestamps of the peer that we received.
    clocks: HashSet<u32>,
    reset: bool,
}

impl End {
    /// Complaints about the segments of `side`.
    fn follow(&mut self, flow: &Flow, side: usize) -> Vec<String> {
        let mut wrong = Vec::new();
        let began_ns = flow.passed.first().map_or(0, |passed| passed.at_ns);
        for passed in &flow.passed {
            let segment = &passed.segment;
            if passed.arrived && passed.direction != side && segment.intact {
                self.gets(segment);
            } else if !passed.arrived && passed.direction == side {
                for complaint in self.sends(segment) {
                    let at_ms = (passed.at_ns - began_ns) as f64 / 1e6;
                    wrong.push(format!("{complaint} ({segment}, at {at_ms:.3} ms)"));
                }
            }
        }
        wrong.truncate(COMPLAINTS_MAX);
        wrong
    }

    fn gets(&mut self, segment: &Segment) {
        if segment.has(RST) {
            return;
        }
        if segment.has(SYN) {
            let scale = segment.scale.unwrap_or(0);
            self.peer = Some((segment.sequence, segment.mss.unwrap_or(536), scale));
        }
        if let Some((clock, _)) = segment.stamps {
            self.clocks.insert(clock);
        }
        let Some((first, _, scale)) = self.peer else {
            return;
        };
        if segment.has(ACK) {
            // RFC 7323 section 2.2: both scale, or neither.
            let scaled = !segment.has(SYN) && self.own.is_some_and(|own| own.1 != NO_SCALE);
            let shift = if scaled { scale } else { 0 };
            let window = u32::from(segment.window) << shift;
            let edge = segment.acknowledgment.wrapping_add(window);
            if self.edge.is_none_or(|known| before(known, edge)) {
                self.edge = Some(edge);
            }
        }
        let from = segment.sequence.wrapping_sub(first);
        let to = segment.end().wrapping_sub(first);
        if from < to {
            self.got.push((from, to));
            self.got.sort_unstable();
            let mut joined: Vec<(u32, u32)> = Vec::new();
            for &(from, to) in &self.got {
                match joined.last_mut() {
                    Some(last) if from <= last.1 => last.1 = last.1.max(to),
                    _ => joined.push((from, to)),
                }
            }
            self.got = joined;
        }
    }

    fn sends(&mut self, segment: &Segment) -> Vec<String> {
        let mut wrong = Vec::new();
        if !segment.intact {
            wrong.push("a wrong checksum, length or option".to_owned());
        }
        if segment.has(RST) {
            self.reset = true;
            return wrong;
        }
        if self.reset {
            wrong.push("something after a reset".into());
        }
        if segment.has(SYN) {
            self.own = Some((segment.sequence, segment.scale.unwrap_or(NO_SCALE)));
        }
        self.looks_at_numbers(segment, &mut wrong);
        self.looks_at_options(segment, &mut wrong);
        if segment.has(ACK) && self.peer.is_some() {
            self.looks_at_acknowledgment(segment, &mut wrong);
        }
        wrong
    }

    fn looks_at_numbers(&mut self, segment: &Segment, wrong: &mut Vec<String>) {
        let end = segment.end();
        if let Some(known) = self.end
            && before(known, segment.sequence)
        {
            wrong.push(format!("leaves out what follows {known}"));
        }
        // Linux permits a lone FIN one number beyond.
        let last = segment.sequence.wrapping_add(segment.payload_bytes as u32);
        let edge = self.edge.filter(|_| segment.payload_bytes > 0);
        if let Some(edge) = edge
            && before(edge, last)
        {
            wrong.push(format!("goes beyond the window, which ends at {edge}"));
        }
        if let Some((_, mss, _)) = self.peer {
            let padding = segment.kinds.iter().filter(|&&kind| kind == 1).count();
            let options = padding + 10 * usize::from(segment.stamps.is_some());
            let most = usize::from(mss).saturating_sub(options);
            if segment.payload_bytes > most {
                wrong.push(format!("more than the {most} bytes that the peer takes"));
            }
        }
        if let Some(fin) = self.fin
            && before(fin, end)
        {
            wrong.push(format!("goes beyond its FIN, which ended at {fin}"));
        }
        if segment.has(FIN) {
            self.fin.get_or_insert(end);
        }
        if self.end.is_none_or(|known| before(known, end)) {
            self.end = Some(end);
        }
    }

    fn looks_at_options(&mut self, segment: &Segment, wrong: &mut Vec<String>) {
        let usual: &[&[u8]] = if segment.has(SYN) {
            &[&[2, 4, 8, 1, 3]]
        } else {
            &[&[1, 1, 8], &[1, 1, 8, 1, 1, 5]]
        };
        if !usual.contains(&&segment.kinds[..]) {
            wrong.push(format!("options {:?}", segment.kinds));
        }
        let Some((clock, echo)) = segment.stamps else {
            return;
        };
        if self.clock.is_some_and(|last| before(clock, last)) {
            wrong.push("a clock that goes back".into());
        }
        self.clock = Some(clock);
        if segment.has(ACK) && !self.clocks.contains(&echo) {
            wrong.push("an echo of what never came".into());
        }
    }

    fn looks_at_acknowledgment(&mut self, segment: &Segment, wrong: &mut Vec<String>) {
        let Some((first, ..)) = self.peer else { return };
        let ack = segment.acknowledgment;
        if let Some(last) = self.acknowledged
            && before(ack, last)
        {
            wrong.push(format!("acknowledges less than before, {last}"));
        }
        self.acknowledged = Some(ack);
        let whole = self.got.first().map_or(0, |first| first.1);
        if ack.wrapping_sub(first) > whole {
            wrong.push(format!("acknowledges more than the {whole} that came"));
        }
        if !segment.has(SYN)
            && let Some((_, scale)) = self.own
        {
            let scale = if scale == NO_SCALE { 0 } else { scale };
            let edge = ack.wrapping_add(u32::from(segment.window) << scale);
            // RFC 9293 section 3.8.6: never shrunk, except by the rounding of the scale.
            if let Some(offered) = self.offered.filter(|_| self.ours)
                && before(edge.wrapping_add(1 << scale), offered)
            {
                wrong.push(format!("takes back a window that ended at {offered}"));
            }
            self.offered = Some(edge);
        }
        let distance = |number: u32| number.wrapping_sub(first);
        let came = |(start, end): (u32, u32)| {
            let (start, end) = (distance(start), distance(end));
            start < end && self.got.iter().any(|got| got.0 <= start && end <= got.1)
        };
        for (index, &block) in segment.blocks.iter().enumerate() {
            if !came(block) {
                wrong.push(format!("reports {block:?}, which did not come whole"));
            }
            // RFC 2883: a duplicate comes first.
            let (start, end) = (distance(block.0), distance(block.1));
            if self.ours && index > 0 && start <= distance(ack) {
                wrong.push(format!("reports {block:?}, which it acknowledges"));
            }
            let others = segment.blocks[..index].iter().skip(1);
            for other in others.map(|other| (distance(other.0), distance(other.1))) {
                if start < other.1 && other.0 < end {
                    wrong.push(format!("reports {block:?} and what overlaps it"));
                }
            }
        }
    }
}

/// A SYN without a window scale.
const NO_SCALE: u8 = u8::MAX;
/// Tolerated retransmissions, or segments, beyond the kernel's: tail probes, and random losses that
/// the shorter run did not reach.
const AGAIN_MORE: usize = 12;
const SENT_MORE: usize = 40;
const SEGMENT_BYTES_MIN: u16 = 500;
/// Tolerated drops of our frames if none of the kernel's are dropped: CUBIC's own probing, some at
/// a time. The cost of leaving slow start is added.
pub(crate) const DROPS_MORE: usize = 10;
/// Complaints listed per end.
const COMPLAINTS_MAX: usize = 4;

//! The trace of libspe2: lines of microseconds, context, event and what belongs to it.
//!
//! Must stay true: a line that is cut off or unknown is passed over, since a process may be killed;
//! lines of different threads may be some microseconds out of order.

use std::collections::BTreeMap;

/// States of a context over time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// On the engine of this number.
    Runs(u32),
    /// It could run, and waits for an engine.
    Ready,
    Waits(Cause),
    Stopped,
}

/// Things that a context waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Cause {
    /// A word in the inbound mailbox.
    InMailbox,
    /// The host, to take the outbound word.
    OutMailbox,
    Signal,
    Event,
    /// Tag status, stalled lists, the command queue.
    Dma,
}

impl Cause {
    pub(crate) const ALL: [Cause; 5] = [
        Cause::InMailbox,
        Cause::OutMailbox,
        Cause::Signal,
        Cause::Event,
        Cause::Dma,
    ];

    /// The cause of a wait at a channel; operations other than channel ones are MFC commands.
    fn of(operation: u64, channel: u64) -> Cause {
        match (operation, channel) {
            (1, 29) => Cause::InMailbox,
            (2, 28 | 30) => Cause::OutMailbox,
            (1, 3 | 4) => Cause::Signal,
            (1, 0) => Cause::Event,
            _ => Cause::Dma,
        }
    }
}

/// One context's part.
#[derive(Debug, Default)]
pub(crate) struct Part {
    /// Begins of states, in order.
    pub(crate) states: Vec<(u64, State)>,
    pub(crate) ran_us: u64,
    pub(crate) ready_us: u64,
    /// By [`Cause::ALL`].
    pub(crate) waits_us: [u64; Cause::ALL.len()],
    pub(crate) commands: u64,
    pub(crate) got_bytes: u64,
    pub(crate) put_bytes: u64,
    /// Most bytes of the store that program with data, heap, and stack took.
    pub(crate) store_bytes: [u64; 3],
}

/// The trace, as far as it was read.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    pub(crate) contexts: BTreeMap<u32, Part>,
    pub(crate) end_us: u64,
    /// The library stopped writing: there were too many lines.
    pub(crate) full: bool,
    /// The start of an incomplete line.
    rest: String,
}

impl Trace {
    /// Takes the bytes that were appended to the file.
    pub(crate) fn feed(&mut self, text: &str) {
        let mut text = std::mem::take(&mut self.rest) + text;
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        self.rest = text.split_off(whole);
        for line in text.lines() {
            self.line(line);
        }
    }

    fn line(&mut self, line: &str) {
        let mut fields = line.split('\t');
        let mut number = || fields.next().and_then(|text| text.parse::<u64>().ok());
        let (Some(time), Some(id)) = (number(), number()) else {
            return;
        };
        let Some(event) = fields.next() else { return };
        let mut values = [0; 6];
        let mut count = 0;
        for (place, text) in values.iter_mut().zip(fields) {
            let Ok(value) = text.parse() else { return };
            *place = value;
            count += 1;
        }
        self.end_us = self.end_us.max(time);
        let part = self.contexts.entry(id as u32).or_default();
        match (event, count) {
            ("ready", _) => part.begin(time, State::Ready),
            ("run", 1) => part.begin(time, State::Runs(values[0] as u32)),
            ("wait", 2) => part.begin(time, State::Waits(Cause::of(values[0], values[1]))),
            ("spun", 3) => part.waited(time, values[2], Cause::of(values[0], values[1])),
            ("at", 6) => {
                [part.commands, part.got_bytes, part.put_bytes] = [values[0], values[1], values[2]];
                for (most, now) in part.store_bytes.iter_mut().zip(&values[3..]) {
                    *most = (*most).max(*now);
                }
            }
            ("stop", _) => part.begin(time, State::Stopped),
            ("full", _) => self.full = true,
            _ => {}
        }
    }
}

impl Part {
    /// The state at the trace's end.
    pub(crate) fn state(&self) -> State {
        self.states
            .last()
            .map_or(State::Stopped, |(_, state)| *state)
    }

    /// States with their begins and ends; the last one lasts until `end`.
    pub(crate) fn spans(&self, end: u64) -> impl Iterator<Item = (u64, u64, State)> + '_ {
        let ends = self.states.iter().skip(1).map(|(time, _)| *time);
        let spans = self.states.iter().zip(ends.chain([end]));
        spans.map(|((begin, state), end)| (*begin, end.max(*begin), *state))
    }

    fn begin(&mut self, time: u64, state: State) {
        let since = match self.states.last().copied() {
            Some((since, before)) => {
                self.add(before, time.saturating_sub(since));
                since
            }
            None => 0,
        };
        self.states.push((time.max(since), state));
    }

    /// It waited on its engine until now, and goes on there.
    fn waited(&mut self, until: u64, time: u64, cause: Cause) {
        let State::Runs(engine) = self.state() else {
            return;
        };
        self.begin(until.saturating_sub(time), State::Waits(cause));
        self.begin(until, State::Runs(engine));
    }

    fn add(&mut self, state: State, time: u64) {
        match state {
            State::Runs(_) => self.ran_us += time,
            State::Ready => self.ready_us += time,
            State::Waits(cause) => self.waits_us[cause as usize] += time,
            State::Stopped => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_become_times() {
        let text = "0\t7\tready\n2\t7\trun\t0\n10\t7\twait\t1\t29\n40\t7\tready\n45\t7\trun\t1\n\
                    60\t7\tspun\t1\t3\t5\n70\t7\tat\t3\t4096\t128\t900\t16\t200\n70\t7\tstop\n\
                    75\t8\trun\t0\n80\t8\twa";
        let mut trace = Trace::default();
        // As a reader may find it: in pieces that end anywhere.
        let (head, tail) = text.split_at(33);
        trace.feed(head);
        trace.feed(tail);
        let part = &trace.contexts[&7];
        assert_eq!(part.waits_us, [30, 0, 5, 0, 0]);
        assert_eq!((part.ran_us, part.ready_us), (8 + 10 + 10, 2 + 5));
        assert_eq!(
            (part.commands, part.got_bytes, part.put_bytes),
            (3, 4096, 128)
        );
        assert_eq!(part.store_bytes, [900, 16, 200]);
        assert_eq!(part.state(), State::Stopped);
        let spun = (55, 60, State::Waits(Cause::Signal));
        assert!(part.spans(100).any(|span| span == spun));
        assert_eq!(trace.contexts[&8].states, [(75, State::Runs(0))]);
        assert_eq!(trace.end_us, 75);
        trace.feed("it\t1\t24\n");
        assert_eq!(trace.contexts[&8].state(), State::Waits(Cause::Dma));
    }

    #[test]
    fn lines_that_are_none_are_passed_over() {
        let mut trace = Trace::default();
        trace
            .feed("\n1\n2\t1\n3\tx\trun\t0\n4\t1\trun\n5\t1\trun\tx\n6\t1\tspun\t1\t29\t9\nfull\n");
        assert!(
            trace
                .contexts
                .get(&1)
                .is_none_or(|part| part.states.is_empty())
        );
        assert!(!trace.full);
        trace.feed("9\t1\tfull\n");
        assert!(trace.full);
    }
}

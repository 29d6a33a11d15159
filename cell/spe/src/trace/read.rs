//! The reader's side: lines become states over time, and sums.
//!
//! Must stay true: a line that is cut off or unknown is passed over, since a process may be killed;
//! lines of different threads may be some microseconds out of order.

use std::collections::BTreeMap;

/// States of a context over time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// On the engine of this number.
    Runs(u32),
    /// It could run, and waits for an engine.
    Ready,
    /// It is parked, or spins on its engine, at a channel.
    Waits(Cause),
    /// Its program stopped, or was not begun.
    Stopped,
}

/// Things that a context waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// A word in the inbound mailbox.
    InMailbox,
    /// The host, to take the outbound word.
    OutMailbox,
    /// A signal register.
    Signal,
    /// An event of channel 0.
    Event,
    /// Tag status, stalled lists, the command queue.
    Dma,
}

impl Cause {
    /// All of them, in the order of [`Part::waits_us`].
    pub const ALL: [Cause; 5] = [
        Cause::InMailbox,
        Cause::OutMailbox,
        Cause::Signal,
        Cause::Event,
        Cause::Dma,
    ];

    /// Its place in [`Cause::ALL`].
    const fn place(self) -> usize {
        self as usize
    }

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
pub struct Part {
    /// Begins of states, in order.
    pub states: Vec<(u64, State)>,
    /// Time on engines, without waits there.
    pub ran_us: u64,
    /// Time in which it could run and no engine was free.
    pub ready_us: u64,
    /// Time of waits, by [`Cause::ALL`].
    pub waits_us: [u64; Cause::ALL.len()],
    /// DMA commands, its own and the host's for it.
    pub commands: u64,
    /// Bytes that they brought into the store.
    pub got_bytes: u64,
    /// Bytes that they took out of it.
    pub put_bytes: u64,
    /// Most bytes of the store that program with data, heap, and stack took.
    pub store_bytes: [u64; 3],
}

/// The trace, as far as it was read.
#[derive(Debug, Default)]
pub struct Trace {
    /// By the contexts' numbers.
    pub contexts: BTreeMap<u32, Part>,
    /// The latest time of a line.
    pub end_us: u64,
    /// The library stopped writing: there were too many lines.
    pub full: bool,
    /// The start of an incomplete line.
    rest: String,
}

impl Trace {
    /// Takes the bytes that were appended to the file.
    pub fn feed(&mut self, text: &str) {
        let mut text = std::mem::take(&mut self.rest) + text;
        // A piece may end within a line, whose rest comes with the next.
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        self.rest = text.split_off(whole);
        for line in text.lines() {
            self.line(line);
        }
    }

    fn line(&mut self, line: &str) {
        let mut fields = line.split('\t');
        let time = fields.next().and_then(|text| text.parse().ok());
        let id = fields.next().and_then(|text| text.parse().ok());
        let (Some(time), Some(id), Some(event)) = (time, id, fields.next()) else {
            return;
        };
        let mut values = [0; 6];
        let mut count = 0;
        for (place, text) in values.iter_mut().zip(fields) {
            let Ok(value) = text.parse() else { return };
            *place = value;
            count += 1;
        }
        // Threads write a little out of order; time does not go back.
        self.end_us = self.end_us.max(time);
        let part = self.contexts.entry(id).or_default();
        match (event, count) {
            ("ready", _) => part.begin(time, State::Ready),
            ("run", 1) => {
                if let Ok(engine) = u32::try_from(values[0]) {
                    part.begin(time, State::Runs(engine));
                }
            }
            ("wait", 2) => part.begin(time, State::Waits(Cause::of(values[0], values[1]))),
            ("spun", 3) => part.waited(time, values[2], Cause::of(values[0], values[1])),
            ("at", 6) => {
                [part.commands, part.got_bytes, part.put_bytes] = [values[0], values[1], values[2]];
                for (most, now) in part.store_bytes.iter_mut().zip(&values[3..]) {
                    // Heap and stack shrink again; their most is what a store must have room for.
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
    pub fn state(&self) -> State {
        self.states
            .last()
            .map_or(State::Stopped, |(_, state)| *state)
    }

    /// States with their begins and ends; the last one lasts until `end`.
    pub fn spans(&self, end: u64) -> impl Iterator<Item = (u64, u64, State)> + '_ {
        let ends = self.states.iter().skip(1).map(|(time, _)| *time);
        let spans = self.states.iter().zip(ends.chain([end]));
        spans.map(|((begin, state), end)| (*begin, end.max(*begin), *state))
    }

    fn begin(&mut self, time: u64, state: State) {
        // Another thread's line may be older than the last one: no state begins before it.
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
        // A line of before, or one that came late: there is no stretch to cut.
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
            State::Waits(cause) => self.waits_us[cause.place()] += time,
            State::Stopped => {}
        }
    }
}

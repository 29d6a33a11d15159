//! The trace of libspe2: lines of microseconds, context, event and what belongs to it.
//!
//! Must stay true: a line that is cut off or unknown is passed over, since a process may be killed.

use std::collections::BTreeMap;

/// States of a context over time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Runs,
    Ready,
    Waits(Cause),
    Stopped,
}

/// Things that a context waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    Mailbox,
    Signal,
    Event,
    Dma,
}

/// Microseconds of waiting, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Waits {
    pub(crate) mailbox: u64,
    pub(crate) signal: u64,
    pub(crate) event: u64,
    pub(crate) dma: u64,
}

/// One context's part.
#[derive(Debug, Default)]
pub(crate) struct Part {
    /// Begins of states, in order.
    pub(crate) states: Vec<(u64, State)>,
    pub(crate) ran_us: u64,
    /// Of the present stretch on an engine: how long it waited there.
    spun_us: u64,
    pub(crate) waits: Waits,
    pub(crate) commands: u64,
    pub(crate) got_bytes: u64,
    pub(crate) put_bytes: u64,
}

/// The whole.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    pub(crate) contexts: BTreeMap<u32, Part>,
    pub(crate) end_us: u64,
}

impl Trace {
    pub(crate) fn read(text: &str) -> Trace {
        let mut trace = Trace::default();
        for line in text.lines() {
            let fields: Vec<&str> = line.split('\t').collect();
            let number = |index: usize| fields.get(index).and_then(|text| text.parse().ok());
            let (Some(time), Some(id)) = (number(0), number(1)) else {
                continue;
            };
            trace.end_us = trace.end_us.max(time);
            let part = trace.contexts.entry(id as u32).or_default();
            let state = match (fields.get(2).copied(), number(3), number(4)) {
                (Some("run"), ..) => State::Runs,
                (Some("yield"), ..) => State::Ready,
                (Some("wait"), Some(operation), Some(channel)) => {
                    State::Waits(cause(operation, channel))
                }
                (Some("spun"), Some(operation), Some(channel)) => {
                    // It waited on its engine: the time is taken from where it ran.
                    let waited = number(5).unwrap_or(0);
                    part.add(State::Waits(cause(operation, channel)), waited);
                    part.spun_us += waited;
                    continue;
                }
                (Some("stop"), Some(commands), Some(got)) => {
                    part.commands = commands;
                    part.got_bytes = got;
                    part.put_bytes = number(5).unwrap_or(0);
                    State::Stopped
                }
                _ => continue,
            };
            part.begin(time, state);
        }
        trace
    }
}

impl Part {
    fn begin(&mut self, time: u64, state: State) {
        if let Some((since, before)) = self.states.last().copied() {
            self.add(before, time.saturating_sub(since));
        }
        self.states.push((time, state));
    }

    fn add(&mut self, state: State, time: u64) {
        match state {
            State::Runs => {
                // This stretch is over only now.
                let spun = self.spun_us.min(time);
                self.spun_us -= spun;
                self.ran_us += time - spun;
            }
            State::Waits(Cause::Mailbox) => self.waits.mailbox += time,
            State::Waits(Cause::Signal) => self.waits.signal += time,
            State::Waits(Cause::Event) => self.waits.event += time,
            State::Waits(Cause::Dma) => self.waits.dma += time,
            State::Ready | State::Stopped => {}
        }
    }
}

/// The cause of a wait at a channel; operations other than channel ones are MFC commands.
fn cause(operation: u64, channel: u64) -> Cause {
    match (operation, channel) {
        (1 | 2, 28..=30) => Cause::Mailbox,
        (1, 3 | 4) => Cause::Signal,
        (1, 0) => Cause::Event,
        _ => Cause::Dma,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_become_times() {
        let text = "0\t7\trun\n10\t7\twait\t1\t29\n40\t7\trun\n60\t7\tspun\t1\t3\t5\n\
                    70\t7\tstop\t3\t4096\t128\n75\t8\trun\n80\t8\twa";
        let trace = Trace::read(text);
        let part = &trace.contexts[&7];
        assert_eq!(part.waits.mailbox, 30);
        assert_eq!(part.waits.signal, 5);
        // 10 and 30 on an engine, 5 of which it waited there.
        assert_eq!(part.ran_us, 35);
        assert_eq!(
            (part.commands, part.got_bytes, part.put_bytes),
            (3, 4096, 128)
        );
        assert_eq!(trace.contexts[&8].states, [(75, State::Runs)]);
        assert_eq!(trace.end_us, 80);
    }
}

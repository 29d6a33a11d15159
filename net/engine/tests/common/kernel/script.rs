//! An application: runs its script on any stack, and records what it observes.

use super::case::{Script, Step};
use super::party::{Failure, Got, Party};
use std::collections::VecDeque;

/// Observation of an application.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Event {
    Opened,
    NotOpened(Failure),
    Wrote(usize),
    Read(usize),
    End,
    Failed(Failure),
    /// A wrong byte, at this offset of the stream.
    WrongByte(usize),
    ShutDown,
    Closed,
    Reset,
    /// The time limit was reached.
    Stuck(Step),
}

/// One of the two.
pub(crate) struct Application {
    party: Box<dyn Party>,
    lanes: [Lane; 2],
    opened: bool,
    over: bool,
    /// Offsets in the two streams, and the index of ours.
    written: usize,
    read: usize,
    side: usize,
    buffer: Vec<u8>,
}

#[derive(Default)]
struct Lane {
    steps: VecDeque<Step>,
    log: Vec<Event>,
    /// Progress of the current step.
    done: usize,
    until_ns: Option<u64>,
}

impl Application {
    pub(crate) fn new(party: Box<dyn Party>, script: &Script, side: usize) -> Self {
        let lane = |steps: &Vec<Step>| Lane {
            steps: steps.iter().copied().collect(),
            ..Lane::default()
        };
        Self {
            party,
            lanes: [lane(&script.lanes[0]), lane(&script.lanes[1])],
            opened: false,
            over: false,
            written: 0,
            read: 0,
            side,
            buffer: vec![0; 65_536],
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over
    }

    /// Observations of both lanes.
    pub(crate) fn logs(&self) -> [Vec<Event>; 2] {
        [self.lanes[0].log.clone(), self.lanes[1].log.clone()]
    }

    /// The time limit was reached.
    pub(crate) fn give_up(&mut self) {
        for lane in &mut self.lanes {
            if let Some(&step) = lane.steps.front() {
                lane.log.push(Event::Stuck(step));
            }
        }
        if !self.over {
            self.party.reset();
            self.over = true;
        }
    }

    /// Does everything that is possible now.
    pub(crate) fn go_on(&mut self, now_ns: u64) {
        if self.over {
            return;
        }
        if !self.opened {
            match self.party.opened() {
                None => return,
                Some(Ok(())) => self.lanes[0].log.push(Event::Opened),
                Some(Err(failure)) => {
                    self.lanes[0].log.push(Event::NotOpened(failure));
                    self.over = true;
                    self.lanes.iter_mut().for_each(|lane| lane.steps.clear());
                    return;
                }
            }
            self.opened = true;
        }
        for index in 0..2 {
            while !self.over && self.step(index, now_ns) {}
        }
        if !self.over && self.lanes.iter().all(|lane| lane.steps.is_empty()) {
            self.party.close();
            self.over = true;
        }
    }

    /// Continues a lane's first step; true if it is finished.
    fn step(&mut self, index: usize, now_ns: u64) -> bool {
        let Some(&step) = self.lanes[index].steps.front() else {
            return false;
        };
        let done = match step {
            Step::Write(bytes) => self.write(index, bytes),
            Step::Read(bytes) => self.read(index, Some(bytes)),
            Step::ReadToEnd => self.read(index, None),
            Step::UntilBroken => self.until_broken(index, now_ns),
            Step::Pause(ms) => {
                let lane = &mut self.lanes[index];
                now_ns >= *lane.until_ns.get_or_insert(now_ns + ms * 1_000_000)
            }
            Step::AfterOther => self.lanes[1 - index].steps.is_empty(),
            Step::ShutDown => {
                self.party.shut_down();
                self.lanes[index].log.push(Event::ShutDown);
                true
            }
            Step::Close | Step::Reset => {
                let (event, reset) = match step {
                    Step::Close => (Event::Closed, false),
                    _ => (Event::Reset, true),
                };
                if reset {
                    self.party.reset();
                } else {
                    self.party.close();
                }
                self.over = true;
                self.lanes[index].log.push(event);
                true
            }
        };
        if done {
            let lane = &mut self.lanes[index];
            lane.steps.pop_front();
            (lane.done, lane.until_ns) = (0, None);
        }
        done
    }

    fn write(&mut self, index: usize, bytes: usize) -> bool {
        let lane = &mut self.lanes[index];
        while lane.done < bytes {
            let count = (bytes - lane.done).min(self.buffer.len());
            for (at, byte) in self.buffer[..count].iter_mut().enumerate() {
                *byte = pattern(self.side, self.written + at);
            }
            match self.party.write(&self.buffer[..count]) {
                Ok(0) => return false,
                Ok(taken) => {
                    lane.done += taken;
                    self.written += taken;
                }
                Err(failure) => return lane.fails(failure),
            }
        }
        lane.log.push(Event::Wrote(bytes));
        true
    }

    /// Reads `bytes` bytes, or to the end.
    fn read(&mut self, index: usize, bytes: Option<usize>) -> bool {
        let lane = &mut self.lanes[index];
        loop {
            let left = bytes.map_or(self.buffer.len(), |bytes| bytes - lane.done);
            if left == 0 {
                lane.log.push(Event::Read(lane.done));
                return true;
            }
            let count = left.min(self.buffer.len());
            match self.party.read(&mut self.buffer[..count]) {
                Ok(Got::Nothing) => return false,
                Ok(Got::Bytes(count)) => {
                    for (at, &byte) in self.buffer[..count].iter().enumerate() {
                        if byte != pattern(1 - self.side, self.read + at) {
                            lane.log.push(Event::WrongByte(self.read + at));
                            lane.steps.truncate(1);
                            return true;
                        }
                    }
                    self.read += count;
                    lane.done += count;
                }
                Ok(Got::End) => {
                    lane.log.extend([Event::Read(lane.done), Event::End]);
                    return true;
                }
                Err(failure) => {
                    lane.log.push(Event::Read(lane.done));
                    return lane.fails(failure);
                }
            }
        }
    }

    /// Writes as well: a pure reader does not notice a lost reset.
    fn until_broken(&mut self, index: usize, now_ns: u64) -> bool {
        let lane = &mut self.lanes[index];
        match self.party.read(&mut self.buffer[..1]) {
            Err(failure) => return lane.fails(failure),
            Ok(Got::Bytes(_)) => {
                lane.log.push(Event::WrongByte(self.read));
                return true;
            }
            Ok(Got::End | Got::Nothing) => {}
        }
        if now_ns < *lane.until_ns.get_or_insert(now_ns) {
            return false;
        }
        lane.until_ns = Some(now_ns + WORD_NS);
        match self.party.write(&[0]) {
            Err(failure) => lane.fails(failure),
            Ok(_) => false,
        }
    }
}

impl Lane {
    /// The step fails, and with it the lane.
    fn fails(&mut self, failure: Failure) -> bool {
        self.log.push(Event::Failed(failure));
        self.steps.truncate(1);
        true
    }
}

/// The byte at this offset of a side's data.
fn pattern(side: usize, at: usize) -> u8 {
    ((at as u32).wrapping_mul(0x9e37_79b1) >> 24) as u8 ^ side as u8
}

/// Interval of writes while waiting for a reset.
const WORD_NS: u64 = 20_000_000;

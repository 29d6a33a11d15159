//! The SPU's channels: their state, and reading, writing and counting.
//!
//! Must stay true: pure but for the MFC's copies and the clock; nothing here blocks. An operation
//! that cannot be done answers [`Outcome::Blocked`] and is tried again later. Numbers and depths
//! are the hardware's. Events are found when the program's side looks: each of their conditions
//! ends by an operation of the program, before which it looks.
//! Source: SPU ISA and Cell Broadband Engine Architecture, chapter 9.

use crate::mail::Mail;
use crate::mfc::{Command, Mfc};
use crate::store::Store;
use sidecore_bare::width::ToU64;
use std::time::{Duration, Instant};

/// Time base of the decrementer, in ticks a second.
pub(crate) const TIME_BASE: u64 = 79_800_000;
/// A program that waits for a lost reservation has the line looked at this often: the host's plain
/// stores send no notification.
const LINE_LOOK: Duration = Duration::from_millis(1);

/// Reasons for which a program stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    Exit(u8),
    /// Code and the message block's place in the store.
    Signal(u32, u32),
    /// A stop code that only isolated programs use.
    Isolation(u32),
    Halt,
    BadInstruction,
    BadChannel,
    Exception(u32),
    Fatal(i32),
    /// A callback's handler failed with this value.
    Callback(i32),
}

/// Outcome of a channel operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Value(u64),
    /// To be asked again when something changed, or at that time.
    Blocked(Option<Instant>),
    Stopped(Stop),
}

const DONE: Outcome = Outcome::Value(0);
const BAD: Outcome = Outcome::Stopped(Stop::BadChannel);

/// Event bits of channel 0; the mailboxes' are in `mail`.
mod event {
    pub(super) const TAG: u32 = 0x1;
    pub(super) const LIST_STALL: u32 = 0x2;
    pub(super) const QUEUE: u32 = 0x8;
    pub(super) const DECREMENTER: u32 = 0x20;
    pub(super) const SIGNAL_2: u32 = 0x100;
    pub(super) const SIGNAL_1: u32 = 0x200;
    pub(super) const RESERVATION: u32 = 0x400;
    pub(super) const SYNC: u32 = 0x1000;
}

/// State of one context's channels.
#[derive(Debug)]
pub(crate) struct Channels {
    signals: [Option<u32>; 2],
    signals_or: [bool; 2],
    pub(crate) mfc: Mfc,
    command: Command,
    tag_mask: u32,
    /// Condition of the requested tag update: 0 now, 1 any, 2 all.
    tag_update: Option<u32>,
    events: u32,
    event_mask: u32,
    event_count: bool,
    decrementer: (Instant, u32),
    decrementer_armed: bool,
    save: u32,
    /// Conditions of the last look, to find those that became true.
    before: u32,
}

impl Channels {
    pub(crate) fn new(signals_or: [bool; 2]) -> Channels {
        Channels {
            signals: [None; 2],
            signals_or,
            mfc: Mfc::default(),
            command: Command {
                lsa: 0,
                ea: 0,
                size: 0,
                tag: 0,
                code: 0,
            },
            tag_mask: 0,
            tag_update: None,
            events: 0,
            event_mask: 0,
            event_count: false,
            decrementer: (Instant::now(), 0),
            decrementer_armed: false,
            save: 0,
            before: event::QUEUE,
        }
    }

    /// Writes a signal register from outside.
    pub(crate) fn signal(&mut self, index: usize, value: u32) {
        // In OR mode writes collect until they are read; else the last one counts.
        let old = if self.signals_or[index] {
            self.signals[index].unwrap_or(0)
        } else {
            0
        };
        self.signals[index] = Some(old | value);
    }

    /// Conditions of events that hold now, but the mailboxes'.
    fn conditions(&self) -> u32 {
        let holds = |condition: bool, bit: u32| if condition { bit } else { 0 };
        holds(self.tag_status().is_some(), event::TAG)
            | holds(self.mfc.stall_mask != 0, event::LIST_STALL)
            | holds(self.mfc.free() > 0, event::QUEUE)
            | holds(self.signals[0].is_some(), event::SIGNAL_1)
            | holds(self.signals[1].is_some(), event::SIGNAL_2)
    }

    /// True where an event that the mask lets through has come, and the time of the next look, if
    /// one is needed. Called from outside as well: events that only the program's side may take
    /// stay.
    pub(crate) fn interrupts(&mut self, mail: &Mail) -> (bool, Option<Instant>) {
        let next = self.look_at_time();
        let comes = self.conditions() & !self.before | mail.pending_events();
        (self.event_count || comes & self.event_mask != 0, next)
    }

    /// Finds events: conditions that hold now and did not at the last look.
    fn refresh(&mut self, mail: &Mail) {
        let now = self.conditions();
        // A condition that still holds is no new event.
        self.raise(now & !self.before | mail.events());
        self.before = now;
    }

    fn raise(&mut self, bits: u32) {
        self.events |= bits;
        if bits & self.event_mask != 0 {
            self.event_count = true;
        }
    }

    /// Does one MFC command.
    pub(crate) fn issue(&mut self, store: &Store, mail: &Mail, command: Command) -> Outcome {
        // A command that finds no place waits for one, as the channel does.
        // Before the command is looked at: an invalid one waits for its place, too.
        if self.mfc.free() == 0 {
            return Outcome::Blocked(None);
        }
        let issued = self.mfc.issue(store, command);
        self.refresh(mail);
        match issued {
            Ok(()) => DONE,
            Err(code) => Outcome::Stopped(Stop::Exception(code)),
        }
    }

    pub(crate) fn read(&mut self, mail: &Mail, channel: u64) -> Outcome {
        self.refresh(mail);
        let value = match channel {
            0 => return self.read_event(),
            3 => self.signals[0].take(),
            4 => self.signals[1].take(),
            8 => Some(self.decrementer_value()),
            11 => Some(self.event_mask),
            12 => Some(self.tag_mask),
            15 => Some(self.save),
            24 => self.tag_status().inspect(|_| self.tag_update = None),
            25 => Some(std::mem::take(&mut self.mfc.stall_mask)).filter(|mask| *mask != 0),
            27 => self.mfc.atomic_status.take(),
            29 => mail.pop(),
            _ => return BAD,
        };
        // A condition that the operation is about to end counts as an event first.
        self.refresh(mail);
        value.map_or(Outcome::Blocked(None), |value| Outcome::Value(value.into()))
    }

    pub(crate) fn write(
        &mut self,
        store: &Store,
        mail: &Mail,
        channel: u64,
        value: u32,
    ) -> Outcome {
        self.refresh(mail);
        match channel {
            1 => {
                self.event_mask = value;
                // Writing the mask makes pending events count again, read or not.
                self.event_count = self.events & value != 0;
            }
            2 => {
                self.events &= !value;
                self.event_count = self.events & self.event_mask != 0;
                if value & event::DECREMENTER != 0 && self.event_mask & event::DECREMENTER == 0 {
                    // Acknowledged while masked: the decrementer stops (section 9.11.1).
                    self.decrementer_armed = false;
                }
            }
            7 => {
                self.decrementer = (Instant::now(), value);
                self.decrementer_armed = true;
            }
            // All earlier puts here are done already; the event says so.
            9 => self.raise(event::SYNC),
            14 => self.save = value,
            16 => self.command.lsa = value,
            17 => {
                self.command.ea = u64::from(value) << 32 | self.command.ea & 0xffff_ffff;
            }
            18 => self.command.ea = self.command.ea >> 32 << 32 | u64::from(value),
            19 => self.command.size = value & 0xffff,
            20 => self.command.tag = value,
            21 => {
                self.command.code = value;
                let outcome = self.issue(store, mail, self.command);
                if outcome == DONE {
                    // The high half must be written anew for the next command.
                    self.command.ea &= 0xffff_ffff;
                }
                return outcome;
            }
            22 => self.tag_mask = value,
            // The status is computed when it is read: commands that end meanwhile count.
            23 => self.tag_update = Some(value),
            26 => {
                let resumed = self.mfc.resume(store, value & 31);
                self.refresh(mail);
                if let Err(code) = resumed {
                    return Outcome::Stopped(Stop::Exception(code));
                }
            }
            28 if !mail.put_out(value) => return Outcome::Blocked(None),
            30 if !mail.put_interrupt(value) => return Outcome::Blocked(None),
            28 | 30 => {}
            _ => return BAD,
        }
        self.refresh(mail);
        DONE
    }

    pub(crate) fn count(&mut self, mail: &Mail, channel: u64) -> Outcome {
        Outcome::Value(match channel {
            0 => {
                self.refresh(mail);
                self.look_at_time();
                self.event_count.into()
            }
            3 => self.signals[0].is_some().into(),
            4 => self.signals[1].is_some().into(),
            21 => self.mfc.free().to_u64(),
            23 => 1,
            24 => self.tag_status().is_some().into(),
            25 => (self.mfc.stall_mask != 0).into(),
            27 => self.mfc.atomic_status.is_some().into(),
            28 => u64::from(1 - mail.out_entries()),
            29 => mail.in_entries().into(),
            30 => u64::from(1 - mail.interrupt_entries()),
            1 | 2 | 7..=9 | 11..=20 | 22 | 26 => 1,
            _ => return BAD,
        })
    }

    /// Status of the requested tag update, once its condition holds.
    fn tag_status(&self) -> Option<u32> {
        let done = self.tag_mask & !self.mfc.busy();
        match self.tag_update? {
            // Any of no tags at all holds at once.
            1 => (done != 0 || self.tag_mask == 0).then_some(done),
            2 => (done == self.tag_mask).then_some(done),
            _ => Some(done),
        }
    }

    fn read_event(&mut self) -> Outcome {
        let next = self.look_at_time();
        if !self.event_count {
            return Outcome::Blocked(next);
        }
        // Reading takes the count and leaves the events, until they are acknowledged.
        self.event_count = false;
        Outcome::Value((self.events & self.event_mask).into())
    }

    /// Raises events that only a look finds; the time of the next look, if one is needed.
    fn look_at_time(&mut self) -> Option<Instant> {
        let mut next = None;
        if self.decrementer_armed {
            // It passes zero one tick behind its value's last, and counts on from the top.
            let passes_at = |(since, value): (Instant, u32)| since + span(u64::from(value) + 1);
            while Instant::now() >= passes_at(self.decrementer) {
                self.decrementer = (passes_at(self.decrementer), u32::MAX);
                self.raise(event::DECREMENTER);
            }
            if self.event_mask & event::DECREMENTER != 0 {
                next = Some(passes_at(self.decrementer));
            }
        }
        if self.event_mask & event::RESERVATION != 0
            && let Some(reservation) = &self.mfc.reservation
        {
            if reservation.lost() {
                self.mfc.reservation = None;
                self.raise(event::RESERVATION);
            } else {
                let look = Instant::now() + LINE_LOOK;
                next = Some(next.map_or(look, |other: Instant| other.min(look)));
            }
        }
        next
    }

    fn decrementer_value(&self) -> u32 {
        let (since, value) = self.decrementer;
        let ticks = since.elapsed().as_nanos() * u128::from(TIME_BASE) / 1_000_000_000;
        // The counter has 32 bits and goes on below zero: ticks count modulo its range.
        value.wrapping_sub(ticks as u32)
    }
}

/// Length of `ticks` of the time base.
fn span(ticks: u64) -> Duration {
    let nanoseconds = u128::from(ticks) * 1_000_000_000 / u128::from(TIME_BASE);
    Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests;

//! The order in which a served image ends: decisions, without any of the work. Pure.
//!
//! Why here: that nothing written is lost hangs on the order of a few steps, taken by a server and
//! by commands at the same time, while programs write, signals come and processes are killed. Apart
//! from the steps themselves the order can be tried in simulation, from a seed (`simulation`).
//!
//! The rules:
//! - What is written to is flushed before it is taken away, and again after: others may have
//!   written between the two, and may still have it.
//! - What cannot be flushed stays, or is put back.
//! - A server stays as long as the kernel has what it serves; only what is read alone, or was shut
//!   down in order, is taken from its users.
//! - A server ends once all that it was given is durable.

use std::time::Duration;

/// A server's part in the end of what it serves.
#[derive(Debug)]
pub(super) struct Ending {
    terms: Terms,
    phase: Phase,
}

/// Properties of what is served.
#[derive(Debug, Clone, Copy)]
pub(super) struct Terms {
    /// It takes writes.
    pub writable: bool,
    /// Time that programs have, from the first signal on, to close it.
    pub patience: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Serving,
    /// A flush before anything is taken away.
    Flushing {
        until: Duration,
    },
    Unmounting {
        until: Duration,
    },
    Detaching {
        until: Duration,
    },
    /// The flush after.
    FlushingAgain {
        until: Duration,
    },
    PuttingBack,
    /// Taken away here, perhaps still in use elsewhere. Without a time, it waits for the last user.
    Leaving {
        until: Option<Duration>,
    },
    Pulling,
    Aborting,
    /// The kernel has released it.
    Closing,
    /// Written data could not be made durable yet.
    Retrying {
        at: Duration,
    },
    Ended,
}

/// Something that a server's part reacts to. Times are those since its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
    /// A signal asked it to end.
    Signal,
    /// The kernel has released the export.
    Released,
    /// The time that [`Act::Wait`] gave is over.
    Time,
    /// Answer to [`Act::Flush`], [`Act::Detach`], [`Act::PutBack`] and [`Act::Pull`]: done or not.
    Done(bool),
    /// Answer to [`Act::Unmount`].
    Unmounted(Unmounted),
    /// Answer to [`Act::Close`].
    Closed(Closed),
}

/// Outcome of a plain unmount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unmounted {
    /// It is not here any more.
    Gone,
    /// Programs use it.
    Busy,
}

/// Outcome of making all durable at the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Closed {
    /// All is.
    Durable,
    /// A later attempt may succeed: the disk is full.
    Later,
    /// No attempt will.
    Never,
}

/// Next step of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Act {
    /// Wait for a signal or the release, to this time at most.
    Wait(Option<Duration>),
    /// Have the file system write out what programs wrote, and make that durable.
    Flush,
    /// Take the mount or the device away, unless programs use it.
    Unmount,
    /// Take it away although they do: what they have open goes on.
    Detach,
    /// Put it back where it was.
    PutBack,
    /// Flush, and refuse all later writes, without a write between the two.
    Pull,
    /// Cut the kernel's connection: users get errors.
    Abort,
    /// Make durable all that was acknowledged.
    Close,
    /// End; `lost` where not all could be made durable.
    End {
        /// Something was not.
        lost: bool,
    },
}

impl Ending {
    pub(super) fn new(terms: Terms) -> Self {
        Self {
            terms,
            phase: Phase::Serving,
        }
    }

    /// The first thing to do.
    pub(super) fn begin(&self) -> Act {
        Act::Wait(None)
    }

    /// The kernel has released it, and all acknowledged writes are being made durable.
    pub(super) fn is_released(&self) -> bool {
        use Phase::{Closing, Ended, Retrying};
        matches!(self.phase, Closing | Retrying { .. } | Ended)
    }

    /// The next thing to do after `event` at `now`.
    pub(super) fn next(&mut self, event: Event, now: Duration) -> Act {
        let (phase, act) = self.after(event, now);
        self.phase = phase;
        act
    }

    fn after(&self, event: Event, now: Duration) -> (Phase, Act) {
        let writable = self.terms.writable;
        match (self.phase, event) {
            (Phase::Closing, Event::Closed(Closed::Durable)) => {
                (Phase::Ended, Act::End { lost: false })
            }
            (Phase::Closing, Event::Closed(Closed::Never)) => {
                (Phase::Ended, Act::End { lost: true })
            }
            (Phase::Closing, Event::Closed(Closed::Later)) => {
                let at = now + RETRY;
                (Phase::Retrying { at }, Act::Wait(Some(at)))
            }
            (Phase::Retrying { at }, Event::Released) => {
                (Phase::Retrying { at }, Act::Wait(Some(at)))
            }
            (Phase::Retrying { .. }, _) => (Phase::Closing, Act::Close),
            // Whatever was going on: there is nothing left to be taken away.
            (_, Event::Released) => (Phase::Closing, Act::Close),
            (Phase::Serving, Event::Signal) => self.undo(now + self.terms.patience),
            // A command may have put it back.
            (Phase::Leaving { until: None }, Event::Signal) => self.undo(now),
            (Phase::Flushing { until }, Event::Done(true)) => {
                (Phase::Unmounting { until }, Act::Unmount)
            }
            (Phase::Flushing { .. }, _) => (Phase::Serving, Act::Wait(None)),
            (Phase::Unmounting { until }, Event::Unmounted(Unmounted::Busy)) => {
                (Phase::Detaching { until }, Act::Detach)
            }
            (Phase::Unmounting { until } | Phase::Detaching { until }, _) if writable => {
                (Phase::FlushingAgain { until }, Act::Flush)
            }
            (
                Phase::Unmounting { until }
                | Phase::Detaching { until }
                | Phase::FlushingAgain { until },
                Event::Unmounted(_) | Event::Done(true),
            ) => self.leave(Some(until)),
            (Phase::Detaching { until }, _) => self.leave(Some(until)),
            (Phase::FlushingAgain { .. }, _) => (Phase::PuttingBack, Act::PutBack),
            (Phase::PuttingBack, Event::Done(true)) => (Phase::Serving, Act::Wait(None)),
            (Phase::PuttingBack, _) => self.leave(None),
            (Phase::Leaving { .. }, Event::Signal) => (Phase::Pulling, Act::Pull),
            (Phase::Leaving { until: Some(until) }, Event::Time) if now >= until => {
                (Phase::Pulling, Act::Pull)
            }
            (Phase::Leaving { until }, _) => self.leave(until),
            (Phase::Pulling, Event::Done(true)) => (Phase::Aborting, Act::Abort),
            // Busy users keep the mount: only they can release it.
            (Phase::Pulling, _) => self.leave(None),
            // Threads that hang in a source are not waited for.
            (Phase::Aborting, Event::Time) => (Phase::Closing, Act::Close),
            (Phase::Aborting, _) => (Phase::Aborting, Act::Wait(Some(now + ABORT))),
            (phase, _) => (phase, Act::Wait(None)),
        }
    }

    fn undo(&self, until: Duration) -> (Phase, Act) {
        match self.terms.writable {
            true => (Phase::Flushing { until }, Act::Flush),
            false => (Phase::Unmounting { until }, Act::Unmount),
        }
    }

    fn leave(&self, until: Option<Duration>) -> (Phase, Act) {
        (Phase::Leaving { until }, Act::Wait(until))
    }
}

/// The steps that a command takes to undo a mount; each is done by one call.
pub(crate) trait Hands {
    /// As [`Act::Flush`]; false where it failed.
    fn flush(&mut self) -> bool;
    /// As [`Act::Unmount`].
    fn unmount(&mut self) -> Unmounted;
    /// As [`Act::Detach`].
    fn detach(&mut self) -> bool;
    /// As [`Act::PutBack`].
    fn put_back(&mut self) -> bool;
    /// As [`Act::Abort`].
    fn abort(&mut self);
    /// Looks at the server, some milliseconds after the last look.
    fn look(&mut self) -> Seen;
}

/// A server after its mount or device was taken away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Seen {
    /// It has ended in order.
    Ended,
    /// It ended, or goes on, with something that it cannot make durable.
    Failing,
    /// It is on its way to its end.
    Ending,
    /// The kernel still has what it serves.
    Held,
    /// It should have ended long ago.
    Stuck,
}

/// Outcome of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The server has ended, and all is durable.
    Completely,
    /// Others have it still; what was written so far is durable.
    StillUsed,
    /// Its users get errors now; nothing was written.
    TakenAway,
    /// Programs use it; nothing has changed.
    Busy,
    /// Not everything could be made durable; true where it is mounted as before.
    NotFlushed(bool),
    /// It could not be unmounted.
    NotUnmounted,
    /// All is durable; the server does not end.
    Stuck,
}

/// Undoes a mount or a device in the right order.
pub(crate) fn undo(hands: &mut impl Hands, writable: bool, force: bool) -> Outcome {
    if writable && !hands.flush() {
        return Outcome::NotFlushed(true);
    }
    if hands.unmount() == Unmounted::Busy {
        if !force {
            return Outcome::Busy;
        }
        if !hands.detach() {
            return Outcome::NotUnmounted;
        }
    }
    if writable && !hands.flush() {
        let put_back = hands.put_back();
        return Outcome::NotFlushed(put_back);
    }
    let mut aborted = false;
    loop {
        match hands.look() {
            Seen::Ended if aborted => return Outcome::TakenAway,
            Seen::Ended => return Outcome::Completely,
            Seen::Failing => return Outcome::NotFlushed(false),
            Seen::Stuck => return Outcome::Stuck,
            // An abort loses what is not written out yet: only where there is no such thing.
            Seen::Held if force && !writable && !aborted => {
                aborted = true;
                hands.abort();
            }
            Seen::Held if !aborted => return Outcome::StillUsed,
            Seen::Held | Seen::Ending => {}
        }
    }
}

/// Time between attempts to make durable what was acknowledged.
pub(super) const RETRY: Duration = Duration::from_secs(1);
/// Time that a session's threads have to end after an abort.
const ABORT: Duration = Duration::from_millis(100);

#[cfg(test)]
mod simulation;

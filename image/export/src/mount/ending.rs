//! Order of the steps that end a served image: decisions only. Pure.
//!
//! Why here: no written data may be lost, and that depends on the order of a few steps. A server
//! and commands take them at the same time, while programs write, signals come and processes are
//! killed. Separated from the steps themselves, the order can be tested in a seeded simulation
//! (`simulation`).
//!
//! The rules:
//! - A writable export is flushed before it is removed, and again after: others may have written
//!   between the two, and may still use it.
//! - An export that cannot be flushed stays, or is put back.
//! - A server stays as long as the kernel uses its export; users lose only an export that is
//!   read-only, or was shut down in order.
//! - A server ends once all acknowledged writes are durable.

use std::time::Duration;

/// A server's part in the end of its export.
#[derive(Debug)]
pub(super) struct Ending {
    terms: Terms,
    phase: Phase,
}

/// Properties of the export.
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
    /// The flush before anything is removed.
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

/// Events for a server. Times count from its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
    /// A signal requested the end.
    Signal,
    /// The kernel has released the export.
    Released,
    /// The time of [`Act::Wait`] is over.
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
    /// It is not mounted here any more.
    Gone,
    /// Programs use it.
    Busy,
}

/// Outcome of making all writes durable at the end.
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
    /// Wait for a signal or the release, at most until this time.
    Wait(Option<Duration>),
    /// Have the file system write out its dirty pages, and make the data durable.
    Flush,
    /// Remove the mount or the device, unless programs use it.
    Unmount,
    /// Remove it although programs use it: their open files stay usable.
    Detach,
    /// Mount it again at its place.
    PutBack,
    /// Flush, and refuse all later writes, with no write in between.
    Pull,
    /// Abort the kernel's connection: users get errors.
    Abort,
    /// Make all acknowledged writes durable.
    Close,
    /// End; `lost` where some writes could not be made durable.
    End {
        /// True if some writes were lost.
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

    /// The first act.
    pub(super) fn begin(&self) -> Act {
        Act::Wait(None)
    }

    /// The kernel has released it, and all acknowledged writes are being made durable.
    pub(super) fn is_released(&self) -> bool {
        use Phase::{Closing, Ended, Retrying};
        matches!(self.phase, Closing | Retrying { .. } | Ended)
    }

    /// The next act after `event` at `now`.
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
            // In any phase: nothing is left to be removed.
            (_, Event::Released) => (Phase::Closing, Act::Close),
            (Phase::Serving, Event::Signal) => self.undo(now + self.terms.patience),
            // A command may have put it back.
            (Phase::Leaving { until: None }, Event::Signal) => self.undo(now),
            (Phase::Flushing { until }, Event::Done(true)) => {
                (Phase::Unmounting { until }, Act::Unmount)
            }
            // Nothing was removed yet: a full disk may be cleared, and the next signal tries again.
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
            // Without a mount point and without a flush: only the last user ends it.
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

/// The steps by which a command undoes a mount; each is one call.
pub(crate) trait Hands {
    /// As [`Act::Flush`]; false if it failed.
    fn flush(&mut self) -> bool;
    /// As [`Act::Unmount`].
    fn unmount(&mut self) -> Unmounted;
    /// As [`Act::Detach`].
    fn detach(&mut self) -> bool;
    /// As [`Act::PutBack`].
    fn put_back(&mut self) -> bool;
    /// As [`Act::Abort`].
    fn abort(&mut self);
    /// Checks the server, some milliseconds after the last check.
    fn look(&mut self) -> Seen;
}

/// State of a server after its mount or device was removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Seen {
    /// It has ended in order.
    Ended,
    /// It ended, or continues, with data that it cannot make durable.
    Failing,
    /// It is about to end.
    Ending,
    /// The kernel still uses its export.
    Held,
    /// It should have ended long ago.
    Stuck,
}

/// Outcome of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The server has ended, and all is durable.
    Completely,
    /// Others still use it; all data written so far are durable.
    StillUsed,
    /// Its users get errors now; nothing was written.
    TakenAway,
    /// Programs use it; nothing has changed.
    Busy,
    /// Not all data could be made durable; true if it is mounted as before.
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
    // After the flush: with a lazy unmount the kernel writes out later, when errors reach no
    // command.
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
            // An abort loses data that are not written out yet: allowed only where there are none.
            Seen::Held if force && !writable && !aborted => {
                aborted = true;
                hands.abort();
            }
            Seen::Held if !aborted => return Outcome::StillUsed,
            Seen::Held | Seen::Ending => {}
        }
    }
}

/// Time between attempts to make acknowledged writes durable.
pub(super) const RETRY: Duration = Duration::from_secs(1);
/// Time that a session's threads have to end after an abort.
const ABORT: Duration = Duration::from_millis(100);

#[cfg(test)]
mod simulation;

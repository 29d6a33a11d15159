//! State shared by all calls: the sockets, and the blocked calls.

#![allow(unsafe_code)] // the C surface: a pointer that we gave out comes back

use crate::abi::User;
use libc::c_int;
use parking_lot::{Condvar, Mutex, MutexGuard};
use sidecore_net_drill::files::{Answer, Errno, Files};
use sidecore_net_drill::{Host, Settings};
use std::thread::ThreadId;

/// Limit of a blocking call on the thread that moves the clock, in nanoseconds of virtual time.
pub(crate) const PATIENCE_NS: u64 = 10_000_000_000_000;

/// State behind the lock.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) files: Files,
    /// Counter of events that may end a wait.
    changes: u64,
    /// Blocked calls, and those of them that have not checked since the last change.
    waiting: usize,
    behind: usize,
}

/// State of one interface.
#[derive(Debug)]
pub(crate) struct Shim {
    state: Mutex<State>,
    changed: Condvar,
    looked: Condvar,
    /// The thread that moves the clock.
    main: ThreadId,
}

impl Shim {
    /// A stack configured by `flags`.
    pub(crate) fn new(flags: &str) -> Result<Self, String> {
        let mut settings = Settings::default();
        // Scripts for runners of this kind expect segments as the kernel hands them to a NIC.
        let all = ["tso=on"].into_iter().chain(flags.split(','));
        for flag in all.map(str::trim).filter(|flag| !flag.is_empty()) {
            settings.set(flag).map_err(|problem| problem.to_string())?;
        }
        let host = Host::new(&settings).map_err(|error| error.to_string())?;
        Ok(Self {
            state: Mutex::new(State {
                files: Files::new(host),
                changes: 0,
                waiting: 0,
                behind: 0,
            }),
            changed: Condvar::new(),
            looked: Condvar::new(),
            main: std::thread::current().id(),
        })
    }

    /// Locks the sockets; for calls that neither wait nor move the clock.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Wakes the waiting calls to check again.
    pub(crate) fn change(&self, state: &mut State) {
        state.changes += 1;
        state.behind = state.waiting;
        self.changed.notify_all();
    }

    /// Waits until all waiting calls have checked. Called before each move of the clock.
    pub(crate) fn wait_for_lookers(&self, state: &mut MutexGuard<'_, State>) {
        while state.behind > 0 {
            self.looked.wait(state);
        }
    }

    /// Repeats `attempt` until it no longer returns `EAGAIN` or `EINPROGRESS`, where `waits` is
    /// true; until `until_ns` comes, if given, and then returns `EAGAIN`.
    pub(crate) fn call<T>(
        &self,
        waits: impl FnOnce(&Files) -> bool,
        until_ns: Option<u64>,
        mut attempt: impl FnMut(&mut Files) -> Answer<T>,
    ) -> Answer<T> {
        let mut state = self.state.lock();
        let first = attempt(&mut state.files);
        if !is_later(&first) || !waits(&state.files) {
            self.change(&mut state);
            return first;
        }
        self.change(&mut state);
        let mover = std::thread::current().id() == self.main;
        let patience_ns = state.files.host().now_ns() + PATIENCE_NS;
        let until_ns = until_ns.unwrap_or(patience_ns);
        loop {
            if mover {
                // No other thread moves the clock.
                self.wait_for_lookers(&mut state);
                let host = state.files.host();
                if !host.step(until_ns) {
                    host.advance(until_ns);
                }
                self.change(&mut state);
            } else {
                let seen = state.changes;
                state.waiting += 1;
                while state.changes == seen {
                    self.changed.wait(&mut state);
                }
            }
            let answer = attempt(&mut state.files);
            let over = state.files.host().now_ns() >= until_ns;
            if !mover {
                state.waiting -= 1;
                state.behind = state.behind.saturating_sub(1);
                self.looked.notify_all();
            }
            if !is_later(&answer) || over {
                return answer;
            }
        }
    }
}

fn is_later<T>(answer: &Answer<T>) -> bool {
    matches!(answer, Err(Errno(libc::EAGAIN | libc::EINPROGRESS)))
}

/// The interface that `userdata` stands for.
///
/// # Safety
/// `userdata` is null or what [`crate::packetdrill_interface_init`] gave, and not freed.
pub(crate) unsafe fn of<'s>(userdata: User) -> Answer<&'s Shim> {
    // SAFETY: such a pointer came from `Box::into_raw`, and is used through shared references
    // alone.
    unsafe { userdata.cast::<Shim>().as_ref() }.ok_or(Errno(libc::EIO))
}

/// C return value of a call: the value, or -1 with `errno` set.
pub(crate) fn c_result<T: TryInto<R>, R: From<i8>>(answer: Answer<T>) -> R {
    let value = match answer {
        Ok(value) => value.try_into().map_err(|_| libc::EOVERFLOW),
        Err(Errno(errno)) => Err(errno),
    };
    value.unwrap_or_else(|errno| {
        set_errno(errno);
        R::from(-1)
    })
}

fn set_errno(errno: c_int) {
    // SAFETY: the address of this thread's errno, always valid.
    unsafe { *libc::__errno_location() = errno };
}

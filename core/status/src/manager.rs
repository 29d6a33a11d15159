//! The service manager's side of a server: ready, alive, stopping (sd_notify).
//!
//! Must stay true: a process that no service manager started pays nothing. The watchdog hears
//! only after the server has answered for its status, so that a server that hangs is restarted.
//! Source: sd_notify(3), sd_watchdog_enabled(3).

use crate::Status;
use parking_lot::{Condvar, Mutex};
use sd_notify::NotifyState;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A server that its service manager knows to be ready; on drop, to be stopping.
#[derive(Debug)]
pub(crate) struct Managed {
    stop: Arc<Stop>,
}

/// The end of a thread that works at intervals.
#[derive(Debug, Default)]
pub(crate) struct Stop {
    is_over: Mutex<bool>,
    changed: Condvar,
}

impl Stop {
    /// Ends it, at its next wait at the latest.
    pub(crate) fn end(&self) {
        // Under the lock, so that the thread cannot miss it between its look and its wait.
        *self.is_over.lock() = true;
        self.changed.notify_all();
    }

    /// Waits until this time; true as soon as the end has come.
    pub(crate) fn comes_before(&self, next: Instant) -> bool {
        let mut is_over = self.is_over.lock();
        // After a spurious wake-up the wait goes on to the same time.
        while !*is_over && !self.changed.wait_until(&mut is_over, next).timed_out() {}
        *is_over
    }
}

impl Managed {
    /// Reports to the service manager that the server is ready, with a line about it. From then on
    /// it reports at half of the time that is set (`WATCHDOG_USEC`) that the server is alive.
    /// Without a service manager nothing happens.
    #[must_use]
    pub(crate) fn ready(status: &Arc<Status>) -> Self {
        let stop = Arc::new(Stop::default());
        notify(&[
            NotifyState::Ready,
            NotifyState::Status(&one_line(&status.summary())),
        ]);
        if let Some(limit) = sd_notify::watchdog_enabled() {
            let (status, stop) = (Arc::clone(status), Arc::clone(&stop));
            let started = std::thread::Builder::new()
                .name("watchdog".into())
                .spawn(move || be_alive(&status, &stop, limit / 2));
            if let Err(error) = started {
                tracing::warn!("no thread reports to the service manager's watchdog: {error}");
            }
        }
        Self { stop }
    }
}

impl Drop for Managed {
    fn drop(&mut self) {
        self.stop.end();
        notify(&[NotifyState::Stopping]);
    }
}

fn be_alive(status: &Status, stop: &Stop, every: Duration) {
    let mut next = Instant::now() + every;
    loop {
        // Asked first: a server that hangs keeps this thread here, and the manager restarts it.
        if status.is_well() {
            notify(&[NotifyState::Watchdog]);
        }
        if stop.comes_before(next) {
            return;
        }
        next = Instant::now() + every;
    }
}

fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::info!("the service manager does not hear: {error}");
    }
}

/// A message has a line for each of its parts.
fn one_line(text: &str) -> String {
    sidecore_sys::text::printable(text).into_owned()
}

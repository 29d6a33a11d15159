//! Signal handling of long-running commands: an orderly end.
//!
//! Why here: measuring commands poll a flag; servers get a call. Must stay true: a signal after the
//! watch began is never lost, and never ends the process by itself; a server with an [`Ending`] is
//! gone [`END_TIME_MAX`] after the signal, whatever its threads do.

use crate::output;
use anyhow::{Context, Result};
use sidecore_sys::signals::{Handle, Signals};
pub(crate) use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A flag that any of `signals` raises.
pub(crate) fn raise_on(signals: &[i32]) -> Result<Arc<AtomicBool>> {
    let raised = Arc::new(AtomicBool::new(false));
    for &signal in signals {
        signal_hook::flag::register(signal, Arc::clone(&raised))
            .context("cannot watch for signals")?;
    }
    Ok(raised)
}

/// SIGINT, SIGTERM and SIGHUP, kept for a later stop function.
pub(crate) struct Watch(Signals);

/// A thread that stops something on a signal.
pub(crate) struct Watching {
    handle: Handle,
    thread: JoinHandle<()>,
}

impl Watch {
    /// Begins to watch, the hang-up of a terminal included. Call it before the server listens, so
    /// that an early signal leaves no socket behind either.
    pub(crate) fn begin() -> Result<Self> {
        let signals = Signals::new([SIGINT, SIGTERM, SIGHUP]);
        Ok(Self(signals.context("cannot watch for signals")?))
    }

    /// Calls `stop` on every signal from now on, and for those that came before.
    pub(crate) fn stop_with(self, stop: impl Fn() + Send + 'static) -> Result<Watching> {
        let handle = self.0.handle();
        let thread = std::thread::Builder::new()
            .name("signals".to_owned())
            .spawn(move || {
                for _ in self.0 {
                    stop();
                }
            })
            .context("cannot start a thread to watch for signals")?;
        Ok(Watching { handle, thread })
    }
}

impl Watching {
    /// Ends the watch.
    pub(crate) fn end(self) {
        self.handle.close();
        if self.thread.join().is_err() {
            tracing::warn!("the thread that watches for signals failed");
        }
    }
}

/// Bounds the end of a server by SIGINT or SIGTERM, from its first moment on, whatever it waits
/// for. For servers that have nothing to write back: when the time is up, the process ends at once.
pub(crate) struct Ending {
    told: Arc<Told>,
    handle: Handle,
    thread: JoinHandle<()>,
}

/// State shared with the thread that watches.
#[derive(Default)]
struct Told {
    signalled: AtomicBool,
    stop: Mutex<Option<Box<dyn Fn() + Send>>>,
}

impl Told {
    fn tell(&self) {
        if let Some(stop) = &*self.stop.lock().unwrap_or_else(PoisonError::into_inner) {
            stop();
        }
    }
}

impl Ending {
    /// Begins to watch. Call it before the server listens.
    pub(crate) fn begin() -> Result<Self> {
        let mut signals: Signals =
            Signals::new([SIGINT, SIGTERM]).context("cannot watch for SIGINT and SIGTERM")?;
        let handle = signals.handle();
        let told = Arc::new(Told::default());
        let tells = Arc::clone(&told);
        let watch = move || {
            if signals.next().is_none() {
                return; // Closed.
            }
            // Release: partner of the Acquire in `stop_with`.
            tells.signalled.store(true, Ordering::Release);
            tells.tell();
            let begun = Instant::now();
            while begun.elapsed() < END_TIME_MAX {
                if signals.is_closed() {
                    return;
                }
                std::thread::sleep(END_LOOK);
            }
            output::note!(
                "sidecore: not done {} ms after the signal; ending as it is",
                END_TIME_MAX.as_millis()
            );
            leave(1);
        };
        let thread = std::thread::Builder::new()
            .name("signals".to_owned())
            .spawn(watch)
            .context("cannot start a thread to watch for signals")?;
        Ok(Self {
            told,
            handle,
            thread,
        })
    }

    /// Calls `stop` once a signal comes, or at once where one has come.
    pub(crate) fn stop_with(&self, stop: impl Fn() + Send + 'static) {
        let mut place = self
            .told
            .stop
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *place = Some(Box::new(stop));
        drop(place);
        // Acquire: partner of the Release of the watching thread. That thread stops the server, or
        // this one, or both.
        if self.told.signalled.load(Ordering::Acquire) {
            self.told.tell();
        }
    }

    /// A flag that is raised once a signal comes.
    pub(crate) fn flag(&self) -> Arc<AtomicBool> {
        let stop = Arc::new(AtomicBool::new(false));
        let raised = Arc::clone(&stop);
        self.stop_with(move || raised.store(true, Ordering::Release));
        stop
    }

    /// The server has ended.
    pub(crate) fn end(self) {
        self.handle.close();
        if self.thread.join().is_err() {
            tracing::warn!("the thread that watches for signals failed");
        }
    }
}

/// Ends the process at once: without the C library's clean-up and the destructors of loaded
/// objects, which may wait for locks that a thread of ours holds.
pub(crate) fn leave(status: i32) -> ! {
    std::io::stdout().flush().ok();
    signal_hook::low_level::exit(status)
}

/// The longest time from a signal to the end of a server with nothing to write back.
const END_TIME_MAX: Duration = Duration::from_millis(800);
const END_LOOK: Duration = Duration::from_millis(5);

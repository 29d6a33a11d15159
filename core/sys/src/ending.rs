//! The orderly end of a server, by a signal.
//!
//! Must stay true: a signal after the watch began is never lost, and never ends the process by
//! itself; a server with an [`Ending`] is gone `END_TIME_MAX` after the signal, whatever its
//! threads do.

use crate::signals::{Handle, Signals};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// SIGINT, SIGTERM and SIGHUP, kept for a later stop function.
#[derive(Debug)]
pub struct Watch(Signals);

/// A thread that stops something on a signal.
#[derive(Debug)]
pub struct Watching {
    handle: Handle,
    thread: JoinHandle<()>,
}

impl Watch {
    /// Begins to watch, the hang-up of a terminal included. Call it before the server listens, so
    /// that an early signal leaves no socket behind either.
    ///
    /// # Errors
    /// Those of [`Signals::new`].
    pub fn begin() -> io::Result<Self> {
        Signals::new([SIGINT, SIGTERM, SIGHUP]).map(Self)
    }

    /// Calls `stop` on every signal from now on, and for those that came before.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn stop_with(self, stop: impl Fn() + Send + 'static) -> io::Result<Watching> {
        let handle = self.0.handle();
        let thread = thread(move || self.0.for_each(|_| stop()))?;
        Ok(Watching { handle, thread })
    }
}

impl Watching {
    /// Ends the watch.
    pub fn end(self) {
        self.handle.close();
        // A panic of it has been printed; what it stops has ended.
        self.thread.join().ok();
    }
}

/// A bound of the time that a process works: it raises a flag where one was given, so that the work
/// can be saved, and ends the process with status 2 where that takes too long.
#[derive(Debug, Default)]
pub struct TimeLimit {
    stop: Mutex<Option<Arc<AtomicBool>>>,
}

impl TimeLimit {
    /// Begins to count `time`. With a flag to raise, the process has `grace` more to end by itself.
    /// `report` is called right before the process is ended.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn begin(
        time: Duration,
        grace: Duration,
        report: impl FnOnce() + Send + 'static,
    ) -> io::Result<Arc<Self>> {
        let limit = Arc::new(Self::default());
        let watched = Arc::clone(&limit);
        let builder = std::thread::Builder::new().name("time limit".to_owned());
        builder.spawn(move || {
            std::thread::sleep(time);
            if let Some(stop) = watched.flag().take() {
                // Relaxed: a flag alone. A step that takes longer than this is not waited for.
                stop.store(true, Ordering::Relaxed);
                std::thread::sleep(grace);
            }
            report();
            std::process::exit(2);
        })?;
        Ok(limit)
    }

    /// From now on it raises this flag.
    pub fn stop_with(&self, stop: &Arc<AtomicBool>) {
        *self.flag() = Some(Arc::clone(stop));
    }

    fn flag(&self) -> MutexGuard<'_, Option<Arc<AtomicBool>>> {
        self.stop.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Bounds the end of a server by SIGINT or SIGTERM, from its first moment on, whatever it waits
/// for. For servers that have nothing to write back: when the time is up, the process ends at once.
#[derive(Debug)]
pub struct Ending {
    shared: Arc<Shared>,
    watching: Watching,
}

/// State shared with the thread that watches.
#[derive(Default)]
struct Shared {
    signalled: AtomicBool,
    stop: Mutex<Option<Box<dyn Fn() + Send>>>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let signalled = self.signalled.load(Ordering::Relaxed);
        write!(f, "Shared {{ signalled: {signalled} }}")
    }
}

impl Shared {
    fn stop(&self) {
        if let Some(stop) = &*self.stop.lock().unwrap_or_else(PoisonError::into_inner) {
            stop();
        }
    }
}

impl Ending {
    /// Begins to watch. Call it before the server listens. Where the time is up, `late` is called,
    /// and the process ends with status 1.
    ///
    /// # Errors
    /// Those of [`Signals::new`], or no thread can be started.
    pub fn begin(late: impl FnOnce(Duration) + Send + 'static) -> io::Result<Self> {
        let mut signals: Signals = Signals::new([SIGINT, SIGTERM])?;
        let handle = signals.handle();
        let shared = Arc::new(Shared::default());
        let watched = Arc::clone(&shared);
        let watch = move || {
            if signals.next().is_none() {
                return; // Closed.
            }
            // Release: partner of the Acquire in `stop_with`.
            watched.signalled.store(true, Ordering::Release);
            watched.stop();
            let begun = Instant::now();
            while begun.elapsed() < END_TIME_MAX {
                if signals.is_closed() {
                    return;
                }
                std::thread::sleep(END_LOOK);
            }
            late(END_TIME_MAX);
            leave(1);
        };
        let watching = Watching {
            handle,
            thread: thread(watch)?,
        };
        Ok(Self { shared, watching })
    }

    /// Calls `stop` once a signal comes, or at once where one has come.
    pub fn stop_with(&self, stop: impl Fn() + Send + 'static) {
        let stops = self.shared.stop.lock();
        *stops.unwrap_or_else(PoisonError::into_inner) = Some(Box::new(stop));
        // Acquire: partner of the Release of the watching thread. That thread stops the server, or
        // this one, or both.
        if self.shared.signalled.load(Ordering::Acquire) {
            self.shared.stop();
        }
    }

    /// A flag that is raised once a signal comes.
    pub fn flag(&self) -> Arc<AtomicBool> {
        let stop = Arc::new(AtomicBool::new(false));
        let raised = Arc::clone(&stop);
        self.stop_with(move || raised.store(true, Ordering::Release));
        stop
    }

    /// The server has ended.
    pub fn end(self) {
        self.watching.end();
    }
}

fn thread(watch: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    let builder = std::thread::Builder::new().name("signals".to_owned());
    builder.spawn(watch)
}

/// Ends the process at once: without the C library's clean-up and the destructors of loaded
/// objects, which may wait for locks that a thread of ours holds.
pub fn leave(status: i32) -> ! {
    std::io::stdout().flush().ok();
    signal_hook::low_level::exit(status)
}

/// The longest time from a signal to the end of a server with nothing to write back.
const END_TIME_MAX: Duration = Duration::from_millis(800);
const END_LOOK: Duration = Duration::from_millis(5);

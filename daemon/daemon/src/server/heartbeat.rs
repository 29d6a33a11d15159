//! Heartbeat thread: shows clients that the daemon is alive and gets a core.
//!
//! Why here: a client gives up a daemon whose heartbeat stops for 85 ms. On a machine with many
//! more threads than cores an ordinary thread may well wait that long. This one only beats, and
//! runs before all others where the process may ask for that. It rests while there is no client to
//! see it: a wake-up is nearly all of an idle daemon's cost.
//! Must stay true: it beats only while the control thread lives; it never does more than write one
//! word. It is woken before a client learns that it is attached, and clients count from their own
//! first look.

use crate::shm::activity::ActivityPage;
use crate::shm::layout::TICK_MS;
use sidecore_sys::cpu;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Thread that advances the heartbeat until it is dropped.
pub(crate) struct Heartbeat {
    activity: Arc<ActivityPage>,
    pace: Arc<Pace>,
    thread: Option<JoinHandle<()>>,
}

/// Orders to the thread. Relaxed: each is followed by an unpark, which a thread that is about to
/// park does not miss.
#[derive(Default)]
struct Pace {
    stop: AtomicBool,
    rests: AtomicBool,
}

impl Heartbeat {
    /// Starts to beat.
    pub(crate) fn start(activity: Arc<ActivityPage>) -> io::Result<Self> {
        let pace = Arc::new(Pace::default());
        let (page, orders) = (Arc::clone(&activity), Arc::clone(&pace));
        let beat = move || {
            // Where neither is allowed, a busy machine may look like a dead daemon.
            if cpu::run_first().is_err() {
                cpu::set_nice(-10).ok();
            }
            while !orders.stop.load(Ordering::Relaxed) {
                page.beat();
                std::thread::park_timeout(match orders.rests.load(Ordering::Relaxed) {
                    true => REST,
                    false => Duration::from_millis(TICK_MS),
                });
            }
        };
        let thread = std::thread::Builder::new()
            .name("heart".to_owned())
            .spawn(beat)?;
        Ok(Self {
            activity,
            pace,
            thread: Some(thread),
        })
    }

    /// The page that it beats on.
    pub(crate) fn activity(&self) -> &Arc<ActivityPage> {
        &self.activity
    }

    /// Rests from now on, or beats at once and as often as clients expect.
    pub(crate) fn rest(&self, rests: bool) {
        self.pace.rests.store(rests, Ordering::Relaxed);
        self.wake();
    }

    fn wake(&self) {
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        self.pace.stop.store(true, Ordering::Relaxed);
        self.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Time between two beats while it rests.
const REST: Duration = Duration::from_secs(1);

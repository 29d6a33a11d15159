//! Heartbeat thread: shows clients that the daemon is alive and gets a core.
//!
//! Why here: a client gives up a daemon whose heartbeat stops for 85 ms. On a machine with many
//! more threads than cores an ordinary thread may well wait that long. This one only beats, and
//! runs before all others where the process may ask for that. Must stay true: it beats only while
//! the control thread lives; it never does more than write one word.

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
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Heartbeat {
    /// Starts to beat.
    pub(crate) fn start(activity: Arc<ActivityPage>) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let beat = move || {
            // Where neither is allowed, a busy machine may look like a dead daemon.
            if cpu::run_first().is_err() {
                cpu::set_nice(-10).ok();
            }
            // Pairs with nothing: the word says only when to end.
            while !stopped.load(Ordering::Relaxed) {
                activity.beat();
                std::thread::park_timeout(Duration::from_millis(TICK_MS));
            }
        };
        let thread = std::thread::Builder::new()
            .name("heart".to_owned())
            .spawn(beat)?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

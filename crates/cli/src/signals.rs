//! Signal handling of long-running commands: an orderly end.
//!
//! Why here: measuring commands ask now and then whether to go on; servers are told to stop. Must
//! stay true: a signal after the watch began is never lost, and never ends the process by itself.

use anyhow::{Context, Result};
pub(crate) use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::iterator::{Handle, Signals};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::JoinHandle;

/// A flag that any of `signals` raises.
pub(crate) fn raise_on(signals: &[i32]) -> Result<Arc<AtomicBool>> {
    let raised = Arc::new(AtomicBool::new(false));
    for &signal in signals {
        signal_hook::flag::register(signal, Arc::clone(&raised))
            .context("cannot watch for signals")?;
    }
    Ok(raised)
}

/// SIGINT, SIGTERM and perhaps SIGHUP, kept for whoever will stop something.
pub(crate) struct Watch(Signals);

/// A thread that stops something on a signal.
pub(crate) struct Watching {
    handle: Handle,
    thread: JoinHandle<()>,
}

impl Watch {
    /// Begins to watch. To be called before anything is listening, so that an early signal leaves
    /// no socket behind either.
    pub(crate) fn begin() -> Result<Self> {
        Self::begin_for(&[SIGINT, SIGTERM])
    }

    /// As [`Self::begin`], for those that may lose something where a terminal's end kills them.
    pub(crate) fn begin_with_hangup() -> Result<Self> {
        Self::begin_for(&[SIGINT, SIGTERM, SIGHUP])
    }

    fn begin_for(signals: &[i32]) -> Result<Self> {
        Ok(Self(
            Signals::new(signals).context("cannot watch for signals")?,
        ))
    }

    /// Calls `stop` on every signal from now on, and for those that came before.
    pub(crate) fn stop_with(mut self, stop: impl Fn() + Send + 'static) -> Result<Watching> {
        let handle = self.0.handle();
        let thread = std::thread::Builder::new()
            .name("signals".to_owned())
            .spawn(move || {
                for _ in self.0.forever() {
                    stop();
                }
            })
            .context("cannot start a thread to watch for signals")?;
        Ok(Watching { handle, thread })
    }
}

impl Watching {
    /// Watches no longer.
    pub(crate) fn end(self) {
        self.handle.close();
        if self.thread.join().is_err() {
            tracing::warn!("the thread that watches for signals failed");
        }
    }
}

//! Long calls: without the interpreter's lock, and ended by Ctrl-C.
//!
//! The work is done on a thread of its own; the calling one sleeps without the lock and looks for
//! signals some times a second, as only Python's main thread can.
//! Must stay true: the work ends soon after its flag is raised; the call returns only when it has.

use crate::parts::{self, refuse};
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use sidecore_offload::{OffloadError, Pool};
use sidecore_phylo::runner::{Runner, Share, Work};
use sidecore_sys::float::Modes;
use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Does `work`, which is to end when its flag is raised. `tick` is called some times a second, with
/// the lock; its error ends the work, as a signal does.
pub(crate) fn interruptible<T: Send>(
    py: Python<'_>,
    work: impl FnOnce(&AtomicBool) -> T + Send,
    mut tick: impl FnMut() -> PyResult<()>,
) -> PyResult<T> {
    let stop = AtomicBool::new(false);
    let caller = std::thread::current();
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("phylo call".to_owned());
        let working = thread.spawn_scoped(scope, || {
            // Libraries that Python loads may have changed those of its threads.
            Modes::restore();
            let result = work(&stop);
            caller.unpark();
            result
        });
        let working = working.map_err(|error| {
            PyOSError::new_err(format!(
                "cannot start a thread: {error}; allow more processes (ulimit -u), or end some"
            ))
        })?;
        // An exception of the caller ends the loop; it is returned once the work has ended, as that
        // borrows the caller's memory.
        let mut ended = Ok(());
        while ended.is_ok() && !working.is_finished() {
            // The worker's `unpark` ends the wait early; the timeout is for signals.
            py.detach(|| std::thread::park_timeout(LOOK_EVERY));
            ended = py.check_signals().and_then(|()| tick());
        }
        // Relaxed: a flag alone; the result comes by the join.
        stop.store(ended.is_err(), Ordering::Relaxed);
        // The work may take a while to see the flag: it is awaited without the lock.
        let result = py.detach(|| working.join());
        ended?;
        match result {
            Ok(result) => Ok(result),
            // PyO3 makes an exception of a panic that reaches it.
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// Runs loops on `runner` until the flag is raised: then they fail as cancelled.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stoppable<'s, R> {
    pub(crate) runner: R,
    pub(crate) stop: &'s AtomicBool,
}

impl<R> Stoppable<'_, R> {
    fn check(&self) -> Result<(), OffloadError> {
        // Relaxed: a flag alone.
        match self.stop.load(Ordering::Relaxed) {
            true => Err(OffloadError::Cancelled),
            false => Ok(()),
        }
    }
}

impl<R: Runner> Runner for Stoppable<'_, R> {
    fn run<T: Send>(
        &self,
        work: Work,
        chunks: &mut [T],
        unit: impl Fn(&mut T) + Sync,
    ) -> Result<(), OffloadError> {
        self.check()?;
        self.runner.run(work, chunks, unit)
    }

    fn run_sized<T: Send>(
        &self,
        work: Work,
        ns: u64,
        chunks: &mut [T],
        unit: impl Fn(&mut T) + Sync,
    ) -> Result<(), OffloadError> {
        self.check()?;
        self.runner.run_sized(work, ns, chunks, unit)
    }

    fn share(&self) -> Share {
        self.runner.share()
    }

    fn gather(&self, own: &[f64], all: &mut [f64]) {
        self.runner.gather(own, all);
    }
}

/// Does `work` on engines: it gets their runner, whose loops a signal ends.
pub(crate) fn on_engines<T: Send, E: Error + Send + 'static>(
    py: Python<'_>,
    engines: Option<usize>,
    work: impl FnOnce(Stoppable<'_, &Pool>) -> Result<T, E> + Send,
) -> PyResult<T> {
    let (_, pool) = parts::pool(engines, "equi")?;
    let runner = &pool;
    let work = |stop: &AtomicBool| work(Stoppable { runner, stop });
    interruptible(py, work, || Ok(()))?.map_err(refuse)
}

const LOOK_EVERY: Duration = Duration::from_millis(50);

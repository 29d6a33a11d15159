//! Trace of a bootstrap, off-load by off-load, in its own processor time.
//!
//! Why here: wall time on a shared machine says little; a thread's own processor time hardly
//! depends on the other users. The recording is replayed under every policy (`replay.rs`).
//! Must stay true: an off-load is recorded where [`Pool`](sidecore_offload::Pool) would ask its
//! policy, and nowhere else.

use parking_lot::Mutex;
use sidecore_offload::OffloadError;
use sidecore_phylo::runner::{Runner, Work, off_load_class};
use sidecore_sched::ClassId;
use sidecore_sys::clock::thread_cpu_ns;
use std::sync::Arc;

/// One off-load, with its task's work before it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Step {
    /// Nanoseconds outside of loops since the last off-load.
    pub(super) before_ns: f64,
    /// The loop's class.
    pub(super) class: ClassId,
    /// Its chunks.
    pub(super) units: u32,
    /// Nanoseconds of the loop on one core.
    pub(super) loop_ns: f64,
}

/// Work of a task.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Trace {
    /// In order.
    pub(super) steps: Vec<Step>,
    /// Nanoseconds after the last off-load.
    pub(super) after_ns: f64,
}

/// Runs loops on the caller's thread and records them. Clones share the recording.
#[derive(Debug, Clone)]
pub(super) struct Recorder(Arc<Mutex<Recording>>);

#[derive(Debug)]
struct Recording {
    steps: Vec<Step>,
    last_ns: u64,
    /// Cost of one reading of the clock, in nanoseconds.
    look_ns: f64,
}

impl Recorder {
    /// A recording without steps.
    pub(super) fn new() -> Self {
        let began_ns = thread_cpu_ns();
        let last_ns = (0..LOOKS).fold(began_ns, |_, _| thread_cpu_ns());
        let look_ns = last_ns.saturating_sub(began_ns) as f64 / f64::from(LOOKS);
        Self(Arc::new(Mutex::new(Recording {
            steps: Vec::new(),
            last_ns: thread_cpu_ns(),
            look_ns,
        })))
    }

    /// Work of this thread since the last call, or since the beginning.
    pub(super) fn take(&self) -> Trace {
        let mut recording = self.0.lock();
        let now_ns = thread_cpu_ns();
        let after_ns = now_ns.saturating_sub(recording.last_ns) as f64;
        recording.last_ns = now_ns;
        Trace {
            steps: std::mem::take(&mut recording.steps),
            after_ns,
        }
    }
}

impl Runner for Recorder {
    fn run<T: Send>(
        &self,
        work: Work,
        chunks: &mut [T],
        unit: impl Fn(&mut T) + Sync,
    ) -> Result<(), OffloadError> {
        self.run_sized(work, u64::MAX, chunks, unit)
    }

    fn run_sized<T: Send>(
        &self,
        work: Work,
        ns: u64,
        chunks: &mut [T],
        unit: impl Fn(&mut T) + Sync,
    ) -> Result<(), OffloadError> {
        let units = chunks.len() as u32;
        let Some(class) = off_load_class(work, ns, chunks.len()) else {
            chunks.iter_mut().for_each(unit);
            return Ok(());
        };
        let began_ns = thread_cpu_ns();
        chunks.iter_mut().for_each(unit);
        let ended_ns = thread_cpu_ns();
        let mut recording = self.0.lock();
        let before_ns = began_ns.saturating_sub(recording.last_ns) as f64;
        let loop_ns = ended_ns.saturating_sub(began_ns) as f64;
        let look_ns = recording.look_ns;
        recording.steps.push(Step {
            before_ns: (before_ns - look_ns).max(0.0),
            class,
            units,
            loop_ns: (loop_ns - look_ns).max(1.0),
        });
        recording.last_ns = ended_ns;
        Ok(())
    }
}

const LOOKS: u32 = 1_000;

//! The engines of this process, shared by all instances.
//!
//! Must stay true: an alignment too small for a packet never starts a thread. A process that was
//! forked has no engines and does its work on its own thread.

use crate::abi::Refusal;
use parking_lot::Mutex;
use sidecore_likelihood::runner::{Runner, Serial, Work, off_load_class, pool_config};
use sidecore_offload::Pool;
use std::sync::Arc;
use std::thread::available_parallelism;

/// Engines to use: the number of cores unless `SIDECORE_BEAGLE_ENGINES` says less or more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Width(usize);

impl Width {
    /// As the environment says.
    pub(crate) fn of_environment() -> Self {
        let named = std::env::var(VARIABLE).ok();
        let named = named.and_then(|value| value.trim().parse::<usize>().ok());
        let cores = available_parallelism().map_or(1, usize::from);
        Self(named.unwrap_or(cores).clamp(1, ENGINES_MAX))
    }

    /// At most `engines`.
    pub(crate) fn at_most(self, engines: usize) -> Self {
        Self(self.0.min(engines.max(1)))
    }
}

/// Calls `unit` for every chunk; the whole takes one core about `ns` nanoseconds.
pub(crate) fn run<T: Send>(
    width: Width,
    ns: u64,
    chunks: &mut [T],
    unit: impl Fn(&mut T) + Sync,
) -> Result<(), Refusal> {
    let wide = width.0 > 1 && off_load_class(Work::Traverse, ns, chunks.len()).is_some();
    let pool = wide.then(pool).flatten();
    match pool {
        Some(pool) => pool.run_sized(Work::Traverse, ns, chunks, unit),
        None => Serial.run(Work::Traverse, chunks, unit),
    }
    .map_err(|_| Refusal::General)
}

/// The pool of this process; none if its threads could not be started.
fn pool() -> Option<Arc<Pool>> {
    let mut pools = POOL.lock();
    let process = std::process::id();
    match &*pools {
        Some((owner, pool)) if *owner == process => pool.clone(),
        // The threads stayed with the parent.
        Some(_) => None,
        None => {
            let Width(engines) = Width::of_environment();
            let policy = Box::new(sidecore_sched::Equi::default());
            let pool = Pool::start(pool_config(engines, &[], policy)).ok();
            let pool = pool.map(Arc::new);
            *pools = Some((process, pool.clone()));
            pool
        }
    }
}

static POOL: Mutex<Option<(u32, Option<Arc<Pool>>)>> = Mutex::new(None);

const VARIABLE: &str = "SIDECORE_BEAGLE_ENGINES";
const ENGINES_MAX: usize = 64;

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

/// Engines to use: the number of cores unless `SIDECORE_BEAGLE_ENGINES` says less or more. Ranks of
/// an MPI run share the cores of their machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Width(usize);

impl Width {
    /// As the environment says.
    pub(crate) fn of_environment() -> Self {
        let cores = available_parallelism().map_or(1, usize::from);
        Self::of(cores, |name| std::env::var(name).ok())
    }

    fn of(cores: usize, variable: impl Fn(&str) -> Option<String>) -> Self {
        let number = |name: &str| variable(name)?.trim().parse::<usize>().ok();
        let ranks = LOCAL_RANKS.iter().find_map(|name| number(name));
        // A rank count of 0, or none, is taken as 1.
        let share = cores / ranks.unwrap_or(1).max(1);
        Self(number(VARIABLE).unwrap_or(share).clamp(1, ENGINES_MAX))
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
    // Asked before the pool is: a client with little work never starts threads.
    let pool = are_many(width, ns, chunks.len()).then(pool).flatten();
    match pool {
        Some(pool) => pool.run_sized(Work::Traverse, ns, chunks, unit),
        None => Serial.run(Work::Traverse, chunks, unit),
    }
    .map_err(|_| Refusal::General)
}

/// True if some chunks, which take one core about `ns` nanoseconds, are worth several engines.
pub(crate) fn are_many(width: Width, ns: u64, chunks: usize) -> bool {
    width.0 > 1 && off_load_class(Work::Traverse, ns, chunks).is_some()
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
            // A failure is kept as none, so that not every call tries again.
            let pool = Pool::start(pool_config(engines, &[], policy)).ok();
            let pool = pool.map(Arc::new);
            *pools = Some((process, pool.clone()));
            pool
        }
    }
}

static POOL: Mutex<Option<(u32, Option<Arc<Pool>>)>> = Mutex::new(None);

const VARIABLE: &str = "SIDECORE_BEAGLE_ENGINES";
/// The number of ranks on this machine, as Open MPI, MPICH and MVAPICH tell each of them.
const LOCAL_RANKS: [&str; 4] = [
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "MPI_LOCALNRANKS",
    "PMI_LOCAL_SIZE",
    "MV2_COMM_WORLD_LOCAL_SIZE",
];
const ENGINES_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::Width;

    #[test]
    fn ranks_of_a_machine_share_its_cores() {
        let of = |cores: usize, all: &[(&str, &str)]| {
            let found = |name: &str| all.iter().find(|(of, _)| *of == name);
            Width::of(cores, |name| {
                found(name).map(|(_, value)| (*value).to_owned())
            })
            .0
        };
        let ranks = "OMPI_COMM_WORLD_LOCAL_SIZE";
        assert_eq!(of(8, &[]), 8);
        assert_eq!(of(8, &[(ranks, "4")]), 2);
        assert_eq!(of(2, &[(ranks, "4")]), 1, "never none");
        assert_eq!(of(8, &[("PMI_LOCAL_SIZE", "0")]), 8);
        assert_eq!(of(8, &[(ranks, "4"), ("SIDECORE_BEAGLE_ENGINES", "3")]), 3);
        assert_eq!(of(8, &[("SIDECORE_BEAGLE_ENGINES", "many")]), 8);
    }
}

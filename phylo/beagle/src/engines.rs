//! The engines of this process, shared by all instances.
//!
//! Must stay true: an alignment too small for a packet never starts a thread. A process that was
//! forked has no engines and does its work on its own thread. Ranks of an MPI run share their
//! machine's cores, one engine each at least, unless `SIDECORE_BEAGLE_ENGINES` has a number. No
//! engine of a rank is pinned.

use crate::abi::Refusal;
use parking_lot::Mutex;
use sidecore_likelihood::runner::{Runner, Serial, Work, off_load_class, pool_config};
use sidecore_offload::{Pool, PoolConfig};
use std::sync::Arc;
use std::thread::available_parallelism;

/// Engines to use: the number of cores unless `SIDECORE_BEAGLE_ENGINES` says less or more. Ranks of
/// an MPI run share the cores of their machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Width(usize);

impl Width {
    /// As the environment says.
    pub(crate) fn of_environment() -> Self {
        Self::of(Cores::of_process(), variable)
    }

    fn of(cores: Cores, variable: impl Fn(&str) -> Option<String>) -> Self {
        let ranks = local_ranks(&variable);
        let given = variable(VARIABLE).and_then(|text| text.trim().parse().ok());
        Self(given.unwrap_or(cores.share(ranks)).clamp(1, ENGINES_MAX))
    }

    /// At most `engines`.
    pub(crate) fn at_most(self, engines: usize) -> Self {
        Self(self.0.min(engines.max(1)))
    }
}

/// Cores that a process may use.
#[derive(Debug, Clone, Copy)]
struct Cores {
    own: usize,
    /// Those of the process that started it, where these are more: it is bound to its own.
    launchers: Option<usize>,
}

impl Cores {
    fn of_process() -> Self {
        let own = available_parallelism().map_or(1, usize::from);
        // Only ranks have a use for the launcher's, which takes two files to read.
        let is_rank = local_ranks(variable) > 1;
        let launchers = is_rank.then(|| {
            let [process, parent] = [
                "self".to_owned(),
                std::os::unix::process::parent_id().to_string(),
            ]
            .map(|id| std::fs::read_to_string(format!("/proc/{id}/status")).ok());
            let (bound, all) = (mask_bits(&process?)?, mask_bits(&parent?)?);
            (bound < all).then_some(all)
        });
        Self {
            own,
            launchers: launchers.flatten(),
        }
    }

    /// The part of one of the ranks on this machine.
    fn share(self, ranks: usize) -> usize {
        match self.launchers {
            // Several ranks may be bound to one set of cores, a socket's.
            Some(all) => self.own.min(all / ranks),
            None => self.own / ranks,
        }
    }
}

/// The number of cores that a process may run on, by its status file.
fn mask_bits(status: &str) -> Option<usize> {
    let mask = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed:"))?;
    let digits = mask.chars().filter_map(|digit| digit.to_digit(16));
    usize::try_from(digits.map(u32::count_ones).sum::<u32>()).ok()
}

/// The ranks of an MPI run on this machine, 1 outside one.
fn local_ranks(variable: impl Fn(&str) -> Option<String>) -> usize {
    let ranks = LOCAL_RANKS.iter().find_map(|name| {
        // Slurm's is a list by machine, as `4(x2),3`; the first stands for all.
        let text = variable(name)?;
        let text = text.trim();
        let end = text.find(|digit: char| !digit.is_ascii_digit());
        text[..end.unwrap_or(text.len())].parse::<usize>().ok()
    });
    // A rank count of 0, or none, is taken as 1.
    ranks.unwrap_or(1).max(1)
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
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
            let config = PoolConfig {
                // Every rank would choose the same cores.
                pin: local_ranks(variable) == 1,
                ..pool_config(engines, &[], policy)
            };
            // A failure is kept as none, so that not every call tries again.
            let pool = Pool::start(config).ok();
            let pool = pool.map(Arc::new);
            *pools = Some((process, pool.clone()));
            pool
        }
    }
}

static POOL: Mutex<Option<(u32, Option<Arc<Pool>>)>> = Mutex::new(None);

const VARIABLE: &str = "SIDECORE_BEAGLE_ENGINES";
/// The number of ranks on this machine, as Open MPI, MPICH, Intel MPI, MVAPICH, Cray PALS, Spectrum
/// MPI and Slurm tell each of them.
const LOCAL_RANKS: [&str; 7] = [
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "MPI_LOCALNRANKS",
    "PMI_LOCAL_SIZE",
    "MV2_COMM_WORLD_LOCAL_SIZE",
    "PALS_LOCAL_SIZE",
    "JSM_NAMESPACE_LOCAL_SIZE",
    // Of a step: a batch script, which has the job's numbers, is no rank.
    "SLURM_STEP_TASKS_PER_NODE",
];
const ENGINES_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::{Cores, Width, mask_bits};

    fn width(own: usize, launchers: Option<usize>, all: &[(&str, &str)]) -> usize {
        let found = |name: &str| all.iter().find(|(of, _)| *of == name);
        let variable = |name: &str| found(name).map(|(_, value)| (*value).to_owned());
        Width::of(Cores { own, launchers }, variable).0
    }

    #[test]
    fn ranks_of_a_machine_share_its_cores() {
        let of = |cores: usize, all: &[(&str, &str)]| width(cores, None, all);
        let ranks = "OMPI_COMM_WORLD_LOCAL_SIZE";
        assert_eq!(of(8, &[]), 8);
        assert_eq!(of(8, &[(ranks, "4")]), 2);
        assert_eq!(of(2, &[(ranks, "4")]), 1, "never none");
        assert_eq!(of(8, &[("PMI_LOCAL_SIZE", "0")]), 8);
        assert_eq!(of(8, &[(ranks, "4"), ("SIDECORE_BEAGLE_ENGINES", "3")]), 3);
        assert_eq!(of(8, &[("SIDECORE_BEAGLE_ENGINES", "many")]), 8);
        let slurm = "SLURM_STEP_TASKS_PER_NODE";
        assert_eq!(of(8, &[(slurm, "4(x2),3")]), 2);
        assert_eq!(of(8, &[(slurm, "2")]), 4);
        assert_eq!(of(8, &[(slurm, "")]), 8);
    }

    #[test]
    fn a_rank_that_is_bound_to_cores_has_these() {
        let of = |own, launchers, ranks| {
            width(
                own,
                Some(launchers),
                &[("OMPI_COMM_WORLD_LOCAL_SIZE", ranks)],
            )
        };
        // Two ranks with four cores each, eight of one socket of two, four of a core each.
        assert_eq!(of(4, 8, "2"), 4);
        assert_eq!(of(16, 32, "8"), 4);
        assert_eq!(of(1, 4, "4"), 1);
    }

    #[test]
    fn cores_are_counted_in_a_mask() {
        let status =
            "Name:\tmb\nCpus_allowed:\t0000000f,ffffffff,80000001\nCpus_allowed_list:\t-\n";
        assert_eq!(mask_bits(status), Some(38));
        assert_eq!(mask_bits("Name:\tmb\n"), None);
        let own = std::fs::read_to_string("/proc/self/status").map(|status| mask_bits(&status));
        assert!(own.is_ok_and(|bits| bits > Some(0)));
    }
}

//! Role of this process: alone, or one rank of a job that `mpirun` started.

use super::setup::Setup;
use anyhow::Result;
use sidecore_phylo::io::ranks::{Leader, Member};
use sidecore_sys::cpu;

pub(super) struct Role {
    /// The cores that are its own.
    pub(super) cpus: Vec<usize>,
    /// Number of ranks of the job.
    pub(super) job_size: u32,
    /// Rank 0 of several: where the others connect, and what identifies the run.
    pub(super) others: Option<(Leader, String)>,
    /// Any other rank: for whom it works.
    pub(super) member: Option<Member>,
}

impl Role {
    /// Finds out; under `mpirun` it waits for all ranks.
    #[cfg(feature = "mpi")]
    pub(super) fn here(setup: &Setup) -> Result<Self> {
        use sidecore_phylo::io::mpi;
        if !mpi::is_launched() {
            return Self::alone();
        }
        let rank = mpi::begin()?;
        let run = setup.settings.identity();
        Ok(Self {
            cpus: rank.cpus,
            job_size: rank.size,
            member: (rank.rank > 0).then(|| Member {
                address: rank.address,
                token: rank.token,
                rank: rank.rank,
                run: run.clone(),
            }),
            others: rank.leader.map(|leader| (leader, run)),
        })
    }

    /// Finds out. Without MPI in this program, ranks of a job would write over each other's files.
    #[cfg(not(feature = "mpi"))]
    pub(super) fn here(_: &Setup) -> Result<Self> {
        let size = std::env::var("OMPI_COMM_WORLD_SIZE").ok();
        let size: u32 = size.and_then(|size| size.parse().ok()).unwrap_or(1);
        anyhow::ensure!(
            size == 1,
            "this program was built without MPI; build it with --features mpi (scripts/setup --mpi)"
        );
        Self::alone()
    }

    fn alone() -> Result<Self> {
        Ok(Self {
            cpus: cpu::allowed()?,
            job_size: 1,
            others: None,
            member: None,
        })
    }
}

//! Role of this process: alone, or one rank of a job that `mpirun`, `srun` or the like started.

use super::ranks::RankError;
use super::ranks::farm::Crew;
use super::run::Ranks;
use crate::analysis::plan::Ledger;
use crate::analysis::setup::Setup;
use sidecore_sys::cpu;

#[cfg(feature = "mpi")]
use ranked::Ranked;

/// Role that the launcher gave this process.
pub enum Role {
    /// All there is; the cores that it may use.
    Alone(Vec<usize>),
    /// One of several ranks.
    #[cfg(feature = "mpi")]
    Ranked(Ranked),
}

impl Role {
    /// Finds out; under a launcher it waits for all ranks, which must have the same `identity` of
    /// their run.
    ///
    /// # Errors
    /// [`RankError`].
    #[cfg(feature = "mpi")]
    pub fn here(identity: &str) -> Result<Self, RankError> {
        use crate::io::mpi;
        if !mpi::is_launched() {
            return Ok(Self::Alone(cpu::allowed()?));
        }
        let job = mpi::Job::begin(identity)?;
        match job.ranks() {
            // The job ends here, and MPI with it: one rank needs no messages.
            1 => Ok(Self::Alone(job.cpus().to_vec())),
            _ => Ok(Self::Ranked(Ranked::new(job))),
        }
    }

    /// Finds out. Without MPI in this program, ranks of a job would write over each other's files.
    ///
    /// # Errors
    /// [`RankError`].
    #[cfg(not(feature = "mpi"))]
    pub fn here(_identity: &str) -> Result<Self, RankError> {
        // Open MPI, MPICH and Slurm give their processes the number of ranks so.
        let size = ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"]
            .iter()
            .find_map(|name| std::env::var(name).ok()?.parse::<u32>().ok());
        match size {
            None | Some(1) => Ok(Self::Alone(cpu::allowed()?)),
            Some(_) => Err(RankError::NoMpi),
        }
    }

    /// The cores that are its own.
    #[must_use]
    pub fn cpus(&self) -> &[usize] {
        match self {
            Self::Alone(cpus) => cpus,
            #[cfg(feature = "mpi")]
            Self::Ranked(ranked) => ranked.cpus(),
        }
    }

    /// True of a rank that works for rank 0.
    #[must_use]
    pub fn is_member(&self) -> bool {
        match self {
            Self::Alone(_) => false,
            #[cfg(feature = "mpi")]
            Self::Ranked(ranked) => ranked.is_member(),
        }
    }

    /// Agrees with the other ranks on how many do one search: `wanted`, or the number that fits the
    /// ledger's open tasks. Only rank 0 has a ledger. Returns a line for the log.
    pub fn agree(
        &mut self,
        wanted: Option<u32>,
        ledger: Option<&Ledger>,
        patterns: usize,
    ) -> Option<String> {
        match self {
            Self::Alone(_) => {
                let _ = (wanted, ledger, patterns);
                None
            }
            #[cfg(feature = "mpi")]
            Self::Ranked(ranked) => Some(ranked.agree(wanted, ledger, patterns)),
        }
    }

    /// Calls `act` with the processes that a run controls. Without a `setup` each rank does pieces
    /// of its own.
    pub fn with_ranks<T>(
        &mut self,
        setup: Option<&Setup>,
        crew: Crew<'_>,
        act: impl FnOnce(Ranks<'_>) -> T,
    ) -> T {
        match self {
            Self::Alone(_) => {
                let _ = (setup, crew);
                act(Ranks::Alone)
            }
            #[cfg(feature = "mpi")]
            Self::Ranked(ranked) => ranked.with_ranks(setup, crew, act),
        }
    }

    /// Works for rank 0 until it reports that all is done.
    ///
    /// # Errors
    /// [`RankError`].
    pub fn work(&mut self, setup: Option<&Setup>, crew: Crew<'_>) -> Result<(), RankError> {
        match self {
            Self::Alone(_) => {
                let _ = (setup, crew);
                Ok(())
            }
            #[cfg(feature = "mpi")]
            Self::Ranked(ranked) => ranked.work(setup, crew),
        }
    }

    /// Ends all ranks where one cannot go on, after `tell` was called with its number: the others
    /// would wait for it for ever.
    pub fn settle<T, E>(&self, result: Result<T, E>, tell: impl FnOnce(u32, &E)) -> Result<T, E> {
        match self {
            Self::Alone(_) => {
                let _ = tell;
                result
            }
            #[cfg(feature = "mpi")]
            Self::Ranked(ranked) => ranked.settle(result, tell),
        }
    }
}

#[cfg(feature = "mpi")]
mod ranked {
    use super::*;
    use crate::io::mpi::{Job, MpiTeam};
    use crate::io::ranks::farm;
    use crate::io::ranks::layout::{Layout, ranks_per_search};
    use crate::io::ranks::team::Team;
    use crate::runner::split::Split;

    /// One of several ranks.
    pub struct Ranked {
        job: Job,
        layout: Layout,
        /// Its place in a team, where several ranks do one search.
        place: Option<MpiTeam>,
    }

    impl Ranked {
        pub(super) fn new(job: Job) -> Self {
            // A farm until the ranks have agreed on something else.
            let layout = Layout::new(job.ranks(), 1);
            Self {
                job,
                layout,
                place: None,
            }
        }

        pub(super) fn cpus(&self) -> &[usize] {
            self.job.cpus()
        }

        pub(super) fn is_member(&self) -> bool {
            self.job.rank() > 0
        }

        pub(super) fn agree(
            &mut self,
            wanted: Option<u32>,
            ledger: Option<&Ledger>,
            patterns: usize,
        ) -> String {
            let ranks = self.job.ranks();
            // Members have no ledger; what they propose is not looked at.
            let suits = || ledger.map_or(1, |ledger| ranks_per_search(ranks, ledger, patterns));
            let agreed = self.job.agree(wanted.unwrap_or_else(suits));
            self.layout = Layout::new(ranks, agreed);
            if !self.layout.is_farm() {
                self.place = Some(self.job.join_team(self.layout));
                // A team's search runs on this thread. Where the system refuses, it is slower.
                let _ = cpu::stay_on(self.job.cpus());
            }
            match self.layout.is_farm() {
                true => format!("rank 0 of {ranks}, each with searches of its own"),
                false => format!(
                    "rank 0 of {ranks}, in {} teams that do a search together",
                    self.layout.teams()
                ),
            }
        }

        pub(super) fn settle<T, E>(
            &self,
            result: Result<T, E>,
            tell: impl FnOnce(u32, &E),
        ) -> Result<T, E> {
            result.inspect_err(|error| {
                tell(self.job.rank(), error);
                self.job.abort(2);
            })
        }

        /// Calls `act` with the messages and this rank's part of a team, where there is one.
        pub(super) fn with_ranks<T>(
            &mut self,
            setup: Option<&Setup>,
            crew: Crew<'_>,
            act: impl FnOnce(Ranks<'_>) -> T,
        ) -> T {
            let ranks = self.job.ranks();
            let (rank, layout) = (self.job.rank(), self.layout);
            let post = &mut self.job;
            let Some((place, setup)) = self.place.zip(setup) else {
                return act(Ranks::Farm { post, ranks });
            };
            let searches = setup.searches(Split {
                runner: crew.pool,
                peers: place,
            });
            // The ranks of a team are neighbours, which share a machine as far as they can.
            let own = layout.ranks(layout.team(rank));
            let team = Team {
                rank,
                ranks: (own.start, own.end),
                peers: &place,
                job: &searches,
                save_every: crew.save_every,
            };
            act(Ranks::Teams { post, layout, team })
        }

        /// Works for rank 0 until it reports that all is done.
        pub(super) fn work(
            &mut self,
            setup: Option<&Setup>,
            crew: Crew<'_>,
        ) -> Result<(), RankError> {
            self.with_ranks(setup, crew, |ranks| match ranks {
                Ranks::Alone => Ok(()),
                Ranks::Farm { post, .. } => farm::work(post, crew),
                Ranks::Teams { post, team, .. } => team.work(post),
            })
        }
    }
}

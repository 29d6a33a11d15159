//! A run: its coordinator, its files, the workers of this process, and those of other processes
//! where there are any.

use super::files::{Files, FilesKeeper};
use super::ranks::farm::{self, Crew, Lead};
use super::ranks::layout::Layout;
use super::ranks::post::Post;
use super::ranks::team::Team;
use crate::analysis::AnalysisError;
use crate::analysis::coordinator::{Coordinator, Ended, Environment, Message, coordinate};
use crate::analysis::plan::Ledger;
use crate::analysis::workers::{Event, Workers};
use std::sync::atomic::AtomicBool;
use std::sync::mpsc;

/// The processes that a run is led for, from rank 0.
pub enum Ranks<'r> {
    /// This one alone.
    Alone,
    /// Each does pieces of its own.
    Farm {
        /// The messages.
        post: &'r mut (dyn Post + 'static),
        /// Number of ranks, this one too.
        ranks: u32,
    },
    /// Teams of engines that do a piece together.
    Teams {
        /// The messages.
        post: &'r mut (dyn Post + 'static),
        /// The teams.
        layout: Layout,
        /// This rank's part in its own.
        team: Team<'r>,
    },
}

/// Parts of a run.
pub struct Run<'r> {
    /// This process's workers; in a team they only help the search on the calling thread.
    pub crew: Crew<'r>,
    /// The other processes.
    pub ranks: Ranks<'r>,
    /// The seed of the convergence tests.
    pub seed: u64,
    /// Raised to stop it.
    pub stop: &'r AtomicBool,
    /// Sees the ledger after every change and a few times a second; true if something was
    /// finished. May be called on another thread.
    pub watch: &'r mut (dyn FnMut(&Ledger, bool) + Send),
}

impl Run<'_> {
    /// Does the open work of the ledger. Blocks until all is done or it was stopped, which then
    /// ends the other ranks, too.
    ///
    /// # Errors
    /// [`AnalysisError`].
    pub fn go(self, files: &mut Files, ledger: Ledger) -> Result<(Ended, Ledger), AnalysisError> {
        let mut coordinator = Coordinator::new(ledger);
        let mut keeper = FilesKeeper {
            files,
            watch: self.watch,
        };
        let lead = Lead {
            coordinator: &mut coordinator,
            keeper: &mut keeper,
            runner: self.crew.pool,
            stop: self.stop,
            seed: self.seed,
        };
        let ended = match self.ranks {
            Ranks::Alone => alone(self.crew, lead)?,
            Ranks::Farm { post, ranks } => farm::lead(post, 1..ranks, self.crew, lead)?,
            Ranks::Teams { post, layout, team } => {
                let leaders = (1..layout.teams()).map(|team| layout.ranks(team).start);
                team.lead_all(post, leaders, lead)?
            }
        };
        Ok((ended, coordinator.ledger))
    }
}

/// A run of this process alone: the coordinator on the calling thread, which blocks, and the
/// workers of `crew`. Needs no files: the keeper in `lead` stores the changes.
///
/// # Errors
/// [`AnalysisError`].
pub fn alone(
    crew: Crew<'_>,
    lead: Lead<'_, sidecore_offload::Pool>,
) -> Result<Ended, AnalysisError> {
    // Before any thread or fiber is started.
    if lead.coordinator.ledger.is_done() {
        return Ok(Ended::Done);
    }
    let (sender, mailbox) = mpsc::channel();
    let tell = |event: Event| {
        // The send fails only when the run is over and the receiver is dropped.
        let _ = sender.send(Message::From(0, event));
    };
    let Crew {
        pool,
        cpus,
        job,
        save_every,
    } = crew;
    Workers::run(pool, cpus, job, save_every, &tell, |workers| {
        let mut environment = Environment {
            mailbox: &mailbox,
            deliver: &mut |_, order| workers.deliver(order),
            keeper: lead.keeper,
            runner: lead.runner,
            stop: lead.stop,
            seed: lead.seed,
        };
        coordinate(lead.coordinator, &mut environment)
    })?
}

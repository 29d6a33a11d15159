//! A run: its coordinator on the caller's thread, its files, the workers of
//! this process, and those of other processes where there are any.

use super::files::{Files, FilesKeeper};
use super::ranks::{Leader, Links};
use crate::analysis::AnalysisError;
use crate::analysis::coordinator::{Coordinator, Ended, Environment, Message, coordinate};
use crate::analysis::plan::Ledger;
use crate::analysis::workers::{Event, Job, Workers};
use sidecore_offload::Pool;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc;
use std::time::Duration;

/// Parts of a run.
pub struct Run<'r> {
    /// Its engines.
    pub pool: &'r Pool,
    /// The cores that its tasks' serial parts run on.
    pub cpus: &'r [usize],
    /// The job that does pieces; its runner is the pool.
    pub job: &'r dyn Job,
    /// The listener that other processes connect to, and the run's identity.
    pub others: Option<(Leader, String)>,
    /// The seed of the convergence tests.
    pub seed: u64,
    /// Interval at which a piece's state is kept.
    pub save_every: Duration,
    /// Raised to stop it.
    pub stop: &'r AtomicBool,
    /// Sees the ledger after every change and a few times a second; true where something was
    /// finished.
    pub watch: &'r mut dyn FnMut(&Ledger, bool),
}

impl Run<'_> {
    /// Does what the ledger has open. Blocks until all is done or it was stopped.
    ///
    /// # Errors
    /// [`AnalysisError`].
    pub fn go(self, files: &mut Files, ledger: Ledger) -> Result<(Ended, Ledger), AnalysisError> {
        let (sender, mailbox) = mpsc::channel();
        let tell = |event: Event| {
            // Nobody listens any more only when the run is over.
            let _ = sender.send(Message::From(0, event));
        };
        let mut coordinator = Coordinator::new(ledger);
        if coordinator.ledger.is_done() {
            return Ok((Ended::Done, coordinator.ledger));
        }
        let mailed = sender.clone();
        let links = self.others.map(|(leader, run)| leader.start(run, mailed));
        let (job, save_every) = (self.job, self.save_every);
        let ended = Workers::run(self.pool, self.cpus, job, save_every, &tell, |workers| {
            let mut keeper = FilesKeeper {
                files,
                watch: self.watch,
            };
            let mut environment = Environment {
                mailbox: &mailbox,
                deliver: &mut |member, order| match (member, &links) {
                    (0, _) | (_, None) => workers.deliver(order),
                    (member, Some(links)) => links.deliver(member, order),
                },
                keeper: &mut keeper,
                runner: self.pool,
                stop: self.stop,
                seed: self.seed,
            };
            coordinate(&mut coordinator, &mut environment)
        });
        links.iter().for_each(Links::close);
        let ended = ended??;
        Ok((ended, coordinator.ledger))
    }
}

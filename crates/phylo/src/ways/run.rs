//! A run: its foreman on the caller's thread, its files, a crew in this process, and those of other
//! processes where there are any.

use super::files::{Files, FilesKeeper};
use super::ranks::{Leader, Links};
use crate::analysis::AnalysisError;
use crate::analysis::crew::{Crew, Event, Job};
use crate::analysis::foreman::{Desk, Ended, Foreman, Message, lead};
use crate::analysis::plan::Ledger;
use sidecore_offload::Pool;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc;
use std::time::Duration;

/// What a run goes by.
pub struct Run<'r> {
    /// Its engines.
    pub pool: &'r Pool,
    /// The cores that its tasks' serial parts run on.
    pub cpus: &'r [usize],
    /// How pieces are done; its runner is the pool.
    pub job: &'r dyn Job,
    /// Where other processes connect, and what identifies the run to them.
    pub others: Option<(Leader, String)>,
    /// The seed of the convergence tests.
    pub seed: u64,
    /// How often a piece's state is kept.
    pub save_every: Duration,
    /// Raised to stop it.
    pub stop: &'r AtomicBool,
    /// Sees the ledger after every change and a few times a second; true where something was finished.
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
        let mut foreman = Foreman::new(ledger);
        if foreman.ledger.is_done() {
            return Ok((Ended::Done, foreman.ledger));
        }
        let mailed = sender.clone();
        let links = self.others.map(|(leader, run)| leader.start(run, mailed));
        let (job, save_every) = (self.job, self.save_every);
        let ended = Crew::run(self.pool, self.cpus, job, save_every, &tell, |crew| {
            let mut keeper = FilesKeeper {
                files,
                watch: self.watch,
            };
            let mut desk = Desk {
                mailbox: &mailbox,
                deliver: &mut |member, order| match (member, &links) {
                    (0, _) | (_, None) => crew.deliver(order),
                    (member, Some(links)) => links.deliver(member, order),
                },
                keeper: &mut keeper,
                runner: self.pool,
                stop: self.stop,
                seed: self.seed,
            };
            lead(&mut foreman, &mut desk)
        });
        links.iter().for_each(Links::close);
        let ended = ended??;
        Ok((ended, foreman.ledger))
    }
}

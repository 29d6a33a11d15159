//! The farm: every rank does pieces of its own, on tasks of its pool.
//!
//! Called from: the rank's message thread, which passes its orders on to the tasks.

use super::RankError;
use super::line::{Branch, Line, Office};
use super::post::{Pause, Post, encode};
use crate::analysis::AnalysisError;
use crate::analysis::coordinator::{Coordinator, Ended, Environment, Keeper, Message, coordinate};
use crate::analysis::workers::{Event, Job, Order, Workers};
use crate::runner::Runner;
use sidecore_offload::Pool;
use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::channel;
use std::time::Duration;

/// The coordinator's part of a run: its decisions, and the means for them.
pub struct Lead<'l, R> {
    /// Decides on the order of pieces.
    pub coordinator: &'l mut Coordinator,
    /// The keeper of changes.
    pub keeper: &'l mut (dyn Keeper + Send),
    /// Runs the convergence tests.
    pub runner: &'l R,
    /// Raised to stop the run.
    pub stop: &'l AtomicBool,
    /// The run's seed.
    pub seed: u64,
}

/// The workers of one rank.
#[derive(Clone, Copy)]
pub struct Crew<'c> {
    /// The engines.
    pub pool: &'c Pool,
    /// The cores of the tasks' serial parts.
    pub cpus: &'c [usize],
    /// Does pieces.
    pub job: &'c dyn Job,
    /// Interval at which a piece's state is kept.
    pub save_every: Duration,
}

/// Leads all ranks from rank 0, whose own workers are `crew`. Blocks until all is done, or it was
/// stopped, or something failed; then it ends the other ranks.
///
/// # Errors
/// [`AnalysisError`].
pub fn lead<R: Runner>(
    post: &mut dyn Post,
    others: Range<u32>,
    crew: Crew<'_>,
    lead: Lead<'_, R>,
) -> Result<Ended, AnalysisError> {
    let (mailed, mailbox) = channel();
    let own = mailed.clone();
    let tell = move |event: Event| {
        // The send fails only when the run is over and the receiver is dropped.
        let _ = own.send(Message::From(0, event));
    };
    let ended = crew.run(&tell, |workers| {
        coordinate_beside(post, lead, (mailed, mailbox), |office| {
            serve(office, workers)
        })
    });
    let close = encode(&Order::Close);
    others.for_each(|rank| post.send(rank, &close));
    ended?
}

/// Works for rank 0. Blocks until rank 0 closes it.
///
/// # Errors
/// [`RankError`].
pub fn work(post: &mut dyn Post, crew: Crew<'_>) -> Result<(), RankError> {
    let (sender, events) = channel();
    let tell = |event: Event| {
        // Its receiver outlives the workers.
        let _ = sender.send(event);
    };
    let mut branch = Branch { post, events };
    crew.run(&tell, |workers| serve(&mut branch, workers))?
}

impl Crew<'_> {
    fn run<T>(
        self,
        tell: &(dyn Fn(Event) + Sync),
        lead: impl FnOnce(&Workers<'_>) -> T,
    ) -> Result<T, sidecore_offload::OffloadError> {
        Workers::run(self.pool, self.cpus, self.job, self.save_every, tell, lead)
    }
}

/// Gives orders to workers until they are closed.
fn serve(line: &mut impl Line, workers: &Workers<'_>) -> Result<(), RankError> {
    let mut pause = Pause::default();
    loop {
        match line.look(pause.take())? {
            Some(Order::Close) => return Ok(()),
            Some(order) => {
                pause.reset();
                workers.deliver(order);
            }
            None => (),
        }
    }
}

/// Runs the coordinator on a thread of its own, and `serve` on this one until it has ended.
pub(super) fn coordinate_beside<R: Runner>(
    post: &mut dyn Post,
    lead: Lead<'_, R>,
    (mailed, mailbox): (
        std::sync::mpsc::Sender<Message>,
        std::sync::mpsc::Receiver<Message>,
    ),
    serve: impl FnOnce(&mut Office<'_>) -> Result<(), RankError>,
) -> Result<Ended, AnalysisError> {
    let (orders, outbox) = channel();
    let mut office = Office {
        post,
        mailbox: mailed,
        outbox,
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("phylo coordinator".to_owned());
        let coordinating = thread.spawn_scoped(scope, move || {
            let mut environment = Environment {
                mailbox: &mailbox,
                deliver: &mut |member, order| {
                    // The office is there until this thread has ended.
                    let _ = orders.send((member, order));
                },
                keeper: lead.keeper,
                runner: lead.runner,
                stop: lead.stop,
                seed: lead.seed,
            };
            coordinate(lead.coordinator, &mut environment)
        });
        let coordinating = coordinating.map_err(AnalysisError::Thread)?;
        let served = serve(&mut office);
        // Dropping the office closes the coordinator's channel, so that the join cannot wait for
        // ever.
        drop(office);
        let ended = match coordinating.join() {
            Ok(ended) => ended?,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        served.map_err(|error| AnalysisError::Keep(Box::new(error)))?;
        Ok(ended)
    })
}

//! The coordinator: hands pieces out to any number of processes' workers.
//!
//! Why here: the workers may be this process's alone or those of other ranks, which may die; their
//! messages are handled alike. [`Coordinator`] is pure: events in, orders out. [`coordinate`] is
//! the loop around it, on a thread that may block.
//!
//! Must stay true: a piece is with one process's workers at a time; pieces of lost workers are
//! handed out again, from their last saved state.

use super::AnalysisError;
use super::plan::{Kind, Ledger, Next, Outcome, Piece, Stream, seed_of};
use super::workers::{Event, Order};
use crate::bootstrap::{Replicates, Verdict};
use crate::newick::Newick;
use crate::runner::Runner;
use sidecore_bare::width::ToUsize;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

/// A process's workers: 0 are those of the coordinator's own process.
pub type Member = u32;

/// A message to the coordinator.
#[derive(Debug)]
pub enum Message {
    /// An event of a process's workers.
    From(Member, Event),
    /// A process is gone, and its workers with it.
    Lost(Member),
}

/// A change to be stored, so that the run can be resumed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Change<'c> {
    /// A piece is done.
    Finished(&'c Piece, &'c [Outcome]),
    /// A piece's state.
    Saved(&'c Piece, &'c str),
    /// A test was made.
    Tested(&'c Verdict),
}

/// Stores changes, and shows the progress.
pub trait Keeper {
    /// Called after every change, with the ledger that contains it already. May block.
    ///
    /// # Errors
    /// [`AnalysisError::Keep`]; the run then ends.
    fn keep(&mut self, ledger: &Ledger, change: Change<'_>) -> Result<(), AnalysisError>;

    /// A process is gone, with this number of pieces in progress.
    fn lost(&mut self, _member: Member, _pieces: usize) {}

    /// Called a few times a second.
    fn tick(&mut self, _ledger: &Ledger) {}
}

/// The end of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// All is done.
    Done,
    /// It was stopped, all states kept.
    Stopped,
}

/// Assignment of pieces to workers.
#[derive(Debug)]
pub struct Coordinator {
    /// The ledger of finished pieces.
    pub ledger: Ledger,
    idle: BTreeMap<Member, u32>,
    working: BTreeMap<Member, BTreeSet<Piece>>,
    stopping: bool,
}

impl Coordinator {
    /// A coordinator without workers.
    #[must_use]
    pub fn new(ledger: Ledger) -> Self {
        Self {
            ledger,
            idle: BTreeMap::new(),
            working: BTreeMap::new(),
            stopping: false,
        }
    }

    /// A process's workers have a place for one more piece.
    pub fn wanted(&mut self, member: Member) {
        *self.idle.entry(member).or_insert(0) += 1;
    }

    /// True if workers have a piece.
    #[must_use]
    pub fn has(&self, member: Member, piece: &Piece) -> bool {
        let own = self.working.get(&member);
        own.is_some_and(|own| own.contains(piece))
    }

    /// Takes a piece back from workers; false where they did not have it.
    pub fn returned(&mut self, member: Member, piece: &Piece) -> bool {
        let own = self.working.get_mut(&member);
        own.is_some_and(|own| own.remove(piece))
    }

    /// A process is gone; returns the number of pieces that it had.
    pub fn lost(&mut self, member: Member) -> usize {
        self.idle.remove(&member);
        let pieces = self.working.remove(&member).unwrap_or_default();
        pieces.iter().for_each(|piece| self.ledger.give_back(piece));
        pieces.len()
    }

    /// Pieces for the members that want some; the member with the fewest comes first.
    pub fn hand_out(&mut self) -> Vec<(Member, Order)> {
        let mut orders = Vec::new();
        while !self.stopping {
            let load = |member: &Member| self.working.get(member).map_or(0, BTreeSet::len);
            let idle = self.idle.iter().filter(|(_, count)| **count > 0);
            let Some(member) = idle.map(|(member, _)| *member).min_by_key(load) else {
                break;
            };
            let Next::Piece(piece) = self.ledger.take_next() else {
                break;
            };
            if let Some(count) = self.idle.get_mut(&member) {
                *count -= 1;
            }
            self.working.entry(member).or_default().insert(piece);
            let saved = self.ledger.saved(&piece).map(str::to_owned);
            orders.push((member, Order::Work(piece, saved)));
        }
        orders
    }

    /// Pieces in progress that are no longer needed.
    #[must_use]
    pub fn unwanted(&self) -> Vec<(Member, Order)> {
        let all = self.working.iter();
        let pairs = all.flat_map(|(member, pieces)| pieces.iter().map(|piece| (*member, *piece)));
        pairs
            .filter(|(_, piece)| !self.ledger.is_wanted(piece))
            .map(|(member, piece)| (member, Order::Drop(piece)))
            .collect()
    }

    /// Stops handing out.
    pub fn stop(&mut self) -> Vec<(Member, Order)> {
        self.stopping = true;
        let members = self.working.keys().map(|member| (*member, Order::Stop));
        members.collect()
    }

    /// True while no member has a piece.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.working.values().all(BTreeSet::is_empty)
    }
}

/// Everything that the loop works with.
pub struct Environment<'d, R> {
    /// Messages from workers.
    pub mailbox: &'d Receiver<Message>,
    /// Delivers an order; workers that are gone are not an error: their loss is reported by the
    /// mailbox.
    pub deliver: &'d mut dyn FnMut(Member, Order),
    /// The keeper of changes.
    pub keeper: &'d mut dyn Keeper,
    /// Runs the convergence tests.
    pub runner: &'d R,
    /// Raised to stop the run.
    pub stop: &'d AtomicBool,
    /// The run's seed.
    pub seed: u64,
}

/// Coordinates the workers until all is done, the stop flag is raised, or something fails.
///
/// # Errors
/// [`AnalysisError`]: the error of a piece, a test or the keeper.
pub fn coordinate<R: Runner>(
    coordinator: &mut Coordinator,
    environment: &mut Environment<'_, R>,
) -> Result<Ended, AnalysisError> {
    let mut tests = Tests::default();
    let mut stopping = false;
    loop {
        // Before anything is handed out: a verdict may make pieces unnecessary.
        while let Some(count) = coordinator.ledger.test_due() {
            let verdict = tests.make(&coordinator.ledger, count, environment)?;
            coordinator.ledger.add_verdict(verdict);
            environment
                .keeper
                .keep(&coordinator.ledger, Change::Tested(&verdict))?;
            send(environment, coordinator.unwanted());
        }
        if coordinator.ledger.is_done() {
            return Ok(Ended::Done);
        }
        // Relaxed: a flag alone.
        if !stopping && environment.stop.load(Ordering::Relaxed) {
            stopping = true;
            send(environment, coordinator.stop());
        }
        // Stopped only when all workers have given their pieces back, with their states saved.
        if stopping && coordinator.is_idle() {
            return Ok(Ended::Stopped);
        }
        send(environment, coordinator.hand_out());
        let message = match environment.mailbox.recv_timeout(TICK) {
            Ok(message) => message,
            Err(RecvTimeoutError::Timeout) => {
                environment.keeper.tick(&coordinator.ledger);
                continue;
            }
            Err(RecvTimeoutError::Disconnected) => return Ok(Ended::Stopped),
        };
        match message {
            Message::From(member, Event::Wanted) => coordinator.wanted(member),
            // A piece's events may come from a worker that was counted as lost; then the piece is
            // another's already.
            Message::From(member, Event::Saved(piece, state)) => {
                if !coordinator.has(member, &piece) {
                    continue;
                }
                coordinator.ledger.save(piece, state);
                // None where the piece is done already.
                if let Some(state) = coordinator.ledger.saved(&piece) {
                    let change = Change::Saved(&piece, state);
                    environment.keeper.keep(&coordinator.ledger, change)?;
                }
            }
            Message::From(member, Event::Finished(piece, outcomes)) => {
                if coordinator.returned(member, &piece) {
                    coordinator.ledger.finish(&piece, outcomes.clone());
                    let change = Change::Finished(&piece, &outcomes);
                    environment.keeper.keep(&coordinator.ledger, change)?;
                }
            }
            Message::From(member, Event::Dropped(piece)) => {
                if coordinator.returned(member, &piece) {
                    coordinator.ledger.give_back(&piece);
                }
            }
            Message::From(member, Event::Failed(piece, why)) => {
                if coordinator.returned(member, &piece) {
                    return Err(AnalysisError::Piece {
                        kind: piece.kind,
                        index: piece.first,
                        why,
                    });
                }
            }
            Message::Lost(member) => {
                let pieces = coordinator.lost(member);
                environment.keeper.lost(member, pieces);
            }
        }
    }
}

fn send<R>(environment: &mut Environment<'_, R>, orders: Vec<(Member, Order)>) {
    for (member, order) in orders {
        (environment.deliver)(member, order);
    }
}

/// The replicates that were tested so far.
#[derive(Default)]
struct Tests(Option<Replicates>);

impl Tests {
    fn make<R: Runner>(
        &mut self,
        ledger: &Ledger,
        count: u32,
        environment: &Environment<'_, R>,
    ) -> Result<Verdict, AnalysisError> {
        let known = self.0.as_ref().map_or(0, Replicates::count);
        let bootstraps = ledger.outcomes_of(Kind::Bootstrap);
        // Parsed replicates are kept between tests, so only new ones are added.
        for outcome in bootstraps.take(count.to_usize()).skip(known.to_usize()) {
            let tree = Newick::parse(&outcome.tree).map_err(|error| AnalysisError::State {
                kind: outcome.kind,
                index: outcome.index,
                why: error.to_string(),
            })?;
            let all = match self.0.take() {
                Some(all) => all,
                None => Replicates::new(&tree)?,
            };
            self.0.insert(all).add(&tree)?;
        }
        // The seed depends on the number of replicates alone: a rerun gives the same verdict.
        let seed = seed_of(environment.seed, Kind::Bootstrap, count, Stream::Cuts);
        let options = ledger.goal().convergence;
        let made = self.0.as_ref();
        let verdict = made.map(|all| all.test(seed, &options, environment.runner));
        Ok(verdict.transpose()?.unwrap_or(Verdict {
            replicates: count,
            distance: 0.0,
            within: 0,
            converged: false,
        }))
    }
}

/// Interval at which the stop flag is checked.
const TICK: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests;

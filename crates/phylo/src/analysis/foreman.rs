//! Who hands pieces out: one foreman, any number of crews.
//!
//! Why here: the crews may be this process's alone or those of other ranks, which may die; what to do
//! with what they say is the same. [`Foreman`] is pure: events in, orders out. [`lead`] is the loop
//! around it, on a thread that may block.
//!
//! Must stay true: a piece is with one crew at a time; what a lost crew had is handed out again, from
//! its last saved state.

use super::AnalysisError;
use super::crew::{Event, Order};
use super::plan::{Kind, Ledger, Next, Outcome, Piece, Stream, seed_of};
use crate::bootstrap::convergence::{Replicates, Verdict};
use crate::newick::Newick;
use crate::runner::Runner;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

/// Which crew: 0 is the foreman's own.
pub type Member = u32;

/// What a foreman hears.
#[derive(Debug)]
pub enum Message {
    /// Something from a crew.
    From(Member, Event),
    /// A crew is gone.
    Lost(Member),
}

/// Something to be kept for a run that goes on later.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Change<'c> {
    /// A piece is done.
    Finished(&'c Piece, &'c [Outcome]),
    /// A piece's state.
    Saved(&'c Piece, &'c str),
    /// A test was made.
    Tested(&'c Verdict),
}

/// Keeps what must not be lost, and shows how far things are.
pub trait Keeper {
    /// Called after every change, with the ledger that has it already. May block.
    ///
    /// # Errors
    /// [`AnalysisError::Keep`]; the run then ends.
    fn keep(&mut self, ledger: &Ledger, change: Change<'_>) -> Result<(), AnalysisError>;

    /// A crew is gone, with so many pieces under way.
    fn lost(&mut self, _member: Member, _pieces: usize) {}

    /// Called a few times a second.
    fn tick(&mut self, _ledger: &Ledger) {}
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// All is done.
    Done,
    /// It was stopped, all states kept.
    Stopped,
}

/// Who does what.
#[derive(Debug)]
pub struct Foreman {
    /// What is done.
    pub ledger: Ledger,
    hungry: BTreeMap<Member, u32>,
    working: BTreeMap<Member, BTreeSet<Piece>>,
    stopping: bool,
}

impl Foreman {
    /// Nobody works yet.
    #[must_use]
    pub fn new(ledger: Ledger) -> Self {
        Self {
            ledger,
            hungry: BTreeMap::new(),
            working: BTreeMap::new(),
            stopping: false,
        }
    }

    /// A crew has a place for one more piece.
    pub fn wanted(&mut self, member: Member) {
        *self.hungry.entry(member).or_insert(0) += 1;
    }

    /// A piece is with its crew no longer; whether it was.
    pub fn returned(&mut self, member: Member, piece: &Piece) -> bool {
        let own = self.working.get_mut(&member);
        own.is_some_and(|own| own.remove(piece))
    }

    /// A crew is gone; how many pieces it had.
    pub fn lost(&mut self, member: Member) -> usize {
        self.hungry.remove(&member);
        let pieces = self.working.remove(&member).unwrap_or_default();
        pieces.iter().for_each(|piece| self.ledger.give_back(piece));
        pieces.len()
    }

    /// Pieces for those that want some, to who has the fewest first.
    pub fn hand_out(&mut self) -> Vec<(Member, Order)> {
        let mut orders = Vec::new();
        while !self.stopping {
            let load = |member: &Member| self.working.get(member).map_or(0, BTreeSet::len);
            let hungry = self.hungry.iter().filter(|(_, count)| **count > 0);
            let Some(member) = hungry.map(|(member, _)| *member).min_by_key(load) else {
                break;
            };
            let Next::Piece(piece) = self.ledger.take_next() else {
                break;
            };
            if let Some(count) = self.hungry.get_mut(&member) {
                *count -= 1;
            }
            self.working.entry(member).or_default().insert(piece);
            let saved = self.ledger.saved(&piece).map(str::to_owned);
            orders.push((member, Order::Work(piece, saved)));
        }
        orders
    }

    /// Pieces under way that nobody needs any more.
    #[must_use]
    pub fn unwanted(&self) -> Vec<(Member, Order)> {
        let all = self.working.iter();
        let pairs = all.flat_map(|(member, pieces)| pieces.iter().map(|piece| (*member, *piece)));
        pairs
            .filter(|(_, piece)| !self.ledger.is_wanted(piece))
            .map(|(member, piece)| (member, Order::Drop(piece)))
            .collect()
    }

    /// From now on nothing is handed out.
    pub fn stop(&mut self) -> Vec<(Member, Order)> {
        self.stopping = true;
        let members = self.working.keys().map(|member| (*member, Order::Stop));
        members.collect()
    }

    /// Whether nobody has a piece.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.working.values().all(BTreeSet::is_empty)
    }
}

/// What the loop works with.
pub struct Desk<'d, R> {
    /// What crews say.
    pub mailbox: &'d Receiver<Message>,
    /// Gives an order; a crew that is gone is not an error: its loss comes by the mailbox.
    pub deliver: &'d mut dyn FnMut(Member, Order),
    /// Where changes go.
    pub keeper: &'d mut dyn Keeper,
    /// Runs the convergence tests.
    pub runner: &'d R,
    /// Raised to stop the run.
    pub stop: &'d AtomicBool,
    /// The run's seed.
    pub seed: u64,
}

/// Leads the crews until all is done, it is told to stop, or something fails.
///
/// # Errors
/// [`AnalysisError`]: what a piece, a test or the keeper met.
pub fn lead<R: Runner>(
    foreman: &mut Foreman,
    desk: &mut Desk<'_, R>,
) -> Result<Ended, AnalysisError> {
    let mut tests = Tests::default();
    let mut stopping = false;
    loop {
        while let Some(count) = foreman.ledger.test_due() {
            let verdict = tests.make(&foreman.ledger, count, desk)?;
            foreman.ledger.add_verdict(verdict);
            desk.keeper
                .keep(&foreman.ledger, Change::Tested(&verdict))?;
            send(desk, foreman.unwanted());
        }
        if foreman.ledger.is_done() {
            return Ok(Ended::Done);
        }
        // Relaxed: a flag alone.
        if !stopping && desk.stop.load(Ordering::Relaxed) {
            stopping = true;
            send(desk, foreman.stop());
        }
        if stopping && foreman.is_idle() {
            return Ok(Ended::Stopped);
        }
        send(desk, foreman.hand_out());
        let message = match desk.mailbox.recv_timeout(TICK) {
            Ok(message) => message,
            Err(RecvTimeoutError::Timeout) => {
                desk.keeper.tick(&foreman.ledger);
                continue;
            }
            Err(RecvTimeoutError::Disconnected) => return Ok(Ended::Stopped),
        };
        match message {
            Message::From(member, Event::Wanted) => foreman.wanted(member),
            Message::From(_, Event::Saved(piece, state)) => {
                let change = Change::Saved(&piece, &state);
                desk.keeper.keep(&foreman.ledger, change)?;
                foreman.ledger.save(piece, state);
            }
            Message::From(member, Event::Finished(piece, outcomes)) => {
                if foreman.returned(member, &piece) {
                    foreman.ledger.finish(&piece, outcomes.clone());
                    let change = Change::Finished(&piece, &outcomes);
                    desk.keeper.keep(&foreman.ledger, change)?;
                }
            }
            Message::From(member, Event::Dropped(piece)) => {
                if foreman.returned(member, &piece) {
                    foreman.ledger.give_back(&piece);
                }
            }
            Message::From(_, Event::Failed(piece, why)) => {
                return Err(AnalysisError::Piece {
                    kind: piece.kind,
                    index: piece.first,
                    why,
                });
            }
            Message::Lost(member) => {
                let pieces = foreman.lost(member);
                desk.keeper.lost(member, pieces);
            }
        }
    }
}

fn send<R>(desk: &mut Desk<'_, R>, orders: Vec<(Member, Order)>) {
    for (member, order) in orders {
        (desk.deliver)(member, order);
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
        desk: &Desk<'_, R>,
    ) -> Result<Verdict, AnalysisError> {
        let known = self.0.as_ref().map_or(0, Replicates::count);
        let bootstraps = ledger.outcomes_of(Kind::Bootstrap);
        for outcome in bootstraps.take(count as usize).skip(known as usize) {
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
        let seed = seed_of(desk.seed, Kind::Bootstrap, count, Stream::Cuts);
        let options = ledger.goal().convergence;
        let made = self.0.as_ref();
        let verdict = made.map(|all| all.test(seed, &options, desk.runner));
        Ok(verdict.transpose()?.unwrap_or(Verdict {
            replicates: count,
            distance: 0.0,
            within: 0,
            converged: false,
        }))
    }
}

/// How often to look whether to stop.
const TICK: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests;

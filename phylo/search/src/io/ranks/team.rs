//! A team: several ranks that do one piece together, each with its share of the alignment's chunks.
//!
//! The first rank of a team receives the coordinator's orders; the others run the same search on
//! their share, in step, and all synchronise in every sum ([`crate::runner::split`]). The leader
//! passes its orders on to them, and decides for all when a piece is broken off; it polls for
//! messages between two steps of its search.
//!
//! Must stay true: all ranks of a team begin the same piece from the same state, and continue or
//! break off at the same step.
//! Called from: the rank's message thread, which also searches: so all MPI stays on one thread, and
//! an exchange costs no context switch.

use super::RankError;
use super::farm::{Lead, coordinate_beside};
use super::line::{Branch, Line, next_order};
use super::post::{Mail, Pause, Post, decode, encode};
use crate::analysis::AnalysisError;
use crate::analysis::coordinator::{Ended, Member};
use crate::analysis::plan::Piece;
use crate::analysis::workers::{Event, Job, Order, Watch};
use crate::runner::Runner;
use crate::runner::split::Peers;
use sidecore_offload::task;
use std::ops::{ControlFlow, Range};
use std::sync::mpsc::channel;
use std::time::Duration;

/// One rank's part in a team.
#[derive(Clone, Copy)]
pub struct Team<'t> {
    /// This rank.
    pub rank: Member,
    /// All ranks of the team; the first leads it.
    pub ranks: (Member, Member),
    /// Their means of exchange.
    pub peers: &'t dyn Peers,
    /// Does pieces; its runner has the same peers.
    pub job: &'t dyn Job,
    /// Interval at which a piece's state is kept.
    pub save_every: Duration,
}

impl Team<'_> {
    /// Leads all teams from rank 0, and its own. Blocks; see [`super::farm::lead`]. `leaders` are
    /// the other teams' first ranks.
    ///
    /// # Errors
    /// [`AnalysisError`].
    pub(crate) fn lead_all<R: Runner>(
        self,
        post: &mut dyn Post,
        leaders: impl Iterator<Item = Member>,
        lead: Lead<'_, R>,
    ) -> Result<Ended, AnalysisError> {
        let mail = channel();
        let ended = coordinate_beside(post, lead, mail, |office| self.lead(office));
        let close = encode(&Order::Close);
        leaders.for_each(|rank| post.send(rank, &close));
        ended
    }

    /// Works for rank 0. Blocks until rank 0 closes it.
    ///
    /// # Errors
    /// [`RankError`].
    pub fn work(self, post: &mut dyn Post) -> Result<(), RankError> {
        if self.rank != self.ranks.0 {
            return self.follow(post);
        }
        // Events are sent where they occur: none comes by the channel.
        let (_, events) = channel();
        self.lead(&mut Branch { post, events })
    }

    fn followers(self) -> Range<Member> {
        self.ranks.0 + 1..self.ranks.1
    }

    /// Does one piece after the other with the team.
    fn lead(self, line: &mut impl Line) -> Result<(), RankError> {
        let mut closed = false;
        while !closed {
            line.tell(Event::Wanted);
            let (piece, saved) = loop {
                match next_order(line)? {
                    Order::Work(piece, saved) => break (piece, saved),
                    Order::Close => {
                        self.pass_on(line, &Order::Close);
                        return Ok(());
                    }
                    // No piece is in progress.
                    Order::Drop(_) | Order::Stop => (),
                }
            };
            // The followers get the same order and state: all ranks of a team run the same search.
            let saved_text = saved.clone();
            self.pass_on(line, &Order::Work(piece, saved));
            let mut watch = Leading {
                team: self,
                line,
                piece,
                saved_ns: task::now_ns(),
                stopped: false,
                dropped: false,
                error: None,
                closed: false,
            };
            let result = self.job.run(&piece, saved_text.as_deref(), &mut watch);
            closed = watch.closed;
            // An error of the line means that rank 0 is gone: there is no receiver for a result.
            if let Some(error) = watch.error {
                return Err(error);
            }
            line.tell(match result {
                Ok(Some(outcomes)) => Event::Finished(piece, outcomes),
                Ok(None) => Event::Dropped(piece),
                Err(error) => Event::Failed(piece, error.to_string()),
            });
        }
        self.pass_on(line, &Order::Close);
        Ok(())
    }

    fn pass_on(self, line: &mut impl Line, order: &Order) {
        let message = encode(order);
        self.followers().for_each(|rank| line.send(rank, &message));
    }

    /// Follows the steps of the team's leader.
    fn follow(self, post: &mut dyn Post) -> Result<(), RankError> {
        let mut pause = Pause::default();
        loop {
            match post.receive() {
                Some(Mail::From(from, bytes)) if from == self.ranks.0 => match decode(&bytes) {
                    Some(Order::Work(piece, saved)) => {
                        pause.reset();
                        self.follow_piece(&piece, saved.as_deref())?;
                    }
                    Some(Order::Close) => return Ok(()),
                    Some(Order::Drop(_) | Order::Stop) => (),
                    None => return Err(RankError::Gone),
                },
                Some(Mail::Gone(rank)) if rank == self.ranks.0 => return Err(RankError::Gone),
                Some(_) => (),
                None => std::thread::sleep(pause.take()),
            }
        }
    }

    fn follow_piece(self, piece: &Piece, saved: Option<&str>) -> Result<(), RankError> {
        let mut watch = Following(self.peers);
        let Err(source) = self.job.run(piece, saved, &mut watch) else {
            return Ok(());
        };
        // An error of the alignment or the model hits the leader too, and its report is better.
        std::thread::sleep(LEADER_FIRST);
        Err(RankError::Share {
            rank: self.rank,
            source,
        })
    }
}

/// The leader's watch during a piece.
struct Leading<'w, 't, L> {
    team: Team<'t>,
    line: &'w mut L,
    piece: Piece,
    saved_ns: u64,
    stopped: bool,
    dropped: bool,
    closed: bool,
    error: Option<RankError>,
}

impl<L: Line> Leading<'_, '_, L> {
    fn hear(&mut self) {
        loop {
            match self.line.look(Duration::ZERO) {
                Ok(Some(Order::Drop(piece))) => self.dropped |= piece == self.piece,
                Ok(Some(Order::Stop)) => self.stopped = true,
                Ok(Some(Order::Close)) => {
                    (self.closed, self.dropped) = (true, true);
                    return;
                }
                // The coordinator gives a team one piece at a time.
                Ok(Some(Order::Work(..))) => (),
                Ok(None) => return,
                Err(error) => {
                    (self.error, self.dropped) = (Some(error), true);
                    return;
                }
            }
        }
    }
}

impl<L: Line> Watch for Leading<'_, '_, L> {
    fn step(&mut self, state: &mut dyn FnMut() -> String) -> ControlFlow<()> {
        self.hear();
        let age_ns = task::now_ns().saturating_sub(self.saved_ns);
        if self.stopped || u128::from(age_ns) >= self.team.save_every.as_nanos() {
            self.saved_ns = task::now_ns();
            self.line.tell(Event::Saved(self.piece, state()));
        }
        // All ranks meet here in each step, so that they break off at the same one.
        match self.team.peers.decide(self.stopped || self.dropped) {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }
}

/// The others' watch: they follow the leader's decisions.
struct Following<'f>(&'f dyn Peers);

impl Watch for Following<'_> {
    fn step(&mut self, _: &mut dyn FnMut() -> String) -> ControlFlow<()> {
        match self.0.decide(false) {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }
}

/// Time for the leader to end the job if it has failed as well.
const LEADER_FIRST: Duration = Duration::from_secs(3);

//! Requirements of a run of several ranks, over any message service; here over threads.

use super::farm::{Crew, Lead};
use super::post::{Desk, Mail, Post, decode, encode};
use super::team::Team;
use super::*;
use crate::analysis::AnalysisError;
use crate::analysis::coordinator::{Change, Coordinator, Ended, Keeper};
use crate::analysis::plan::{Bootstraps, Goal, Ledger, Outcome, Piece};
use crate::analysis::workers::{Event, Job, Order, Watch};
use crate::bootstrap::Options;
use crate::runner::Serial;
use crate::runner::split::{Peers, Seat};
use sidecore_offload::{OffloadError, Pool, PoolConfig, task};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Takes some steps, and reports its name.
struct Stepper {
    name: &'static str,
    pieces: AtomicU32,
    steps: u32,
}

/// One that does its share and no more until all others have done their share, too: which process
/// gets a core, and when, is the machine's business.
struct Sharing<'s> {
    own: &'s Stepper,
    others: &'s [&'s Stepper],
    share: u32,
}

impl Job for Sharing<'_> {
    fn run(
        &self,
        piece: &Piece,
        saved: Option<&str>,
        watch: &mut dyn Watch,
    ) -> Result<Option<Vec<Outcome>>, AnalysisError> {
        let pieces = |job: &Stepper| job.pieces.load(Ordering::Relaxed);
        let until = Instant::now() + Duration::from_secs(120);
        let is_short = |job: &&Stepper| pieces(job) < self.share;
        while pieces(self.own) >= self.share && self.others.iter().any(is_short) {
            assert!(Instant::now() < until, "another gets nothing");
            let soon_ns = task::now_ns() + 1_000_000;
            task::sleep_until(soon_ns).map_err(|_| OffloadError::Cancelled)?;
        }
        self.own.run(piece, saved, watch)
    }
}

impl Job for Stepper {
    fn run(
        &self,
        piece: &Piece,
        saved: Option<&str>,
        watch: &mut dyn Watch,
    ) -> Result<Option<Vec<Outcome>>, AnalysisError> {
        self.pieces.fetch_add(1, Ordering::Relaxed);
        let mut step: u32 = saved.map_or(0, |state| state.parse().unwrap());
        while step < self.steps {
            step += 1;
            if watch.step(&mut || step.to_string()).is_break() {
                return Ok(None);
            }
        }
        Ok(Some(vec![Outcome {
            kind: piece.kind,
            index: piece.first,
            lnl: 0.0,
            tree: self.name.to_owned(),
            start: saved.unwrap_or_default().to_owned(),
            models: Vec::new(),
            part_trees: Vec::new(),
            wall_s: 0.0,
        }]))
    }
}

#[derive(Default)]
struct Notes {
    lost: Vec<(u32, usize)>,
    saved: u32,
    finished: u32,
}

impl Keeper for Notes {
    fn keep(&mut self, _: &Ledger, change: Change<'_>) -> Result<(), AnalysisError> {
        match change {
            Change::Saved(..) => self.saved += 1,
            Change::Finished(..) => self.finished += 1,
            Change::Tested(_) => (),
        }
        Ok(())
    }

    fn lost(&mut self, member: u32, pieces: usize) {
        self.lost.push((member, pieces));
    }
}

fn pool() -> Pool {
    Pool::start(PoolConfig {
        engines: 1,
        ..PoolConfig::default()
    })
    .unwrap()
}

fn stepper(name: &'static str, steps: u32) -> Stepper {
    Stepper {
        name,
        pieces: AtomicU32::new(0),
        steps,
    }
}

fn bootstraps(count: u32) -> Coordinator {
    Coordinator::new(Ledger::new(Goal {
        starts: 0,
        bootstraps: Bootstraps::Exactly(count),
        chain: 1,
        convergence: Options::default(),
    }))
}

fn crew<'c>(pool: &'c Pool, job: &'c dyn Job) -> Crew<'c> {
    Crew {
        pool,
        cpus: &[0],
        job,
        save_every: LONG,
    }
}

fn lead<'l>(
    coordinator: &'l mut Coordinator,
    notes: &'l mut Notes,
    stop: &'l AtomicBool,
) -> Lead<'l, Serial> {
    Lead {
        coordinator,
        keeper: notes,
        runner: &Serial,
        stop,
        seed: 1,
    }
}

/// Receives, for a minute at most.
fn await_order(desk: &mut Desk) -> Order {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        match desk.receive() {
            Some(Mail::From(0, message)) => return decode(&message).unwrap(),
            _ => assert!(Instant::now() < until, "no order"),
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn ranks_share_the_pieces() {
    let mut desks = Desk::all(3);
    let [zero, one, two] = ["zero", "one", "two"].map(|name| stepper(name, 5));
    let mut coordinator = bootstraps(60);
    let mut others = desks.split_off(1);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for (own, others_of) in [(&two, [&zero, &one]), (&one, [&zero, &two])] {
            let mut desk = others.pop().unwrap();
            scope.spawn(move || {
                let job = Sharing {
                    own,
                    others: &others_of,
                    share: 5,
                };
                farm::work(&mut desk, crew(&pool(), &job)).unwrap();
            });
        }
        let (pool, mut notes) = (pool(), Notes::default());
        let job = Sharing {
            own: &zero,
            others: &[&one, &two],
            share: 5,
        };
        let lead = lead(&mut coordinator, &mut notes, &stop);
        let ended = farm::lead(&mut desks[0], 1..3, crew(&pool, &job), lead).unwrap();
        assert_eq!((ended, notes.finished), (Ended::Done, 60));
    });
    assert_eq!(coordinator.ledger.outcomes().count(), 60);
    let did = [&zero, &one, &two].map(|job| job.pieces.load(Ordering::Relaxed));
    assert_eq!(did.iter().sum::<u32>(), 60);
    assert!(did.iter().all(|&pieces| pieces >= 5), "{did:?}");
}

#[test]
fn what_a_dead_rank_had_is_done_by_others() {
    let mut desks = Desk::all(3);
    let mut dead = desks.pop().unwrap();
    let mut good = desks.pop().unwrap();
    let mut coordinator = bootstraps(10);
    let mut notes = Notes::default();
    let stop = AtomicBool::new(false);
    let (own, has_two) = (stepper("zero", 5), stepper("dead", 0));
    std::thread::scope(|scope| {
        let told = &has_two;
        scope.spawn(move || {
            // Takes two pieces, keeps a state of one, and dies.
            for _ in 0..2 {
                dead.send(0, &encode(&Event::Wanted));
            }
            let mut pieces = Vec::new();
            for _ in 0..2 {
                let Order::Work(piece, None) = await_order(&mut dead) else {
                    panic!("no piece");
                };
                pieces.push(piece);
            }
            dead.send(0, &encode(&Event::Saved(pieces[0], "3".to_owned())));
            told.pieces.store(1, Ordering::Relaxed);
            drop(dead);
            farm::work(&mut good, crew(&pool(), &stepper("good", 5))).unwrap();
        });
        let pool = pool();
        let job = Sharing {
            own: &own,
            others: &[&has_two],
            share: 1,
        };
        let lead = lead(&mut coordinator, &mut notes, &stop);
        let ended = farm::lead(&mut desks[0], 1..3, crew(&pool, &job), lead).unwrap();
        assert_eq!(ended, Ended::Done);
    });
    assert_eq!(notes.lost, [(2, 2)]);
    let outcomes: Vec<_> = coordinator.ledger.outcomes().collect();
    assert_eq!(outcomes.len(), 10);
    assert!(outcomes.iter().all(|one| one.tree != "dead"));
    // One of its pieces went on from the state that was kept.
    assert_eq!(outcomes.iter().filter(|one| one.start == "3").count(), 1);
}

/// A job with a bug.
struct Panicking;

impl Job for Panicking {
    fn run(
        &self,
        piece: &Piece,
        _: Option<&str>,
        _: &mut dyn Watch,
    ) -> Result<Option<Vec<Outcome>>, AnalysisError> {
        panic!("piece {} has no number", piece.first)
    }
}

#[test]
fn a_piece_that_panics_ends_the_run_on_every_rank() {
    let mut desks = Desk::all(2);
    let mut coordinator = bootstraps(10);
    let (mut notes, stop) = (Notes::default(), AtomicBool::new(false));
    let mut other = desks.pop().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || farm::work(&mut other, crew(&pool(), &Panicking)));
        let (pool, lead) = (pool(), lead(&mut coordinator, &mut notes, &stop));
        let ended = farm::lead(&mut desks[0], 1..2, crew(&pool, &Panicking), lead);
        let said = ended.unwrap_err().to_string();
        assert!(said.contains("has no number"), "{said}");
    });
}

#[test]
fn ranks_notice_that_their_leader_is_gone() {
    let mut desks = Desk::all(2);
    let mut member = desks.pop().unwrap();
    let mut leader = desks.pop().unwrap();
    std::thread::scope(|scope| {
        let job = stepper("late", 1);
        let working = scope.spawn(move || farm::work(&mut member, crew(&pool(), &job)));
        let until = Instant::now() + Duration::from_secs(60);
        while leader.receive().is_none() {
            assert!(Instant::now() < until, "nothing was said");
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(leader);
        assert!(matches!(working.join().unwrap(), Err(RankError::Gone)));
    });
}

/// A piece that all ranks of a team do in step: each adds what all gathered.
struct Together<'t> {
    seat: &'t Seat,
    steps: u32,
    /// Raised by the leader after this many steps of all its pieces.
    stop: Option<(&'t AtomicBool, u32)>,
    taken: AtomicU32,
}

impl Job for Together<'_> {
    fn run(
        &self,
        piece: &Piece,
        saved: Option<&str>,
        watch: &mut dyn Watch,
    ) -> Result<Option<Vec<Outcome>>, AnalysisError> {
        let mut sum: f64 = saved.map_or(0.0, |state| state.parse().unwrap());
        let mut all = vec![0.0; self.seat.share().count];
        let target = f64::from(self.steps) * all.len() as f64;
        while sum < target {
            self.seat.gather(&[1.0], &mut all);
            sum += all.iter().sum::<f64>();
            let taken = self.taken.fetch_add(1, Ordering::Relaxed) + 1;
            if let Some((stop, _)) = self.stop.filter(|(_, after)| *after == taken) {
                stop.store(true, Ordering::Relaxed);
            }
            loop {
                if watch.step(&mut || sum.to_string()).is_break() {
                    return Ok(None);
                }
                // Until the coordinator has seen it, too; all ranks wait as the leader does.
                let stopped = self.stop.is_some_and(|(_, after)| taken >= after);
                if !self.seat.decide(stopped) {
                    break;
                }
            }
        }
        Ok(Some(vec![Outcome {
            kind: piece.kind,
            index: piece.first,
            lnl: sum,
            tree: String::new(),
            start: saved.unwrap_or_default().to_owned(),
            part_trees: Vec::new(),
            models: Vec::new(),
            wall_s: 0.0,
        }]))
    }
}

/// Runs teams of two of four ranks; returns the notes of rank 0.
fn run_teams(coordinator: &mut Coordinator, stop_after: Option<u32>) -> (Ended, Notes) {
    let layout = layout::Layout::new(4, 2);
    let stop = AtomicBool::new(false);
    let mut notes = Notes::default();
    let mut ended = None;
    let tables: Vec<Vec<Seat>> = (0..2).map(|_| Seat::all(2)).collect();
    std::thread::scope(|scope| {
        let mut desks = Desk::all(4);
        for rank in (0..4).rev() {
            let mut desk = desks.pop().unwrap();
            let own = layout.ranks(layout.team(rank));
            let seat = &tables[layout.team(rank) as usize][(rank - own.start) as usize];
            let job = Together {
                seat,
                steps: 20,
                stop: stop_after.filter(|_| rank == 0).map(|after| (&stop, after)),
                taken: AtomicU32::new(0),
            };
            let mut work = move |act: &mut dyn FnMut(Team<'_>, &mut Desk)| {
                let team = Team {
                    rank,
                    ranks: (own.start, own.end),
                    peers: seat,
                    job: &job,
                    save_every: LONG,
                };
                act(team, &mut desk);
            };
            if rank > 0 {
                scope.spawn(move || work(&mut |team, desk| team.work(desk).unwrap()));
                continue;
            }
            work(&mut |team, desk| {
                let lead = lead(coordinator, &mut notes, &stop);
                let leaders = (1..2).map(|team| layout.ranks(team).start);
                ended = Some(team.lead_all(desk, leaders, lead).unwrap());
            });
        }
    });
    (ended.unwrap(), notes)
}

#[test]
fn teams_do_pieces_together() {
    let mut coordinator = bootstraps(12);
    let (ended, notes) = run_teams(&mut coordinator, None);
    assert_eq!((ended, notes.finished), (Ended::Done, 12));
    assert!(coordinator.ledger.outcomes().all(|one| one.lnl == 40.0));
}

#[test]
fn a_team_that_is_stopped_keeps_its_state() {
    let mut coordinator = bootstraps(3);
    let (ended, notes) = run_teams(&mut coordinator, Some(7));
    assert_eq!(ended, Ended::Stopped);
    assert!(notes.saved >= 1, "no state was kept");
    let done = coordinator.ledger.outcomes().count();
    assert!(done < 3);
    // And continues from there.
    let mut again = Coordinator::new(coordinator.ledger);
    let (ended, _) = run_teams(&mut again, None);
    assert_eq!(ended, Ended::Done);
    assert_eq!(again.ledger.outcomes().count(), 3);
    let resumed = again.ledger.outcomes().filter(|one| !one.start.is_empty());
    assert!(resumed.count() >= 1);
}

/// No state is kept because of time.
const LONG: Duration = Duration::from_secs(3600);

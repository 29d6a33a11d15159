//! Members and their leader: shared pieces, deaths, strangers.

use super::*;
use crate::analysis::AnalysisError;
use crate::analysis::coordinator::{
    Change, Coordinator, Ended, Environment, Keeper, Message, coordinate,
};
use crate::analysis::plan::{Bootstraps, Goal, Ledger, Outcome, Piece};
use crate::analysis::workers::{Event, Job, Watch};
use crate::bootstrap::convergence::Options;
use sidecore_offload::{OffloadError, Pool, PoolConfig};
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, channel};

/// Sleeps, and says who it was.
struct Sleeper {
    name: &'static str,
    pieces: AtomicU32,
}

/// One that does its share and no more until the other has done its share, too: which process gets
/// a core, and when, is the machine's business.
struct Sharing<'s> {
    own: &'s Sleeper,
    other: &'s Sleeper,
    share: u32,
}

impl Job for Sharing<'_> {
    fn run(
        &self,
        piece: &Piece,
        saved: Option<&str>,
        watch: &mut dyn Watch,
    ) -> Result<Option<Vec<Outcome>>, AnalysisError> {
        let pieces = |job: &Sleeper| job.pieces.load(Ordering::Relaxed);
        let until = std::time::Instant::now() + std::time::Duration::from_secs(120);
        while pieces(self.own) >= self.share && pieces(self.other) < self.share {
            assert!(std::time::Instant::now() < until, "the other gets nothing");
            let soon_ns = sidecore_offload::task::now_ns() + 1_000_000;
            sidecore_offload::task::sleep_until(soon_ns).map_err(|_| OffloadError::Cancelled)?;
        }
        self.own.run(piece, saved, watch)
    }
}

impl Job for Sleeper {
    fn run(
        &self,
        piece: &Piece,
        _: Option<&str>,
        watch: &mut dyn Watch,
    ) -> Result<Option<Vec<Outcome>>, AnalysisError> {
        self.pieces.fetch_add(1, Ordering::Relaxed);
        for _ in 0..5 {
            let _ =
                sidecore_offload::task::sleep_until(sidecore_offload::task::now_ns() + 1_000_000);
            if watch.step(&mut || "state".to_owned()).is_break() {
                return Ok(None);
            }
        }
        Ok(Some(vec![Outcome {
            kind: piece.kind,
            index: piece.first,
            lnl: 0.0,
            tree: self.name.to_owned(),
            start: String::new(),
            models: Vec::new(),
            part_trees: Vec::new(),
            wall_s: 0.0,
        }]))
    }
}

#[derive(Default)]
struct Losses(Vec<(u32, usize)>);

impl Keeper for Losses {
    fn keep(&mut self, _: &Ledger, _: Change<'_>) -> Result<(), AnalysisError> {
        Ok(())
    }

    fn lost(&mut self, member: u32, pieces: usize) {
        self.0.push((member, pieces));
    }
}

fn pool() -> Pool {
    Pool::start(PoolConfig {
        engines: 1,
        ..PoolConfig::default()
    })
    .unwrap()
}

fn sleeper(name: &'static str) -> Sleeper {
    Sleeper {
        name,
        pieces: AtomicU32::new(0),
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

/// Leads members alone.
fn lead_others(
    coordinator: &mut Coordinator,
    links: &Links,
    mailbox: &Receiver<Message>,
    losses: &mut Losses,
) -> Ended {
    let pool = pool();
    let ended = coordinate(
        coordinator,
        &mut Environment {
            mailbox,
            deliver: &mut |member, order| links.deliver(member, order),
            keeper: losses,
            runner: &pool,
            stop: &AtomicBool::new(false),
            seed: 1,
        },
    );
    links.close();
    ended.unwrap()
}

fn leader() -> (Leader, String) {
    let leader = Leader::bind(Ipv4Addr::LOCALHOST.into(), "secret".to_owned()).unwrap();
    let address = format!("127.0.0.1:{}", leader.port().unwrap());
    (leader, address)
}

fn member(address: &str, rank: u32, token: &str, run: &str) -> Member {
    Member {
        address: address.to_owned(),
        token: token.to_owned(),
        rank,
        run: run.to_owned(),
    }
}

#[test]
fn members_share_the_pieces() {
    let (leader, address) = leader();
    let (sender, mailbox) = channel();
    let links = leader.start("run".to_owned(), sender);
    let mut coordinator = bootstraps(40);
    let (one, two) = (sleeper("one"), sleeper("two"));
    std::thread::scope(|scope| {
        for (rank, own, other) in [(1, &one, &two), (2, &two, &one)] {
            let member = member(&address, rank, "secret", "run");
            scope.spawn(move || {
                let share = 5;
                let job = Sharing { own, other, share };
                member.work(&pool(), &[0], &job, SILENCE).unwrap();
            });
        }
        let ended = lead_others(&mut coordinator, &links, &mailbox, &mut Losses::default());
        assert_eq!(ended, Ended::Done);
    });
    assert_eq!(coordinator.ledger.outcomes().count(), 40);
    let did = [&one, &two].map(|job| job.pieces.load(Ordering::Relaxed));
    assert_eq!(did[0] + did[1], 40);
    assert!(did.iter().all(|&pieces| pieces >= 5), "{did:?}");
}

#[test]
fn what_a_dead_member_had_is_done_by_others() {
    let (leader, address) = leader();
    let (sender, mailbox) = channel();
    let links = leader.start("run".to_owned(), sender);
    let mut coordinator = bootstraps(10);
    let mut losses = Losses::default();
    std::thread::scope(|scope| {
        // Takes two pieces and dies.
        let mut dead = TcpStream::connect(&address).unwrap();
        let hello = r#"{"Hello":{"token":"secret","rank":7,"run":"run"}}"#;
        writeln!(dead, "{hello}\n{0}\n{0}", r#"{"Event":"Wanted"}"#).unwrap();
        let good = member(&address, 1, "secret", "run");
        scope.spawn(move || {
            // Two orders, a line each: it has them when it dies.
            let mut lines = BufReader::new(dead).lines();
            for _ in 0..2 {
                let line = lines.next().unwrap().unwrap();
                assert!(line.contains("Work"), "{line}");
            }
            drop(lines);
            good.work(&pool(), &[0], &sleeper("good"), SILENCE).unwrap();
        });
        let ended = lead_others(&mut coordinator, &links, &mailbox, &mut losses);
        assert_eq!(ended, Ended::Done);
    });
    assert_eq!(losses.0, [(7, 2)]);
    let mut trees = coordinator.ledger.outcomes().map(|one| one.tree.as_str());
    assert!(trees.all(|tree| tree == "good"));
}

#[test]
fn strangers_are_not_listened_to() {
    let (leader, address) = leader();
    let (sender, mailbox) = channel();
    let links = leader.start("run".to_owned(), sender);
    let job = sleeper("no");
    let error = |rank, token, run| {
        let member = member(&address, rank, token, run);
        member
            .work(&pool(), &[0], &job, SILENCE)
            .unwrap_err()
            .to_string()
    };
    assert!(error(1, "guess", "run").contains("rank 0 is gone"));
    assert!(error(1, "secret", "other").contains("not those of rank 0"));
    assert!(error(0, "secret", "run").contains("rank is taken"));
    let mut stranger = TcpStream::connect(&address).unwrap();
    stranger.write_all(&[b'x'; 8192]).unwrap();
    drop(links);
    assert!(
        mailbox
            .try_iter()
            .all(|message| matches!(message, Message::Lost(_)))
    );
    assert_eq!(job.pieces.load(Ordering::Relaxed), 0);
}

#[test]
fn members_notice_that_their_leader_is_gone() {
    let (leader, address) = leader();
    let (sender, mailbox) = channel();
    let links = leader.start("run".to_owned(), sender);
    let job = sleeper("late");
    std::thread::scope(|scope| {
        let member = member(&address, 1, "secret", "run");
        let job = &job;
        let working = scope.spawn(move || member.work(&pool(), &[0], job, SILENCE));
        // It is there.
        let first = mailbox.recv().unwrap();
        assert!(matches!(first, Message::From(1, Event::Wanted)));
        drop(links);
        assert!(matches!(working.join().unwrap(), Err(MemberError::Gone)));
    });
}

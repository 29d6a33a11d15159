//! One result, whatever engines, workers, losses and interruptions there are.

use super::*;
use crate::analysis::plan::{Bootstraps, Goal};
use crate::analysis::workers::{Job, Watch, Workers};
use crate::bootstrap::Options;
use crate::random::Random;
use crate::tree::random_tree;
use sidecore_offload::{OffloadError, Pool, PoolConfig, task};
use std::sync::atomic::AtomicU32;
use std::sync::mpsc;

/// Counts in steps; its tree and its likelihood follow from the piece alone.
struct Fake<'p> {
    pool: &'p Pool,
    steps: u64,
    begun: AtomicU32,
    stop: &'p AtomicBool,
    /// Raises `stop` after this many steps of all pieces.
    stop_after: u32,
    all_steps: AtomicU32,
}

impl Job for Fake<'_> {
    fn run(
        &self,
        piece: &Piece,
        saved: Option<&str>,
        watch: &mut dyn Watch,
    ) -> Result<Option<Vec<Outcome>>, AnalysisError> {
        self.begun.fetch_add(1, Ordering::Relaxed);
        let mut sum: u64 = saved.map_or(0, |state| state.parse().unwrap());
        'steps: while sum < self.steps {
            self.pool.off_load(|_| ())?;
            sum += 1;
            if self.all_steps.fetch_add(1, Ordering::Relaxed) + 1 == self.stop_after {
                self.stop.store(true, Ordering::Relaxed);
            }
            while watch.step(&mut || sum.to_string()).is_continue() {
                if !self.stop.load(Ordering::Relaxed) {
                    continue 'steps;
                }
                // Until the coordinator has seen it, too.
                task::sleep_until(task::now_ns() + 1_000_000)
                    .map_err(|_| OffloadError::Cancelled)?;
            }
            return Ok(None);
        }
        let outcome = |index| {
            // Few moves: these bootstraps converge.
            let seed = seed_of(5, piece.kind, index, Stream::Search);
            let mut tree = random_tree(12, 0.1, &mut Random::new(1));
            let edge = tree.edges().nth((seed % 21) as usize).unwrap();
            let _ = tree.nni(edge, false);
            let names: Vec<String> = (0..12).map(|k| format!("t{k}")).collect();
            Outcome {
                kind: piece.kind,
                index,
                lnl: -(seed as f64),
                tree: tree.to_newick(&names),
                start: String::new(),
                models: Vec::new(),
                part_trees: Vec::new(),
                wall_s: 0.0,
            }
        };
        Ok(Some(
            (piece.first..piece.first + piece.count)
                .map(outcome)
                .collect(),
        ))
    }
}

/// Keeps everything in memory.
#[derive(Default)]
struct Memory {
    finished: Vec<(Piece, Vec<Outcome>)>,
    saved: Vec<(Piece, String)>,
    verdicts: Vec<Verdict>,
}

impl Keeper for Memory {
    fn keep(&mut self, _: &Ledger, change: Change<'_>) -> Result<(), AnalysisError> {
        match change {
            Change::Finished(piece, outcomes) => self.finished.push((*piece, outcomes.to_vec())),
            Change::Saved(piece, state) => self.saved.push((*piece, state.to_owned())),
            Change::Tested(verdict) => self.verdicts.push(*verdict),
        }
        Ok(())
    }
}

impl Memory {
    fn ledger(&self, goal: Goal) -> Ledger {
        let mut ledger = Ledger::new(goal);
        for (piece, outcomes) in &self.finished {
            ledger.finish(piece, outcomes.clone());
        }
        for (piece, state) in &self.saved {
            ledger.save(*piece, state.clone());
        }
        for verdict in &self.verdicts {
            ledger.add_verdict(*verdict);
        }
        ledger
    }
}

const GOAL: Goal = Goal {
    starts: 3,
    bootstraps: Bootstraps::UntilConverged,
    chain: 1,
    convergence: Options {
        every: 20,
        cuts: 100,
        cutoff: 0.03,
        most: 400,
    },
};

/// Runs one process's workers; how it ended, and how many pieces began.
fn run(
    policy: &str,
    engines: usize,
    memory: &mut Memory,
    stop_after: u32,
) -> (Ended, u32, Vec<Outcome>) {
    let pool = Pool::start(PoolConfig {
        engines,
        policy: sidecore_sched::by_name(policy).unwrap(),
        ..PoolConfig::default()
    })
    .unwrap();
    let stop = AtomicBool::new(false);
    let job = Fake {
        pool: &pool,
        steps: 20,
        begun: AtomicU32::new(0),
        stop: &stop,
        stop_after,
        all_steps: AtomicU32::new(0),
    };
    let (sender, mailbox) = mpsc::channel();
    let cpus = sidecore_sys::cpu::allowed().unwrap();
    let tell = |event| sender.send(Message::From(0, event)).unwrap();
    let mut coordinator = Coordinator::new(memory.ledger(GOAL));
    let ended = Workers::run(
        &pool,
        &cpus,
        &job,
        Duration::from_secs(600),
        &tell,
        |workers| {
            let mut environment = Environment {
                mailbox: &mailbox,
                deliver: &mut |_, order| workers.deliver(order),
                keeper: memory,
                runner: &pool,
                stop: &stop,
                seed: 5,
            };
            coordinate(&mut coordinator, &mut environment)
        },
    );
    let begun = job.begun.load(Ordering::Relaxed);
    let outcomes = coordinator.ledger.outcomes().cloned().collect();
    (ended.unwrap().unwrap(), begun, outcomes)
}

#[test]
fn engines_policies_and_interruptions_change_nothing() {
    let (ended, _, expected) = run("edtlp", 1, &mut Memory::default(), 0);
    assert_eq!(ended, Ended::Done);
    let count = expected.len() as u32;
    assert!((43..403).contains(&count), "{count}");
    for (policy, engines) in [("hybrid(2)", 2), ("mgps", 3), ("equi", 4), ("llp(2)", 2)] {
        let (ended, _, outcomes) = run(policy, engines, &mut Memory::default(), 0);
        assert_eq!(ended, Ended::Done);
        assert_eq!(outcomes, expected, "{policy}");
    }
    let mut memory = Memory::default();
    let mut begun = 0;
    for stop_after in [7, 333, 90] {
        let (ended, more, _) = run("equi", 3, &mut memory, stop_after);
        assert_eq!(ended, Ended::Stopped);
        begun += more;
    }
    assert!(!memory.saved.is_empty());
    let (ended, more, outcomes) = run("equi", 3, &mut memory, 0);
    assert_eq!((ended, outcomes), (Ended::Done, expected));
    // Finished pieces were not repeated.
    assert!(begun + more < count + 100, "{begun} {more} {count}");
}

#[test]
fn a_lost_crew_loses_nothing() {
    let mut coordinator = Coordinator::new(Ledger::new(Goal {
        bootstraps: Bootstraps::Exactly(4),
        starts: 0,
        ..GOAL
    }));
    coordinator.wanted(1);
    coordinator.wanted(2);
    coordinator.wanted(1);
    let orders = coordinator.hand_out();
    let members: Vec<Member> = orders.iter().map(|(member, _)| *member).collect();
    assert_eq!(members, [1, 2, 1]);
    let piece = |order: &Order| match order {
        Order::Work(piece, saved) => (*piece, saved.clone()),
        _ => unreachable!("work was asked for"),
    };
    let (first, _) = piece(&orders[0].1);
    coordinator.ledger.save(first, "half".to_owned());
    assert_eq!(coordinator.lost(1), 2);
    assert!(!coordinator.returned(1, &first), "it is nobody's");
    coordinator.wanted(2);
    let again = coordinator.hand_out();
    assert_eq!(piece(&again[0].1), (first, Some("half".to_owned())));
    assert!(coordinator.stop().contains(&(2, Order::Stop)));
    coordinator.wanted(2);
    assert!(coordinator.hand_out().is_empty());
}

/// Saved states, each of which was in the ledger when it was to be kept.
#[derive(Default)]
struct States(Vec<String>);

impl Keeper for States {
    fn keep(&mut self, ledger: &Ledger, change: Change<'_>) -> Result<(), AnalysisError> {
        let Change::Saved(piece, state) = change else {
            return Ok(());
        };
        // The keeper may write the whole ledger instead of the change.
        assert_eq!(ledger.saved(piece), Some(state));
        self.0.push(state.to_owned());
        Ok(())
    }
}

/// The states that are kept of these messages, and the end of the run.
fn kept_of(messages: Vec<Message>) -> (Vec<String>, Result<Ended, AnalysisError>) {
    let (sender, mailbox) = mpsc::channel();
    messages.into_iter().for_each(|it| sender.send(it).unwrap());
    drop(sender);
    let mut states = States::default();
    let mut environment = Environment {
        mailbox: &mailbox,
        deliver: &mut |_, _| (),
        keeper: &mut states,
        runner: &crate::runner::Serial,
        stop: &AtomicBool::new(false),
        seed: 5,
    };
    let ended = coordinate(&mut Coordinator::new(Ledger::new(GOAL)), &mut environment);
    (states.0, ended)
}

const SEARCH: Piece = Piece {
    kind: Kind::Search,
    first: 0,
    count: 1,
};

#[test]
fn a_saved_state_is_in_the_ledger_before_it_is_kept() {
    let saved = |state: &str| Message::From(1, Event::Saved(SEARCH, state.to_owned()));
    let wanted = Message::From(1, Event::Wanted);
    let (states, ended) = kept_of(vec![wanted, saved("one"), saved("two")]);
    assert_eq!(states, ["one", "two"]);
    assert_eq!(ended.unwrap(), Ended::Stopped);
}

#[test]
fn events_of_a_piece_count_only_from_its_present_worker() {
    let saved = |member, state: &str| {
        let event = Event::Saved(SEARCH, state.to_owned());
        Message::From(member, event)
    };
    let messages = vec![
        Message::From(1, Event::Wanted),
        saved(1, "one"),
        Message::Lost(1),
        Message::From(2, Event::Wanted),
        saved(2, "two"),
        // On its way while the first worker was lost.
        saved(1, "late"),
        Message::From(1, Event::Failed(SEARCH, "late".to_owned())),
        saved(2, "three"),
    ];
    let (states, ended) = kept_of(messages);
    assert_eq!(states, ["one", "two", "three"]);
    assert_eq!(ended.unwrap(), Ended::Stopped);
}

#[test]
fn what_fails_ends_the_run() {
    struct Failing;
    impl Job for Failing {
        fn run(
            &self,
            _: &Piece,
            _: Option<&str>,
            _: &mut dyn Watch,
        ) -> Result<Option<Vec<Outcome>>, AnalysisError> {
            Err(AnalysisError::Likelihood(
                crate::likelihood::LikelihoodError::Impossible { lnl: f64::NAN },
            ))
        }
    }
    let pool = Pool::start(PoolConfig {
        engines: 2,
        ..PoolConfig::default()
    })
    .unwrap();
    let (sender, mailbox) = mpsc::channel();
    let cpus = sidecore_sys::cpu::allowed().unwrap();
    let tell = |event| sender.send(Message::From(0, event)).unwrap();
    let mut coordinator = Coordinator::new(Ledger::new(GOAL));
    let stop = AtomicBool::new(false);
    let ended = Workers::run(&pool, &cpus, &Failing, Duration::MAX, &tell, |workers| {
        let mut environment = Environment {
            mailbox: &mailbox,
            deliver: &mut |_, order| workers.deliver(order),
            keeper: &mut Memory::default(),
            runner: &pool,
            stop: &stop,
            seed: 5,
        };
        coordinate(&mut coordinator, &mut environment)
    });
    let error = ended.unwrap().unwrap_err().to_string();
    // Whichever failed first.
    let search = error.split_once(": ").map(|(search, _)| search);
    assert!(matches!(search, Some("search 0" | "search 1")), "{error}");
}

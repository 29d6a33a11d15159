//! The ledger: every piece once, tests in time, random streams that never coincide.

use super::*;
use crate::random::Random;
use std::collections::HashSet;

fn outcome(kind: Kind, index: u32, lnl: f64) -> Outcome {
    Outcome {
        kind,
        index,
        lnl,
        tree: String::new(),
        start: String::new(),
        models: Vec::new(),
        part_trees: Vec::new(),
        wall_s: 0.0,
    }
}

fn outcomes(piece: &Piece) -> Vec<Outcome> {
    let results = piece.results();
    results
        .map(|(kind, index)| outcome(kind, index, -f64::from(index)))
        .collect()
}

fn goal(starts: u32, bootstraps: Bootstraps, chain: u32) -> Goal {
    Goal {
        starts,
        bootstraps,
        chain,
        convergence: Options {
            every: 20,
            most: 90,
            ..Options::default()
        },
    }
}

fn verdict(replicates: u32, converged: bool) -> Verdict {
    Verdict {
        replicates,
        distance: 0.1,
        within: 1,
        converged,
    }
}

#[test]
fn every_piece_once_whatever_is_lost() {
    let mut random = Random::new(8);
    for chain in [1, 10] {
        let mut ledger = Ledger::new(goal(3, Bootstraps::Exactly(25), chain));
        let mut running = Vec::new();
        let mut finished = HashSet::new();
        loop {
            match ledger.take_next() {
                Next::Piece(piece) => running.push(piece),
                Next::Done => break,
                Next::Wait => assert!(!running.is_empty()),
            }
            if random.below(2) == 0 && !running.is_empty() {
                let piece = running.swap_remove(random.below(running.len() as u64) as usize);
                if random.below(3) == 0 {
                    ledger.give_back(&piece);
                } else {
                    assert!(piece.results().all(|it| finished.insert(it)));
                    ledger.finish(&piece, outcomes(&piece));
                }
            }
        }
        assert!(running.is_empty() && ledger.is_done());
        assert_eq!(finished.len(), 28);
        assert_eq!(ledger.outcomes().count(), 28);
        assert_eq!(ledger.progress(), [28, 28]);
        assert_eq!(ledger.best().map(|best| best.index), Some(0));
    }
}

#[test]
fn bootstraps_run_a_block_ahead_of_the_test() {
    let mut ledger = Ledger::new(goal(0, Bootstraps::UntilConverged, 1));
    let take = |ledger: &mut Ledger| match ledger.take_next() {
        Next::Piece(piece) => Some(piece),
        _ => None,
    };
    let first: Vec<Piece> = std::iter::from_fn(|| take(&mut ledger)).collect();
    assert_eq!(first.len(), 40);
    for piece in &first[1..35] {
        ledger.finish(piece, outcomes(piece));
        assert_eq!(ledger.test_due(), None);
    }
    ledger.finish(&first[0], outcomes(&first[0]));
    assert_eq!(ledger.test_due(), Some(20));
    ledger.add_verdict(verdict(20, false));
    assert_eq!(ledger.test_due(), None);
    assert_eq!(take(&mut ledger).map(|piece| piece.first), Some(40));
    for piece in &first[35..] {
        ledger.finish(piece, outcomes(piece));
    }
    assert_eq!(ledger.test_due(), Some(40));
    assert!(!ledger.is_done());
    ledger.add_verdict(verdict(40, true));
    assert!(ledger.is_done());
    assert_eq!(ledger.outcomes().count(), 40);
    assert_eq!(ledger.take_next(), Next::Done);
    let beyond = Piece {
        kind: Kind::Bootstrap,
        first: 40,
        count: 1,
    };
    assert!(!ledger.is_wanted(&beyond) && ledger.is_wanted(&first[39]));
}

#[test]
fn there_is_a_last_test() {
    let mut ledger = Ledger::new(goal(1, Bootstraps::UntilConverged, 20));
    let mut tests = Vec::new();
    loop {
        match ledger.take_next() {
            Next::Piece(piece) => ledger.finish(&piece, outcomes(&piece)),
            Next::Done => break,
            Next::Wait => unreachable!("nothing is under way"),
        }
        while let Some(count) = ledger.test_due() {
            tests.push(count);
            ledger.add_verdict(verdict(count, false));
        }
    }
    assert_eq!(tests, [20, 40, 60, 80, 90]);
    assert_eq!(ledger.outcomes().count(), 91);
}

#[test]
fn more_can_be_asked_for_later() {
    let mut ledger = Ledger::new(goal(1, Bootstraps::Exactly(15), 10));
    let first: Vec<Outcome> = (0..5).map(|k| outcome(Kind::Bootstrap, k, 0.0)).collect();
    let short = Piece {
        kind: Kind::Bootstrap,
        first: 0,
        count: 5,
    };
    ledger.finish(&short, first);
    let _ = ledger.take_next();
    let expected = Piece { count: 10, ..short };
    assert_eq!(ledger.take_next(), Next::Piece(expected));
}

#[test]
fn streams_do_not_meet() {
    let mut seen = HashSet::new();
    for kind in [Kind::Search, Kind::Bootstrap] {
        for index in 0..1_000 {
            for stream in [Stream::Start, Stream::Sites, Stream::Search, Stream::Cuts] {
                assert!(seen.insert(seed_of(7, kind, index, stream)));
            }
        }
    }
}

#[test]
fn bootstraps_are_a_number_or_until_they_have_converged() {
    assert_eq!("auto".parse(), Ok(Bootstraps::UntilConverged));
    assert_eq!("100000".parse(), Ok(Bootstraps::Exactly(100_000)));
    for odd in ["100001", "-1", "Auto", ""] {
        let refused = odd.parse::<Bootstraps>().unwrap_err();
        assert_eq!(refused, "`auto`, or a number from 0 to 100000", "{odd}");
    }
}

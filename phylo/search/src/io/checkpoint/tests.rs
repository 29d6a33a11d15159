//! Checkpoints that are cut, changed and replaced.

use super::*;
use crate::analysis::plan::{Bootstraps, Kind};
use crate::bootstrap::Options;

const GOAL: Goal = Goal {
    starts: 2,
    bootstraps: Bootstraps::Exactly(3),
    chain: 1,
    convergence: Options {
        every: 50,
        cuts: 10,
        cutoff: 0.03,
        most: 100,
    },
};

fn settings(seed: &str) -> Settings {
    let mut settings = Settings::default();
    settings.add("--seed", seed);
    settings.add("alignment", &"ACGT".repeat(100));
    settings
}

fn piece(kind: Kind, first: u32) -> Piece {
    Piece {
        kind,
        first,
        count: 1,
    }
}

fn outcome(kind: Kind, index: u32) -> Outcome {
    Outcome {
        kind,
        index,
        // No short decimal.
        lnl: -1234.0 / 7.0 - f64::from(index),
        tree: "((a,b),c,'d\n\"');".to_owned(),
        start: String::new(),
        models: vec!["JC+FE".to_owned()],
        part_trees: Vec::new(),
        wall_s: 0.1 + 0.2,
    }
}

/// A file with two things done and one under way.
fn filled(path: &Path) -> Ledger {
    let mut checkpoint = Checkpoint::create(path, settings("1")).unwrap();
    let mut ledger = Ledger::new(GOAL);
    for piece in [piece(Kind::Search, 1), piece(Kind::Bootstrap, 0)] {
        let outcomes = vec![outcome(piece.kind, piece.first)];
        ledger.finish(&piece, outcomes.clone());
        let change = Change::Finished(&piece, &outcomes);
        checkpoint.append(&ledger, change).unwrap();
    }
    let under_way = piece(Kind::Search, 0);
    for state in ["one", "two \"quoted\""] {
        ledger.save(under_way, state.to_owned());
        let change = Change::Saved(&under_way, state);
        checkpoint.append(&ledger, change).unwrap();
    }
    ledger
}

fn all(ledger: &Ledger) -> (Vec<Outcome>, Vec<(Piece, String)>) {
    let saved = ledger.all_saved();
    (
        ledger.outcomes().cloned().collect(),
        saved
            .map(|(piece, state)| (*piece, state.to_owned()))
            .collect(),
    )
}

#[test]
fn what_was_kept_comes_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("p.ckp");
    let ledger = filled(&path);
    let (checkpoint, back) = Checkpoint::resume(&path, settings("1"), GOAL).unwrap();
    assert_eq!(all(&back), all(&ledger));
    assert_eq!(back.outcomes().count(), 2);
    // While it is open no other process may have it.
    let error = Checkpoint::resume(&path, settings("1"), GOAL).unwrap_err();
    assert!(matches!(error, FilesError::Locked { .. }), "{error}");
    let error = Checkpoint::create(&path, settings("1")).unwrap_err();
    assert!(matches!(error, FilesError::Locked { .. }), "{error}");
    drop(checkpoint);
    let error = Checkpoint::resume(&path, settings("2"), GOAL).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("another --seed (1; now 2)"), "{text}");
}

#[test]
fn cut_anywhere_it_goes_on_with_whole_lines() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("p.ckp");
    let _ = filled(&path);
    let text = std::fs::read(&path).unwrap();
    let first_line = text.iter().position(|&byte| byte == b'\n').unwrap() + 1;
    let mut counts = std::collections::BTreeSet::new();
    for len in first_line..=text.len() {
        std::fs::write(&path, &text[..len]).unwrap();
        let (mut checkpoint, mut ledger) = Checkpoint::resume(&path, settings("1"), GOAL).unwrap();
        counts.insert(ledger.outcomes().count());
        let more = piece(Kind::Bootstrap, 2);
        let outcomes = vec![outcome(Kind::Bootstrap, 2)];
        ledger.finish(&more, outcomes.clone());
        let change = Change::Finished(&more, &outcomes);
        checkpoint.append(&ledger, change).unwrap();
        drop(checkpoint);
        let (_, back) = Checkpoint::resume(&path, settings("1"), GOAL).unwrap();
        assert_eq!(all(&back), all(&ledger));
    }
    assert_eq!(counts, [0, 1, 2].into());
}

#[test]
fn a_changed_byte_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("p.ckp");
    let _ = filled(&path);
    let text = std::fs::read(&path).unwrap();
    let last_line = text[..text.len() - 1]
        .iter()
        .rposition(|&byte| byte == b'\n')
        .unwrap();
    for at in (0..last_line).step_by(7) {
        let mut spoilt = text.clone();
        spoilt[at] ^= 1;
        std::fs::write(&path, spoilt).unwrap();
        let error = Checkpoint::resume(&path, settings("1"), GOAL).unwrap_err();
        assert!(error.to_string().contains("--redo"), "{at}: {error}");
    }
}

#[test]
fn replaced_states_go() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("p.ckp");
    let mut checkpoint = Checkpoint::create(&path, settings("1")).unwrap();
    let mut ledger = Ledger::new(GOAL);
    let state = "s".repeat(3 << 20);
    for _ in 0..10 {
        let under_way = piece(Kind::Search, 0);
        ledger.save(under_way, state.clone());
        let change = Change::Saved(&under_way, &state);
        checkpoint.append(&ledger, change).unwrap();
    }
    assert!(std::fs::metadata(&path).unwrap().len() < 26 << 20);
    drop(checkpoint);
    let (_, back) = Checkpoint::resume(&path, settings("1"), GOAL).unwrap();
    assert_eq!(all(&back), all(&ledger));
    let names: Vec<_> = std::fs::read_dir(folder.path()).unwrap().collect();
    assert_eq!(names.len(), 1);
}

#[test]
fn one_prefix_has_one_run_whoever_begins_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("p.ckp");
    let locked = |tried: Result<Checkpoint, FilesError>| {
        assert!(matches!(tried, Err(FilesError::Locked { .. })), "{tried:?}");
    };
    let resumed = || Checkpoint::resume(&path, settings("1"), GOAL).map(|(own, _)| own);
    // Of many that begin at once, one has it.
    let began = std::sync::Barrier::new(8);
    let alone = std::thread::scope(|scope| {
        let runs: Vec<_> = (0..8)
            .map(|_| {
                scope.spawn(|| {
                    began.wait();
                    let made = Checkpoint::create(&path, settings("1")).ok();
                    began.wait();
                    made.is_some()
                })
            })
            .collect();
        let all = runs.into_iter().map(|run| run.join().unwrap());
        all.filter(|&has| has).count()
    });
    assert_eq!(alone, 1);
    // Also while, and after, the one that has it writes its file anew.
    let mut checkpoint = resumed().unwrap();
    let ledger = Ledger::new(GOAL);
    for _ in 0..3 {
        checkpoint.compact(&ledger).unwrap();
        locked(resumed());
        locked(Checkpoint::create(&path, settings("1")));
    }
    drop(checkpoint);
    resumed().unwrap();
}

#[test]
fn a_run_that_was_killed_before_its_first_line_begins_anew() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("p.ckp");
    std::fs::write(&path, "").unwrap();
    let (checkpoint, ledger) = Checkpoint::resume(&path, settings("1"), GOAL).unwrap();
    assert_eq!(ledger.outcomes().count(), 0);
    drop(checkpoint);
    let error = Checkpoint::resume(&path, settings("2"), GOAL).unwrap_err();
    assert!(error.to_string().contains("another --seed"), "{error}");
}

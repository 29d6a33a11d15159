//! Pieces that are interrupted and resumed; replicates; states that are damaged.

use super::*;
use crate::model::Model;
use crate::runner::Serial;
use crate::simulate::{numbered_names, simulate};
use crate::tree::random_tree;

fn searches(rapid: bool, seed: u64) -> Searches<Serial> {
    searches_of(["HKY+G", "JC"], rapid, seed)
}

fn searches_of(models: [&str; 2], rapid: bool, seed: u64) -> Searches<Serial> {
    let name = |text| ModelName::parse(text, &mut no_files).unwrap();
    let truth = Model::without_alignment(name("HKY{1/3}+FU{0.3/0.2/0.2/0.3}"));
    let names = numbered_names(8);
    let tree = random_tree(8, 0.1, &mut Random::new(4));
    let alignment = simulate(&tree, &names, &truth, 200, 4).unwrap();
    let sites = [(0..120).collect(), (120..200).collect::<Vec<u32>>()];
    let parts = sites.into_iter().zip(models).map(|(sites, model)| {
        let model = name(model);
        let patterns = Patterns::of_sites(&alignment, model.alphabet(), sites).unwrap();
        PartOptions::new(model, patterns)
    });
    Searches {
        parts: parts.collect(),
        names,
        search: search::Options::default(),
        starts: Starts::Mixed,
        jackknife: None,
        rapid,
        seed,
        runner: Serial,
        growing: Arc::default(),
    }
}

/// Breaks off after `left` steps, with the state.
struct Breaker {
    left: usize,
    state: Option<String>,
    steps: usize,
}

impl Watch for Breaker {
    fn step(&mut self, state: &mut dyn FnMut() -> String) -> ControlFlow<()> {
        self.steps += 1;
        if self.left > 0 {
            self.left -= 1;
            return ControlFlow::Continue(());
        }
        self.state = Some(state());
        ControlFlow::Break(())
    }
}

/// The outcomes, without their times; and how many steps it took.
fn done(job: &Searches<Serial>, piece: &Piece, break_every: usize) -> (Vec<Outcome>, usize) {
    let (mut saved, mut steps) = (None, 0);
    loop {
        let mut breaker = Breaker {
            left: break_every,
            state: None,
            steps: 0,
        };
        let outcomes = job.run(piece, saved.as_deref(), &mut breaker).unwrap();
        steps += breaker.steps;
        match outcomes {
            Some(mut outcomes) => {
                outcomes.iter_mut().for_each(|outcome| outcome.wall_s = 0.0);
                return (outcomes, steps);
            }
            None => saved = breaker.state,
        }
    }
}

#[test]
fn broken_off_anywhere_it_goes_on_to_the_same() {
    let search = Piece {
        kind: Kind::Search,
        first: 1,
        count: 1,
    };
    let chain = Piece {
        kind: Kind::Bootstrap,
        first: 10,
        count: 3,
    };
    for (rapid, piece) in [(false, search), (true, chain)] {
        let job = searches(rapid, 1);
        let (whole, steps) = done(&job, &piece, usize::MAX);
        assert_eq!(whole.len(), piece.count as usize);
        assert!(whole.iter().all(|outcome| outcome.models.len() == 2));
        for break_every in [1, 2, steps / 2] {
            let (outcomes, _) = done(&job, &piece, break_every);
            assert_eq!(outcomes, whole, "every {break_every} of {steps}");
        }
    }
}

#[test]
fn replicates_differ_and_follow_from_the_seed() {
    let replicate = |job: &Searches<Serial>, first| {
        let kind = Kind::Bootstrap;
        let piece = Piece {
            kind,
            first,
            count: 1,
        };
        done(job, &piece, usize::MAX).0.remove(0)
    };
    let job = searches(false, 1);
    let first = replicate(&job, 0);
    assert_eq!(replicate(&searches(false, 1), 0), first);
    assert_ne!(replicate(&job, 1).lnl, first.lnl);
    assert_ne!(replicate(&searches(false, 2), 0).lnl, first.lnl);
}

#[test]
fn a_spoilt_state_is_said() {
    let piece = Piece {
        kind: Kind::Search,
        first: 0,
        count: 1,
    };
    let mut breaker = Breaker {
        left: 0,
        state: None,
        steps: 0,
    };
    let error = searches(false, 1).run(&piece, Some("{}"), &mut breaker);
    assert!(error.unwrap_err().to_string().contains("--redo"));
}

#[test]
fn scalers_are_fitted_and_kept_in_the_models_text() {
    let first = |kind, count| Piece {
        kind,
        first: 0,
        count,
    };
    let job = searches_of(["HKY+G+B", "JC"], true, 1);
    let (found, _) = done(&job, &first(Kind::Search, 1), usize::MAX);
    let (linked, _) = done(&searches(true, 1), &first(Kind::Search, 1), usize::MAX);
    assert!(
        found[0].lnl > linked[0].lnl,
        "{} {}",
        found[0].lnl,
        linked[0].lnl
    );
    assert!(
        found[0].models.iter().all(|model| model.contains("+B{")),
        "{:?}",
        found[0].models
    );
    // The printed models give the reported likelihood.
    let parts = found[0].models.iter().zip(&job.parts).map(|(text, part)| {
        let name = ModelName::parse(text, &mut no_files).unwrap();
        PartOptions::new(name, part.patterns.clone())
    });
    let tree = Tree::from_newick(&Newick::parse(&found[0].tree).unwrap(), &job.names).unwrap();
    let again = Likelihood::partitioned(tree, parts.collect(), Serial, Options::default());
    let again = again.unwrap().evaluate().unwrap();
    assert!(
        (again - found[0].lnl).abs() < 1e-3,
        "{again} {}",
        found[0].lnl
    );
    // A rapid chain keeps the first replicate's scalers, as it does all its parameters.
    let (chain, _) = done(&job, &first(Kind::Bootstrap, 3), usize::MAX);
    assert_eq!(chain[0].models, chain[1].models);
    assert_eq!(chain[0].models, chain[2].models);
}

#[test]
fn the_best_search_is_kept_and_bootstraps_are_not() {
    let names: Vec<String> = (0..5).map(|number| format!("t{number}")).collect();
    let tree = |seed| random_tree(5, 0.1, &mut Random::new(seed));
    let growing = Growing::default();
    assert_eq!(growing.look(&names), (0, None));
    growing.see(Kind::Bootstrap, -1.0, true, || tree(1));
    growing.see(Kind::Search, f64::NEG_INFINITY, false, || tree(1));
    assert_eq!(growing.look(&names), (2, None));
    growing.see(Kind::Search, -9.0, false, || tree(2));
    // Better, but copied only when it is due, or the search is over.
    growing.see(Kind::Search, -8.5, false, || tree(3));
    growing.see(Kind::Search, -8.0, true, || tree(4));
    growing.see(Kind::Search, -8.2, true, || panic!("worse than the best"));
    let (steps, best) = growing.look(&names);
    let best = best.expect("a tree");
    assert_eq!((steps, best.log_likelihood), (6, -8.0));
    assert_eq!(best.newick, tree(4).to_newick(&names).to_string());
}

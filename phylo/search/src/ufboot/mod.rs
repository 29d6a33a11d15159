//! Ultrafast bootstraps: replicates choose among the trees that one search visits.
//!
//! A standard bootstrap searches once for each replicate. Here one search of the alignment itself
//! climbs (by NNI moves) from parsimony trees, then continues from the best trees by random NNI
//! moves and climbs. Each tree that it visits is offered to all replicates: their log-likelihoods
//! are sums of the sites' (RELL), and each keeps its best one. The search ends when the splits'
//! supports no longer change.
//!
//! The parsimony trees give the breadth: twenty climbs from them find trees as good for the
//! replicates as a hundred climbs from neighbours of the best tree, which return to it. Branches of
//! length 0 resolve nothing, so a replicate's tree gets random resolutions of them in the end, all
//! equally likely: otherwise they would stay as in the best tree by accident.
//!
//! Refined replicates ("bnni") go on: each climbs by NNI moves from the tree that it chose, under
//! its own draws of sites. Where the model fits badly, this keeps supports from being too high.
//! Must stay true: one seed, one result; the likelihood ends at the best tree that was found.
//! Sources: Minh, Nguyen and von Haeseler, Molecular Biology and Evolution 30 (2013), 1188-1195;
//! Hoang and others, Molecular Biology and Evolution 35 (2018), 518-522.

mod replicates;

use crate::likelihood::{Likelihood, LikelihoodError, Part, SiteClasses};
use crate::msa::Patterns;
use crate::parsimony::parsimony_tree;
use crate::random::Random;
use crate::runner::Runner;
use crate::tree::{EdgeId, Tree};
use replicates::Replicates;
use std::collections::HashMap;

/// Options of ultrafast bootstraps.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Options {
    /// Replicates.
    pub replicates: usize,
    /// Seed of replicates and perturbations.
    pub seed: u64,
    /// The most perturbations.
    pub rounds_max: usize,
    /// True if each replicate refines its tree in the end.
    pub bnni: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            replicates: 1_000,
            seed: 1,
            rounds_max: 1_000,
            bnni: false,
        }
    }
}

/// Progress of ultrafast bootstraps.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Step {
    /// Perturbations made.
    Perturbed(usize),
    /// Replicates that have refined their trees, and all of them.
    Refined(usize, usize),
}

/// Result of ultrafast bootstraps.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    /// One tree for each replicate.
    pub trees: Vec<Tree>,
    /// Perturbations made.
    pub rounds: usize,
    /// True if the supports had settled.
    pub converged: bool,
    /// Log-likelihood of the best tree, which the likelihood holds.
    #[cfg(test)]
    pub lnl: f64,
}

/// Makes ultrafast bootstraps from the likelihood's tree, which should be the best tree of a
/// search, with its lengths and parameters fitted. Blocks.
///
/// # Errors
/// [`LikelihoodError`].
pub(crate) fn ufboot<R: Runner>(
    likelihood: &mut Likelihood<R>,
    options: &Options,
    mut progress: impl FnMut(Step),
) -> Result<Found, LikelihoodError> {
    let mut random = Random::new(sidecore_random::mix(options.seed));
    let replicates = Replicates::new(likelihood, options.replicates, &mut random);
    let lnl = likelihood.evaluate()?;
    let mut boot = Boot {
        tops: vec![(likelihood.tree().clone(), lnl)],
        shown: HashMap::new(),
        likelihood,
        replicates,
        random,
        refining: false,
    };
    boot.offer(lnl)?;
    boot.climb()?;
    // Trees from elsewhere broaden the set that replicates can choose from.
    for _ in 0..PARSIMONY_TREES {
        boot.begin_elsewhere()?;
        boot.climb()?;
    }
    let (mut rounds, mut converged) = (0, false);
    let mut before = boot.replicates.supports();
    while rounds < options.rounds_max && !converged {
        for _ in 0..ROUNDS {
            boot.perturb()?;
            boot.climb()?;
            rounds += 1;
            progress(Step::Perturbed(rounds));
        }
        // Supports that hardly change between two checks have converged.
        let now = boot.replicates.supports();
        let settled = replicates::correlation(&before, &now) >= CORRELATION;
        converged = rounds >= ROUNDS_MIN && settled;
        before = now;
    }
    let mut trees = match options.bnni {
        true => boot.refine(|done, all| progress(Step::Refined(done, all)))?,
        false => boot.replicates.trees(),
    };
    let (tree, _lnl) = boot.tops.swap_remove(0);
    // The likelihood ends with the best tree, as the caller expects.
    boot.likelihood.set_tree(tree);
    for tree in &mut trees {
        resolve(tree, &mut boot.random);
    }
    Ok(Found {
        trees,
        rounds,
        converged,
        #[cfg(test)]
        lnl: _lnl,
    })
}

struct Boot<'l, R> {
    likelihood: &'l mut Likelihood<R>,
    replicates: Replicates,
    random: Random,
    /// The best local maxima (by NNI) and their log-likelihoods, the best one first.
    tops: Vec<(Tree, f64)>,
    /// Log-likelihoods with which topologies were offered to the replicates.
    shown: HashMap<u64, f64>,
    /// True while replicates refine their trees: these are offered to no other.
    refining: bool,
}

impl<R: Runner> Boot<'_, R> {
    /// Offers the present tree to the replicates, unless it is too far behind for any. A tree that
    /// comes again is offered only if it became better: a replicate draws among equals, and
    /// frequent visits must not favour a tree.
    fn offer(&mut self, lnl: f64) -> Result<(), LikelihoodError> {
        if self.refining {
            return Ok(());
        }
        let behind = self.tops[0].1 - lnl;
        if behind >= self.replicates.reach() {
            return Ok(());
        }
        let shown = self.shown.entry(replicates::shape(self.likelihood.tree()));
        let before = shown.or_insert(f64::NEG_INFINITY);
        if lnl > *before + COARSE {
            *before = lnl;
            let sites = self.likelihood.site_log_likelihoods()?;
            self.replicates
                .offer(self.likelihood.tree(), &sites, behind);
        }
        Ok(())
    }

    /// Each replicate's tree, refined under its own draws. The likelihood has the alignment's
    /// weights again afterwards.
    fn refine(&mut self, progress: impl FnMut(usize, usize)) -> Result<Vec<Tree>, LikelihoodError> {
        // The first tree was offered to all, so that each has one, in order.
        let mut trees = self.replicates.trees();
        self.refining = true;
        let refined = self.refine_each(&mut trees, progress);
        self.refining = false;
        self.weigh(None);
        refined.map(|()| trees)
    }

    fn refine_each(
        &mut self,
        trees: &mut [Tree],
        mut progress: impl FnMut(usize, usize),
    ) -> Result<(), LikelihoodError> {
        let all = trees.len();
        for (replicate, tree) in trees.iter_mut().enumerate() {
            self.weigh(Some(replicate));
            self.likelihood.set_tree(tree.clone());
            // Moves are scored with lengths fitted: so must be the tree that they begin from.
            let before = self.likelihood.optimise_lengths(FINE, BEGIN_ROUNDS)?;
            self.climb()?;
            // The last moves of a climb are made together, and may lose a little.
            if self.likelihood.evaluate()? > before {
                *tree = self.likelihood.tree().clone();
            }
            progress(replicate + 1, all);
        }
        Ok(())
    }

    /// Weighs the patterns by a replicate's draws; by the alignment's sites without one.
    fn weigh(&mut self, replicate: Option<usize>) {
        let mut first = 0;
        for part in 0..self.likelihood.parts().len() {
            let patterns = self.likelihood.parts()[part].patterns();
            let count = patterns.len();
            let weights: Vec<f64> = match replicate {
                Some(replicate) => self.replicates.draws(replicate, first..first + count),
                None => patterns.weights().iter().copied().map(f64::from).collect(),
            };
            SiteClasses(&mut *self.likelihood).set_weights(part, &weights);
            first += count;
        }
    }

    /// Sets a parsimony tree, taxa added in random order, its lengths fitted roughly.
    fn begin_elsewhere(&mut self) -> Result<(), LikelihoodError> {
        let parts = self.likelihood.parts().iter();
        let parts: Vec<&Patterns> = parts.map(Part::patterns).collect();
        let tree = parsimony_tree(&parts, None, &mut self.random);
        self.likelihood.set_tree(tree);
        self.likelihood.optimise_lengths(COARSE, BEGIN_ROUNDS)?;
        Ok(())
    }

    /// Random NNI moves from one of the best trees, one for every other inner branch.
    fn perturb(&mut self) -> Result<(), LikelihoodError> {
        let from = self.random.index(self.tops.len());
        self.likelihood.set_tree(self.tops[from].0.clone());
        let inner = inner_edges(self.likelihood.tree());
        for _ in 0..inner.len().div_ceil(2) {
            let edge = inner[self.random.index(inner.len())];
            let second = self.random.below(2) == 1;
            self.likelihood.nni(edge, second);
        }
        self.likelihood.optimise_lengths(COARSE, 1)?;
        Ok(())
    }

    /// NNI moves until none improves; all that do not touch one another at a time. After the first
    /// round only branches near the changes are tried.
    fn climb(&mut self) -> Result<(), LikelihoodError> {
        let mut lnl = self.likelihood.evaluate()?;
        let mut look_at = inner_edges(self.likelihood.tree());
        for _ in 0..CLIMBS_MAX {
            let mut better: Vec<(f64, EdgeId, bool)> = Vec::new();
            for &edge in &look_at {
                for second in [false, true] {
                    let there = self.look(edge, second)?;
                    if there > lnl + GAIN {
                        better.push((there, edge, second));
                    }
                }
            }
            if better.is_empty() {
                break;
            }
            // The best first: a move excludes those that touch it.
            better.sort_by(|a, b| b.0.total_cmp(&a.0));
            // Gains of separate moves need not add up; the tree is restored if they do not.
            let before = self.likelihood.tree().clone();
            let mut touched: Vec<EdgeId> = Vec::new();
            for (_, edge, second) in &better {
                let around = around(self.likelihood.tree(), *edge);
                if around.iter().all(|edge| !touched.contains(edge)) {
                    self.likelihood.nni(*edge, *second);
                    touched.extend(around);
                }
            }
            let mut all = self.likelihood.optimise_lengths(COARSE, 1)?;
            if all < better[0].0 - COARSE {
                // Together they are worse: the best one alone.
                self.likelihood.set_tree(before);
                let (_, edge, second) = better[0];
                self.likelihood.nni(edge, second);
                touched = around(self.likelihood.tree(), edge);
                all = self.likelihood.optimise_lengths(COARSE, 1)?;
            }
            look_at = near(self.likelihood.tree(), &touched);
            // Moves that gain nothing together could be made and undone for ever.
            if all <= lnl + GAIN {
                break;
            }
            lnl = all;
        }
        let lnl = self.likelihood.optimise_lengths(FINE, 4)?;
        self.offer(lnl)?;
        self.keep(lnl);
        Ok(())
    }

    /// Keeps the present tree if it is among the best, each topology once.
    fn keep(&mut self, lnl: f64) {
        if self.refining {
            return;
        }
        let tree = self.likelihood.tree();
        let shape = tree.topology();
        if let Some(at) = self.tops.iter().position(|top| top.0.topology() == shape) {
            if self.tops[at].1 >= lnl {
                return;
            }
            self.tops.remove(at);
        }
        let at = self.tops.partition_point(|top| top.1 >= lnl);
        self.tops.insert(at, (tree.clone(), lnl));
        self.tops.truncate(TOPS_MAX);
    }

    /// The log-likelihood after an NNI move with the lengths around fitted; the move is undone.
    fn look(&mut self, edge: EdgeId, second: bool) -> Result<f64, LikelihoodError> {
        let Some(nni) = self.likelihood.nni(edge, second) else {
            return Ok(f64::NEG_INFINITY);
        };
        let around = around(self.likelihood.tree(), edge);
        let lengths: Vec<f64> = around
            .iter()
            .map(|&edge| self.likelihood.tree().length(edge))
            .collect();
        for &edge in &around {
            self.likelihood.optimise_length(edge)?;
        }
        let lnl = self.likelihood.evaluate_at(edge)?;
        // Each visited tree is offered, even though the move is undone.
        self.offer(lnl)?;
        self.likelihood.undo_nni(nni);
        // Undoing the move restores the topology, not the lengths.
        for (edge, length) in around.into_iter().zip(lengths) {
            self.likelihood.set_length(edge, length);
        }
        Ok(lnl)
    }
}

/// Resolves branches of length 0, all resolutions equally likely: a random walk over them by NNI
/// moves is uniform.
fn resolve(tree: &mut Tree, random: &mut Random) {
    let mut void = inner_edges(tree);
    void.retain(|&edge| replicates::is_void(tree, edge));
    for _ in 0..RESOLVE_STEPS * void.len() {
        let edge = void[random.index(void.len())];
        let way = random.below(3);
        if way > 0 {
            let _ = tree.nni(edge, way == 2);
        }
    }
}

/// Branches between inner nodes.
fn inner_edges(tree: &Tree) -> Vec<EdgeId> {
    let inner = |edge: &EdgeId| tree.ends(*edge).iter().all(|&end| !tree.is_tip(end));
    tree.edges_depth_first().into_iter().filter(inner).collect()
}

/// The branches between inner nodes that are among `branches` or adjacent to one of them.
fn near(tree: &Tree, branches: &[EdgeId]) -> Vec<EdgeId> {
    let mut inner = inner_edges(tree);
    inner.retain(|&edge| {
        around(tree, edge)
            .iter()
            .any(|edge| branches.contains(edge))
    });
    inner
}

/// A branch and its four neighbours.
fn around(tree: &Tree, edge: EdgeId) -> Vec<EdgeId> {
    let others = tree.ends(edge).into_iter().flat_map(|end| tree.others(end));
    let mut around = vec![edge];
    around.extend(others.map(|half| tree.edge(half)));
    around
}

/// Trees from which perturbations begin, as many as IQ-TREE's.
const TOPS_MAX: usize = 5;
/// Parsimony trees from which climbs begin, as many as IQ-TREE climbs from.
const PARSIMONY_TREES: usize = 20;
/// Rounds that fit the lengths of such a tree.
const BEGIN_ROUNDS: usize = 3;
/// Perturbations between two checks of the supports.
const ROUNDS: usize = 25;
/// The fewest perturbations.
const ROUNDS_MIN: usize = 50;
/// Steps of the walk over resolutions, for each branch without length.
const RESOLVE_STEPS: usize = 20;
/// Correlation of two such checks from which the supports count as settled.
const CORRELATION: f64 = 0.99;
const CLIMBS_MAX: usize = 20;
/// Least gain in log-likelihood of an NNI move.
const GAIN: f64 = 0.01;
/// Gains below which fits of lengths end: within a climb, and at its end.
const COARSE: f64 = 0.5;
const FINE: f64 = 0.01;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::likelihood::Options as LikelihoodOptions;
    use crate::model::{Model, ModelName};
    use crate::msa::{Alignment, Alphabet, Patterns};
    use crate::newick::Newick;
    use crate::runner::Serial;
    use crate::support::{Kind, Reference};

    fn likelihood(sites: &[&str]) -> (Likelihood<Serial>, Alignment) {
        let names = ["a", "b", "c", "d", "e", "f"].map(str::to_owned).to_vec();
        let rows = (0..6)
            .map(|taxon| sites.iter().map(|site| site.as_bytes()[taxon]).collect())
            .collect();
        let alignment = Alignment::new(names, rows).unwrap();
        let patterns = Patterns::new(&alignment, Alphabet::Dna).unwrap();
        let newick = Newick::parse("((a,b),(c,d),(e,f));").unwrap();
        let tree = Tree::from_newick(&newick, alignment.names()).unwrap();
        let read = &mut |_: &str| Err(std::io::Error::other("no file"));
        let model = Model::new(ModelName::parse("JC", read).unwrap(), &patterns);
        let options = LikelihoodOptions::default();
        let mut likelihood = Likelihood::new(tree, patterns, model, Serial, options).unwrap();
        likelihood.optimise_lengths(0.001, 50).unwrap();
        (likelihood, alignment)
    }

    #[test]
    fn supports_say_what_the_sites_say() {
        let mut sites = vec!["AAAAAA"; 60];
        sites.extend(["CCAAAA"; 12]);
        sites.extend(["AAGGAA"; 12]);
        // Three for ef, two for de.
        sites.extend(["AAAATT", "AAAATT", "AAAATT", "AAACCA", "AAACCA"]);
        let (mut likelihood, alignment) = likelihood(&sites);
        let options = Options {
            replicates: 400,
            rounds_max: 100,
            ..Options::default()
        };
        let found = ufboot(&mut likelihood, &options, |_| {}).unwrap();
        assert_eq!(found.trees.len(), 400);
        assert!((likelihood.evaluate().unwrap() - found.lnl).abs() < 1e-6);
        let text = |tree: &Tree| Newick::parse(&tree.to_newick(alignment.names())).unwrap();
        let trees: Vec<Newick> = found.trees.iter().map(text).collect();
        let newick = Newick::parse("((a,b),(c,d),(e,f));").unwrap();
        let reference = Reference::new(&newick).unwrap();
        let tally = reference.tally_all(&trees, Kind::Fbp, &Serial).unwrap();
        let values: Vec<f64> = reference.values(&tally).iter().map(|v| v.1).collect();
        assert!(values[0] > 0.97, "{values:?}");
        assert!(values[2] > 0.4 && values[2] < 0.97, "{values:?}");
        // One seed, one result.
        likelihood.set_tree(Tree::from_newick(&newick, alignment.names()).unwrap());
        likelihood.optimise_lengths(0.001, 50).unwrap();
        let again = ufboot(&mut likelihood, &options, |_| {}).unwrap();
        let texts = |trees: &[Tree]| {
            trees
                .iter()
                .map(|t| t.to_newick(alignment.names()))
                .collect()
        };
        let [one, other]: [Vec<String>; 2] = [texts(&found.trees), texts(&again.trees)];
        assert_eq!(one, other);
    }

    #[test]
    fn refined_trees_fit_their_replicates_at_least_as_well() {
        let mut sites = vec!["AAAAAA"; 30];
        sites.extend(["CCAAAA"; 5]);
        sites.extend(["AAGGAA"; 5]);
        sites.extend(["AAAATT", "AAAATT", "AAACCA", "ACCAAA", "CAAAAC", "ATAATA"]);
        let (mut likelihood, _) = likelihood(&sites);
        let before = likelihood.evaluate().unwrap();
        let replicates = Replicates::new(&likelihood, 40, &mut Random::new(5));
        let mut boot = Boot {
            tops: vec![(likelihood.tree().clone(), before)],
            shown: HashMap::new(),
            likelihood: &mut likelihood,
            replicates,
            random: Random::new(1),
            refining: false,
        };
        boot.offer(before).unwrap();
        let chosen = boot.replicates.trees();
        let mut done = 0;
        let refined = boot
            .refine(|at, all| {
                done += 1;
                assert_eq!((at, all), (done, 40));
            })
            .unwrap();
        let mut moved = 0;
        for (replicate, (chosen, refined)) in chosen.iter().zip(&refined).enumerate() {
            boot.weigh(Some(replicate));
            let [first, last] = [chosen, refined].map(|tree| {
                boot.likelihood.set_tree(tree.clone());
                boot.likelihood.optimise_lengths(0.001, 50).unwrap()
            });
            assert!(last > first - 0.1, "{replicate}: {first} {last}");
            moved += usize::from(chosen.topology() != refined.topology());
        }
        assert!(moved > 5, "{moved}");
        // The alignment's weights are back.
        boot.weigh(None);
        likelihood.set_tree(chosen[0].clone());
        assert!((likelihood.evaluate().unwrap() - before).abs() < 1e-9);
        // As a whole: one tree a replicate, and the likelihood as without.
        let options = Options {
            replicates: 60,
            rounds_max: 50,
            bnni: true,
            ..Options::default()
        };
        let found = ufboot(&mut likelihood, &options, |_| {}).unwrap();
        assert_eq!(found.trees.len(), 60);
        assert!((likelihood.evaluate().unwrap() - found.lnl).abs() < 1e-6);
    }

    #[test]
    fn a_branch_without_length_supports_no_resolution_more_than_others() {
        // The data do not resolve ab, cd, ef and g; a resolution that the search happened to have
        // must not stay.
        let names: Vec<String> = ["a", "b", "c", "d", "e", "f", "g"]
            .map(str::to_owned)
            .into();
        let text = "((a:1,b:1):1,(c:1,d:1):1,((e:1,f:1):1,g:1):0.000001);";
        let parsed = Newick::parse(text).unwrap();
        let mut random = Random::new(3);
        let mut counts = std::collections::BTreeMap::new();
        for _ in 0..3_000 {
            let mut tree = Tree::from_newick(&parsed, &names).unwrap();
            let before = replicates::shape(&tree);
            resolve(&mut tree, &mut random);
            assert_eq!(replicates::shape(&tree), before);
            *counts.entry(tree.topology()).or_insert(0) += 1;
        }
        let counts: Vec<i32> = counts.into_values().collect();
        assert_eq!(counts.len(), 3, "{counts:?}");
        // Six standard deviations of 26.
        assert!(counts.iter().all(|n| (n - 1_000).abs() < 156), "{counts:?}");
    }
}

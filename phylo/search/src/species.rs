//! A species tree of gene trees: the one that shares the most quartets with them.
//!
//! Under the multispecies coalescent the tree of the species is the one with the most quartets in
//! common with the gene trees, once there are enough of these. The maximum is found by dynamic
//! programming over clades: the best tree of a clade is the best way to cut it in two, and the
//! score of a cut depends on its three sets of taxa alone. With up to 11 taxa all clades are
//! candidates, and the result is the best of all trees. With more, candidates are the gene trees'
//! own branches, completed where a gene tree lacks taxa, and those of a tree of mean distances;
//! afterwards neighbouring trees (NNI) are taken as long as they score better.
//!
//! Branches get their quartets' shares, local posterior probabilities and lengths in coalescent
//! units. Quartets may be weighted by the gene trees' supports and lengths ([`Weighting`]).
//!
//! Must stay true: the same gene trees in the same order give the same tree; engines change only
//! the time.
//! Sources: Mirarab and others, "ASTRAL", Bioinformatics 30 (2014), i541-i548; Zhang and others,
//! "ASTRAL-III", BMC Bioinformatics 19 (2018), 153; Sayyari and Mirarab, "Fast coalescent-based
//! computation of local branch support from quartet frequencies", Molecular Biology and Evolution
//! 33 (2016), 1654-1668.
//!
//! ```
//! use sidecore_phylo::newick::Newick;
//! use sidecore_phylo::quartets::GeneTrees;
//! use sidecore_phylo::runner::Serial;
//! use sidecore_phylo::species::species_tree;
//!
//! let texts = ["((a,b),c,(d,e));", "((a,b),c,(d,e));", "((a,c),b,(d,e));"];
//! let trees: Result<Vec<Newick>, _> = texts.iter().map(|text| Newick::parse(text)).collect();
//! let genes = GeneTrees::new(Vec::new(), &trees?, None)?;
//! let found = species_tree(&genes, &Serial)?;
//! assert_eq!(found.shared, 13); // of 15 quartets
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod distances;
mod posterior;
mod search;
mod weights;

pub use posterior::Branch;
pub use weights::{GeneWeights, WeightError, Weighting};

use crate::newick::Newick;
use crate::quartets::{Around, GeneTrees, branches};
use crate::rooting::as_text;
use crate::runner::{Runner, Work};
use crate::taxa::{TaxonSet, clades};
use search::searched;
use sidecore_offload::OffloadError;
use std::collections::HashMap;
use std::ops::{Add, Sub};
use weights::Weighted;

/// A species tree and its fit to the gene trees.
#[derive(Debug, Clone, serde::Serialize)]
pub struct SpeciesTree {
    /// Number of gene trees.
    pub trees: usize,
    /// Number of taxa.
    pub taxa: usize,
    /// Quartets that the gene trees have.
    #[serde(rename = "quartets")]
    pub all: u128,
    /// Quartets that it shares with the gene trees.
    #[serde(rename = "quartets_shared")]
    pub shared: u128,
    /// Share of these, from 0 to 1.
    #[serde(rename = "quartets_share")]
    pub share: f64,
    /// Weight of the quartets that the gene trees have, where they are weighted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<f64>,
    /// Weight of those that it shares with the gene trees, where they are weighted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight_shared: Option<f64>,
    /// True if it is the best of all trees, not of the candidates alone.
    #[serde(rename = "exact")]
    pub is_exact: bool,
    /// Clades that were candidates.
    #[serde(skip)]
    pub candidates: usize,
    /// Its inner branches.
    pub branches: Vec<Branch>,
    /// The tree: labels of inner nodes are local posterior probabilities, lengths of inner branches
    /// coalescent units.
    #[serde(serialize_with = "as_text")]
    pub tree: Newick,
}

/// A number that sums over quartets are.
trait Sum: Copy + Default + PartialOrd + Send + Add<Output = Self> + Sub<Output = Self> {}

impl Sum for u128 {}
impl Sum for f64 {}

/// The scores by which trees of the species are compared: sums over quartets.
trait Score: Sync {
    /// A sum over quartets.
    type Sum: Sum;

    /// Sum over the quartets that a node with these three parts shares with the gene trees: those
    /// with two taxa in one part and one in each of the others.
    fn at_node(&self, parts: [&TaxonSet; 3]) -> Self::Sum;

    /// Sums of the three pairings around a branch.
    fn around(&self, around: &Around) -> Sums<Self::Sum>;

    /// True if one sum is larger than another by more than rounding.
    fn is_more(more: Self::Sum, than: Self::Sum) -> bool;
}

/// Each quartet counts one.
impl Score for GeneTrees {
    type Sum = u128;

    fn at_node(&self, parts: [&TaxonSet; 3]) -> u128 {
        self.at_node(parts)
    }

    fn around(&self, around: &Around) -> Sums<u128> {
        let mut sums = Sums::default();
        for quartets in self.around(around.each()) {
            // A gene tree that lacks one of the four sets has nothing to say, and no shares.
            if quartets.possible == 0 {
                continue;
            }
            for (way, &found) in quartets.found.iter().enumerate() {
                sums.counts[way] += u128::from(found);
                sums.shares[way] += found as f64 / quartets.possible as f64;
            }
        }
        sums
    }

    fn is_more(more: u128, than: u128) -> bool {
        more > than
    }
}

/// The species tree. Blocks. With more than 11 taxa the time grows with the square of
/// the number of distinct branches.
///
/// # Errors
/// [`OffloadError`] when an engine failed.
pub fn species_tree(genes: &GeneTrees, runner: &impl Runner) -> Result<SpeciesTree, OffloadError> {
    let found = searched(genes, genes, runner)?;
    annotated(genes, found, runner)
}

/// The quartets and branch values of a given tree, as [`species_tree`] has them for its own.
/// Blocks.
///
/// # Errors
/// [`OffloadError`] when an engine failed.
pub fn score_tree(
    genes: &GeneTrees,
    tree: &Newick,
    runner: &impl Runner,
) -> Result<SpeciesTree, OffloadError> {
    let found = Found::given(genes, genes, tree, runner)?;
    annotated(genes, found, runner)
}

/// As [`species_tree`] with weights of the quartets, or, with `tree`, as [`score_tree`]. Values of
/// branches are of the weighted quartets, and of an effective number of gene trees: the square of
/// the sum of their weights by the sum of the squares. The time of each clade's cut grows with the
/// gene trees' nodes. Blocks.
///
/// # Errors
/// [`OffloadError`] when an engine failed.
pub fn weighted_species_tree(
    genes: &GeneTrees,
    weights: &GeneWeights,
    tree: Option<&Newick>,
    runner: &impl Runner,
) -> Result<SpeciesTree, OffloadError> {
    let score = Weighted { weights };
    let found = match tree {
        Some(tree) => Found::given(genes, &score, tree, runner)?,
        None => searched(genes, &score, runner)?,
    };
    let shared = shared_by(genes, &score, &found.tree, runner)?;
    let made = annotated(genes, found, runner)?;
    Ok(SpeciesTree {
        weight: Some(weights.all()),
        weight_shared: Some(shared / 2.0),
        ..made
    })
}

/// A tree that is not annotated yet.
struct Found<S> {
    tree: Newick,
    around: Vec<(Around, Sums<S>)>,
    is_exact: bool,
    candidates: usize,
}

impl<S: Sum> Found<S> {
    fn given(
        genes: &GeneTrees,
        score: &impl Score<Sum = S>,
        tree: &Newick,
        runner: &impl Runner,
    ) -> Result<Self, OffloadError> {
        Ok(Self {
            around: around_all(genes, score, tree, runner)?,
            tree: tree.clone(),
            is_exact: false,
            candidates: 0,
        })
    }
}

/// Sums over the gene trees, of a branch.
#[derive(Debug, Clone, Default)]
struct Sums<S> {
    /// Quartets of each pairing.
    counts: [S; 3],
    /// Each gene tree's shares of the possible quartets, summed. Of weighted ones, shares of an
    /// effective number of gene trees.
    shares: [f64; 3],
}

/// A branch and its sums.
type Summed<S> = (Around, Sums<S>);

/// The sums of all branches with four neighbours.
fn around_all<S: Score>(
    genes: &GeneTrees,
    score: &S,
    tree: &Newick,
    runner: &impl Runner,
) -> Result<Vec<Summed<S::Sum>>, OffloadError> {
    let numbers = numbers(genes);
    let all = branches(tree, genes.taxa(), |label| numbers.get(label).copied());
    let mut items: Vec<(Around, Option<_>)> = all.into_iter().map(|at| (at, None)).collect();
    runner.run(Work::Support, &mut items, |(at, sums)| {
        *sums = Some(score.around(at));
    })?;
    let made = items.into_iter().filter_map(|(at, sums)| Some((at, sums?)));
    Ok(made.collect())
}

fn numbers(genes: &GeneTrees) -> HashMap<&str, usize> {
    let labels = genes.labels.iter().map(String::as_str);
    labels.zip(0..).collect()
}

/// Writes the branches' values on a tree.
fn annotated<S>(
    genes: &GeneTrees,
    found: Found<S>,
    runner: &impl Runner,
) -> Result<SpeciesTree, OffloadError> {
    let Found {
        mut tree,
        around,
        is_exact,
        candidates,
    } = found;
    // Each quartet has two nodes in either tree, of which one pair each matches.
    let (shared, all) = (
        shared_by(genes, genes, &tree, runner)? / 2,
        genes.quartets(),
    );
    let mut found = Vec::with_capacity(around.len());
    for (at, sums) in around {
        let clade = at.side(0);
        let names = clade.taxa().map(|taxon| genes.labels[taxon].clone());
        let branch = Branch::new(at.node, names.collect(), sums.shares);
        tree.set_label(at.node, format!("{:.6}", branch.posterior[0]));
        // To ten decimals, as trees are written elsewhere.
        let length = (1e10 * branch.length).round() / 1e10;
        tree.set_length(at.node, Some(length));
        found.push(branch);
    }
    let share = match all {
        0 => 0.0,
        all => shared as f64 / all as f64,
    };
    Ok(SpeciesTree {
        trees: genes.trees(),
        taxa: genes.taxa(),
        all,
        shared,
        share,
        weight: None,
        weight_shared: None,
        is_exact,
        candidates,
        branches: found,
        tree,
    })
}

/// Twice the sum over the quartets that a tree shares with the gene trees.
fn shared_by<S: Score>(
    genes: &GeneTrees,
    score: &S,
    tree: &Newick,
    runner: &impl Runner,
) -> Result<S::Sum, OffloadError> {
    let numbers = numbers(genes);
    let nodes = parts(tree, genes.taxa(), |label| numbers.get(label).copied());
    let mut threes = nodes.iter().flat_map(|parts| threes(parts));
    // A polytomy has more choices of three than memory may hold.
    let mut twice = S::Sum::default();
    loop {
        let mut items: Vec<_> = threes
            .by_ref()
            .take(AT_ONCE)
            .map(|three| (three, S::Sum::default()))
            .collect();
        if items.is_empty() {
            return Ok(twice);
        }
        runner.run(Work::Support, &mut items, |(parts, shared)| {
            *shared = score.at_node(*parts);
        })?;
        twice = items.iter().fold(twice, |sum, (_, own)| sum + *own);
    }
}

/// Choices of three parts that are worked at together.
const AT_ONCE: usize = 1 << 14;

/// The sets of taxa that the branches at each inner node of a tree lead to.
fn parts(tree: &Newick, taxa: usize, number: impl Fn(&str) -> Option<usize>) -> Vec<Vec<TaxonSet>> {
    let below = clades(tree, taxa, number);
    let inner = tree.nodes().iter().enumerate();
    let inner = inner.filter(|(_, own)| !own.children.is_empty());
    let parts = inner.map(|(node, own)| {
        let children = own.children.iter().map(|&child| below[child].clone());
        let rest = below[0].without(&below[node]);
        let parts = children.chain((!rest.is_empty()).then_some(rest));
        // The large ones first: each choice of three has one of them as its first.
        let mut parts: Vec<_> = parts.collect();
        parts.sort_by_key(|part| part.len() <= 1);
        parts
    });
    parts.collect()
}

/// Three at a time of the parts at a node. A quartet of two taxa in one part and one in two others
/// belongs to one choice; three single taxa have none.
fn threes(parts: &[TaxonSet]) -> impl Iterator<Item = [&TaxonSet; 3]> {
    let larger = parts.partition_point(|part| part.len() > 1);
    let pairs = (0..larger).flat_map(|a| (a + 1..parts.len()).map(move |b| (a, b)));
    pairs.flat_map(move |(a, b)| {
        let third = parts[b + 1..].iter();
        third.map(move |third| [&parts[a], &parts[b], third])
    })
}

#[cfg(test)]
mod tests {
    use super::search::{best_tree, candidates};
    use super::*;
    use crate::random::Random;
    use crate::runner::Serial;
    use crate::tree::random_tree;

    /// All unrooted binary trees of some taxa.
    pub(super) fn all_trees(taxa: usize) -> Vec<Newick> {
        // Trees as nested text, grown by each taxon at each branch.
        #[derive(Clone)]
        enum Rooted {
            Tip(usize),
            Pair(Box<(Rooted, Rooted)>),
        }
        fn grown(tree: &Rooted, taxon: usize) -> Vec<Rooted> {
            let pair = |a: Rooted, b: Rooted| Rooted::Pair(Box::new((a, b)));
            let mut all = vec![pair(tree.clone(), Rooted::Tip(taxon))];
            if let Rooted::Pair(both) = tree {
                let (a, b) = (&both.0, &both.1);
                all.extend(grown(a, taxon).into_iter().map(|a| pair(a, b.clone())));
                all.extend(grown(b, taxon).into_iter().map(|b| pair(a.clone(), b)));
            }
            all
        }
        fn text(tree: &Rooted) -> String {
            match tree {
                Rooted::Tip(taxon) => format!("t{taxon}"),
                Rooted::Pair(both) => format!("({},{})", text(&both.0), text(&both.1)),
            }
        }
        // Rooted at taxon 0, so that each unrooted tree is there once.
        let mut trees = vec![Rooted::Tip(1)];
        for taxon in 2..taxa {
            trees = trees.iter().flat_map(|tree| grown(tree, taxon)).collect();
        }
        let whole = |tree| Newick::parse(&format!("(t0,{});", text(tree))).unwrap();
        trees.iter().map(whole).collect()
    }

    fn genes(taxa: usize, count: usize, seed: u64, missing: bool) -> GeneTrees {
        let names: Vec<String> = (0..taxa).map(|k| format!("t{k}")).collect();
        let mut random = Random::new(seed);
        let mut tree = |k: usize| {
            let size = taxa - if missing { k % 3 } else { 0 };
            let text = random_tree(size, 0.1, &mut random).to_newick(&names[..size]);
            Newick::parse(&text).unwrap()
        };
        let trees: Vec<Newick> = (0..count).map(&mut tree).collect();
        GeneTrees::new(names, &trees, None).unwrap()
    }

    #[test]
    fn no_tree_of_five_to_seven_taxa_shares_more_quartets() {
        for (taxa, number) in [(5, 15), (6, 105), (7, 945)] {
            let trees = all_trees(taxa);
            assert_eq!(trees.len(), number);
            for (seed, missing) in [(1, false), (2, false), (3, true), (4, true)] {
                let genes = genes(taxa, 9, seed, missing && taxa > 5);
                let found = species_tree(&genes, &Serial).unwrap();
                assert!(found.is_exact);
                let shared = |tree| score_tree(&genes, tree, &Serial).unwrap().shared;
                let most = trees.iter().map(shared).max().unwrap();
                assert_eq!(found.shared, most, "{taxa} taxa, seed {seed}");
                assert!(found.shared < found.all);
                // Candidates from gene trees alone may miss it, and never claim more.
                let tree = best_tree(&genes, &genes, candidates(&genes), &Serial).unwrap();
                let score = score_tree(&genes, &tree, &Serial).unwrap().shared;
                assert!(score <= most && 10 * score >= 8 * most, "{score} of {most}");
            }
        }
    }

    #[test]
    fn a_star_shares_nothing_and_a_polytomy_what_its_branches_hold() {
        let names: Vec<String> = (0..600).map(|k| format!("t{k}")).collect();
        let text = random_tree(600, 0.1, &mut Random::new(7)).to_newick(&names);
        let whole = Newick::parse(&text).unwrap();
        let genes = GeneTrees::new(names.clone(), &[whole], None).unwrap();
        // Its 36 million choices of three hold no quartet, and are not made.
        let star = Newick::parse(&format!("({});", names.join(","))).unwrap();
        let score = score_tree(&genes, &star, &Serial).unwrap();
        assert_eq!((score.shared, score.all), (0, genes.quartets()));
        // One split of two taxa: as many quartets as there are pairs of the others.
        let trees = Newick::parse("((a,b),(c,d),e,f);").unwrap();
        let names = ["a", "b", "c", "d", "e", "f"].map(String::from).to_vec();
        let genes = GeneTrees::new(names, &[trees], None).unwrap();
        let split = Newick::parse("((a,b),c,d,e,f);").unwrap();
        assert_eq!(score_tree(&genes, &split, &Serial).unwrap().shared, 6);
    }

    #[test]
    fn the_tree_of_agreeing_gene_trees_is_theirs_at_any_size() {
        for taxa in [4, 11, 12, 70] {
            let names: Vec<String> = (0..taxa).map(|k| format!("t{k}")).collect();
            let text = random_tree(taxa, 0.1, &mut Random::new(taxa as u64)).to_newick(&names);
            let whole = Newick::parse(&text).unwrap();
            let genes = GeneTrees::new(names, &[whole.clone(), whole.clone()], None).unwrap();
            let found = species_tree(&genes, &Serial).unwrap();
            let distance = crate::compare::compare(&whole, &found.tree).unwrap();
            assert_eq!((distance.rf, found.shared), (0, found.all));
            let quartets = taxa * (taxa - 1) * (taxa - 2) * (taxa - 3) / 24;
            assert_eq!(found.all, 2 * quartets as u128);
            assert_eq!(found.branches.len(), taxa - 3);
            for branch in &found.branches {
                assert_eq!(branch.shares, [1.0, 0.0, 0.0]);
                // Two gene trees that agree: h(2) to h(0), as the paper's formula has it.
                assert!((branch.posterior[0] - 0.866_666).abs() < 1e-3, "{branch:?}");
            }
        }
    }

    #[test]
    fn neighbours_are_taken_where_candidates_miss_them() {
        // Each gene tree has half of the taxa: their branches alone make no good tree.
        let taxa = 24;
        let names: Vec<String> = (0..taxa).map(|k| format!("t{k}")).collect();
        let mut random = Random::new(8);
        let truth = random_tree(taxa, 0.1, &mut random);
        let whole = Newick::parse(&truth.to_newick(&names)).unwrap();
        let numbers = |label: &str| label[1..].parse::<usize>().ok();
        let clades = clades(&whole, taxa, numbers);
        let trees: Vec<Newick> = (0..60)
            .map(|_| {
                let mut kept = TaxonSet::empty(taxa);
                while kept.len() < 12 {
                    kept.insert(random.index(taxa));
                }
                restricted(&whole, &clades, &kept)
            })
            .collect();
        let genes = GeneTrees::new(names, &trees, None).unwrap();
        let found = species_tree(&genes, &Serial).unwrap();
        assert_eq!(found.shared, found.all);
        assert!(!found.is_exact && found.candidates > taxa);
    }

    /// A tree with some of its taxa alone.
    fn restricted(tree: &Newick, clades: &[TaxonSet], kept: &TaxonSet) -> Newick {
        fn write(
            tree: &Newick,
            clades: &[TaxonSet],
            kept: &TaxonSet,
            node: usize,
        ) -> Option<String> {
            let own = &tree.nodes()[node];
            if own.children.is_empty() {
                let is_kept = !clades[node].and(kept).is_empty();
                return is_kept.then(|| own.label.clone());
            }
            let parts = own.children.iter();
            let parts: Vec<String> = parts
                .filter_map(|&child| write(tree, clades, kept, child))
                .collect();
            match &parts[..] {
                [] => None,
                [one] => Some(one.clone()),
                _ => Some(format!("({})", parts.join(","))),
            }
        }
        let text = write(tree, clades, kept, 0).unwrap();
        Newick::parse(&format!("{text};")).unwrap()
    }
}

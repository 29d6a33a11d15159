//! Weights of gene trees' quartets, by the supports and lengths of their branches.
//!
//! A gene tree has a path between the two pairs of a quartet `ab|cd`. The quartet weighs
//! `1 - (1 - s)(1 - s')…` over the supports of the path's branches: one branch that is sure is
//! enough. By lengths it weighs `exp(-l)`, with `l` the sum of the four ways from its taxa to the
//! path: long ones tell less. Sums of weights are `pass`'s.
//!
//! Must stay true: a gene tree's sums are added in its own order, and gene trees in theirs, so that
//! one input has one result. Where all supports are full and lengths do not count, sums are whole
//! numbers: those of `quartets`.
//! Source: Zhang and Mirarab, "Weighting by gene tree uncertainty improves accuracy of
//! quartet-based species trees", Molecular Biology and Evolution 39 (2022), msac215.

mod pass;

use super::{Score, Sums};
use crate::newick::Newick;
use crate::quartets::{Around, GeneTrees, PAIRINGS};
use crate::taxa::TaxonSet;
use pass::{Pairing, Pass};
use std::collections::HashMap;

/// The weights of quartets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weighting {
    /// By supports of the branches between the two pairs.
    Support,
    /// By lengths of the branches around these.
    Lengths,
    /// By both: the product.
    Both,
}

impl Weighting {
    /// All of them by name, with a line about each.
    #[rustfmt::skip] // a line each
    pub const NAMED: [(&str, &str, Self); 3] = [
        ("support", "More, the surer the branches between the two pairs are", Self::Support),
        ("lengths", "Less, the longer the branches around these are", Self::Lengths),
        ("both", "The product", Self::Both),
    ];

    fn has_supports(self) -> bool {
        self != Self::Lengths
    }

    fn has_lengths(self) -> bool {
        self != Self::Support
    }
}

/// Errors of gene trees that cannot be weighted.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum WeightError {
    /// No gene tree has supports.
    #[error(
        "no inner node of the gene trees has a number as its label: weights need supports, as \
         `phylo genes --support abayes` writes them"
    )]
    NoSupport,
    /// No gene tree has lengths.
    #[error("no branch of the gene trees has a length, which weights need")]
    NoLength,
    /// A range without an extent.
    #[error("supports from {least} to {most}: the first number must be the smaller one")]
    Range {
        /// Label of no support.
        least: f64,
        /// Label of full support.
        most: f64,
    },
}

/// A node of a gene tree.
#[derive(Debug)]
struct Node {
    parent: Option<usize>,
    taxon: Option<usize>,
    /// Share that the support of the branch above leaves open: 1 without support, 0 with full.
    open: f64,
    /// The factor of that branch's length.
    fades: f64,
}

/// Gene trees with the weights of their quartets.
#[derive(Debug)]
pub struct GeneWeights {
    genes: Vec<Vec<Node>>,
    /// True if lengths count.
    has_lengths: bool,
}

impl GeneWeights {
    /// From the trees that `genes` was made of, with its `contract`. `range` are the labels of
    /// branches without support and with full support; unless given, 0 and 1, or 0 and 100 where a
    /// label is above 1. A branch without a number as its label has no support, one without a
    /// length has length 0.
    ///
    /// # Errors
    /// [`WeightError`].
    pub fn new(
        genes: &GeneTrees,
        trees: &[Newick],
        contract: Option<f64>,
        weighting: Weighting,
        range: Option<[f64; 2]>,
    ) -> Result<Self, WeightError> {
        let most = most_support(trees);
        let [low, high] = match (range, most) {
            (Some(range), _) => range,
            (None, Some(most)) if most > 1.0 => [0.0, 100.0],
            (None, _) => [0.0, 1.0],
        };
        if low >= high || !(low.is_finite() && high.is_finite()) {
            return Err(WeightError::Range {
                least: low,
                most: high,
            });
        }
        if weighting.has_supports() && most.is_none() {
            return Err(WeightError::NoSupport);
        }
        let mut lengths = trees.iter().flat_map(|tree| tree.nodes());
        if weighting.has_lengths() && !lengths.any(|node| node.length.is_some()) {
            return Err(WeightError::NoLength);
        }
        let labels = genes.labels.iter().zip(0..);
        let numbers: HashMap<&str, usize> = labels.map(|(own, at)| (own.as_str(), at)).collect();
        let open = |label: &str| {
            let own = number(label);
            let is_weak = own.zip(contract).is_some_and(|(own, least)| own < least);
            match weighting.has_supports() {
                _ if is_weak => 1.0,
                true => own.map_or(1.0, |own| {
                    1.0 - ((own - low) / (high - low)).clamp(0.0, 1.0)
                }),
                false => 0.0,
            }
        };
        let weighted = trees.iter().map(|tree| weighted(tree, &numbers, &open));
        Ok(Self {
            genes: weighted.collect(),
            has_lengths: weighting.has_lengths(),
        })
    }

    /// The weight of all quartets of the gene trees.
    pub(super) fn all(&self) -> f64 {
        let mut sums = Pass::<1, 1>::new([[0; 4]], self.has_lengths);
        let each = self.genes.iter().map(|gene| sums.of(gene, |_| [1.0]));
        let each = each.map(|[sum]| sum);
        // Each quartet has two nodes, and at either the other two taxa in two orders.
        each.sum::<f64>() / 4.0
    }
}

/// The largest number that is the label of an inner branch.
fn most_support(trees: &[Newick]) -> Option<f64> {
    let inner = trees.iter().flat_map(|tree| {
        let nodes = tree.nodes().iter().skip(1);
        nodes.filter(|node| !node.children.is_empty())
    });
    inner
        .filter_map(|node| number(&node.label))
        .reduce(f64::max)
}

/// The number that a label is.
fn number(label: &str) -> Option<f64> {
    let own: Option<f64> = label.trim().parse().ok();
    own.filter(|own| own.is_finite())
}

/// The nodes of a gene tree; `open` is what a label leaves open.
fn weighted(
    tree: &Newick,
    numbers: &HashMap<&str, usize>,
    open: &impl Fn(&str) -> f64,
) -> Vec<Node> {
    let nodes = tree.nodes();
    let made = nodes.iter().map(|own| {
        let is_tip = own.children.is_empty();
        let taxon = numbers.get(own.label.as_str()).copied();
        Node {
            parent: own.parent,
            taxon: taxon.filter(|_| is_tip),
            // A tip's branch is between no two pairs.
            open: if is_tip { 1.0 } else { open(&own.label) },
            fades: libm::exp(-own.length.unwrap_or(0.0).max(0.0)),
        }
    });
    let mut made: Vec<Node> = made.collect();
    // The two branches at a root of two are one, whose support stands at either: it counts once.
    if let [a, b] = nodes[0].children[..] {
        let halves = [a, b].map(|half| !nodes[half].children.is_empty());
        let labels = [a, b].map(|half| number(&nodes[half].label).is_some());
        let own = match halves {
            // The less supported one, of two that have a label.
            [true, true] if labels == [true, true] => made[a].open.max(made[b].open),
            [true, true] if labels == [false, true] => made[b].open,
            [true, _] => made[a].open,
            [false, _] => made[b].open,
        };
        (made[a].open, made[b].open) = (own, 1.0);
    }
    made
}

/// The first pair of each choice of three sets is in one of them.
const PARTS: [Pairing; 3] = [[0, 0, 1, 2], [1, 1, 0, 2], [2, 2, 0, 1]];

fn members<const K: usize>(sets: [&TaxonSet; K]) -> impl Fn(usize) -> [f64; K] {
    move |taxon| sets.map(|set| f64::from(u8::from(set.has(taxon))))
}

/// The trees of species that share the most weight with gene trees.
pub(super) struct Weighted<'g> {
    pub(super) weights: &'g GeneWeights,
}

impl Score for Weighted<'_> {
    type Sum = f64;

    fn at_node(&self, parts: [&TaxonSet; 3]) -> f64 {
        let mut pass = Pass::new(PARTS, self.weights.has_lengths);
        let each = self.weights.genes.iter().map(|gene| {
            let sums = pass.of(gene, members(parts));
            sums.iter().sum::<f64>()
        });
        each.sum()
    }

    fn around(&self, around: &Around) -> Sums<f64> {
        let (sets, mut sums) = (around.each(), Sums::default());
        let mut pass = Pass::new(PAIRINGS, self.weights.has_lengths);
        let (mut all, mut squares) = (0.0, 0.0);
        for gene in &self.weights.genes {
            // Rounding may leave less than nothing.
            let counts = pass.of(gene, members(sets)).map(|own| own.max(0.0));
            let own: f64 = counts.iter().sum();
            (all, squares) = (all + own, squares + own * own);
            let pairs = sums.counts.iter_mut().zip(counts);
            pairs.for_each(|(to, more)| *to += more);
        }
        // Weights are relative: gene trees count as the equal ones that would say as much.
        if squares > 0.0 {
            sums.shares = sums.counts.map(|own| own * (all / squares));
        }
        sums
    }

    fn is_more(more: f64, than: f64) -> bool {
        // Sums in different orders differ in their last digits.
        more - than > 1e-9 * (more.abs() + than.abs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;
    use crate::rooting::{Method, root};
    use crate::runner::Serial;
    use crate::species::tests::all_trees;
    use crate::species::{score_tree, species_tree, weighted_species_tree};
    use crate::tree::random_tree;

    /// Gene trees of some taxa with labels and lengths; some have a root of two branches, a node
    /// of four branches, or lack a taxon or a label.
    fn trees(taxa: usize, count: usize, seed: u64) -> Vec<Newick> {
        let names: Vec<String> = (0..taxa).map(|k| format!("t{k}")).collect();
        let mut random = Random::new(seed);
        let mut tree = |k: usize| {
            let size = taxa - usize::from(k % 3 == 2);
            let text = random_tree(size, 0.4, &mut random).to_newick(&names[..size]);
            let mut tree = Newick::parse(&text).unwrap();
            if k % 4 == 1 {
                tree = root(&tree, &Method::Midpoint).unwrap().tree;
            }
            if k % 4 == 3 {
                let text = "(t0:0.1,t1:0.2,(t2:0.3,t3:0.1,t4:0.2):0.4);";
                tree = Newick::parse(text).unwrap();
            }
            for node in 1..tree.nodes().len() {
                if !tree.nodes()[node].children.is_empty() && random.index(6) > 0 {
                    tree.set_label(node, random.index(101).to_string());
                }
            }
            tree
        };
        (0..count).map(&mut tree).collect()
    }

    /// The pairing of four taxa in a gene tree and its weight, by the definition: the branches that
    /// part two from two are the path between the pairs.
    fn of_quartet(tree: &Newick, four: [&str; 4], weighting: Weighting) -> Option<(usize, f64)> {
        let nodes = tree.nodes();
        let mut below = vec![[false; 4]; nodes.len()];
        for (at, node) in nodes.iter().enumerate().rev() {
            if node.children.is_empty() {
                below[at] = four.map(|label| label == node.label);
            }
            if let Some(parent) = node.parent {
                let own = below[at];
                below[parent]
                    .iter_mut()
                    .zip(own)
                    .for_each(|(to, has)| *to |= has);
            }
        }
        if below[0] != [true; 4] {
            return None;
        }
        let ways = PAIRINGS.map(|[a, b, c, d]| {
            move |own: &[bool; 4]| own[a] == own[b] && own[c] == own[d] && own[a] != own[c]
        });
        let way = (0..3).find(|&way| below[1..].iter().any(|own| ways[way](own)))?;
        // A root of two branches has one branch, with one support.
        let halves = match nodes[0].children[..] {
            [a, b] => Some([a, b]),
            _ => None,
        };
        let support = |at: usize| number(&nodes[at].label).map_or(0.0, |own| own / 100.0);
        let (mut open, mut around) = (1.0, 0.0);
        for (at, own) in below.iter().enumerate().skip(1) {
            let inside = own.iter().filter(|has| **has).count();
            match halves {
                Some([a, b]) if at == b && ways[way](own) => {
                    // The first half did count.
                    assert!(ways[way](&below[a]));
                }
                Some([a, b]) if at == a && ways[way](own) => {
                    let both = [a, b].map(|half| number(&nodes[half].label).map(|_| support(half)));
                    let least = both.into_iter().flatten().reduce(f64::min);
                    open *= 1.0 - least.unwrap_or(0.0);
                }
                _ if ways[way](own) => open *= 1.0 - support(at),
                _ if inside == 1 || inside == 3 => around += nodes[at].length.unwrap_or(0.0),
                _ => {}
            }
        }
        let certain = if weighting.has_supports() {
            1.0 - open
        } else {
            1.0
        };
        let fades = if weighting.has_lengths() {
            (-around).exp()
        } else {
            1.0
        };
        Some((way, certain * fades))
    }

    /// The weight that a tree shares with gene trees, and all of these.
    fn listed(tree: &Newick, genes: &[Newick], labels: &[String], by: Weighting) -> [f64; 2] {
        let mut sums = [0.0; 2];
        let n = labels.len();
        for a in 0..n {
            for b in a + 1..n {
                for c in b + 1..n {
                    for d in c + 1..n {
                        let four = [a, b, c, d].map(|at| labels[at].as_str());
                        let own = of_quartet(tree, four, by).map(|own| own.0);
                        for gene in genes {
                            if let Some((way, weight)) = of_quartet(gene, four, by) {
                                sums[1] += weight;
                                sums[0] += if own == Some(way) { weight } else { 0.0 };
                            }
                        }
                    }
                }
            }
        }
        sums
    }

    #[test]
    fn no_tree_of_five_or_six_taxa_shares_more_weight() {
        for (taxa, seed) in [(5, 1), (5, 2), (6, 3), (6, 4)] {
            let texts = trees(taxa, 5, seed);
            let genes = GeneTrees::new(Vec::new(), &texts, None).unwrap();
            for by in [Weighting::Support, Weighting::Lengths, Weighting::Both] {
                let weights = GeneWeights::new(&genes, &texts, None, by, None).unwrap();
                let found = weighted_species_tree(&genes, &weights, None, &Serial).unwrap();
                let [all, shared] = [found.weight, found.weight_shared].map(Option::unwrap);
                let [expected, whole] = listed(&found.tree, &texts, &genes.labels, by);
                assert!(
                    (shared - expected).abs() < 1e-9,
                    "{by:?}: {shared} {expected}"
                );
                assert!((all - whole).abs() < 1e-9, "{by:?}: {all} {whole}");
                for tree in all_trees(taxa) {
                    let [other, _] = listed(&tree, &texts, &genes.labels, by);
                    assert!(other < shared + 1e-9, "{by:?}: {other} {shared}");
                    let scored = weighted_species_tree(&genes, &weights, Some(&tree), &Serial);
                    let scored = scored.unwrap().weight_shared.unwrap();
                    assert!((scored - other).abs() < 1e-9, "{by:?}: {scored} {other}");
                }
            }
        }
    }

    #[test]
    fn full_supports_weigh_as_counts_do() {
        let labelled = |text: &str| Newick::parse(text).unwrap();
        let texts = [
            "((a:1,b:1)1:1,(c:1,d:1)1:1,(e:1,f:1)1:1);",
            "((a:1,c:1)1:1,(b:1,d:1)1:1,(e:1,f:1)1:1);",
            "(((a:1,b:1)1:1,e:1)1:1,(c:1,(d:1,f:1)1:1)1:1);",
        ]
        .map(labelled);
        let genes = GeneTrees::new(Vec::new(), &texts, None).unwrap();
        let weights = GeneWeights::new(&genes, &texts, None, Weighting::Support, None).unwrap();
        let weighted = weighted_species_tree(&genes, &weights, None, &Serial).unwrap();
        let counted = species_tree(&genes, &Serial).unwrap();
        assert_eq!(weighted.weight_shared, Some(counted.shared as f64));
        assert_eq!(weighted.weight, Some(counted.all as f64));
        assert_eq!(weighted.shared, counted.shared);
        for (own, other) in weighted.branches.iter().zip(&counted.branches) {
            assert_eq!(own.clade, other.clade);
            assert!((own.genes - other.genes).abs() < 1e-9);
            for way in 0..3 {
                assert!((own.posterior[way] - other.posterior[way]).abs() < 1e-9);
            }
        }
        // Weights are relative: with half of all supports gene trees count almost as before.
        let wide = Some([0.0, 2.0]);
        let weights = GeneWeights::new(&genes, &texts, None, Weighting::Support, wide).unwrap();
        let halved = weighted_species_tree(&genes, &weights, Some(&weighted.tree), &Serial);
        let most = halved.unwrap().branches[0].genes;
        assert!((2.0..=3.0 + 1e-9).contains(&most), "{most}");
        // Half of a support is less than none of the other's.
        let unsure = ["((a,b)40,(c,d));", "((a,c)90,(b,d));", "((a,b)40,(c,d));"].map(labelled);
        let genes = GeneTrees::new(Vec::new(), &unsure, None).unwrap();
        let found = |by, contract, range| {
            let weights = GeneWeights::new(&genes, &unsure, contract, by, range)?;
            let found = weighted_species_tree(&genes, &weights, None, &Serial).unwrap();
            Ok::<_, WeightError>(found.weight_shared.unwrap())
        };
        let near = |made: Result<f64, WeightError>, expected: f64| {
            assert!((made.unwrap() - expected).abs() < 1e-12, "{expected}");
        };
        near(found(Weighting::Support, None, None), 0.9);
        near(found(Weighting::Support, None, Some([0.0, 400.0])), 0.225);
        near(found(Weighting::Support, None, Some([-10.0, 40.0])), 2.0);
        near(found(Weighting::Support, Some(95.0), None), 0.0);
        assert_eq!(
            found(Weighting::Both, None, None),
            Err(WeightError::NoLength)
        );
        assert!(matches!(
            found(Weighting::Support, None, Some([1.0, 1.0])),
            Err(WeightError::Range { .. })
        ));
        let bare = ["((a,b),(c,d));"].map(labelled);
        let genes = GeneTrees::new(Vec::new(), &bare, None).unwrap();
        let refused = GeneWeights::new(&genes, &bare, None, Weighting::Support, None);
        assert_eq!(refused.unwrap_err(), WeightError::NoSupport);
    }

    #[test]
    fn sure_trees_win_where_candidates_are_few() {
        // Twelve taxa: not all trees are compared. Most gene trees are noise, and know it.
        let names: Vec<String> = (0..12).map(|k| format!("t{k}")).collect();
        let mut random = Random::new(4);
        let tree = |label: &str, random: &mut Random| {
            let text = random_tree(12, 0.1, random).to_newick(&names);
            let mut tree = Newick::parse(&text).unwrap();
            for node in 1..tree.nodes().len() {
                if !tree.nodes()[node].children.is_empty() {
                    tree.set_label(node, label.to_owned());
                }
            }
            tree
        };
        let truth = tree("1", &mut random);
        let mut all = vec![truth.clone(), truth.clone()];
        all.extend((0..12).map(|_| tree("0.01", &mut random)));
        let genes = GeneTrees::new(names.clone(), &all, None).unwrap();
        let weights = GeneWeights::new(&genes, &all, None, Weighting::Support, None).unwrap();
        let found = weighted_species_tree(&genes, &weights, None, &Serial).unwrap();
        let distance = crate::compare::compare(&found.tree, &truth).unwrap();
        assert_eq!((distance.rf, found.is_exact), (0, false));
        let own = score_tree(&genes, &found.tree, &Serial).unwrap();
        assert_eq!(own.shared, found.shared);
    }
}

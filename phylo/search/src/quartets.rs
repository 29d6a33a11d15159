//! Gene trees as sets of taxa, and the quartets that they share with other trees.
//!
//! An inner node of a gene tree cuts its taxa into parts, one for each branch. A quartet `ab|cd` is
//! counted at the node where `a` and `b` are in one part, `c` and `d` in two others. So the
//! quartets that two trees share are found by sizes of intersections, without listing quartets.
//! Why here: the species tree, quartet supports and gene concordance all ask the same counts. Equal
//! nodes of different gene trees are stored and counted once.
//!
//! Must stay true: counts are whole numbers, so their sums do not depend on an order. Gene trees
//! may lack taxa, may be rooted or not, and may have nodes of any degree.
//! Source: Mirarab and Warnow, "ASTRAL-II", Bioinformatics 31 (2015), i44-i52; Zhang and others,
//! "ASTRAL-III", BMC Bioinformatics 19 (2018), 153, for nodes of any degree.

use crate::newick::Newick;
use crate::splits::SetError;
use crate::taxa::TaxonSet;
use crate::taxa::clades;
use sidecore_bare::width::{ToU64, ToUsize};
use std::collections::{HashMap, HashSet};

/// One gene tree.
#[derive(Debug)]
pub(crate) struct Gene {
    /// The taxa that it has.
    pub(crate) taxa: TaxonSet,
    /// For each of its inner nodes with three branches or more the number among all nodes.
    nodes: Vec<u32>,
    /// The inner branches, each as the side without the least taxon of the tree.
    splits: HashSet<TaxonSet>,
}

impl Gene {
    /// True if a branch parts these of its taxa from its others.
    #[must_use]
    pub(crate) fn has_split(&self, side: &TaxonSet) -> bool {
        let side = side.and(&self.taxa);
        let first = self.taxa.taxa().next();
        // `splits` has the side without the least taxon, so another side is turned over.
        match first.is_some_and(|first| side.has(first)) {
            true => self.splits.contains(&self.taxa.without(&side)),
            false => self.splits.contains(&side),
        }
    }

    /// The inner branches, each as the side without the least taxon of the tree.
    pub(crate) fn splits(&self) -> impl Iterator<Item = &TaxonSet> {
        self.splits.iter()
    }
}

/// Inner node of gene trees: the taxa behind each of its branches.
#[derive(Debug)]
struct Node {
    parts: Vec<TaxonSet>,
    /// The number of taxa of each.
    sizes: Vec<u64>,
    /// Number of gene trees that have it.
    count: u64,
}

/// Gene trees, each node once.
#[derive(Debug)]
pub struct GeneTrees {
    /// The taxa's labels, by number: in the order in which they first occur.
    pub labels: Vec<String>,
    /// The trees.
    pub(crate) genes: Vec<Gene>,
    nodes: Vec<Node>,
}

impl GeneTrees {
    /// Takes trees of any shape; `labels` are taxa that are numbered first. Branches whose label is
    /// a number below `contract` are removed: their nodes get more branches.
    ///
    /// # Errors
    /// [`SetError`].
    pub fn new(
        labels: Vec<String>,
        trees: &[Newick],
        contract: Option<f64>,
    ) -> Result<Self, SetError> {
        let mut made = Self {
            labels,
            genes: Vec::with_capacity(trees.len()),
            nodes: Vec::new(),
        };
        let known = made.labels.iter().cloned().enumerate();
        let mut numbers: HashMap<String, usize> = known.map(|(k, label)| (label, k)).collect();
        // All labels before the first set: a set has a bit for each taxon.
        for (tree, newick) in trees.iter().enumerate() {
            let mut own = HashSet::new();
            for tip in newick.tips() {
                let label = &newick.nodes()[tip].label;
                if !own.insert(label) {
                    let label = label.clone();
                    return Err(SetError::Twice {
                        tree: tree + 1,
                        label,
                    });
                }
                if !numbers.contains_key(label) {
                    numbers.insert(label.clone(), made.labels.len());
                    made.labels.push(label.clone());
                }
            }
        }
        match made.labels.len() {
            taxa @ 0..4 => return Err(SetError::FewTaxa { taxa }),
            taxa if taxa > TAXA_MAX => {
                return Err(SetError::ManyTaxa {
                    taxa,
                    most: TAXA_MAX,
                });
            }
            _ => {}
        }
        let mut places = HashMap::new();
        for newick in trees {
            made.add(newick, &numbers, contract, &mut places);
        }
        Ok(made)
    }

    /// Number of taxa.
    #[must_use]
    pub fn taxa(&self) -> usize {
        self.labels.len()
    }

    /// Number of trees.
    #[must_use]
    pub fn trees(&self) -> usize {
        self.genes.len()
    }

    /// Number of distinct nodes: the time of a count is proportional to it.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.nodes.len()
    }

    fn add(
        &mut self,
        newick: &Newick,
        numbers: &HashMap<String, usize>,
        contract: Option<f64>,
        places: &mut HashMap<Vec<TaxonSet>, u32>,
    ) {
        let taxa = self.taxa();
        let below = clades(newick, taxa, |label| numbers.get(label).copied());
        let all = below[0].clone();
        let first = all.taxa().next().unwrap_or(0);
        let mut gene = Gene {
            taxa: all.clone(),
            nodes: Vec::new(),
            splits: HashSet::new(),
        };
        let nodes = newick.nodes();
        let has_weak_label = |node: usize| {
            // The root has no branch above it, and the label of a tip is a name.
            let least = contract.filter(|_| node > 0 && !nodes[node].children.is_empty());
            let value: Option<f64> = nodes[node].label.trim().parse().ok();
            least.zip(value).is_some_and(|(least, value)| value < least)
        };
        // The two branches at the root of a rooted tree are one: a label may be at either.
        let halves = match nodes[0].children[..] {
            [a, b] => [a, b].map(|half| !nodes[half].children.is_empty()),
            _ => [false; 2],
        };
        let is_halved = halves == [true; 2] && nodes[0].children.iter().any(|&k| has_weak_label(k));
        let is_weak =
            |node: usize| has_weak_label(node) || is_halved && nodes[node].parent == Some(0);
        let inner = (0..nodes.len()).filter(|&node| !nodes[node].children.is_empty());
        for node in inner.filter(|&node| !is_weak(node)) {
            let mut parts = Vec::new();
            // The children of a weak child are its own.
            let mut path: Vec<usize> = nodes[node].children.clone();
            while let Some(child) = path.pop() {
                match is_weak(child) {
                    true => path.extend(&nodes[child].children),
                    false => parts.push(below[child].clone()),
                }
            }
            let rest = all.without(&below[node]);
            if !rest.is_empty() {
                let lesser = match rest.has(first) {
                    true => below[node].clone(),
                    false => rest.clone(),
                };
                // One taxon on either side is the branch of a tip.
                if lesser.len() >= 2 && lesser.len() + 2 <= all.len() {
                    gene.splits.insert(lesser);
                }
                parts.push(rest);
            }
            // A root of two branches is no node of an unrooted tree.
            if parts.len() < 3 {
                continue;
            }
            // Equal nodes of two trees list their branches in different orders.
            parts.sort_unstable();
            let next = self.nodes.len() as u32;
            let place = *places.entry(parts).or_insert_with_key(|parts| {
                let parts = parts.clone();
                let sizes = parts.iter().map(|part| part.len().to_u64()).collect();
                self.nodes.push(Node {
                    parts,
                    sizes,
                    count: 0,
                });
                next
            });
            self.nodes[place.to_usize()].count += 1;
            gene.nodes.push(place);
        }
        self.genes.push(gene);
    }

    /// Quartets that a node of a species tree with these three parts shares with all gene trees:
    /// those with two taxa in one of its parts and one in each of the others.
    #[must_use]
    pub(crate) fn at_node(&self, parts: [&TaxonSet; 3]) -> u128 {
        let [one, two, three] = parts;
        let all: usize = parts.iter().map(|part| part.len()).sum();
        let sizes = |part: &TaxonSet, size: u64| {
            let (a, b) = (one.shared(part), two.shared(part));
            // Of three sets with all taxa the third has the rest of each part.
            let c = match all == self.taxa() {
                true => size - a - b,
                false => three.shared(part),
            };
            [a, b, c]
        };
        let shared = self.nodes.iter().map(|node| {
            // Most nodes have three parts: for them nothing is allocated.
            let found = match (&node.parts[..], &node.sizes[..]) {
                ([p, q, r], &[x, y, z]) => pairs_at(&[sizes(p, x), sizes(q, y), sizes(r, z)]),
                (parts, all) => {
                    let all = parts.iter().zip(all).map(|(part, &size)| sizes(part, size));
                    pairs_at(&all.collect::<Vec<_>>())
                }
            };
            u128::from(node.count) * u128::from(found)
        });
        shared.sum()
    }

    /// Quartets that the gene trees have.
    #[must_use]
    pub fn quartets(&self) -> u128 {
        let at_node = |node: &Node| {
            let sizes = || node.sizes.iter().copied();
            let (sum, squares) = sizes().fold((0, 0), |(a, b), n| (a + n, b + n * n));
            let pairs = sizes().map(|n| {
                // Pairs of taxa in two different other parts.
                let (rest, rest_squares) = (sum - n, squares - n * n);
                (n * (n - 1) / 2) * ((rest * rest - rest_squares) / 2)
            });
            u128::from(node.count) * u128::from(pairs.sum::<u64>())
        };
        // Each has two nodes: one for either of its pairs.
        self.nodes.iter().map(at_node).sum::<u128>() / 2
    }

    /// For each of three ways to pair four sets of taxa (12|34, 13|24, 14|23) the quartets with one
    /// taxon of each that each gene tree has, with the number that its taxa allow.
    #[must_use]
    pub(crate) fn around(&self, sets: [&TaxonSet; 4]) -> Vec<Quartets> {
        // Gene trees share nodes: each is counted once at most.
        let mut known: Vec<Option<[u64; 3]>> = vec![None; self.nodes.len()];
        let of_gene = |gene: &Gene| {
            let sizes = sets.map(|set| set.shared(&gene.taxa));
            let possible = sizes.iter().product();
            let mut found = [0; 3];
            if possible > 0 {
                for &node in &gene.nodes {
                    let at = node.to_usize();
                    let counts = *known[at].get_or_insert_with(|| {
                        let sizes = |part: &TaxonSet| sets.map(|set| set.shared(part));
                        pairings_at(&self.nodes[at].parts, sizes)
                    });
                    found
                        .iter_mut()
                        .zip(counts)
                        .for_each(|(to, more)| *to += more);
                }
            }
            Quartets { found, possible }
        };
        self.genes.iter().map(of_gene).collect()
    }
}

/// Quartets of a gene tree around a branch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Quartets {
    /// Those of each of the three pairings.
    pub(crate) found: [u64; 3],
    /// All that the gene tree's taxa allow; more than the sum where it has nodes of many branches.
    pub(crate) possible: u64,
}

/// Quartets with two taxa in one part and two in two others, on both sides alike. `sizes` are, part
/// by part of a gene tree's node, the taxa that it shares with each of three sets.
fn pairs_at(sizes: &[[u64; 3]]) -> u64 {
    let mut sum = [0; 3];
    // Of each pair of sets: the products within a part.
    let mut both = [0; 3];
    for own in sizes {
        for ((set, sum), both) in sum.iter_mut().enumerate().zip(&mut both) {
            *sum += own[set];
            *both += own[(set + 1) % 3] * own[(set + 2) % 3];
        }
    }
    let of_part = |own: &[u64; 3]| {
        let of_set = |set: usize| {
            let (b, c) = ((set + 1) % 3, (set + 2) % 3);
            // A part may have no taxon of the set.
            let two = own[set] * own[set].saturating_sub(1) / 2;
            // One of each other set, in two different other parts.
            let others = (sum[b] - own[b]) * (sum[c] - own[c]);
            // Two taxa within one other part are no quartet of this node.
            two * (others - (both[set] - own[b] * own[c]))
        };
        (0..3).map(of_set).sum::<u64>()
    };
    sizes.iter().map(of_part).sum()
}

/// The three pairings of four sets at a node: the pair is in one part, the other two in two others.
/// Each quartet has one such node with its first pair.
fn pairings_at(parts: &[TaxonSet], sizes: impl Fn(&TaxonSet) -> [u64; 4]) -> [u64; 3] {
    let sizes: Vec<[u64; 4]> = parts.iter().map(sizes).collect();
    PAIRINGS.map(|[a, b, c, d]| {
        let sum = |set: usize| sizes.iter().map(|own| own[set]).sum::<u64>();
        let both: u64 = sizes.iter().map(|own| own[c] * own[d]).sum();
        let (all_c, all_d) = (sum(c), sum(d));
        let found = sizes.iter().map(|own| {
            let others = (all_c - own[c]) * (all_d - own[d]);
            own[a] * own[b] * (others - (both - own[c] * own[d]))
        });
        found.sum()
    })
}

/// An inner branch of a tree and the taxa behind its four neighbours.
#[derive(Debug, Clone)]
pub(crate) struct Around {
    /// The node of the Newick tree below the branch.
    pub(crate) node: usize,
    /// The taxa of two clades at one end, then of the two at the other.
    pub(crate) sets: [TaxonSet; 4],
}

impl Around {
    /// The four sets.
    #[must_use]
    pub(crate) fn each(&self) -> [&TaxonSet; 4] {
        self.sets.each_ref()
    }

    /// The taxa at one end, for one of the three ways to pair the four sets.
    #[must_use]
    pub(crate) fn side(&self, pairing: usize) -> TaxonSet {
        let [a, b, ..] = PAIRINGS[pairing];
        let mut side = self.sets[a].clone();
        side.add(&self.sets[b]);
        side
    }
}

/// The inner branches of a tree that join exactly four subtrees. A label without a number (see
/// `number`) counts for no set.
#[must_use]
pub(crate) fn branches(
    tree: &Newick,
    taxa: usize,
    number: impl Fn(&str) -> Option<usize>,
) -> Vec<Around> {
    let nodes = tree.nodes();
    let below = clades(tree, taxa, number);
    let mut found = Vec::new();
    for (node, own) in nodes.iter().enumerate().skip(1) {
        let (Some(parent), &[a, b]) = (own.parent, &own.children[..]) else {
            continue;
        };
        let others = || {
            nodes[parent]
                .children
                .iter()
                .filter(move |&&child| child != node)
        };
        let mut beyond: Vec<TaxonSet> = match others().copied().collect::<Vec<_>>()[..] {
            // The two branches at a root of two are one, which ends at the other child.
            [other] if parent == 0 && other > node => nodes[other]
                .children
                .iter()
                .map(|&child| below[child].clone())
                .collect(),
            // The same branch, seen from its other end, was taken already.
            [_] if parent == 0 => continue,
            _ => others().map(|&child| below[child].clone()).collect(),
        };
        if parent > 0 {
            beyond.push(below[0].without(&below[parent]));
        }
        // A node of more branches has more than two clades at this end.
        if let Ok([c, d]) = <[TaxonSet; 2]>::try_from(beyond) {
            let sets = [below[a].clone(), below[b].clone(), c, d];
            found.push(Around { node, sets });
        }
    }
    found
}

/// Bytes of memory that gene trees with these numbers of nodes and taxa take at most.
#[must_use]
pub(crate) fn gene_trees_bytes(nodes: usize, taxa: usize) -> u64 {
    // Three parts and a split a node, and a key of the parts.
    let set = taxa.div_ceil(64) * 8 + SET_BYTES;
    (nodes.saturating_mul(8).saturating_mul(set)).to_u64()
}

/// The ways to pair four sets: the first two against the last two.
pub(crate) const PAIRINGS: [[usize; 4]; 3] = [[0, 1, 2, 3], [0, 2, 1, 3], [0, 3, 1, 2]];
/// With more, the quartets of a node might not fit into 64 bits.
const TAXA_MAX: usize = 50_000;
/// Of a set in a table, besides its words.
const SET_BYTES: usize = 40;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;
    use crate::tree::random_tree;

    /// The two branches at a root of two are one, whichever of them has the label.
    #[test]
    fn a_weak_branch_at_the_root_is_contracted() {
        let found = |text: &str| {
            let tree = Newick::parse(text).unwrap();
            let all = GeneTrees::new(Vec::new(), &[tree], Some(50.0)).unwrap();
            (all.quartets(), all.genes[0].splits.len(), all.nodes())
        };
        let unrooted = found("((a,b)5,(c,d)90,e);");
        assert_eq!(unrooted.1, 1);
        for text in [
            "((a,b)5,((c,d)90,e));",
            "((a,b),((c,d)90,e)5);",
            "((a,b)5,((c,d)90,e)5);",
            "(((a,b)5,(c,d)90),e);",
        ] {
            assert_eq!(found(text), unrooted, "{text}");
        }
        assert!(found("((a,b)55,((c,d)90,e));") > unrooted);
    }

    /// The pairing of four taxa in a tree, by its definition: a branch parts two from two.
    fn pairing(gene: &Gene, [a, b, c, d]: [usize; 4]) -> Option<usize> {
        let parted = |side: &TaxonSet, x: usize, y: usize, z: usize, w: usize| {
            side.has(x) == side.has(y) && side.has(z) == side.has(w) && side.has(x) != side.has(z)
        };
        let ways = [[a, b, c, d], [a, c, b, d], [a, d, b, c]];
        (0..3).find(|&way| {
            let [x, y, z, w] = ways[way];
            gene.splits().any(|side| parted(side, x, y, z, w))
        })
    }

    fn random_genes(taxa: usize, count: usize, seed: u64) -> GeneTrees {
        let names: Vec<String> = (0..taxa).map(|k| format!("t{k}")).collect();
        let mut random = Random::new(seed);
        let trees: Vec<Newick> = (0..count)
            .map(|k| {
                // Every second tree lacks a taxon, and some have a node of many branches.
                let size = taxa - k % 2;
                let text = random_tree(size, 0.1, &mut random).to_newick(&names[..size]);
                Newick::parse(&text).unwrap()
            })
            .collect();
        GeneTrees::new(names, &trees, None).unwrap()
    }

    fn sets<const N: usize>(lists: [&[usize]; N]) -> [TaxonSet; N] {
        lists.map(|taxa| {
            let mut set = TaxonSet::empty(8);
            taxa.iter().for_each(|&taxon| set.insert(taxon));
            set
        })
    }

    /// The pairings by a gene tree of all quartets with one taxon of each list.
    fn listed(gene: &Gene, [p, q, r, s]: [&[usize]; 4]) -> Quartets {
        let (mut found, mut possible) = ([0; 3], 0);
        for number in 0..p.len() * q.len() * r.len() * s.len() {
            let (a, rest) = (p[number % p.len()], number / p.len());
            let (b, rest) = (q[rest % q.len()], rest / q.len());
            let four = [a, b, r[rest % r.len()], s[rest / r.len()]];
            if four.iter().all(|&taxon| gene.taxa.has(taxon)) {
                possible += 1;
                found[pairing(gene, four).unwrap()] += 1;
            }
        }
        Quartets { found, possible }
    }

    #[test]
    fn counts_are_those_of_a_list_of_quartets() {
        let all = random_genes(8, 6, 5);
        let lists = [&[0, 1][..], &[2], &[3, 4, 5], &[6, 7]];
        let found = all.around(sets(lists).each_ref());
        for (gene, found) in all.genes.iter().zip(found) {
            assert_eq!(found, listed(gene, lists));
            assert!(found.possible > 0);
        }
        // At a node with all taxa, and with a part of them, as where there are more branches.
        for lists in [
            [&[0, 1, 5][..], &[2, 6], &[3, 4, 7]],
            [&[0, 1], &[2, 6, 7], &[3]],
        ] {
            let mut expected = 0;
            for k in 0..3 {
                let [pair, one, other] = [k, (k + 1) % 3, (k + 2) % 3].map(|set| lists[set]);
                for (at, a) in pair.iter().enumerate() {
                    let both = [std::slice::from_ref(a), &pair[..at], one, other];
                    let shared = all.genes.iter().map(|gene| listed(gene, both).found[0]);
                    expected += u128::from(shared.sum::<u64>());
                }
            }
            assert_eq!(all.at_node(sets(lists).each_ref()), expected);
        }
    }

    #[test]
    fn weak_branches_are_removed_and_roots_are_ignored() {
        let trees = |texts: &[&str], contract| {
            let trees: Vec<Newick> = texts
                .iter()
                .map(|text| Newick::parse(text).unwrap())
                .collect();
            GeneTrees::new(Vec::new(), &trees, contract)
        };
        let rooted = trees(&["((a,b)90,((c,d)20,e)70);", "(a,b,((c,d),e));"], None).unwrap();
        assert_eq!(rooted.nodes(), 3);
        assert_eq!(rooted.genes[0].splits, rooted.genes[1].splits);
        let weak = trees(&["((a,b)90,((c,d)20,e)70);"], Some(50.0)).unwrap();
        assert_eq!(weak.genes[0].splits().count(), 1);
        assert_eq!(
            trees(&["(a,b,(c,a));"], None).unwrap_err(),
            SetError::Twice {
                tree: 1,
                label: "a".to_owned()
            }
        );
        assert!(matches!(
            trees(&["(a,b,c);"], None),
            Err(SetError::FewTaxa { taxa: 3 })
        ));
    }

    #[test]
    fn branches_have_four_neighbours() {
        let number = |label: &str| label[1..].parse::<usize>().ok();
        let found = |text: &str| {
            let all = branches(&Newick::parse(text).unwrap(), 6, number);
            let sizes = |around: &Around| around.each().map(TaxonSet::len);
            all.iter().map(sizes).collect::<Vec<_>>()
        };
        assert_eq!(
            found("((t0,t1),(t2,(t3,(t4,t5))));"),
            [[1, 1, 1, 3], [1, 2, 1, 2], [1, 1, 1, 3]]
        );
        // A branch to a node of four branches has five neighbours.
        assert_eq!(found("(t0,t1,(t2,(t3,t4,t5)));"), [[1, 3, 1, 1]]);
        assert_eq!(found("(t0,(t1,t2),(t3,(t4,t5)));").len(), 3);
    }
}

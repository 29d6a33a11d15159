//! Constraints: splits that every tree of a search must have; and the terrace of a tree.
//!
//! A constraint is a tree of any shape over some of the taxa. A tree obeys it when, for each of the
//! constraint's splits, some branch has all taxa of the one side on its one side and all of the
//! other on its other; taxa that the constraint does not name may be anywhere.
//! Must stay true: where a tree obeys, every place that is allowed for a subtree gives a tree that
//! obeys; and a place that gives one is allowed.
//!
//! A partition sees only the subtree of the taxa that have characters in it. Trees with the same
//! such subtrees for all partitions have one likelihood where each partition has lengths of its
//! own. Their number is counted by a recursion over the branches at a root, which is a taxon that
//! all partitions have.
//! Sources: Sanderson, McMahon and Steel, "Terraces in phylogenetic tree space", Science 333
//! (2011), 448-450; Constantinescu and Sankoff, "An efficient algorithm for supertrees", Journal of
//! Classification 12 (1995), 101-112, for the recursion.
//!
//! ```
//! use sidecore_phylo::constraint::Constraint;
//! use sidecore_phylo::newick::Newick;
//! use sidecore_phylo::tree::Tree;
//!
//! let names = ["a", "b", "c", "d", "e"].map(String::from);
//! let wanted = Constraint::from_newick(&Newick::parse("((a,b),c,d,e);")?, &names)?;
//! let obeys = |text| -> Result<bool, Box<dyn std::error::Error>> {
//!     Ok(wanted.holds(&Tree::from_newick(&Newick::parse(text)?, &names)?))
//! };
//! assert!(obeys("((a,b),c,(d,e));")?);
//! assert!(!obeys("((a,c),b,(d,e));")?);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use crate::msa::Patterns;
use crate::newick::Newick;
use crate::parsimony::Places;
use crate::random::Random;
use crate::taxa::TaxonSet;
use crate::tree::{EdgeId, HalfId, LENGTH_DEFAULT, Tree, TreeError};
use std::collections::{BTreeMap, HashMap};

/// The splits that a tree must have.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Constraint {
    taxa: usize,
    splits: Vec<Split>,
}

/// For each taxon its required side.
type Split = Vec<Side>;

#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
enum Side {
    One,
    Other,
    Free,
}

impl Constraint {
    /// From a parsed tree of any shape over some of `names`.
    ///
    /// # Errors
    /// [`TreeError::Unknown`], [`TreeError::Twice`].
    pub fn from_newick(newick: &Newick, names: &[String]) -> Result<Self, TreeError> {
        let by_name: HashMap<&str, usize> = names
            .iter()
            .enumerate()
            .map(|(taxon, name)| (name.as_str(), taxon))
            .collect();
        let nodes = newick.nodes();
        let mut named = vec![Side::Free; names.len()];
        let mut below: Vec<Vec<usize>> = vec![Vec::new(); nodes.len()];
        for tip in newick.tips() {
            // A label may be as long as the file.
            let label = || nodes[tip].label.chars().take(60).collect();
            let &taxon = by_name
                .get(nodes[tip].label.as_str())
                .ok_or_else(|| TreeError::Unknown { label: label() })?;
            if named[taxon] != Side::Free {
                return Err(TreeError::Twice { label: label() });
            }
            named[taxon] = Side::Other;
            below[tip].push(taxon);
        }
        let count = below.iter().map(Vec::len).sum::<usize>();
        let mut splits: Vec<Split> = Vec::new();
        // Children stand after their parents.
        for node in (1..nodes.len()).rev() {
            let own = std::mem::take(&mut below[node]);
            // A split with one taxon on a side is in every tree.
            if own.len() > 1 && own.len() + 1 < count {
                let mut split = named.clone();
                own.iter().for_each(|&taxon| split[taxon] = Side::One);
                let turned: Split = split.iter().map(|side| side.turned()).collect();
                // A root of two children gives one split twice.
                if !splits.contains(&split) && !splits.contains(&turned) {
                    splits.push(split);
                }
            }
            if let Some(parent) = nodes[node].parent {
                below[parent].extend(own);
            }
        }
        Ok(Self {
            taxa: names.len(),
            splits,
        })
    }

    /// True if a tree has all the splits.
    ///
    /// # Panics
    /// When it has another number of taxa.
    #[must_use]
    pub fn holds(&self, tree: &Tree) -> bool {
        assert_eq!(self.taxa, tree.taxa(), "taxa of tree and constraint");
        self.splits.iter().all(|split| {
            let counts = Counts::new(tree, HalfId::new(0), split);
            tree.edges().any(|edge| counts.separates(edge))
        })
    }

    /// For each branch: true if the subtree behind `half` may be inserted into it; branches of the
    /// subtree itself stay false.
    pub fn edges_for_subtree(&self, tree: &Tree, half: HalfId) -> Vec<bool> {
        let mut rest = tree.clone();
        let below = tree.back(half);
        let taxa = tips(tree, below);
        let pruned = rest.prune(half);
        // The root is a tip outside the subtree, so that the walk covers exactly the rest of the
        // tree.
        let root = tips(&rest, pruned.ends[0])
            .first()
            .map_or(HalfId::new(0), |&tip| HalfId::new(tip));
        let mut allowed = vec![false; tree.edges().count()];
        let mut path = vec![root];
        while let Some(at) = path.pop() {
            allowed[rest.edge(at).index()] = true;
            let back = rest.back(at);
            if !rest.is_tip(back) {
                path.extend(rest.others(back));
            }
        }
        for split in &self.splits {
            let has = |side| taxa.iter().any(|&taxon| split[taxon] == side);
            let side = match [has(Side::One), has(Side::Other)] {
                [true, false] => Side::One,
                [false, true] => Side::Other,
                // The split lies within the subtree, or does not concern it.
                _ => continue,
            };
            // The subtree has taxa of one side only, so it must stay on that side of the split.
            restrict(&rest, root, split, side, &mut allowed);
        }
        allowed
    }
}

impl Places for Constraint {
    fn for_tip(&self, tree: &Tree, there: &[usize], tip: usize) -> Vec<bool> {
        let root = HalfId::new(there[0]);
        let mut allowed = vec![true; tree.edges().count()];
        for split in &self.splits {
            restrict(tree, root, split, split[tip], &mut allowed);
        }
        allowed
    }

    fn for_subtree(&self, tree: &Tree, half: HalfId) -> Vec<bool> {
        self.edges_for_subtree(tree, half)
    }
}

impl Side {
    fn turned(self) -> Self {
        match self {
            Self::One => Self::Other,
            Self::Other => Self::One,
            Self::Free => Self::Free,
        }
    }
}

/// The taxa behind a half-edge, on its own node's side.
fn tips(tree: &Tree, half: HalfId) -> Vec<usize> {
    let mut found = Vec::new();
    let mut path = vec![half];
    while let Some(half) = path.pop() {
        if tree.is_tip(half) {
            found.push(half.index());
        } else {
            path.extend(tree.others(half).map(|other| tree.back(other)));
        }
    }
    found
}

/// Numbers of taxa of each side beyond each branch, seen from a root.
struct Counts {
    below: Vec<[u32; 2]>,
    /// For each branch its half-edge that points away from the root.
    down: Vec<HalfId>,
    /// True if the tree has the branch.
    walked: Vec<bool>,
    all: [u32; 2],
}

impl Counts {
    fn new(tree: &Tree, root: HalfId, split: &Split) -> Self {
        let edges = tree.edges().count();
        let mut counts = Self {
            below: vec![[0; 2]; edges],
            down: vec![HalfId::new(0); edges],
            walked: vec![false; edges],
            all: [0; 2],
        };
        let count = |tip: HalfId| match split[tip.index()] {
            Side::One => [1, 0],
            Side::Other => [0, 1],
            Side::Free => [0, 0],
        };
        // Parents first in `order`; the counts are summed in reverse, children first.
        let mut order = Vec::new();
        let mut path = vec![root];
        while let Some(half) = path.pop() {
            order.push(half);
            counts.down[tree.edge(half).index()] = half;
            counts.walked[tree.edge(half).index()] = true;
            let back = tree.back(half);
            if !tree.is_tip(back) {
                path.extend(tree.others(back));
            }
        }
        for &half in order.iter().rev() {
            let back = tree.back(half);
            counts.below[tree.edge(half).index()] = if tree.is_tip(back) {
                count(back)
            } else {
                let [a, b] = tree
                    .others(back)
                    .map(|other| counts.below[tree.edge(other).index()]);
                [a[0] + b[0], a[1] + b[1]]
            };
        }
        let (own, rest) = (count(root), counts.below[tree.edge(root).index()]);
        counts.all = [own[0] + rest[0], own[1] + rest[1]];
        counts
    }

    /// True if all of one side are below the branch, and none of the other side.
    fn separates(&self, edge: EdgeId) -> bool {
        let below = self.below[edge.index()];
        below == [self.all[0], 0] || below == [0, self.all[1]]
    }
}

/// Removes the branches into which taxa of one `side` of a split may not be inserted.
fn restrict(tree: &Tree, root: HalfId, split: &Split, side: Side, allowed: &mut [bool]) {
    let own = match side {
        Side::One => 0,
        Side::Other => 1,
        Side::Free => return,
    };
    let counts = Counts::new(tree, root, split);
    // With one side absent from the rest, every branch is compatible.
    if counts.all.contains(&0) {
        return;
    }
    // A branch is right when it separates the sides, or lies on the own side of one that does.
    let mut right = vec![false; allowed.len()];
    let mut path = Vec::new();
    for edge in tree.edges() {
        let down = counts.down[edge.index()];
        if counts.walked[edge.index()] && counts.separates(edge) {
            right[edge.index()] = true;
            let own_is_below = counts.below[edge.index()][own] > 0;
            path.push(if own_is_below { tree.back(down) } else { down });
        }
    }
    // Everything on the own side of a separating branch is allowed, too.
    while let Some(half) = path.pop() {
        if tree.is_tip(half) {
            continue;
        }
        for other in tree.others(half) {
            if !std::mem::replace(&mut right[tree.edge(other).index()], true) {
                path.push(tree.back(other));
            }
        }
    }
    allowed
        .iter_mut()
        .zip(right)
        .for_each(|(allowed, right)| *allowed &= right);
}

/// A tree that obeys; each taxon is inserted into a branch drawn uniformly from the allowed ones.
pub fn random_tree(taxa: usize, constraint: &Constraint, random: &mut Random) -> Tree {
    let mut order: Vec<usize> = (0..taxa).collect();
    for k in (1..taxa).rev() {
        order.swap(k, random.index(k + 1));
    }
    let mut tree = Tree::star(taxa, [order[0], order[1], order[2]], LENGTH_DEFAULT);
    for (before, &tip) in order.iter().enumerate().skip(3) {
        let allowed = constraint.for_tip(&tree, &order[..before], tip);
        // A tree of n tips has 2n - 3 branches, numbered without gaps.
        let edges = (0..2 * before - 3).map(EdgeId::new);
        let places: Vec<EdgeId> = edges.filter(|edge| allowed[edge.index()]).collect();
        // Never empty: a tree that obeys has a place for each further taxon.
        let target = places[random.index(places.len())];
        tree.insert_tip(tip, before, target);
    }
    tree
}

/// Errors that keep a terrace from being counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TerraceError {
    /// No taxon is in all partitions.
    #[error("a terrace needs a taxon with characters in every partition, and there is none")]
    NoReference,
    /// The tree has a node of more than three branches.
    #[error("a terrace is of a binary tree, and this one has a node of more than three branches")]
    Polytomy,
}

/// The trees that the partitions' subtrees do not tell from a tree.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Terrace {
    /// Number of them, with the tree itself; none from 2^128 on.
    pub trees: Option<u128>,
    /// Its decimal logarithm.
    pub trees_log10: f64,
    /// False if the count ended at its bound: there are at least as many.
    pub is_exact: bool,
}

/// For each taxon, true if a partition has a character of it.
#[must_use]
pub fn with_characters(part: &Patterns) -> Vec<bool> {
    let unknown = part.alphabet().unknown();
    let has = |taxon| part.codes(taxon).iter().any(|&code| code != unknown);
    (0..part.taxa()).map(has).collect()
}

/// Counts the terrace of a tree; `parts` has for each partition the taxa that it has. At most
/// `cuts_max` cuts of sets of taxa in two are tried, each in time of the taxa and partitions.
///
/// # Errors
/// [`TerraceError`].
pub fn terrace(tree: &Tree, parts: &[Vec<bool>], cuts_max: u64) -> Result<Terrace, TerraceError> {
    if tree.edges().any(|edge| tree.is_joint(edge)) {
        return Err(TerraceError::Polytomy);
    }
    let is_everywhere = |taxon: &usize| parts.iter().all(|own| own[*taxon]);
    let reference = (0..tree.taxa()).find(is_everywhere);
    let reference = reference.ok_or(TerraceError::NoReference)?;
    let of = |own: &Vec<bool>| Triple::of(tree, HalfId::new(reference), own);
    let mut triples: Vec<Triple> = parts.iter().flat_map(of).collect();
    triples.sort_unstable();
    triples.dedup();
    let mut counter = Counter {
        room: tree.taxa(),
        cuts_left: cuts_max,
        is_exact: true,
        known: HashMap::new(),
    };
    let found = counter.count(tree.taxa() - 1, triples, 0);
    // The tree itself is one of them, however early the count ended.
    let found = if found.is_zero() { Count::ONE } else { found };
    Ok(Terrace {
        trees: found.exact,
        trees_log10: found.log10,
        is_exact: counter.is_exact,
    })
}

/// Of three taxa the two whose last common ancestor is below the one that all three have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Triple {
    pair: [usize; 2],
    other: usize,
}

impl Triple {
    /// One for each inner branch of the subtree of the taxa that are there; together they define
    /// it, rooted at a tip.
    fn of(tree: &Tree, root: HalfId, is_there: &[bool]) -> Vec<Self> {
        let mut found = Vec::new();
        // Two taxa below each node of the subtree, of either side of it; of a tip one, twice.
        let mut below: Vec<Option<[usize; 2]>> = vec![None; tree.halves()];
        for half in tree.post_order(tree.back(root), |_| true) {
            let children = tree.others(half).map(|other| {
                let child = tree.back(other);
                match tree.is_tip(child) {
                    true => is_there[child.index()].then(|| [child.index(); 2]),
                    false => below[child.index()],
                }
            });
            below[half.index()] = match children {
                [Some(one), Some(two)] => {
                    for (pair, sibling) in [(one, two), (two, one)] {
                        if pair[0] != pair[1] {
                            let other = sibling[0];
                            found.push(Self { pair, other });
                        }
                    }
                    Some([one[0], two[0]])
                }
                [one, two] => one.or(two),
            };
        }
        found
    }

    fn taxa(self) -> [usize; 3] {
        [self.pair[0], self.pair[1], self.other]
    }

    fn is_within(self, set: &TaxonSet) -> bool {
        self.taxa().iter().all(|&taxon| set.has(taxon))
    }
}

/// A number of trees.
#[derive(Debug, Clone, Copy)]
struct Count {
    exact: Option<u128>,
    log10: f64,
}

impl Count {
    const ZERO: Self = Self {
        exact: Some(0),
        log10: f64::NEG_INFINITY,
    };
    const ONE: Self = Self {
        exact: Some(1),
        log10: 0.0,
    };

    fn is_zero(self) -> bool {
        self.exact == Some(0)
    }

    fn plus(self, other: Self) -> Self {
        if self.is_zero() || other.is_zero() {
            return if self.is_zero() { other } else { self };
        }
        let [least, most] = [self.log10.min(other.log10), self.log10.max(other.log10)];
        let both = self.exact.zip(other.exact);
        Self {
            exact: both.and_then(|(a, b)| a.checked_add(b)),
            log10: most + libm::log10(1.0 + libm::pow(10.0, least - most)),
        }
    }

    fn times(self, other: Self) -> Self {
        if self.is_zero() || other.is_zero() {
            return Self::ZERO;
        }
        let both = self.exact.zip(other.exact);
        Self {
            exact: both.and_then(|(a, b)| a.checked_mul(b)),
            log10: self.log10 + other.log10,
        }
    }

    /// Ways to grow a rooted tree from `before` taxa to `after`: each on a branch, or on the root.
    fn of_free_taxa(before: usize, after: usize) -> Self {
        let branches = (before.max(1)..after).map(|taxa| 2 * taxa - 1);
        let counts = branches.map(|branches| Self {
            exact: u128::try_from(branches).ok(),
            log10: libm::log10(branches as f64),
        });
        counts.fold(Self::ONE, Self::times)
    }
}

/// A count in progress.
struct Counter {
    room: usize,
    cuts_left: u64,
    is_exact: bool,
    /// Counts of sets without free taxa.
    known: HashMap<TaxonSet, Count>,
}

impl Counter {
    /// Rooted trees of `size` taxa that have all the triples, which are of these taxa.
    fn count(&mut self, size: usize, mut triples: Vec<Triple>, depth: usize) -> Count {
        // A taxon without a triple may be anywhere.
        let mut taxa = self.bound(&triples);
        let free = Count::of_free_taxa(taxa.len(), size);
        let first = taxa.clone();
        let mut product = Count::ONE;
        // Of two parts only the smaller is a call, so that calls do not nest deeply.
        while !triples.is_empty() && !product.is_zero() {
            if let Some(&known) = self.known.get(&taxa) {
                product = product.times(known);
                break;
            }
            let mut parts = self.parts(&taxa, &triples);
            match parts.len() {
                1 => product = Count::ZERO,
                2 => {
                    parts.sort_by_key(TaxonSet::len);
                    let [smaller, larger] = [0, 1].map(|at| within(&triples, &parts[at]));
                    let count = self.count(parts[0].len(), smaller, depth);
                    taxa = self.bound(&larger);
                    let free = Count::of_free_taxa(taxa.len(), parts[1].len());
                    product = product.times(count).times(free);
                    triples = larger;
                }
                _ => {
                    product = product.times(self.cuts(&taxa, &parts, &triples, depth));
                    break;
                }
            }
        }
        self.known.insert(first, product);
        free.times(product)
    }

    /// The sum over all ways to put the parts on the two sides of the root.
    fn cuts(
        &mut self,
        taxa: &TaxonSet,
        parts: &[TaxonSet],
        triples: &[Triple],
        depth: usize,
    ) -> Count {
        let mut sum = Count::ZERO;
        // More than 63 parts have more cuts than are ever tried.
        let moved = &parts[1..parts.len().min(64)];
        for cut in 1..1_u64 << moved.len() {
            if self.cuts_left == 0 || depth == DEPTH_MAX {
                self.is_exact = false;
                break;
            }
            self.cuts_left -= 1;
            let mut side = TaxonSet::empty(self.room);
            let members = moved
                .iter()
                .enumerate()
                .filter(|(at, _)| cut >> at & 1 == 1);
            members.for_each(|(_, part)| side.add(part));
            let rest = taxa.without(&side);
            let count = self.count(side.len(), within(triples, &side), depth + 1);
            if !count.is_zero() {
                let other = self.count(rest.len(), within(triples, &rest), depth + 1);
                sum = sum.plus(count.times(other));
            }
        }
        if moved.len() + 1 < parts.len() {
            self.is_exact = false;
        }
        sum
    }

    /// The taxa of triples.
    fn bound(&self, triples: &[Triple]) -> TaxonSet {
        let mut set = TaxonSet::empty(self.room);
        let taxa = triples.iter().flat_map(|triple| triple.taxa());
        taxa.for_each(|taxon| set.insert(taxon));
        set
    }

    /// The finest parts of a set that leave each triple's pair together: the root cannot part them.
    fn parts(&self, taxa: &TaxonSet, triples: &[Triple]) -> Vec<TaxonSet> {
        let mut leaders: Vec<usize> = (0..self.room).collect();
        for triple in triples {
            let [a, b] = triple.pair.map(|taxon| leader(&mut leaders, taxon));
            leaders[a.max(b)] = a.min(b);
        }
        let mut parts: BTreeMap<usize, TaxonSet> = BTreeMap::new();
        for taxon in taxa.taxa() {
            let part = parts.entry(leader(&mut leaders, taxon));
            part.or_insert_with(|| TaxonSet::empty(self.room))
                .insert(taxon);
        }
        parts.into_values().collect()
    }
}

/// The taxon that stands for a taxon's part.
fn leader(leaders: &mut [usize], mut taxon: usize) -> usize {
    while leaders[taxon] != taxon {
        leaders[taxon] = leaders[leaders[taxon]];
        taxon = leaders[taxon];
    }
    taxon
}

fn within(triples: &[Triple], set: &TaxonSet) -> Vec<Triple> {
    let own = triples.iter().filter(|triple| triple.is_within(set));
    own.copied().collect()
}

/// Cuts within cuts: a bound on the depth of calls.
const DEPTH_MAX: usize = 200;

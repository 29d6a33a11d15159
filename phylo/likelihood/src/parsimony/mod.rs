//! Parsimony: starting trees of a search.
//!
//! Top-down: [`parsimony_tree`] adds taxa in random order, each where it costs least, and then
//! moves subtrees while that saves changes; [`score`] is the number of changes that a tree needs,
//! and [`mean_length`] the branch length that follows from it.
//! Why here: a search from such a tree needs a third of the rounds of a search from a random tree.
//! Must stay true: one seed, one tree, on every machine: all of it is whole numbers.
//! Source: Fitch, Systematic Zoology 20 (1971), 406-416. The sets of a run of sites are bits of
//! words, state by state, so that one operation serves many sites (`bits`).
//!
//! ```
//! use sidecore_likelihood::msa::{Alignment, Alphabet, Patterns};
//! use sidecore_likelihood::newick::Newick;
//! use sidecore_likelihood::parsimony;
//! use sidecore_likelihood::tree::Tree;
//!
//! let alignment = Alignment::parse(b">a\nAAC\n>b\nAAC\n>c\nGAC\n>d\nGAT\n")?;
//! let patterns = Patterns::new(&alignment, Alphabet::Dna)?;
//! let tree = Tree::from_newick(&Newick::parse("((a,b),c,d);")?, alignment.names())?;
//! // One change for the first site, one for the last.
//! assert_eq!(parsimony::score(&tree, &[&patterns]), 2);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod bits;
mod moves;

pub use bits::Sites;

use crate::msa::Patterns;
use crate::random::Random;
use crate::tree::{EdgeId, HalfId, LENGTH_DEFAULT, LENGTH_MIN, Tree};
use sidecore_bare::width::ToU64;

/// The fewest changes of state that explain an alignment on a tree.
///
/// # Panics
/// When there is no partition, or one of another number of taxa.
#[must_use]
pub fn score(tree: &Tree, parts: &[&Patterns]) -> u64 {
    let sites = Sites::new(parts);
    let mut sets = Sets::new(&sites, tree);
    sets.score(tree)
}

/// The mean length of a branch, in changes a site, if a tree's branches had no more changes than
/// the parsimony score; from [`LENGTH_MIN`] to [`LENGTH_DEFAULT`].
///
/// Fits start from these short lengths. From lengths several times the true ones, the fit of a
/// large tree may end at a local maximum where inner nodes are almost independent of one another,
/// hundreds of log-likelihoods below the best.
///
/// # Panics
/// As [`score`].
#[must_use]
pub fn mean_length(tree: &Tree, parts: &[&Patterns]) -> f64 {
    mean_of(score(tree, parts), tree, parts)
}

fn mean_of(score: u64, tree: &Tree, parts: &[&Patterns]) -> f64 {
    let sites: u64 = parts.iter().map(|patterns| patterns.sites().to_u64()).sum();
    let branches = tree.edges().count() as f64;
    // Parsimony counts too few changes where there are many: longer than the default is no
    // estimate.
    (score as f64 / (sites as f64 * branches)).clamp(LENGTH_MIN, LENGTH_DEFAULT)
}

/// Places that a tip or a subtree may have in a tree, as a constraint allows them.
pub trait Places {
    /// For each branch of a tree of the taxa `there`: true if `tip` may be inserted into it.
    fn for_tip(&self, tree: &Tree, there: &[usize], tip: usize) -> Vec<bool>;
    /// For each branch: true if the subtree behind `half` may be inserted into it.
    fn for_subtree(&self, tree: &Tree, half: HalfId) -> Vec<bool>;
}

/// A tree by stepwise addition in random order, improved by moves of subtrees up to
/// `MOVE_RADIUS`; all lengths are its [`mean_length`]. With a constraint, one that obeys it.
/// Near-identical sequences ([`are_near`]) also move among places that cost the same.
///
/// # Panics
/// When there is no partition, or there are fewer than 3 taxa.
#[must_use]
pub fn parsimony_tree(
    parts: &[&Patterns],
    constraint: Option<&dyn Places>,
    random: &mut Random,
) -> Tree {
    let sites = Sites::new(parts);
    let taxa = sites.taxa();
    let mut order: Vec<usize> = (0..taxa).collect();
    // Fisher-Yates: all orders are equally likely.
    for k in (1..taxa).rev() {
        order.swap(k, random.index(k + 1));
    }
    let mut tree = Tree::star(taxa, [order[0], order[1], order[2]], LENGTH_DEFAULT);
    let mut sets = Sets::new(&sites, &tree);
    for (before, &tip) in order.iter().enumerate().skip(3) {
        let allowed = constraint.map(|constraint| constraint.for_tip(&tree, &order[..before], tip));
        // Greedy, in a random order: other seeds give other trees, which is what several starts are
        // for.
        let target = sets.cheapest(&tree, &order[..before], tip, allowed.as_deref());
        sets.mark_around(&tree, target);
        tree.insert_tip(tip, before, target);
    }
    sets.forget();
    moves::improve(&mut tree, &mut sets, constraint, MOVE_RADIUS);
    if are_near(parts) {
        moves::drift(&mut tree, &mut sets, constraint, MOVE_RADIUS, random);
    }
    sets.forget();
    let length = mean_of(sets.score(&tree), &tree, parts);
    tree.set_all_lengths(length);
    tree
}

/// For each inner half-edge the state sets of the subtree behind its node, seen from its branch,
/// and the changes within that subtree.
#[derive(Debug)]
struct Sets<'a> {
    sites: &'a Sites,
    taxa: usize,
    words: Vec<u64>,
    changes: Vec<u64>,
    valid: Vec<bool>,
    scratch: Vec<u64>,
}

impl<'a> Sets<'a> {
    fn new(sites: &'a Sites, tree: &Tree) -> Self {
        assert_eq!(sites.taxa(), tree.taxa(), "taxa of tree and alignment");
        let inner = tree.inner_halves();
        Self {
            sites,
            taxa: tree.taxa(),
            words: vec![0; inner * sites.words()],
            changes: vec![0; inner],
            valid: vec![false; inner],
            scratch: vec![0; sites.words()],
        }
    }

    fn forget(&mut self) {
        self.valid.fill(false);
    }

    fn get(&self, half: HalfId) -> &[u64] {
        match half.index().checked_sub(self.taxa) {
            None => self.sites.tip(half.index()),
            Some(at) => &self.words[at * self.sites.words()..][..self.sites.words()],
        }
    }

    fn changes(&self, half: HalfId) -> u64 {
        half.index()
            .checked_sub(self.taxa)
            .map_or(0, |at| self.changes[at])
    }

    /// Computes the sets at a half-edge.
    fn make(&mut self, tree: &Tree, half: HalfId) {
        let (taxa, valid) = (self.taxa, &self.valid);
        for half in tree.post_order(half, |half| !valid[half.index() - taxa]) {
            let [a, b] = tree.others(half).map(|other| tree.back(other));
            let mut to = std::mem::take(&mut self.scratch);
            let own = self.sites.join(self.get(a), self.get(b), &mut to);
            let (changes, at) = (own + self.changes(a) + self.changes(b), half.index() - taxa);
            self.words[at * to.len()..][..to.len()].copy_from_slice(&to);
            self.scratch = to;
            self.changes[at] = changes;
            self.valid[at] = true;
        }
    }

    fn score(&mut self, tree: &Tree) -> u64 {
        // Fitch's count is the same from every branch; a tip's needs one join less.
        let [a, b] = [HalfId(0), tree.back(HalfId(0))];
        self.make(tree, b);
        let mut to = std::mem::take(&mut self.scratch);
        let join = self.sites.join(self.get(a), self.get(b), &mut to);
        self.scratch = to;
        join + self.changes(b) + self.sites.always()
    }

    /// The branch among the present taxa into which a tip is inserted at least cost.
    fn cheapest(
        &mut self,
        tree: &Tree,
        there: &[usize],
        tip: usize,
        allowed: Option<&[bool]>,
    ) -> EdgeId {
        let (mut best, mut least) = (EdgeId(0), u64::MAX);
        let edges = EdgeId::first(2 * there.len() - 3);
        for edge in edges.filter(|edge| allowed.is_none_or(|allowed| allowed[edge.index()])) {
            let ends = tree.ends(edge);
            ends.into_iter().for_each(|end| self.make(tree, end));
            let [a, b] = ends.map(|end| self.get(end));
            // With the least cost so far the count may stop early.
            let cost = self.sites.insert(a, b, self.sites.tip(tip), least);
            if cost < least {
                (best, least) = (edge, cost);
            }
        }
        best
    }

    /// Marks the sets that have a branch behind them, from either side.
    fn mark_around(&mut self, tree: &Tree, edge: EdgeId) {
        let mut path = tree.ends(edge).to_vec();
        while let Some(half) = path.pop() {
            if tree.is_tip(half) {
                continue;
            }
            for other in tree.others(half) {
                // No valid set depends on an invalid one, so the walk stops here.
                if std::mem::replace(&mut self.valid[other.index() - self.taxa], false) {
                    let back = tree.back(other);
                    if back != other {
                        path.push(back);
                    }
                }
            }
        }
    }

    /// Marks a node and all sets that have the node behind them.
    fn mark_node(&mut self, tree: &Tree, half: HalfId) {
        let [b, c] = tree.others(half);
        for own in [half, b, c] {
            self.valid[own.index() - self.taxa] = false;
            if tree.back(own) != own {
                self.mark_around(tree, tree.edge(own));
            }
        }
    }
}

/// True if sequences differ by so few sites that a branch has about one change, or less. Sequences
/// that are next to one another in the alignment are compared.
///
/// # Panics
/// When there is no partition.
#[must_use]
pub fn are_near(parts: &[&Patterns]) -> bool {
    let taxa = parts[0].taxa();
    let differences: u64 = parts.iter().map(|patterns| differences(patterns)).sum();
    let mean = differences as f64 / (taxa - 1) as f64;
    // Between two tips of a balanced tree there are twice this many branches.
    let depth = libm::log2(taxa as f64);
    mean < CHANGES * depth
}

/// Sites at which a sequence and the next one cannot have the same state, of all sequences.
fn differences(patterns: &Patterns) -> u64 {
    let masks = patterns.masks();
    let mut count = 0;
    for taxon in 1..patterns.taxa() {
        let [a, b] = [taxon - 1, taxon].map(|taxon| patterns.codes(taxon));
        let codes = a.iter().zip(b).zip(patterns.weights());
        let differ = codes.filter(|((a, b), _)| {
            let [a, b] = [a, b].map(|&&code| masks[usize::from(code)]);
            // Ambiguous characters that share a state need no change.
            a & b == 0
        });
        count += differ.map(|(_, &weight)| u64::from(weight)).sum::<u64>();
    }
    count
}

/// Differences for each of a tree's levels, below which sequences are near-identical: two changes a
/// branch.
const CHANGES: f64 = 4.0;
/// Radius of a subtree's moves, in nodes.
pub(crate) const MOVE_RADIUS: usize = 20;

#[cfg(test)]
mod tests;

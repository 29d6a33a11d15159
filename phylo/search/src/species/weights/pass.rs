//! Sums of the weights of a gene tree's quartets, in two passes over its nodes.
//!
//! There is no list of quartets. A branch that leads from a node into a part of the gene tree has,
//! of pairs of taxa in it, the sum of all and the sum of what supports leave open; both follow from
//! those of the branches behind it. With taxa of two other branches of the node each pair is a
//! quartet.
//!
//! Must stay true: sums are added in the order of the gene tree's nodes.

use super::Node;

/// Two pairs of sets, by number: the pair in one branch of a node, and the other two in two others.
pub(super) type Pairing = [usize; 4];

/// A branch that leads from a node into a part of the tree, or all that a node joins.
#[derive(Debug, Clone, Copy)]
struct Side<const K: usize, const P: usize> {
    /// Of each set its taxa there, each times the factors of the lengths on its way.
    taxa: [f64; K],
    /// Of each pairing the pairs there, each times those factors up to where the two ways meet.
    pairs: [f64; P],
    /// The same, times what the supports from there on leave open.
    open: [f64; P],
}

impl<const K: usize, const P: usize> Side<K, P> {
    const EMPTY: Self = Self {
        taxa: [0.0; K],
        pairs: [0.0; P],
        open: [0.0; P],
    };

    /// The same from the other end of a branch.
    fn through(mut self, branch: &Node, has_lengths: bool) -> Self {
        if has_lengths {
            self.taxa = self.taxa.map(|own| own * branch.fades);
        }
        self.open = self.open.map(|own| own * branch.open);
        self
    }
}

/// Sums over the branches at a node.
#[derive(Debug, Clone, Copy)]
struct Joined<const K: usize, const P: usize> {
    sum: Side<K, P>,
    /// Of each pairing the products of its first two sets within branches, and of its last two.
    within: [[f64; 2]; P],
    branches: usize,
}

impl<const K: usize, const P: usize> Joined<K, P> {
    const EMPTY: Self = Self {
        sum: Side::EMPTY,
        within: [[0.0; 2]; P],
        branches: 0,
    };

    fn add(&mut self, side: &Side<K, P>, pairings: &[Pairing; P]) {
        let sums = self.sum.taxa.iter_mut().zip(&side.taxa);
        sums.for_each(|(to, from)| *to += from);
        for (at, &[a, b, c, d]) in pairings.iter().enumerate() {
            self.sum.pairs[at] += side.pairs[at];
            self.sum.open[at] += side.open[at];
            self.within[at][0] += side.taxa[a] * side.taxa[b];
            self.within[at][1] += side.taxa[c] * side.taxa[d];
        }
        self.branches += 1;
    }

    /// All branches but one as a side.
    fn without(&self, one: &Side<K, P>, pairings: &[Pairing; P]) -> Side<K, P> {
        let mut side = self.sum;
        let sums = side.taxa.iter_mut().zip(&one.taxa);
        sums.for_each(|(to, own)| *to -= own);
        for (at, &[a, b, ..]) in pairings.iter().enumerate() {
            let within = self.within[at][0] - one.taxa[a] * one.taxa[b];
            let between = side.taxa[a] * side.taxa[b] - within;
            // Pairs of one set were counted in both orders.
            let between = if a == b { 0.5 * between } else { between };
            side.pairs[at] += between - one.pairs[at];
            side.open[at] += between - one.open[at];
        }
        side
    }

    /// The weights of the quartets whose first pair is in one branch.
    fn quartets(&self, one: &Side<K, P>, pairings: &[Pairing; P]) -> [f64; P] {
        std::array::from_fn(|at| {
            let [.., c, d] = pairings[at];
            let others = (self.sum.taxa[c] - one.taxa[c]) * (self.sum.taxa[d] - one.taxa[d]);
            let within = self.within[at][1] - one.taxa[c] * one.taxa[d];
            (one.pairs[at] - one.open[at]) * (others - within)
        })
    }
}

/// A pass over gene trees, with memory that is reused.
pub(super) struct Pass<const K: usize, const P: usize> {
    pairings: [Pairing; P],
    has_lengths: bool,
    /// Of each node, what the branch above leads down to.
    down: Vec<Side<K, P>>,
    /// Of each node, what the branch above leads up to.
    up: Vec<Side<K, P>>,
    joined: Vec<Joined<K, P>>,
}

impl<const K: usize, const P: usize> Pass<K, P> {
    pub(super) fn new(pairings: [Pairing; P], has_lengths: bool) -> Self {
        Self {
            pairings,
            has_lengths,
            down: Vec::new(),
            up: Vec::new(),
            joined: Vec::new(),
        }
    }

    /// The weights of a gene tree's quartets of each pairing; `sets` says of a taxon in which sets
    /// it is.
    pub(super) fn of(&mut self, gene: &[Node], sets: impl Fn(usize) -> [f64; K]) -> [f64; P] {
        let (pairings, nodes) = (&self.pairings, gene.len());
        self.down.clear();
        self.down.resize(nodes, Side::EMPTY);
        self.up.clear();
        self.up.resize(nodes, Side::EMPTY);
        self.joined.clear();
        self.joined.resize(nodes, Joined::EMPTY);
        // Children come after their parents.
        for (at, node) in gene.iter().enumerate().rev() {
            let Some(parent) = node.parent else { continue };
            let own = match node.taxon {
                Some(taxon) => Side {
                    taxa: sets(taxon),
                    ..Side::EMPTY
                },
                None => self.joined[at].without(&Side::EMPTY, pairings),
            };
            self.down[at] = own.through(node, self.has_lengths);
            self.joined[parent].add(&self.down[at], pairings);
        }
        let mut found = [0.0; P];
        let mut count = |joined: &Joined<K, P>, side: &Side<K, P>| {
            // Fewer branches have no quartet but what rounding leaves.
            if joined.branches > 2 {
                let own = joined.quartets(side, pairings);
                found.iter_mut().zip(own).for_each(|(to, more)| *to += more);
            }
        };
        for (at, node) in gene.iter().enumerate().skip(1) {
            // The branch above the parent is joined by now.
            let Some(parent) = node.parent else { continue };
            let beyond = self.joined[parent].without(&self.down[at], pairings);
            self.up[at] = beyond.through(node, self.has_lengths);
            count(&self.joined[parent], &self.down[at]);
            if node.taxon.is_none() {
                let up = self.up[at];
                self.joined[at].add(&up, pairings);
                count(&self.joined[at], &up);
            }
        }
        found
    }
}

//! Edits of a tree (SPR and NNI moves) and their undoing; random trees, by insertions; lengths of
//! partitions.
//!
//! Every move returns a record; undone in reverse order, the records restore the tree to the last
//! bit, branch numbers included. Moves leave the factors of partitions unchanged, branch by branch:
//! a caller that saves a tree saves these with it.

use super::{EdgeId, HalfId, Tree};
use crate::random::{Random, exponential};

/// A subtree that was cut off with its node; that node's two other half-edges are free.
#[derive(Debug, Clone, Copy, PartialEq)]
#[must_use = "a pruned tree is no tree until it is regrafted or restored"]
pub struct Pruned {
    /// The half-edge of the free node that points to the subtree.
    pub half: HalfId,
    /// The two half-edges that are joined now.
    pub ends: [HalfId; 2],
    /// The branches to their left and right before; the first joins them now, the second is spare.
    pub edges: [EdgeId; 2],
    lengths: [f64; 2],
}

/// A subtree that was inserted into a branch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Grafted {
    pruned: Pruned,
    /// The branch that was split; it keeps its first half.
    pub target: EdgeId,
    ends: [HalfId; 2],
    length: f64,
}

/// A nearest-neighbour interchange that was made.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Nni {
    halves: [HalfId; 2],
}

impl Tree {
    /// Cuts the subtree behind `half` off, together with `half`'s node; the two branches at that
    /// node become one, whose length is the sum of both.
    ///
    /// # Panics
    /// When `half` is a tip's, or both its neighbours are tips of a tree that has no other.
    pub fn prune(&mut self, half: HalfId) -> Pruned {
        assert!(
            !self.is_tip(half),
            "a tip's half-edge roots no subtree's node"
        );
        let [a, b] = self.others(half);
        let ends = [self.back(a), self.back(b)];
        let edges = [self.edge(a), self.edge(b)];
        let lengths = edges.map(|edge| self.length(edge));
        self.join(ends[0], ends[1], edges[0]);
        self.set_length(edges[0], lengths[0] + lengths[1]);
        // A free half-edge points to itself.
        self.back[a.index()] = a;
        self.back[b.index()] = b;
        // The second branch becomes the spare one, which `regraft` uses again.
        self.end[edges[1].index()] = b;
        Pruned {
            half,
            ends,
            edges,
            lengths,
        }
    }

    /// Undoes [`Tree::prune`].
    pub fn unprune(&mut self, pruned: Pruned) {
        let [a, b] = self.others(pruned.half);
        for (own, (end, (edge, length))) in [a, b].into_iter().zip(
            pruned
                .ends
                .into_iter()
                .zip(pruned.edges.into_iter().zip(pruned.lengths)),
        ) {
            self.join(own, end, edge);
            self.set_length(edge, length);
        }
    }

    /// Inserts a pruned subtree into a branch, which is cut in two equal halves.
    ///
    /// # Panics
    /// When the branch is the spare one.
    pub fn regraft(&mut self, pruned: Pruned, target: EdgeId) -> Grafted {
        assert_ne!(target, pruned.edges[1], "the spare branch joins nothing");
        let [a, b] = self.others(pruned.half);
        let ends = self.ends(target);
        let length = self.length(target);
        let spare = pruned.edges[1];
        self.join(a, ends[0], target);
        self.join(b, ends[1], spare);
        // Half the length on either side keeps all distances.
        self.set_length(target, 0.5 * length);
        self.set_length(spare, 0.5 * length);
        Grafted {
            pruned,
            target,
            ends,
            length,
        }
    }

    /// Undoes [`Tree::regraft`]; the subtree is pruned again.
    pub fn ungraft(&mut self, grafted: Grafted) -> Pruned {
        let Grafted {
            pruned,
            target,
            ends,
            length,
        } = grafted;
        let [a, b] = self.others(pruned.half);
        self.join(ends[0], ends[1], target);
        self.set_length(target, length);
        self.back[a.index()] = a;
        self.back[b.index()] = b;
        self.end[pruned.edges[1].index()] = b;
        pruned
    }

    /// Swaps a subtree on one side of an inner branch with one on the other; `second` selects one
    /// of the two other arrangements. `None` if the branch has a tip. Lengths go with subtrees.
    pub fn nni(&mut self, edge: EdgeId, second: bool) -> Option<Nni> {
        let [a, b] = self.ends(edge);
        if self.is_tip(a) || self.is_tip(b) {
            return None;
        }
        let [left, _] = self.others(a);
        let right = self.others(b)[usize::from(second)];
        let nni = Nni {
            halves: [left, right],
        };
        self.undo_nni(nni);
        Some(nni)
    }

    /// Undoes [`Tree::nni`] by the same swap.
    pub fn undo_nni(&mut self, nni: Nni) {
        let [left, right] = nni.halves;
        let (x, y) = (self.back(left), self.back(right));
        let (ex, ey) = (self.edge(left), self.edge(right));
        self.join(left, y, ey);
        self.join(right, x, ex);
    }
}

impl Nni {
    /// The two half-edges whose subtrees were swapped.
    #[must_use]
    pub fn halves(&self) -> [HalfId; 2] {
        self.halves
    }
}

impl Grafted {
    /// The half-edge of the grafted node that points to the subtree.
    #[must_use]
    pub fn half(&self) -> HalfId {
        self.pruned.half
    }
}

/// A tree made by inserting taxa, in their order, into uniformly drawn branches; lengths are
/// exponential with the given mean. The same numbers make the same tree on every machine.
///
/// # Panics
/// When there are fewer than 3 taxa.
#[must_use]
pub fn random_tree(taxa: usize, length_mean: f64, random: &mut Random) -> Tree {
    let mut tree = Tree::star(taxa, [0, 1, 2], 0.0);
    for tip in 3..taxa {
        // Every taxon before this one added two branches.
        let target = EdgeId::new(random.index(2 * tip - 3));
        tree.insert_tip(tip, tip, target);
    }
    for edge in tree.edges() {
        tree.set_length(edge, exponential(random, length_mean));
    }
    tree
}

impl Tree {
    /// Inserts taxon `tip` into a branch, with the next inner node; `before` taxa are there
    /// already.
    pub fn insert_tip(&mut self, tip: usize, before: usize, target: EdgeId) {
        let inner = self.taxa() + 3 * (before - 2);
        let [a, b, c] = [0, 1, 2].map(|k| HalfId::new(inner + k));
        let [left, right] = self.ends(target);
        let new = 2 * before - 3;
        self.join(HalfId::new(tip), a, EdgeId::new(new));
        self.join(b, left, target);
        self.join(c, right, EdgeId::new(new + 1));
    }
}

/// Branch lengths of partitions that have lengths of their own ("unlinked"): each is a factor of
/// the tree's. There is a factor for each branch of each partition, or none at all.
impl Tree {
    /// Length of a branch in a partition relative to the tree's: 1 where they are linked.
    #[must_use]
    pub fn factor(&self, part: usize, edge: EdgeId) -> f64 {
        let own = self.factors.get(part);
        own.map_or(1.0, |own| own[edge.index()])
    }

    /// Sets that factor, for one of `parts` partitions.
    ///
    /// # Panics
    /// When there are fewer.
    pub(crate) fn set_factor(&mut self, [part, parts]: [usize; 2], edge: EdgeId, factor: f64) {
        if self.factors.len() != parts {
            self.factors = vec![vec![1.0; self.length.len()]; parts];
        }
        self.factors[part][edge.index()] = factor;
    }

    /// Gives a branch the factors of another.
    pub(crate) fn copy_factors(&mut self, from: EdgeId, to: EdgeId) {
        for own in &mut self.factors {
            own[to.index()] = own[from.index()];
        }
    }

    /// The lengths and all factors, to be restored later.
    pub fn all_lengths(&self) -> (Vec<f64>, Vec<Vec<f64>>) {
        (self.length.clone(), self.factors.clone())
    }

    /// As [`Tree::all_lengths`], into memory that is reused.
    pub(crate) fn all_lengths_into(&self, to: &mut (Vec<f64>, Vec<Vec<f64>>)) {
        to.0.clone_from(&self.length);
        to.1.clone_from(&self.factors);
    }

    /// Takes the factors of [`Tree::all_lengths`] of this tree.
    pub(crate) fn restore_factors(&mut self, factors: Vec<Vec<f64>>) {
        self.factors = factors;
    }

    /// The tree with the lengths of one partition, whose scale is `scale`.
    #[must_use]
    pub fn of_part(&self, part: usize, scale: f64) -> Self {
        let mut tree = self.clone();
        for edge in self.edges() {
            tree.set_length(edge, self.length(edge) * self.factor(part, edge) * scale);
        }
        tree.factors.clear();
        tree
    }
}

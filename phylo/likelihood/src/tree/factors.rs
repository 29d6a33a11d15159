//! Branch lengths in several partitions that have lengths of their own ("unlinked"): each a factor
//! of the tree's length.
//!
//! Why here: a caller that saves a tree saves these with it. The moves of `edit` leave factors
//! unchanged, branch by branch.
//! Must stay true: there is a factor for each branch of each partition, or none at all.

use super::{EdgeId, Tree};

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

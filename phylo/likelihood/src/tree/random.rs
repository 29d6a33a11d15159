//! Random trees.

use super::{EdgeId, HalfId, Tree};
use crate::random::{Random, exponential};

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

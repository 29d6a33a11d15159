//! Orders in which a tree is walked.

use super::{EdgeId, HalfId, Tree};

impl Tree {
    /// The inner half-edges of the subtree that `half`'s node roots when one looks away from
    /// `half`'s branch: children before parents, `half` last. `enter` says whether to go below one;
    /// those for which it says no are left out with all below them. Empty for a tip.
    pub fn post_order(&self, half: HalfId, mut enter: impl FnMut(HalfId) -> bool) -> Vec<HalfId> {
        let mut order = Vec::new();
        let mut path = Vec::new();
        if !self.is_tip(half) && enter(half) {
            path.push(half);
        }
        // Parents before children, reversed at the end.
        while let Some(half) = path.pop() {
            order.push(half);
            for below in self.others(half).map(|other| self.back(other)) {
                if !self.is_tip(below) && enter(below) {
                    path.push(below);
                }
            }
        }
        order.reverse();
        order
    }

    /// All branches, so that neighbours follow one another: from the first taxon's branch, depth
    /// first.
    #[must_use]
    pub fn edges_depth_first(&self) -> Vec<EdgeId> {
        let mut edges = Vec::with_capacity(2 * self.taxa() - 3);
        let mut path = vec![self.back(HalfId(0))];
        while let Some(half) = path.pop() {
            edges.push(self.edge(half));
            if !self.is_tip(half) {
                let [a, b] = self.others(half);
                path.extend([self.back(b), self.back(a)]);
            }
        }
        edges
    }
}

//! Orders in which a tree is walked.

use super::{EdgeId, HalfId, Tree};

impl Tree {
    /// The inner half-edges of the subtree that `half`'s node roots when one looks away from
    /// `half`'s branch: children before parents, `half` last. `enter` says whether to go below one;
    /// those for which it says no are left out with all below them. Empty for a tip.
    ///
    /// Of two children the one with more below it comes first: what was made last is needed next,
    /// and is still in the cache.
    pub fn post_order(&self, half: HalfId, mut enter: impl FnMut(HalfId) -> bool) -> Vec<HalfId> {
        let mut found = Vec::new();
        let mut path = Vec::new();
        if !self.is_tip(half) && enter(half) {
            path.push(half);
        }
        // Parents before children.
        while let Some(half) = path.pop() {
            let start = path.len();
            for below in self.others(half).map(|other| self.back(other)) {
                if !self.is_tip(below) && enter(below) {
                    path.push(below);
                }
            }
            found.push((half, path.len() - start));
        }
        // How many are at or below each, from the end; a stack holds the finished subtrees.
        let mut below = vec![1_u32; found.len()];
        let mut roots: Vec<usize> = Vec::new();
        let mut children = vec![[usize::MAX; 2]; found.len()];
        for at in (0..found.len()).rev() {
            let own = children[at].iter_mut().take(found[at].1);
            for (own, child) in own.zip(std::iter::from_fn(|| roots.pop())) {
                below[at] += below[child];
                *own = child;
            }
            roots.push(at);
        }
        let mut order = Vec::with_capacity(found.len());
        roots.truncate(usize::from(!found.is_empty()));
        while let Some(at) = roots.pop() {
            order.push(found[at].0);
            let mut own = children[at];
            own.sort_by_key(|&child| std::cmp::Reverse(below.get(child).copied().unwrap_or(0)));
            roots.extend(own.into_iter().filter(|&child| child != usize::MAX));
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

//! Orders in which a tree is walked, and a hash of its topology, without lengths.
//!
//! Why here: a search that left a tree and climbed again checks if it is back.
//! Must stay true: equal topologies have equal hashes, however their half-edges are numbered;
//! others differ, but for a chance of 2^-64 for each pair.

use super::{EdgeId, HalfId, Tree};

impl Tree {
    /// The inner half-edges of the subtree behind `half`'s node, seen from `half`'s branch:
    /// children before parents, `half` last. `enter` decides if a node is entered; those for which
    /// it returns false are left out with all below them. Empty for a tip.
    ///
    /// Of two children the one with the larger subtree comes first: the last computed CLV is needed
    /// next, and is still in the cache.
    pub fn post_order(&self, half: HalfId, enter: impl FnMut(HalfId) -> bool) -> Vec<HalfId> {
        let mut walk = Walk::default();
        self.walk(half, enter, &mut walk);
        walk.order
    }

    /// The branches up to `radius` nodes away from `half`'s node.
    #[must_use]
    pub fn around(&self, half: HalfId, radius: usize) -> Vec<EdgeId> {
        let mut edges = vec![self.edge(half)];
        let mut path = vec![(self.back(half), 1), (half, 0)];
        while let Some((entry, depth)) = path.pop() {
            if self.is_tip(entry) || depth > radius {
                continue;
            }
            for other in self.others(entry) {
                edges.push(self.edge(other));
                path.push((self.back(other), depth + 1));
            }
        }
        edges
    }

    /// As [`Tree::post_order`]; the result is in [`Walk::order`]. Allocates nothing once `walk` has
    /// been used for a tree of this size.
    pub fn walk(&self, half: HalfId, mut enter: impl FnMut(HalfId) -> bool, walk: &mut Walk) {
        walk.clear();
        if !self.is_tip(half) && enter(half) {
            walk.path.push(half);
        }
        // Parents before children.
        while let Some(half) = walk.path.pop() {
            let start = walk.path.len();
            for below in self.others(half).map(|other| self.back(other)) {
                if !self.is_tip(below) && enter(below) {
                    walk.path.push(below);
                }
            }
            walk.found.push((half, walk.path.len() - start));
        }
        if walk.found.len() < 2 {
            walk.order.extend(walk.found.iter().map(|&(half, _)| half));
            return;
        }
        // The number at or below each, from the end; a stack holds the finished subtrees.
        walk.below.resize(walk.found.len(), 1);
        walk.children.resize(walk.found.len(), [usize::MAX; 2]);
        for at in (0..walk.found.len()).rev() {
            for child in 0..walk.found[at].1 {
                let Some(root) = walk.roots.pop() else { break };
                walk.below[at] += walk.below[root];
                walk.children[at][child] = root;
            }
            walk.roots.push(at);
        }
        // The whole tree's root is the first; parents before children again, larger child last.
        walk.roots.truncate(1);
        while let Some(at) = walk.roots.pop() {
            walk.order.push(walk.found[at].0);
            let mut own = walk.children[at];
            let size = |child: usize| walk.below.get(child).copied().unwrap_or(0);
            if size(own[0]) < size(own[1]) {
                own.swap(0, 1);
            }
            let there = own.into_iter().filter(|&child| child != usize::MAX);
            walk.roots.extend(there);
        }
        walk.order.reverse();
    }

    /// All branches, with neighbours adjacent in the order: depth first from the first taxon's
    /// branch.
    #[must_use]
    pub fn edges_depth_first(&self) -> Vec<EdgeId> {
        let mut edges = Vec::with_capacity(2 * self.taxa() - 3);
        self.edges_depth_first_into(&mut Walk::default(), &mut edges);
        edges
    }

    /// As [`Tree::edges_depth_first`], into a list that it empties first. Allocates nothing once
    /// both have been used for a tree of this size.
    pub(crate) fn edges_depth_first_into(&self, walk: &mut Walk, edges: &mut Vec<EdgeId>) {
        edges.clear();
        let path = &mut walk.path;
        path.clear();
        path.push(self.back(HalfId(0)));
        while let Some(half) = path.pop() {
            edges.push(self.edge(half));
            if !self.is_tip(half) {
                let [a, b] = self.others(half);
                path.extend([self.back(b), self.back(a)]);
            }
        }
    }
}

/// Scratch memory of walks over a tree, kept so that they allocate nothing.
#[derive(Debug, Default)]
pub struct Walk {
    order: Vec<HalfId>,
    found: Vec<(HalfId, usize)>,
    path: Vec<HalfId>,
    below: Vec<u32>,
    roots: Vec<usize>,
    children: Vec<[usize; 2]>,
}

impl Walk {
    /// The half-edges of the last [`Tree::walk`].
    #[must_use]
    pub fn order(&self) -> &[HalfId] {
        &self.order
    }

    fn clear(&mut self) {
        self.order.clear();
        self.found.clear();
        self.path.clear();
        self.below.clear();
        self.roots.clear();
        self.children.clear();
    }
}

impl Tree {
    /// The hash of the topology: a sum over the splits, each hashed from the taxa on the side of
    /// its branch without taxon 0.
    #[must_use]
    pub fn topology(&self) -> u64 {
        self.topology_of(|_| true)
    }

    /// The hash of the topology made of the inner branches for which `counts` returns true.
    pub fn topology_of(&self, counts: impl Fn(EdgeId) -> bool) -> u64 {
        let taxon = |half: HalfId| mix(1 + u64::from(half.0));
        let mut sides = vec![0; self.halves()];
        let mut sum = 0_u64;
        let root = self.back(HalfId(0));
        for half in self.post_order(root, |_| true) {
            let below = self.others(half).map(|other| self.back(other));
            // Taxa of both sides; the union does not depend on the sides.
            let union = below.into_iter().fold(0, |union, half| {
                union
                    ^ if self.is_tip(half) {
                        taxon(half)
                    } else {
                        sides[half.index()]
                    }
            });
            sides[half.index()] = union;
            if half == root || counts(self.edge(half)) {
                sum = sum.wrapping_add(mix(union));
            }
        }
        sum
    }
}

/// Spreads the bits of a number over all 64. Source: Steele, Lea, Flood, "Fast splittable
/// pseudorandom number generators" (2014), the finaliser.
fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use crate::random::Random;
    use crate::tree::random_tree;

    #[test]
    fn a_move_changes_it_and_back_again_does_not() {
        let mut tree = random_tree(30, 0.1, &mut Random::new(4));
        let before = tree.topology();
        tree.set_all_lengths(0.7);
        assert_eq!(tree.topology(), before);
        let mut changed = 0;
        for edge in tree.clone().edges() {
            if let Some(nni) = tree.nni(edge, true) {
                assert_ne!(tree.topology(), before);
                tree.undo_nni(nni);
                assert_eq!(tree.topology(), before);
                changed += 1;
            }
        }
        assert_eq!(changed, 27, "inner branches");
    }
}

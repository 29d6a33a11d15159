//! A hash of a tree's topology, without lengths.
//!
//! Why here: a search that left a tree and climbed again checks if it is back.
//! Must stay true: equal topologies have equal hashes, however their half-edges are numbered;
//! others differ, but for a chance of 2^-64 for each pair.

use super::{EdgeId, HalfId, Tree};

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

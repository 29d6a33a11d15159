//! Serialized trees: exact, half-edge by half-edge and bit by bit.
//!
//! Why here: a search that resumes from a saved tree must add the same doubles in the same order;
//! Newick keeps neither the numbers of half-edges nor all digits.
//! Must stay true: only a valid tree is accepted.

use super::{EdgeId, HalfId, Tree};

/// The arrays of a [`Tree`]; lengths are the bits of doubles.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
pub(super) struct Saved {
    taxa: usize,
    back: Vec<u32>,
    edge: Vec<u32>,
    end: Vec<u32>,
    length: Vec<u64>,
    /// Empty in files of versions without factors.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    factors: Vec<Vec<u64>>,
    /// Empty in files of versions without joints, and where there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    joints: Vec<bool>,
}

impl From<Tree> for Saved {
    fn from(tree: Tree) -> Self {
        Self {
            taxa: tree.taxa,
            back: tree.back.iter().map(|half| half.0).collect(),
            edge: tree.edge.iter().map(|edge| edge.0).collect(),
            end: tree.end.iter().map(|half| half.0).collect(),
            length: bits(&tree.length),
            factors: tree.factors.iter().map(|own| bits(own)).collect(),
            joints: tree.joints,
        }
    }
}

fn bits(numbers: &[f64]) -> Vec<u64> {
    numbers.iter().map(|number| number.to_bits()).collect()
}

fn numbers(bits: Vec<u64>) -> Vec<f64> {
    bits.into_iter().map(f64::from_bits).collect()
}

impl TryFrom<Saved> for Tree {
    type Error = &'static str;

    fn try_from(saved: Saved) -> Result<Self, Self::Error> {
        let taxa = saved.taxa;
        // The first check keeps the sums below from overflowing.
        if taxa < 3
            || taxa > saved.back.len()
            || saved.back.len() != 4 * taxa - 6
            || saved.edge.len() != saved.back.len()
            || saved.end.len() != 2 * taxa - 3
            || saved.length.len() != saved.end.len()
            || ![0, saved.end.len()].contains(&saved.joints.len())
            || !saved.factors.iter().all(|own| own.len() == saved.end.len())
        {
            return Err("a saved tree's arrays do not fit its number of taxa");
        }
        let tree = Self {
            taxa,
            back: saved.back.into_iter().map(HalfId).collect(),
            edge: saved.edge.into_iter().map(EdgeId).collect(),
            end: saved.end.into_iter().map(HalfId).collect(),
            length: numbers(saved.length),
            factors: saved.factors.into_iter().map(numbers).collect(),
            joints: saved.joints,
        };
        // Indices first, so that none of the accesses below can panic.
        let halves = tree.halves();
        let within = |half: &HalfId| half.index() < halves;
        if !tree.back.iter().chain(&tree.end).all(within)
            || tree.edge.iter().any(|edge| edge.index() >= tree.end.len())
        {
            return Err("a saved tree names a half-edge or branch that it does not have");
        }
        for half in (0..halves).map(HalfId::new) {
            let (back, edge) = (tree.back(half), tree.edge(half));
            let end = tree.end[edge.index()];
            if back == half
                || tree.back(back) != half
                || tree.edge(back) != edge
                || (end != half && end != back)
            {
                return Err("a saved tree's branches do not join pairs of half-edges");
            }
        }
        // `!(a >= b)` also refuses NaN.
        if tree
            .length
            .iter()
            .chain(tree.factors.iter().flatten())
            .any(|length| !(*length >= 0.0 && length.is_finite()))
        {
            return Err("a saved tree has a branch whose length is no number");
        }
        // The right number of branches, all paired: if it is connected, it is a tree.
        if tree.edges_depth_first_checked() != tree.end.len() {
            return Err("a saved tree is not connected");
        }
        Ok(tree)
    }
}

impl Tree {
    /// Number of branches connected to the first taxon's; safe for cycles.
    fn edges_depth_first_checked(&self) -> usize {
        let mut seen = vec![false; self.end.len()];
        let mut path = vec![HalfId(0)];
        let mut count = 0;
        while let Some(half) = path.pop() {
            if std::mem::replace(&mut seen[self.edge(half).index()], true) {
                continue;
            }
            count += 1;
            let back = self.back(half);
            if !self.is_tip(back) {
                path.extend(self.others(back));
            }
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;
    use crate::tree::random_tree;

    #[test]
    fn what_is_saved_comes_back_to_the_last_bit() {
        let tree = random_tree(23, 0.1, &mut Random::new(3));
        let saved = Saved::from(tree.clone());
        let back = Tree::try_from(saved).unwrap();
        assert_eq!(back, tree);
        assert_eq!(back.end, tree.end);
    }

    #[test]
    fn what_is_no_tree_is_refused() {
        let tree = random_tree(9, 0.1, &mut Random::new(3));
        let spoilt = |change: &dyn Fn(&mut Saved)| {
            let mut saved = Saved::from(tree.clone());
            change(&mut saved);
            Tree::try_from(saved).is_err()
        };
        assert!(spoilt(&|saved| saved.taxa = 10));
        assert!(spoilt(&|saved| saved.taxa = usize::MAX));
        assert!(spoilt(&|saved| saved.back[0] = 1));
        assert!(spoilt(&|saved| saved.back[3] = 10_000));
        assert!(spoilt(&|saved| saved.edge[3] = 0));
        assert!(spoilt(&|saved| saved.length[3] = f64::NAN.to_bits()));
        assert!(spoilt(&|saved| {
            saved.length.pop();
        }));
    }
}

//! Constraints: splits that every tree of a search must have.
//!
//! A constraint is a tree of any shape over some of the taxa. A tree obeys it when, for each of the
//! constraint's splits, some branch has all taxa of the one side on its one side and all of the
//! other on its other; taxa that the constraint does not name may be anywhere.
//! Must stay true: where a tree obeys, every place that is allowed for a subtree gives a tree that
//! obeys; and a place that gives one is allowed.
//!
//! ```
//! use sidecore_phylo::constraint::Constraint;
//! use sidecore_phylo::newick::Newick;
//! use sidecore_phylo::tree::Tree;
//!
//! let names = ["a", "b", "c", "d", "e"].map(String::from);
//! let wanted = Constraint::from_newick(&Newick::parse("((a,b),c,d,e);")?, &names)?;
//! let obeys = |text| -> Result<bool, Box<dyn std::error::Error>> {
//!     Ok(wanted.holds(&Tree::from_newick(&Newick::parse(text)?, &names)?))
//! };
//! assert!(obeys("((a,b),c,(d,e));")?);
//! assert!(!obeys("((a,c),b,(d,e));")?);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use crate::newick::Newick;
use crate::parsimony::Places;
use crate::random::Random;
use crate::tree::{EdgeId, HalfId, LENGTH_DEFAULT, Tree, TreeError};
use std::collections::HashMap;

/// The splits that a tree must have.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Constraint {
    taxa: usize,
    splits: Vec<Split>,
}

/// For each taxon its required side.
type Split = Vec<Side>;

#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
enum Side {
    One,
    Other,
    Free,
}

impl Constraint {
    /// From a parsed tree of any shape over some of `names`.
    ///
    /// # Errors
    /// [`TreeError::Unknown`], [`TreeError::Twice`].
    pub fn from_newick(newick: &Newick, names: &[String]) -> Result<Self, TreeError> {
        let by_name: HashMap<&str, usize> = names
            .iter()
            .enumerate()
            .map(|(taxon, name)| (name.as_str(), taxon))
            .collect();
        let nodes = newick.nodes();
        let mut named = vec![Side::Free; names.len()];
        let mut below: Vec<Vec<usize>> = vec![Vec::new(); nodes.len()];
        for tip in newick.tips() {
            // A label may be as long as the file.
            let label = || nodes[tip].label.chars().take(60).collect();
            let &taxon = by_name
                .get(nodes[tip].label.as_str())
                .ok_or_else(|| TreeError::Unknown { label: label() })?;
            if named[taxon] != Side::Free {
                return Err(TreeError::Twice { label: label() });
            }
            named[taxon] = Side::Other;
            below[tip].push(taxon);
        }
        let count = below.iter().map(Vec::len).sum::<usize>();
        let mut splits: Vec<Split> = Vec::new();
        // Children stand after their parents.
        for node in (1..nodes.len()).rev() {
            let own = std::mem::take(&mut below[node]);
            // A split with one taxon on a side is in every tree.
            if own.len() > 1 && own.len() + 1 < count {
                let mut split = named.clone();
                own.iter().for_each(|&taxon| split[taxon] = Side::One);
                let turned: Split = split.iter().map(|side| side.turned()).collect();
                // A root of two children gives one split twice.
                if !splits.contains(&split) && !splits.contains(&turned) {
                    splits.push(split);
                }
            }
            if let Some(parent) = nodes[node].parent {
                below[parent].extend(own);
            }
        }
        Ok(Self {
            taxa: names.len(),
            splits,
        })
    }

    /// True if a tree has all the splits.
    ///
    /// # Panics
    /// When it has another number of taxa.
    #[must_use]
    pub fn holds(&self, tree: &Tree) -> bool {
        assert_eq!(self.taxa, tree.taxa(), "taxa of tree and constraint");
        self.splits.iter().all(|split| {
            let counts = Counts::new(tree, HalfId::new(0), split);
            tree.edges().any(|edge| counts.separates(edge))
        })
    }

    /// For each branch: true if the subtree behind `half` may be inserted into it; branches of the
    /// subtree itself stay false.
    pub fn edges_for_subtree(&self, tree: &Tree, half: HalfId) -> Vec<bool> {
        let mut rest = tree.clone();
        let below = tree.back(half);
        let taxa = tips(tree, below);
        let pruned = rest.prune(half);
        // The root is a tip outside the subtree, so that the walk covers exactly the rest of the
        // tree.
        let root = tips(&rest, pruned.ends[0])
            .first()
            .map_or(HalfId::new(0), |&tip| HalfId::new(tip));
        let mut allowed = vec![false; tree.edges().count()];
        let mut path = vec![root];
        while let Some(at) = path.pop() {
            allowed[rest.edge(at).index()] = true;
            let back = rest.back(at);
            if !rest.is_tip(back) {
                path.extend(rest.others(back));
            }
        }
        for split in &self.splits {
            let has = |side| taxa.iter().any(|&taxon| split[taxon] == side);
            let side = match [has(Side::One), has(Side::Other)] {
                [true, false] => Side::One,
                [false, true] => Side::Other,
                // The split lies within the subtree, or does not concern it.
                _ => continue,
            };
            // The subtree has taxa of one side only, so it must stay on that side of the split.
            restrict(&rest, root, split, side, &mut allowed);
        }
        allowed
    }
}

impl Places for Constraint {
    fn for_tip(&self, tree: &Tree, there: &[usize], tip: usize) -> Vec<bool> {
        let root = HalfId::new(there[0]);
        let mut allowed = vec![true; tree.edges().count()];
        for split in &self.splits {
            restrict(tree, root, split, split[tip], &mut allowed);
        }
        allowed
    }

    fn for_subtree(&self, tree: &Tree, half: HalfId) -> Vec<bool> {
        self.edges_for_subtree(tree, half)
    }
}

impl Side {
    fn turned(self) -> Self {
        match self {
            Self::One => Self::Other,
            Self::Other => Self::One,
            Self::Free => Self::Free,
        }
    }
}

/// The taxa behind a half-edge, on its own node's side.
fn tips(tree: &Tree, half: HalfId) -> Vec<usize> {
    let mut found = Vec::new();
    let mut path = vec![half];
    while let Some(half) = path.pop() {
        if tree.is_tip(half) {
            found.push(half.index());
        } else {
            path.extend(tree.others(half).map(|other| tree.back(other)));
        }
    }
    found
}

/// Numbers of taxa of each side beyond each branch, seen from a root.
struct Counts {
    below: Vec<[u32; 2]>,
    /// For each branch its half-edge that points away from the root.
    down: Vec<HalfId>,
    /// True if the tree has the branch.
    walked: Vec<bool>,
    all: [u32; 2],
}

impl Counts {
    fn new(tree: &Tree, root: HalfId, split: &Split) -> Self {
        let edges = tree.edges().count();
        let mut counts = Self {
            below: vec![[0; 2]; edges],
            down: vec![HalfId::new(0); edges],
            walked: vec![false; edges],
            all: [0; 2],
        };
        let count = |tip: HalfId| match split[tip.index()] {
            Side::One => [1, 0],
            Side::Other => [0, 1],
            Side::Free => [0, 0],
        };
        // Parents first in `order`; the counts are summed in reverse, children first.
        let mut order = Vec::new();
        let mut path = vec![root];
        while let Some(half) = path.pop() {
            order.push(half);
            counts.down[tree.edge(half).index()] = half;
            counts.walked[tree.edge(half).index()] = true;
            let back = tree.back(half);
            if !tree.is_tip(back) {
                path.extend(tree.others(back));
            }
        }
        for &half in order.iter().rev() {
            let back = tree.back(half);
            counts.below[tree.edge(half).index()] = if tree.is_tip(back) {
                count(back)
            } else {
                let [a, b] = tree
                    .others(back)
                    .map(|other| counts.below[tree.edge(other).index()]);
                [a[0] + b[0], a[1] + b[1]]
            };
        }
        let (own, rest) = (count(root), counts.below[tree.edge(root).index()]);
        counts.all = [own[0] + rest[0], own[1] + rest[1]];
        counts
    }

    /// True if all of one side are below the branch, and none of the other side.
    fn separates(&self, edge: EdgeId) -> bool {
        let below = self.below[edge.index()];
        below == [self.all[0], 0] || below == [0, self.all[1]]
    }
}

/// Removes the branches into which taxa of one `side` of a split may not be inserted.
fn restrict(tree: &Tree, root: HalfId, split: &Split, side: Side, allowed: &mut [bool]) {
    let own = match side {
        Side::One => 0,
        Side::Other => 1,
        Side::Free => return,
    };
    let counts = Counts::new(tree, root, split);
    // With one side absent from the rest, every branch is compatible.
    if counts.all.contains(&0) {
        return;
    }
    // A branch is right when it separates the sides, or lies on the own side of one that does.
    let mut right = vec![false; allowed.len()];
    let mut path = Vec::new();
    for edge in tree.edges() {
        let down = counts.down[edge.index()];
        if counts.walked[edge.index()] && counts.separates(edge) {
            right[edge.index()] = true;
            let own_is_below = counts.below[edge.index()][own] > 0;
            path.push(if own_is_below { tree.back(down) } else { down });
        }
    }
    // Everything on the own side of a separating branch is allowed, too.
    while let Some(half) = path.pop() {
        if tree.is_tip(half) {
            continue;
        }
        for other in tree.others(half) {
            if !std::mem::replace(&mut right[tree.edge(other).index()], true) {
                path.push(tree.back(other));
            }
        }
    }
    allowed
        .iter_mut()
        .zip(right)
        .for_each(|(allowed, right)| *allowed &= right);
}

/// A tree that obeys; each taxon is inserted into a branch drawn uniformly from the allowed ones.
pub fn random_tree(taxa: usize, constraint: &Constraint, random: &mut Random) -> Tree {
    let mut order: Vec<usize> = (0..taxa).collect();
    for k in (1..taxa).rev() {
        order.swap(k, random.index(k + 1));
    }
    let mut tree = Tree::star(taxa, [order[0], order[1], order[2]], LENGTH_DEFAULT);
    for (before, &tip) in order.iter().enumerate().skip(3) {
        let allowed = constraint.for_tip(&tree, &order[..before], tip);
        // A tree of n tips has 2n - 3 branches, numbered without gaps.
        let edges = (0..2 * before - 3).map(EdgeId::new);
        let places: Vec<EdgeId> = edges.filter(|edge| allowed[edge.index()]).collect();
        // Never empty: a tree that obeys has a place for each further taxon.
        let target = places[random.index(places.len())];
        tree.insert_tip(tip, before, target);
    }
    tree
}

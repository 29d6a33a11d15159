//! Support of a tree's branches by replicates.
//!
//! Felsenstein's support of a branch is the share of the replicates that have its split. The
//! transfer bootstrap counts the fewest taxa that have to be moved to turn a split of the replicate
//! into the branch's. With p taxa on the branch's smaller side that is at most p - 1 (a tip's split
//! is always there), and the support is 1 minus the mean of that share. It is never below
//! Felsenstein's, and it does not fall to 0 because of one rogue taxon in a large clade.
//!
//! Must stay true: counts are whole numbers, so a sum over replicates is the same in any order.
//! Replicates may be of any shape, rooted or not.
//! Sources: Felsenstein, Evolution 39 (1985), 783-791; Lemoine and others, Nature 556 (2018),
//! 452-456. The transfer distance of a branch is found by one pass over the replicate.
//!
//! ```
//! use sidecore_phylo::newick::Newick;
//! use sidecore_phylo::support::{Kind, Reference};
//!
//! let tree = Newick::parse("((a,b),c,(d,e));")?;
//! let reference = Reference::new(&tree)?;
//! let mut tally = reference.empty(Kind::Fbp);
//! for replicate in ["((a,b),c,(d,e));", "((a,c),b,(d,e));"] {
//!     tally.add(&reference.tally(&Newick::parse(replicate)?, Kind::Fbp)?);
//! }
//! let mut shares: Vec<f64> = reference.values(&tally).iter().map(|&(_, share)| share).collect();
//! shares.sort_by(f64::total_cmp);
//! assert_eq!(shares, [0.5, 1.0]); // ab in one of two, de in both
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use crate::newick::Newick;
use crate::runner::{Runner, Work};
use crate::splits::{self, CompareError, Span, Taxa};
use sidecore_bare::width::{ToU64, ToUsize};
use sidecore_offload::OffloadError;
use std::collections::HashSet;

/// Errors that keep support from being computed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SupportError {
    /// A replicate of other taxa.
    #[error(transparent)]
    Compare(#[from] CompareError),
    /// An engine failed.
    #[error("the loop over replicates failed: {0}")]
    Offload(#[from] OffloadError),
}

/// A kind of support.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Felsenstein's: the share of replicates that have the split.
    Fbp,
    /// Transfer bootstrap: 1 minus the mean share of taxa to be moved.
    Tbe,
}

/// A tree whose branches are to be supported.
#[derive(Debug)]
pub struct Reference<'t> {
    tree: &'t Newick,
    taxa: Taxa,
    branches: Vec<Branch>,
}

/// An inner branch.
#[derive(Debug)]
struct Branch {
    /// The node below it.
    node: usize,
    /// A run of numbers, in the tree's own numbering.
    split: Span,
    /// Taxa on its smaller side, at least 2.
    light: usize,
}

/// Sums over replicates: for each branch one number, the support that it lacks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tally {
    kind: Kind,
    replicates: u64,
    /// Fbp: replicates without the split; Tbe: taxa to be moved, over all replicates.
    missing: Vec<u64>,
}

impl Tally {
    /// Adds the tally of other replicates.
    ///
    /// # Panics
    /// When it is of another kind or another tree.
    pub fn add(&mut self, other: &Self) {
        assert_eq!(self.kind, other.kind, "kinds of support");
        assert_eq!(self.missing.len(), other.missing.len(), "branches");
        self.replicates += other.replicates;
        let pairs = self.missing.iter_mut().zip(&other.missing);
        pairs.for_each(|(sum, more)| *sum += more);
    }
}

impl<'t> Reference<'t> {
    /// Takes a tree of any shape.
    ///
    /// # Errors
    /// [`CompareError::Twice`], [`CompareError::TooSmall`].
    pub fn new(tree: &'t Newick) -> Result<Self, CompareError> {
        let taxa = Taxa::of(tree)?;
        let splits = splits::spans(tree, &taxa).into_iter().enumerate();
        let inner = splits.filter(|(_, split)| !split.is_trivial(taxa.len()));
        let branches = inner.map(|(node, split)| {
            let len = split.len.to_usize();
            // Transfer support is relative to the smaller side.
            let light = len.min(taxa.len() - len);
            Branch { node, split, light }
        });
        Ok(Self {
            tree,
            branches: branches.collect(),
            taxa,
        })
    }

    /// Number of inner branches; the two at a root of two count both.
    #[must_use]
    pub fn branches(&self) -> usize {
        self.branches.len()
    }

    /// No replicates.
    #[must_use]
    pub fn empty(&self, kind: Kind) -> Tally {
        Tally {
            kind,
            replicates: 0,
            missing: vec![0; self.branches.len()],
        }
    }

    /// The tally of one replicate. Time is proportional to the taxa for `Fbp`, and to the taxa
    /// times the missing branches for `Tbe`.
    ///
    /// # Errors
    /// [`CompareError::Tips`], [`CompareError::Twice`].
    pub fn tally(&self, replicate: &Newick, kind: Kind) -> Result<Tally, CompareError> {
        self.taxa.check(replicate)?;
        let all = splits::spans(replicate, &self.taxa).into_iter();
        // Branches of the reference are runs of its numbering; other splits cannot be among them.
        let there: HashSet<Span> = all.filter(|split| split.is_run()).collect();
        let mut missing = vec![0; self.branches.len()];
        let mut transfer = Transfer::new(replicate, &self.taxa);
        for (missing, branch) in missing.iter_mut().zip(&self.branches) {
            if !there.contains(&branch.split) {
                *missing = match kind {
                    // With two taxa, one must be moved at least, and one is enough.
                    Kind::Tbe if branch.light > 2 => transfer.distance(branch.split).into(),
                    _ => 1,
                };
            }
        }
        Ok(Tally {
            kind,
            replicates: 1,
            missing,
        })
    }

    /// The tally of all of these, spread by `runner`. Blocks.
    ///
    /// # Errors
    /// [`SupportError`].
    pub fn tally_all(
        &self,
        replicates: &[Newick],
        kind: Kind,
        runner: &impl Runner,
    ) -> Result<Tally, SupportError> {
        // The number of items is bounded, since each has a tally of its own.
        let per_item = replicates.len().div_ceil(ITEMS).max(1);
        let mut items: Vec<(&[Newick], Result<Tally, CompareError>)> = replicates
            .chunks(per_item)
            .map(|some| (some, Ok(self.empty(kind))))
            .collect();
        runner.run(Work::Support, &mut items, |(some, sum)| {
            for replicate in *some {
                match (&mut *sum, self.tally(replicate, kind)) {
                    (Ok(sum), Ok(one)) => sum.add(&one),
                    (_, Err(error)) => *sum = Err(error),
                    (Err(_), Ok(_)) => {}
                }
            }
        })?;
        let mut all = self.empty(kind);
        for (_, sum) in items {
            all.add(&sum?);
        }
        Ok(all)
    }

    /// For each inner branch the node below it and its support, from 0 to 1; empty without
    /// replicates.
    #[must_use]
    pub fn values(&self, tally: &Tally) -> Vec<(usize, f64)> {
        if tally.replicates == 0 {
            return Vec::new();
        }
        let pairs = self.branches.iter().zip(&tally.missing);
        let value = |(branch, &missing): (&Branch, &u64)| {
            let worst = match tally.kind {
                Kind::Fbp => tally.replicates,
                Kind::Tbe => tally.replicates * (branch.light.to_u64() - 1),
            };
            (branch.node, (worst - missing) as f64 / worst as f64)
        };
        pairs.map(value).collect()
    }

    /// The tree with the supports as labels of its inner nodes: whole per cent for `Fbp`, from 0 to
    /// 1 with six digits for `Tbe`. Old labels are removed.
    #[must_use]
    pub fn labelled(&self, tally: &Tally) -> Newick {
        let mut tree = self.tree.clone();
        let inner: Vec<usize> = (0..tree.nodes().len())
            .filter(|&node| !tree.nodes()[node].children.is_empty())
            .collect();
        inner
            .into_iter()
            .for_each(|node| tree.set_label(node, String::new()));
        for (node, value) in self.values(tally) {
            let label = match tally.kind {
                Kind::Fbp => format!("{:.0}", 100.0 * value),
                Kind::Tbe => format!("{value:.6}"),
            };
            // A split whose other side is a tip of the root has no inner node of its own.
            if !tree.nodes()[node].children.is_empty() {
                tree.set_label(node, label);
            }
        }
        tree
    }
}

/// A replicate laid out for transfer distances.
struct Transfer {
    /// Each node's parent, the root its own; children after parents.
    parents: Vec<u32>,
    /// Each tip's node and taxon.
    tips: Vec<(u32, u32)>,
    /// Taxa below each node.
    sizes: Vec<u32>,
    /// Taxa below each node that are in the present split.
    inside: Vec<u32>,
}

impl Transfer {
    fn new(tree: &Newick, taxa: &Taxa) -> Self {
        let nodes = tree.nodes();
        let parents = nodes.iter().map(|node| node.parent.unwrap_or(0) as u32);
        let tips = tree.tips().map(|tip| {
            let taxon = taxa.number(&nodes[tip].label);
            (tip as u32, taxon as u32)
        });
        let mut made = Self {
            parents: parents.collect(),
            tips: tips.collect(),
            sizes: vec![0; nodes.len()],
            inside: vec![0; nodes.len()],
        };
        for &(tip, _) in &made.tips {
            made.sizes[tip.to_usize()] = 1;
        }
        // Children come after their parents, so the reverse order sums subtrees first.
        for node in (1..nodes.len()).rev() {
            made.sizes[made.parents[node].to_usize()] += made.sizes[node];
        }
        made
    }

    /// The fewest taxa that must change sides to make some split of this tree the given one.
    fn distance(&mut self, split: Span) -> u32 {
        self.inside.fill(0);
        for &(tip, taxon) in &self.tips {
            self.inside[tip.to_usize()] = u32::from(split.has(taxon));
        }
        let taxa = self.tips.len() as u32;
        let members = split.len;
        let mut least = taxa;
        for node in (1..self.parents.len()).rev() {
            let inside = self.inside[node];
            self.inside[self.parents[node].to_usize()] += inside;
            // The split's members outside must move in, all others inside must move out.
            let moved = (members - inside) + (self.sizes[node] - inside);
            // A split and its complement are one branch.
            least = least.min(moved).min(taxa - moved);
        }
        least
    }
}

/// Work items into which replicates are divided.
const ITEMS: usize = 64;

#[cfg(test)]
mod tests {
    //! Support by hand and by its definitions.

    use super::*;
    use crate::random::Random;
    use crate::runner::Serial;
    use crate::tree::random_tree;
    use std::collections::BTreeSet;

    fn newick(text: &str) -> Newick {
        Newick::parse(text).unwrap()
    }

    fn supported(tree: &str, replicates: &[&str], kind: Kind) -> String {
        let tree = newick(tree);
        let reference = Reference::new(&tree).unwrap();
        let mut all = reference.empty(kind);
        for replicate in replicates {
            all.add(&reference.tally(&newick(replicate), kind).unwrap());
        }
        reference.labelled(&all).to_string()
    }

    #[test]
    fn by_hand() {
        let tree = "((a,b)old,(c,d),(e,f));";
        let replicates = [
            "((a,b),(c,e),(d,f));",
            "(((a,b),c),(d,(e,f)));",
            "((f,e),(a,(b,(c,d))));",
        ];
        let fbp = supported(tree, &replicates, Kind::Fbp);
        assert_eq!(fbp, "((a,b)67,(c,d)33,(e,f)67);");
        let tbe = supported(tree, &replicates, Kind::Tbe);
        assert_eq!(tbe, "((a,b)0.666667,(c,d)0.333333,(e,f)0.666667);");
        // Three of eight: the replicate lacks one of them, its best split is one taxon away of two.
        let tbe = supported(
            "(((a,b),c),d,(e,(f,(g,h))));",
            &["(((a,b),e),d,(c,(f,(g,h))));"],
            Kind::Tbe,
        );
        assert_eq!(
            tbe,
            "(((a,b)1.000000,c)0.500000,d,(e,(f,(g,h)1.000000)1.000000)0.666667);"
        );
        assert_eq!(supported(tree, &[], Kind::Fbp), "((a,b),(c,d),(e,f));");
    }

    #[test]
    fn a_root_of_two_has_its_branch_once() {
        let tree = supported("((a,b),((c,d),e));", &["((a,b),c,(d,e));"], Kind::Fbp);
        assert_eq!(tree, "((a,b)100,((c,d)0,e)100);");
    }

    #[test]
    fn other_tips_are_refused() {
        let tree = newick("((a,b),c,d);");
        let reference = Reference::new(&tree).unwrap();
        assert!(reference.tally(&newick("((a,b),c,e);"), Kind::Fbp).is_err());
        assert!(Reference::new(&newick("(a,b);")).is_err());
    }

    /// All sides of all branches as sets of labels, one for each branch.
    fn sides(tree: &Newick) -> Vec<BTreeSet<String>> {
        let nodes = tree.nodes();
        let below = |top: usize| {
            let mut path = vec![top];
            let mut labels = BTreeSet::new();
            while let Some(node) = path.pop() {
                path.extend(&nodes[node].children);
                if nodes[node].children.is_empty() {
                    labels.insert(nodes[node].label.clone());
                }
            }
            labels
        };
        (1..nodes.len()).map(below).collect()
    }

    #[test]
    fn as_the_definitions_say() {
        let mut random = Random::new(11);
        for taxa in [4, 5, 9, 33, 70] {
            let names: Vec<String> = (0..taxa).map(|k| format!("t{k}")).collect();
            let all: BTreeSet<String> = names.iter().cloned().collect();
            let best = random_tree(taxa, 0.1, &mut random);
            let mut near = best.clone();
            let mut replicates = Vec::new();
            for k in 0..6 {
                // Some alike, some not.
                let edge = near.edges().nth(random.below(taxa as u64) as usize);
                edge.and_then(|edge| near.nni(edge, k % 2 == 0));
                let tree = match k {
                    0..4 => near.clone(),
                    _ => random_tree(taxa, 0.1, &mut random),
                };
                replicates.push(newick(&tree.to_newick(&names)));
            }
            let tree = newick(&best.to_newick(&names));
            let reference = Reference::new(&tree).unwrap();
            assert_eq!(reference.branches(), taxa - 3);
            let own = sides(&tree);
            for kind in [Kind::Fbp, Kind::Tbe] {
                let mut sum = reference.empty(kind);
                for replicate in &replicates {
                    sum.add(&reference.tally(replicate, kind).unwrap());
                }
                let spread = reference.tally_all(&replicates, kind, &Serial).unwrap();
                assert_eq!(spread, sum);
                for (node, value) in reference.values(&sum) {
                    let side = &own[node - 1];
                    let light = side.len().min(taxa - side.len());
                    let mut expected = 0.0;
                    for replicate in &replicates {
                        let moves = |other: &BTreeSet<String>| {
                            let moved = side.symmetric_difference(other).count();
                            moved.min(all.len() - moved)
                        };
                        let least = sides(replicate).iter().map(moves).min().unwrap();
                        expected += match kind {
                            Kind::Fbp => f64::from(u8::from(least == 0)),
                            Kind::Tbe => 1.0 - least as f64 / (light - 1) as f64,
                        } / replicates.len() as f64;
                    }
                    assert!((value - expected).abs() < 1e-12, "{value} {expected}");
                }
            }
        }
    }
}

//! Distances of two trees.
//!
//! Each branch splits the taxa in two; the Robinson-Foulds distance counts the splits that only one
//! tree has, the branch score sums over all splits the squared difference of lengths.
//! Must stay true: splits are equal when their sets are.
//! Sources: Robinson and Foulds, Mathematical Biosciences 53 (1981), 131-147; Kuhner and
//! Felsenstein, Molecular Biology and Evolution 11 (1994), 459-468.
//!
//! ```
//! use sidecore_phylo::compare::compare;
//! use sidecore_phylo::newick::Newick;
//!
//! let one = Newick::parse("((a,b),c,(d,e));")?;
//! let other = Newick::parse("((a,c),b,(d,e));")?;
//! let distance = compare(&one, &other)?;
//! assert_eq!(distance.rf, 2); // ab|cde is in the one, ac|bde in the other
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use crate::newick::Newick;
pub use crate::splits::CompareError;
use crate::splits::{self, Span, Taxa};
use sidecore_terminal::Text;
use std::collections::HashMap;

/// Distances of two trees.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Distance {
    /// Inner splits that only one of them has.
    pub rf: usize,
    /// That, of all inner splits of both: for binary trees of n taxa, of 2 (n - 3).
    pub rf_relative: f64,
    /// Root of the sum of squared differences of lengths, tips' branches included; none where a
    /// branch has no length.
    pub branch_score: Option<f64>,
}

impl Distance {
    /// The same for people.
    #[must_use]
    pub fn text(&self) -> Text {
        let mut text = Text::new();
        text.fact("Robinson-Foulds", self.rf.to_string());
        text.fact("relative", format!("{:.6}", self.rf_relative));
        let score = match self.branch_score {
            Some(score) => format!("{score:.6}"),
            None => "none: a branch has no length".to_owned(),
        };
        text.fact("branch score", score);
        text
    }
}

/// Compares two trees of any shape with the same tips. Where they are rooted, the root is ignored.
/// Time and memory: in proportion to the nodes.
///
/// # Errors
/// [`CompareError`].
pub fn compare(a: &Newick, b: &Newick) -> Result<Distance, CompareError> {
    let (taxa, own) = (Taxa::of(a)?, Taxa::of(b)?);
    taxa.check(b)?;
    let first = Splits::of(a, &taxa);
    // In the second tree's own numbering each of its splits is a run; in the first's numbering,
    // only a split that the first may have is one.
    let second = Splits::of(b, &own);
    let there: HashMap<Span, Span> = splits::spans(b, &own)
        .into_iter()
        .zip(splits::spans(b, &taxa))
        .filter(|(_, in_first)| in_first.is_run())
        .map(|(in_own, in_first)| (in_first, in_own))
        .collect();
    let is_inner = |split: &&Span| !split.is_trivial(taxa.len());
    let count_a = first.lengths.keys().filter(is_inner).count();
    let count_b = second.lengths.keys().filter(is_inner).count();
    let shared = |split: &&Span| is_inner(split) && there.contains_key(*split);
    let both = first.lengths.keys().filter(shared).count();
    let rf = count_a + count_b - 2 * both;
    let all = count_a + count_b;
    let rf_relative = if all == 0 {
        0.0
    } else {
        rf as f64 / all as f64
    };
    let branch_score = (first.has_lengths && second.has_lengths).then(|| {
        let mut rest = second.lengths;
        let mut squares: Vec<f64> = Vec::with_capacity(first.lengths.len() + rest.len());
        for (split, length) in &first.lengths {
            let other = there.get(split).and_then(|own| rest.remove(own));
            let difference = length - other.unwrap_or(0.0);
            squares.push(difference * difference);
        }
        squares.extend(rest.values().map(|length| length * length));
        // A map has no fixed order; the sum must have one.
        squares.sort_by(f64::total_cmp);
        squares.iter().sum::<f64>().sqrt()
    });
    Ok(Distance {
        rf,
        rf_relative,
        branch_score,
    })
}

/// A tree's splits with their lengths; two branches of one split (at a root) are added.
struct Splits {
    lengths: HashMap<Span, f64>,
    has_lengths: bool,
}

impl Splits {
    /// `taxa` are the tree's own: each split is a run.
    fn of(tree: &Newick, taxa: &Taxa) -> Self {
        let mut made = Self {
            lengths: HashMap::new(),
            has_lengths: true,
        };
        let nodes = tree.nodes().iter().zip(splits::spans(tree, taxa));
        for (node, split) in nodes.skip(1).rev() {
            made.has_lengths &= node.length.is_some();
            // A branch above all taxa splits nothing.
            if split.len > 0 {
                *made.lengths.entry(split).or_insert(0.0) += node.length.unwrap_or(0.0);
            }
        }
        made
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn distance(a: &str, b: &str) -> Result<Distance, CompareError> {
        compare(&Newick::parse(a).unwrap(), &Newick::parse(b).unwrap())
    }

    #[test]
    fn distances_by_hand() {
        let same = distance("((a:1,b:1):1,c:1,d:1);", "(((b:1,a:1):1,d:1):0.5,c:1);").unwrap();
        assert_eq!((same.rf, same.rf_relative), (0, 0.0));
        // The root's two branches are c's one.
        assert_eq!(same.branch_score, Some(0.5));
        let other = distance("((a:1,b:1):2,c:1,d:1);", "((a:1,c:1):1,b:1,d:3);").unwrap();
        assert_eq!((other.rf, other.rf_relative), (2, 1.0));
        assert_eq!(other.branch_score, Some(3.0));
        let star = distance("((a,b),c,(d,e));", "(a,b,c,d,e);").unwrap();
        assert_eq!(
            (star.rf, star.rf_relative, star.branch_score),
            (2, 1.0, None)
        );
    }

    #[test]
    fn different_tips_are_named() {
        let error = distance("(a,b,c,d);", "(a,b,c,x);").unwrap_err();
        assert_eq!(
            error,
            CompareError::Tips {
                label: "d".to_owned()
            }
        );
        assert!(distance("(a,a,c,d);", "(a,b,c,x);").is_err());
        assert_eq!(distance("(a,b,c);", "(c,(a,b));").unwrap().rf, 0);
        assert!(distance("(a,b);", "(a,b);").is_err());
    }

    #[test]
    fn large_trees_take_memory_for_their_nodes_alone() {
        // As sets of bits the splits of each would be 1.2 GiB.
        let comb = |taxa: usize, from_end: bool| {
            let mut text = "(".repeat(taxa - 1);
            text += "t0";
            for k in 1..taxa {
                let k = if from_end { taxa - k } else { k };
                text += &format!(",t{k})");
            }
            text + ";"
        };
        let (one, other) = (comb(100_000, false), comb(100_000, true));
        let same = distance(&one, &one).unwrap();
        assert_eq!((same.rf, same.branch_score), (0, None));
        assert_eq!(distance(&one, &other).unwrap().rf, 2 * (100_000 - 3));
    }

    #[test]
    fn more_taxa_than_a_word_has_bits() {
        let mut random = crate::random::Random::new(5);
        let names: Vec<String> = (0..150).map(|k| format!("t{k}")).collect();
        let tree = crate::tree::random_tree(150, 0.1, &mut random);
        let text = tree.to_newick(&names);
        let same = distance(&text, &text).unwrap();
        assert_eq!((same.rf, same.branch_score), (0, Some(0.0)));
        let mut moved = tree.clone();
        let edge = moved
            .edges()
            .find(|&edge| moved.clone().nni(edge, false).is_some())
            .unwrap();
        let _ = moved.nni(edge, false);
        let distance = distance(&text, &moved.to_newick(&names)).unwrap();
        assert_eq!(distance.rf, 2);
        assert!((distance.rf_relative - 2.0 / (2.0 * 147.0)).abs() < 1e-15);
    }
}

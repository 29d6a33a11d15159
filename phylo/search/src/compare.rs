//! Distances of two trees, and of all pairs of a set of trees.
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
use crate::splits::{self, Span, Split, Taxa};
pub use crate::splits::{CompareError, SetError};
use sidecore_bare::width::ToU64;
use sidecore_terminal::{Table, Text};
use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};

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
    let rf_relative = relative(rf, count_a + count_b);
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

/// Robinson-Foulds distances of all pairs of a set of trees.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct TreeSet {
    /// Number of trees.
    pub trees: usize,
    /// Number of taxa.
    pub taxa: usize,
    /// Number of different topologies.
    pub topologies: usize,
    /// Mean of [`Distance::rf`] over all pairs.
    pub rf_mean: f64,
    /// Mean of [`Distance::rf_relative`] over all pairs.
    pub rf_relative_mean: f64,
    /// [`Distance::rf`] of each pair: a row and a column for each tree, in their order.
    pub rf_matrix: Vec<Vec<usize>>,
    /// Inner splits of each tree.
    #[serde(skip)]
    splits: Vec<usize>,
}

impl TreeSet {
    /// [`Distance::rf_relative`] of a pair of trees, numbered from 0.
    #[must_use]
    pub fn rf_relative(&self, a: usize, b: usize) -> f64 {
        relative(self.rf_matrix[a][b], self.splits[a] + self.splits[b])
    }

    /// A line for each pair, with tabs: the trees' numbers from 1, the distance, the relative one.
    #[must_use]
    pub fn table(&self) -> String {
        let mut text = "tree\tother\trf\trf_relative\n".to_owned();
        for (a, row) in self.rf_matrix.iter().enumerate() {
            for (b, rf) in row.iter().enumerate().skip(a + 1) {
                let share = self.rf_relative(a, b);
                text += &format!("{}\t{}\t{rf}\t{share:.6}\n", a + 1, b + 1);
            }
        }
        text
    }

    /// The means for people, and the matrix of a small set.
    #[must_use]
    pub fn text(&self) -> Text {
        let mut text = Text::new();
        text.fact("trees", self.trees.to_string());
        text.fact("taxa", self.taxa.to_string());
        text.fact("different topologies", self.topologies.to_string());
        text.fact("mean Robinson-Foulds", format!("{:.6}", self.rf_mean));
        text.fact("mean relative", format!("{:.6}", self.rf_relative_mean));
        if self.trees <= SHOWN_MAX {
            let numbers: Vec<String> = (1..=self.trees).map(|number| number.to_string()).collect();
            let heads = std::iter::once("tree").chain(numbers.iter().map(String::as_str));
            let rows = numbers.iter().zip(&self.rf_matrix);
            let rows = rows.map(|(number, row)| -> Vec<String> {
                let cells = row.iter().map(usize::to_string);
                std::iter::once(number.clone()).chain(cells).collect()
            });
            text.line("");
            text.table(Table::of(&heads.collect::<Vec<_>>(), rows.collect()));
        }
        text
    }
}

/// Trees whose matrix is shown to people.
const SHOWN_MAX: usize = 50;

/// Compares all pairs of trees of any shape with the same tips, with at most about `bytes_max`
/// bytes of memory. Roots are ignored. Time: the pairs times the taxa.
///
/// # Errors
/// [`SetError`].
pub fn compare_all(trees: &[Newick], bytes_max: u64) -> Result<TreeSet, SetError> {
    compare_until(trees, bytes_max, || false)
}

/// As [`compare_all`], until `stop` is true: it is asked before each tree.
///
/// # Errors
/// [`SetError`]; [`SetError::Stopped`] where it was stopped.
pub fn compare_until(
    trees: &[Newick],
    bytes_max: u64,
    stop: impl Fn() -> bool,
) -> Result<TreeSet, SetError> {
    let count = trees.len();
    let Some(first) = trees.first().filter(|_| count > 1) else {
        return Err(SetError::Few { trees: count });
    };
    let taxa = Taxa::of(first).map_err(|source| SetError::Tree { number: 1, source })?;
    let sets = numbered(trees, &taxa, bytes_max, &stop)?;
    let mut rf_matrix = vec![vec![0; count]; count];
    let (mut sum, mut relative_sum) = (0.0, 0.0);
    for (a, own) in sets.iter().enumerate() {
        if stop() {
            return Err(SetError::Stopped);
        }
        for (b, other) in sets[..a].iter().enumerate() {
            let all = own.len() + other.len();
            let rf = all - 2 * shared(own, other);
            sum += rf as f64;
            relative_sum += relative(rf, all);
            rf_matrix[a][b] = rf;
            rf_matrix[b][a] = rf;
        }
    }
    let pairs = count as f64 * (count as f64 - 1.0) / 2.0;
    Ok(TreeSet {
        trees: count,
        taxa: taxa.len(),
        topologies: sets.iter().collect::<HashSet<_>>().len(),
        rf_mean: sum / pairs,
        rf_relative_mean: relative_sum / pairs,
        rf_matrix,
        splits: sets.iter().map(Vec::len).collect(),
    })
}

/// The inner splits of each tree, each split by a number of its own.
fn numbered(
    trees: &[Newick],
    taxa: &Taxa,
    bytes_max: u64,
    stop: &impl Fn() -> bool,
) -> Result<Vec<Vec<usize>>, SetError> {
    let count = trees.len();
    let split_bytes = (taxa.len().div_ceil(64) * 8 + SPLIT_BYTES).to_u64();
    let cells = count.to_u64().saturating_mul(count.to_u64());
    // Each split once in all: equal splits have one number, so that pairs compare numbers alone.
    let mut numbers: HashMap<Split, usize> = HashMap::new();
    let mut sets: Vec<Vec<usize>> = Vec::with_capacity(count);
    let mut kept = cells.saturating_mul(CELL_NUMBERS);
    for (at, tree) in trees.iter().enumerate() {
        if stop() {
            return Err(SetError::Stopped);
        }
        let number = at + 1;
        // The splits so far and the tree's own twice, while they are numbered.
        let splits = (numbers.len() + 2 * tree.nodes().len()).to_u64();
        kept = kept.saturating_add(tree.nodes().len().to_u64());
        let need = splits.saturating_mul(split_bytes);
        if need.saturating_add(kept.saturating_mul(NUMBER_BYTES)) > bytes_max {
            let mib = bytes_max >> 20;
            return Err(SetError::Memory { number, mib });
        }
        let check = taxa.check(tree);
        check.map_err(|source| SetError::Tree { number, source })?;
        let inner = splits::of(tree, taxa).into_iter();
        let inner = inner.filter(|split| !split.is_trivial(taxa.len()));
        let mut own: Vec<usize> = inner
            .map(|split| {
                let next = numbers.len();
                *numbers.entry(split).or_insert(next)
            })
            .collect();
        own.sort_unstable();
        // The two branches at a root of two are one split.
        own.dedup();
        sets.push(own);
    }
    Ok(sets)
}

/// Bytes of a split in a table besides its set of taxa, and of a number.
const SPLIT_BYTES: usize = 96;
const NUMBER_BYTES: u64 = 8;
/// Numbers whose memory a distance of the matrix takes: its own, and its text's. That is some bytes
/// of JSON, and half of a line of the table; a growing text is there twice.
const CELL_NUMBERS: u64 = 4;

/// Numbers that both ascending lists have.
fn shared(one: &[usize], other: &[usize]) -> usize {
    let (mut a, mut b, mut both) = (0, 0, 0);
    while let (Some(x), Some(y)) = (one.get(a), other.get(b)) {
        match x.cmp(y) {
            Ordering::Less => a += 1,
            Ordering::Greater => b += 1,
            Ordering::Equal => {
                both += 1;
                a += 1;
                b += 1;
            }
        }
    }
    both
}

/// A distance as a share of the inner splits of both trees.
fn relative(rf: usize, all: usize) -> f64 {
    match all {
        0 => 0.0,
        all => rf as f64 / all as f64,
    }
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
    fn a_set_has_the_distances_of_its_pairs() {
        let mut random = crate::random::Random::new(11);
        let names: Vec<String> = (0..70).map(|k| format!("t{k}")).collect();
        let mut texts: Vec<String> = (0..5)
            .map(|_| crate::tree::random_tree(70, 0.1, &mut random).to_newick(&names))
            .collect();
        // A tree twice, and one without inner branches.
        texts.push(texts[1].clone());
        texts.push(format!("({});", names.join(",")));
        let trees: Vec<Newick> = texts
            .iter()
            .map(|text| Newick::parse(text).unwrap())
            .collect();
        let found = compare_all(&trees, u64::MAX).unwrap();
        assert_eq!((found.trees, found.taxa, found.topologies), (7, 70, 6));
        let (mut sum, mut relative, mut lines) = (0, 0.0, 1);
        for (a, one) in trees.iter().enumerate() {
            for (b, other) in trees.iter().enumerate() {
                let expected = compare(one, other).unwrap();
                assert_eq!(found.rf_matrix[a][b], expected.rf, "{a} {b}");
                assert_eq!(found.rf_relative(a, b), expected.rf_relative, "{a} {b}");
                if a < b {
                    sum += expected.rf;
                    relative += expected.rf_relative;
                    let line = format!("{}\t{}\t{}\t", a + 1, b + 1, expected.rf);
                    assert!(found.table().lines().nth(lines).unwrap().starts_with(&line));
                    lines += 1;
                }
            }
        }
        assert_eq!(found.table().lines().count(), lines);
        assert!((found.rf_mean - sum as f64 / 21.0).abs() < 1e-9);
        assert!((found.rf_relative_mean - relative / 21.0).abs() < 1e-12);
        // A root of two branches is no split of its own.
        let rooted = Newick::parse_file("((a,b),(c,(d,e))); ((a,b),c,(d,e));").unwrap();
        assert_eq!(compare_all(&rooted, u64::MAX).unwrap().rf_matrix[0][1], 0);
        let asked = std::cell::Cell::new(0);
        for steps in [0, 1, 2, 3] {
            asked.set(0);
            let stop = || asked.replace(asked.get() + 1) == steps;
            let stopped = compare_until(&rooted, u64::MAX, stop);
            assert_eq!(stopped.unwrap_err(), SetError::Stopped);
        }
        let refused = |trees: &[Newick], most| compare_all(trees, most).unwrap_err();
        assert_eq!(refused(&trees[..1], u64::MAX), SetError::Few { trees: 1 });
        assert!(matches!(refused(&trees, 1 << 10), SetError::Memory { .. }));
        // A hundred trees have 10,000 distances, of 32 bytes each; twice as many have 40,000.
        let many = |count: usize| vec![Newick::parse("(a,b,c);").unwrap(); count];
        assert!(compare_all(&many(100), 1 << 20).is_ok());
        assert!(matches!(
            refused(&many(200), 1 << 20),
            SetError::Memory { .. }
        ));
        let other = Newick::parse_file("(a,b,c,d); (a,b,c,x);").unwrap();
        assert!(matches!(
            refused(&other, u64::MAX),
            SetError::Tree { number: 2, .. }
        ));
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

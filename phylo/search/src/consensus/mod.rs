//! Consensus trees: strict, majority rule, extended majority rule; and trees without branches that
//! nothing supports, since they have no length.
//!
//! Every branch of a tree splits its taxa in two; a consensus has the splits that enough of the
//! trees have. Splits of more than half of the trees are always compatible with one another. The
//! extended majority rule then adds the most frequent of the other splits, if compatible with all
//! taken before.
//! Must stay true: the result depends on the set of trees, not on their order. The exceptions are
//! the first taxon (the first tree's) and the last bits of lengths. Ties of frequency are broken by
//! size, then by the splits themselves.
//! Sources: Margush and McMorris, Bulletin of Mathematical Biology 43 (1981), 239-244; Felsenstein,
//! PHYLIP's `consense` for the extended rule.
//!
//! ```
//! use sidecore_phylo::consensus::{Rule, consensus};
//! use sidecore_phylo::newick::Newick;
//!
//! let trees = Newick::parse_file("((a,b),c,(d,e)); ((a,b),d,(c,e)); ((a,b),(c,d),e);")?;
//! let found = consensus(&trees, Rule::Majority)?;
//! assert_eq!(found.tree.to_string(), "(a,b,(c,d,e)100);");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use crate::newick::Newick;
use crate::rooting::as_text;
use crate::splits::{self, SetError, Split, Taxa};
use sidecore_bare::width::ToU64;
use std::collections::HashMap;

/// Least share of the trees that have a split of the consensus.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Rule {
    /// All of them.
    Strict,
    /// More than half.
    Majority,
    /// More than this share, from 0.5 to 1.
    Above(f64),
    /// More than half, then the most frequent of the others as long as they are compatible.
    Extended,
}

impl Rule {
    /// Those with a name, and a line about each.
    #[rustfmt::skip] // a line each
    pub const NAMED: [(&str, &str, Self); 3] = [
        ("strict", "Those of all trees", Self::Strict),
        ("majority", "Those of more than half of the trees", Self::Majority),
        ("extended", EXTENDED, Self::Extended),
    ];
}

const EXTENDED: &str = "These, then the most frequent of the others as long as they are compatible";

/// A consensus tree.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Consensus {
    /// Number of trees that it is of.
    pub trees: usize,
    /// Number of taxa.
    pub taxa: usize,
    /// Number of inner branches.
    pub branches: usize,
    /// For each inner branch, in the order of the tree's nodes, the share of the trees that have
    /// it, from 0 to 1.
    pub shares: Vec<f64>,
    /// The tree, rooted at the inner node next to the first taxon. Labels of inner nodes: these
    /// shares, in whole per cent. Lengths: means over the trees that
    /// have the branch, where all of them give it a length.
    #[serde(serialize_with = "as_text")]
    pub tree: Newick,
}

/// Number of trees that have a split, and the split's lengths in them.
#[derive(Debug, Default, Clone, Copy)]
struct Count {
    trees: usize,
    length: f64,
    /// True if a tree gave it no length.
    lacks_length: bool,
}

/// The consensus of trees of any shape on the same taxa; where they are rooted the root is ignored.
/// Time and memory: in proportion to the taxa times the distinct splits.
///
/// # Errors
/// [`SetError`].
pub fn consensus(trees: &[Newick], rule: Rule) -> Result<Consensus, SetError> {
    consensus_within(trees, rule, u64::MAX)
}

/// As [`consensus`], with at most about `bytes_max` bytes of memory for the trees' splits.
///
/// # Errors
/// [`SetError`].
pub fn consensus_within(
    trees: &[Newick],
    rule: Rule,
    bytes_max: u64,
) -> Result<Consensus, SetError> {
    let first = trees.first().ok_or(SetError::Empty)?;
    let taxa = Taxa::of(first).map_err(|source| SetError::Tree { number: 1, source })?;
    let mut counts = HashMap::new();
    let split_bytes = (taxa.len().div_ceil(64) * 8 + SPLIT_BYTES).to_u64();
    for (at, tree) in trees.iter().enumerate() {
        // The splits so far, and twice the tree's own.
        let splits = (counts.len() + 2 * tree.nodes().len()).to_u64();
        if splits.saturating_mul(split_bytes) > bytes_max {
            return Err(SetError::Splits {
                number: at + 1,
                mib: bytes_max >> 20,
            });
        }
        taxa.check(tree).map_err(|source| SetError::Tree {
            number: at + 1,
            source,
        })?;
        count(tree, &taxa, &mut counts);
    }
    let taken = taken(&counts, trees.len(), taxa.len(), rule);
    let labels: Vec<&str> = first
        .tips()
        .map(|tip| first.nodes()[tip].label.as_str())
        .collect();
    Ok(build(&labels, &taken, &counts, trees.len()))
}

/// Adds a tree's splits. The two branches at a root of two are one, of both lengths.
fn count(tree: &Newick, taxa: &Taxa, counts: &mut HashMap<Split, Count>) {
    // First by split, since the two branches at a root of two have the same one.
    let mut own: HashMap<Split, Option<f64>> = HashMap::new();
    let nodes = tree.nodes().iter().zip(splits::of(tree, taxa));
    for (node, split) in nodes.skip(1) {
        if split.len() == 0 {
            continue;
        }
        match own.get_mut(&split) {
            Some(sum) => *sum = sum.zip(node.length).map(|(sum, more)| sum + more),
            None => {
                own.insert(split, node.length);
            }
        }
    }
    for (split, length) in own {
        let count = counts.entry(split).or_default();
        count.trees += 1;
        count.length += length.unwrap_or(0.0);
        count.lacks_length |= length.is_none();
    }
}

/// The splits of the consensus with more than one taxon on each side, small before large.
fn taken(counts: &HashMap<Split, Count>, trees: usize, taxa: usize, rule: Rule) -> Vec<&Split> {
    let inner = counts.iter().filter(|(split, _)| !split.is_trivial(taxa));
    let mut taken: Vec<(&Split, usize)> = inner.map(|(split, c)| (split, c.trees)).collect();
    let share = |count: usize| count as f64 / trees as f64;
    match rule {
        Rule::Strict => taken.retain(|&(_, count)| count == trees),
        Rule::Majority => taken.retain(|&(_, count)| 2 * count > trees),
        Rule::Above(least) => taken.retain(|&(_, count)| share(count) > least.max(0.5)),
        Rule::Extended => {
            // Ties are broken by the split itself, so that the order of the input trees does not
            // matter.
            taken.sort_by(|(a, a_count), (b, b_count)| {
                let size = || a.len().cmp(&b.len());
                b_count.cmp(a_count).then_with(size).then_with(|| a.cmp(b))
            });
            let mut kept: Vec<(&Split, usize)> = Vec::new();
            for (split, count) in taken {
                // A tree of n taxa has at most n - 3 inner branches.
                if kept.len() + 3 >= taxa {
                    break;
                }
                if kept.iter().all(|(other, _)| split.is_compatible(other)) {
                    kept.push((split, count));
                }
            }
            taken = kept;
        }
    }
    let mut taken: Vec<&Split> = taken.into_iter().map(|(split, _)| split).collect();
    // Nested sets: a split's parts come before it.
    taken.sort_by(|a, b| a.len().cmp(&b.len()).then_with(|| a.cmp(b)));
    taken
}

/// The tree of compatible splits, given as sides without taxon 0: nested sets.
fn build(
    labels: &[&str],
    taken: &[&Split],
    counts: &HashMap<Split, Count>,
    trees: usize,
) -> Consensus {
    let taxa = labels.len();
    // To ten decimals, as trees are written elsewhere.
    let mean = |count: &Count| {
        let mean = count.length / count.trees as f64;
        (!count.lacks_length).then(|| (1e10 * mean).round() / 1e10)
    };
    // Sets `0..taxa` are the tips, then the splits, then the whole. From small to large, each set
    // takes those of its members that no smaller set has taken.
    let whole = taxa + taken.len();
    let mut above = vec![whole; whole];
    let mut top: Vec<usize> = (0..taxa).collect();
    for (at, split) in taken.iter().enumerate() {
        for taxon in (0..taxa).filter(|&taxon| split.has(taxon)) {
            let set = std::mem::replace(&mut top[taxon], taxa + at);
            above[set] = taxa + at;
        }
    }
    let mut members = vec![Vec::new(); whole + 1];
    // The first taxon of each set: children stand in the order of their first taxa.
    let mut first = vec![usize::MAX; whole + 1];
    for taxon in 0..taxa {
        let mut set = taxon;
        while first[set] == usize::MAX {
            first[set] = taxon;
            if set == whole {
                break;
            }
            members[above[set]].push(set);
            set = above[set];
        }
    }
    let mut tips: HashMap<usize, &Count> = HashMap::new();
    for (split, count) in counts.iter().filter(|(split, _)| split.is_trivial(taxa)) {
        let inside = split.len() == 1;
        let alone = (0..taxa).find(|&taxon| split.has(taxon) == inside);
        if let Some(taxon) = alone {
            tips.insert(taxon, count);
        }
    }
    let mut tree = Newick::root(String::new());
    let mut shares = Vec::new();
    // Sets still to be written, the next one last, with the node above.
    let mut path: Vec<(usize, usize)> = members[whole].iter().rev().map(|&set| (set, 0)).collect();
    while let Some((set, parent)) = path.pop() {
        let Some(at) = set.checked_sub(taxa) else {
            let length = tips.get(&set).and_then(|count| mean(count));
            tree.push(parent, labels[set].to_owned(), length);
            continue;
        };
        let count = &counts[taken[at]];
        let share = count.trees as f64 / trees as f64;
        let node = tree.push(
            parent,
            format!("{:.0}", (100.0 * share).round()),
            mean(count),
        );
        shares.push(share);
        path.extend(members[set].iter().rev().map(|&set| (set, node)));
    }
    Consensus {
        trees,
        taxa,
        branches: shares.len(),
        shares,
        tree,
    }
}

/// A tree without the inner branches of at most this length: their nodes become one. Branches
/// without a length stay, and so do the labels of the nodes that stay.
#[must_use]
pub fn collapsed(tree: &Newick, length_max: f64) -> Newick {
    let nodes = tree.nodes();
    let mut made = Newick::root(nodes[0].label.clone());
    let mut new = vec![0; nodes.len()];
    // A removed node's children go to the node above it, at the place that it had.
    let mut path: Vec<usize> = nodes[0].children.iter().rev().copied().collect();
    while let Some(node) = path.pop() {
        let own = &nodes[node];
        let parent = own.parent.map_or(0, |parent| new[parent]);
        let is_void = own.length.is_some_and(|length| length <= length_max);
        new[node] = match is_void && !own.children.is_empty() {
            true => parent,
            false => made.push(parent, own.label.clone(), own.length),
        };
        path.extend(own.children.iter().rev());
    }
    made
}

/// Of a split in a table, besides its set of taxa.
const SPLIT_BYTES: usize = 96;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::compare;
    use crate::random::Random;
    use crate::tree::random_tree;

    fn trees(text: &str) -> Vec<Newick> {
        Newick::parse_file(text).unwrap()
    }

    /// Five trees; DendroPy 5 (`TreeList.consensus`) and IQ-TREE 2 (`-con -minsup`) agree about
    /// such.
    const FIVE: &str = "\
((((a,b),c),d),(e,(f,g)),h);
((((a,b),c),d),((e,f),g),h);
((((a,c),b),d),(e,(f,g)),h);
((((a,c),b),h),((e,g),f),d);
(((a,b),(c,d)),(e,(f,g)),h);
";

    #[test]
    fn rules_take_what_other_programs_take() {
        let expected = [
            (Rule::Strict, "(a,b,c,d,(e,f,g),h);"),
            (Rule::Majority, "((((a,b),c),d),(e,(f,g)),h);"),
            (Rule::Extended, "((((a,b),c),d),(e,(f,g)),h);"),
            (Rule::Above(0.7), "(((a,b,c),d),(e,f,g),h);"),
        ];
        for (rule, tree) in expected {
            let found = consensus(&trees(FIVE), rule).unwrap().tree;
            let distance = compare(&found, &Newick::parse(tree).unwrap()).unwrap();
            assert_eq!(distance.rf, 0, "{rule:?}: {found}");
        }
        let found = consensus(&trees(FIVE), Rule::Majority).unwrap();
        // abcd in 4 of 5 (as the side without a), bc... in the order of the nodes.
        let mut shares = found.shares.clone();
        shares.sort_by(f64::total_cmp);
        assert_eq!(shares, [0.6, 0.6, 0.8, 0.8, 1.0]);
    }

    #[test]
    fn the_extended_rule_goes_on_with_the_most_frequent() {
        let text = "((a,b),(c,d),e); ((a,b),(c,e),d); ((a,c),(b,d),e); ((a,d),(c,e),b);";
        // ab and ce in two of four each: no majority, and compatible.
        assert_eq!(
            consensus(&trees(text), Rule::Majority).unwrap().shares,
            [0.0; 0]
        );
        let found = consensus(&trees(text), Rule::Extended).unwrap();
        assert_eq!(found.tree.to_string(), "(a,b,((c,e)50,d)50);");
    }

    #[test]
    fn lengths_are_means_and_roots_do_not_matter() {
        let text = "((a:1,b:1):1,(c:2,d:2):3,e:1); (e:2,((c:2,d:4):1,(a:1,b:3):3):2);";
        let found = consensus(&trees(text), Rule::Strict).unwrap();
        assert_eq!(
            found.tree.to_string(),
            "(a:1,b:2,((c:2,d:3)100:2,e:2.5)100:2);"
        );
        let rooted = "((a:1,b:1):1,(c:1,d:1):2);";
        let found = consensus(&trees(rooted), Rule::Strict).unwrap();
        assert_eq!(found.tree.to_string(), "(a:1,b:1,(c:1,d:1)100:3);");
        let some = "((a:1,b:1),c:1,d:1); ((a:1,b:1):1,c:1,d:1);";
        let found = consensus(&trees(some), Rule::Strict).unwrap();
        assert_eq!(found.tree.to_string(), "(a:1,b:1,(c:1,d:1)100);");
    }

    #[test]
    fn one_tree_is_its_own_consensus_and_order_does_not_matter() {
        let names: Vec<String> = (0..70).map(|k| format!("t{k}")).collect();
        let mut random = Random::new(5);
        let mut tree =
            || Newick::parse(&random_tree(70, 0.1, &mut random).to_newick(&names)).unwrap();
        let all: Vec<Newick> = (0..7).map(|_| tree()).collect();
        for one in &all {
            for rule in [Rule::Strict, Rule::Majority, Rule::Extended] {
                let found = consensus(std::slice::from_ref(one), rule).unwrap().tree;
                let distance = compare(one, &found).unwrap();
                assert_eq!(distance.rf, 0);
                assert!(distance.branch_score.unwrap() < 1e-12);
            }
        }
        let mut other = all.clone();
        other[1..].reverse();
        let [a, b] = [all, other].map(|trees| consensus(&trees, Rule::Extended).unwrap());
        assert_eq!(a.shares, b.shares);
        assert!(a.shares.len() > 30, "{}", a.shares.len());
    }

    #[test]
    fn branches_without_length_are_removed() {
        let tree = trees("(a:1,((b:0,c:1)90:0.000001,(d:1,e:1)80:2)X:0.0000005,(f:1,g:1)70);");
        let found = collapsed(&tree[0], 1e-6).to_string();
        assert_eq!(found, "(a:1,b:0,c:1,(d:1,e:1)80:2,(f:1,g:1)70);");
        assert_eq!(collapsed(&tree[0], 0.0).to_string(), tree[0].to_string());
    }

    #[test]
    fn other_taxa_are_refused() {
        assert_eq!(consensus(&[], Rule::Strict).unwrap_err(), SetError::Empty);
        let error = consensus(&trees("(a,b,(c,d)); (a,b,(c,x));"), Rule::Strict).unwrap_err();
        assert_eq!(
            error.to_string(),
            "tree 2: only one of the trees has the tip `d`"
        );
        assert!(consensus(&trees("(a,b);"), Rule::Strict).is_err());
    }
}

//! The most probable sequences of a tree's inner nodes, a table of all probabilities, and the
//! changes on branches.

use super::{Ancestors, labelled, name};
use crate::likelihood::{Part, PartOptions};
use crate::msa::Alphabet;
use crate::tree::Tree;
use sidecore_bare::width::{ToU64, ToUsize};
use sidecore_terminal::Text;
use std::collections::HashMap;
use std::fmt::Write as _;

/// An inner node's most probable sequence.
#[derive(Debug, Clone, serde::Serialize)]
pub(crate) struct AncestralSequence {
    /// The node's name.
    pub name: String,
    /// A character for each column of the alignment; `-` where no taxon has one.
    pub sequence: String,
    /// Mean over the sites of the probability of the most probable state.
    pub probability_mean: f64,
}

/// The most probable sequences under some partitions.
#[derive(Debug, Clone, serde::Serialize)]
pub struct AncestralSequences {
    /// The tree's log-likelihood.
    pub lnl: f64,
    /// Sites of all partitions.
    pub sites: usize,
    /// The tree with the inner nodes' names, in Newick.
    pub tree: String,
    /// One a node.
    pub(crate) nodes: Vec<AncestralSequence>,
}

impl AncestralSequences {
    /// On a tree with its lengths (those of each partition, where they have their own) and its
    /// log-likelihood, for an alignment of `columns` columns.
    /// With a `table` the probabilities of all states are written to that, as lines with tabs.
    #[must_use]
    pub fn new(
        (tree, lnl): (&Tree, f64),
        names: &[String],
        parts: &[Part],
        columns: usize,
        mut table: Option<&mut String>,
    ) -> Self {
        // Columns that no partition has, and those without a character, stay gaps.
        let mut sequences = vec![vec!['-'; columns]; tree.taxa() - 2];
        let mut sums = vec![0.0; sequences.len()];
        let mut sites = 0;
        for (number, part) in parts.iter().enumerate() {
            let own = tree.of_part(number, part.scale());
            let found = Ancestors::new(&own, part.patterns(), part.model(), 1.0);
            if let Some(table) = &mut table {
                // Partitions may have other states: then each has a head of its own.
                let has_head = table.is_empty() || parts.len() > 1;
                lines(table, &found, part, has_head);
            }
            let alphabet = part.patterns().alphabet();
            let texts = texts(alphabet);
            let columns = part.patterns().site_columns();
            for (columns, (_, pattern)) in columns.zip(part.patterns().site_patterns()) {
                sites += 1;
                let nodes = sequences.iter_mut().zip(&mut sums).enumerate();
                for (node, (sequence, sum)) in nodes {
                    let (state, p) = most_probable(found.probabilities(node, pattern));
                    // Of a codon three columns, which may lie apart.
                    for (column, letter) in columns.iter().zip(texts[state].chars()) {
                        sequence[column.to_usize()] = letter;
                    }
                    *sum += p;
                }
            }
        }
        // No site at all would divide by 0.
        let count = f64::from(u32::try_from(sites.max(1)).unwrap_or(u32::MAX));
        let nodes = sequences.into_iter().zip(sums).enumerate();
        let nodes = nodes.map(|(node, (sequence, sum))| AncestralSequence {
            name: name(node),
            sequence: sequence.into_iter().collect(),
            probability_mean: sum / count,
        });
        Self {
            lnl,
            tree: labelled(tree, names).to_string(),
            nodes: nodes.collect(),
            sites,
        }
    }

    /// The sequences as FASTA.
    #[must_use]
    pub fn to_fasta(&self) -> String {
        let record = |node: &AncestralSequence| format!(">{}\n{}\n", node.name, node.sequence);
        self.nodes.iter().map(record).collect()
    }

    /// The changes on each branch of the tree that this is of, as lines with tabs: the most
    /// probable states of its ends where they differ, and a tip's own where it has one. Sites
    /// count from 1.
    #[must_use]
    pub fn mutations(&self, tree: &Tree, names: &[String], parts: &[Part]) -> String {
        let mut text = "parent\tchild\tsite\tfrom\tto\n".to_owned();
        let taxa = names.iter().enumerate();
        let taxa: HashMap<&str, usize> = taxa.map(|(k, name)| (name.as_str(), k)).collect();
        let newick = labelled(tree, names);
        // Inner nodes are numbered in the order of the text.
        let mut numbers = vec![0; newick.nodes().len()];
        let mut inner = 0;
        for (node, own) in newick.nodes().iter().enumerate() {
            numbers[node] = inner;
            inner += usize::from(!own.children.is_empty());
            let Some(parent) = own.parent else {
                continue;
            };
            let above = &self.nodes[numbers[parent]];
            let below = match own.children.is_empty() {
                true => taxa.get(own.label.as_str()).map(|&taxon| End::Tip(taxon)),
                false => Some(End::Inner(self.nodes[numbers[node]].sequence.as_bytes())),
            };
            let Some(below) = below else {
                continue;
            };
            let mut changes: Vec<(usize, String, String)> = Vec::new();
            for part in parts {
                changes.extend(differences(part, above.sequence.as_bytes(), &below));
            }
            // Partitions may have alternating columns.
            changes.sort_by_key(|change| change.0);
            for (site, from, to) in changes {
                let (parent, child) = (&above.name, &own.label);
                // Writing to a string cannot fail.
                let _ = writeln!(text, "{parent}\t{child}\t{}\t{from}\t{to}", site + 1);
            }
        }
        text
    }

    /// The same for people, without the sequences.
    #[must_use]
    pub fn text(&self) -> Text {
        let mut text = Text::new();
        text.fact("log-likelihood", format!("{:.6}", self.lnl));
        text.fact("nodes", self.nodes.len().to_string());
        let mean = self.probability_mean();
        text.fact(
            "probability",
            format!("{mean:.4} of the best state in the mean"),
        );
        text
    }

    /// Mean over the nodes of [`AncestralSequence::probability_mean`].
    fn probability_mean(&self) -> f64 {
        let means = self.nodes.iter().map(|node| node.probability_mean);
        means.sum::<f64>() / self.nodes.len() as f64
    }
}

/// Approximate bytes of memory that `copies` of the probabilities of all states take, for a tree of
/// this number of taxa.
#[must_use]
pub fn ancestors_bytes(taxa: usize, parts: &[PartOptions], copies: u64) -> u64 {
    let states = parts.iter().map(|part| {
        let each = 16 + CELL_BYTES * part.patterns.alphabet().states().to_u64();
        part.patterns.sites().to_u64() * each
    });
    let cells = taxa.to_u64().saturating_mul(states.sum());
    cells.saturating_mul(copies) / 2
}

/// The lower end of a branch.
enum End<'s> {
    /// A taxon's number.
    Tip(usize),
    /// An inner node's sequence.
    Inner(&'s [u8]),
}

/// The sites of a partition at which two ends of a branch have different states, and these.
fn differences(part: &Part, above: &[u8], below: &End<'_>) -> Vec<(usize, String, String)> {
    let patterns = part.patterns();
    let texts = texts(patterns.alphabet());
    let mut found = Vec::new();
    let sites = patterns.site_columns().zip(patterns.site_patterns());
    for (columns, (site, pattern)) in sites {
        let at = |row: &[u8]| -> String {
            let letters = columns.iter().map(|column| row[column.to_usize()]);
            letters.map(char::from).collect()
        };
        let to = match below {
            End::Inner(row) => at(row),
            End::Tip(taxon) => {
                let mask = patterns.masks()[usize::from(patterns.codes(*taxon)[pattern])];
                // An ambiguous character shows no change.
                if mask.count_ones() != 1 {
                    continue;
                }
                texts[mask.trailing_zeros().to_usize()].clone()
            }
        };
        let from = at(above);
        if from != to {
            found.push((site, from, to));
        }
    }
    found
}

/// A partition's lines of the table.
fn lines(table: &mut String, found: &Ancestors, part: &Part, has_head: bool) {
    let texts = texts(part.patterns().alphabet());
    if has_head {
        table.push_str("Node\tSite\tState");
        for text in &texts {
            table.extend(["\tp_", text]);
        }
        table.push('\n');
    }
    for node in 0..found.nodes() {
        for (site, pattern) in part.patterns().site_patterns() {
            let each = found.probabilities(node, pattern);
            let state = &texts[most_probable(each).0];
            // Writing to a string cannot fail.
            let _ = write!(table, "{}\t{}\t{state}", name(node), site + 1);
            for p in each {
                let _ = write!(table, "\t{p:.5}");
            }
            table.push('\n');
        }
    }
}

/// State by state its characters: three of a codon.
fn texts(alphabet: Alphabet) -> Vec<String> {
    let text = |state| {
        let mut own = vec![0; alphabet.width()];
        alphabet.write(state, &mut own);
        own.into_iter().map(char::from).collect()
    };
    (0..alphabet.states()).map(text).collect()
}

/// The most probable state and its probability.
fn most_probable(probabilities: &[f64]) -> (usize, f64) {
    let each = probabilities.iter().copied().enumerate();
    each.fold(
        (0, 0.0),
        |best, one| if one.1 > best.1 { one } else { best },
    )
}

/// Of a state's probability, and of its text.
const CELL_BYTES: u64 = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::likelihood::{Lengths, Likelihood, Options};
    use crate::model::ModelName;
    use crate::msa::{Alignment, Patterns};
    use crate::newick::Newick;
    use crate::runner::Serial;

    fn likelihood(
        rows: [&[u8]; 4],
        parts: &[(&str, Vec<u32>)],
        newick: &str,
    ) -> (Likelihood<Serial>, Vec<String>) {
        let names = ["a", "b", "c", "d"].map(str::to_owned).to_vec();
        let alignment = Alignment::new(names.clone(), rows.map(<[u8]>::to_vec).to_vec()).unwrap();
        let part = |(model, columns): &(&str, Vec<u32>)| {
            let name = ModelName::parse(model, &mut |_| unreachable!()).unwrap();
            let patterns = Patterns::of_sites(&alignment, name.alphabet(), columns.clone());
            PartOptions::new(name, patterns.unwrap())
        };
        let parts = parts.iter().map(part).collect();
        let tree = Tree::from_newick(&Newick::parse(newick).unwrap(), &names).unwrap();
        let made = Likelihood::partitioned(tree, parts, Serial, Options::default());
        (made.unwrap(), names)
    }

    #[test]
    fn codons_have_three_columns_that_may_lie_apart() {
        let row: &[u8] = b"ATGNNNCAAG-GG";
        // The codons ATG, NNN, CCG and AAG, of which two are not in three columns in a row.
        let columns = vec![0, 1, 2, 3, 4, 5, 6, 11, 12, 7, 8, 9];
        let text = "((a:0.1,b:0.1):0.1,c:0.1,d:0.1);";
        let (own, names) = likelihood([row; 4], &[("GY", columns)], text);
        let mut table = String::new();
        let tree = (own.tree(), 0.0);
        let found = AncestralSequences::new(tree, &names, own.parts(), 13, Some(&mut table));
        assert_eq!(found.sites, 3);
        for node in &found.nodes {
            assert_eq!(node.sequence, "ATG---CAAG-GG", "{}", node.name);
        }
        let lines: Vec<Vec<&str>> = table.lines().map(|one| one.split('\t').collect()).collect();
        assert_eq!(
            (lines[0].len(), lines[0][3], lines[0][63]),
            (64, "p_AAA", "p_TTT")
        );
        let states: Vec<&str> = lines[1..4].iter().map(|line| line[2]).collect();
        assert_eq!(states, ["ATG", "CGG", "AAG"]);
    }

    /// Changes are where ends differ, and none where a tip says nothing.
    #[test]
    fn changes_are_on_the_branches_where_they_happened() {
        let rows: [&[u8]; 4] = [b"ACAAT", b"ACAAT", b"GCAGT", b"GCRAN"];
        let text = "((a:0.1,b:0.1):0.1,c:0.1,d:0.1);";
        let (mut own, names) = likelihood(rows, &[("JC", vec![0, 2, 4]), ("JC", vec![1, 3])], text);
        let lnl = own.evaluate().unwrap();
        let found = AncestralSequences::new((own.tree(), lnl), &names, own.parts(), 5, None);
        let table = found.mutations(own.tree(), &names, own.parts());
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines[0], "parent\tchild\tsite\tfrom\tto");
        // The first column changes once, between the two inner nodes; the fourth on the way to `c`.
        let first: Vec<&&str> = lines.iter().filter(|line| line.contains("\t1\t")).collect();
        assert_eq!(first, [&"Node1\tNode2\t1\tA\tG"]);
        let fourth: Vec<&&str> = lines.iter().filter(|line| line.contains("\t4\t")).collect();
        assert_eq!(fourth, [&"Node2\tc\t4\tA\tG"]);
        assert_eq!(lines.len(), 3, "{table}");
    }

    /// Each partition's nodes are on its own lengths.
    #[test]
    fn partitions_of_unlinked_lengths_have_their_own() {
        let rows: [&[u8]; 4] = [
            b"AAAAACCAAAGT",
            b"AAAAACCCAATT",
            b"AAAACGGGTACC",
            b"AAAACGTGTCCA",
        ];
        let halves = [("JC", (0..6).collect()), ("JC", (6..12).collect())];
        let text = "((a:0.1,b:0.1):0.1,c:0.1,d:0.1);";
        let (mut own, names) = likelihood(rows, &halves, text);
        own.set_lengths(Lengths::Unlinked);
        own.optimise(0.01).unwrap();
        let part = &own.parts()[1];
        let second = own.tree().of_part(1, part.scale());
        let alone = Ancestors::new(&second, part.patterns(), part.model(), 1.0);
        let mut table = String::new();
        let tree = (own.tree(), 0.0);
        let all = AncestralSequences::new(tree, &names, own.parts(), 12, Some(&mut table));
        assert_eq!(all.sites, 12);
        let at_12 = |line: &&str| line.starts_with("Node1\t12\t");
        let line: Vec<&str> = table.lines().find(at_12).unwrap().split('\t').collect();
        let mut sites = part.patterns().site_patterns();
        let (_, pattern) = sites.find(|(site, _)| *site == 11).unwrap();
        for (p, text) in alone.probabilities(0, pattern).iter().zip(&line[3..]) {
            assert_eq!(&format!("{p:.5}"), text);
        }
    }
}

//! The most probable sequences of a tree's inner nodes, and a table of all probabilities.

use super::{Ancestors, labelled, name};
use crate::likelihood::{Part, PartOptions};
use crate::tree::Tree;
use sidecore_bare::width::ToU64;
use sidecore_terminal::Text;
use std::fmt::Write as _;

/// An inner node's most probable sequence.
#[derive(Debug, Clone, serde::Serialize)]
pub struct AncestralSequence {
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
    pub nodes: Vec<AncestralSequence>,
}

impl AncestralSequences {
    /// On a tree with its lengths and its log-likelihood, for an alignment of `columns` columns.
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
        for part in parts {
            let found = Ancestors::new(tree, part.patterns(), part.model(), part.scale());
            if let Some(table) = &mut table {
                // Partitions may have other states: then each has a head of its own.
                let has_head = table.is_empty() || parts.len() > 1;
                lines(table, &found, part, has_head);
            }
            let alphabet = part.patterns().alphabet();
            for (site, pattern) in part.patterns().site_patterns() {
                sites += 1;
                let nodes = sequences.iter_mut().zip(&mut sums).enumerate();
                for (node, (sequence, sum)) in nodes {
                    let (state, p) = most_probable(found.probabilities(node, pattern));
                    sequence[site] = char::from(alphabet.letter(state));
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

/// A partition's lines of the table.
fn lines(table: &mut String, found: &Ancestors, part: &Part, has_head: bool) {
    let alphabet = part.patterns().alphabet();
    let letter = |state: usize| char::from(alphabet.letter(state));
    if has_head {
        table.push_str("Node\tSite\tState");
        for state in 0..alphabet.states() {
            table.extend(["\tp_", letter(state).encode_utf8(&mut [0; 4])]);
        }
        table.push('\n');
    }
    for node in 0..found.nodes() {
        for (site, pattern) in part.patterns().site_patterns() {
            let each = found.probabilities(node, pattern);
            let state = letter(most_probable(each).0);
            // Writing to a string cannot fail.
            let _ = write!(table, "{}\t{}\t{state}", name(node), site + 1);
            for p in each {
                let _ = write!(table, "\t{p:.5}");
            }
            table.push('\n');
        }
    }
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

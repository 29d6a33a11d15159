//! Models that an alignment asks for, or its parts.

use crate::{WorkflowError, refuse};
use serde::Serialize;
use sidecore_offload::Pool;
use sidecore_phylo::io::data::{At, Reader, parts_to_model};
use sidecore_phylo::likelihood::PartOptions;
use sidecore_phylo::msa::{Alignment, Alphabet, GeneticCode, Patterns};
use sidecore_phylo::selection::partitions::{
    Merge, Relaxed, SchemeSummary, Step, select_partitions,
};
use sidecore_phylo::selection::{
    Options, SelectionError, SelectionReport, likely_alphabet, select, select_for,
};
use sidecore_phylo::tree::Tree;
use sidecore_terminal::Text;
use sidecore_terminal::progress::{Shape, bar};
use std::path::Path;

/// Kinds of data, as a user names them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// By the characters.
    Auto,
    /// Nucleotides.
    Dna,
    /// Amino acids.
    Protein,
    /// Two states.
    Binary,
    /// States of which the characters say how many there are.
    Multistate,
    /// Codons.
    Codon,
}

impl Kind {
    /// All of them by name, with a line about each.
    #[rustfmt::skip] // a line each
    pub const NAMED: [(&str, &str, Self); 6] = [
        ("auto", "By the alignment's characters", Self::Auto),
        ("dna", "Nucleotides", Self::Dna),
        ("protein", "Amino acids", Self::Protein),
        ("binary", "Two states, 0 and 1", Self::Binary),
        ("multistate", "States 0 to 9, then A to Z, as of morphology", Self::Multistate),
        ("codon", "Codons, three columns each", Self::Codon),
    ];

    /// The alphabet of an alignment of this kind; codons are those of `code`. None where a
    /// character is no state of multistate data.
    #[must_use]
    pub fn alphabet(self, alignment: &Alignment, code: GeneticCode) -> Option<Alphabet> {
        Some(match self {
            Self::Auto => likely_alphabet(alignment),
            Self::Dna => Alphabet::Dna,
            Self::Protein => Alphabet::Protein,
            Self::Binary => Alphabet::Binary,
            Self::Multistate => Alphabet::Multistate(alignment.multistates()?),
            Self::Codon => Alphabet::Codon(code),
        })
    }
}

/// Schemes by which parts are merged, as a user names them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    /// A model for each part.
    None,
    /// All pairs; the best one at a time.
    Greedy,
    /// Pairs that are alike; the best one at a time.
    Rcluster,
    /// Pairs that are alike; all that gain at once.
    Rclusterf,
}

impl Scheme {
    /// All of them by name, with a line about each.
    #[rustfmt::skip] // a line each
    pub const NAMED: [(&str, &str, Self); 4] = [
        ("rclusterf", "Pairs that are alike; all that gain at once", Self::Rclusterf),
        ("rcluster", "Pairs that are alike; the best one at a time", Self::Rcluster),
        ("greedy", "All pairs; the best one at a time", Self::Greedy),
        ("none", "A model for each partition", Self::None),
    ];

    /// The scheme, of which a round tries this share of the pairs, 10 per cent unless given, and
    /// this many of them at most.
    #[must_use]
    pub fn merge(self, percent: Option<f64>, pairs_max: Option<usize>) -> Merge {
        let relaxed = |is_fast| {
            Merge::Relaxed(Relaxed {
                percent: percent.unwrap_or(PERCENT),
                pairs_max,
                is_fast,
            })
        };
        match self {
            Self::None => Merge::None,
            Self::Greedy => Merge::Greedy,
            Self::Rcluster => relaxed(false),
            Self::Rclusterf => relaxed(true),
        }
    }
}

/// Data for which models are to be chosen, as a user names them.
#[derive(Debug, Clone, Copy)]
pub struct Choice<'c> {
    /// The alignment.
    pub msa: &'c Path,
    /// Kind of data, of an alignment without parts.
    pub kind: Kind,
    /// Code of codons.
    pub code: GeneticCode,
    /// File of partitions.
    pub partitions: Option<&'c Path>,
    /// Scheme by which parts are merged.
    pub scheme: Scheme,
    /// Share of the pairs that a relaxed scheme tries in a round, in per cent.
    pub percent: Option<f64>,
    /// The most pairs that it tries.
    pub pairs_max: Option<usize>,
    /// Criterion and candidates.
    pub options: Options,
    /// The tree to fit on; one by parsimony unless given.
    pub tree: Option<&'c Path>,
    /// Seed of the parsimony tree.
    pub seed: u64,
}

/// Models that were chosen, for people and programs.
#[derive(Debug, Serialize)]
#[serde(transparent)]
pub struct Chosen {
    report: Report,
    /// Number of parts.
    #[serde(skip)]
    parts: usize,
    /// The best models, as a file of partitions.
    #[serde(skip)]
    pub lines: String,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Report {
    Whole(SelectionReport),
    Parts(SchemeSummary),
}

impl Chosen {
    /// The same for people, with at most `top` models of a whole alignment.
    #[must_use]
    pub fn text(&self, top: usize) -> Text {
        match &self.report {
            Report::Whole(report) => report.text(top),
            Report::Parts(summary) => summary.text(self.parts),
        }
    }
}

impl Choice<'_> {
    /// Reads the data and chooses; standard error shows the progress. Blocks.
    ///
    /// # Errors
    /// [`WorkflowError`].
    pub fn make(&self, reader: Reader, pool: &Pool) -> Result<Chosen, WorkflowError> {
        let bar = bar(Shape::Found("models fitted:"), 0);
        let chosen = self.choose(reader, pool, |step| match step {
            Step::Fit(fit) => {
                bar.inc(1);
                bar.set_message(format!("the last {}", fit.name));
            }
            Step::Pairs(done, all) => bar.set_message(format!("pair {done} of {all}")),
        });
        bar.finish_and_clear();
        chosen
    }

    fn choose(
        &self,
        reader: Reader,
        pool: &Pool,
        mut progress: impl FnMut(Step<'_>),
    ) -> Result<Chosen, WorkflowError> {
        let is_relaxed = matches!(self.scheme, Scheme::Rcluster | Scheme::Rclusterf);
        if !is_relaxed && (self.percent.is_some() || self.pairs_max.is_some()) {
            return refuse(
                "--rcluster and --rcluster-max are for --merge rclusterf and --merge rcluster",
            );
        }
        if self.code.number() != 1 && self.kind != Kind::Codon {
            return refuse("--code is for --data codon");
        }
        let mut alignment = reader.alignment(self.msa)?;
        let (text, file) = match self.partitions {
            None if alignment.loci().is_empty() => {
                return self.whole(&alignment, reader, pool, progress);
            }
            _ if self.kind != Kind::Auto => {
                return refuse(
                    "--data is for an alignment without parts: each line of --partitions FILE \
                     names the kind of its own",
                );
            }
            None => (alignment.lines_of_loci("auto"), self.msa),
            Some(path) => (reader.parts_text(path, &mut alignment)?, path),
        };
        let (parts, patterns) = parts_to_model(&alignment, &text, file.display())?;
        reader.findings(self.msa, &alignment, &patterns);
        let patterns: Vec<&Patterns> = patterns.iter().collect();
        let tree = self.tree(&alignment, &patterns, reader)?;
        let (merge, options) = (
            self.scheme.merge(self.percent, self.pairs_max),
            &self.options,
        );
        let found = select_partitions(
            &tree,
            &alignment,
            &parts,
            merge,
            options,
            pool,
            &mut progress,
        )?;
        let summary = found.summary(&parts, options.criterion);
        Ok(Chosen {
            report: Report::Parts(summary),
            parts: parts.len(),
            lines: found.to_lines(&parts),
        })
    }

    /// For all sites.
    fn whole(
        &self,
        alignment: &Alignment,
        reader: Reader,
        pool: &Pool,
        mut progress: impl FnMut(Step<'_>),
    ) -> Result<Chosen, WorkflowError> {
        if self.scheme != Scheme::None {
            return refuse(
                "--merge needs parts: give --partitions FILE, or a folder of loci as --msa",
            );
        }
        let Some(alphabet) = self.kind.alphabet(alignment, self.code) else {
            return refuse("a character is no state of multistate data");
        };
        let patterns = Patterns::new(alignment, alphabet).at(self.msa.display())?;
        reader.findings(self.msa, alignment, [&patterns]);
        let tree = self.tree(alignment, &[&patterns], reader)?;
        let fitted = |fit: &_| progress(Step::Fit(fit));
        let found = select(&tree, &patterns, &self.options, pool, fitted)?;
        let report = found.report(self.options.criterion, alignment.sites());
        Ok(Chosen {
            parts: 1,
            lines: report.to_line(),
            report: Report::Whole(report),
        })
    }

    /// The tree to fit on.
    fn tree(
        &self,
        alignment: &Alignment,
        patterns: &[&Patterns],
        reader: Reader,
    ) -> Result<Tree, WorkflowError> {
        let taxa = alignment.names().len();
        if taxa < 3 {
            let shown = self.msa.display();
            return refuse(format!("{shown} has {taxa} taxa: 3 are needed"));
        }
        Ok(reader.tree_to_fit_on(self.tree, alignment, patterns, self.seed)?)
    }
}

/// PartitionFinder's and IQ-TREE's default.
const PERCENT: f64 = 10.0;

/// The model of the best score for an alignment, with its name and score; standard error shows the
/// progress. Blocks.
///
/// # Errors
/// Those of the selection.
pub fn best_model(
    alignment: &Alignment,
    pool: &Pool,
) -> Result<(PartOptions, String, f64), SelectionError> {
    let bar = bar(Shape::Found("choosing a model: fitted"), 0);
    let chosen = select_for(alignment, pool, |fit| {
        bar.inc(1);
        bar.set_message(fit.name.clone());
    });
    bar.finish_and_clear();
    let (part, best) = chosen?;
    Ok((part, best.name, best.bic))
}

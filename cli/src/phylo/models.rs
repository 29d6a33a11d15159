//! `sidecore phylo models`.

use super::common;
use crate::{Outcome, output};
use anyhow::{Context, Result, ensure};
use indicatif::ProgressBar;
use sidecore_offload::Pool;
use sidecore_phylo::io::data::parts_to_model;
use sidecore_phylo::msa::{Alignment, Alphabet, GeneticCode, Patterns};
use sidecore_phylo::selection::partitions::{Merge, Relaxed, Step, select_partitions};
use sidecore_phylo::selection::{self, Criterion, Fit, SelectionReport, select};
use sidecore_phylo::tree::Tree;
use sidecore_sys::width::ToUsize;
use sidecore_terminal::progress::{Shape, bar};
use sidecore_terminal::values::{named, number};
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Alignment (PHYLIP, FASTA, NEXUS, Clustal, Stockholm, MSF, VCF or MAPLE's), plain or packed;
    /// `-` is standard input, a folder has an alignment for each locus
    #[arg(long, value_name = "FILE")]
    msa: PathBuf,
    /// Kind of data, of an alignment without partitions
    #[arg(long, default_value = "auto", value_parser = named([
        ("auto", "By the alignment's characters", Kind::Auto),
        ("dna", "Nucleotides", Kind::Dna),
        ("protein", "Amino acids", Kind::Protein),
        ("binary", "Two states, 0 and 1", Kind::Binary),
        ("multistate", "States 0 to 9, then A to Z, as of morphology", Kind::Multistate),
        ("codon", "Codons, three columns each", Kind::Codon),
    ]))]
    data: Kind,
    /// Genetic code of codons, as NCBI numbers them
    #[arg(long, value_name = "N", default_value = "1", value_parser = code)]
    code: GeneticCode,
    /// File of partitions (RAxML's lines or NEXUS sets): a model for each; of their models only
    /// the kind of data is looked at
    #[arg(long, value_name = "FILE")]
    partitions: Option<PathBuf>,
    /// Merge partitions as long as that scores better; greedy unless a scheme is named
    #[arg(
        long,
        value_name = "SCHEME",
        num_args = 0..=1,
        default_value = "none",
        default_missing_value = "greedy",
        value_parser = named([
            ("rclusterf", "Pairs that are alike; all that gain at once", Scheme::Rclusterf),
            ("rcluster", "Pairs that are alike; the best one at a time", Scheme::Rcluster),
            ("greedy", "All pairs; the best one at a time", Scheme::Greedy),
            ("none", "A model for each partition", Scheme::None),
        ])
    )]
    merge: Scheme,
    /// Share of the pairs that rcluster and rclusterf try in a round, those most alike in rate and
    /// in the spread of rates across sites; 10 unless given
    #[arg(long, value_name = "PERCENT")]
    #[arg(value_parser = number(|it| it > 0.0 && it <= 100.0, PERCENT))]
    rcluster: Option<f64>,
    /// The most pairs that they try in a round; unless given 1,000, or 10 for each partition
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rcluster_max: Option<u32>,
    /// Information criterion
    #[arg(long, default_value = "bic", value_parser = named([
        ("bic", "Bayesian information criterion", Criterion::Bic),
        ("aicc", "Akaike's, corrected for few sites", Criterion::Aicc),
        ("aic", "Akaike's", Criterion::Aic),
    ]))]
    criterion: Criterion,
    /// The most categories of free rates (+R); 0 leaves these out
    #[arg(
        long,
        value_name = "N",
        default_value = "8",
        value_parser = clap::value_parser!(u8).range(0..=10)
    )]
    free_rates_max: u8,
    /// The most classes of a mixture, of proteins: profiles (C10 to C60), stock mixtures and lists
    /// of matrices are tried with the best matrix and rates; 0 leaves mixtures out
    #[arg(
        long,
        value_name = "N",
        default_value = "0",
        value_parser = clap::value_parser!(u8).range(0..=64)
    )]
    classes_max: u8,
    /// Tree to fit on, in Newick or NEXUS
    #[arg(long, value_name = "FILE")]
    tree: Option<PathBuf>,
    /// Seed of the parsimony tree
    #[arg(long, value_name = "S", default_value = "1")]
    seed: u64,
    /// Lines of the table
    #[arg(long, value_name = "N", default_value = "10")]
    top: usize,
    /// Write the best model to this file, as a file of partitions that --model takes
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    run: common::RunArgs,
}

/// A scheme of merging, by its name.
#[derive(Clone, Copy, PartialEq)]
enum Scheme {
    None,
    Greedy,
    Rcluster,
    Rclusterf,
}

/// A kind of data.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Auto,
    Dna,
    Protein,
    Binary,
    Multistate,
    Codon,
}

fn code(text: &str) -> Result<GeneticCode, String> {
    let code = text.parse().ok().and_then(GeneticCode::new);
    code.ok_or_else(|| "1 to 6, 9 to 16 or 21 to 25".to_owned())
}

impl Args {
    pub(crate) fn run(self) -> Result<Outcome> {
        let relaxed = matches!(self.merge, Scheme::Rcluster | Scheme::Rclusterf);
        ensure!(
            relaxed || self.rcluster.is_none() && self.rcluster_max.is_none(),
            "--rcluster and --rcluster-max are for --merge rclusterf and --merge rcluster"
        );
        ensure!(
            self.code.number() == 1 || self.data == Kind::Codon,
            "--code is for --data codon"
        );
        let pool = self.run.pool()?;
        let mut alignment = common::reader().alignment(&self.msa)?;
        ensure!(
            self.data == Kind::Auto || self.partitions.is_none() && alignment.loci().is_empty(),
            "--data is for an alignment without parts: each line of --partitions FILE names the \
             kind of its own"
        );
        let options = selection::Options {
            criterion: self.criterion,
            free_rates_max: self.free_rates_max.into(),
            classes_max: self.classes_max.into(),
        };
        match &self.partitions {
            None if alignment.loci().is_empty() => {
                ensure!(
                    self.merge == Scheme::None,
                    "--merge needs parts: give --partitions FILE, or a folder of loci as --msa"
                );
                self.whole(&alignment, &options, &pool)
            }
            None => {
                let text = alignment.lines_of_loci("auto");
                self.parts(&text, &self.msa, &alignment, &options, &pool)
            }
            Some(path) => {
                let file = path.display().to_string();
                let text = common::reader().parts_text(&file, &mut alignment)?;
                self.parts(&text, path, &alignment, &options, &pool)
            }
        }
    }

    fn whole(
        &self,
        alignment: &Alignment,
        options: &selection::Options,
        pool: &Pool,
    ) -> Result<Outcome> {
        let alphabet = match self.data {
            Kind::Auto => selection::likely_alphabet(alignment),
            Kind::Dna => Alphabet::Dna,
            Kind::Protein => Alphabet::Protein,
            Kind::Binary => Alphabet::Binary,
            Kind::Multistate => {
                let states = alignment.multistates();
                Alphabet::Multistate(states.context("a character is no state of multistate data")?)
            }
            Kind::Codon => Alphabet::Codon(self.code),
        };
        let patterns = Patterns::new(alignment, alphabet);
        let patterns = patterns.with_context(|| self.msa.display().to_string())?;
        common::reader().findings(&self.msa, alignment, [&patterns]);
        let tree = self.tree(alignment, &[&patterns])?;
        // On standard error: standard output has the result alone.
        let bar = Bar::new();
        let selection = select(&tree, &patterns, options, pool, |fit| bar.fit(fit));
        bar.0.finish_and_clear();
        let report = selection?.report(options.criterion, alignment.sites());
        output::wanted(&self.output, || report.to_line())?;
        output::report(self.run.json, &report, |report: &SelectionReport| {
            report.text(self.top)
        })
    }

    fn parts(
        &self,
        text: &str,
        path: &Path,
        alignment: &Alignment,
        options: &selection::Options,
        pool: &Pool,
    ) -> Result<Outcome> {
        let (parts, patterns) = parts_to_model(alignment, text, path.display())?;
        common::reader().findings(&self.msa, alignment, &patterns);
        let patterns: Vec<&Patterns> = patterns.iter().collect();
        let tree = self.tree(alignment, &patterns)?;
        let bar = Bar::new();
        let progress = |step: Step<'_>| match step {
            Step::Fit(fit) => bar.fit(fit),
            Step::Pairs(done, all) => bar.pairs(done, all),
        };
        let merge = self.scheme();
        let scheme = select_partitions(&tree, alignment, &parts, merge, options, pool, progress);
        bar.0.finish_and_clear();
        let scheme = scheme?;
        output::wanted(&self.output, || scheme.to_lines(&parts))?;
        let (summary, text) = scheme.summary(&parts, options.criterion);
        output::report(self.run.json, &summary, |_| text)
    }

    /// The scheme of merging.
    fn scheme(&self) -> Merge {
        let relaxed = |is_fast| {
            Merge::Relaxed(Relaxed {
                percent: self.rcluster.unwrap_or(RCLUSTER_PERCENT),
                pairs_max: self.rcluster_max.map(ToUsize::to_usize),
                is_fast,
            })
        };
        match self.merge {
            Scheme::None => Merge::None,
            Scheme::Greedy => Merge::Greedy,
            Scheme::Rcluster => relaxed(false),
            Scheme::Rclusterf => relaxed(true),
        }
    }

    /// The tree to fit on.
    fn tree(&self, alignment: &Alignment, patterns: &[&Patterns]) -> Result<Tree> {
        let taxa = alignment.names().len();
        ensure!(
            taxa >= 3,
            "{} has {taxa} taxa: 3 are needed",
            self.msa.display()
        );
        let path = self.tree.as_deref();
        Ok(common::reader().tree_to_fit_on(path, alignment, patterns, self.seed)?)
    }
}

/// Progress of the fits, on standard error.
struct Bar(ProgressBar);

impl Bar {
    fn new() -> Self {
        Self(bar(Shape::Found("models fitted:"), 0))
    }

    fn fit(&self, fit: &Fit) {
        self.0.inc(1);
        self.0.set_message(format!("the last {}", fit.name));
    }

    fn pairs(&self, done: usize, all: usize) {
        self.0.set_message(format!("pair {done} of {all}"));
    }
}

const PERCENT: &str = "not a percentage above 0, up to 100";
/// PartitionFinder's and IQ-TREE's default.
const RCLUSTER_PERCENT: f64 = 10.0;

//! `sidecore phylo models`.

use super::common;
use crate::{Outcome, output};
use anyhow::{Context, Result, ensure};
use indicatif::ProgressBar;
use sidecore_offload::Pool;
use sidecore_phylo::msa::{Alignment, Alphabet, Patterns, partitions, site_ranges};
use sidecore_phylo::parsimony::parsimony_tree;
use sidecore_phylo::random::Random;
use sidecore_phylo::runner::{Runner, Serial, pool_config};
use sidecore_phylo::selection::partitions::{Part, Scheme, Step, select_partitions};
use sidecore_phylo::selection::{self, Criterion, Fit, Selection, select};
use sidecore_phylo::tree::Tree;
use sidecore_sched::Equi;
use std::path::{Path, PathBuf};

/// Arguments of `phylo models`.
#[derive(clap::Args)]
#[command(after_help = "\
Models are fitted on one fixed tree, by parsimony unless given. Those that cannot win are not \
fitted: special cases of a model whose likelihood is too low already (DNA); protein matrices that \
are far behind with all else as fitted for another; more free rates than gain. Exit status: 0 \
done, 2 something cannot be read or does not go together.")]
pub(crate) struct Args {
    /// Alignment: PHYLIP, FASTA, NEXUS, Clustal or Stockholm; plain, gzip or zstd
    #[arg(long, value_name = "FILE")]
    msa: PathBuf,
    /// Kind of data
    #[arg(long, value_enum, default_value = "auto")]
    data: Kind,
    /// File of partitions (RAxML's lines or NEXUS sets): a model for each; of their models only
    /// whether they are for DNA or protein is looked at
    #[arg(long, value_name = "FILE")]
    partitions: Option<PathBuf>,
    /// Merge partitions as long as that scores better
    #[arg(long, requires = "partitions")]
    merge: bool,
    /// Information criterion
    #[arg(long, value_enum, default_value = "bic")]
    criterion: By,
    /// The most categories of free rates (+R); 0 leaves these out
    #[arg(
        long,
        value_name = "N",
        default_value = "8",
        value_parser = clap::value_parser!(u8).range(0..=10)
    )]
    free_rates_max: u8,
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
    /// Number of engines that share the loops; one for each core unless given
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    engines: Option<u16>,
    /// Report in JSON on standard output
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Kind {
    /// By the alignment's characters
    Auto,
    /// Nucleotides
    Dna,
    /// Amino acids
    Protein,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum By {
    /// Bayesian information criterion
    Bic,
    /// Akaike's, corrected for few sites
    Aicc,
    /// Akaike's
    Aic,
}

impl By {
    fn criterion(self) -> Criterion {
        match self {
            Self::Bic => Criterion::Bic,
            Self::Aicc => Criterion::Aicc,
            Self::Aic => Criterion::Aic,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Bic => "BIC",
            Self::Aicc => "AICc",
            Self::Aic => "AIC",
        }
    }
}

impl Args {
    /// Runs the command.
    pub(crate) fn run(self) -> Result<Outcome> {
        let engines = common::engines(self.engines)?;
        if engines == 1 {
            return self.with(Serial);
        }
        let pool = Pool::start(pool_config(engines, &[], Box::new(Equi::default())))?;
        self.with(&pool)
    }

    fn with(&self, runner: impl Runner + Clone) -> Result<Outcome> {
        let alignment = common::alignment(&self.msa)?;
        let options = selection::Options {
            criterion: self.criterion.criterion(),
            free_rates_max: self.free_rates_max.into(),
        };
        match &self.partitions {
            None => self.whole(&alignment, &options, runner),
            Some(path) => self.parts(path, &alignment, &options, runner),
        }
    }

    fn whole(
        &self,
        alignment: &Alignment,
        options: &selection::Options,
        runner: impl Runner + Clone,
    ) -> Result<Outcome> {
        let alphabet = match self.data {
            Kind::Auto => alignment.likely_alphabet(),
            Kind::Dna => Alphabet::Dna,
            Kind::Protein => Alphabet::Protein,
        };
        let patterns = Patterns::new(alignment, alphabet);
        let patterns = patterns.with_context(|| self.msa.display().to_string())?;
        common::warn(&self.msa, alignment, [&patterns]);
        let tree = self.tree(alignment, &[&patterns])?;
        let bar = Bar::new();
        let selection = select(&tree, &patterns, options, runner, |fit| bar.fit(fit));
        bar.0.finish_and_clear();
        let selection = selection?;
        let best = selection.best();
        if let Some(path) = &self.output {
            let sites: Vec<u32> = (0..alignment.sites() as u32).collect();
            output::file(path, &line(&best.name, "all", &sites))?;
        }
        if self.json {
            return output::json(&Json {
                best: best.name.clone(),
                lnl: best.lnl,
                criterion: self.criterion.name(),
                sites: alignment.sites(),
                excluded: selection.excluded,
                models: selection.fits.iter().map(Model::of).collect(),
            })
            .map(|()| Outcome::Done);
        }
        output::line(&format!(
            "best model  {} (by {})",
            best.name,
            self.criterion.name()
        ))?;
        output::line(&format!(
            "fitted      {} models; {} more cannot win",
            selection.fits.len(),
            selection.excluded
        ))?;
        output::line("")?;
        self.table(&selection)?;
        Ok(Outcome::Done)
    }

    fn table(&self, selection: &Selection) -> Result<()> {
        output::line(
            "model             log-likelihood  parameters           BIC          AICc           \
             AIC",
        )?;
        for fit in selection.fits.iter().take(self.top) {
            output::line(&format!(
                "{:<16}  {:>14.3}  {:>10}  {:>12.3}  {:>12.3}  {:>12.3}",
                fit.name, fit.lnl, fit.parameters, fit.bic, fit.aicc, fit.aic
            ))?;
        }
        Ok(())
    }

    fn parts(
        &self,
        path: &Path,
        alignment: &Alignment,
        options: &selection::Options,
        runner: impl Runner + Clone,
    ) -> Result<Outcome> {
        let text = common::text(path)?;
        let lines = partitions::parse(&text, alignment.sites());
        let lines = lines.with_context(|| path.display().to_string())?;
        let mut parts = Vec::new();
        let mut patterns = Vec::new();
        for own in lines {
            let blame = || format!("{}: {}", path.display(), own.name);
            let alphabet = match common::is_auto(&own.model) {
                true => alignment.likely_alphabet(),
                false => common::model_name(&own.model)
                    .with_context(blame)?
                    .alphabet(),
            };
            let made = Patterns::of_sites(alignment, alphabet, own.sites.clone());
            patterns.push(made.with_context(blame)?);
            parts.push(Part {
                name: own.name,
                alphabet,
                sites: own.sites,
            });
        }
        common::warn(&self.msa, alignment, &patterns);
        let patterns: Vec<&Patterns> = patterns.iter().collect();
        let tree = self.tree(alignment, &patterns)?;
        let bar = Bar::new();
        let scheme = select_partitions(
            &tree,
            alignment,
            &parts,
            self.merge,
            options,
            runner,
            |step| match step {
                Step::Fit(fit) => bar.fit(fit),
                Step::Pairs(done, all) => bar.pairs(done, all),
            },
        );
        bar.0.finish_and_clear();
        let scheme = scheme?;
        if let Some(path) = &self.output {
            output::file(path, &lines_of(&scheme, &parts))?;
        }
        let subsets = scheme.subsets.iter().map(|subset| Subset {
            name: name(&subset.parts, &parts),
            sites: subset.sites.len(),
            model: subset.selection.best().name.clone(),
            lnl: subset.selection.best().lnl,
        });
        let subsets: Vec<Subset> = subsets.collect();
        if self.json {
            output::json(&SchemeJson {
                criterion: self.criterion.name(),
                lnl: scheme.lnl,
                parameters: scheme.parameters,
                sites: scheme.sites,
                score: scheme.score,
                score_before: scheme.score_before,
                subsets,
            })?;
            return Ok(Outcome::Done);
        }
        output::line(&format!(
            "{} {:.3} with {} of {} subsets (each partition by itself: {:.3})",
            self.criterion.name(),
            scheme.score,
            subsets.len(),
            parts.len(),
            scheme.score_before
        ))?;
        for subset in &subsets {
            let Subset {
                name,
                sites,
                model,
                lnl,
            } = subset;
            output::line(&format!(
                "{model:<16}  {sites:>8} sites  {lnl:>14.3}  {name}"
            ))?;
        }
        Ok(Outcome::Done)
    }

    /// The tree to fit on.
    fn tree(&self, alignment: &Alignment, patterns: &[&Patterns]) -> Result<Tree> {
        let taxa = alignment.names().len();
        ensure!(
            taxa >= 3,
            "{} has {taxa} taxa: 3 are needed",
            self.msa.display()
        );
        let Some(path) = &self.tree else {
            return Ok(parsimony_tree(patterns, None, &mut Random::new(self.seed)));
        };
        let mut trees = common::alignment_trees(path, alignment.names())?;
        let (shown, count) = (path.display(), trees.len());
        ensure!(count == 1, "{shown} has {count} trees, and one is wanted");
        Ok(trees.remove(0))
    }
}

/// Progress of the fits, on standard error.
struct Bar(ProgressBar);

impl Bar {
    fn new() -> Self {
        let bar = output::progress(0);
        if let Ok(style) = indicatif::ProgressStyle::with_template("{pos} models fitted, {msg}") {
            bar.set_style(style);
        }
        Self(bar)
    }

    fn fit(&self, fit: &Fit) {
        self.0.inc(1);
        self.0.set_message(format!("the last {}", fit.name));
    }

    fn pairs(&self, done: usize, all: usize) {
        self.0.set_message(format!("pair {done} of {all}"));
    }
}

/// A line of a file of partitions.
fn line(model: &str, name: &str, sites: &[u32]) -> String {
    let ranges = site_ranges(sites).map(|[from, to]| match from == to {
        true => from.to_string(),
        false => format!("{from}-{to}"),
    });
    let ranges: Vec<String> = ranges.collect();
    format!("{model}, {name} = {}\n", ranges.join(", "))
}

/// A scheme as a file of partitions: lengths scaled where there are several.
fn lines_of(scheme: &Scheme, parts: &[Part]) -> String {
    let scaler = if scheme.subsets.len() > 1 { "+B" } else { "" };
    let lines = scheme.subsets.iter().map(|subset| {
        let model = format!("{}{scaler}", subset.selection.best().name);
        line(&model, &name(&subset.parts, parts), &subset.sites)
    });
    lines.collect()
}

/// The name of a subset.
fn name(members: &[usize], parts: &[Part]) -> String {
    let names: Vec<&str> = members.iter().map(|&at| parts[at].name.as_str()).collect();
    names.join("_")
}

#[derive(serde::Serialize)]
struct Json {
    best: String,
    lnl: f64,
    criterion: &'static str,
    sites: usize,
    excluded: usize,
    models: Vec<Model>,
}

#[derive(serde::Serialize)]
struct Model {
    name: String,
    lnl: f64,
    parameters: usize,
    bic: f64,
    aicc: Option<f64>,
    aic: f64,
}

impl Model {
    fn of(fit: &Fit) -> Self {
        Self {
            name: fit.name.clone(),
            lnl: fit.lnl,
            parameters: fit.parameters,
            bic: fit.bic,
            // Infinite where there are too few sites.
            aicc: Some(fit.aicc).filter(|score| score.is_finite()),
            aic: fit.aic,
        }
    }
}

#[derive(serde::Serialize)]
struct SchemeJson {
    criterion: &'static str,
    lnl: f64,
    parameters: usize,
    sites: usize,
    score: f64,
    score_before: f64,
    subsets: Vec<Subset>,
}

#[derive(serde::Serialize)]
struct Subset {
    name: String,
    sites: usize,
    model: String,
    lnl: f64,
}

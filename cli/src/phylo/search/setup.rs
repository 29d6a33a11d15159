//! Setup of a run: its files read, its options checked, its identity.

use super::super::common::{self, Data};
use super::Support;
use anyhow::{Context, Result, bail, ensure};
use sidecore_phylo::analysis::job::{Searches, Starts};
use sidecore_phylo::analysis::plan::{Bootstraps, Goal, Ledger};
use sidecore_phylo::bootstrap::{CHAIN, convergence};
use sidecore_phylo::io::checkpoint::Settings;
use sidecore_phylo::io::input;
use sidecore_phylo::likelihood::PartOptions;
use sidecore_phylo::msa::{Alignment, Findings, site_ranges};
use sidecore_phylo::newick::Newick;
use sidecore_phylo::runner::Runner;
use sidecore_phylo::search::{self, Constraint};
use sidecore_phylo::tree::Tree;
use std::path::{Path, PathBuf};

/// Options that a run's results depend on.
#[derive(clap::Args)]
pub(super) struct Options {
    /// Alignment: PHYLIP, FASTA, NEXUS, Clustal or Stockholm; plain, gzip or zstd
    #[arg(long, value_name = "FILE")]
    msa: PathBuf,
    /// Model as RAxML-NG writes it, such as GTR+G, or file of partitions (RAxML's lines or NEXUS
    /// sets), or auto for the one of the best BIC
    #[arg(long, value_name = "MODEL|FILE")]
    model: String,
    /// Branch lengths of partitions: all alike (linked), each with a factor of its own (scaled), or
    /// all their own (unlinked); scaled unless given, or a partition's model has +B{…}
    #[arg(long, value_enum, value_name = "LINKAGE")]
    brlen: Option<common::Share>,
    /// Prefix of the names of all written files
    #[arg(long, value_name = "PREFIX")]
    prefix: PathBuf,
    /// Searches; 10 unless given, or as many as --start-trees has
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=100_000))]
    starts: Option<u32>,
    /// Starting trees: mixed (by parsimony and random in turn), parsimony, random, or a
    /// file of trees in Newick or NEXUS
    #[arg(long, value_name = "KIND|FILE", default_value = "mixed")]
    start_trees: String,
    /// Bootstraps: how many, or auto to stop when they have converged
    #[arg(long, value_name = "N|auto", value_parser = amount)]
    bootstraps: Option<Amount>,
    /// Make rapid bootstraps, in chains of lazy searches
    #[arg(long)]
    rapid: bool,
    /// The most bootstraps of auto
    #[arg(
        long,
        value_name = "N",
        default_value = "1000",
        value_parser = clap::value_parser!(u32).range(50..=100_000)
    )]
    bootstraps_max: u32,
    /// Searches, bootstraps until they have converged, and support
    #[arg(long)]
    all: bool,
    /// Kinds of support; fbp and tbe are of bootstraps, sh-alrt and ufboot of the
    /// alignment itself
    #[arg(
        long,
        value_enum,
        value_name = "KINDS",
        value_delimiter = ',',
        default_value = "fbp"
    )]
    support: Vec<Support>,
    /// Tree of any shape, perhaps of some taxa only, whose branches every tree must have
    #[arg(long, value_name = "FILE")]
    constraint: Option<PathBuf>,
    /// Seed of all random numbers
    #[arg(long, value_name = "S", default_value = "1")]
    seed: u64,
}

#[derive(Debug, Clone, Copy)]
enum Amount {
    Exactly(u32),
    Auto,
}

fn amount(text: &str) -> Result<Amount, String> {
    if text == "auto" {
        return Ok(Amount::Auto);
    }
    let count: Option<u32> = text.parse().ok();
    let count = count.filter(|count| *count <= 100_000);
    count
        .map(Amount::Exactly)
        .ok_or_else(|| "`auto`, or a number from 0 to 100000".to_owned())
}

/// A run, ready to begin.
pub(super) struct Setup {
    pub(super) prefix: PathBuf,
    pub(super) settings: Settings,
    pub(super) goal: Goal,
    pub(super) supports: Vec<Support>,
    pub(super) seed: u64,
    names: Vec<String>,
    sites: usize,
    pub(super) findings: Findings,
    parts: Vec<PartOptions>,
    part_names: Vec<String>,
    starts: Starts,
    search: search::Options,
    rapid: bool,
}

impl Setup {
    pub(super) fn read(args: &Options) -> Result<Self> {
        let Data {
            alignment,
            parts,
            part_names,
            findings,
        } = Data::read(&args.msa, &args.model)?;
        let lengths = common::lengths(args.brlen, &parts, &args.model)?;
        let mut settings = Settings::default();
        settings.add("version of sidecore", env!("CARGO_PKG_VERSION"));
        settings.add(
            "alignment",
            &String::from_utf8_lossy(&alignment.to_phylip()),
        );
        settings.add("--model", &model_text(&args.model)?);
        // The values include the files that a model's braces name.
        let values: Vec<String> = parts.iter().map(|part| part.model.to_string()).collect();
        settings.add("model's values at the start", &values.join(" "));
        settings.add("branch lengths", &format!("{lengths:?}"));
        settings.add("--seed", &args.seed.to_string());
        settings.add("--rapid", &args.rapid.to_string());
        let (starts, given) = starts(&args.start_trees, &alignment, &mut settings)?;
        let constraint = args.constraint.as_deref();
        let constraint = constraint.map(|path| {
            let (newick, memory) = common::newick_within(path)?;
            let inner = newick
                .nodes()
                .iter()
                .filter(|node| !node.children.is_empty());
            let need = (alignment.names().len() as u64).saturating_mul(inner.count() as u64);
            input::check("the constraint", need.saturating_mul(2), memory)?;
            settings.add("--constraint", &newick.to_string());
            Constraint::from_newick(&newick, alignment.names())
                .with_context(|| path.display().to_string())
        });
        let constraint = constraint.transpose()?;
        let count = args.starts.or(given).unwrap_or(STARTS);
        if let Some(given) = given {
            ensure!(
                count <= given,
                "--starts {count}, but {} has {given} trees",
                args.start_trees
            );
        }
        let bootstraps = match args.bootstraps {
            Some(Amount::Exactly(count)) => Bootstraps::Exactly(count),
            Some(Amount::Auto) => Bootstraps::UntilConverged,
            None if args.all => Bootstraps::UntilConverged,
            None => Bootstraps::Exactly(0),
        };
        ensure!(
            count > 0 || bootstraps != Bootstraps::Exactly(0),
            "--starts 0 without bootstraps: nothing is to be done"
        );
        Ok(Self {
            prefix: args.prefix.clone(),
            settings,
            goal: Goal {
                starts: count,
                bootstraps,
                chain: if args.rapid { CHAIN } else { 1 },
                convergence: convergence::Options {
                    most: args.bootstraps_max,
                    ..convergence::Options::default()
                },
            },
            supports: args.support.clone(),
            seed: args.seed,
            names: alignment.names().to_vec(),
            sites: alignment.sites(),
            findings,
            part_names,
            parts,
            starts,
            search: search::Options {
                constraint,
                lengths: Some(lengths),
                ..search::Options::default()
            },
            rapid: args.rapid,
        })
    }

    /// The job that does its pieces.
    pub(super) fn searches<R: Runner + Clone>(&self, runner: R) -> Searches<R> {
        Searches {
            names: self.names.clone(),
            parts: self.parts.clone(),
            search: self.search.clone(),
            starts: self.starts.clone(),
            rapid: self.rapid,
            seed: self.seed,
            runner,
        }
    }

    /// Approximate size of its files, in bytes.
    pub(super) fn bytes_about(&self) -> u64 {
        let most = match self.goal.bootstraps {
            Bootstraps::Exactly(count) => count,
            Bootstraps::UntilConverged => self.goal.convergence.most,
        };
        let labels: usize = self.names.iter().map(String::len).sum();
        // A tree has two lengths a taxon; each is in the checkpoint and in a file, starting trees
        // too.
        let tree = (labels + 32 * self.names.len()) as u64;
        4 * tree * u64::from(self.goal.starts + most) + (64 << 10)
    }

    /// Number of site patterns of all partitions.
    pub(super) fn patterns(&self) -> usize {
        self.parts.iter().map(|part| part.patterns.len()).sum()
    }

    /// A line for the log.
    pub(super) fn describe(&self, engines: usize, policy: &str) -> String {
        format!(
            "sidecore {}: {} taxa, {} sites, {} patterns, {} partitions; {} searches; \
             seed {}; {engines} engines, policy {policy}",
            env!("CARGO_PKG_VERSION"),
            self.names.len(),
            self.sites,
            self.patterns(),
            self.parts.len(),
            self.goal.starts,
            self.seed
        )
    }

    /// The best tree with SH-aLRT supports or those of ultrafast bootstraps, under its models with
    /// all their values.
    pub(super) fn alignment_support(
        &self,
        tree: &Newick,
        models: &[String],
        ufboot: bool,
        runner: impl Runner,
    ) -> Result<Newick> {
        let mut parts = Vec::new();
        for (model, part) in models.iter().zip(&self.parts) {
            parts.push(PartOptions::new(
                common::model_name(model)?,
                part.patterns.clone(),
            ));
        }
        let options = common::Alrt::new(ufboot, self.seed);
        common::alignment_support(tree, &self.names, parts, options, runner)
    }

    /// The best search's models, as lines of a file of partitions.
    pub(super) fn best_models(&self, ledger: &Ledger) -> Vec<String> {
        let models = ledger.best().map_or(&[][..], |best| &best.models);
        let lines = models.iter().zip(&self.part_names).zip(&self.parts);
        let line = |((model, name), part): ((&String, &String), &PartOptions)| {
            format!("{model}, {name} = {}", ranges(part))
        };
        lines.map(line).collect()
    }
}

/// Starting trees of searches, and how many were given.
fn starts(
    text: &str,
    alignment: &Alignment,
    settings: &mut Settings,
) -> Result<(Starts, Option<u32>)> {
    let starts = match text {
        "mixed" => Starts::Mixed,
        "parsimony" => Starts::Parsimony,
        "random" => Starts::Random,
        path if Path::new(path).is_file() => {
            settings.add("--start-trees", &common::text(Path::new(path))?);
            let newicks = common::trees(Path::new(path))?;
            let tree = |newick| Tree::from_newick(newick, alignment.names());
            let trees: Result<Vec<Tree>, _> = newicks.iter().map(tree).collect();
            let trees = trees.with_context(|| path.to_owned())?;
            let count = u32::try_from(trees.len()).context("too many trees")?;
            return Ok((Starts::Given(trees), Some(count)));
        }
        other => bail!(
            "--start-trees {other}: neither mixed, parsimony or random, nor a file that is there"
        ),
    };
    settings.add("--start-trees", text);
    Ok((starts, None))
}

/// A model's text, or that of its file.
fn model_text(model: &str) -> Result<String> {
    match Path::new(model).is_file() {
        true => common::text(Path::new(model)),
        false => Ok(model.to_owned()),
    }
}

/// A partition's sites, counted from 1, as files of partitions have them. Excluded columns are part
/// of them, since such a file must name each column.
fn ranges(part: &PartOptions) -> String {
    let sites = part.patterns.alignment_sites();
    let ranges = site_ranges(&sites).map(|[from, to]| match from == to {
        true => from.to_string(),
        false => format!("{from}-{to}"),
    });
    ranges.collect::<Vec<_>>().join(", ")
}

/// Searches where none are asked for.
const STARTS: u32 = 10;

//! Options and files that the commands share.

use super::limits;
use crate::values::{models, policies};
use crate::{Outcome, output};
use anyhow::{Context, Result, bail, ensure};
use clap::builder::TypedValueParser;
use indicatif::ProgressBar;
use sidecore_offload::{Pool, PoolConfig};
use sidecore_phylo::analysis::plan::{Ledger, Outlook};
use sidecore_phylo::analysis::supports::{
    AlignmentKind, AlignmentSupport, Progress as Event, Support,
};
use sidecore_phylo::evaluation::{Fit, SitePosterior, class_table, rate_table};
use sidecore_phylo::io::data::{Data, Reader, linkage};
use sidecore_phylo::io::files::Files;
use sidecore_phylo::likelihood::{Lengths, PartOptions};
use sidecore_phylo::msa::{Alignment, Alphabet, Findings, Patterns};
use sidecore_phylo::newick::Newick;
use sidecore_phylo::profiles;
use sidecore_phylo::runner::{Runner, pool_config};
use sidecore_phylo::selection::select_for;
use sidecore_sched::Equi;
use sidecore_sys::width::ToU64;
use sidecore_terminal::progress::{Shape, bar};
use sidecore_terminal::values::{Offered, named};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The reader of all input files, within the limits; oddities go to standard error.
pub(super) fn reader() -> Reader {
    Reader {
        memory: limits::memory(),
        warn: |line| tracing::warn!("{line}"),
    }
}

/// The data of a likelihood: an alignment, and its model.
#[derive(clap::Args)]
pub(super) struct DataArgs {
    /// Alignment (PHYLIP, FASTA, NEXUS, Clustal, Stockholm, MSF, VCF or MAPLE's), plain or packed;
    /// `-` is standard input, a folder has an alignment for each locus
    #[arg(long, value_name = "FILE")]
    pub(super) msa: PathBuf,
    /// Model as RAxML-NG writes it, such as GTR+G, or file of partitions (RAxML's lines or NEXUS
    /// sets), or auto for the one of the best BIC
    #[arg(long, value_name = "MODEL|FILE")]
    #[arg(value_parser = Offered(models), hide_possible_values = true)]
    pub(super) model: String,
}

impl DataArgs {
    /// Reads them.
    pub(super) fn read(&self) -> Result<Data> {
        data(&self.msa, &self.model)
    }

    /// The alignment, its patterns of sites in an alphabet, and what is odd about it.
    pub(super) fn patterns(&self, alphabet: Alphabet) -> Result<(Alignment, Patterns, Findings)> {
        patterns(&self.msa, alphabet)
    }

    /// The linkage of branch lengths: the one asked for, or that of the models.
    pub(super) fn linkage(&self, asked: Option<Lengths>, parts: &[PartOptions]) -> Result<Lengths> {
        linkage(asked, parts).with_context(|| self.model.clone())
    }
}

/// Engines and report of a command that computes.
#[derive(clap::Args)]
pub(super) struct RunArgs {
    /// Number of engines that share the loops; one for each core unless given
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(super) engines: Option<u16>,
    /// Report in JSON on standard output
    #[arg(long)]
    pub(super) json: bool,
}

impl RunArgs {
    /// The pool of these engines.
    pub(super) fn pool(&self) -> Result<Pool> {
        pool(self.engines)
    }
}

/// The same of a command whose result is a tree.
#[derive(clap::Args)]
pub(super) struct TreeRunArgs {
    /// Write the tree to this file, not to standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    run: RunArgs,
}

impl TreeRunArgs {
    /// The pool of these engines.
    pub(super) fn pool(&self) -> Result<Pool> {
        self.run.pool()
    }

    /// Writes and shows the tree, or its report.
    pub(super) fn deliver(&self, report: &impl serde::Serialize, tree: &str) -> Result<Outcome> {
        deliver_tree(self.output.as_deref(), self.run.json, report, tree)
    }
}

/// An alignment, its patterns of sites in an alphabet, and what is odd about it.
pub(super) fn patterns(msa: &Path, alphabet: Alphabet) -> Result<(Alignment, Patterns, Findings)> {
    let alignment = reader().alignment(msa)?;
    let patterns = Patterns::new(&alignment, alphabet);
    let patterns = patterns.with_context(|| msa.display().to_string())?;
    let findings = reader().findings(msa, &alignment, [&patterns]);
    Ok((alignment, patterns, findings))
}

/// Reads an alignment and its partitions; `--model auto` chooses one.
pub(super) fn data(msa: &Path, model: &str) -> Result<Data> {
    Ok(reader().data(msa, model, choose_model)?)
}

/// The model of the best score, under a progress bar.
pub(super) fn choose_model(alignment: &Alignment) -> Result<PartOptions> {
    let bar = bar(Shape::Found("choosing a model: fitted"), 0);
    let (part, best) = select_for(alignment, &pool(None)?, |fit| {
        bar.inc(1);
        bar.set_message(fit.name.clone());
    })?;
    bar.finish_and_clear();
    output::note!("sidecore: model {} chosen (BIC {:.2})", best.name, best.bic);
    Ok(part)
}

/// Tables of the sites.
#[derive(clap::Args)]
pub(super) struct SiteTables {
    /// Write a table of the probabilities of a mixture's classes, or of the categories of rates, a
    /// line for each site; of a search's best tree
    #[arg(long, value_name = "FILE")]
    pub(super) site_posteriors: Option<PathBuf>,
    /// Write a table of the sites' rates: the mean, and the most probable category with its rate
    #[arg(long, value_name = "FILE")]
    pub(super) site_rates: Option<PathBuf>,
}

impl SiteTables {
    /// True if a table is wanted.
    pub(super) fn any(&self) -> bool {
        self.site_posteriors.is_some() || self.site_rates.is_some()
    }

    /// Writes those that are wanted; `names` are the partitions'. Gives the files.
    pub(super) fn write(&self, sites: &[SitePosterior], names: &[String]) -> Result<Vec<PathBuf>> {
        let mut written = Vec::new();
        if let Some(path) = &self.site_posteriors {
            output::file(path, &class_table(sites, names))?;
            written.push(path.clone());
        }
        if let Some(path) = &self.site_rates {
            output::file(path, &rate_table(sites, names))?;
            written.push(path.clone());
        }
        Ok(written)
    }
}

/// Frequencies of amino acids for each site.
#[derive(clap::Args)]
pub(super) struct Pmsf {
    /// Site frequency profiles (PMSF), a line a site, as IQ-TREE's .sitefreq: with the matrix and
    /// the rates across sites of --model
    #[arg(long, value_name = "FILE", conflicts_with = "pmsf_tree")]
    pmsf: Option<PathBuf>,
    /// Guide tree: the mixture --model is fitted on it, and gives each site its profile
    #[arg(long, value_name = "FILE")]
    pmsf_tree: Option<PathBuf>,
    /// Write the guide tree's profiles to this file
    #[arg(long, value_name = "FILE", requires = "pmsf_tree")]
    pmsf_out: Option<PathBuf>,
}

impl Pmsf {
    /// True if no profiles were asked for.
    pub(super) fn is_none(&self) -> bool {
        self.pmsf.is_none() && self.pmsf_tree.is_none()
    }

    /// The profiles' text; none where none were asked for.
    pub(super) fn text(&self, of: &DataArgs, engines: Option<u16>) -> Result<Option<String>> {
        if let Some(path) = &self.pmsf {
            return Ok(Some(reader().text(path)?));
        }
        let Some(path) = &self.pmsf_tree else {
            return Ok(None);
        };
        let found = of.read()?;
        let [part] = &found.partitions.parts[..] else {
            bail!("--pmsf-tree: the alignment must have one part, under a mixture as --model");
        };
        // Refused before the fit, which may take hours.
        part.model.name().of_site_frequencies()?;
        let guide = reader().trees(path)?;
        guide.only()?;
        let tree = guide.of_taxa(found.alignment.names())?.remove(0);
        let text = profiles::of_guide_tree(tree, part.clone(), &pool(engines)?)?;
        if let Some(path) = &self.pmsf_out {
            output::file(path, &text)?;
        }
        Ok(Some(text))
    }
}

/// Ways of sharing branch lengths among partitions.
pub(super) fn linkages() -> impl TypedValueParser<Value = Lengths> {
    let scaled = "One length a branch, times a factor that is fitted for each partition";
    named([
        ("linked", "One length a branch", Lengths::Linked),
        ("scaled", scaled, Lengths::Scaled),
        (
            "unlinked",
            "Each partition has lengths of its own",
            Lengths::Unlinked,
        ),
    ])
}

/// Parameters to fit before the command's own work.
pub(super) fn fits() -> impl TypedValueParser<Value = Fit> {
    let all = "Branch lengths and the model's free parameters";
    named([
        (
            "none",
            "Nothing: the tree and the model as given",
            Fit::Nothing,
        ),
        ("branches", "Branch lengths", Fit::Branches),
        ("all", all, Fit::All),
    ])
}

/// Kinds of support.
pub(super) fn supports() -> impl TypedValueParser<Value = Support> {
    let helps = [
        "Felsenstein's bootstrap proportions",
        "Transfer bootstrap expectation",
        "SH-like approximate likelihood ratio test",
        "Posterior probability among a branch and its two alternatives (aBayes)",
        "Bootstraps of a branch and its two alternatives (local bootstrap probability)",
        "Ultrafast bootstraps, among trees that one search meets",
    ];
    let kinds = Support::ALL.into_iter().zip(helps);
    named(kinds.map(|(kind, help)| (kind.name(), help, kind)))
}

/// Refuses `--bnni` where it would do nothing.
pub(super) fn check_bnni(bnni: bool, supports: &[Support]) -> Result<()> {
    let is_used = supports.contains(&Support::Alignment(AlignmentKind::Ufboot));
    ensure!(
        !bnni || is_used,
        "--bnni refines ultrafast bootstraps: give --support ufboot"
    );
    Ok(())
}

/// The texts on a line each.
pub(super) fn lines(texts: impl IntoIterator<Item = impl std::fmt::Display>) -> String {
    let lines = texts.into_iter().map(|text| format!("{text}\n"));
    lines.collect()
}

/// A tree with supports by an alignment, under a progress bar.
pub(super) fn alignment_support(
    options: AlignmentSupport,
    newick: &Newick,
    names: &[String],
    parts: Vec<PartOptions>,
    runner: impl Runner,
) -> Result<Newick> {
    let bar = match options.kind {
        AlignmentKind::ShAlrt | AlignmentKind::ABayes | AlignmentKind::LocalBootstrap => {
            bar(Shape::Count, 0).with_message("branches")
        }
        AlignmentKind::Ufboot => bar(Shape::Found("ultrafast bootstraps: perturbation"), 0),
    };
    let found = options.on(newick, names, parts, runner, |progress| match progress {
        Event::Branches(done, all) => {
            bar.set_length(all.to_u64());
            bar.set_position(done.to_u64());
        }
        Event::Perturbations(done) => bar.set_position(done.to_u64()),
        Event::Refined(done, all) => bar.set_message(format!("{done} of {all} replicates refined")),
        // The bar is taken away while the line is written.
        Event::Unsettled(rounds) => bar.suspend(|| {
            tracing::warn!(
                "the ultrafast bootstraps have not settled after {rounds} perturbations"
            );
        }),
    });
    bar.finish_and_clear();
    Ok(found?)
}

/// Writes a tree to the file that was asked for, and shows the report as JSON with `json`, else the
/// tree, unless that went to the file.
pub(super) fn deliver_tree(
    output: Option<&Path>,
    json: bool,
    report: &impl serde::Serialize,
    tree: &str,
) -> Result<Outcome> {
    if let Some(path) = output {
        output::file(path, &format!("{tree}\n"))?;
    }
    if json {
        output::json(report)?;
    } else if output.is_none() {
        output::result(tree)?;
    }
    Ok(Outcome::Done)
}

/// Options of a run that its results do not depend on.
#[derive(clap::Args)]
pub(super) struct Running {
    /// Engines that all work and its loops share; one for each core unless given
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    engines: Option<u16>,
    /// Scheduling policy: edtlp, llp(N), hybrid(N), mgps, equi
    #[arg(long, value_name = "POLICY", default_value = "equi")]
    #[arg(value_parser = Offered(policies), hide_possible_values = true)]
    pub(super) policy: String,
    /// Begin anew, in place of what an earlier run left under the prefix
    #[arg(long)]
    pub(super) redo: bool,
    /// Seconds after which the state of a search under way is kept
    #[arg(
        long,
        value_name = "SECONDS",
        default_value = "120",
        value_parser = clap::value_parser!(u32).range(1..=86_400)
    )]
    save_every: u32,
}

impl Running {
    /// Engines of this rank, which may have these cores.
    pub(super) fn engines(&self, cpus: &[usize]) -> usize {
        match self.engines {
            Some(engines) => engines.into(),
            // A rank of a job has its share of the cores.
            None => engines(None).min(cpus.len()),
        }
    }

    /// The pool of this rank.
    pub(super) fn pool(&self, cpus: &[usize]) -> Result<PoolConfig> {
        let policy = sidecore_sched::by_name(&self.policy)?;
        Ok(pool_config(self.engines(cpus), cpus, policy))
    }

    /// Time after which the state of a search is kept.
    pub(super) fn save_every(&self) -> Duration {
        Duration::from_secs(self.save_every.into())
    }
}

/// Progress of a run on standard error, with an estimate of the time left.
pub(super) struct Progress {
    bar: ProgressBar,
    began: Instant,
    outlook: Outlook,
}

impl Progress {
    pub(super) fn new(ledger: &Ledger, shows_best: bool) -> Self {
        let [done, needed] = ledger.progress();
        let bar = bar(Shape::Count, needed.into());
        bar.set_position(done.into());
        Self {
            bar,
            began: Instant::now(),
            outlook: Outlook::new(ledger, shows_best),
        }
    }

    pub(super) fn show(&self, ledger: &Ledger, finished: bool) {
        if finished {
            let [done, needed] = ledger.progress();
            self.bar.set_length(needed.into());
            self.bar.set_position(done.into());
        }
        let elapsed_s = self.began.elapsed().as_secs_f64();
        self.bar.set_message(self.outlook.words(ledger, elapsed_s));
    }

    /// Shows what is being done in place of an estimate.
    pub(super) fn say(&self, words: String) {
        if !words.is_empty() {
            self.bar.set_message(words);
        }
    }

    pub(super) fn end(&self) {
        self.bar.finish_and_clear();
    }
}

/// Says in the log and on standard error that a run goes on with what is there, if it does.
pub(super) fn note_resumed(files: &mut Files, ledger: &Ledger) -> Result<()> {
    let resumed = ledger.all_done().count();
    if resumed > 0 || ledger.all_saved().next().is_some() {
        tracing::warn!(
            "going on with {}: {resumed} results are there",
            files.checkpoint().display()
        );
        files.log(&format!("going on: {resumed} results are there"))?;
    }
    Ok(())
}

/// Says that a signal has stopped a run, and how to go on.
pub(super) fn stopped(files: &mut Files) -> Result<Outcome> {
    files.log("stopped; all states are kept")?;
    output::note!(
        "sidecore: stopped; everything is kept in {}: give the same command again to go on",
        files.checkpoint().display()
    );
    Ok(Outcome::Stopped)
}

/// A pool of the requested number of engines.
pub(super) fn pool(asked: Option<u16>) -> Result<Pool> {
    let config = pool_config(engines(asked), &[], Box::new(Equi::default()));
    Ok(Pool::start(config)?)
}

/// Engines to start: the requested number, or one for each core up to a pool's limit. A pool
/// refuses more than its limit, and the error names it.
pub(super) fn engines(asked: Option<u16>) -> usize {
    asked.map_or_else(|| PoolConfig::default().engines, usize::from)
}

//! Reports for people and programs: of a finished run, of gene trees, and of evaluated trees.

use serde::Serialize;
use sidecore_phylo::analysis::genes::GeneRow;
use sidecore_phylo::analysis::plan::{Kind, Ledger};
use sidecore_phylo::constraint::Terrace;
use sidecore_phylo::evaluation::Evaluation;
use sidecore_phylo::msa::Findings;
use sidecore_terminal::Text;
use std::path::PathBuf;

/// Results of a run.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    best_lnl: Option<f64>,
    wall_s: f64,
    engines: usize,
    policy: String,
    bootstraps: usize,
    /// Columns in which no taxon has a character: they are left out.
    undetermined_sites: usize,
    undetermined_taxa: usize,
    identical_taxa: usize,
    /// Verdict of the last convergence test; nothing where none was made.
    converged: Option<bool>,
    tasks: Vec<Task>,
    /// The files that were written.
    pub files: Vec<PathBuf>,
}

#[derive(Debug, Clone, Serialize)]
struct Task {
    kind: Kind,
    index: u32,
    lnl: f64,
    wall_s: f64,
}

impl Report {
    /// The results in a ledger, which `engines` made in `wall_s` seconds under `policy`; `files`
    /// are those that were written.
    pub(crate) fn new(
        ledger: &Ledger,
        wall_s: f64,
        engines: usize,
        policy: &str,
        findings: &Findings,
        files: Vec<PathBuf>,
    ) -> Self {
        let tasks = ledger.outcomes().map(|outcome| Task {
            kind: outcome.kind,
            index: outcome.index,
            lnl: outcome.lnl,
            wall_s: outcome.wall_s,
        });
        Self {
            best_lnl: ledger.best().map(|best| best.lnl),
            wall_s,
            engines,
            policy: policy.to_owned(),
            bootstraps: ledger.outcomes_of(Kind::Bootstrap).count(),
            undetermined_sites: findings.undetermined_sites.len(),
            undetermined_taxa: findings.undetermined_taxa.len(),
            identical_taxa: findings.identical_taxa.len(),
            converged: ledger.verdicts().last().map(|verdict| verdict.converged),
            tasks: tasks.collect(),
            files,
        }
    }

    /// The same for people.
    #[must_use]
    pub fn text(&self) -> Text {
        let mut text = Text::new();
        if let Some(lnl) = self.best_lnl {
            text.fact("best log-likelihood", format!("{lnl:.6}"));
        }
        let searches = self.tasks.len() - self.bootstraps;
        let converged = match self.converged {
            Some(true) => " (converged)",
            Some(false) => " (not converged)",
            None => "",
        };
        let (bootstraps, wall_s, engines) = (self.bootstraps, self.wall_s, self.engines);
        text.fact(
            "done",
            format!(
                "{searches} searches, {bootstraps} bootstraps{converged}, {wall_s:.2} s on \
                 {engines} engines"
            ),
        );
        for path in &self.files {
            text.fact("written", path.display().to_string());
        }
        text
    }
}

/// Results of a run of gene trees.
#[derive(Debug, Clone, Serialize)]
pub struct GeneReport {
    /// Seconds that the run took.
    pub wall_s: f64,
    /// Engines that it had.
    pub engines: usize,
    /// Loci with fewer than three taxa, which are left out.
    pub skipped: Vec<String>,
    /// The results.
    pub loci: Vec<GeneRow>,
    /// The files that were written.
    pub files: Vec<PathBuf>,
}

impl GeneReport {
    /// The same for people.
    #[must_use]
    pub fn text(&self) -> Text {
        let mut text = Text::new();
        let lnl: f64 = self.loci.iter().map(|row| row.lnl).sum();
        text.fact("log-likelihood of all loci", format!("{lnl:.6}"));
        let (loci, wall_s, engines) = (self.loci.len(), self.wall_s, self.engines);
        text.fact(
            "done",
            format!("{loci} loci, {wall_s:.2} s on {engines} engines"),
        );
        for path in &self.files {
            text.fact("written", path.display().to_string());
        }
        text
    }
}

/// Report of the evaluation of one tree or more, for people and programs.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct EvaluationReport {
    lnl: f64,
    taxa: usize,
    /// All columns of the file.
    sites: usize,
    /// The number of these columns in which no taxon has a character: they are left out.
    undetermined_sites: usize,
    undetermined_taxa: usize,
    identical_taxa: usize,
    patterns: usize,
    models: Vec<String>,
    scales: Vec<f64>,
    tree_length: f64,
    /// Number of the best of `trees`, from 1: the fields above are of this one.
    best_tree: usize,
    pub(crate) trees: Vec<Evaluation>,
    engines: usize,
    pub(crate) wall_s: f64,
}

impl EvaluationReport {
    /// Of the evaluations of one tree or more, which `engines` made in no time yet; the data have
    /// this number of taxa, sites and patterns.
    ///
    /// # Panics
    /// When there is no evaluation.
    pub(crate) fn new(
        evaluated: Vec<Evaluation>,
        findings: &Findings,
        [taxa, sites, patterns]: [usize; 3],
        engines: usize,
    ) -> Self {
        // The first of the best, so that the file's order breaks ties.
        let mut best = 0;
        for (at, one) in evaluated.iter().enumerate() {
            if one.lnl > evaluated[best].lnl {
                best = at;
            }
        }
        let own = &evaluated[best];
        Self {
            lnl: own.lnl,
            taxa,
            sites,
            undetermined_sites: findings.undetermined_sites.len(),
            undetermined_taxa: findings.undetermined_taxa.len(),
            identical_taxa: findings.identical_taxa.len(),
            patterns,
            models: own.models.clone(),
            scales: own.scales.clone(),
            tree_length: own.tree_length,
            best_tree: best + 1,
            trees: evaluated,
            engines,
            wall_s: 0.0,
        }
    }

    /// The same for people.
    pub(crate) fn text(&self) -> Text {
        if self.trees[0].root_frequencies.is_some() {
            return self.rooted_text();
        }
        let mut text = Text::new();
        if self.trees.len() > 1 {
            for (at, tree) in self.trees.iter().enumerate() {
                let (lnl, length) = (tree.lnl, tree.tree_length);
                text.fact(
                    format!("tree {}", at + 1),
                    format!("{lnl:.6}, length {length:.6}"),
                );
            }
            text.fact("best", format!("tree {}", self.best_tree));
        }
        text.fact("log-likelihood", format!("{:.6}", self.lnl));
        for model in &self.models {
            text.fact("model", model);
        }
        let (taxa, sites, patterns) = (self.taxa, self.sites, self.patterns);
        text.fact(
            "alignment",
            format!("{taxa} taxa, {sites} sites, {patterns} patterns"),
        );
        text.fact("tree length", format!("{:.6}", self.tree_length));
        if let Some(terrace) = self.trees[self.best_tree - 1].terrace {
            text.fact("terrace", trees_of(terrace));
        }
        text
    }

    fn rooted_text(&self) -> Text {
        let mut text = Text::new();
        for (at, tree) in self.trees.iter().enumerate() {
            if self.trees.len() > 1 {
                text.fact("tree", (at + 1).to_string());
            }
            text.fact("log-likelihood", format!("{:.6}", tree.lnl));
            text.fact("model", tree.models.concat());
            let shares = tree.root_frequencies.iter().flatten();
            let shares: Vec<String> = shares.map(|share| format!("{share:.6}")).collect();
            // Those of populations would fill a screen.
            if shares.len() <= 20 {
                text.fact("root frequencies", shares.join(" "));
            }
            text.fact("tree length", format!("{:.6}", tree.tree_length));
        }
        text
    }
}

fn trees_of(terrace: Terrace) -> String {
    let least = if terrace.is_exact { "" } else { "at least " };
    match terrace.trees {
        Some(1) if terrace.is_exact => "1 tree".to_owned(),
        Some(trees) => format!("{least}{trees} trees"),
        None => format!("{least}10^{:.3} trees", terrace.trees_log10),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sidecore_phylo::analysis::plan::{Bootstraps, Goal};
    use sidecore_phylo::bootstrap::Options;

    #[test]
    fn a_report_of_nothing_has_no_best() {
        let ledger = Ledger::new(Goal {
            starts: 0,
            bootstraps: Bootstraps::Exactly(0),
            chain: 1,
            convergence: Options::default(),
        });
        let files = vec![PathBuf::from("a.bestTree")];
        let report = Report::new(&ledger, 1.5, 2, "equi", &Findings::default(), files);
        let text = report.text().render(None);
        assert!(text.starts_with("done"), "{text}");
        assert!(text.contains("0 searches, 0 bootstraps, 1.50 s on 2 engines"));
        assert!(text.ends_with("a.bestTree\n"), "{text}");
    }
}

//! The report of a finished run.

use sidecore_phylo::analysis::plan::{Kind, Ledger};
use sidecore_phylo::msa::Findings;
use sidecore_terminal::Text;
use std::path::PathBuf;

#[derive(serde::Serialize)]
pub(super) struct Json {
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
    files: Vec<PathBuf>,
}

#[derive(serde::Serialize)]
struct Task {
    kind: Kind,
    index: u32,
    lnl: f64,
    wall_s: f64,
}

impl Json {
    pub(super) fn new(
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

    pub(super) fn text(&self) -> Text {
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

//! Report of a finished run, for people and programs.

use super::plan::{Kind, Ledger};
use crate::msa::Findings;
use serde::Serialize;
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
    files: Vec<PathBuf>,
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
    #[must_use]
    pub fn new(
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::plan::{Bootstraps, Goal};
    use crate::bootstrap::Options;

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

//! Chosen models for people and programs.

use super::partitions::SchemeSummary;
use super::{Criterion, Fit, Selection};
use crate::io::partitions;
use serde::Serialize;
use sidecore_terminal::{Column, Table, Text};

/// A choice of the model of a whole alignment.
#[derive(Debug, Clone, Serialize)]
pub struct SelectionReport {
    best: String,
    lnl: f64,
    criterion: &'static str,
    sites: usize,
    excluded: usize,
    models: Vec<Fit>,
}

impl Selection {
    /// The choice by this criterion for an alignment of `sites` columns.
    #[must_use]
    pub fn report(self, criterion: Criterion, sites: usize) -> SelectionReport {
        SelectionReport {
            best: self.best().name.clone(),
            lnl: self.best().lnl,
            criterion: criterion.name(),
            sites,
            excluded: self.excluded,
            models: self.fits,
        }
    }
}

impl SelectionReport {
    /// The winner, as a file of partitions.
    #[must_use]
    pub fn to_line(&self) -> String {
        let sites: Vec<u32> = (0..).take(self.sites).collect();
        format!("{}\n", partitions::line(&self.best, "all", &sites))
    }

    /// The winner, and a table of the best `top` models.
    #[must_use]
    pub fn text(&self, top: usize) -> Text {
        let mut text = Text::new();
        text.fact(
            "best model",
            format!("{} (by {})", self.best, self.criterion),
        );
        let (fitted, excluded) = (self.models.len(), self.excluded);
        text.fact(
            "fitted",
            format!("{fitted} models; {excluded} more cannot win"),
        );
        text.line("");
        let mut table = Table::new([
            Column::left("model"),
            Column::right("log-likelihood"),
            Column::right("parameters").rank(1),
            Column::right("BIC"),
            Column::right("AICc").rank(2),
            Column::right("AIC").rank(3),
        ]);
        for fit in self.models.iter().take(top) {
            table.row([
                fit.name.clone(),
                format!("{:.3}", fit.lnl),
                fit.parameters.to_string(),
                format!("{:.3}", fit.bic),
                format!("{:.3}", fit.aicc),
                format!("{:.3}", fit.aic),
            ]);
        }
        text.table(table);
        text
    }
}

impl SchemeSummary {
    /// The score, and a row for each subset; `parts` is the number of partitions.
    #[must_use]
    pub fn text(&self, parts: usize) -> Text {
        let mut text = Text::new();
        text.line(format!(
            "{} {:.3} with {} of {parts} subsets (each partition by itself: {:.3})",
            self.criterion,
            self.score,
            self.subsets.len(),
            self.score_before
        ));
        let mut table = Table::new([
            Column::left("model"),
            Column::right("sites"),
            Column::right("log-likelihood").rank(1),
            Column::left("partitions"),
        ]);
        for subset in &self.subsets {
            table.row([
                subset.model.clone(),
                subset.sites.to_string(),
                format!("{:.3}", subset.lnl),
                subset.name.clone(),
            ]);
        }
        text.table(table);
        text
    }
}

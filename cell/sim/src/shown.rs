//! Reports as text and as pictures.

use crate::report::{FigureReport, Report, RunRow, UioRow};
use crate::tables::{Table1Row, Table2Row};
use crate::{picture, text};
use serde::Serialize;
use sidecore_plot::PlotError;
use sidecore_terminal::Text;

/// A report that can be shown.
pub trait Shown: Serialize {
    /// As text for people.
    fn text(&self) -> Text;

    /// As SVG.
    ///
    /// # Errors
    /// The drawing library's.
    fn picture(&self) -> Result<String, PlotError>;
}

impl Shown for Report<Table1Row> {
    fn text(&self) -> Text {
        text::table1(self)
    }

    fn picture(&self) -> Result<String, PlotError> {
        picture::table1(&self.machine, &self.rows)
    }
}

impl Shown for Report<Table2Row> {
    fn text(&self) -> Text {
        text::table2(self)
    }

    fn picture(&self) -> Result<String, PlotError> {
        picture::table2(&self.machine, &self.rows)
    }
}

impl Shown for Report<UioRow> {
    fn text(&self) -> Text {
        text::uio(self)
    }

    fn picture(&self) -> Result<String, PlotError> {
        picture::uio(&self.rows)
    }
}

impl Shown for FigureReport {
    fn text(&self) -> Text {
        text::figure(self.figure, &self.report)
    }

    fn picture(&self) -> Result<String, PlotError> {
        picture::figure(self.figure, &self.report.machine, &self.report.rows)
    }
}

impl Shown for Report<RunRow> {
    fn text(&self) -> Text {
        text::runs(self)
    }

    fn picture(&self) -> Result<String, PlotError> {
        let runs = self.rows.iter();
        let runs = runs.map(|row| (row.policy.as_str(), row.tasks, row.seconds));
        picture::runs(&self.machine, runs)
    }
}

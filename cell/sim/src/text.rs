//! The tables and figures as lines, for people at a terminal.
//!
//! Must stay true: every value of the model is marked as input, fitted or predicted.

use crate::figures::Point;
use crate::property::Property;
use crate::report::{Figure, Report, RunRow};
use crate::tables::{Table1Row, Table2Row};
use crate::uio::{Kind, Row};
use serde::Serialize;

pub(crate) fn table1(report: &Report<Table1Row>) -> Vec<String> {
    let mut text = Text::new(
        report,
        "one task a worker; seconds; * the model was fitted on this row",
    );
    text.line("            EDTLP                       Linux");
    text.line("workers     paper    model    error     paper    model    error   ratio, model");
    for row in &report.rows {
        text.line(&format!(
            "{:7}  {}   {}   {:8.3}",
            row.workers,
            pair(row.paper_edtlp_s, row.model_edtlp_s, row.edtlp_fitted),
            pair(row.paper_linux_s, row.model_linux_s, row.linux_fitted),
            row.model_linux_s / row.model_edtlp_s,
        ));
    }
    text.properties(&report.properties);
    text.0
}

pub(crate) fn table2(report: &Report<Table2Row>) -> Vec<String> {
    let input = "one task, loops split over 1 to N engines; seconds; + the paper's value is an \
                 input of the model, relative to one engine";
    let mut text = Text::new(report, input);
    text.line("engines     paper    model    error");
    for row in &report.rows {
        // Behind the error, which is the number that the mark warns of.
        let mark = if row.input { "+" } else { "" };
        let pair = pair(row.paper_s, row.model_s, false);
        text.line(&format!("{:7}  {pair}{mark}", row.engines));
    }
    text.properties(&report.properties);
    text.0
}

pub(crate) fn figure(figure: Figure, report: &Report<Point>) -> Vec<String> {
    let what = "seconds until all tasks are done; all predicted; hybrid: the best static number of \
                engines a loop";
    let mut text = Text::new(report, what);
    text.points(figure, &report.rows);
    text.properties(&report.properties);
    // Each with its own statements: they hold of one machine.
    for variant in &report.variants {
        text.line("");
        text.line(&variant.machine);
        text.points(figure, &variant.rows);
        text.properties(&variant.properties);
    }
    text.0
}

pub(crate) fn uio(report: &Report<Row>) -> Vec<String> {
    let mut text = Text::new(
        report,
        "the block device of the papers; + put in, * fitted, no mark: predicted",
    );
    text.line(&format!("{:60} {:>9} {:>10}  unit", "", "paper", "model"));
    for row in &report.rows {
        let paper = row
            .paper
            // A dash, not a blank: the row is there and the documents have no figure of it.
            .map_or_else(|| "-".into(), |paper| format!("{paper:.1}"));
        let mark = match row.kind {
            Kind::Input => "+",
            Kind::Fitted => "*",
            Kind::Predicted => " ",
        };
        text.line(&format!(
            "{:60} {paper:>9} {:>9.1}{mark}  {}",
            row.name, row.model, row.unit
        ));
    }
    text.properties(&report.properties);
    text.0
}

pub(crate) fn runs(report: &Report<RunRow>) -> Vec<String> {
    let mut text = Text::new(report, "seconds until all tasks are done; all predicted");
    text.line("tasks  policy         seconds  engines busy  hosts busy  live  lower bound");
    for row in &report.rows {
        text.line(&format!(
            "{:5}  {:10} {:11.2} {:11.0} % {:9.0} % {:5} {:12.2}",
            row.tasks,
            row.policy,
            row.seconds,
            100.0 * row.engines_busy,
            100.0 * row.hosts_busy,
            row.live_max,
            row.lower_bound_s
        ));
    }
    text.0
}

/// Lines of a report.
struct Text(Vec<String>);

impl Text {
    /// The first line: the machine, what the rows are, the seed.
    fn new<R: Serialize>(report: &Report<R>, what: &str) -> Self {
        let (machine, seed) = (&report.machine, report.seed);
        Self(vec![format!("{machine}; {what}; seed {seed}")])
    }

    fn line(&mut self, line: &str) {
        self.0.push(line.to_owned());
    }

    fn points(&mut self, figure: Figure, points: &[Point]) {
        let extra = match figure {
            Figure::Seven => "    mixed",
            Figure::Eight | Figure::Nine => "     mgps     equi  equi/mgps  live",
        };
        self.line(&format!(
            "tasks    edtlp   hybrid  engines{extra}  lower bound"
        ));
        for p in points {
            let extra = match figure {
                Figure::Seven => p
                    .mixed_s
                    .map_or_else(|| format!("{:>9}", "-"), |s| format!("{s:9.1}")),
                Figure::Eight | Figure::Nine => format!(
                    "{:9.1}{:9.1}{:11.3}{:6}",
                    p.mgps_s,
                    p.equi_s,
                    p.equi_s / p.mgps_s,
                    p.equi_live
                ),
            };
            self.line(&format!(
                "{:5}{:9.1}{:9.1}{:9}{extra}{:13.1}",
                p.bootstraps, p.edtlp_s, p.hybrid_s, p.hybrid_engines, p.lower_bound_s
            ));
        }
    }

    /// The statements, with their verdicts.
    fn properties(&mut self, properties: &[Property]) {
        for property in properties {
            let holds = if property.holds { "holds" } else { "FAILS" };
            self.line(&format!(
                "{holds}  {}: {:.3}, wanted at most {:.3}",
                property.text, property.value, property.limit
            ));
        }
    }
}

fn pair(paper: Option<f64>, model: f64, fitted: bool) -> String {
    let mark = if fitted { "*" } else { " " };
    match paper {
        Some(paper) => format!(
            "{paper:8.2} {model:8.2}{mark} {:+6.1} %",
            100.0 * (model / paper - 1.0)
        ),
        None => format!("{:>8} {model:8.2}{mark} {:>8}", "-", "-"),
    }
}

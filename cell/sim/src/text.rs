//! The tables and figures as text, for people at a terminal.
//!
//! Must stay true: every value of the model is marked as input, fitted or predicted.

use crate::figures::Point;
use crate::property::Property;
use crate::report::{Figure, Report, RunRow};
use crate::tables::{Table1Row, Table2Row};
use crate::uio::{Kind, Row};
use serde::Serialize;
use sidecore_terminal::{Column, Table, Text};

pub(crate) fn table1(report: &Report<Table1Row>) -> Text {
    let mut text = begin(
        report,
        "one task a worker; seconds; * the model was fitted on this row",
    );
    let mut table = Table::new([
        Column::right("workers"),
        Column::right("EDTLP, paper").rank(3),
        Column::right("model"),
        Column::right("error").rank(1),
        Column::right("Linux, paper").rank(4),
        Column::right("model"),
        Column::right("error").rank(2),
        Column::right("ratio, model").rank(5),
    ]);
    for row in &report.rows {
        let [edtlp, linux] = [
            pair(row.paper_edtlp_s, row.model_edtlp_s, row.edtlp_fitted),
            pair(row.paper_linux_s, row.model_linux_s, row.linux_fitted),
        ];
        let ratio = format!("{:.3}", row.model_linux_s / row.model_edtlp_s);
        let mut cells = vec![row.workers.to_string()];
        cells.extend(edtlp.into_iter().chain(linux).chain([ratio]));
        table.row(cells);
    }
    text.table(table);
    properties(&mut text, &report.properties);
    text
}

pub(crate) fn table2(report: &Report<Table2Row>) -> Text {
    let input = "one task, loops split over 1 to N engines; seconds; + the paper's value is an \
                 input of the model, relative to one engine";
    let mut text = begin(report, input);
    let mut table = Table::new([
        Column::right("engines"),
        Column::right("paper").rank(2),
        Column::right("model"),
        Column::right("error").rank(1),
    ]);
    for row in &report.rows {
        // Behind the error, which is the number that the mark warns of.
        let mark = if row.input { "+" } else { " " };
        let [paper, model, error] = pair(row.paper_s, row.model_s, false);
        let error = format!("{error}{mark}");
        table.row([row.engines.to_string(), paper, model, error]);
    }
    text.table(table);
    properties(&mut text, &report.properties);
    text
}

pub(crate) fn figure(figure: Figure, report: &Report<Point>) -> Text {
    let what = "seconds until all tasks are done; all predicted; hybrid: the best static number of \
                engines a loop";
    let mut text = begin(report, what);
    text.table(points(figure, &report.rows));
    properties(&mut text, &report.properties);
    // Each with its own statements: they hold of one machine.
    for variant in &report.variants {
        text.line("");
        text.line(&variant.machine);
        text.table(points(figure, &variant.rows));
        properties(&mut text, &variant.properties);
    }
    text
}

pub(crate) fn uio(report: &Report<Row>) -> Text {
    let mut text = begin(
        report,
        "the block device of the papers; + put in, * fitted, no mark: predicted",
    );
    let mut table = Table::new([
        Column::left(""),
        Column::right("paper").rank(1),
        Column::right("model"),
        Column::left("unit"),
    ]);
    for row in &report.rows {
        // A dash, not a blank: the row is there and the documents have no figure of it.
        let paper = row.paper.map(|paper| format!("{paper:.1}"));
        let mark = match row.kind {
            Kind::Input => "+",
            Kind::Fitted => "*",
            Kind::Predicted => " ",
        };
        table.row([
            row.name.to_string(),
            paper.unwrap_or_else(|| "-".into()),
            format!("{:.1}{mark}", row.model),
            row.unit.to_string(),
        ]);
    }
    text.table(table);
    properties(&mut text, &report.properties);
    text
}

pub(crate) fn runs(report: &Report<RunRow>) -> Text {
    let mut text = begin(report, "seconds until all tasks are done; all predicted");
    let mut table = Table::new([
        Column::right("tasks"),
        Column::left("policy"),
        Column::right("seconds"),
        Column::right("engines busy").rank(1),
        Column::right("hosts busy").rank(3),
        Column::right("live").rank(4),
        Column::right("lower bound").rank(2),
    ]);
    for row in &report.rows {
        table.row([
            row.tasks.to_string(),
            row.policy.clone(),
            format!("{:.2}", row.seconds),
            format!("{:.0} %", 100.0 * row.engines_busy),
            format!("{:.0} %", 100.0 * row.hosts_busy),
            row.live_max.to_string(),
            format!("{:.2}", row.lower_bound_s),
        ]);
    }
    text.table(table);
    text
}

/// A report's first line: the machine, what the rows are, the seed.
fn begin<R: Serialize>(report: &Report<R>, what: &str) -> Text {
    let (machine, seed) = (&report.machine, report.seed);
    let mut text = Text::new();
    text.line(format!("{machine}; {what}; seed {seed}"));
    text
}

fn points(figure: Figure, points: &[Point]) -> Table {
    let mut columns = vec![
        Column::right("tasks"),
        Column::right("edtlp"),
        Column::right("hybrid"),
        Column::right("engines").rank(3),
    ];
    match figure {
        Figure::Seven => columns.push(Column::right("mixed")),
        Figure::Eight | Figure::Nine => columns.extend([
            Column::right("mgps"),
            Column::right("equi"),
            Column::right("equi/mgps").rank(1),
            Column::right("live").rank(4),
        ]),
    }
    columns.push(Column::right("lower bound").rank(2));
    let mut table = Table::new(columns);
    for p in points {
        let mut cells = vec![
            p.bootstraps.to_string(),
            format!("{:.1}", p.edtlp_s),
            format!("{:.1}", p.hybrid_s),
            p.hybrid_engines.to_string(),
        ];
        match figure {
            Figure::Seven => {
                cells.push(p.mixed_s.map_or_else(|| "-".into(), |s| format!("{s:.1}")))
            }
            Figure::Eight | Figure::Nine => cells.extend([
                format!("{:.1}", p.mgps_s),
                format!("{:.1}", p.equi_s),
                format!("{:.3}", p.equi_s / p.mgps_s),
                p.equi_live.to_string(),
            ]),
        }
        cells.push(format!("{:.1}", p.lower_bound_s));
        table.row(cells);
    }
    table
}

/// The statements, with their verdicts.
fn properties(text: &mut Text, properties: &[Property]) {
    for property in properties {
        let holds = if property.holds { "holds" } else { "FAILS" };
        let line = format!(
            "{holds}  {}: {:.3}, wanted at most {:.3}",
            property.text, property.value, property.limit
        );
        text.hanging(line, "holds  ".len());
    }
}

/// The paper's figure, the model's, and the error of the latter.
fn pair(paper: Option<f64>, model: f64, fitted: bool) -> [String; 3] {
    let mark = if fitted { "*" } else { " " };
    let model_cell = format!("{model:.2}{mark}");
    match paper {
        Some(paper) => [
            format!("{paper:.2}"),
            model_cell,
            format!("{:+.1} %", 100.0 * (model / paper - 1.0)),
        ],
        None => ["-".into(), model_cell, "-".into()],
    }
}

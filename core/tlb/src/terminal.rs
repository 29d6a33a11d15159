//! A run as text for people at a terminal.

use crate::markdown::{self, number};
use crate::report::{Level, Report, bytes};
use sidecore_terminal::{Column, Table, Text};

/// The report as text for people.
#[must_use]
pub fn text(report: &Report) -> Text {
    let mut text = Text::new();
    text.lines(report.machine.lines());
    if report.quick {
        text.line("quick run: few points, a smoke run");
    }
    title(&mut text, "levels of translation");
    if report.levels.is_empty() {
        text.line("  no knee found");
    } else {
        text.table(levels(report));
    }
    if let Some(how) = checked(report) {
        text.line(format!("  loads from small pages: {how}"));
    }
    for level in &report.unclear {
        text.line(format!("  {}", markdown::unclear(level)));
    }
    for (said, measured) in report.beside_cpuid() {
        text.line(format!("  {}", markdown::beside(said, measured)));
    }
    title(&mut text, "what it means");
    for line in &report.meaning {
        text.line(format!("  {line}"));
    }
    if !report.rows.is_empty() {
        title(&mut text, "beside the document");
        let mut table = Table::new([
            Column::left(""),
            Column::right("paper"),
            Column::right("here"),
            Column::left("unit").rank(1),
        ]);
        for row in &report.rows {
            let figures = [number(Some(row.paper)), number(row.here)];
            let [paper, here] = figures;
            table.row([row.name.into(), paper, here, row.unit.to_string()]);
        }
        text.table(table);
    }
    if !report.missing.is_empty() {
        title(&mut text, "not measured");
    }
    for missing in &report.missing {
        text.line(format!("  {}: {}", missing.pages, missing.reason));
        text.line(format!("    to have them: {}", missing.command));
    }
    text.line("");
    text.line(format!("{:.1} s, core {}", report.seconds, report.core));
    text
}

fn title(text: &mut Text, title: &str) {
    text.line("");
    text.line(title);
}

fn levels(report: &Report) -> Table {
    let mut table = Table::new([
        Column::left("path"),
        Column::left("pages"),
        Column::right("entries"),
        Column::right("reach").rank(1),
        Column::right("cycles").rank(3),
        Column::right("miss"),
        Column::right("sure").rank(2),
    ]);
    for level in &report.levels {
        table.row([
            level.path.to_owned(),
            level.pages.to_string(),
            level.entries.to_string(),
            bytes(level.reach_bytes),
            format!("{:.1}", level.base_cycles),
            format!("{:+.1}", level.penalty_cycles),
            format!("{:.0} %", level.confidence * 100.0),
        ]);
    }
    table
}

/// Method by which the levels for loads were corroborated, if it is the same for all.
fn checked(report: &Report) -> Option<&str> {
    let level: &Level = report.levels.first()?;
    level
        .corroboration
        .as_ref()
        .map(|checked| checked.how.as_str())
}

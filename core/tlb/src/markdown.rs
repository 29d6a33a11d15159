//! A run as Markdown tables, ready for `docs/results`.
//!
//! Why here: figures are pasted, not retyped. Must stay true: a missing measurement is named.
//! Pure.
//! Source: own.

use crate::cpuid::CpuidLevel;
use crate::report::{Level, Report, bytes};
use sidecore_terminal::Table;

/// The whole report.
#[must_use]
pub fn render(report: &Report) -> String {
    let mut head = report.machine.lines();
    let quick = "**quick run**: few points, a smoke run and no result";
    head.extend(report.quick.then(|| quick.to_owned()));
    let method = "chases over ever more pages; steps in the curve of cycles per access";
    head.push(format!("method: {method}"));
    head.push(format!("placement: core {}", report.core));
    head.push(format!("it took {:.0} s", report.seconds));
    let mut out: String = head.iter().map(|line| format!("- {line}\n")).collect();
    out.push_str(&format!("\n{}\n", levels(report).markdown()));
    for level in &report.unclear {
        out.push_str(&format!("- {}\n", unclear(level)));
    }
    // Shown also where they disagree: hypervisors change what CPUID reports.
    for (said, measured) in report.beside_cpuid() {
        out.push_str(&format!("- {}\n", beside(said, measured)));
    }
    for line in &report.meaning {
        out.push_str(&format!("- {line}\n"));
    }
    if !report.rows.is_empty() {
        out.push_str(&format!("\n{}", rows(report).markdown()));
    }
    for missing in &report.missing {
        let (pages, reason) = (missing.pages, &missing.reason);
        out.push_str(&format!("\nNot measured: {pages}: {reason}\n"));
    }
    out
}

/// A step that is no level.
#[must_use]
pub fn unclear(level: &Level) -> String {
    format!(
        "Unclear, so not counted: {}, {}: about {} entries ({:.0} % sure); run it again on a \
         quieter machine, or without --quick.",
        level.path,
        level.pages,
        level.entries,
        level.confidence * 100.0
    )
}

/// A level as CPUID describes it, and the difference of the measured one.
#[must_use]
pub fn beside(said: &CpuidLevel, measured: Option<&Level>) -> String {
    let off = match measured {
        None => "not found".to_owned(),
        Some(level) => {
            let off = level.entries as f64 / said.entries as f64 - 1.0;
            format!("measured {}, {:+.0} %", level.entries, off * 100.0)
        }
    };
    format!("CPUID, level {}: {}; {off}", said.level, said.words())
}

fn levels(report: &Report) -> Table {
    let heads = [
        "path",
        "pages",
        "level",
        "entries",
        "reach",
        "cycles on a hit",
        "a miss costs",
        "confidence",
    ];
    let rows = report.levels.iter().map(|level| {
        vec![
            level.path.into(),
            level.pages.into(),
            level.level.to_string(),
            level.entries.to_string(),
            bytes(level.reach_bytes),
            format!("{:.1}", level.base_cycles),
            format!("+{:.1}", level.penalty_cycles),
            format!("{:.2}", level.confidence),
        ]
    });
    Table::of(&heads, rows.collect())
}

fn rows(report: &Report) -> Table {
    let heads = ["what", "paper", "here", "unit", "note"];
    let rows = report.rows.iter().map(|row| {
        vec![
            row.name.into(),
            number(Some(row.paper)),
            number(row.here),
            row.unit.into(),
            row.note.into(),
        ]
    });
    Table::of(&heads, rows.collect())
}

/// A figure or a dash; counts and large values without decimals.
#[must_use]
pub fn number(value: Option<f64>) -> String {
    match value {
        None => "-".to_owned(),
        Some(value) if value >= 100.0 || value.fract() == 0.0 => format!("{value:.0}"),
        Some(value) => format!("{value:.1}"),
    }
}

//! A run as lines for a terminal.

use crate::markdown::{self, number};
use crate::report::{Level, Report, bytes};

/// The report as lines for a terminal.
#[must_use]
pub fn lines(report: &Report) -> Vec<String> {
    let mut lines = report.machine.lines();
    if report.quick {
        lines.push("quick run: few points, a smoke run".to_owned());
    }
    lines.extend([String::new(), "levels of translation".to_owned()]);
    lines.push(
        "  path        pages                 entries    reach  cycles   miss  sure".to_owned(),
    );
    for level in &report.levels {
        lines.push(format!(
            "  {:<11} {:<20} {:>8} {:>8} {:>7.1} {:>+6.1} {:>4.0} %",
            level.path,
            level.pages,
            level.entries,
            bytes(level.reach_bytes),
            level.base_cycles,
            level.penalty_cycles,
            level.confidence * 100.0
        ));
    }
    if report.levels.is_empty() {
        lines.push("  no knee found".to_owned());
    }
    if let Some(how) = checked(report) {
        lines.push(format!("  loads from small pages: {how}"));
    }
    for level in &report.unclear {
        lines.push(format!("  {}", markdown::unclear(level)));
    }
    for (said, measured) in report.beside_cpuid() {
        lines.push(format!("  {}", markdown::beside(said, measured)));
    }
    lines.extend([String::new(), "what it means".to_owned()]);
    for line in &report.meaning {
        lines.push(format!("  {line}"));
    }
    if !report.rows.is_empty() {
        lines.extend([
            String::new(),
            "beside the document (paper / here)".to_owned(),
        ]);
    }
    for row in &report.rows {
        lines.push(format!(
            "  {:<46} {:>7} / {:>7} {}",
            row.name,
            number(Some(row.paper)),
            number(row.here),
            row.unit
        ));
    }
    if !report.missing.is_empty() {
        lines.extend([String::new(), "not measured".to_owned()]);
    }
    for missing in &report.missing {
        lines.push(format!("  {}: {}", missing.pages, missing.reason));
        lines.push(format!("    to have them: {}", missing.command));
    }
    lines.extend([
        String::new(),
        format!("{:.1} s, core {}", report.seconds, report.core),
    ]);
    lines
}

/// Method by which the levels for loads were corroborated, if it is the same for all.
fn checked(report: &Report) -> Option<&str> {
    let level: &Level = report.levels.first()?;
    level
        .corroboration
        .as_ref()
        .map(|checked| checked.how.as_str())
}

//! A run as Markdown tables, ready for `docs/results`.
//!
//! Why here: figures are pasted, not retyped. Must stay true: losses are printed like wins.
//! Pure. Source: own.

use super::report::{Better, Peer, Report, Row};
pub use super::stats::{number, percent};

/// The whole report.
#[must_use]
pub fn render(report: &Report) -> String {
    let mut out = String::new();
    for line in report.machine.lines() {
        out.push_str(&format!("- {line}\n"));
    }
    if report.quick {
        out.push_str("- **quick run**: small inputs and few rounds, a taste and no result\n");
    }
    out.push_str(&format!("- method: {}\n", report.method));
    out.push_str(&format!("- placement: {}\n", report.placement));
    for line in &report.inputs {
        out.push_str(&format!("- {line}\n"));
    }
    out.push_str(&format!("- it took {:.0} s\n", report.seconds));
    out.push_str("\n### Beside the peers\n\n");
    out.push_str("| what | peer | here | peer's | ratio | spread | wanted | |\n");
    out.push_str("|---|---|---:|---:|---:|---:|---:|---|\n");
    for peer in &report.peers {
        out.push_str(&peer_line(peer));
    }
    out.push_str("\n### Beside the papers\n\n");
    out.push_str("| what | papers | here | unit | spread | wanted | note |\n");
    out.push_str("|---|---:|---:|---|---:|---:|---|\n");
    for row in &report.rows {
        out.push_str(&row_line(row));
    }
    if !report.scaling.is_empty() {
        out.push_str("\n### 1 to N engines\n\n| what | engines | MB/s | spread |\n");
        out.push_str("|---|---:|---:|---:|\n");
    }
    for point in &report.scaling {
        let (name, engines) = (&point.name, point.engines);
        let spread = percent(point.spread);
        out.push_str(&format!(
            "| {name} | {engines} | {:.0} | {spread} |\n",
            point.mb_s
        ));
    }
    for failure in &report.failures {
        out.push_str(&format!("\n**Failed:** {failure}\n"));
    }
    out
}

fn peer_line(peer: &Peer) -> String {
    let (Some(here), Some(there), Some(ratio)) = (peer.here, peer.peer, peer.ratio) else {
        let (metric, name) = (&peer.metric, &peer.name);
        return format!("| {metric} | {name} | | | | | | {} |\n", peer.note);
    };
    let unit = peer.unit;
    format!(
        "| {} | {} | {} {unit} | {} {unit} | {ratio:.2} | {} | {} | {} |\n",
        peer.metric,
        peer.name,
        number(here),
        number(there),
        percent(peer.spread.unwrap_or(0.0)),
        wanted(peer.better, peer.target),
        standing(peer),
    )
}

fn row_line(row: &Row) -> String {
    let number_or_dash = |value: Option<f64>| value.map_or_else(|| "-".into(), number);
    format!(
        "| {} | {} | {} | {} | {} | {} | {} |\n",
        row.name,
        number_or_dash(row.paper),
        number_or_dash(row.here),
        row.unit,
        percent(row.spread),
        match row.met {
            None => wanted(row.better, row.target),
            Some(true) => format!("{}, met", wanted(row.better, row.target)),
            Some(false) => format!("{}, **missed**", wanted(row.better, row.target)),
        },
        row.note,
    )
}

/// Whether a comparison was won, and the target met.
#[must_use]
pub fn standing(peer: &Peer) -> &'static str {
    let won = peer.ratio.map(|ratio| match peer.better {
        Better::Higher => ratio >= 1.0,
        Better::Lower => ratio <= 1.0,
    });
    match (won, peer.met) {
        (None, _) => "",
        (_, Some(true)) => "met",
        (Some(true), Some(false)) => "won, but **missed**",
        (Some(false), Some(false)) => "lost, **missed**",
        (Some(true), None) => "won",
        (Some(false), None) => "lost",
    }
}

/// What is wanted, as people write it.
#[must_use]
pub fn wanted(better: Better, target: Option<f64>) -> String {
    match (better, target) {
        (_, None) => String::new(),
        (Better::Higher, Some(target)) => format!(">= {target}"),
        (Better::Lower, Some(target)) => format!("<= {target}"),
    }
}

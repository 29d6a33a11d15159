//! A report's figures for people at a terminal.
//!
//! Must stay true: losses and misses are printed like wins. Pure. Source: own.

use super::Head;
use crate::measure::stats::{number, percent};
use crate::measure::{Figures, Peer, Row, markdown};
use sidecore_terminal::{Column, Table, Text};

/// The head; `less` lists the reductions of a quick run.
#[must_use]
pub(crate) fn head(head: &Head, less: &str) -> Text {
    let mut text = Text::new();
    text.lines(head.machine.lines());
    text.line(head.noise.line().replace('*', ""));
    if head.quick {
        text.line(format!("quick run: {less}, a smoke run and no result"));
    }
    text
}

/// Adds tables of our figures with the peers' and the papers'.
pub(crate) fn figures(text: &mut Text, figures: &Figures) {
    if !figures.peers.is_empty() {
        text.line("");
        text.line("beside the peers (here : peer = ratio, spread of the ratio)");
    }
    figures.peers.iter().for_each(|it| peer(text, it));
    if !figures.rows.is_empty() {
        text.line("");
        text.line("beside the papers");
        text.table(rows(&figures.rows));
    }
}

/// Adds failures, a line each.
pub(crate) fn failures(text: &mut Text, figures: &Figures) {
    let line = |failure: &String| format!("FAILED: {failure}");
    text.lines(figures.failures.iter().map(line));
}

fn peer(text: &mut Text, peer: &Peer) {
    let (metric, name) = (&peer.metric, &peer.name);
    let (Some(here), Some(there), Some(ratio)) = (peer.here, peer.peer, peer.ratio) else {
        text.line(format!("  {metric}, {name}: {}", peer.note));
        return;
    };
    let (here, there) = (number(here), number(there));
    let spread = percent(peer.spread.unwrap_or(0.0));
    let wanted = markdown::wanted(peer.better, peer.target);
    let standing = markdown::standing(peer).replace('*', "");
    text.line(format!("  {metric}"));
    text.line(format!(
        "    {here} : {there} {} ({name}) = {ratio:.2}, {spread}  {wanted} {standing}",
        peer.unit
    ));
    if !peer.note.is_empty() {
        text.line(format!("    ({})", peer.note));
    }
}

fn rows(rows: &[Row]) -> Table {
    let mut table = Table::new([
        Column::left(""),
        Column::right("papers"),
        Column::right("here"),
        Column::left("unit").rank(2),
        Column::left("wanted").rank(1),
    ]);
    let show = |value: Option<f64>| value.map_or_else(|| "-".into(), number);
    for row in rows {
        let met = row.met.map(|met| {
            let wanted = markdown::wanted(row.better, row.target);
            format!("{wanted} {}", if met { "met" } else { "missed" })
        });
        table.row([
            row.name.to_string(),
            show(row.paper),
            show(row.here),
            row.unit.to_string(),
            met.unwrap_or_default(),
        ]);
    }
    table
}

//! A report's figures for people at a terminal.
//!
//! Must stay true: losses and misses are printed like wins. Pure. Source: own.

use super::Head;
use crate::measure::stats::{number, percent};
use crate::measure::{Figures, Peer, Row, markdown};

/// The head; `less` lists the reductions of a quick run.
#[must_use]
pub(crate) fn head(head: &Head, less: &str) -> String {
    let mut out = String::new();
    for line in head.machine.lines() {
        out.push_str(&format!("{line}\n"));
    }
    out.push_str(&format!("{}\n", head.noise.line().replace('*', "")));
    if head.quick {
        out.push_str(&format!("quick run: {less}, a smoke run and no result\n"));
    }
    out
}

/// Tables of our figures with the peers' and the papers'.
#[must_use]
pub(crate) fn figures(figures: &Figures) -> String {
    let mut out = String::new();
    if !figures.peers.is_empty() {
        out.push_str("\nbeside the peers (here : peer = ratio, spread of the ratio)\n");
    }
    out.extend(figures.peers.iter().map(peer));
    if !figures.rows.is_empty() {
        out.push_str("\nbeside the papers (papers / here)\n");
    }
    out.extend(figures.rows.iter().map(row));
    out
}

/// Failures, a line each.
#[must_use]
pub(crate) fn failures(figures: &Figures) -> String {
    let line = |failure: &String| format!("FAILED: {failure}\n");
    figures.failures.iter().map(line).collect()
}

fn peer(peer: &Peer) -> String {
    let (metric, name) = (&peer.metric, &peer.name);
    let (Some(here), Some(there), Some(ratio)) = (peer.here, peer.peer, peer.ratio) else {
        return format!("  {metric}, {name}: {}\n", peer.note);
    };
    let (here, there) = (number(here), number(there));
    let spread = percent(peer.spread.unwrap_or(0.0));
    let wanted = markdown::wanted(peer.better, peer.target);
    let standing = markdown::standing(peer).replace('*', "");
    let note = match peer.note.is_empty() {
        true => String::new(),
        false => format!("\n    ({})", peer.note),
    };
    format!(
        "  {metric}\n    {here} : {there} {} ({name}) = {ratio:.2}, {spread}  {wanted} \
         {standing}{note}\n",
        peer.unit
    )
}

fn row(row: &Row) -> String {
    let show = |value: Option<f64>| value.map_or_else(|| "-".into(), number);
    let met = row.met.map_or_else(String::new, |met| {
        let wanted = markdown::wanted(row.better, row.target);
        format!("  {wanted} {}", if met { "met" } else { "missed" })
    });
    let (paper, here) = (show(row.paper), show(row.here));
    format!(
        "  {:<58} {paper:>8} / {here:>8} {}{met}\n",
        row.name, row.unit
    )
}

//! A bench's figures, printed for people at a terminal.
//!
//! Why here: every bench is printed alike. Must stay true: losses and misses are printed like wins;
//! results alone go to standard output. Source: own.

pub(crate) mod picture;

use crate::output;
use anyhow::Result;
use sidecore_measure::stats::{number, percent};
use sidecore_measure::{Figures, markdown};

/// Prints ours beside the peers' and the papers'.
pub(crate) fn print(figures: &Figures) -> Result<()> {
    if !figures.peers.is_empty() {
        output::line("\nbeside the peers (here : peer = ratio, spread of the ratio)")?;
    }
    for peer in &figures.peers {
        let (metric, name) = (&peer.metric, &peer.name);
        let (Some(here), Some(there), Some(ratio)) = (peer.here, peer.peer, peer.ratio) else {
            output::line(&format!("  {metric}, {name}: {}", peer.note))?;
            continue;
        };
        let (here, there) = (number(here), number(there));
        let spread = percent(peer.spread.unwrap_or(0.0));
        let wanted = markdown::wanted(peer.better, peer.target);
        let standing = markdown::standing(peer).replace('*', "");
        output::line(&format!(
            "  {metric}\n    {here} : {there} {} ({name}) = {ratio:.2}, {spread}  {wanted} {}",
            peer.unit, standing
        ))?;
    }
    if !figures.rows.is_empty() {
        output::line("\nbeside the papers (papers / here)")?;
    }
    for row in &figures.rows {
        let show = |value: Option<f64>| value.map_or_else(|| "-".into(), number);
        let met = match row.met {
            None => String::new(),
            Some(met) => {
                let wanted = markdown::wanted(row.better, row.target);
                format!("  {wanted} {}", if met { "met" } else { "missed" })
            }
        };
        output::line(&format!(
            "  {:<58} {:>8} / {:>8} {}{met}",
            row.name,
            show(row.paper),
            show(row.here),
            row.unit
        ))?;
    }
    Ok(())
}

/// Prints what went wrong, if anything did.
pub(crate) fn print_failures(figures: &Figures) -> Result<()> {
    for failure in &figures.failures {
        output::line(&format!("FAILED: {failure}"))?;
    }
    Ok(())
}

//! A bench's figures: where they go, and how they are printed for people at a terminal.
//!
//! Why here: every bench is printed alike. Must stay true: losses and misses are printed like wins;
//! results alone go to standard output; a place that cannot be written is said before minutes are
//! spent. Source: own.

pub(crate) mod picture;

use crate::{Outcome, output};
use anyhow::Result;
use serde::Serialize;
use sidecore_measure::stats::{number, percent};
use sidecore_measure::{Figures, markdown};
use std::path::PathBuf;

/// Files that a bench is asked for.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Files {
    /// Write every sample there
    #[arg(long, value_name = "FILE")]
    tsv: Option<PathBuf>,
    /// Draw the figures there
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

impl Files {
    /// Makes them, empty: to be called before anything is measured.
    pub(crate) fn begin(&self) -> Result<()> {
        for path in [&self.tsv, &self.svg].into_iter().flatten() {
            output::file(path, "")?;
        }
        Ok(())
    }

    /// Fills them.
    pub(crate) fn write(
        &self,
        tsv: impl FnOnce() -> String,
        svg: impl FnOnce() -> Result<String>,
    ) -> Result<()> {
        if let Some(path) = &self.tsv {
            output::file(path, &tsv())?;
        }
        if let Some(path) = &self.svg {
            output::file(path, &svg()?)?;
        }
        Ok(())
    }
}

/// What a bench is asked for.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Outputs {
    /// Report in JSON on standard output
    #[arg(long, conflicts_with = "markdown")]
    json: bool,
    /// Report as Markdown tables on standard output
    #[arg(long)]
    markdown: bool,
    #[command(flatten)]
    pub(crate) files: Files,
}

impl Outputs {
    /// Prints a report in the form that was asked for.
    pub(crate) fn print<R: Serialize>(
        &self,
        report: &R,
        markdown: impl FnOnce(&R) -> String,
        people: impl FnOnce(&R) -> Result<()>,
    ) -> Result<()> {
        if self.json {
            output::json(report)
        } else if self.markdown {
            output::line(markdown(report).trim_end())
        } else {
            people(report)
        }
    }
}

/// How a bench ended with these failures.
pub(crate) fn outcome(failures: &[String]) -> Outcome {
    match failures.is_empty() {
        true => Outcome::Done,
        false => Outcome::Problem,
    }
}

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

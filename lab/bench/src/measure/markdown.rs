//! Figures as Markdown tables, ready for `docs/results`.
//!
//! Why here: figures are pasted, not retyped. Must stay true: losses are printed like wins; a run's
//! machine, load, method and placement stand above its figures.
//! Pure. Source: own.
//!
//! ```
//! use sidecore_bench::measure::Better;
//! use sidecore_bench::measure::markdown::wanted;
//!
//! assert_eq!(wanted(Better::Lower, Some(1.5)), "<= 1.5");
//! ```

use super::quiet::Noise;
use super::report::{Better, Peer, Row};
use super::stats::{number, percent};
use super::{Machine, Table};

/// The head of a report: machine, load, method, placement.
#[derive(Debug, Clone, Copy)]
pub struct Head<'r> {
    /// The machine.
    pub machine: &'r Machine,
    /// For a quick run: the reductions against a full one.
    pub quick: Option<&'r str>,
    /// Rounds, and the order within them.
    pub method: &'r str,
    /// Threads and their cores.
    pub placement: &'r str,
    /// Foreign load, if it was watched.
    pub noise: Option<Noise>,
    /// Inputs, a line each.
    pub inputs: &'r [String],
    /// Seconds that the run took.
    pub seconds: f64,
}

impl Head<'_> {
    /// The head as a Markdown list.
    #[must_use]
    pub fn text(&self) -> String {
        let mut lines = self.machine.lines();
        let smoke = |less| format!("**quick run**: {less}, a smoke run and no result");
        lines.extend(self.quick.map(smoke));
        lines.push(format!("method: {}", self.method));
        lines.push(format!("placement: {}", self.placement));
        lines.extend(self.noise.map(|noise| noise.line()));
        lines.extend_from_slice(self.inputs);
        lines.push(format!("it took {:.0} s", self.seconds));
        lines.iter().map(|line| format!("- {line}\n")).collect()
    }
}

/// Failures of the run, below the figures.
#[must_use]
pub fn failures(failures: &[String]) -> String {
    let line = |failure: &String| format!("\n**Failed:** {failure}\n");
    failures.iter().map(line).collect()
}

/// Our figures next to the peers'.
#[must_use]
pub fn peers(peers: &[Peer]) -> Table {
    let heads = [
        "what", "peer", "here", "peer's", "ratio", "spread", "wanted", "",
    ];
    Table::of(&heads, peers.iter().map(peer_cells).collect())
}

/// Our figures next to the papers'.
#[must_use]
pub fn rows(rows: &[Row]) -> Table {
    let heads = ["what", "papers", "here", "unit", "spread", "wanted", "note"];
    Table::of(&heads, rows.iter().map(row_cells).collect())
}

fn peer_cells(peer: &Peer) -> Vec<String> {
    let (metric, name) = (peer.metric.clone(), peer.name.clone());
    // What could not be measured has a line all the same: its note says why.
    let (Some(here), Some(there), Some(ratio)) = (peer.here, peer.peer, peer.ratio) else {
        let empty = || String::new();
        return vec![
            metric,
            name,
            empty(),
            empty(),
            empty(),
            empty(),
            empty(),
            peer.note.clone(),
        ];
    };
    let unit = peer.unit;
    let standing = standing(peer);
    vec![
        metric,
        name,
        format!("{} {unit}", number(here)),
        format!("{} {unit}", number(there)),
        format!("{ratio:.2}"),
        percent(peer.spread.unwrap_or(0.0)),
        wanted(peer.better, peer.target),
        // The standing first: it is what a reader looks for.
        match peer.note.is_empty() {
            true => standing.into(),
            false => format!("{standing}; {}", peer.note),
        },
    ]
}

fn row_cells(row: &Row) -> Vec<String> {
    let number_or_dash = |value: Option<f64>| value.map_or_else(|| "-".into(), number);
    vec![
        row.name.clone(),
        number_or_dash(row.paper),
        number_or_dash(row.here),
        row.unit.into(),
        percent(row.spread),
        match row.met {
            None => wanted(row.better, row.target),
            Some(true) => format!("{}, met", wanted(row.better, row.target)),
            Some(false) => format!("{}, **missed**", wanted(row.better, row.target)),
        },
        row.note.clone(),
    ]
}

/// `won` or `lost`, and the target `met` or `missed`.
#[must_use]
pub fn standing(peer: &Peer) -> &'static str {
    let won = peer.ratio.map(|ratio| peer.better.holds(ratio, 1.0));
    match (won, peer.met) {
        (None, _) => "",
        (_, Some(true)) => "met",
        (Some(true), Some(false)) => "won, but **missed**",
        (Some(false), Some(false)) => "lost, **missed**",
        (Some(true), None) => "won",
        (Some(false), None) => "lost",
    }
}

/// The target in words: `<= 1.5`.
#[must_use]
pub fn wanted(better: Better, target: Option<f64>) -> String {
    match (better, target) {
        (_, None) => String::new(),
        (Better::Higher, Some(target)) => format!(">= {target}"),
        (Better::Lower, Some(target)) => format!("<= {target}"),
    }
}

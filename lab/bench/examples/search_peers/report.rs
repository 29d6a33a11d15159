//! Samples, and their tables.

use crate::peers::{OURS, PEERS, RAXML_NG};
use std::fmt::{self, Write};

/// One search. NaN where a program was ended by its limit.
pub(crate) struct Row {
    pub(crate) set: String,
    pub(crate) taxa: usize,
    pub(crate) patterns: usize,
    pub(crate) model: String,
    pub(crate) program: String,
    pub(crate) seed: u64,
    pub(crate) wall_s: f64,
    pub(crate) cpu_s: f64,
    pub(crate) rss_mib: f64,
    pub(crate) reported: f64,
    pub(crate) fitted: f64,
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}\t{}\t{}\t{}\t{}\t{}\t{:.3}\t{:.2}\t{:.0}\t{:.4}\t{:.4}",
            self.set,
            self.taxa,
            self.patterns,
            self.model,
            self.program,
            self.seed,
            self.wall_s,
            self.cpu_s,
            self.rss_mib,
            self.reported,
            self.fitted
        )
    }
}

impl Row {
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let fields: Vec<&str> = line.split('\t').collect();
        let number = |at: usize| fields.get(at)?.parse::<f64>().ok();
        Some(Self {
            set: fields[0].to_owned(),
            taxa: number(1)? as usize,
            patterns: number(2)? as usize,
            model: fields.get(3)?.to_string(),
            program: fields.get(4)?.to_string(),
            seed: number(5)? as u64,
            wall_s: number(6)?,
            cpu_s: number(7)?,
            rss_mib: number(8)?,
            reported: number(9)?,
            fitted: number(10)?,
        })
    }
}

/// The machine's load averages.
pub(crate) fn load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace()
        .take(3)
        .collect::<Vec<_>>()
        .join(" ")
}

/// Results of one program on one set.
struct Side {
    runs: usize,
    limit: bool,
    best: f64,
    middle: f64,
    worst: f64,
    cpu_s: f64,
    rss_mib: f64,
}

impl Side {
    fn new(rows: &[&Row], program: &str) -> Option<Self> {
        let own: Vec<&&Row> = rows.iter().filter(|row| row.program == program).collect();
        if own.is_empty() {
            return None;
        }
        let sorted = |of: fn(&Row) -> f64| {
            let mut numbers: Vec<f64> = own.iter().map(|row| of(row)).collect();
            numbers.sort_by(f64::total_cmp);
            numbers
        };
        let lnl: Vec<f64> = sorted(|row| row.fitted);
        let lnl: Vec<f64> = lnl.into_iter().filter(|lnl| !lnl.is_nan()).collect();
        let at = |numbers: &[f64], at: usize| numbers.get(at).copied().unwrap_or(f64::NAN);
        let cpu = sorted(|row| row.cpu_s);
        Some(Self {
            runs: own.len(),
            limit: lnl.len() < own.len(),
            best: at(&lnl, lnl.len().saturating_sub(1)),
            middle: at(&lnl, lnl.len() / 2),
            worst: at(&lnl, 0),
            cpu_s: 0.5 * (cpu[(cpu.len() - 1) / 2] + cpu[cpu.len() / 2]),
            rss_mib: sorted(|row| row.rss_mib)[own.len() - 1],
        })
    }

    /// Seconds; a run that was ended by its limit would have taken more.
    fn seconds(&self) -> String {
        let sign = if self.limit { "> " } else { "" };
        let digits = if self.cpu_s < 10.0 { 2 } else { 0 };
        format!("{sign}{:.digits$}", self.cpu_s)
    }
}

/// All tables, and the outcome of the claims.
pub(crate) fn tables(rows: &[Row]) -> String {
    let mut names: Vec<&str> = Vec::new();
    for row in rows {
        if !names.contains(&row.set.as_str()) {
            names.push(&row.set);
        }
    }
    let mut text = String::from(
        "\n| set | taxa × patterns | model | best lnL | ours: best, median, worst | within 0.5 |",
    );
    let mut times = String::from("\n| set | ours, s |");
    for peer in PEERS {
        let _ = write!(text, " {peer} |");
        let _ = write!(times, " {peer}, s | times ours |");
    }
    let _ = writeln!(
        text,
        "\n|---|---:|---|---:|---:|---:|{}",
        "---:|".repeat(PEERS.len())
    );
    let _ = writeln!(
        times,
        " MiB: ours | {} |\n|---|---:|{}",
        PEERS.join(" | "),
        "---:|".repeat(3 * PEERS.len() + 1)
    );
    let mut claims = [
        Claim::new("best log-likelihood at most 0.5 below the better peer's"),
        Claim::new("at least 4 times as fast as RAxML 8"),
        Claim::new("at least 2 times as fast as IQ-TREE 2"),
    ];
    for name in names {
        let own: Vec<&Row> = rows.iter().filter(|row| row.set == name).collect();
        let Some(ours) = Side::new(&own, OURS) else {
            continue;
        };
        let peers = PEERS.map(|program| Side::new(&own, program));
        let better = peers
            .iter()
            .filter_map(|side| side.as_ref().map(|side| side.best));
        let better = better.fold(f64::NAN, f64::max);
        let best = ours.best.max(better);
        let below = |lnl: f64| match lnl - best {
            below if below.is_nan() => "–".to_owned(),
            below if below > -0.005 => "0".to_owned(),
            below => format!("−{:.2}", -below),
        };
        let near = |row: &&&Row| row.program == OURS && row.fitted > best - 0.5;
        let peer_lnl = |side: &Option<Side>| match side {
            Some(side) => below(side.best),
            None => "–".to_owned(),
        };
        let row = own[0];
        let _ = writeln!(
            text,
            "| {name} | {} × {} | {} | {best:.2} | {}, {}, {} | {} of {} | {} |",
            row.taxa,
            row.patterns,
            row.model,
            below(ours.best),
            below(ours.middle),
            below(ours.worst),
            own.iter().filter(near).count(),
            ours.runs,
            peers.each_ref().map(peer_lnl).join(" | "),
        );
        if !better.is_nan() {
            claims[0].say(name, ours.best > better - 0.5);
        }
        let _ = write!(times, "| {name} | {} |", ours.seconds());
        for (number, side) in peers.iter().enumerate() {
            let Some(side) = side else {
                times.push_str(" – | – |");
                continue;
            };
            let ratio = side.cpu_s / ours.cpu_s.max(0.01);
            let sign = if side.limit { "> " } else { "" };
            let _ = write!(times, " {} | {sign}{ratio:.1} |", side.seconds());
            // RAxML-NG has no claim: its figures are only shown next to ours.
            if let Some(&factor) = FACTORS.get(number)
                && (ratio >= factor || !side.limit)
            {
                claims[1 + number].say(name, ratio >= factor);
            }
        }
        let memory = |side: &Option<Side>| match side {
            Some(side) if side.rss_mib.is_finite() => format!("{:.0}", side.rss_mib),
            _ => "–".to_owned(),
        };
        let _ = writeln!(
            times,
            " {:.0} | {} |",
            ours.rss_mib,
            peers.each_ref().map(memory).join(" | ")
        );
    }
    let claims: String = claims.iter().map(Claim::line).collect();
    text + &times + "\n" + &claims + &beside_raxml_ng(rows)
}

/// Medians compared with RAxML-NG's, and the promise for them; empty where it did not run.
fn beside_raxml_ng(rows: &[Row]) -> String {
    let mut names: Vec<&str> = rows.iter().map(|row| row.set.as_str()).collect();
    names.dedup();
    let mut text = String::from(
        "\n| set | runs | median lnL: ours | RAxML-NG | median CPU, s: ours | RAxML-NG | \
         times as fast | MiB: ours | RAxML-NG | ours / RAxML-NG |\n|---|---:|---:|---:|---:|---:|\
         ---:|---:|---:|---:|\n",
    );
    let mut claims = [
        Claim::new("median log-likelihood at most 0.05 below RAxML-NG's"),
        Claim::new("at most a third of RAxML-NG's CPU time on DNA, half of it on proteins"),
        Claim::new("at most 1.5 times RAxML-NG's memory"),
    ];
    let mut any = false;
    for name in names {
        let own: Vec<&Row> = rows.iter().filter(|row| row.set == name).collect();
        let sides = [OURS, RAXML_NG].map(|program| Side::new(&own, program));
        let [Some(ours), Some(theirs)] = sides else {
            continue;
        };
        any = true;
        let faster = theirs.cpu_s / ours.cpu_s.max(0.01);
        let memory = ours.rss_mib / theirs.rss_mib;
        let _ = writeln!(
            text,
            "| {name} | {}, {} | {:.2} | {:.2} | {} | {} | {faster:.1} | {:.0} | {:.0} | \
             {memory:.2} |",
            ours.runs,
            theirs.runs,
            ours.middle,
            theirs.middle,
            ours.seconds(),
            theirs.seconds(),
            ours.rss_mib,
            theirs.rss_mib,
        );
        let wanted = if own[0].model.starts_with("GTR") {
            3.0
        } else {
            2.0
        };
        claims[0].say(name, ours.middle > theirs.middle - 0.05);
        claims[1].say(name, faster >= wanted);
        claims[2].say(name, memory <= 1.5);
    }
    if !any {
        return String::new();
    }
    let claims: String = claims.iter().map(Claim::line).collect();
    text + "\n" + &claims
}

/// The claims of speed, over the first of [`PEERS`].
const FACTORS: [f64; 2] = [4.0, 2.0];

/// A promise, and the sets on which it held.
struct Claim {
    what: &'static str,
    held: usize,
    not: Vec<String>,
}

impl Claim {
    fn new(what: &'static str) -> Self {
        Self {
            what,
            held: 0,
            not: Vec::new(),
        }
    }

    fn say(&mut self, set: &str, held: bool) {
        match held {
            true => self.held += 1,
            false => self.not.push(set.to_owned()),
        }
    }

    fn line(&self) -> String {
        let all = self.held + self.not.len();
        let not = match self.not.is_empty() {
            true => String::new(),
            false => format!("; not on {}", self.not.join(", ")),
        };
        format!("- {}: on {} of {all} sets{not}\n", self.what, self.held)
    }
}

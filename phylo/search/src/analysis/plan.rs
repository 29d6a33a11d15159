//! The ledger of an analysis: its pieces of work, which are done, and what comes next.
//!
//! Why here: one ledger serves one process and many, a first run and a resumed one. Searches come
//! before bootstraps: they take longer, and long pieces at the end leave cores idle. Where
//! bootstraps end by themselves, the next [`Options::every`] are handed out while the test waits
//! for the last replicates of a block, so that no worker is idle. If the test says that there are
//! enough, the surplus is dropped.
//! Must stay true: the final number of bootstraps depends on their trees alone, not on the order in
//! which they arrived. Pure: no clock, no thread, no I/O.
//!
//! ```
//! use sidecore_phylo::analysis::plan::{Bootstraps, Goal, Kind, Ledger, Next};
//! use sidecore_phylo::bootstrap::Options;
//!
//! let mut ledger = Ledger::new(Goal {
//!     starts: 1,
//!     bootstraps: Bootstraps::Exactly(20),
//!     chain: 10,
//!     convergence: Options::default(),
//! });
//! let Next::Piece(search) = ledger.take_next() else { panic!("a search is first") };
//! assert_eq!((search.kind, search.count), (Kind::Search, 1));
//! let Next::Piece(chain) = ledger.take_next() else { panic!("then bootstraps") };
//! assert_eq!((chain.kind, chain.first, chain.count), (Kind::Bootstrap, 0, 10));
//! // A rank was lost: what it had is handed out again.
//! ledger.give_back(&search);
//! assert_eq!(ledger.take_next(), Next::Piece(search));
//! ```

use crate::bootstrap::{Options, Verdict};
use serde::{Deserialize, Serialize};
use sidecore_bare::width::ToUsize;
use sidecore_random::{GAMMA, mix};
use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;

/// Kinds of pieces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A search on the alignment.
    Search,
    /// Searches on resampled alignments.
    Bootstrap,
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Search => "search",
            Self::Bootstrap => "bootstrap",
        })
    }
}

/// A piece of work: one task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Piece {
    /// Of what kind.
    pub kind: Kind,
    /// The index of its first result, from 0.
    pub first: u32,
    /// Results that it gives: 1 but for chains of bootstraps.
    pub count: u32,
}

impl Piece {
    /// True of a possible piece: it has results, and their indices do not overflow.
    pub(crate) fn is_sound(self) -> bool {
        self.count >= 1 && self.first.checked_add(self.count).is_some()
    }

    fn results(self) -> impl Iterator<Item = (Kind, u32)> {
        (self.first..self.first + self.count).map(move |index| (self.kind, index))
    }
}

/// Result of one search or one replicate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Search or bootstrap.
    pub kind: Kind,
    /// From 0.
    pub index: u32,
    /// Log-likelihood, of the resampled alignment for a bootstrap.
    pub lnl: f64,
    /// The tree, in Newick.
    pub tree: String,
    /// The start tree, in Newick.
    pub start: String,
    /// The model of each partition, all values given.
    pub models: Vec<String>,
    /// If the partitions are unlinked, the tree with each partition's lengths.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub part_trees: Vec<String>,
    /// Seconds from its beginning to its end; time before an interruption does not count.
    pub wall_s: f64,
}

/// Number of bootstraps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bootstraps {
    /// This number.
    Exactly(u32),
    /// Until they have converged, or reach [`Options::most`].
    UntilConverged,
}

impl FromStr for Bootstraps {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "auto" {
            return Ok(Self::UntilConverged);
        }
        let count: Option<u32> = text.parse().ok();
        let count = count.filter(|count| *count <= BOOTSTRAPS_MAX);
        let count = count.map(Self::Exactly);
        count.ok_or_else(|| format!("`auto`, or a number from 0 to {BOOTSTRAPS_MAX}"))
    }
}

/// The most bootstraps of an analysis.
const BOOTSTRAPS_MAX: u32 = 100_000;

/// The goal of an analysis.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Goal {
    /// Searches.
    pub starts: u32,
    /// Bootstraps.
    pub bootstraps: Bootstraps,
    /// Replicates of one piece, at least 1: more than 1 where one begins with another's tree.
    pub chain: u32,
    /// Options of the convergence test.
    pub convergence: Options,
}

/// The next thing to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// This.
    Piece(Piece),
    /// Nothing until another piece is done.
    Wait,
    /// Nothing any more.
    Done,
}

/// Record of pieces done, running and saved.
#[derive(Debug)]
pub struct Ledger {
    goal: Goal,
    done: BTreeMap<(Kind, u32), Outcome>,
    running: BTreeSet<Piece>,
    saved: BTreeMap<Piece, String>,
    verdicts: Vec<Verdict>,
    /// The number of bootstraps that is enough, once it is known.
    enough: Option<u32>,
}

impl Ledger {
    /// Nothing done.
    #[must_use]
    pub fn new(goal: Goal) -> Self {
        let enough = match goal.bootstraps {
            Bootstraps::Exactly(count) => Some(count),
            Bootstraps::UntilConverged => None,
        };
        Self {
            goal,
            done: BTreeMap::new(),
            running: BTreeSet::new(),
            saved: BTreeMap::new(),
            verdicts: Vec::new(),
            enough,
        }
    }

    /// The goal.
    #[must_use]
    pub fn goal(&self) -> &Goal {
        &self.goal
    }

    /// Hands out a piece.
    pub fn take_next(&mut self) -> Next {
        let searches = (0..self.goal.starts).map(|first| Piece {
            kind: Kind::Search,
            first,
            count: 1,
        });
        let limit = self.limit();
        let chain = self.goal.chain.max(1);
        let bootstraps = (0..limit).step_by(chain.to_usize()).map(|first| Piece {
            kind: Kind::Bootstrap,
            first,
            // The last chain may be shorter; an earlier one never, whatever the limit is now.
            count: chain.min(self.most() - first),
        });
        // A chain is handed out again if any of its results is missing.
        let free = |piece: &Piece| {
            !self.running.contains(piece) && piece.results().any(|it| !self.done.contains_key(&it))
        };
        match searches.chain(bootstraps).find(free) {
            Some(piece) => {
                self.running.insert(piece);
                Next::Piece(piece)
            }
            None if self.is_done() => Next::Done,
            None => Next::Wait,
        }
    }

    /// True once all is done.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.enough.is_some() && self.wanted().all(|it| self.done.contains_key(&it))
    }

    /// True if a piece in progress is still needed.
    #[must_use]
    pub fn is_wanted(&self, piece: &Piece) -> bool {
        piece.kind == Kind::Search || self.enough.is_none_or(|enough| piece.first < enough)
    }

    /// A piece in progress was given up, not done.
    pub fn give_back(&mut self, piece: &Piece) {
        self.running.remove(piece);
    }

    /// A piece is done.
    pub fn finish(&mut self, piece: &Piece, outcomes: Vec<Outcome>) {
        self.running.remove(piece);
        // The states of a done piece would be most of the checkpoint.
        self.saved.remove(piece);
        for outcome in outcomes {
            self.done.insert((outcome.kind, outcome.index), outcome);
        }
    }

    /// A piece's state was saved.
    pub fn save(&mut self, piece: Piece, state: String) {
        // A late state of a rank that was given up, whose piece another has finished.
        if piece.results().any(|it| !self.done.contains_key(&it)) {
            self.saved.insert(piece, state);
        }
    }

    /// A piece's saved state.
    #[must_use]
    pub fn saved(&self, piece: &Piece) -> Option<&str> {
        self.saved.get(piece).map(String::as_str)
    }

    /// The pieces that have a saved state.
    pub fn all_saved(&self) -> impl Iterator<Item = (&Piece, &str)> {
        self.saved
            .iter()
            .map(|(piece, state)| (piece, state.as_str()))
    }

    /// Number of bootstraps to be tested now, all of which are done.
    #[must_use]
    pub fn test_due(&self) -> Option<u32> {
        if self.enough.is_some() {
            return None;
        }
        // Always of a whole block: the verdict must not depend on what arrived first.
        let count = (self.tested() + self.goal.convergence.every).min(self.most());
        let there = |index| self.done.contains_key(&(Kind::Bootstrap, index));
        (0..count).all(there).then_some(count)
    }

    /// A test was made.
    pub(crate) fn add_verdict(&mut self, verdict: Verdict) {
        // A verdict read from a checkpoint twice changes nothing.
        if self.enough.is_none() && (verdict.converged || verdict.replicates >= self.most()) {
            self.enough = Some(verdict.replicates);
        }
        self.verdicts.push(verdict);
    }

    /// The tests that were made.
    #[must_use]
    pub fn verdicts(&self) -> &[Verdict] {
        &self.verdicts
    }

    /// All needed results, searches first, by index.
    pub fn outcomes(&self) -> impl Iterator<Item = &Outcome> {
        self.wanted().filter_map(|it| self.done.get(&it))
    }

    /// All results, needed or not.
    pub fn all_done(&self) -> impl Iterator<Item = &Outcome> {
        self.done.values()
    }

    /// The outcomes of one kind.
    pub fn outcomes_of(&self, kind: Kind) -> impl Iterator<Item = &Outcome> {
        self.outcomes().filter(move |outcome| outcome.kind == kind)
    }

    /// The search with the best log-likelihood; the first of equals.
    #[must_use]
    pub fn best(&self) -> Option<&Outcome> {
        let searches = self.outcomes_of(Kind::Search);
        searches.reduce(|best, other| if other.lnl > best.lnl { other } else { best })
    }

    /// Number of results, and of those known to be needed.
    #[must_use]
    pub fn progress(&self) -> [u32; 2] {
        // Beyond the next test nothing is known: the bar grows with each.
        let needed = self.goal.starts + self.enough.unwrap_or_else(|| self.next_test());
        [self.outcomes().count() as u32, needed]
    }

    /// Number of open pieces, as far as is known: where bootstraps end by convergence, those up to
    /// the next test.
    #[must_use]
    pub(crate) fn open_pieces(&self) -> u32 {
        let open = |kind, count| {
            let all = (0..count).filter(|&index| !self.done.contains_key(&(kind, index)));
            all.count() as u32
        };
        let bootstraps = open(Kind::Bootstrap, self.limit());
        open(Kind::Search, self.goal.starts) + bootstraps.div_ceil(self.goal.chain.max(1))
    }

    fn tested(&self) -> u32 {
        self.verdicts.last().map_or(0, |verdict| verdict.replicates)
    }

    fn next_test(&self) -> u32 {
        (self.tested() + self.goal.convergence.every).min(self.most())
    }

    fn most(&self) -> u32 {
        match self.goal.bootstraps {
            Bootstraps::Exactly(count) => count,
            Bootstraps::UntilConverged => self.goal.convergence.most,
        }
    }

    /// Bootstraps below this index may be handed out.
    fn limit(&self) -> u32 {
        let ahead = self.next_test() + self.goal.convergence.every;
        self.enough.unwrap_or_else(|| ahead.min(self.most()))
    }

    fn wanted(&self) -> impl Iterator<Item = (Kind, u32)> + use<> {
        let searches = (0..self.goal.starts).map(|index| (Kind::Search, index));
        let bootstraps = (0..self.limit()).map(|index| (Kind::Bootstrap, index));
        searches.chain(bootstraps)
    }
}

/// The seed of one stream of random numbers.
#[must_use]
pub(crate) fn seed_of(seed: u64, kind: Kind, index: u32, stream: Stream) -> u64 {
    // A field each, so that no two streams of a run have the same place.
    let place = u64::from(index) << 8 | (kind as u64) << 4 | stream as u64;
    mix(seed ^ place.wrapping_add(1).wrapping_mul(GAMMA))
}

/// Use of a stream of random numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// The start tree.
    Start = 1,
    /// The resampled sites.
    Sites = 2,
    /// The search itself.
    Search = 3,
    /// The cuts of the convergence test.
    Cuts = 4,
}

/// Words on a run under way: its best result, and an estimate of the time that is left.
#[derive(Debug, Clone, Copy)]
pub struct Outlook {
    /// Seconds of tasks that earlier runs did.
    earlier_s: f64,
    shows_best: bool,
}

impl Outlook {
    /// Of a run that goes on with a ledger. Without `shows_best` its results are of different data,
    /// and none is the best.
    #[must_use]
    pub fn new(ledger: &Ledger, shows_best: bool) -> Self {
        Self {
            earlier_s: spent_s(ledger),
            shows_best,
        }
    }

    /// The words, `elapsed_s` seconds after the run's begin.
    #[must_use]
    pub fn words(&self, ledger: &Ledger, elapsed_s: f64) -> String {
        let best = ledger.best().filter(|_| self.shows_best);
        let best = best.map(|best| format!("best {:.2}", best.lnl));
        let left = match left_s(ledger, spent_s(ledger) - self.earlier_s, elapsed_s) {
            Some(left_s) => format!("about {} left", time(left_s)),
            None => "first tasks".to_owned(),
        };
        let parts = best.into_iter().chain([left]);
        parts.collect::<Vec<_>>().join(", ")
    }
}

fn time(seconds: f64) -> String {
    let whole = seconds.round() as u64;
    match whole {
        0..=119 => format!("{whole} s"),
        120..=7_199 => format!("{} min", whole / 60),
        _ => format!("{} h {} min", whole / 3_600, whole % 3_600 / 60),
    }
}

/// Seconds that a ledger's finished tasks took, on whatever number of cores.
fn spent_s(ledger: &Ledger) -> f64 {
    ledger.outcomes().map(|outcome| outcome.wall_s).sum()
}

/// Seconds that are left, if `spent_s` seconds of tasks were done in the last `elapsed_s`; nothing
/// before anything is done.
fn left_s(ledger: &Ledger, spent_s: f64, elapsed_s: f64) -> Option<f64> {
    let mean = |kind| {
        let (mut sum, mut count) = (0.0, 0.0);
        for outcome in ledger.outcomes_of(kind) {
            (sum, count) = (sum + outcome.wall_s, count + 1.0);
        }
        (count > 0.0).then(|| (sum / count, count))
    };
    let [searches, bootstraps] = [Kind::Search, Kind::Bootstrap].map(mean);
    // Before the first of a kind is done, the other kind's mean stands for it.
    let any = searches.or(bootstraps)?.0;
    let [_, needed] = ledger.progress();
    let starts = f64::from(ledger.goal().starts);
    let left = |found: Option<(f64, f64)>, needed: f64| {
        let (mean_s, done) = found.unwrap_or((any, 0.0));
        mean_s * (needed - done).max(0.0)
    };
    let work_s = left(searches, starts) + left(bootstraps, f64::from(needed) - starts);
    // A resumed run has results of its own only after a while.
    let side_by_side = (spent_s > 0.0).then(|| spent_s / elapsed_s.max(1e-3))?;
    Some(work_s / side_by_side)
}

#[cfg(test)]
mod tests;

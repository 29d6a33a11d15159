//! Teams of ranks: the number of ranks of one search, and their assignment.
//!
//! Must stay true: every rank is in one team; ranks of a team are neighbours, which launchers put
//! on one machine first. Nothing here changes a result.

use crate::analysis::coordinator::Member;
use crate::analysis::plan::Ledger;
use crate::runner::Share;
use sidecore_bare::width::ToUsize;
use std::ops::Range;

/// The teams of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    ranks: u32,
    teams: u32,
}

impl Layout {
    /// Teams of at least `ranks_per_search` of `ranks` ranks, as even as can be; one team of all
    /// where there are fewer.
    ///
    /// # Panics
    /// When there is no rank.
    #[must_use]
    pub fn new(ranks: u32, ranks_per_search: u32) -> Self {
        assert!(ranks > 0, "no rank");
        let teams = (ranks / ranks_per_search.max(1)).max(1);
        Self { ranks, teams }
    }

    /// Number of teams, which is that of parallel searches.
    #[must_use]
    pub(crate) fn teams(self) -> u32 {
        self.teams
    }

    /// True if each rank is a team: it then does as many searches as it has cores for.
    #[must_use]
    #[cfg(test)]
    pub(crate) fn is_farm(self) -> bool {
        self.teams == self.ranks
    }

    /// The team of a rank.
    #[must_use]
    pub fn team(self, rank: Member) -> u32 {
        (u64::from(rank) * u64::from(self.teams) / u64::from(self.ranks)) as u32
    }

    /// The ranks of a team; the first one leads it.
    #[must_use]
    pub fn ranks(self, team: u32) -> Range<Member> {
        let first = |team: u32| {
            let scaled = u64::from(team) * u64::from(self.ranks);
            scaled.div_ceil(u64::from(self.teams)) as u32
        };
        first(team)..first(team + 1)
    }

    /// A rank's share of its team's chunks.
    #[must_use]
    pub fn share(self, rank: Member) -> Share {
        let ranks = self.ranks(self.team(rank));
        Share {
            number: (rank - ranks.start).to_usize(),
            count: ranks.len(),
        }
    }
}

/// Default number of ranks for one search: one while there is a piece of work for every rank.
/// Otherwise the ranks are divided among the pieces, but each gets 1,000 patterns or more.
#[must_use]
pub fn ranks_per_search(ranks: u32, ledger: &Ledger, patterns: usize) -> u32 {
    let useful = u32::try_from(patterns / PATTERNS_MIN).unwrap_or(u32::MAX);
    let pieces = ledger.open_pieces().max(1);
    (ranks / pieces).clamp(1, useful.max(1))
}

/// Patterns of a rank below which synchronising costs more than the rank gains: a loop over that
/// many takes some ten microseconds, and so does an exchange across a network.
const PATTERNS_MIN: usize = 1_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::plan::{Bootstraps, Goal};
    use crate::bootstrap::Options;

    #[test]
    fn every_rank_is_in_one_team() {
        for ranks in 1..=13 {
            for per_search in 1..=14 {
                let layout = Layout::new(ranks, per_search);
                let mut seen = Vec::new();
                for team in 0..layout.teams() {
                    let own = layout.ranks(team);
                    assert!(own.len() as u32 >= per_search.min(ranks));
                    for (number, rank) in own.clone().enumerate() {
                        assert_eq!(layout.team(rank), team);
                        let share = layout.share(rank);
                        assert_eq!((share.number, share.count), (number, own.len()));
                        seen.push(rank);
                    }
                }
                assert!(seen.into_iter().eq(0..ranks), "{ranks} {per_search}");
                assert_eq!(layout.is_farm(), per_search == 1 || ranks == 1);
            }
        }
    }

    #[test]
    fn ranks_that_have_no_search_help_with_one() {
        let ledger = |starts, bootstraps| {
            Ledger::new(Goal {
                starts,
                bootstraps: Bootstraps::Exactly(bootstraps),
                chain: 1,
                convergence: Options::default(),
            })
        };
        assert_eq!(ranks_per_search(8, &ledger(1, 0), 50_000), 8);
        assert_eq!(ranks_per_search(8, &ledger(2, 0), 50_000), 4);
        assert_eq!(ranks_per_search(8, &ledger(10, 0), 50_000), 1);
        assert_eq!(ranks_per_search(8, &ledger(1, 100), 50_000), 1);
        // Too short an alignment.
        assert_eq!(ranks_per_search(8, &ledger(1, 0), 3_200), 3);
        assert_eq!(ranks_per_search(8, &ledger(1, 0), 228), 1);
    }
}

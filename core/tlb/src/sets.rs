//! From knees against page strides to the sets and ways of a level.
//!
//! Why here: when only every S-th page is visited, a level whose set is chosen by the low bits of
//! the page's number has only every S-th set for them. Its knee comes S times earlier, until only
//! one set is left, whose ways remain. A level without sets shows no change.
//! Must stay true: nothing is reported that the knees do not show. Pure. Source: notes in
//! docs/tlb.md.

use serde::Serialize;

/// Indexing of a level.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(crate) enum Indexing {
    /// Any entry serves any page.
    Full,
    /// The low bits of the page's number choose the set.
    LowBits {
        /// Number of sets.
        sets: usize,
        /// Entries in each set.
        ways: usize,
    },
    /// The knees show sets, but not that low bits alone choose them.
    Other {
        /// The least number of entries that any stride left.
        ways_min: usize,
    },
}

/// Judges by `knees`: pages held, for strides in pages, ascending, of a level of `entries` by its
/// own knee. Returns the entries, too. Where low bits choose the set, each stride counts them once
/// more, and the median of the wide ones is surer than any, or than the own knee: the longer a lap,
/// the more entries do others put between two visits of a page. `None` where the knees are too few,
/// or show neither.
#[must_use]
pub(crate) fn indexing(entries: f64, knees: &[(usize, f64)]) -> Option<(Indexing, f64)> {
    // Narrow strides cannot tell many sets from none.
    let widest = knees.iter().max_by_key(|&&(stride, _)| stride)?;
    if knees.len() < KNEES_MIN || widest.0 < STRIDE_MIN {
        return None;
    }
    let best = (0..=SETS_LOG_MAX)
        .map(|log| Hypothesis::new(1 << log, entries, knees))
        // Of hypotheses that explain as many knees, the closest one.
        .max_by(|a, b| a.agree.cmp(&b.agree).then(b.spread.total_cmp(&a.spread)))?;
    // Bits that are folded into the set's number show at the widest strides only.
    if best.agree * 3 < knees.len() * 2 || best.beyond < BEYOND_KNEES || !best.wide_agree {
        let mut held: Vec<f64> = knees.iter().map(|&(_, held)| held).collect();
        held.sort_by(f64::total_cmp);
        // The least of all may be a disturbance.
        let ways_min = held[1].round().max(1.0) as usize;
        if held[1] >= entries * FULL_SHARE {
            return None;
        }
        // Up to some stride low bits may choose all the same.
        let entries = by_short_laps(entries, usize::MAX, knees).unwrap_or(entries);
        return Some((Indexing::Other { ways_min }, entries));
    }
    // The level's own knee was measured most closely; strides correct it where it is far off.
    let near = (entries / best.entries).ln().abs() < OWN_FACTOR.ln();
    let entries = match best.sets {
        1 if near => entries,
        1 => best.entries,
        sets => by_short_laps(best.entries, sets, knees).unwrap_or(best.entries),
    };
    let indexing = match best.sets {
        1 => Indexing::Full,
        sets => Indexing::LowBits {
            sets,
            ways: (entries / sets as f64).round().max(1.0) as usize,
        },
    };
    Some((indexing, entries))
}

/// Entries of a level of about `entries` in at least `sets` sets, by the median of the strides that
/// leave a small part of it.
fn by_short_laps(entries: f64, sets: usize, knees: &[(usize, f64)]) -> Option<f64> {
    let short = knees.iter().filter(|knee| knee.0 >= SHORT_LAP_STRIDE);
    let mut sizes: Vec<f64> = short
        .map(|&(stride, held)| held * stride.min(sets) as f64)
        .filter(|size| (size / entries).ln().abs() < OWN_AGREES_FACTOR.ln())
        .collect();
    // The median: one disturbed stride does not move it.
    sizes.sort_by(f64::total_cmp);
    (sizes.len() >= SHORT_LAPS_MIN).then(|| sizes[sizes.len() / 2])
}

/// A candidate number of sets, with its agreement with the knees.
#[derive(Debug, Clone, Copy)]
struct Hypothesis {
    sets: usize,
    /// The level's size, by the median of all knees.
    entries: f64,
    /// Knees that give about the same size.
    agree: usize,
    /// Those of them whose stride is wider than there are sets, and yet leaves as many.
    beyond: usize,
    /// True if one of the two widest strides is among them.
    wide_agree: bool,
    /// Spread of their sizes.
    spread: f64,
}

impl Hypothesis {
    fn new(sets: usize, own: f64, knees: &[(usize, f64)]) -> Self {
        let size = |&(stride, held): &(usize, f64)| held * stride.min(sets) as f64;
        let mut sizes: Vec<f64> = knees.iter().map(size).chain([own]).collect();
        sizes.sort_by(f64::total_cmp);
        // The own knee is one vote among the strides'.
        let entries = sizes[sizes.len() / 2];
        let off = |knee: &(usize, f64)| (size(knee) / entries).ln().abs();
        let agreeing = || knees.iter().filter(|knee| off(knee) < AGREE_FACTOR.ln());
        let own_agrees = (own / entries).ln().abs() < OWN_AGREES_FACTOR.ln();
        Self {
            sets,
            entries,
            // Without the level's own knee, strides that agree show another level.
            agree: if own_agrees { agreeing().count() } else { 0 },
            beyond: agreeing().filter(|knee| knee.0 > sets).count(),
            wide_agree: knees
                .iter()
                .rev()
                .take(2)
                .any(|knee| off(knee) < AGREE_FACTOR.ln()),
            spread: agreeing().map(off).sum(),
        }
    }
}

const KNEES_MIN: usize = 3;
const STRIDE_MIN: usize = 16;
/// From this stride on laps are short.
const SHORT_LAP_STRIDE: usize = 8;
/// Strides with short laps that must agree to count the entries.
const SHORT_LAPS_MIN: usize = 3;
const SETS_LOG_MAX: u32 = 10;
/// Knees at strides wider than the sets, so that one set is seen to be the last.
const BEYOND_KNEES: usize = 1;
/// Knees below this show sets.
const FULL_SHARE: f64 = 0.7;
const AGREE_FACTOR: f64 = 1.15;
const OWN_AGREES_FACTOR: f64 = 1.3;
const OWN_FACTOR: f64 = 1.06;

#[cfg(test)]
mod tests {
    use super::*;

    fn strides() -> impl Iterator<Item = usize> {
        (1..=10).map(|log| 1 << log)
    }

    #[test]
    fn low_bits_and_none_are_told_apart() {
        for (entries, sets) in [
            (3072.0, 256.0),
            (3072.0, 128.0),
            (2048.0, 256.0),
            (1536.0, 128.0),
        ] {
            for off in [0.97, 1.0, 1.03] {
                let knees: Vec<_> = strides()
                    .map(|stride| (stride, off * entries / (stride as f64).min(sets)))
                    .collect();
                let (found, counted) = indexing(entries * 0.9, &knees).unwrap();
                let expected = Indexing::LowBits {
                    sets: sets as usize,
                    ways: (off * entries / sets).round() as usize,
                };
                assert_eq!(found, expected, "{knees:?}");
                assert!(
                    (counted / entries / off - 1.0).abs() < 1e-9,
                    "the median of all"
                );
            }
        }
        let knees: Vec<_> = strides().map(|stride| (stride, 71.0)).collect();
        assert_eq!(indexing(72.0, &knees), Some((Indexing::Full, 72.0)));
    }

    #[test]
    fn strides_as_this_machine_showed_them_once() {
        // Zen 4's second level, its own knee 10 % too early.
        let knees = [
            (2, 1443.0),
            (4, 757.0),
            (8, 365.0),
            (16, 190.0),
            (32, 95.7),
            (64, 47.3),
            (128, 23.3),
            (256, 22.6),
            (512, 23.1),
        ];
        for disturbed in [None, Some(6)] {
            let mut knees = knees;
            if let Some(index) = disturbed {
                knees[index].1 = 5.0;
            }
            let (found, entries) = indexing(2746.0, &knees).unwrap();
            assert!(
                matches!(found, Indexing::LowBits { sets: 128, .. }),
                "{found:?}"
            );
            assert!((entries / 3072.0 - 1.0).abs() < 0.05, "{entries}");
        }
        // Zen 5's second level of 256 sets of 16: long laps meet more of others' entries.
        for knees in [
            [1838.0, 927.0, 468.0, 233.0, 120.0, 82.7, 30.8, 9.3, 16.0],
            [1833.0, 943.0, 466.0, 232.0, 122.0, 63.6, 34.8, 7.4, 16.1],
            [1747.0, 953.0, 501.0, 240.0, 134.0, 63.5, 36.3, 20.9, 16.0],
            [1775.0, 942.0, 480.0, 245.0, 120.0, 60.9, 35.1, 20.9, 17.7],
        ] {
            let knees: Vec<_> = (1..).map(|log| 1 << log).zip(knees).collect();
            let (_, entries) = indexing(3640.0, &knees).unwrap();
            assert!((entries / 4096.0 - 1.0).abs() < 0.07, "{entries}");
        }
        // The first level, its own knee spoilt.
        let knees = [
            (2, 71.0),
            (4, 74.0),
            (8, 72.0),
            (16, 8.0),
            (32, 72.0),
            (64, 73.0),
        ];
        assert_eq!(indexing(62.0, &knees), Some((Indexing::Full, 72.0)));
        assert_eq!(indexing(72.4, &knees), Some((Indexing::Full, 72.4)));
    }

    #[test]
    fn sets_chosen_otherwise_and_too_few_knees_are_said() {
        // Folded bits: strides up to 128 change nothing, then everything meets in few sets.
        let knees = [
            (2, 1500.0),
            (16, 1480.0),
            (64, 1500.0),
            (128, 1490.0),
            (512, 100.0),
            (1024, 24.0),
        ];
        let (found, entries) = indexing(1536.0, &knees).unwrap();
        assert_eq!(
            (found, entries),
            (Indexing::Other { ways_min: 100 }, 1536.0)
        );
        assert_eq!(indexing(1536.0, &knees[..2]), None);
        assert_eq!(indexing(1536.0, &[]), None);
    }
}

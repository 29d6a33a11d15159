//! From knees against page strides to the sets and ways of a level.
//!
//! Why here: when only every S-th page is visited, a level whose set is chosen by the low bits of
//! the page's number has only every S-th set to put them in: its knee comes S times earlier, until
//! only one set is left, whose ways remain. A level without sets does not care.
//! Must stay true: what the knees do not show is not said. Pure. Source: notes in docs/tlb.md.

use serde::Serialize;

/// How a level finds an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Indexing {
    /// Any entry serves any page.
    Full,
    /// The low bits of the page's number choose the set.
    LowBits {
        /// Sets.
        sets: usize,
        /// Entries in each.
        ways: usize,
    },
    /// The knees show sets, but not that low bits alone choose them.
    Other {
        /// The least number of entries that any stride left.
        ways_min: usize,
    },
}

/// Judges by `knees`: pages held, for strides in pages, of a level of `entries`. `None` where there
/// are too few of them.
#[must_use]
pub fn indexing(entries: f64, knees: &[(usize, f64)]) -> Option<Indexing> {
    let widest = knees.iter().max_by_key(|&&(stride, _)| stride)?;
    if knees.len() < KNEES_MIN || widest.0 < STRIDE_MIN {
        return None;
    }
    let least = knees.iter().map(|&(_, held)| held).fold(f64::INFINITY, f64::min);
    if least >= entries * FULL_SHARE {
        return Some(Indexing::Full);
    }
    let mut bottom: Vec<f64> = knees
        .iter()
        .filter(|&&(_, held)| held < least * BOTTOM_FACTOR)
        .map(|&(_, held)| held)
        .collect();
    bottom.sort_by(f64::total_cmp);
    let ways = bottom[bottom.len() / 2].round().max(1.0);
    let sets = (entries / ways).log2().round().exp2();
    let fits = |&(stride, held): &(usize, f64)| {
        let expected = (entries / (stride as f64).min(sets)).max(1.0);
        (held / expected).ln().abs() < FIT_FACTOR.ln()
    };
    let low_bits = knees.iter().filter(|knee| fits(knee)).count();
    // One knee may be wrong; a level with sets that are chosen otherwise bends most of them.
    if low_bits + 1 >= knees.len() && bottom.len() >= 2 {
        return Some(Indexing::LowBits {
            sets: sets as usize,
            ways: (entries / sets).round() as usize,
        });
    }
    Some(Indexing::Other {
        ways_min: ways as usize,
    })
}

const KNEES_MIN: usize = 3;
const STRIDE_MIN: usize = 16;
const FULL_SHARE: f64 = 0.7;
const BOTTOM_FACTOR: f64 = 1.4;
const FIT_FACTOR: f64 = 1.35;

#[cfg(test)]
mod tests {
    use super::*;

    fn strides() -> impl Iterator<Item = usize> {
        (1..=10).map(|log| 1 << log)
    }

    #[test]
    fn low_bits_and_none_are_told_apart() {
        for (entries, sets) in [(3072.0, 256.0), (3072.0, 128.0), (2048.0, 256.0), (1536.0, 128.0)] {
            for off in [0.9, 1.0, 1.1] {
                let knees: Vec<_> = strides()
                    .map(|stride| (stride, off * entries / (stride as f64).min(sets)))
                    .collect();
                let expected = Indexing::LowBits {
                    sets: sets as usize,
                    ways: (entries / sets) as usize,
                };
                assert_eq!(indexing(entries, &knees), Some(expected), "{knees:?}");
            }
        }
        let knees: Vec<_> = strides().map(|stride| (stride, 71.0)).collect();
        assert_eq!(indexing(72.0, &knees), Some(Indexing::Full));
    }

    #[test]
    fn sets_chosen_otherwise_and_too_few_knees_are_said() {
        // Folded bits: strides up to 128 change nothing, then everything meets in few sets.
        let knees = [(2, 1500.0), (16, 1480.0), (64, 1500.0), (128, 1490.0), (512, 100.0), (1024, 24.0)];
        assert_eq!(indexing(1536.0, &knees), Some(Indexing::Other { ways_min: 24 }));
        assert_eq!(indexing(1536.0, &knees[..2]), None);
        assert_eq!(indexing(1536.0, &[]), None);
    }
}

//! A whole curve: coarse first, then close to its knees.
//!
//! Why here: knees are narrow, curves are long, and time is short. Must stay true: every number of
//! pages is measured in several passes over the curve, so that a disturbance of a second does not
//! spoil one stretch of it.

use super::memory::Memory;
use super::probe::Probe;
use super::{Plan, TlbError};
use crate::chain::Layout;
use crate::curve::Curve;
use crate::detect;

/// Range of pages that a sweep visits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Range {
    /// Fewest pages.
    pub(crate) from: usize,
    /// Most pages.
    pub(crate) to: usize,
    /// Distance of neighbours, in pages of 4 KiB.
    pub(crate) stride: usize,
}

impl Range {
    /// The first `count` pages. Where they are more than a small page apart, the place within them
    /// moves on, too, as neighbouring pages' numbers do: else all would share few sets.
    pub(crate) fn pages(self, count: usize) -> Vec<usize> {
        let place = |index: usize| match self.stride {
            1 => index,
            // Shifted by one more each time, or all pages would fall in one set.
            stride => index * stride + index % stride,
        };
        (0..count).map(place).collect()
    }
}

/// Measures a curve.
pub(crate) fn curve(
    probe: &mut Probe<'_>,
    memory: &mut Memory,
    layout: Layout,
    range: Range,
    plan: &Plan,
) -> Result<Curve, TlbError> {
    let mut curve = Curve::default();
    let mut pages = spread(range.from as f64, range.to as f64, plan.points_per_octave);
    for _ in 0..=plan.refinements {
        // Passes over the whole range: a disturbance of some seconds does not hit one place every
        // time.
        for _ in 0..plan.passes {
            for &count in &pages {
                let visited = range.pages(count);
                curve.add(probe.point(memory, layout, &visited, plan.windows)?);
            }
        }
        // More points where the curve bends; the flat parts need none.
        pages = close_to_knees(&curve, range, plan);
    }
    Ok(curve)
}

/// Numbers of pages around each knee that is known so far.
fn close_to_knees(curve: &Curve, range: Range, plan: &Plan) -> Vec<usize> {
    let mut pages = Vec::new();
    for knee in detect::find(curve).knees {
        let from = (knee.entries * CLOSE_BEFORE).max(range.from as f64);
        let to = (knee.entries_end * CLOSE_AFTER).min(range.to as f64);
        let step = (to / from).ln() / plan.points_at_knee as f64;
        pages.extend((0..=plan.points_at_knee).map(|n| (from * (step * n as f64).exp()) as usize));
    }
    pages.sort_unstable();
    pages.dedup();
    pages
}

/// Numbers from `from` to `to`, `per_octave` to an octave, each once.
pub(crate) fn spread(from: f64, to: f64, per_octave: u32) -> Vec<usize> {
    let mut numbers: Vec<usize> = (0..)
        .map(|step| from * (f64::from(step) / f64::from(per_octave)).exp2())
        .take_while(|&number| number <= to * 1.0001)
        .map(|number| number.round() as usize)
        .collect();
    numbers.dedup();
    numbers
}

const CLOSE_BEFORE: f64 = 0.75;
const CLOSE_AFTER: f64 = 1.25;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_as_dense_as_asked_for() {
        assert_eq!(spread(8.0, 16.0, 2), [8, 11, 16]);
        assert_eq!(spread(2.0, 4.0, 8), [2, 3, 4]);
        assert_eq!(spread(32.0, 16384.0, 8).len(), 73);
    }

    #[test]
    fn wide_pages_do_not_all_begin_alike() {
        let range = Range {
            from: 1,
            to: 2000,
            stride: 512,
        };
        let pages = range.pages(2000);
        assert!(
            pages
                .iter()
                .enumerate()
                .all(|(index, page)| page / 512 == index)
        );
        let low: std::collections::HashSet<_> = pages.iter().map(|page| page % 256).collect();
        assert_eq!(low.len(), 256);
    }
}

//! Indexing of a level (sets and ways): its knee measured against the stride of the pages.
//!
//! Why here: because of sets, a working set much smaller than a level can still miss in it. The
//! levels before would hide small knees. So every other access of a lap goes to filler pages, as
//! many as push the pages in question out of those levels, in sets of their own. The first level
//! needs none, and a layout that stays in the nearest cache.
//! Source: docs/tlb.md, "Sets".

use super::memory::Memory;
use super::probe::Probe;
use super::sweep::{Range, spread};
use super::{Plan, TlbError};
use crate::chain::Layout;
use crate::curve::{Curve, Point};
use crate::detect;
use crate::sets::{self, Indexing};

/// Finds how the level of `entries` is indexed, and its size once more where that shows it;
/// `before` is the size of the level before it, 0 for the first. `None` where too few strides
/// showed a knee.
pub(crate) fn indexing(
    probe: &mut Probe<'_>,
    memory: &mut Memory,
    entries: f64,
    before: f64,
    plan: &Plan,
) -> Result<Option<(Indexing, f64)>, TlbError> {
    let mut knees = Vec::new();
    let mut stride = 2;
    while stride <= STRIDE_MAX {
        // The memory's capacity, fillers after the pages included.
        let room = (memory.small_pages() - FILLER_SPAN) / stride;
        let most = room.min((entries * REACH) as usize);
        if let Some(held) = knee(probe, memory, (stride, most, before), plan)? {
            knees.push((stride, held));
        }
        // Sets are chosen by low bits: only powers of two meet in fewer sets.
        stride *= 2;
    }
    Ok(sets::indexing(entries, &knees))
}

/// Pages held when only every `stride`-th is visited.
fn knee(
    probe: &mut Probe<'_>,
    memory: &mut Memory,
    (stride, most, before): (usize, usize, f64),
    plan: &Plan,
) -> Result<Option<f64>, TlbError> {
    // Too few points for a knee.
    if most < PAGES_MIN * 4 {
        return Ok(None);
    }
    let fillers = fillers(memory.small_pages(), stride, before);
    let (layout, alone) = match fillers.is_empty() {
        true => (Layout::Near, 0.0),
        false => {
            let windows = plan.windows * plan.passes;
            let point = probe.point(memory, Layout::Far, &fillers, windows)?;
            (Layout::Far, point.cycles)
        }
    };
    // The first level's knees are sharp, and only their place is needed.
    let points_per_octave = plan.points_per_octave * if fillers.is_empty() { 2 } else { 1 };
    let mut curve = Curve::default();
    for _ in 0..plan.passes {
        for count in spread(PAGES_MIN as f64, most as f64, points_per_octave) {
            let range = Range {
                from: PAGES_MIN,
                to: most,
                stride: 1,
            };
            let mut pages: Vec<usize> = range.pages(count).iter().map(|n| n * stride).collect();
            pages.extend_from_slice(&fillers);
            let point = probe.point(memory, layout, &pages, plan.windows)?;
            // The fillers' part of the time is known.
            let own = |cycles: f64| {
                (cycles * pages.len() as f64 - alone * fillers.len() as f64) / count as f64
            };
            curve.add(Point {
                pages: count,
                cycles: own(point.cycles),
                cycles_fifth: own(point.cycles_fifth),
                windows: point.windows,
            });
        }
    }
    let knees = detect::find(&curve).knees;
    let knee = match fillers.is_empty() {
        true => knees.first(),
        false => knees
            .iter()
            .max_by(|a, b| a.penalty_cycles.total_cmp(&b.penalty_cycles)),
    };
    Ok(knee.map(|knee| knee.entries))
}

/// Pages at the end of the memory, about twice as many as the level before holds. None of them
/// meets the multiples of `stride` in a set.
fn fillers(small_pages: usize, stride: usize, before: f64) -> Vec<usize> {
    let wanted = (before * FILLERS) as usize;
    let first = (small_pages - FILLER_SPAN).next_multiple_of(STRIDE_MAX);
    // Every residue but 0 in turn; neighbours differ in their low bits, so they spread over the
    // other sets.
    (first..small_pages)
        .filter(|page| !page.is_multiple_of(stride))
        .take(wanted)
        .collect()
}

/// Beyond a page of page tables, the walk's own caching interferes.
const STRIDE_MAX: usize = 512;
/// Pages that are kept for fillers.
const FILLER_SPAN: usize = 2048;
const FILLERS: f64 = 2.0;
/// Largest number of pages at which a knee is looked for, as a multiple of the level's size.
const REACH: f64 = 2.5;
const PAGES_MIN: usize = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fillers_keep_out_of_the_sets_in_question() {
        for stride in [2, 16, 1024] {
            let fillers = fillers(16384, stride, 72.0);
            assert_eq!(fillers.len(), 144);
            assert!(
                fillers
                    .iter()
                    .all(|page| page % stride != 0 && *page < 16384)
            );
            assert!(fillers.iter().all(|page| *page >= 16384 - FILLER_SPAN));
        }
        assert!(fillers(16384, 8, 0.0).is_empty());
    }
}

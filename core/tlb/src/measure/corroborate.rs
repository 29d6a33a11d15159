//! A level's penalty once more, by the processor's own counters.
//!
//! Why here: a step in a curve could be anything; when the cycles per access follow the counted
//! misses per access, it is translation. Must stay true: without counters a level is
//! "uncorroborated", not wrong and not right; and a counter that does not follow the step (generic
//! events often count something else) corroborates nothing.
//! Source: AMD PPR for family 19h, "LS_L1_D_TLB_MISS" (event 0x45); Intel SDM volume 3,
//! "DTLB_LOAD_MISSES" (events 0x08 and 0x12).

use super::TlbError;
use super::memory::Memory;
use super::probe::Probe;
use super::sweep::Range;
use crate::chain::Layout;
use crate::detect::Knee;
use crate::report::Corroboration;
use sidecore_sys::counters::{Event, EventCounter};

/// Measures around `knee` with a counter: `first` for the first level, else the next.
pub(crate) fn check(
    probe: &mut Probe<'_>,
    memory: &mut Memory,
    layout: Layout,
    knee: &Knee,
    first: bool,
) -> Result<Corroboration, TlbError> {
    let mut refused = None;
    for (name, event) in events(first) {
        let mut counter = match EventCounter::open(event) {
            Ok(counter) => counter,
            // Another event may be allowed, or exist on this processor.
            Err(error) => {
                refused = Some(error);
                continue;
            }
        };
        let points = measure(probe, memory, layout, knee, &mut counter)?;
        if let Some(penalty_cycles) = slope(&points) {
            let off = penalty_cycles / knee.penalty_cycles - 1.0;
            return Ok(Corroboration {
                corroborated: off.abs() <= AGREE,
                penalty_cycles: Some(penalty_cycles),
                how: format!("{penalty_cycles:.1} cycles per counted miss ({name})"),
            });
        }
    }
    Ok(match refused {
        Some(error) => Corroboration::none(format!("no counters here ({error})")),
        None => Corroboration::none("no counter follows this step"),
    })
}

/// Events that count misses of a level, the best first.
fn events(first: bool) -> Vec<(&'static str, Event)> {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let generic = ("dTLB-load-misses", Event::LoadTranslationMisses);
    let raw = |name, config| (name, Event::Raw(config));
    // The same number may mean another event elsewhere, so the maker is asked first.
    let mut events = if cpuinfo.contains("AuthenticAMD") && first {
        vec![raw("ls_l1_d_tlb_miss.all", 0xff45)]
    } else if cpuinfo.contains("AuthenticAMD") {
        vec![raw("ls_l1_d_tlb_miss.all_l2_miss", 0xf045)]
    } else if cpuinfo.contains("GenuineIntel") && first {
        vec![
            raw("dtlb_load_misses.stlb_hit (0x12)", 0x2012),
            raw("dtlb_load_misses.stlb_hit (0x08)", 0x2008),
        ]
    } else if cpuinfo.contains("GenuineIntel") {
        vec![
            raw("dtlb_load_misses.walk_completed (0x12)", 0x0e12),
            raw("dtlb_load_misses.walk_completed (0x08)", 0x0e08),
        ]
    } else {
        Vec::new()
    };
    events.push(generic);
    events
}

/// Counted misses per access and cycles per access, in the fastest window at each of some sizes.
fn measure(
    probe: &mut Probe<'_>,
    memory: &mut Memory,
    layout: Layout,
    knee: &Knee,
    counter: &mut EventCounter,
) -> Result<Vec<(f64, f64)>, TlbError> {
    let mut points = Vec::new();
    for factor in FACTORS {
        let range = Range {
            from: 1,
            to: usize::MAX,
            stride: 1,
        };
        let pages = range.pages((knee.entries * factor) as usize);
        let places = probe.places(memory, layout, &pages);
        let mut best: Option<(f64, f64)> = None;
        for _ in 0..WINDOWS {
            let mut counts = Vec::with_capacity(2);
            let window = probe.window(memory, &places, &mut || {
                counts.push(counter.read()?);
                Ok(())
            })?;
            // Read before and after the window.
            let counted = counts[1].saturating_sub(counts[0]) as f64 / window.steps as f64;
            if best.is_none_or(|(_, cycles)| window.cycles < cycles) {
                best = Some((counted, window.cycles));
            }
        }
        points.extend(best);
    }
    Ok(points)
}

/// Cycles per counted miss; `None` where the counts do not follow the step.
fn slope(points: &[(f64, f64)]) -> Option<f64> {
    let count = points.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
    let (mean_x, mean_y) = (mean(|p| p.0), mean(|p| p.1));
    let sum = |of: &dyn Fn(f64, f64) -> f64| -> f64 {
        points
            .iter()
            .map(|&(x, y)| of(x - mean_x, y - mean_y))
            .sum()
    };
    let (xx, xy, yy) = (sum(&|x, _| x * x), sum(&|x, y| x * y), sum(&|_, y| y * y));
    let (least, most) = points.iter().fold((f64::MAX, 0.0f64), |(least, most), p| {
        (least.min(p.0), most.max(p.0))
    });
    let follows = most - least >= SPAN_MIN && xy * xy >= R2_MIN * xx * yy;
    (follows && xx > 0.0).then(|| xy / xx)
}

const FACTORS: [f64; 9] = [0.5, 0.8, 0.95, 1.05, 1.1, 1.2, 1.35, 1.5, 1.7];
const WINDOWS: usize = 12;
const AGREE: f64 = 0.1;
/// Misses per access between the least and the most.
const SPAN_MIN: f64 = 0.5;
const R2_MIN: f64 = 0.9;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_counts_that_follow_the_step_have_a_slope() {
        let follow = (0..=8)
            .map(|n| f64::from(n) / 8.0)
            .map(|x| (x, 19.0 + 17.5 * x));
        let slope_of = slope(&follow.collect::<Vec<_>>()).unwrap();
        assert!((slope_of - 17.5).abs() < 1e-9);
        let constant: Vec<_> = (0..=8).map(|n| (0.01, 19.0 + f64::from(n))).collect();
        assert_eq!(slope(&constant), None);
        let other: Vec<_> = (0..=8)
            .map(|n| (f64::from(n % 2), 19.0 + f64::from(n)))
            .collect();
        assert_eq!(slope(&other), None);
        assert_eq!(slope(&[]), None);
    }
}

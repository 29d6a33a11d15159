//! Control measurement that distinguishes a translation step from a cache step.
//!
//! Why here: a step in a curve could be a cache's. Where few frames show in many pages, the same
//! bytes can be visited through as few pages as there are frames: the caches see no difference,
//! translation does. So a step is measured once more, below and above, in turns with that control:
//! any difference between the two is translation.

use super::TlbError;
use super::memory::{Memory, SMALL_VALUES};
use super::probe::{Probe, Window};
use crate::chain::Layout;
use crate::detect::Knee;
use sidecore_bare::width::ToUsize;

/// Cycles that translation adds from below `knee` to above it; `None` where the memory has no
/// control.
pub(crate) fn translation(
    probe: &mut Probe<'_>,
    memory: &mut Memory,
    knee: &Knee,
    windows: usize,
) -> Result<Option<f64>, TlbError> {
    let Some(frames) = memory.frames() else {
        return Ok(None);
    };
    // The page that stands for each frame: the first that shows it.
    let mut first = vec![0; frames];
    for page in (0..frames).rev() {
        first[memory.frame_of(page)] = page;
    }
    let last = memory.small_pages() as f64;
    let counts = [knee.entries * BELOW, (knee.entries_end * ABOVE).min(last)];
    let mut measured = Vec::new();
    for count in counts {
        let pages: Vec<usize> = (0..count as usize).collect();
        let many = probe.places(memory, Layout::Far, &pages);
        let few = many.iter().map(|&place| {
            let (page, place) = (
                place.to_usize() / SMALL_VALUES,
                place.to_usize() % SMALL_VALUES,
            );
            (first[memory.frame_of(page)] * SMALL_VALUES + place) as u32
        });
        let few: Vec<u32> = few.collect();
        measured.push((many, few));
    }
    let mut least = [[f64::INFINITY; 2]; 2];
    for _ in 0..windows {
        for ((many, few), least) in measured.iter().zip(&mut least) {
            for (places, least) in [many, few].into_iter().zip(least) {
                let window = probe.window(memory, places, &mut || Ok(()))?;
                if let Window {
                    cycles,
                    steady: true,
                    ..
                } = window
                {
                    *least = least.min(cycles);
                }
            }
        }
    }
    let [below, above] = least.map(|[many, few]| many - few);
    Ok((above - below).is_finite().then_some(above - below))
}

/// Size below a level at which nothing misses, as a multiple of the level's size.
const BELOW: f64 = 0.75;
/// Size above a level at which every access misses, as a multiple of the step's end.
const ABOVE: f64 = 1.08;

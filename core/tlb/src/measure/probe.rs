//! One measured point: windows of a chase over some pages.
//!
//! Why here: on a machine with other users a mean shows their load. So there are many short
//! windows, each with a fresh random cycle, two laps to warm up, and the core's clock measured
//! right before and after. The fastest window is the undisturbed one. Must stay true: nothing but
//! the walk is between the two readings of the counter. Source: docs/tlb.md, "Method".

use super::TlbError;
use super::memory::Memory;
use crate::access::Path;
use crate::chain::{self, Layout, Random};
use crate::curve::Point;
use sidecore_bare::width::{ToU64, ToUsize};
use sidecore_engine::{Core, CoreOptions, Ctx, DmaMode, In, Kernel, KernelError};
use sidecore_sys::clock;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Measures chases over one access path; holds the engine that the path needs.
#[derive(Debug)]
pub(crate) struct Probe<'a> {
    path: Path,
    core: Option<Core>,
    random: Random,
    cancel: &'a AtomicBool,
    order: Vec<u32>,
    /// Clock readings of the last windows.
    clocks: VecDeque<f64>,
    patient_until: Option<Instant>,
}

impl<'a> Probe<'a> {
    /// A probe for `path`; setting `cancel` makes it end.
    ///
    /// # Errors
    /// [`TlbError::Sys`] where the engine's local store cannot be had.
    pub(crate) fn new(path: Path, seed: u64, cancel: &'a AtomicBool) -> Result<Self, TlbError> {
        let mode = match path {
            Path::Load => None,
            Path::DmaCopy => Some(DmaMode::Copy),
            Path::DmaBorrow => Some(DmaMode::Borrow),
        };
        let core = |mode| {
            let options = CoreOptions {
                mode,
                ..CoreOptions::default()
            };
            Core::new(options)
        };
        Ok(Self {
            path,
            core: mode.map(core).transpose()?,
            random: Random::new(seed),
            cancel,
            order: Vec::new(),
            clocks: VecDeque::with_capacity(CLOCKS),
            patient_until: None,
        })
    }

    /// The access path.
    #[must_use]
    pub(crate) fn path(&self) -> Path {
        self.path
    }

    /// Measures a random cycle over these pages of 4 KiB, by number, in `windows` windows, or up to
    /// `PATIENCE` times as many until the fastest is confirmed.
    ///
    /// # Errors
    /// [`TlbError::Interrupted`]; [`TlbError::Engine`] where a DMA fails.
    pub(crate) fn point(
        &mut self,
        memory: &mut Memory,
        layout: Layout,
        pages: &[usize],
        windows: usize,
    ) -> Result<Point, TlbError> {
        // Once for all windows: the order of visits changes, the places do not.
        let places = self.places(memory, layout, pages);
        let mut measured = Vec::with_capacity(windows * PATIENCE);
        while measured.len() < windows
            || (measured.len() < windows * PATIENCE
                && !is_confirmed(&measured)
                && self
                    .patient_until
                    .is_none_or(|until| Instant::now() < until))
        {
            measured.push(self.window(memory, &places, &mut || Ok(()))?);
        }
        Ok(summary(pages.len(), &measured))
    }

    /// From then on a point has the windows asked for and no more, also where no two of them agree
    /// on the fastest.
    pub(crate) fn be_patient_until(&mut self, until: Instant) {
        self.patient_until = Some(until);
    }

    /// Places of the chase's nodes on these pages.
    #[must_use]
    pub(crate) fn places(&self, memory: &Memory, layout: Layout, pages: &[usize]) -> Vec<u32> {
        let framed: Vec<_> = pages
            .iter()
            .map(|&page| (page, memory.frame_of(page)))
            .collect();
        chain::places(memory.ground(block_values(self.path)), layout, &framed)
    }

    /// One window: cycles per access, and whether the core's clock could be measured. `around` is
    /// called right before and right after it.
    ///
    /// # Errors
    /// As [`Self::point`].
    pub(crate) fn window(
        &mut self,
        memory: &mut Memory,
        places: &[u32],
        around: &mut dyn FnMut() -> Result<(), TlbError>,
    ) -> Result<Window, TlbError> {
        // Looked at in each window, some milliseconds apart.
        if self.cancel.load(Ordering::Relaxed) {
            return Err(TlbError::Interrupted);
        }
        let Some(&place) = places.first() else {
            return Err(TlbError::NoPages);
        };
        self.link(memory, places);
        let nodes = places.len().to_u64();
        // Every translation and line is brought in before the time is taken.
        let mut at = self.walk(memory, place, LAPS_WARM * nodes)?;
        let steps = (LAPS * nodes).max(STEPS_MIN);
        around()?;
        // Additions count the core's own clock, which boosts and throttles against the counter's.
        let before = clock::additions_per_cycle();
        let begun = clock::cycles();
        at = self.walk(memory, at, steps)?;
        let counted = clock::cycles().wrapping_sub(begun);
        let after = clock::additions_per_cycle();
        around()?;
        // Without a use of the result the loads could be removed.
        std::hint::black_box(at);
        // The faster of both: an interrupt slows one of them.
        let own = before.max(after);
        let clock = self.full_speed(own);
        Ok(Window {
            cycles: counted as f64 * clock / steps as f64,
            // The core ran slower than it can: others used it, or its frequency changed.
            steady: (clock / own).ln() < UNSTEADY,
            steps,
        })
    }

    /// The core's clock: the highest of the last readings. A lower reading usually comes from an
    /// interrupt rather than from a slower core, and would make the window look faster than it was.
    /// In the opposite case a window looks slower, and does not count.
    fn full_speed(&mut self, own: f64) -> f64 {
        if self.clocks.len() == CLOCKS {
            self.clocks.pop_front();
        }
        self.clocks.push_back(own);
        self.clocks.iter().copied().fold(0.0, f64::max)
    }

    /// Writes a fresh random cycle.
    fn link(&mut self, memory: &mut Memory, places: &[u32]) {
        let count = places.len();
        if self.order.len() != count {
            self.order = (0..count as u32).collect();
        }
        // A new order each time, so that no chance of one order looks like a level.
        chain::shuffle(&mut self.order, &mut self.random);
        for index in 0..count {
            let from = places[self.order[index].to_usize()];
            let to = places[self.order[(index + 1) % count].to_usize()];
            memory.set(from.to_usize(), to);
        }
    }

    fn walk(&mut self, memory: &Memory, from: u32, steps: u64) -> Result<u32, TlbError> {
        let values = memory.values();
        match &mut self.core {
            None => Ok(chase(values, from, steps)),
            Some(core) => chase_by_gets(core, values, from, steps),
        }
    }
}

/// Result of one window.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Window {
    /// Cycles per access.
    pub cycles: f64,
    /// True if the core's clock, before and after, agreed with recent readings.
    pub steady: bool,
    /// Number of accesses.
    pub steps: u64,
}

/// True if another window was about as fast as the fastest one.
fn is_confirmed(windows: &[Window]) -> bool {
    let steady = windows.iter().filter(|window| window.steady);
    let mut cycles: Vec<f64> = steady.map(|window| window.cycles).collect();
    cycles.sort_by(f64::total_cmp);
    matches!(cycles[..], [fastest, _, third, ..] if third <= fastest * CONFIRMED)
}

/// The fastest window and the one at the fifth; of those with a measured clock of their own, if
/// there are any.
fn summary(pages: usize, windows: &[Window]) -> Point {
    let steady = windows.iter().filter(|window| window.steady);
    let mut cycles: Vec<f64> = steady.map(|window| window.cycles).collect();
    if cycles.is_empty() {
        cycles = windows.iter().map(|window| window.cycles).collect();
    }
    cycles.sort_by(f64::total_cmp);
    Point {
        pages,
        cycles: cycles.first().copied().unwrap_or(0.0),
        cycles_fifth: cycles.get(cycles.len() / 5).copied().unwrap_or(0.0),
        windows: windows.len(),
    }
}

/// Every load waits for the one before.
#[inline(never)]
fn chase(values: &[u32], from: u32, steps: u64) -> u32 {
    (0..steps).fold(from, |at, _| values[at.to_usize()])
}

/// Numbers of four bytes that one access fetches.
fn block_values(path: Path) -> usize {
    match path {
        Path::Load => LINE_VALUES,
        Path::DmaCopy | Path::DmaBorrow => BLOCK_VALUES,
    }
}

/// Windows by which the clock is judged: fewer than a change of the clock would last.
const CLOCKS: usize = 100;
/// Greatest number of windows of an unconfirmed point, as a multiple of the planned number.
const PATIENCE: usize = 3;
/// Greatest ratio to the fastest window of two others that confirm it.
const CONFIRMED: f64 = 1.015;
const LINE_VALUES: usize = 16;
const LAPS_WARM: u64 = 2;
const LAPS: u64 = 4;
const STEPS_MIN: u64 = 20_000;
/// Least logarithm of the ratio of two clocks that differ.
const UNSTEADY: f64 = 0.05;

/// Numbers in a get of 128 bytes.
const BLOCK_VALUES: usize = 32;

/// The document's other path: an engine does not load, it gets, and every get's place is in the
/// bytes of the get before. Source: papers/003.
struct Chase;

struct Args<'j> {
    memory: In<'j, u32>,
    from: u32,
    steps: u64,
}

impl Kernel for Chase {
    type Args<'j> = Args<'j>;
    type Out = u32;
    type State = ();
    const LS: usize = BLOCK_VALUES * size_of::<u32>();

    fn run<'c, 'j: 'c>(cx: &mut Ctx<'c, Self>, args: Args<'j>) -> Result<u32, KernelError> {
        let mut buffer = cx.store.alloc::<u32>(BLOCK_VALUES)?;
        let mut at = args.from;
        for _ in 0..args.steps {
            let (block, slot) = (at.to_usize() / BLOCK_VALUES, at.to_usize() % BLOCK_VALUES);
            let source = args.memory.chunk(block, BLOCK_VALUES);
            let source = source.ok_or_else(|| KernelError::failed("a chase left its memory"))?;
            buffer = cx.mfc.get(buffer, source)?.wait();
            at = buffer[slot];
        }
        Ok(at)
    }
}

/// Follows a chain from `from` for `steps` steps, on this thread.
fn chase_by_gets(core: &mut Core, values: &[u32], from: u32, steps: u64) -> Result<u32, TlbError> {
    let args = Args {
        memory: In::new(values),
        from,
        steps,
    };
    core.run::<Chase>(args).map_err(TlbError::Engine)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::Pages;
    use crate::measure::Config;

    #[test]
    fn a_walk_visits_every_node_once_a_lap_by_every_path() {
        let cancel = AtomicBool::new(false);
        for path in [Path::Load, Path::DmaCopy, Path::DmaBorrow] {
            for kind in [Pages::SmallAliased, Pages::SmallPlain] {
                let made = Memory::new(kind, 1024, &Config::default()).unwrap();
                let mut memory = made.unwrap();
                let mut probe = Probe::new(path, 7, &cancel).unwrap();
                let pages: Vec<usize> = (0..300).map(|page| page * 3).collect();
                let places = probe.places(&memory, Layout::Far, &pages);
                probe.link(&mut memory, &places);
                let mut seen = std::collections::HashSet::new();
                let mut at = places[0];
                for _ in 0..300 {
                    at = probe.walk(&memory, at, 1).unwrap();
                    assert!(seen.insert(at), "{path:?} {kind:?}: a shorter cycle");
                }
                assert_eq!(at, places[0], "{path:?} {kind:?}");
                assert_eq!(probe.walk(&memory, at, 600).unwrap(), at);
            }
        }
    }

    #[test]
    fn a_point_is_the_fastest_window_and_cancelling_ends_it() {
        let window = |cycles, steady| Window {
            cycles,
            steady,
            steps: 1,
        };
        let mut windows: Vec<_> = (0..10).map(|n| window(10.0 + f64::from(n), true)).collect();
        assert!(!is_confirmed(&windows));
        windows.push(window(1.0, false));
        let point = summary(5, &windows);
        assert_eq!(
            (point.cycles, point.cycles_fifth, point.windows),
            (10.0, 12.0, 11)
        );

        let cancel = AtomicBool::new(true);
        let mut memory = Memory::new(Pages::SmallPlain, 64, &Config::default())
            .unwrap()
            .unwrap();
        let mut probe = Probe::new(Path::Load, 7, &cancel).unwrap();
        let ended = probe.point(&mut memory, Layout::Near, &[0, 1], 3);
        assert!(matches!(ended, Err(TlbError::Interrupted)));
    }
}

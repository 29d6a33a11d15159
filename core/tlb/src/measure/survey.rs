//! The whole of a run: its curves, their order, and their evaluation.
//!
//! Why here: later curves are judged by earlier ones. Small pages whose data stays in the caches
//! show the capacity of a level; the reach of the same level with other pages shows how much of
//! them one translation covers.
//!
//! A step in a curve could be a cache's. Where few frames show in many pages, the same bytes can be
//! visited through as few pages as there are frames: the caches see no difference, translation
//! does. So a step is measured once more, below and above, in turns with that control: any
//! difference between the two is translation.

use super::memory::{Memory, SMALL_VALUES};
use super::probe::{Probe, Window};
use super::sweep::{self, Range};
use super::{Config, Plan, TlbError, corroborate, rows, settings, stride, touch};
use crate::access::{Pages, Path, SMALL_BYTES};
use crate::chain::Layout;
use crate::cpuid;
use crate::detect::{self, Knee};
use crate::report::{Corroboration, FirstUse, Level, Measured, Missing, Report, SURE_MIN};
use crate::sets::Indexing;
use sidecore_bare::width::ToUsize;
use sidecore_engine::page_advice::{PageAdvice, PageCost};
use sidecore_measure::Machine;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

/// A run's state.
struct Survey<'a> {
    config: &'a Config,
    plan: Plan,
    cancel: &'a AtomicBool,
    say: &'a mut (dyn FnMut(&str) + Send),
    begun: Instant,
    curves: Vec<Measured>,
    levels: Vec<Level>,
    unclear: Vec<Level>,
    granules: BTreeMap<String, usize>,
    missing: Vec<Missing>,
}

/// Runs all measurements on this thread.
pub(super) fn all(
    config: &Config,
    (machine, core): (Machine, usize),
    cancel: &AtomicBool,
    say: &mut (dyn FnMut(&str) + Send),
) -> Result<Report, TlbError> {
    let mut survey = Survey {
        config,
        plan: Plan::levels(config.quick),
        cancel,
        say,
        begun: Instant::now(),
        curves: Vec::new(),
        levels: Vec::new(),
        unclear: Vec::new(),
        granules: BTreeMap::new(),
        missing: Vec::new(),
    };
    // Small pages first: all that follows refers to their levels.
    survey.small_pages()?;
    let mut document = Vec::new();
    let mut first_use = Vec::new();
    if !config.levels_only {
        survey.other_pages()?;
        document = survey.document()?;
        survey.tell("first use of memory");
        first_use = touch::measure(survey.plan.first_uses)?;
    }
    let learned = survey.learned(&first_use);
    let mut report = Report {
        rows: Vec::new(),
        meaning: Vec::new(),
        machine,
        quick: config.quick,
        core,
        levels: survey.levels,
        unclear: survey.unclear,
        cpuid: cpuid::levels(),
        effective_granule_bytes: survey.granules,
        missing: survey.missing,
        first_use,
        learned,
        curves: survey.curves,
        seconds: survey.begun.elapsed().as_secs_f64(),
    };
    // Last: the comparison with the papers reads the whole report.
    report.rows = rows::rows(&report, &document);
    report.meaning = rows::meaning(&report);
    Ok(report)
}

impl<'a> Survey<'a> {
    /// Small pages whose frames are few: the levels themselves, by every path.
    fn small_pages(&mut self) -> Result<(), TlbError> {
        let mut memory = self.make(Pages::SmallAliased, PAGES_ALIASED)?;
        let Some(memory) = &mut memory else {
            return Ok(());
        };
        self.tell("loads, 4 KiB pages");
        let mut probe = self.probe(Path::Load)?;
        let plan = self.plan;
        // Small levels with nodes on lines of their own: nothing but translation changes.
        let near = self.sweep(&mut probe, memory, Layout::Near, NEAR, &plan)?;
        let far = self.sweep(&mut probe, memory, Layout::Far, far(&plan), &plan)?;
        // The near curve has less around the knees that both see.
        let near_end = NEAR.to as f64 * NEAR_SURE;
        let near = near.into_iter().filter(|knee| knee.entries < near_end);
        let mut knees: Vec<(Layout, Knee)> = near.map(|knee| (Layout::Near, knee)).collect();
        let beyond = knees
            .last()
            .map_or(0.0, |(_, knee)| knee.entries * 1.5)
            .max(near_end);
        let far = far
            .into_iter()
            .filter(|knee| knee.entries >= beyond.min(near_end));
        knees.extend(far.map(|knee| (Layout::Far, knee)));
        self.granules.insert(SMALL_BYTES.to_string(), SMALL_BYTES);
        // Entries of the level below: its misses have to be forced while this one is examined.
        let mut before = 0.0;
        for (layout, mut knee) in knees {
            if layout == Layout::Far {
                let windows = plan.windows * plan.passes;
                let added = translation(&mut probe, memory, &knee, windows)?;
                // Where translation adds too little of the rise, the caches cause it.
                if added.is_some_and(|added| added < knee.penalty_cycles * TRANSLATION_SHARE) {
                    continue;
                }
            }
            self.tell(&format!("sets of the level of {:.0}", knee.entries));
            let found =
                stride::indexing(&mut probe, memory, knee.entries, before, &plan.compared())?;
            match found {
                // The strides agree with the level's own knee, which was measured most closely.
                Some((Indexing::Full, entries)) if entries.total_cmp(&knee.entries).is_eq() => {
                    knee.entries = knee.entries_if_full();
                }
                Some((_, entries)) => knee.entries = entries,
                None => {}
            }
            // The first level's misses are counted by another event.
            let first = self.levels.is_empty();
            let checked = corroborate::check(&mut probe, memory, layout, &knee, first)?;
            let level = self.add_level(
                (Path::Load, Pages::SmallAliased, SMALL_BYTES),
                &knee,
                Some(checked),
            );
            if let Some(level) = level {
                level.indexing = found.map(|(indexing, _)| indexing);
            }
            before = knee.entries;
        }
        if self.config.levels_only {
            return Ok(());
        }
        for path in [Path::DmaCopy, Path::DmaBorrow] {
            self.tell(&format!("{}, 4 KiB pages", path.name()));
            self.dma(path, memory)?;
        }
        Ok(())
    }

    fn dma(&mut self, path: Path, memory: &mut Memory) -> Result<(), TlbError> {
        let mut probe = self.probe(path)?;
        let plan = self.plan.compared();
        let knees = self.sweep(&mut probe, memory, Layout::Far, far(&plan), &plan)?;
        for knee in knees {
            let none = Corroboration::none("counters are read for loads only");
            self.add_level((path, memory.kind(), SMALL_BYTES), &knee, Some(none));
        }
        Ok(())
    }

    /// The machine's other kinds of pages: the reach of one translation, and the cost of a miss.
    fn other_pages(&mut self) -> Result<(), TlbError> {
        let plan = self.plan.compared();
        let mut kinds = vec![Pages::SmallPlain, Pages::Transparent];
        kinds.extend([Pages::Reserved, Pages::Medium, Pages::Giant]);
        for kind in kinds {
            let Some(mut memory) = self.make(kind, plan.pages_max)? else {
                continue;
            };
            self.tell(&format!("loads, {}", kind.name()));
            let mut probe = self.probe(Path::Load)?;
            let knees = self.sweep(&mut probe, &mut memory, Layout::Far, far(&plan), &plan)?;
            // It is the reference for the advice; its levels were found with aliased pages.
            if kind == Pages::SmallPlain {
                continue;
            }
            // Hosts may back large pages by small ones: then one translation covers less than a
            // page.
            let granule = self
                .granule(&knees)
                .unwrap_or(kind.bytes())
                .min(kind.bytes());
            let known = self.granules.entry(kind.bytes().to_string());
            known.or_insert(granule);
            if granule < kind.bytes() {
                // The sweep counts small pages; several of them share a translation.
                let scale = (granule / SMALL_BYTES) as f64;
                for knee in &knees {
                    let mut knee = *knee;
                    knee.entries /= scale;
                    let none = Corroboration::none("counters are read for small pages only");
                    self.add_level((Path::Load, kind, granule), &knee, Some(none));
                }
            } else {
                self.whole_pages(&mut probe, kind, &plan)?;
            }
            if kind == Pages::Transparent {
                self.tell("dma-copy, 2 MiB pages");
                let mut probe = self.probe(Path::DmaCopy)?;
                let knees = self.sweep(&mut probe, &mut memory, Layout::Far, far(&plan), &plan)?;
                for knee in knees.iter().filter(|_| granule < kind.bytes()) {
                    let mut knee = *knee;
                    knee.entries /= (granule / SMALL_BYTES) as f64;
                    let none = Corroboration::none("counters are read for loads only");
                    self.add_level((Path::DmaCopy, kind, granule), &knee, Some(none));
                }
            }
        }
        Ok(())
    }

    /// Huge pages that one translation covers whole: one access in each.
    fn whole_pages(
        &mut self,
        probe: &mut Probe<'_>,
        kind: Pages,
        plan: &Plan,
    ) -> Result<(), TlbError> {
        let in_page = kind.bytes() / SMALL_BYTES;
        let most = match kind {
            // Each needs memory of its own.
            Pages::Transparent | Pages::Medium => {
                (settings::memory_available() / 4).min(WHOLE_BYTES_MAX) / kind.bytes()
            }
            // Few frames show in many pages; numbers reach 16 GiB.
            _ => (ALIASED_BYTES_MAX / kind.bytes()).min(plan.pages_max),
        };
        // Too few pages to leave the smallest level.
        if most < WHOLE_PAGES_MIN {
            return Ok(());
        }
        let Some(mut memory) = self.make(kind, most * in_page)? else {
            return Ok(());
        };
        let range = Range {
            from: 8,
            to: most,
            stride: in_page,
        };
        let knees = self.sweep(probe, &mut memory, Layout::Far, range, plan)?;
        for knee in knees {
            let none = Corroboration::none("counters are read for small pages only");
            self.add_level((Path::Load, kind, kind.bytes()), &knee, Some(none));
        }
        Ok(())
    }

    /// Bytes that one translation covers, by how much later the known levels are outgrown in steps
    /// of 4 KiB. `None` if none of them is.
    fn granule(&self, knees: &[Knee]) -> Option<usize> {
        let known = self.levels.iter().filter(|level| {
            level.path == Path::Load.name() && level.pages == Pages::SmallAliased.name()
        });
        let known: Vec<f64> = known.map(|level| level.knee.entries).collect();
        let same = |knee: &&Knee| {
            known
                .iter()
                .any(|entries| (knee.entries / entries).ln().abs() < SAME_FACTOR.ln())
        };
        // The same capacity as with small pages: each translation covers one of them.
        if knees.iter().any(|knee| same(&knee)) {
            return Some(SMALL_BYTES);
        }
        let (first, known) = (knees.first()?, known.first()?);
        // Else the ratio of the first knees, which is a power of two.
        let times = (first.entries / known).log2().round().max(0.0).exp2();
        Some(SMALL_BYTES * times as usize)
    }

    /// The document's own numbers of pages, each page a line further on.
    fn document(&mut self) -> Result<Vec<rows::DocumentPoint>, TlbError> {
        self.tell("the document's numbers of pages");
        let mut points = Vec::new();
        for kind in [Pages::SmallPlain, Pages::Transparent] {
            // A missing kind was reported before.
            let made = Memory::new(kind, rows::DOCUMENT_PAGES_MAX, self.config)?;
            let Ok(mut memory) = made else { continue };
            for (path, count) in rows::DOCUMENT_POINTS {
                let pages: Vec<usize> = (0..count).collect();
                let mut probe = self.probe(path)?;
                let windows = self.plan.windows * self.plan.passes;
                let point = probe.point(&mut memory, Layout::Near, &pages, windows)?;
                points.push(rows::DocumentPoint {
                    path,
                    huge: kind == Pages::Transparent,
                    pages: count,
                    cycles: point.cycles,
                });
            }
        }
        Ok(points)
    }

    /// Measures a curve, keeps it, and returns its steps.
    fn sweep(
        &mut self,
        probe: &mut Probe<'_>,
        memory: &mut Memory,
        layout: Layout,
        range: Range,
        plan: &Plan,
    ) -> Result<Vec<Knee>, TlbError> {
        // No further than there is memory.
        let range = Range {
            to: range.to.min(memory.small_pages() / range.stride),
            ..range
        };
        let curve = sweep::curve(probe, memory, layout, range, plan)?;
        let found = detect::find(&curve);
        self.curves.push(Measured {
            path: probe.path(),
            pages: memory.kind(),
            layout: match layout {
                Layout::Near => "near",
                Layout::Far => "far",
            },
            stride_bytes: range.stride * SMALL_BYTES,
            curve,
            knees: found.knees.clone(),
            rises_at_end: found.rises_at_end,
        });
        Ok(found.knees)
    }

    /// Adds a level, or notes it as unclear.
    fn add_level(
        &mut self,
        (path, pages, granule): (Path, Pages, usize),
        knee: &Knee,
        corroboration: Option<Corroboration>,
    ) -> Option<&mut Level> {
        let alike = |level: &&Level| level.path == path.name() && level.pages == pages.name();
        let entries = knee.entries.round().max(1.0) as usize;
        // Unsure levels are reported, but no advice rests on them.
        let list = match knee.confidence >= SURE_MIN {
            true => &mut self.levels,
            false => &mut self.unclear,
        };
        let level = Level {
            path: path.name(),
            page_bytes: pages.bytes(),
            pages: pages.name(),
            level: 1 + list.iter().filter(alike).count(),
            entries,
            reach_bytes: entries * granule,
            base_cycles: knee.base_cycles,
            penalty_cycles: knee.penalty_cycles,
            confidence: knee.confidence,
            corroborated: corroboration
                .as_ref()
                .is_some_and(|checked| checked.corroborated),
            corroboration,
            indexing: None,
            knee: *knee,
        };
        list.push(level);
        list.last_mut()
    }

    /// Figures for choosing page sizes on this machine.
    fn learned(&self, first_use: &[FirstUse]) -> PageAdvice {
        let of = |kind: Pages| {
            let mut curves = self.curves.iter();
            let measured = curves.find(|measured| {
                measured.path == Path::Load
                    && measured.pages == kind
                    && measured.stride_bytes == SMALL_BYTES
            })?;
            // Only what translation adds counts: the cost with few pages is the caches'.
            let first = measured.curve.fastest().first()?.1;
            let most = self.plan.compared().pages_max as f64;
            let sizes = sweep::spread(FAR_FROM as f64, most, 2).into_iter();
            let cost = |pages: usize| {
                let cycles = measured.curve.at(pages as f64).unwrap_or(first) - first;
                (pages * SMALL_BYTES, cycles)
            };
            Some(PageCost {
                page_bytes: kind.bytes(),
                reserved: matches!(kind, Pages::Reserved | Pages::Giant),
                cycles: sizes.map(cost).collect(),
            })
        };
        let kinds = [Pages::SmallPlain, Pages::Transparent, Pages::Reserved];
        PageAdvice {
            pages: kinds.into_iter().filter_map(of).collect(),
            first_touch_factor: first_use.first().map(FirstUse::factor),
        }
    }

    fn make(&mut self, kind: Pages, small_pages: usize) -> Result<Option<Memory>, TlbError> {
        match Memory::new(kind, small_pages, self.config)? {
            Ok(memory) => Ok(Some(memory)),
            Err(missing) => {
                self.missing.push(missing);
                Ok(None)
            }
        }
    }

    fn probe(&self, path: Path) -> Result<Probe<'a>, TlbError> {
        let mut probe = Probe::new(path, self.config.seed ^ SEED, self.cancel)?;
        // The time is shared: later probes repeat less on a busy machine.
        probe.be_patient_until(self.begun + self.plan.patience);
        Ok(probe)
    }

    fn tell(&mut self, what: &str) {
        let seconds = self.begun.elapsed().as_secs_f64();
        (self.say)(&format!("{seconds:5.1} s  {what}"));
    }
}

fn far(plan: &Plan) -> Range {
    Range {
        from: FAR_FROM,
        to: plan.pages_max,
        stride: 1,
    }
}

/// Half the lines of the smallest data cache in use: up to there a line for each page stays in it.
const NEAR: Range = Range {
    from: 8,
    to: 256,
    stride: 1,
};
/// Share of its range up to which the near curve shows a step whole.
const NEAR_SURE: f64 = 0.7;
/// Least number of lines that no longer fit the nearest cache when they lie at few places in a
/// page.
const FAR_FROM: usize = 32;
/// Pages of the map that levels and sets are measured on; a process may have 65,530 maps, and the
/// largest stride needs this many for a few dozen pages.
const PAGES_ALIASED: usize = 32_000;
const WHOLE_BYTES_MAX: usize = 2 << 30;
const ALIASED_BYTES_MAX: usize = 15 << 30;
const WHOLE_PAGES_MIN: usize = 64;
/// Least share of a step that must remain in the control measurement's difference.
const TRANSLATION_SHARE: f64 = 0.5;
const SAME_FACTOR: f64 = 1.25;
const SEED: u64 = 2026;

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

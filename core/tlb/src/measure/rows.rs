//! The document's figures next to ours, and the meaning of the levels.
//!
//! Source: papers/003 (`cell/papers/data/figures.toml`, `tlb`), papers/000 for the first use.

use crate::access::{Pages, Path, SMALL_BYTES};
use crate::report::{Level, Report, Row, bytes};
use crate::sets::Indexing;

/// One of the document's numbers of pages, measured here.
#[derive(Debug, Clone, Copy)]
pub(super) struct DocumentPoint {
    pub(super) path: Path,
    pub(super) huge: bool,
    pub(super) pages: usize,
    pub(super) cycles: f64,
}

/// Access paths and numbers of pages that the document reports.
pub(super) const DOCUMENT_POINTS: [(Path, usize); 3] = [
    (Path::Load, 3000),
    (Path::DmaCopy, 14),
    (Path::DmaCopy, 512),
];
/// Largest of these numbers of pages.
pub(super) const DOCUMENT_PAGES_MAX: usize = 3072;

/// The document's figures next to those that the report has so far.
pub(super) fn rows(report: &Report, document: &[DocumentPoint]) -> Vec<Row> {
    // A run of the levels alone has nothing to compare.
    if document.is_empty() {
        return Vec::new();
    }
    let point = |path, huge, pages| {
        let same = |point: &&DocumentPoint| {
            point.path == path && point.huge == huge && point.pages == pages
        };
        document.iter().find(same).map(|point| point.cycles)
    };
    // The papers' machines had one level, which corresponds to the largest here.
    let last = |path| levels(report, path, Pages::SmallAliased).last();
    let cycles = |name, paper, here| Row {
        name,
        paper,
        here,
        unit: "cycles",
        note: "here: dependent, in random order",
    };
    let entries = |name, paper, path| Row {
        name,
        paper,
        here: last(path).map(|level| level.entries as f64),
        unit: "entries",
        note: "here: the last level found",
    };
    let mut rows = vec![
        cycles(
            "load, 3,000 small pages",
            591.1,
            point(Path::Load, false, 3000),
        ),
        cycles(
            "load, 3,000 x 4 KiB in huge pages",
            444.6,
            point(Path::Load, true, 3000),
        ),
        cycles(
            "DMA get of 128 B, 14 small pages",
            568.7,
            point(Path::DmaCopy, false, 14),
        ),
        cycles(
            "DMA get of 128 B, 14 x 4 KiB in huge pages",
            544.7,
            point(Path::DmaCopy, true, 14),
        ),
        cycles(
            "DMA get of 128 B, 512 small pages",
            1039.0,
            point(Path::DmaCopy, false, 512),
        ),
        cycles(
            "DMA get of 128 B, 512 x 4 KiB in huge pages",
            543.9,
            point(Path::DmaCopy, true, 512),
        ),
        entries("translations a core holds (PPE)", 1024.0, Path::Load),
        entries(
            "translations an engine's DMA holds (SPE)",
            256.0,
            Path::DmaCopy,
        ),
        Row {
            here: last(Path::Load).map(|level| level.penalty_cycles),
            note: "here: a miss of the last level found",
            ..cycles("penalty of a miss (PPE)", 150.0, None)
        },
    ];
    rows.extend(report.first_use.iter().map(|first| Row {
        name: first.name,
        paper: 100.0,
        here: Some(first.factor()),
        unit: "times longer, untouched",
        note: "the papers: 100 to 1,000 times, SPE set-up",
    }));
    rows
}

/// Conclusions for the user of this machine, one sentence each.
pub(super) fn meaning(report: &Report) -> Vec<String> {
    let learned = &report.learned;
    let mut lines = Vec::new();
    let small: Vec<&Level> = levels(report, Path::Load, Pages::SmallAliased).collect();
    if small.is_empty() {
        lines.push(
            "No knee found: no level of translation is outgrown within the pages tried, or the \
             machine was too busy to see one; run it again."
                .to_owned(),
        );
    }
    let far = report.curves.iter().find(|measured| {
        let small = measured.path == Path::Load && measured.pages == Pages::SmallAliased;
        small && measured.layout == "far"
    });
    if far.is_some_and(|far| far.rises_at_end) {
        lines.push(
            "The cost still rises at the largest working set tried: a level that is larger \
                    may lie beyond."
                .to_owned(),
        );
    }
    for level in &small {
        lines.push(format!(
            "A 4 KiB working set outgrows level {} at {} ({} entries{}): each access then costs \
             {:.0} cycles more.",
            level.level,
            bytes(level.reach_bytes),
            level.entries,
            match level.indexing {
                Some(Indexing::Full) => ", any for any page".to_owned(),
                Some(Indexing::LowBits { sets, ways }) => format!(", {sets} sets of {ways}"),
                Some(Indexing::Other { ways_min }) =>
                    format!(", in sets not chosen by low bits alone, of {ways_min} or more"),
                None => String::new(),
            },
            level.penalty_cycles
        ));
    }
    if let Some(Indexing::LowBits { sets, ways }) = small.last().and_then(|last| last.indexing) {
        lines.push(format!(
            "Pages {} apart meet in one set of {ways}: strides of that size miss with only {} of \
             them.",
            bytes(sets * SMALL_BYTES),
            ways + 1
        ));
    }
    for (size, &granule) in &report.effective_granule_bytes {
        // The keys are texts because JSON has no other.
        let page = size.parse::<usize>().unwrap_or(granule);
        if granule < page {
            lines.push(format!(
                "Pages of {} do not extend the reach here: one translation covers {} of them (the \
                 host backs them so); they can only shorten the walk.",
                bytes(page),
                bytes(granule)
            ));
        } else if page > SMALL_BYTES {
            lines.push(format!(
                "One translation covers a whole page of {}.",
                bytes(page)
            ));
        }
    }
    // Twice the reach: where the level's misses dominate.
    let sizes = small
        .iter()
        .map(|level| level.reach_bytes * 2)
        .filter(|_| learned.pages.len() > 1);
    for size in sizes {
        let advice = learned.advise(size);
        lines.push(match advice.page_bytes > SMALL_BYTES {
            true => format!(
                "For {} in use: {} pages{} save {:.0} cycles per access.",
                bytes(size),
                bytes(advice.page_bytes),
                if advice.reserved { ", reserved," } else { "" },
                advice.saves_cycles
            ),
            false => format!(
                "For {} in use: larger pages save nothing worth having.",
                bytes(size)
            ),
        });
    }
    if let Some(first) = report.first_use.first() {
        let verdict = if learned.advise(0).touch {
            "touch memory ahead"
        } else {
            "no need to touch"
        };
        lines.push(format!(
            "The first {} from memory that nobody touched takes {:.0} times as long ({:.0} against \
             {:.0} ns): {verdict}.",
            first.name,
            first.factor(),
            first.untouched_ns,
            first.touched_ns
        ));
    }
    lines
}

fn levels(report: &Report, path: Path, pages: Pages) -> impl Iterator<Item = &Level> {
    let of = report.levels.iter();
    of.filter(move |level| level.path == path.name() && level.pages == pages.name())
}

//! A run as tables: for a terminal, and as Markdown for `docs/results`.
//!
//! Why here: figures are pasted, not retyped. Must stay true: losses and misses are printed like
//! wins. Pure. Source: own.

use super::graphs::RUNNERS;
use super::report::Report;
use crate::frame::text;
use crate::measure::markdown;
use crate::measure::stats::{number, percent};
use sidecore_terminal::{Table, Text};

/// The whole report as Markdown.
#[must_use]
pub fn render(report: &Report) -> String {
    let mut out = report.head.markdown("few rounds, short ones");
    for (title, table) in groups(report) {
        out.push_str(&format!("\n### {title}\n\n{}", table.markdown()));
    }
    for line in &report.missing {
        out.push_str(&format!("\nNot measured: {line}\n"));
    }
    out.push_str(&markdown::failures(&report.figures.failures));
    out
}

/// The whole report for people at a terminal.
#[must_use]
pub fn text(report: &Report) -> Text {
    let mut out = text::head(&report.head, "few rounds, short ones");
    for (title, table) in groups(report) {
        out.line("");
        out.line(title);
        out.table(table);
    }
    for line in &report.missing {
        out.line(format!("not measured: {line}"));
    }
    text::failures(&mut out, &report.figures);
    out
}

/// Title and table of each group that was measured.
fn groups(report: &Report) -> Vec<(&'static str, Table)> {
    let groups = [
        ("Round trips", trips(report)),
        (
            "Workers of 11 us on the host and 96 us on an engine",
            edtlp(report),
        ),
        ("Empty tasks", figures(&report.throughput)),
        ("Two processes on the same cores", sharing(report)),
        ("Idle", figures(&report.idle)),
        ("The kernel's time slice", figures(&report.slice)),
        (
            "Loops of all sizes, microseconds for one pass",
            loops(report),
        ),
        ("Threads that call at once", callers(report)),
        (
            "Constructs, microseconds more than their share of the work",
            overheads(report),
        ),
        (
            "Graphs of tasks: shortest tasks that are 50 % and 80 % efficient, microseconds",
            patterns(report),
        ),
        ("One thread, two engines, kernels of 20 us", jobs(report)),
        (
            "Root's client beside hostile programs of another user",
            strangers(report),
        ),
        ("Clients without cores of their own", unpinned(report)),
        (
            "Kernels beside their libraries, and loaded beside built in",
            peers(report, "kernels"),
        ),
        (
            "A kernel's DMA beside a plain loop",
            peers(report, "streaming"),
        ),
        ("Programs that use zlib", peers(report, "zlib")),
        ("What is wanted", targets(report)),
    ];
    groups
        .into_iter()
        .filter(|(_, it)| !it.is_empty())
        .collect()
}

/// The comparisons of one group.
fn peers(report: &Report, group: &str) -> Table {
    let all = report.figures.peers.iter();
    let of_group: Vec<_> = all.filter(|peer| peer.group == group).cloned().collect();
    markdown::peers(&of_group)
}

fn trips(report: &Report) -> Table {
    let heads = [
        "way",
        "median ns",
        "p99 ns",
        "spread",
        "to the bare line",
        "spread",
    ];
    let rows = report.round_trip_ns.iter().map(|trip| {
        vec![
            trip.name.into(),
            number(trip.median),
            number(trip.p99),
            percent(trip.spread),
            format!("{:.2}", trip.ratio),
            percent(trip.ratio_spread),
        ]
    });
    Table::of(&heads, rows.collect())
}

fn edtlp(report: &Report) -> Table {
    let heads = [
        "workers",
        "cores",
        "hog",
        "spinning us",
        "fibers us",
        "spread",
        "blocking us",
        "spinning / fibers (spread)",
        "fibers / blocking (spread)",
        "p99 us of each",
    ];
    let rows = report.edtlp.iter().map(|row| {
        vec![
            row.workers.to_string(),
            row.worker_cores.to_string(),
            if row.hog { "yes" } else { "" }.into(),
            number(row.spin_us),
            number(row.edtlp_us),
            percent(row.edtlp_spread),
            number(row.block_us),
            format!("{:.2} ({})", row.ratio, percent(row.ratio_spread)),
            format!("{:.2} ({})", row.to_block, percent(row.to_block_spread)),
            format!(
                "{} {} {}",
                number(row.spin_p99_us),
                number(row.edtlp_p99_us),
                number(row.block_p99_us)
            ),
        ]
    });
    Table::of(&heads, rows.collect())
}

fn figures(figures: &[super::report::Figure]) -> Table {
    let heads = ["what", "here", "unit", "spread", "note"];
    let rows = figures.iter().map(|figure| {
        vec![
            figure.name.clone(),
            number(figure.here),
            figure.unit.into(),
            percent(figure.spread),
            figure.note.clone(),
        ]
    });
    Table::of(&heads, rows.collect())
}

fn sharing(report: &Report) -> Table {
    let heads = [
        "what",
        "one alone",
        "slower of two",
        "faster",
        "unit",
        "fair share",
        "spread",
        "note",
    ];
    let rows = report.sharing.iter().map(|row| {
        vec![
            row.name.clone(),
            number(row.alone),
            number(row.slower),
            number(row.faster),
            row.unit.into(),
            format!("{:.4}", row.fair_share),
            percent(row.spread),
            row.note.clone(),
        ]
    });
    Table::of(&heads, rows.collect())
}

fn loops(report: &Report) -> Table {
    let heads = [
        "loops",
        "sidecore",
        "spread",
        "serial",
        "rayon",
        "OpenMP, active",
        "to the best (spread)",
        "",
    ];
    let rows = report.loops.iter().map(|row| {
        vec![
            row.name.clone(),
            number(row.sidecore_us),
            percent(row.spread),
            number(row.serial_us),
            number(row.rayon_us),
            row.openmp_us.map_or("not measured".into(), number),
            format!("{:.2} ({})", row.ratio, percent(row.ratio_spread)),
            row.best.into(),
        ]
    });
    Table::of(&heads, rows.collect())
}

fn callers(report: &Report) -> Table {
    let heads = [
        "callers",
        "work us",
        "sidecore p50, p99 us",
        "calls/s",
        "least/most",
        "rayon p50, p99 us",
        "calls/s",
        "least/most",
        "p99 ratio (spread)",
    ];
    let rows = report.callers.iter().map(|row| {
        let pair = |p50, p99| format!("{} {}", number(p50), number(p99));
        vec![
            row.callers.to_string(),
            number(row.work_us),
            pair(row.sidecore_p50_us, row.sidecore_p99_us),
            number(row.sidecore_per_s),
            format!("{:.2}", row.sidecore_least),
            pair(row.rayon_p50_us, row.rayon_p99_us),
            number(row.rayon_per_s),
            format!("{:.2}", row.rayon_least),
            format!("{:.2} ({})", row.p99_ratio, percent(row.p99_ratio_spread)),
        ]
    });
    Table::of(&heads, rows.collect())
}

fn overheads(report: &Report) -> Table {
    let heads = [
        "construct",
        "delays",
        "us each",
        "sidecore",
        "spread us",
        "rayon",
        "OpenMP, active",
        "oneTBB",
        "best peer",
    ];
    let peer = |us: Option<f64>| us.map_or("not measured".into(), number);
    let rows = report.overheads.iter().map(|row| {
        vec![
            row.construct.into(),
            row.delays.to_string(),
            number(row.delay_us),
            number(row.sidecore_us),
            number(row.sidecore_spread_us),
            peer(row.rayon_us),
            peer(row.openmp_us),
            peer(row.tbb_us),
            row.best.into(),
        ]
    });
    Table::of(&heads, rows.collect())
}

/// A row a pattern, a column a runtime.
fn patterns(report: &Report) -> Table {
    let heads = [
        "pattern",
        "tasks",
        "dependences",
        "sidecore",
        "rayon",
        "OpenMP, loops",
        "OpenMP, tasks",
        "oneTBB, flow graph",
    ];
    let mut rows: Vec<Vec<String>> = Vec::new();
    // Those of a pattern follow one another.
    for of_pattern in report.patterns.chunk_by(|a, b| a.pattern == b.pattern) {
        let first = &of_pattern[0];
        let mut cells = vec![
            first.pattern.to_owned(),
            first.tasks.to_string(),
            first.dependences.to_string(),
        ];
        cells.extend(RUNNERS.map(|runner| {
            let row = of_pattern.iter().find(|row| row.runner == runner);
            let us = |us: Option<f64>| us.map_or("-".to_owned(), number);
            row.map_or("not measured".into(), |row| {
                format!("{}, {}", us(row.metg50_us), us(row.metg80_us))
            })
        }));
        rows.push(cells);
    }
    Table::of(&heads, rows)
}

fn strangers(report: &Report) -> Table {
    let heads = [
        "beside",
        "attach p50, longest ms",
        "call p50, p99 us (spread)",
        "wrong",
        "memory of the attackers MiB",
    ];
    let rows = report.strangers.iter().map(|row| {
        let (attach, longest) = (number(row.attach_p50_ms), number(row.attach_longest_ms));
        let (p50, p99) = (number(row.call_p50_us), number(row.call_p99_us));
        vec![
            row.beside.clone(),
            format!("{attach} {longest}"),
            format!("{p50} {p99} ({})", percent(row.spread)),
            row.wrong.to_string(),
            number(row.held_bytes as f64 / 1_048_576.0),
        ]
    });
    Table::of(&heads, rows.collect())
}

fn unpinned(report: &Report) -> Table {
    let heads = [
        "clients",
        "calls/s",
        "beside one (spread)",
        "p50, p99 us",
        "least/most",
        "done by clients",
    ];
    let rows = report.unpinned.iter().map(|row| {
        let spread = percent(row.beside_one_spread);
        vec![
            row.clients.to_string(),
            number(row.calls_per_s),
            format!("{:.2} ({spread})", row.beside_one),
            format!("{} {}", number(row.p50_us), number(row.p99_us)),
            format!("{:.2}", row.least_most),
            percent(row.on_host),
        ]
    });
    Table::of(&heads, rows.collect())
}

fn jobs(report: &Report) -> Table {
    let heads = [
        "open jobs",
        "jobs/s",
        "engines busy %",
        "p50 us",
        "blocking calls/s",
        "engines busy %",
        "ratio (spread)",
    ];
    let rows = report.jobs.iter().map(|row| {
        vec![
            row.depth.to_string(),
            number(row.per_s),
            format!("{:.1}", row.busy_percent),
            number(row.p50_us),
            number(row.calls_per_s),
            format!("{:.1}", row.calls_busy_percent),
            format!("{:.2} ({})", row.ratio, percent(row.ratio_spread)),
        ]
    });
    Table::of(&heads, rows.collect())
}

fn targets(report: &Report) -> Table {
    let heads = ["what", "wanted", "here", ""];
    let rows = report.targets.iter().map(|target| {
        vec![
            target.name.clone(),
            target.wanted.clone(),
            number(target.here),
            if target.met { "met" } else { "**missed**" }.into(),
        ]
    });
    Table::of(&heads, rows.collect())
}

//! Cost of a request for the engine, alone and among thousands of idle sessions.
//!
//! Why here: the document's stack held 16 sessions in the local store, 128 with main memory behind
//! it; its two configurations are compared, and the second is filled with a hundred thousand.
//! Engine time is the median over batches of 32, so that a batch during which another program had
//! the core does not count. Source: the NetX paper, sections 3.9 and 4.3.

pub(super) mod hand;

use super::report::{Curve, Point};
use super::{Bench, BenchError, Better, Candidate, Comparison, Group};
use crate::measure::stats::Series;
use hand::Server;
use sidecore_net::Placement;
use sidecore_net_stack::{CONTROL_BLOCK_BYTES, LOCAL_SESSIONS};
use sidecore_sys::clock;
use std::sync::atomic::AtomicBool;

/// The group.
pub(super) const GROUP: Group = Group {
    name: "sessions",
    run,
};

/// Sessions, their memory, and the target for the share of the hot rate that they keep.
const CASES: [(usize, Placement, Option<f64>); 6] = [
    (HOT, Placement::LocalStore, None),
    (HOT, Placement::MainMemory, None),
    (LOCAL_SESSIONS, Placement::LocalStore, None),
    (LOCAL_SESSIONS, Placement::MainMemory, None),
    (10_000, Placement::MainMemory, Some(0.8)),
    (MOST, Placement::MainMemory, Some(0.7)),
];

fn run(bench: &mut Bench<'_>) -> Result<(), BenchError> {
    let requests = bench.choose(40_000, 400_000);
    let mut servers = Vec::with_capacity(CASES.len());
    let mut idle_bytes = 0.0;
    for (count, placement, _) in CASES {
        bench.check()?;
        let (before, _) = clock::memory_in_use()?;
        let server = Server::new(count, placement)?;
        // The last has the most sessions, and memory freed by the others does not hide its own.
        let taken = clock::memory_in_use()?.0.saturating_sub(before);
        idle_bytes = (taken as f64 - server.client_bytes() as f64) / count as f64;
        servers.push(server);
    }
    // One round to warm up.
    for server in &mut servers {
        server.run(0, &bench.cancel())?;
    }
    let mut candidates = Vec::with_capacity(CASES.len());
    for (server, case) in servers.iter_mut().zip(&CASES) {
        let measure = |cancel: &AtomicBool| server.run(requests, cancel);
        candidates.push(Candidate::of_one(case_name(case), measure));
    }
    let series = bench.interleave(METRIC, "ns", &mut candidates)?;
    drop(candidates);
    let lost = CASES.iter().zip(&servers);
    let lost: usize = lost.map(|(case, server)| case.0 - server.live()).sum();
    report(bench, &series);
    bench
        .row(
            "sessions that were lost, of all",
            None,
            &one(lost as f64),
            "",
        )
        .target(Better::Lower, 0.0);
    bench
        .row("memory of an idle session", None, &one(idle_bytes), "B")
        .target(Better::Lower, 1024.0)
        .note("what the process grew by when it had opened 100,000");
    let (local, main) = (
        one(LOCAL_SESSIONS as f64),
        one(servers[CASES.len() - 1].live() as f64),
    );
    bench.row("sessions at once, local store only", Some(16.0), &local, "");
    bench
        .row(
            "sessions at once, main memory behind it",
            Some(128.0),
            &main,
            "",
        )
        .note("as many as were opened here; `sessions_max` allows 16 million");
    let block = one(CONTROL_BLOCK_BYTES as f64);
    bench
        .row(
            "TCP control block in the local store",
            Some(1024.0),
            &block,
            "B",
        )
        .note("what a packet of an established session needs");
    Ok(())
}

/// The rounds' results.
fn report(bench: &mut Bench<'_>, series: &[Option<Series>]) {
    let Some(hot) = &series[1] else {
        return;
    };
    bench
        .row(
            "engine time of a hot request and its answer",
            None,
            hot,
            "ns",
        )
        .target(Better::Lower, 250.0)
        .note("64 sessions, 64 bytes each way, batches of 32");
    for (case, series) in CASES.iter().zip(series).skip(2) {
        let (Some(series), Some(target)) = (series, case.2) else {
            continue;
        };
        let kept = hot.over(series);
        bench
            .row(
                format!("rate kept with {}", case_name(case)),
                None,
                &kept,
                "of the hot rate",
            )
            .target(Better::Higher, target);
    }
    for (local, main) in [(0, 1), (2, 3)] {
        let sessions = CASES[local].0;
        bench.compare(
            &Comparison {
                name: "main memory behind the local store",
                metric: &format!("{METRIC}, local store only, {sessions} sessions"),
                unit: "ns",
                better: Better::Lower,
                target: None,
                note: "the document's two configurations",
            },
            series[local].as_ref(),
            series[main].as_ref(),
        );
    }
    for (placement, name, paper) in [
        (Placement::LocalStore, "local store only", None),
        (Placement::MainMemory, "main memory behind it", None),
    ] {
        let points = CASES
            .iter()
            .zip(series)
            .filter(|(case, _)| case.1 == placement);
        let points = points.filter_map(|(case, series)| {
            let share = hot.over(series.as_ref()?);
            Some(Point::new(case.0 as f64, &share))
        });
        bench.curve(Curve {
            group: GROUP.name,
            chart: "requests of 64 bytes: rate kept with so many live sessions",
            name: name.into(),
            over: "sessions",
            unit: "of the hot rate",
            points: points.collect(),
            paper,
        });
    }
}

fn case_name((count, placement, _): &(usize, Placement, Option<f64>)) -> String {
    let place = match placement {
        Placement::LocalStore => "local store only",
        Placement::MainMemory => "main memory",
    };
    format!("{count} sessions, {place}")
}

/// A figure that is counted once.
fn one(value: f64) -> Series {
    Series::new(vec![value])
}

const METRIC: &str = "engine time of a request and its answer";
/// Number of sessions that is small enough for everything to stay cached, with full batches.
const HOT: usize = 64;
const MOST: usize = 100_000;

//! The paper's throughput figures: TCP over segment size and window, UDP over payload, end to end
//! and looped back, and a round with nothing to do.
//!
//! Why here: *paper / this machine*, under the paper's settings: programs that call the stack from
//! its own loop, no window scaling, no timestamps, the paper's segment sizes and windows. Two
//! things differ: checksums are computed and checked, and the wire is a ring in shared memory, so
//! that "wire speed" is no bound. Rates include the IP and MAC headers, as there.
//! Source: the NetX paper (docs/papers.md), section 4 (figures 6 to 11).

use super::report::{Curve, Point};
use super::served::config;
use super::stacks::{Load, Way};
use super::{Bench, BenchError, Better, Candidate, Group};
use crate::measure::stats::Series;
use sidecore_net::Placement;
use sidecore_net::engine::{Engine, EngineOptions};
use sidecore_net::nic::Nic;
use sidecore_net::nic::pair::{self, PairOptions};
use sidecore_net::sock::control::{Admission, Control};
use std::time::{Duration, Instant};

/// The group.
pub(super) const GROUP: Group = Group {
    name: "papers",
    run,
};

fn run(bench: &mut Bench<'_>) -> Result<(), BenchError> {
    for figure in FIGURES {
        draw(bench, figure)?;
    }
    round_robin(bench)
}

/// One of the paper's figures, measured again.
struct Figure {
    chart: &'static str,
    name: &'static str,
    over: &'static str,
    /// Values of the horizontal axis; the last is where the paper's figure is.
    points: &'static [u32],
    /// The paper's figure in Gb/s, if its text has one.
    paper: Option<f64>,
    placement: Placement,
    /// True for two stacks, false for one that talks to itself.
    end_to_end: bool,
    load: fn(u32) -> (Load, u32),
    note: &'static str,
}

const END_TO_END: &str = "TCP, end to end";
const WINDOWS: &str = "TCP over the window";
const LOOPED: &str = "looped back";

const FIGURES: &[Figure] = &[
    Figure {
        chart: END_TO_END,
        name: "main memory, window 60,000",
        over: "segment bytes",
        points: &[536, 1024, 1460, 3000, 8960, 5000],
        paper: Some(8.5),
        placement: Placement::MainMemory,
        end_to_end: true,
        load: |mss| (tcp(60_000), mss),
        note: "segments of 5,000 bytes",
    },
    Figure {
        chart: END_TO_END,
        name: "local store only, window 23,360",
        over: "segment bytes",
        points: &[536, 750, 1024, 1460],
        paper: Some(5.9),
        placement: Placement::LocalStore,
        end_to_end: true,
        load: |mss| (tcp(23_360), mss),
        note: "segments of 1,460 bytes",
    },
    Figure {
        chart: WINDOWS,
        name: "main memory, segments of 5,000",
        over: "window bytes",
        points: &[10_000, 20_000, 30_000, 40_000, 60_000],
        paper: Some(8.5),
        placement: Placement::MainMemory,
        end_to_end: true,
        load: |window| (tcp(window), 5000),
        note: "a window of 60,000 bytes",
    },
    Figure {
        chart: WINDOWS,
        name: "local store only, segments of 1,460",
        over: "window bytes",
        points: &[5_840, 11_680, 46_720, 23_360],
        paper: Some(5.9),
        placement: Placement::LocalStore,
        end_to_end: true,
        load: |window| (tcp(window), 1460),
        note: "a window of 23,360 bytes",
    },
    Figure {
        chart: LOOPED,
        name: "TCP, window 26,280",
        over: "segment or payload bytes",
        points: &[536, 750, 1024, 1460],
        paper: Some(4.6),
        placement: Placement::LocalStore,
        end_to_end: false,
        load: |mss| (tcp(26_280), mss),
        note: "segments of 1,460 bytes; one core sends and receives",
    },
    Figure {
        chart: LOOPED,
        name: "UDP",
        over: "segment or payload bytes",
        points: &[64, 256, 512, 1024, 1472],
        paper: Some(7.5),
        placement: Placement::LocalStore,
        end_to_end: false,
        load: |bytes| (udp(bytes), 1460),
        note: "payloads of 1,472 bytes; one core sends and receives",
    },
    Figure {
        chart: "UDP, end to end",
        name: "main memory",
        over: "payload bytes",
        points: &[64, 256, 512, 1024, 1472, 4096, 8972],
        paper: Some(10.0),
        placement: Placement::MainMemory,
        end_to_end: true,
        load: |bytes| (udp(bytes), 8960),
        note: "payloads of 8,972 bytes; there the wire's speed, almost",
    },
    Figure {
        chart: "UDP, end to end",
        name: "local store only",
        over: "payload bytes",
        points: &[64, 256, 512, 1024, 1472],
        paper: None,
        placement: Placement::LocalStore,
        end_to_end: true,
        load: |bytes| (udp(bytes), 1460),
        note: "payloads of 1,472 bytes; there less than the wire's speed",
    },
];

fn tcp(window: u32) -> Load {
    Load::Tcp {
        window: Some(window),
    }
}

fn udp(bytes: u32) -> Load {
    Load::Udp {
        bytes: bytes as usize,
    }
}

/// Measures a figure at its points, and reports it as a curve and a row.
fn draw(bench: &mut Bench<'_>, figure: &Figure) -> Result<(), BenchError> {
    let points = figure.points;
    let time = Duration::from_millis(bench.choose(40, 200));
    let cpus = [bench.engine_cpu(), bench.partner_cpu()];
    let candidate = |&point: &u32| {
        let (load, mss) = (figure.load)(point);
        let way = Way {
            load,
            mtu_bytes: mss as usize + PLAIN_HEADER_BYTES,
            placement: figure.placement,
            cpus: [Some(cpus[0]), figure.end_to_end.then_some(cpus[1])],
        };
        Candidate::of_one(point.to_string(), move |cancel| {
            let carried = way.carry(time, cancel)?;
            // The paper's rates include the headers.
            let headers = match load {
                Load::Tcp { .. } => ETHERNET_BYTES + PLAIN_HEADER_BYTES,
                Load::Udp { .. } => ETHERNET_BYTES + IP_BYTES + UDP_BYTES,
            };
            let whole = 1.0 + headers as f64 / carried.payload_bytes;
            Ok(carried.bits_s * whole / 1e9)
        })
    };
    let mut candidates: Vec<_> = points.iter().map(candidate).collect();
    let metric = format!("{}, {}", figure.chart, figure.name);
    let series = bench.interleave(&metric, "Gb/s", &mut candidates)?;
    drop(candidates);
    if let Some(Some(last)) = series.last() {
        let row = bench.row(&metric, figure.paper, last, "Gb/s");
        row.note(figure.note);
        if let Some(paper) = figure.paper {
            row.target(Better::Higher, paper);
        }
    }
    let measured = points.iter().zip(&series);
    let measured = measured.filter_map(|(&at, series)| Some((at, series.as_ref()?)));
    let mut curve: Vec<_> = measured
        .map(|(at, series)| Point::new(f64::from(at), series))
        .collect();
    // The paper's point is measured last, and a curve is drawn in order.
    curve.sort_by(|one, other| one.at.total_cmp(&other.at));
    let at = points.last().copied().unwrap_or(0);
    bench.curve(Curve {
        group: GROUP.name,
        chart: figure.chart,
        name: figure.name.into(),
        over: figure.over,
        unit: "Gb/s",
        points: curve,
        paper: figure.paper.map(|paper| (f64::from(at), paper)),
    });
    Ok(())
}

/// A round of the loop in which nothing happens, with applications to look at.
fn round_robin(bench: &mut Bench<'_>) -> Result<(), BenchError> {
    let rounds = bench.choose(20_000_usize, 200_000);
    let (nic, _far) = pair::link(&PairOptions::default())?;
    let stack = sidecore_net::memory::mapped_stack(config(1), &nic.capabilities())?;
    let socket = bench.config.scratch.join("round.sock");
    let (_door, server) = Control::start(&socket, Admission::default())?;
    let options = EngineOptions {
        // A sleep would count as a round.
        grace: None,
        ..EngineOptions::default()
    };
    let mut engine = Engine::new(nic, stack, Some(server), options);
    let cpu = bench.engine_cpu();
    let mut candidates = [Candidate::of_one("a round with nothing to do", |cancel| {
        let engine = &mut engine;
        super::rpc::on_core(cpu, move || {
            let mut spent_ns: Vec<f64> = Vec::with_capacity(rounds / ROUNDS_TOGETHER);
            for _ in 0..rounds / ROUNDS_TOGETHER {
                super::interrupted(cancel)?;
                let begun = Instant::now();
                // A read of the clock in each round would show in its time.
                for _ in 0..ROUNDS_TOGETHER {
                    engine.round(&mut |_| 0)?;
                }
                spent_ns.push(begun.elapsed().as_nanos() as f64 / ROUNDS_TOGETHER as f64);
            }
            Ok(Series::new(spent_ns).median())
        })
    })];
    let series = bench.interleave("a round with nothing to do", "ns", &mut candidates)?;
    drop(candidates);
    if let Some(Some(series)) = series.first() {
        bench
            .row(
                "a round of the loop with nothing to do",
                Some(400.0),
                series,
                "ns",
            )
            .target(Better::Lower, 400.0)
            .note("the paper's round robin of its threads at low load");
    }
    Ok(())
}

const ETHERNET_BYTES: usize = 14;
const IP_BYTES: usize = 20;
const UDP_BYTES: usize = 8;
/// IPv4 and TCP without options.
const PLAIN_HEADER_BYTES: usize = 40;
/// Rounds between two reads of the clock.
const ROUNDS_TOGETHER: usize = 1000;

//! Figures 7, 8 and 9 of the paper, by the model.
//!
//! The figures' curves were not printed as numbers. The text's statements about them are checked as
//! properties: the winner in each range.
//!
//! Source: the multigrain scheduling paper of 2007, sections 5.4 and 5.5, Figures 7 to 9.

use crate::machine::Machine;
use crate::model::{Options, simulate};
use crate::property::Property;
use crate::tables::in_parallel;
use serde::Serialize;
use sidecore_sched::{Edtlp, Equi, Hybrid, Measured, Mgps, Policy};

/// One number of bootstraps under each policy, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Point {
    /// Tasks to be done.
    pub bootstraps: u32,
    /// EDTLP: one engine a task.
    pub edtlp_s: f64,
    /// The best static EDTLP-LLP for this number.
    pub hybrid_s: f64,
    /// Engines a loop of that.
    pub hybrid_engines: u32,
    /// As many tasks as there are engines under EDTLP, then the rest by the static hybrid: the
    /// paper's best scheme, which needs an oracle. Up to twice as many tasks as engines.
    pub mixed_s: Option<f64>,
    /// MGPS, capped at the measured best width.
    pub mgps_s: f64,
    /// `equi`.
    pub equi_s: f64,
    /// Most tasks that `equi` kept live.
    pub equi_live: u32,
    /// No schedule is faster: engines or host threads all busy, or the longest task alone.
    pub lower_bound_s: f64,
}

/// The numbers of bootstraps of Figures 7(a) to 9(a), and some of (b).
pub const BOOTSTRAPS: [u32; 24] = [
    1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 20, 24, 28, 32, 36, 48, 64, 128,
];

/// All points of `bootstraps` on `machine`. `progress` is called, from any thread, after each of
/// the `bootstraps.len()` points.
#[must_use]
pub fn points(
    machine: &Machine,
    bootstraps: &[u32],
    seed: u64,
    progress: &(dyn Fn() + Sync),
) -> Vec<Point> {
    in_parallel(bootstraps.to_vec(), |count| {
        let point = point(machine, count, seed);
        progress();
        point
    })
}

/// One point.
#[must_use]
pub fn point(machine: &Machine, bootstraps: u32, seed: u64) -> Point {
    let run = |tasks: u32, policy: &mut dyn Policy| {
        simulate(machine, tasks, policy, Options::for_tasks(tasks, seed))
    };
    let engines = machine.engines.count;
    let hybrid = |tasks: u32| {
        static_widths(engines)
            .map(|width| {
                let mut policy = Measured::new(Hybrid::new(width));
                (run(tasks, &mut policy).seconds, width)
            })
            // Chosen afterwards: a static scheme at its best.
            .min_by(|a, b| a.0.total_cmp(&b.0))
            .unwrap_or((f64::INFINITY, 1))
    };
    let edtlp = |tasks: u32| run(tasks, &mut Measured::new(Edtlp)).seconds;
    let edtlp_s = edtlp(bootstraps);
    let (hybrid_s, hybrid_engines) = hybrid(bootstraps);
    let mixed_s = match bootstraps.checked_sub(engines) {
        // With no more tasks than engines one of the two is all of it.
        None | Some(0) => Some(edtlp_s.min(hybrid_s)),
        Some(rest) if rest <= engines => Some(edtlp(engines) + hybrid(rest).0),
        Some(_) => None,
    };
    let equi = run(bootstraps, &mut Equi::default());
    Point {
        bootstraps,
        edtlp_s,
        hybrid_s,
        hybrid_engines,
        mixed_s,
        mgps_s: run(bootstraps, &mut Measured::new(Mgps::default())).seconds,
        equi_s: equi.seconds,
        equi_live: equi.live_max,
        lower_bound_s: lower_bound_s(machine, bootstraps),
    }
}

/// No schedule of `tasks` tasks on `machine` is faster than this.
#[must_use]
pub(crate) fn lower_bound_s(machine: &Machine, tasks: u32) -> f64 {
    let task = &machine.task;
    let shares: f64 = task.loops.iter().map(|each| each.share).sum();
    let mean = |of: &dyn Fn(&crate::machine::Loop) -> f64| {
        let sum: f64 = task.loops.iter().map(|each| each.share * of(each)).sum();
        sum / shares * task.offloads as f64 * 1e-6
    };
    let engines = machine.engines.count;
    // Least work: the engine time of each width. The host's own version is left out, because it is
    // slower than one engine wherever off-loading is worth it.
    let least = |each: &crate::machine::Loop| {
        (1..=engines)
            .map(|width| each.relative_time(width) * f64::from(width))
            .fold(1.0, f64::min)
    };
    let engines_s = mean(&|each| each.engine_us * least(each)) / f64::from(engines);
    let host = &machine.host;
    let beside = f64::from(host.threads_per_core - 1);
    let slower = 1.0 + (host.smt_factor - 1.0) * beside;
    // Threads of a core share it; with a factor above their number one alone would be faster.
    let speed = (f64::from(host.threads_per_core) / slower).max(1.0) * f64::from(host.cores);
    let host_s = mean(&|each| each.host_us) / speed;
    // One task cannot be faster than its own host work and its widest loops.
    let alone_s = mean(&|each| each.host_us + each.engine_us * each.best_relative_time(engines));
    alone_s.max(f64::from(tasks) * engines_s.max(host_s))
}

/// The static hybrids that are compared: 2, 4, ... engines a loop, up to half of them.
pub(crate) fn static_widths(engines: u32) -> impl Iterator<Item = u32> {
    (1..6)
        .map(|power| 1 << power)
        .filter(move |&width| 2 * width <= engines.max(4))
}

/// The paper's statements about Figure 7, checked on `points`.
#[must_use]
pub(crate) fn figure7_properties(points: &[Point]) -> Vec<Property> {
    let hybrid = |p: &Point| p.hybrid_s / p.edtlp_s;
    let others = |p: &Point| p.edtlp_s.min(p.hybrid_s);
    vec![
        worst(points, 1..=4, "1 to 4: hybrid over EDTLP", 1.0, &hybrid),
        worst(points, 5..=8, "5 to 8: EDTLP over hybrid", 1.0, &|p| {
            1.0 / hybrid(p)
        }),
        worst(
            points,
            9..=12,
            "9 to 12: mixed over the better of both",
            1.0,
            &|p| p.mixed_s.unwrap_or(f64::INFINITY) / others(p),
        ),
        worst(
            points,
            13..=16,
            "13 to 16: EDTLP over hybrid and mixed",
            1.0,
            &|p| p.edtlp_s / p.hybrid_s.min(p.mixed_s.unwrap_or(f64::INFINITY)),
        ),
        worst(points, 17..=1000, "beyond: EDTLP over hybrid", 1.0, &|p| {
            1.0 / hybrid(p)
        }),
    ]
}

/// The paper's statements about Figure 8, and the bounds on `equi`, checked on `points`.
#[must_use]
pub(crate) fn figure8_properties(points: &[Point]) -> Vec<Property> {
    let all = 1..=1000;
    let mgps = |p: &Point| p.mgps_s / p.edtlp_s.min(p.hybrid_s);
    let behind = |p: &Point| p.hybrid_s - p.edtlp_s;
    // Full waves of tasks, so that the last wave's emptiness does not count.
    let full = |p: &&Point| p.bootstraps >= 16 && p.bootstraps.is_multiple_of(8);
    let from_16: Vec<_> = points.iter().filter(full).collect();
    let falls = from_16
        .windows(2)
        .filter(|pair| behind(pair[1]) <= behind(pair[0]));
    vec![
        worst(
            points,
            all.clone(),
            "MGPS over the better of EDTLP and hybrid",
            1.01,
            &mgps,
        ),
        worst(points, 28..=28, "MGPS over EDTLP at 28", 0.98, &|p| {
            p.mgps_s / p.edtlp_s
        }),
        worst(
            points,
            48..=1000,
            "from 48: MGPS over EDTLP, distance from 1",
            0.02,
            &|p| (p.mgps_s / p.edtlp_s - 1.0).abs(),
        ),
        Property::at_most(
            "16, 24, 32 ...: steps at which the static hybrid falls no further behind EDTLP",
            falls.count() as f64,
            0.0,
        ),
        worst(points, all, "equi over MGPS", 1.02, &equi_over_mgps),
        worst(points, 5..=5, "equi over MGPS at 5", 0.92, &equi_over_mgps),
    ]
}

/// The paper's statements about Figure 9, and the bounds on `equi`, checked on `points`.
#[must_use]
pub(crate) fn figure9_properties(points: &[Point]) -> Vec<Property> {
    let hybrid = |p: &Point| p.hybrid_s / p.edtlp_s;
    vec![
        worst(points, 1..=8, "1 to 8: hybrid over EDTLP", 1.0, &hybrid),
        worst(points, 9..=1000, "beyond 8: EDTLP over hybrid", 1.0, &|p| {
            1.0 / hybrid(p)
        }),
        worst(
            points,
            1..=1000,
            "MGPS over the better of EDTLP and hybrid",
            1.01,
            &|p| p.mgps_s / p.edtlp_s.min(p.hybrid_s),
        ),
        worst(points, 1..=1000, "equi over MGPS", 1.02, &equi_over_mgps),
    ]
}

/// `equi` with the cost of a switch on a machine of today.
#[must_use]
pub(crate) fn switch_properties(points: &[Point]) -> Vec<Property> {
    vec![
        worst(
            points,
            9..=12,
            "9 to 12: equi over MGPS",
            0.80,
            &equi_over_mgps,
        ),
        worst(points, 1..=1000, "equi over MGPS", 1.02, &equi_over_mgps),
    ]
}

/// `equi` where the host's work grows with live tasks, and on two Cells whatever the host: it must
/// not lose by keeping more live.
#[must_use]
pub(crate) fn contention_properties(points: &[Point]) -> Vec<Property> {
    vec![worst(
        points,
        1..=1000,
        "equi over MGPS",
        1.02,
        &equi_over_mgps,
    )]
}

/// Time of `equi` divided by that of MGPS.
#[must_use]
pub(crate) fn equi_over_mgps(point: &Point) -> f64 {
    point.equi_s / point.mgps_s
}

fn worst(
    points: &[Point],
    bootstraps: std::ops::RangeInclusive<u32>,
    text: &str,
    limit: f64,
    value: &dyn Fn(&Point) -> f64,
) -> Property {
    let inside = points.iter().filter(|p| bootstraps.contains(&p.bootstraps));
    // No point, no proof: that is more than any limit.
    let most = inside.map(value).reduce(f64::max).unwrap_or(f64::INFINITY);
    Property::at_most(text, most, limit)
}

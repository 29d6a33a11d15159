//! Rows of the result, and how each is computed from the rounds.

use crate::measure::stats::{Outcome, Series};
use serde::Serialize;

/// One way to another core and back.
#[derive(Debug, Clone, Serialize)]
pub struct Trip {
    /// Name of the way.
    #[serde(skip)]
    pub name: &'static str,
    /// The median of the rounds' medians.
    pub median: f64,
    /// The median of the rounds' 99th percentiles.
    pub p99: f64,
    /// Largest round's median less the smallest, divided by the median.
    pub spread: f64,
    /// The median of the rounds' ratios to the bare line of the same round.
    pub ratio: f64,
    /// Largest of those less the smallest, divided by the median.
    pub ratio_spread: f64,
    /// Rounds measured.
    pub rounds: usize,
}

/// N workers of 11 us host work and an off-load of 96 us. Times are microseconds for one such
/// cycle of one worker.
#[derive(Debug, Clone, Serialize)]
pub struct EdtlpRow {
    /// Workers.
    pub workers: usize,
    /// Cores that they share.
    pub worker_cores: usize,
    /// True where a foreign process kept each of those cores busy.
    pub hog: bool,
    /// Processes that spin while the engine works.
    pub spin_us: f64,
    /// Our tasks as fibers.
    pub edtlp_us: f64,
    /// Processes that sleep until the engine is done.
    pub block_us: f64,
    /// `spin_us` divided by `edtlp_us`: the median of the rounds' own.
    pub ratio: f64,
    /// Spread of these ratios: largest less smallest, divided by the median.
    pub ratio_spread: f64,
    /// `edtlp_us` divided by `block_us`: the median of the rounds' own.
    pub to_block: f64,
    /// Spread of these ratios: largest less smallest, divided by the median.
    pub to_block_spread: f64,
    /// Spread of `edtlp_us`.
    pub edtlp_spread: f64,
    /// One cycle in a hundred of the worst worker takes longer: spinning.
    pub spin_p99_us: f64,
    /// 99th percentile of our cycle, in microseconds.
    pub edtlp_p99_us: f64,
    /// 99th percentile of the cycle of sleeping processes, in microseconds.
    pub block_p99_us: f64,
    /// Rounds measured.
    pub rounds: usize,
}

/// One figure without a peer.
#[derive(Debug, Clone, Serialize)]
pub struct Figure {
    /// Its name.
    pub name: String,
    /// The median.
    pub here: f64,
    /// Its unit.
    pub unit: &'static str,
    /// Largest less smallest, divided by the median.
    pub spread: f64,
    /// Rounds measured.
    pub rounds: usize,
    /// Remarks.
    pub note: String,
}

/// The share of two processes relative to `alone`, the rate of one.
#[derive(Debug, Clone, Serialize)]
pub struct SharingRow {
    /// Name: the processes, and the resource that they share.
    pub name: String,
    /// One process alone.
    pub alone: f64,
    /// The slower of two side by side.
    pub slower: f64,
    /// The faster of two.
    pub faster: f64,
    /// The unit of the three.
    pub unit: &'static str,
    /// `slower` divided by half of `alone`: 1 is a fair share. The median of the rounds' own.
    pub fair_share: f64,
    /// Largest of those less the smallest, divided by the median.
    pub spread: f64,
    /// Rounds measured.
    pub rounds: usize,
    /// Remarks.
    pub note: String,
}

/// A loop, or a sequence of loops of one class, split in four ways. Times are microseconds for one
/// pass; medians of the rounds.
#[derive(Debug, Clone, Serialize)]
pub struct LoopRow {
    /// Number and time of the units, or the mixture in words.
    pub name: String,
    /// Time of a unit in nanoseconds; 0 where sizes are mixed.
    pub unit_ns: u64,
    /// Number of units; 0 where sizes are mixed.
    pub units: usize,
    /// On our engines.
    pub sidecore_us: f64,
    /// On one core, by one thread.
    pub serial_us: f64,
    /// By rayon.
    pub rayon_us: f64,
    /// By OpenMP with active waiting; none where there is no compiler.
    pub openmp_us: Option<f64>,
    /// Name of the peer with the least median.
    pub best: &'static str,
    /// Ours divided by the best peer of the same round: the median of the rounds.
    pub ratio: f64,
    /// Largest of these ratios less the smallest, divided by the median.
    pub ratio_spread: f64,
    /// Spread of `sidecore_us`.
    pub spread: f64,
    /// Rounds measured.
    pub rounds: usize,
}

/// Threads that call at once. Times are microseconds of one call; medians of the rounds.
#[derive(Debug, Clone, Serialize)]
pub struct CallersRow {
    /// Threads.
    pub callers: usize,
    /// Work of a call in microseconds.
    pub work_us: f64,
    /// Ours: the median.
    pub sidecore_p50_us: f64,
    /// Ours: the 99th percentile.
    pub sidecore_p99_us: f64,
    /// Ours: calls in a second.
    pub sidecore_per_s: f64,
    /// Calls of the caller with the fewest, divided by those of the one with the most: ours.
    pub sidecore_least: f64,
    /// Rayon's median.
    pub rayon_p50_us: f64,
    /// Rayon's 99th percentile.
    pub rayon_p99_us: f64,
    /// Rayon's calls in a second.
    pub rayon_per_s: f64,
    /// Calls of the caller with the fewest, divided by those of the one with the most: rayon's.
    pub rayon_least: f64,
    /// Our 99th percentile divided by rayon's of the same round: the median of the rounds.
    pub p99_ratio: f64,
    /// Largest of these ratios less the smallest, divided by the median.
    pub p99_ratio_spread: f64,
    /// Rounds measured.
    pub rounds: usize,
}

/// Overhead of a construct in each way. Times are microseconds; medians of the rounds. An overhead
/// below 0 says that the delays take less time on several cores than was computed from one.
#[derive(Debug, Clone, Serialize)]
pub struct OverheadRow {
    /// The construct: `parallel`, `for_static`, `for_dynamic`, `for_guided`, `barrier`,
    /// `reduction`, `single`.
    pub construct: &'static str,
    /// Cores, with a thread or an engine on each.
    pub cores: usize,
    /// Delays of one pass, of all cores.
    pub delays: usize,
    /// Time of one of them.
    pub delay_us: f64,
    /// All delays of a pass on one core.
    pub serial_us: f64,
    /// Overhead on our engines.
    pub sidecore_us: f64,
    /// Its largest round less its smallest.
    pub sidecore_spread_us: f64,
    /// Overhead of rayon.
    pub rayon_us: Option<f64>,
    /// Overhead of OpenMP with active waiting; none where there is no compiler.
    pub openmp_us: Option<f64>,
    /// Overhead of oneTBB; none where it is not installed.
    pub tbb_us: Option<f64>,
    /// Name of the peer with the least median.
    pub best: &'static str,
    /// Rounds measured.
    pub rounds: usize,
}

/// Root's client of one engine next to hostile programs of another user: it attaches now and then
/// and calls now and then. Medians of the rounds.
#[derive(Debug, Clone, Serialize)]
pub struct StrangersRow {
    /// The attackers.
    pub beside: String,
    /// The median time of attaching, in milliseconds.
    pub attach_p50_ms: f64,
    /// The longest time of attaching, in milliseconds.
    pub attach_longest_ms: f64,
    /// The median time of a call, in microseconds.
    pub call_p50_us: f64,
    /// The 99th percentile of a call's time, in microseconds.
    pub call_p99_us: f64,
    /// Attachments and calls that failed, or gave a wrong result; of all rounds.
    pub wrong: u64,
    /// The most shared memory that the other user had, in bytes; of all rounds.
    pub held_bytes: u64,
    /// Spread of `call_p99_us`.
    pub spread: f64,
    /// Rounds measured.
    pub rounds: usize,
}

/// Clients of one engine that the kernel schedules freely. Medians of the rounds.
#[derive(Debug, Clone, Serialize)]
pub struct UnpinnedRow {
    /// Processes.
    pub clients: usize,
    /// Calls of all together in a second.
    pub calls_per_s: f64,
    /// The median time of a call, in microseconds.
    pub p50_us: f64,
    /// The 99th percentile of a call's time, in microseconds.
    pub p99_us: f64,
    /// Calls of the client with the fewest, divided by those of the one with the most.
    pub least_most: f64,
    /// Part of the calls that the clients executed themselves.
    pub on_host: f64,
    /// `calls_per_s` divided by that of one client in the same round.
    pub beside_one: f64,
    /// Largest of these ratios less the smallest, divided by the median.
    pub beside_one_spread: f64,
    /// Rounds measured.
    pub rounds: usize,
}

impl Trip {
    /// Computes one way's figures from its rounds and the bare line's rounds.
    pub(in crate::offload) fn new(
        name: &'static str,
        medians: &Series,
        p99s: &Series,
        bare: &Series,
    ) -> Self {
        let outcome = Outcome::of(medians, bare);
        Self {
            name,
            median: medians.median(),
            p99: p99s.median(),
            spread: medians.spread(),
            ratio: outcome.ratio,
            ratio_spread: outcome.spread,
            rounds: medians.rounds(),
        }
    }
}

impl LoopRow {
    /// Computes a row; `peers` are serial and rayon.
    pub(in crate::offload) fn new(
        name: &str,
        unit_ns: u64,
        units: usize,
        own: &Series,
        peers: [&Series; 2],
        openmp: Option<&Series>,
    ) -> Self {
        let us = |series: &Series| series.median() * 1e-3;
        let named = ["serial", "rayon"].into_iter().zip(peers);
        let all: Vec<_> = named.chain(openmp.map(|peer| ("openmp", peer))).collect();
        let ratios: Vec<Series> = all.iter().map(|(_, peer)| own.over(peer)).collect();
        // Against the best peer of each round: a loss to one peer must not hide behind another.
        let worst = (0..own.rounds()).map(|round| {
            let of_round = ratios.iter().filter_map(|ratio| ratio.samples().get(round));
            of_round.copied().fold(0.0, f64::max)
        });
        let ratio = Series::new(worst.collect());
        let best = all.iter().min_by(|a, b| us(a.1).total_cmp(&us(b.1)));
        Self {
            name: name.to_owned(),
            unit_ns,
            units,
            sidecore_us: us(own),
            serial_us: us(peers[0]),
            rayon_us: us(peers[1]),
            openmp_us: openmp.map(us),
            best: best.map_or("", |(name, _)| name),
            ratio: ratio.median(),
            ratio_spread: ratio.spread(),
            spread: own.spread(),
            rounds: own.rounds(),
        }
    }
}

impl CallersRow {
    /// Computes a row; each series is median, 99th percentile, rate, least over most.
    pub(in crate::offload) fn new(
        callers: usize,
        work_ns: u64,
        own: &[Series],
        rayon: &[Series],
    ) -> Self {
        let outcome = Outcome::of(&own[1], &rayon[1]);
        Self {
            callers,
            work_us: work_ns as f64 * 1e-3,
            sidecore_p50_us: own[0].median() * 1e-3,
            sidecore_p99_us: own[1].median() * 1e-3,
            sidecore_per_s: own[2].median(),
            sidecore_least: own[3].median(),
            rayon_p50_us: rayon[0].median() * 1e-3,
            rayon_p99_us: rayon[1].median() * 1e-3,
            rayon_per_s: rayon[2].median(),
            rayon_least: rayon[3].median(),
            p99_ratio: outcome.ratio,
            p99_ratio_spread: outcome.spread,
            rounds: outcome.rounds,
        }
    }
}

impl StrangersRow {
    /// Computes a row; the series are attach median and longest, call median and 99th percentile.
    pub(in crate::offload) fn new(
        beside: &str,
        series: &[Series],
        wrong: u64,
        held_bytes: u64,
    ) -> Self {
        Self {
            beside: beside.to_owned(),
            attach_p50_ms: series[0].median() * 1e-6,
            attach_longest_ms: series[1].median() * 1e-6,
            call_p50_us: series[2].median() * 1e-3,
            call_p99_us: series[3].median() * 1e-3,
            wrong,
            held_bytes,
            spread: series[3].spread(),
            rounds: series[3].rounds(),
        }
    }
}

impl UnpinnedRow {
    /// Computes a row; each series is rate, median, 99th percentile, least over most, part done by
    /// the clients.
    pub(in crate::offload) fn new(clients: usize, series: &[Series], one: &[Series]) -> Self {
        let outcome = Outcome::of(&series[0], &one[0]);
        Self {
            clients,
            calls_per_s: series[0].median(),
            p50_us: series[1].median() * 1e-3,
            p99_us: series[2].median() * 1e-3,
            least_most: series[3].median(),
            on_host: series[4].median(),
            beside_one: outcome.ratio,
            beside_one_spread: outcome.spread,
            rounds: outcome.rounds,
        }
    }
}

impl Figure {
    pub(in crate::offload) fn new(
        name: impl Into<String>,
        series: &Series,
        unit: &'static str,
    ) -> Self {
        Self {
            name: name.into(),
            here: series.median(),
            unit,
            spread: series.spread(),
            rounds: series.rounds(),
            note: String::new(),
        }
    }
}

//! The result of a run of `offload bench`.
//!
//! Why here: the command prints it, scripts read it as JSON, `docs/results` is filled from it.
//! Must stay true: `round_trip_ns{NAME: {median p99}}` and
//! `edtlp[]{workers worker_cores hog spin_us edtlp_us ratio}` keep their names; a figure without
//! its spread and rounds is not in here; a row that could not be measured is in `missing`.
//! Pure. Source: own.

pub use super::asynchronous::JobsRow;
pub use super::graphs::{GrainPoint, PatternRow};
use crate::frame::{Head, Reported};
use crate::measure::Figures;
use crate::measure::stats::{Outcome, Series};
use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};

/// A whole run.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Circumstances of the run.
    #[serde(flatten)]
    pub head: Head,
    /// A word to another core and back, in nanoseconds.
    #[serde(serialize_with = "by_name")]
    pub round_trip_ns: Vec<Trip>,
    /// Tasks as fibers compared with processes that spin and processes that block.
    pub edtlp: Vec<EdtlpRow>,
    /// Empty tasks a second.
    pub throughput: Vec<Figure>,
    /// Two processes on the same cores, compared with one alone.
    pub sharing: Vec<SharingRow>,
    /// Processor time of an idle engine, in percent of a core.
    pub idle: Vec<Figure>,
    /// The time slice of a process on a core that another equally wants.
    pub slice: Vec<Figure>,
    /// Loops of all sizes compared with serial, rayon and OpenMP.
    pub loops: Vec<LoopRow>,
    /// Threads that call at once, compared with rayon's.
    pub callers: Vec<CallersRow>,
    /// Jobs of one thread compared with its blocking calls.
    pub jobs: Vec<JobsRow>,
    /// Root's client next to hostile programs of another user.
    pub strangers: Vec<StrangersRow>,
    /// Clients without a reserved core.
    pub unpinned: Vec<UnpinnedRow>,
    /// Parallel constructs compared with rayon's, OpenMP's and oneTBB's.
    pub overheads: Vec<OverheadRow>,
    /// Graphs of tasks with dependences, compared likewise.
    pub patterns: Vec<PatternRow>,
    /// Targets, and their outcome.
    pub targets: Vec<Target>,
    /// Things that could not be measured on this machine, and why.
    pub missing: Vec<String>,
    /// Failures, every sample, and comparisons that have no table of their own.
    #[serde(flatten)]
    pub figures: Figures,
}

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

/// A target.
#[derive(Debug, Clone, Serialize)]
pub struct Target {
    /// The figure that it is for.
    pub name: String,
    /// The target in words: `<= 1.5`.
    pub wanted: String,
    /// The figure.
    pub here: f64,
    /// True where the target is met.
    pub met: bool,
}

impl Reported for Report {
    fn parts(&mut self) -> (&mut Head, &mut Figures) {
        (&mut self.head, &mut self.figures)
    }

    fn missing(&mut self, group: &'static str, _: &str, _: &str, reason: &str) {
        self.missing.push(format!("{group}: {reason}"));
    }
}

impl Report {
    pub(super) fn new(head: Head) -> Self {
        Self {
            head,
            round_trip_ns: Vec::new(),
            edtlp: Vec::new(),
            throughput: Vec::new(),
            sharing: Vec::new(),
            idle: Vec::new(),
            slice: Vec::new(),
            loops: Vec::new(),
            callers: Vec::new(),
            jobs: Vec::new(),
            strangers: Vec::new(),
            unpinned: Vec::new(),
            overheads: Vec::new(),
            patterns: Vec::new(),
            targets: Vec::new(),
            missing: Vec::new(),
            figures: Figures::default(),
        }
    }

    /// One way's figures, if it was measured.
    #[must_use]
    pub fn trip(&self, name: &str) -> Option<&Trip> {
        self.round_trip_ns.iter().find(|trip| trip.name == name)
    }

    /// Compares the figures with their targets. A figure that was not measured has no line.
    pub(super) fn judge(&mut self) {
        for name in ["same_process", "cross_process"] {
            if let Some(trip) = self.trip(name) {
                let (ratio, median) = (trip.ratio, trip.median);
                self.at_most(format!("{name} beside the bare line"), 1.5, ratio, "x");
                if name == "cross_process" {
                    self.at_most(format!("{name}, median"), 400.0, median, "ns");
                }
            }
        }
        for (cores, wanted) in [(2, 3.5), (1, 7.0)] {
            let row =
                |row: &&EdtlpRow| (row.workers, row.worker_cores, row.hog) == (8, cores, false);
            if let Some(row) = self.edtlp.iter().find(row) {
                let plural = if cores == 1 { "" } else { "s" };
                let name = format!("8 workers on {cores} core{plural}, spinning / fibers");
                self.at_least(name, wanted, row.ratio);
            }
        }
        // Targets with a hog hold for every number of workers, so the worst row counts.
        let worst = |value: fn(&EdtlpRow) -> f64| {
            let with_hog = self.edtlp.iter().filter(|row| row.hog).map(value);
            with_hog.fold(None, |most: Option<f64>, value| {
                Some(most.map_or(value, |most| most.max(value)))
            })
        };
        let (to_block, cycle_us) = (worst(|row| row.to_block), worst(|row| row.edtlp_us));
        if let Some(ratio) = to_block {
            let name = "with a hog, fibers / blocking, worst row".to_owned();
            self.at_most(name, 1.3, ratio, "x");
        }
        if let Some(cycle_us) = cycle_us {
            let name = "with a hog, a cycle of fibers, worst row".to_owned();
            self.at_most(name, 1000.0, cycle_us, "us");
        }
        for index in 0..self.idle.len() {
            let (name, here) = (self.idle[index].name.clone(), self.idle[index].here);
            self.at_most(name, 1.0, here, "% of a core");
        }
        for (row, name) in [
            (
                SHARED_ENGINES,
                "the slower of two processes, of its fair share",
            ),
            (
                UNEQUAL,
                "10 us calls beside 10 ms calls, of their fair share",
            ),
        ] {
            let mut rows = self.sharing.iter();
            if let Some(share) = rows
                .find(|found| found.name == row)
                .map(|row| row.fair_share)
            {
                self.at_least(name.to_owned(), 0.8, share);
            }
        }
        self.judge_loops();
        self.judge_strangers();
    }

    /// Every row of the loops, and the callers where they are most.
    fn judge_loops(&mut self) {
        let rows: Vec<_> = (self.loops.iter())
            .map(|row| (format!("{}, beside the best peer", row.name), row.ratio))
            .collect();
        for (name, ratio) in rows {
            self.at_most(name, 1.1, ratio, "x");
        }
        let rows: Vec<_> = (self.callers.iter().filter(|row| row.callers == 64))
            .map(|row| (row.work_us, row.p99_ratio))
            .collect();
        for (work_us, ratio) in rows {
            let name = format!("64 callers of {work_us} us, p99 beside rayon's");
            self.at_most(name, 2.0, ratio, "x");
        }
        let busy: Vec<_> = (self.jobs.iter().filter(|row| row.depth >= 16))
            .map(|row| (row.depth, row.kernel_us, row.busy_percent))
            .collect();
        for (depth, kernel_us, percent) in busy {
            self.targets.push(Target {
                name: format!("two engines busy, {depth} open jobs of {kernel_us} us"),
                wanted: ">= 95 %".into(),
                here: percent,
                met: percent >= 95.0,
            });
        }
    }

    /// A daemon next to hostile users.
    fn judge_strangers(&mut self) {
        for row in std::mem::take(&mut self.strangers) {
            let beside = &row.beside;
            let attach = format!("root attaches beside {beside}, longest");
            self.at_most(attach, 20.0, row.attach_longest_ms, "ms");
            let call = format!("a sparse caller beside {beside}, p99");
            self.at_most(call, 2000.0, row.call_p99_us, "us");
            let wrong = format!("wrong results beside {beside}");
            self.at_most(wrong, 0.0, row.wrong as f64, "");
            let held = format!("memory of the attackers beside {beside}");
            self.at_most(held, 512.0, row.held_bytes as f64 / 1_048_576.0, "MiB");
            self.strangers.push(row);
        }
        for row in std::mem::take(&mut self.unpinned) {
            if row.clients == 4 {
                let name = "4 clients without cores, all together, beside one".to_owned();
                self.at_least(name, 0.9, row.beside_one);
            }
            if row.clients == 64 {
                let name = "64 clients without cores, least / most".to_owned();
                self.at_least(name, 0.5, row.least_most);
            }
            self.unpinned.push(row);
        }
    }

    fn at_most(&mut self, name: String, limit: f64, here: f64, unit: &str) {
        self.targets.push(Target {
            name,
            wanted: format!("<= {limit} {unit}"),
            here,
            met: here <= limit,
        });
    }

    fn at_least(&mut self, name: String, limit: f64, here: f64) {
        self.targets.push(Target {
            name,
            wanted: format!(">= {limit} x"),
            here,
            met: here >= limit,
        });
    }
}

impl Trip {
    /// Computes one way's figures from its rounds and the bare line's rounds.
    pub(super) fn new(name: &'static str, medians: &Series, p99s: &Series, bare: &Series) -> Self {
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
    pub(super) fn new(
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
    pub(super) fn new(callers: usize, work_ns: u64, own: &[Series], rayon: &[Series]) -> Self {
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
    pub(super) fn new(beside: &str, series: &[Series], wrong: u64, held_bytes: u64) -> Self {
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
    pub(super) fn new(clients: usize, series: &[Series], one: &[Series]) -> Self {
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
    pub(super) fn new(name: impl Into<String>, series: &Series, unit: &'static str) -> Self {
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

fn by_name<S: Serializer>(trips: &[Trip], serializer: S) -> Result<S::Ok, S::Error> {
    let mut map = serializer.serialize_map(Some(trips.len()))?;
    for trip in trips {
        map.serialize_entry(trip.name, trip)?;
    }
    map.end()
}

/// The name of the row that is ours.
pub(super) const SHARED_ENGINES: &str = "the daemon's engines";
/// The same, with short calls at the same time as long ones.
pub(super) const UNEQUAL: &str = "the daemon's engines, short calls beside long";

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let head = Head::new(std::path::Path::new("/nonexistent"), true, None);
        let mut report = Report::new(head);
        let series = |values: [f64; 3]| Series::new(values.to_vec());
        let bare = series([100.0, 110.0, 120.0]);
        for (name, medians) in [
            ("spinning_line", bare.clone()),
            ("same_process", series([200.0, 220.0, 240.0])),
            ("cross_process", series([140.0, 154.0, 168.0])),
        ] {
            let trip = Trip::new(name, &medians, &series([300.0, 400.0, 500.0]), &bare);
            report.round_trip_ns.push(trip);
        }
        for (worker_cores, hog, spin_us) in [(1, false, 870.0), (1, true, 900.0)] {
            report.edtlp.push(EdtlpRow {
                workers: 8,
                worker_cores,
                hog,
                spin_us,
                edtlp_us: 110.0,
                block_us: 130.0,
                ratio: spin_us / 110.0,
                ratio_spread: 0.0,
                to_block: if hog { 1.4 } else { 0.8 },
                to_block_spread: 0.0,
                edtlp_spread: 0.0,
                spin_p99_us: 0.0,
                edtlp_p99_us: 0.0,
                block_p99_us: 0.0,
                rounds: 3,
            });
        }
        report
    }

    #[test]
    fn the_keys_that_others_rely_on_are_there() {
        let json = serde_json::to_value(report()).unwrap();
        assert_eq!(json["round_trip_ns"]["same_process"]["median"], 220.0);
        assert_eq!(json["round_trip_ns"]["same_process"]["p99"], 400.0);
        assert_eq!(json["round_trip_ns"]["same_process"]["ratio"], 2.0);
        for key in [
            "workers",
            "worker_cores",
            "hog",
            "spin_us",
            "edtlp_us",
            "ratio",
        ] {
            assert!(!json["edtlp"][0][key].is_null(), "{key}");
        }
    }

    #[test]
    fn wishes_are_judged_one_by_one_and_what_was_not_measured_has_no_line() {
        let mut report = report();
        report.judge();
        let judged = |words: &str| {
            let mut found = report
                .targets
                .iter()
                .filter(|target| target.name.contains(words));
            found.next().map(|target| target.met)
        };
        assert_eq!(judged("same_process"), Some(false));
        assert_eq!(judged("cross_process beside"), Some(true));
        assert_eq!(judged("cross_process, median"), Some(true));
        assert_eq!(judged("8 workers on 1 core"), Some(true));
        assert_eq!(judged("8 workers on 2 cores"), None);
        assert_eq!(judged("fibers / blocking"), Some(false));
        assert_eq!(judged("a cycle of fibers"), Some(true));
        assert_eq!(judged("idle"), None);
    }
}

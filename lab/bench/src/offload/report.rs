//! The result of a run of `offload bench`.
//!
//! Why here: the command prints it, scripts read it as JSON, `docs/results` is filled from it.
//! Must stay true: `round_trip_ns{NAME: {median p99}}` and
//! `edtlp[]{workers worker_cores hog spin_us edtlp_us ratio}` keep their names; a figure without
//! its spread and rounds is not in here; a row that could not be measured is in `missing`.
//! Pure. Source: own.

mod rows;

pub use super::asynchronous::JobsRow;
pub use super::graphs::{GrainPoint, PatternRow};
use crate::frame::{Head, Reported};
use crate::measure::Figures;
pub use rows::{
    CallersRow, EdtlpRow, Figure, LoopRow, OverheadRow, SharingRow, StrangersRow, Trip, UnpinnedRow,
};
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
    use crate::measure::stats::Series;

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

//! Overheads of parallel constructs: regions, loops by three schedules, a barrier, a reduction,
//! one piece of work.
//!
//! Why here: these are the constructs that programs are made of, and their costs are known for
//! each OpenMP. Must stay true: an overhead is the time of a construct less that of the same delays
//! on one core, divided by the cores that may share them; both are of the same round. Each way has
//! its nearest construct: this pool has neither regions nor a choice of schedules, so a loop of one
//! unit for each engine stands for a region, and two such loops for a barrier.
//! One thread, which starts one for each turn. Source: Bull, "Measuring Synchronisation and
//! Scheduling Overheads in OpenMP", EWOMP 1999; the lengths of the delays are our own.

use super::graphs::{RAYON, SIDECORE, delay};
use super::loops::{pinned, rayon_pool};
use super::report::OverheadRow;
use super::work::{measure, steps_of};
use super::{Bench, BenchError, Candidate, wrong};
use crate::measure::child::{Speaker, tool};
use crate::measure::stats::Series;
use rayon::prelude::*;
use sidecore_offload::{Pool, PoolConfig};
use sidecore_sys::package::{Manager, Package};
use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicBool;

/// Measures all constructs.
pub(super) fn run(bench: &mut Bench<'_>, peers: &Peers) -> Result<(), BenchError> {
    let cpus = bench.cpus.clone();
    let here = cpus.first().copied().unwrap_or(0);
    let pool = Pool::start(PoolConfig {
        engines: cpus.len(),
        cpus: cpus.clone(),
        ..PoolConfig::default()
    })?;
    let rayon = rayon_pool(&cpus)?;
    let work = &Work::new(cpus.len(), bench.choose(500_000, 15_000_000));
    // Before the candidates, which borrow it.
    let question = work.question();
    let cancel = bench.cancel.clone();
    let mut candidates = vec![
        Candidate::new(SERIAL, |()| {
            pinned(here, || {
                Ok(Kind::ALL.map(|kind| serial(kind, work)).to_vec())
            })
        }),
        Candidate::new(SIDECORE, |()| {
            pinned(here, || {
                let all = Kind::ALL.into_iter();
                all.map(|kind| sidecore(&pool, kind, work)).collect()
            })
        }),
        Candidate::new(RAYON, |()| {
            rayon.install(|| Ok(Kind::ALL.map(|kind| by_rayon(kind, work)).to_vec()))
        }),
    ];
    let mut names = vec![SERIAL, SIDECORE, RAYON];
    for (name, peer) in [(OPENMP, &peers.openmp), (TBB, &peers.tbb)] {
        let Some(peer) = peer else { continue };
        let (question, cancel) = (&question, &cancel);
        names.push(name);
        candidates.push(Candidate::new(name, move |()| {
            ask(peer, question, Kind::ALL.len(), cancel)
        }));
    }
    let metrics = Kind::ALL.map(|kind| (kind.name(), "ns"));
    let rounds = bench.choose(2, 9);
    let series = bench.interleave(&metrics, rounds, &mut candidates)?;
    drop(candidates);
    for (index, kind) in Kind::ALL.into_iter().enumerate() {
        let of = |name: &str| {
            let place = names.iter().position(|known| *known == name)?;
            series[place].as_ref()?.get(index)
        };
        let row = OverheadRow::new(kind, cpus.len(), of);
        bench.report.overheads.extend(row);
    }
    Ok(())
}

/// A construct.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Each core does a delay.
    Parallel,
    /// A loop of short delays, dealt in equal parts.
    Static,
    /// The same, dealt one by one.
    Dynamic,
    /// The same, dealt in parts that become shorter.
    Guided,
    /// Each core does a delay, all wait for each other, each does another.
    Barrier,
    /// Each core does a delay, and adds to a sum.
    Reduction,
    /// One core does a delay.
    Single,
}

impl Kind {
    /// In the order of the peers' answers.
    const ALL: [Self; 7] = [
        Self::Parallel,
        Self::Static,
        Self::Dynamic,
        Self::Guided,
        Self::Barrier,
        Self::Reduction,
        Self::Single,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Parallel => "parallel",
            Self::Static => "for_static",
            Self::Dynamic => "for_dynamic",
            Self::Guided => "for_guided",
            Self::Barrier => "barrier",
            Self::Reduction => "reduction",
            Self::Single => "single",
        }
    }

    /// Delays of a pass, of all cores.
    fn delays(self, cores: usize) -> usize {
        match self {
            Self::Parallel | Self::Reduction => cores,
            Self::Static | Self::Dynamic | Self::Guided => ITEMS_EACH * cores,
            Self::Barrier => 2 * cores,
            Self::Single => 1,
        }
    }

    /// Cores that may share the delays.
    fn sharers(self, cores: usize) -> usize {
        match self {
            Self::Single => 1,
            _ => cores,
        }
    }

    fn is_loop(self) -> bool {
        matches!(self, Self::Static | Self::Dynamic | Self::Guided)
    }
}

/// Delays of a run.
struct Work {
    cores: usize,
    /// Steps of a loop's delays, and of the others.
    item_steps: u64,
    region_steps: u64,
    window_ns: u64,
}

impl Work {
    /// Takes some milliseconds.
    fn new(cores: usize, window_ns: u64) -> Self {
        Self {
            cores,
            item_steps: steps_of(ITEM_NS),
            region_steps: steps_of(REGION_NS),
            window_ns,
        }
    }

    fn steps(&self, kind: Kind) -> u64 {
        match kind.is_loop() {
            true => self.item_steps,
            false => self.region_steps,
        }
    }

    /// The question to a peer.
    fn question(&self) -> Vec<u64> {
        let items = ITEMS_EACH as u64;
        vec![1, self.window_ns, items, self.item_steps, self.region_steps]
    }
}

/// Nanoseconds of all delays of a pass on this core.
fn serial(kind: Kind, work: &Work) -> f64 {
    let (delays, steps) = (kind.delays(work.cores), work.steps(kind));
    measure(work.window_ns, || (0..delays).for_each(|_| delay(steps)))
}

/// Nanoseconds of a pass on our engines.
fn sidecore(pool: &Pool, kind: Kind, work: &Work) -> Result<f64, BenchError> {
    let (cores, delays, steps) = (work.cores, kind.delays(work.cores), work.steps(kind));
    let class = pool.class(kind.name());
    let each = |count: usize, least: usize| {
        let units = pool.par_range(0..count).class(class);
        units.with_min_len(least).for_each(|_| delay(steps))
    };
    let (mut failed, mut sum) = (None, cores);
    let taken_ns = measure(work.window_ns, || {
        let done = match kind {
            Kind::Parallel => each(cores, 1),
            Kind::Static => each(delays, ITEMS_EACH),
            // One schedule: chunks by the cost of their items, shorter towards the end.
            Kind::Dynamic | Kind::Guided => each(delays, 1),
            Kind::Barrier => each(cores, 1).and_then(|()| each(cores, 1)),
            Kind::Reduction => {
                let units = pool.par_range(0..cores).class(class).map(|_| {
                    delay(steps);
                    1_usize
                });
                units.reduce(|| 0, |a, b| a + b).map(|all| sum = all)
            }
            Kind::Single => pool.off_load(|_| delay(steps)),
        };
        if let Err(error) = done {
            failed = Some(error);
        }
    });
    if let Some(error) = failed {
        return Err(error.into());
    }
    if sum != cores {
        return Err(wrong(SIDECORE, sum as u64, cores as u64));
    }
    Ok(taken_ns)
}

/// Nanoseconds of a pass on rayon's threads, on one of which this is called.
fn by_rayon(kind: Kind, work: &Work) -> f64 {
    let (cores, delays, steps) = (work.cores, kind.delays(work.cores), work.steps(kind));
    let everywhere = || {
        rayon::broadcast(|_| delay(steps));
    };
    let items = || (0..delays).into_par_iter();
    measure(work.window_ns, || match kind {
        Kind::Parallel => everywhere(),
        Kind::Static => items().with_min_len(ITEMS_EACH).for_each(|_| delay(steps)),
        Kind::Dynamic => items().with_max_len(1).for_each(|_| delay(steps)),
        Kind::Guided => items().for_each(|_| delay(steps)),
        Kind::Barrier => {
            everywhere();
            everywhere();
        }
        Kind::Reduction => {
            let units = (0..cores).into_par_iter().map(|_| {
                delay(steps);
                1_usize
            });
            std::hint::black_box(units.sum::<usize>());
        }
        Kind::Single => rayon::scope(|scope| scope.spawn(|_| delay(steps))),
    })
}

impl OverheadRow {
    /// Computes a row; `of` gives the nanoseconds of a pass in a way. None where ours or those of
    /// one core are missing.
    fn new<'s>(kind: Kind, cores: usize, of: impl Fn(&str) -> Option<&'s Series>) -> Option<Self> {
        let serial = of(SERIAL)?;
        let sharers = kind.sharers(cores) as f64;
        let overhead = |name: &str| -> Option<Series> {
            let pairs = of(name)?.samples().iter().zip(serial.samples());
            let each = pairs.map(|(taken, alone)| (taken - alone / sharers) * 1e-3);
            Some(Series::new(each.collect()))
        };
        let own = overhead(SIDECORE)?;
        let median = |name: &'static str| overhead(name).map(|series| series.median());
        let named = [RAYON, OPENMP, TBB].map(|name| (name, median(name)));
        let measured = named.iter().filter_map(|(name, us)| Some((*name, (*us)?)));
        let best = measured.min_by(|a, b| a.1.total_cmp(&b.1));
        let [(_, rayon_us), (_, openmp_us), (_, tbb_us)] = named;
        let largest = own.samples().iter().copied().fold(f64::MIN, f64::max);
        let smallest = own.samples().iter().copied().fold(f64::MAX, f64::min);
        let delay_ns = if kind.is_loop() { ITEM_NS } else { REGION_NS };
        Some(Self {
            construct: kind.name(),
            cores,
            delays: kind.delays(cores),
            delay_us: delay_ns as f64 * 1e-3,
            serial_us: serial.median() * 1e-3,
            sidecore_us: own.median(),
            sidecore_spread_us: (largest - smallest).max(0.0),
            rayon_us,
            openmp_us,
            tbb_us,
            best: best.map_or("", |(name, _)| name),
            rounds: own.rounds(),
        })
    }
}

/// Programs with OpenMP and with oneTBB; none where this machine lacks what they are built with.
pub(super) struct Peers {
    pub(super) openmp: Option<RefCell<Speaker>>,
    pub(super) tbb: Option<RefCell<Speaker>>,
}

impl Peers {
    /// Builds and starts them.
    pub(super) fn start(bench: &mut Bench<'_>) -> Result<Self, BenchError> {
        let scratch = bench.config.scratch.clone();
        let source = scratch.join("patterns.cpp");
        std::fs::write(&source, PEER_SOURCE).map_err(BenchError::io("write a C++ program"))?;
        bench.say("compiling the peers");
        // Side by side: a flow graph takes a compiler some seconds.
        let building = BUILDS.map(|build| build.begin(&scratch, &source));
        let mut started = Vec::with_capacity(BUILDS.len());
        for (build, begun) in BUILDS.iter().zip(building) {
            started.push(match begun.and_then(|child| build.end(child, &scratch)) {
                Ok(program) => Some(program),
                Err(reason) => {
                    bench.missing(&format!("{}: {reason}", build.name));
                    None
                }
            });
        }
        let mut started = started.into_iter().map(|program| match program {
            Some(program) => start(&program, bench).map(Some),
            None => Ok(None),
        });
        let mut next = || started.next().transpose().map(Option::flatten);
        Ok(Self {
            openmp: next()?.map(RefCell::new),
            tbb: next()?.map(RefCell::new),
        })
    }
}

/// Starts a peer with a thread for each core.
fn start(program: &Path, bench: &Bench<'_>) -> Result<Speaker, BenchError> {
    let threads = bench.cpus.len().to_string();
    let mut command = Command::new(program);
    command
        .arg(&threads)
        .env("OMP_WAIT_POLICY", "active")
        .env("OMP_PROC_BIND", "true")
        .env("OMP_NUM_THREADS", &threads);
    let mut peer = Speaker::spawn(&mut command)?;
    peer.expect_ready(&bench.cancel)?;
    Ok(peer)
}

/// Asks a peer for this number of times.
pub(super) fn ask(
    peer: &RefCell<Speaker>,
    question: &[u64],
    wanted: usize,
    cancel: &AtomicBool,
) -> Result<Vec<f64>, BenchError> {
    let mut peer = peer.borrow_mut();
    peer.tell(&question)?;
    let times_ns: Vec<f64> = peer.answer(cancel)?;
    match times_ns.len() == wanted {
        true => Ok(times_ns),
        false => {
            let what = format!("answered {} times instead of {wanted}", times_ns.len());
            Err(peer.fault(what).into())
        }
    }
}

/// A program that is built from the peers' source.
struct Build {
    name: &'static str,
    program: &'static str,
    /// Option of the compiler that chooses the runtime.
    option: &'static str,
    package: Package<'static>,
}

const BUILDS: [Build; 2] = [
    Build {
        name: "OpenMP",
        program: "patterns-openmp",
        option: "-fopenmp",
        package: Package {
            debian: "g++",
            fedora: "gcc-c++",
            alpine: "g++",
        },
    },
    Build {
        name: "oneTBB",
        program: "patterns-tbb",
        option: "-ltbb",
        package: Package {
            debian: "libtbb-dev",
            fedora: "tbb-devel",
            alpine: "onetbb-dev",
        },
    },
];

impl Build {
    /// Starts the compiler.
    fn begin(&self, scratch: &Path, source: &Path) -> Result<Child, String> {
        let mut command = tool("c++", &[("c++", "g++")])?;
        command.args(["-std=c++17", "-O2", "-o"]);
        command.arg(scratch.join(self.program)).arg(source);
        command.arg(self.option).stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn();
        child.map_err(|error| format!("the C++ compiler does not start: {error}"))
    }

    /// Waits for the compiler; the program.
    fn end(&self, mut child: Child, scratch: &Path) -> Result<PathBuf, String> {
        let install = self.package.command(Manager::here());
        match child.wait() {
            Ok(status) if status.success() => Ok(scratch.join(self.program)),
            Ok(status) => Err(format!(
                "`c++ {}` ended with {status}: {install}",
                self.option
            )),
            Err(error) => Err(format!("the C++ compiler is lost: {error}")),
        }
    }
}

/// Delays of a loop for each core, and the time of each.
const ITEMS_EACH: usize = 128;
const ITEM_NS: u64 = 100;
/// Time of the other constructs' delays.
const REGION_NS: u64 = 10_000;
const SERIAL: &str = "serial";
const OPENMP: &str = "openmp";
const TBB: &str = "tbb";
const PEER_SOURCE: &str = include_str!("../../peers/patterns.cpp");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_overhead_is_what_is_left_of_the_rounds_own_share_of_the_delays() {
        let series = |values: [f64; 3]| Series::new(values.to_vec());
        // Two cores: half of it each. The second round was slow for all.
        let (alone, own) = (series([20e3, 40e3, 20e3]), series([11e3, 21e3, 12e3]));
        let peer = series([15e3, 24e3, 14e3]);
        let of = |name: &str| match name {
            SERIAL => Some(&alone),
            SIDECORE => Some(&own),
            RAYON => Some(&peer),
            _ => None,
        };
        let row = OverheadRow::new(Kind::Parallel, 2, of).unwrap();
        assert_eq!((row.sidecore_us, row.sidecore_spread_us), (1.0, 1.0));
        assert_eq!((row.rayon_us, row.openmp_us), (Some(4.0), None));
        assert_eq!((row.best, row.delays, row.rounds), (RAYON, 2, 3));
        // Alone on its core: no part of it is done by another.
        let row = OverheadRow::new(Kind::Single, 2, of).unwrap();
        assert_eq!((row.sidecore_us, row.delays), (-9.0, 1));
        assert!(OverheadRow::new(Kind::Single, 2, |_| None).is_none());
    }
}

//! The two standard suites of parallel runtimes: overheads of constructs (`overheads`), and graphs
//! of tasks with dependences by the patterns of Task Bench (`graphs`).
//!
//! Why here: a runtime's users ask how short a task may be. The answer is the minimum effective
//! task granularity, METG: the time of a task from which on cores do useful work for half of the
//! time. Must stay true: all runtimes run the same graphs of the same tasks, which check what they
//! need; efficiency is against the same tasks on all cores at once without any order, of the same
//! round. A pool has no graphs of tasks: a loop over each step is its way, as it is rayon's.
//! OpenMP has two ways, tasks with `depend` clauses and loops, and oneTBB a flow graph.
//! One thread, which starts one for each turn. Source: Slaughter et al., "Task Bench: A
//! Parameterized Benchmark for Evaluating Parallel Runtime Performance", SC 2020.

use super::graphs::{Graph, Outputs, Pattern, delay, metg};
use super::loops::{RAYON_LEAST_NS, measure, pinned, rayon_pool, steps_of};
use super::roles::stay_on;
use super::{Bench, BenchError, Candidate, interrupted, overheads};
use crate::measure::child::{Speaker, tool};
use crate::measure::stats::Series;
use rayon::prelude::*;
use serde::Serialize;
use sidecore_offload::{Pool, PoolConfig};
use sidecore_sys::package::{Manager, Package};
use std::cell::RefCell;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Barrier;
use std::sync::atomic::AtomicBool;

/// A graph by one runtime.
#[derive(Debug, Clone, Serialize)]
pub struct PatternRow {
    /// The dependences, by Task Bench's name.
    pub pattern: &'static str,
    /// The runtime: `sidecore`, `rayon`, `openmp_loops`, `openmp_tasks` or `tbb_flow_graph`.
    pub runner: &'static str,
    /// Cores, with a thread or an engine on each.
    pub cores: usize,
    /// Points of the widest step that the pattern may have.
    pub width: usize,
    /// Steps.
    pub steps: usize,
    /// Tasks of all steps.
    pub tasks: usize,
    /// Dependences of all tasks.
    pub dependences: usize,
    /// Minimum effective task granularity at an efficiency of a half, in microseconds; none where
    /// no measured task is long enough.
    pub metg50_us: Option<f64>,
    /// The same at an efficiency of four fifths.
    pub metg80_us: Option<f64>,
    /// Efficiency of each length of tasks, the shortest first.
    pub curve: Vec<GrainPoint>,
    /// Rounds measured.
    pub rounds: usize,
}

/// One length of tasks. Medians of the rounds.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct GrainPoint {
    /// Work of a task in microseconds.
    pub kernel_us: f64,
    /// Time of a task with all that it costs, in microseconds: that of the graph times the cores,
    /// divided by the tasks.
    pub granularity_us: f64,
    /// Time that the same tasks take on all cores at once without any order, divided by the time of
    /// the graph.
    pub efficiency: f64,
    /// Largest efficiency less the smallest, divided by the median.
    pub spread: f64,
}

/// The runtimes of rows, in the order of the report.
pub(super) const RUNNERS: [&str; 5] = [SIDECORE, RAYON, LOOPS, TASKS, FLOW];

/// Measures both suites.
pub(crate) fn run(bench: &mut Bench<'_>) -> Result<(), BenchError> {
    let peers = Peers::start(bench)?;
    overheads::run(bench, &peers)?;
    let cpus = bench.cpus.clone();
    let pool = Pool::start(PoolConfig {
        engines: cpus.len(),
        cpus: cpus.clone(),
        ..PoolConfig::default()
    })?;
    let rayon = rayon_pool(&cpus)?;
    let grains_ns = bench.choose(&QUICK_GRAINS_NS[..], &GRAINS_NS[..]);
    let grain = |&ns: &u64| Grain {
        ns,
        steps: steps_of(ns),
    };
    let grains: Vec<Grain> = grains_ns.iter().map(grain).collect();
    let wide = (cpus.len() * WIDTH_EACH).clamp(WIDTH_LEAST, WIDTH_MAX);
    let (width, steps) = bench.choose((8, 8), (wide, STEPS));
    for pattern in Pattern::ALL {
        let ways = Ways {
            pool: &pool,
            rayon: &rayon,
            peers: &peers,
            pattern,
            graph: &Graph::new(pattern, width, steps),
            width,
            grains: &grains,
            window_ns: bench.choose(500_000, 4_000_000),
        };
        ways.measure(bench, &cpus)?;
    }
    Ok(())
}

/// A length of tasks.
#[derive(Debug, Clone, Copy)]
struct Grain {
    ns: u64,
    /// Steps of the work.
    steps: u64,
}

/// A graph and the runtimes.
struct Ways<'w> {
    pool: &'w Pool,
    rayon: &'w rayon::ThreadPool,
    peers: &'w Peers,
    pattern: Pattern,
    graph: &'w Graph,
    width: usize,
    grains: &'w [Grain],
    window_ns: u64,
}

impl Ways<'_> {
    /// Interleaves all runtimes and reports a row each.
    fn measure(&self, bench: &mut Bench<'_>, cpus: &[usize]) -> Result<(), BenchError> {
        let here = cpus.first().copied().unwrap_or(0);
        let cancel = bench.cancel.clone();
        let class = self.pool.class(self.pattern.name());
        // Outputs of their own: a runtime that leaves a task out must not spoil the other's.
        let (own, theirs) = (self.sweep(&cancel), self.sweep(&cancel));
        let (pool, rayon) = (self.pool, self.rayon);
        let mut candidates = vec![
            Candidate::new(BARE, |()| self.bare(cpus)),
            Candidate::new(SIDECORE, |()| {
                pinned(here, || {
                    own.times(|tasks, run| {
                        let loops = pool.par_range(tasks).class(class);
                        // A loop that fails leaves a task out, which the check finds.
                        let _ = loops.for_each(|task| run.task(task));
                    })
                })
            }),
            Candidate::new(RAYON, |()| {
                rayon.install(|| {
                    theirs.times(|tasks, run| {
                        // Rayon's users give tiny units a minimum length by hand.
                        let least = (RAYON_LEAST_NS / run.grain.ns).max(1);
                        let tasks = tasks.into_par_iter().with_min_len(least as usize);
                        tasks.for_each(|task| run.task(task));
                    })
                })
            }),
        ];
        let mut names = vec![BARE, SIDECORE, RAYON];
        let peers = [
            (LOOPS, 1, &self.peers.openmp),
            (TASKS, 0, &self.peers.openmp),
            (FLOW, 0, &self.peers.tbb),
        ];
        for (name, way, peer) in peers {
            let Some(peer) = peer else { continue };
            let (question, cancel) = (self.question(way), &cancel);
            names.push(name);
            candidates.push(Candidate::new(name, move |()| {
                ask(peer, &question, self.grains.len(), cancel)
            }));
        }
        let metrics = self.metrics();
        let metrics: Vec<(&str, &str)> = metrics.iter().map(|name| (&**name, "ns")).collect();
        let rounds = bench.choose(2, 5);
        let series = bench.interleave(&metrics, rounds, &mut candidates)?;
        drop(candidates);
        let mut series = names.into_iter().zip(series);
        let Some((_, Some(bare))) = series.next() else {
            return Ok(());
        };
        for (runner, times) in series {
            let row = times.map(|times| self.row(runner, cpus.len(), &times, &bare));
            bench.report.patterns.extend(row);
        }
        Ok(())
    }

    /// Names of the times of each grain.
    fn metrics(&self) -> Vec<String> {
        let metric = |grain: &Grain| format!("{}, tasks of {} ns", self.pattern.name(), grain.ns);
        self.grains.iter().map(metric).collect()
    }

    fn sweep<'s>(&'s self, cancel: &'s AtomicBool) -> Sweep<'s> {
        Sweep {
            graph: self.graph,
            outputs: Outputs::new(self.graph),
            grains: self.grains,
            window_ns: self.window_ns,
            cancel,
        }
    }

    /// The question to a peer, for one of its ways.
    fn question(&self, way: u64) -> Vec<u64> {
        let mut words = vec![2, self.window_ns, way, self.grains.len() as u64];
        words.extend(self.grains.iter().map(|grain| grain.steps));
        words.extend(self.graph.words());
        words
    }

    /// Nanoseconds of all tasks on all cores at once, in no order and without a runtime, for each
    /// grain.
    fn bare(&self, cpus: &[usize]) -> Result<Vec<f64>, BenchError> {
        let (grains, window_ns) = (self.grains, self.window_ns);
        let begin = Barrier::new(cpus.len());
        let on = |cpu: usize| {
            // One that was refused its core works anyway: the others wait for it.
            let pinned = stay_on(&[cpu]);
            let rates = grains.iter().map(|grain| {
                begin.wait();
                1.0 / measure(window_ns, || delay(grain.steps))
            });
            let rates: Vec<f64> = rates.collect();
            pinned.map(|()| rates)
        };
        let on = &on;
        let rates: Result<Vec<Vec<f64>>, BenchError> = std::thread::scope(|scope| {
            let start = |&cpu: &usize| scope.spawn(move || on(cpu));
            let threads: Vec<_> = cpus.iter().map(start).collect();
            let ended = threads.into_iter().map(|thread| match thread.join() {
                Ok(rates) => rates,
                Err(panic) => std::panic::resume_unwind(panic),
            });
            ended.collect()
        });
        let rates = rates?;
        let tasks = self.graph.tasks() as f64;
        let each = (0..grains.len()).map(|grain| {
            let of_all: f64 = rates.iter().map(|of_core| of_core[grain]).sum();
            tasks / of_all
        });
        Ok(each.collect())
    }

    /// Computes a row; the series are the times of each grain, of the graph and of the same tasks
    /// without order.
    fn row(
        &self,
        runner: &'static str,
        cores: usize,
        times: &[Series],
        bare: &[Series],
    ) -> PatternRow {
        let tasks = self.graph.tasks();
        let points = self.grains.iter().zip(times).zip(bare);
        let curve: Vec<GrainPoint> = points
            .map(|((grain, time), bare)| {
                let efficiency = bare.over(time);
                GrainPoint {
                    kernel_us: grain.ns as f64 * 1e-3,
                    granularity_us: time.median() * cores as f64 / tasks as f64 * 1e-3,
                    efficiency: efficiency.median(),
                    spread: efficiency.spread(),
                }
            })
            .collect();
        let points: Vec<(f64, f64)> = (curve.iter())
            .map(|point| (point.granularity_us, point.efficiency))
            .collect();
        PatternRow {
            pattern: self.pattern.name(),
            runner,
            cores,
            width: self.width,
            steps: self.graph.steps(),
            tasks,
            dependences: self.graph.dependences(),
            metg50_us: metg(&points, 0.5),
            metg80_us: metg(&points, 0.8),
            curve,
            rounds: times.first().map_or(0, Series::rounds),
        }
    }
}

/// A graph that is executed over and over, with tasks of each length in turn.
struct Sweep<'s> {
    graph: &'s Graph,
    outputs: Outputs<'s>,
    grains: &'s [Grain],
    window_ns: u64,
    cancel: &'s AtomicBool,
}

/// One execution.
struct Run<'r> {
    outputs: &'r Outputs<'r>,
    number: u64,
    grain: Grain,
}

impl Run<'_> {
    #[inline]
    fn task(&self, task: usize) {
        self.outputs.run(self.number, task, self.grain.steps);
    }
}

impl Sweep<'_> {
    /// Nanoseconds of one execution for each length of tasks; `step` runs the tasks of a step, in
    /// any order.
    fn times(&self, step: impl Fn(Range<usize>, &Run<'_>)) -> Result<Vec<f64>, BenchError> {
        let mut times_ns = Vec::with_capacity(self.grains.len());
        for &grain in self.grains {
            interrupted(self.cancel)?;
            let mut number = 0;
            times_ns.push(measure(self.window_ns, || {
                number = self.outputs.begin();
                let run = Run {
                    outputs: &self.outputs,
                    number,
                    grain,
                };
                (0..self.graph.steps()).for_each(|at| step(self.graph.of_step(at), &run));
            }));
            if !self.outputs.are_right(number) {
                return Err(BenchError::Wrong(format!(
                    "a task of {} ns did not find what it needs, or was left out",
                    grain.ns
                )));
            }
        }
        Ok(times_ns)
    }
}

/// Programs with OpenMP and with oneTBB; none where this machine lacks what they are built with.
pub(super) struct Peers {
    pub(super) openmp: Option<RefCell<Speaker>>,
    pub(super) tbb: Option<RefCell<Speaker>>,
}

impl Peers {
    fn start(bench: &mut Bench<'_>) -> Result<Self, BenchError> {
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

/// Lengths of tasks.
const GRAINS_NS: [u64; 12] = [
    20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000,
];
const QUICK_GRAINS_NS: [u64; 3] = [100, 2_000, 20_000];
/// Points of a step for each core, and the least and the most of them.
const WIDTH_EACH: usize = 8;
const WIDTH_LEAST: usize = 16;
const WIDTH_MAX: usize = 64;
const STEPS: usize = 32;
const BARE: &str = "no runtime";
pub(super) const SIDECORE: &str = "sidecore";
pub(super) const RAYON: &str = "rayon";
pub(super) const OPENMP: &str = "openmp";
pub(super) const TBB: &str = "tbb";
const LOOPS: &str = "openmp_loops";
const TASKS: &str = "openmp_tasks";
const FLOW: &str = "tbb_flow_graph";
const PEER_SOURCE: &str = include_str!("../../peers/patterns.cpp");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pattern_runs_in_order_on_engines_and_on_rayons_threads() {
        let config = PoolConfig {
            engines: 3,
            pin: false,
            ..PoolConfig::default()
        };
        let pool = Pool::start(config).unwrap();
        let rayon = rayon::ThreadPoolBuilder::new().num_threads(3);
        let rayon = rayon.build().unwrap();
        let grains = [Grain { ns: 50, steps: 40 }];
        let cancel = AtomicBool::new(false);
        for pattern in Pattern::ALL {
            let graph = Graph::new(pattern, 9, 12);
            let sweep = || Sweep {
                graph: &graph,
                outputs: Outputs::new(&graph),
                grains: &grains,
                window_ns: 100_000,
                cancel: &cancel,
            };
            let (own, theirs) = (sweep(), sweep());
            let times = own.times(|tasks, run| {
                let loops = pool.par_range(tasks);
                loops.for_each(|task| run.task(task)).unwrap();
            });
            assert!(times.unwrap()[0] > 0.0, "{pattern:?}");
            let times = rayon.install(|| {
                theirs.times(|tasks, run| {
                    tasks.into_par_iter().for_each(|task| run.task(task));
                })
            });
            assert!(times.unwrap()[0] > 0.0, "{pattern:?}");
        }
    }

    #[test]
    fn a_runtime_that_takes_steps_backwards_is_found() {
        let graph = Graph::new(Pattern::Nearest, 4, 3);
        let grains = [Grain { ns: 20, steps: 1 }];
        let sweep = Sweep {
            graph: &graph,
            outputs: Outputs::new(&graph),
            grains: &grains,
            window_ns: 1_000,
            cancel: &AtomicBool::new(false),
        };
        let times = sweep.times(|tasks, run| {
            let mirrored = tasks.map(|task| graph.tasks() - 1 - task);
            mirrored.for_each(|task| run.task(task));
        });
        let error = times.unwrap_err().to_string();
        assert!(error.contains("did not find what it needs"), "{error}");
    }

    #[test]
    fn a_row_has_its_granularities_and_where_they_become_effective() {
        let pool = Pool::start(PoolConfig {
            engines: 1,
            ..PoolConfig::default()
        });
        let (pool, rayon) = (pool.unwrap(), rayon_pool(&[0]).unwrap());
        let peers = Peers {
            openmp: None,
            tbb: None,
        };
        let graph = Graph::new(Pattern::NoComm, 10, 10);
        let grains = [1_000, 4_000].map(|ns| Grain { ns, steps: ns });
        let ways = Ways {
            pool: &pool,
            rayon: &rayon,
            peers: &peers,
            pattern: Pattern::NoComm,
            graph: &graph,
            width: 10,
            grains: &grains,
            window_ns: 1_000,
        };
        // A hundred tasks on two cores, of which each costs 1 us and 2 us more than its work.
        let series = |ns: f64| Series::new(vec![ns, ns]);
        let bare = [series(50e3), series(200e3)];
        let row = ways.row(RAYON, 2, &[series(200e3), series(250e3)], &bare);
        let curve: Vec<_> = (row.curve.iter())
            .map(|point| (point.granularity_us, point.efficiency))
            .collect();
        assert_eq!(curve, [(4.0, 0.25), (5.0, 0.8)]);
        let metg = row.metg50_us.unwrap();
        assert!(metg > 4.0 && metg < 5.0, "{metg}");
        assert_eq!(row.metg80_us, Some(5.0));
        // The question has all of the graph: what the peer's program reads, and no more.
        let question = ways.question(1);
        assert_eq!(question[..6], [2, 1_000, 1, 2, 1_000, 4_000]);
        assert_eq!(question.len(), 6 + graph.words().len());
    }
}

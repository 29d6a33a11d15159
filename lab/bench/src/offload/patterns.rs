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

use super::graphs::{FLOW, LOOPS, RAYON, SIDECORE, TASKS};
use super::graphs::{GrainPoint, Graph, Outputs, Pattern, PatternRow, delay, metg};
use super::loops::{RAYON_LEAST_NS, pinned, rayon_pool};
use super::overheads::{self, Peers, ask};
use super::roles::stay_on;
use super::work::{measure, steps_of};
use super::{Bench, BenchError, Candidate, interrupted};
use crate::measure::stats::Series;
use rayon::prelude::*;
use sidecore_offload::{Pool, PoolConfig};
use std::ops::Range;
use std::sync::Barrier;
use std::sync::atomic::AtomicBool;

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
    let each = (WIDTH_WANTED / cpus.len().max(1)).clamp(1, WIDTH_EACH_MAX);
    let wide = (cpus.len() * each).max(WIDTH_LEAST);
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

/// Lengths of tasks.
const GRAINS_NS: [u64; 12] = [
    20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000,
];
const QUICK_GRAINS_NS: [u64; 3] = [100, 2_000, 20_000];
/// Points of a step for each core at most. Each core has the same number, or some would be idle at
/// the end of every step.
const WIDTH_EACH_MAX: usize = 8;
/// Points of a step: about this number where cores are many, and the least.
const WIDTH_WANTED: usize = 64;
const WIDTH_LEAST: usize = 16;
const STEPS: usize = 32;
const BARE: &str = "no runtime";

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
        // A hundred tasks on two cores, which cost 3 us and 1 us each besides their work.
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

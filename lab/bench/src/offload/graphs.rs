//! Graphs of tasks in steps, by the dependence patterns of Task Bench.
//!
//! Why here: what a runtime costs depends on the shape of the graph. The patterns are those of
//! simulations, sweeps, trees and transforms; all runtimes get the same lists of dependences.
//! Must stay true: a task needs tasks of the step before its own only; the lists are the same in
//! every run. A task looks at the outputs of all that it needs, so a task that runs too early, or
//! never, is found.
//! [`PatternRow`] is a result. [`Pattern`], [`Graph`] and [`metg`] are pure; any threads may use
//! [`Outputs`]. Source: Slaughter et al., "Task Bench: A Parameterized Benchmark for Evaluating
//! Parallel Runtime Performance", SC 2020, section II; the numbers of points and the order of the
//! patterns that change from step to step are our own.

use super::work::chain;
use crossbeam_utils::CachePadded;
use serde::Serialize;
use sidecore_random::SplitMix;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

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

/// The dependences of a point on points of the step before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pattern {
    /// None.
    Trivial,
    /// The same point.
    NoComm,
    /// The same point and its two neighbours.
    Stencil,
    /// The same in a ring.
    StencilPeriodic,
    /// The same point and the one before, in a graph that widens and narrows again: a sweep along
    /// the diagonals of a domain.
    Dom,
    /// The point's parent, in a tree that doubles its points with each step up to the width.
    Tree,
    /// The same point and two at a distance that doubles with each step, as in a transform.
    Fft,
    /// The [`RADIX`] nearest points.
    Nearest,
    /// [`RADIX`] points at equal distances, others in each step.
    Spread,
    /// All points.
    AllToAll,
    /// Each of the nearest points with a probability of a half.
    RandomNearest,
}

impl Pattern {
    /// All of them, in the order of the report.
    pub(crate) const ALL: [Self; 11] = [
        Self::Trivial,
        Self::NoComm,
        Self::Stencil,
        Self::StencilPeriodic,
        Self::Dom,
        Self::Tree,
        Self::Fft,
        Self::Nearest,
        Self::Spread,
        Self::AllToAll,
        Self::RandomNearest,
    ];

    /// Its name, as Task Bench writes it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Trivial => "trivial",
            Self::NoComm => "no_comm",
            Self::Stencil => "stencil_1d",
            Self::StencilPeriodic => "stencil_1d_periodic",
            Self::Dom => "dom",
            Self::Tree => "tree",
            Self::Fft => "fft",
            Self::Nearest => "nearest",
            Self::Spread => "spread",
            Self::AllToAll => "all_to_all",
            Self::RandomNearest => "random_nearest",
        }
    }

    /// Points of a step.
    fn points(self, step: usize, steps: usize, width: usize) -> Range<usize> {
        match self {
            Self::Dom => {
                // It widens for as many steps as it narrows.
                let widest = width.min(steps.div_ceil(2));
                (step + widest).saturating_sub(steps)..widest.min(step + 1)
            }
            Self::Tree => {
                // More than a word has bits is more than any width.
                let grown = 1_usize.checked_shl(step as u32).unwrap_or(width);
                0..width.min(grown)
            }
            _ => 0..width,
        }
    }

    /// Points of the step before that a point of a step after the first needs, ascending.
    /// `random` is asked in a fixed order.
    fn needs(self, step: usize, point: usize, width: usize, random: &mut SplitMix) -> Vec<usize> {
        let near = |reach: usize| point.saturating_sub(reach)..width.min(point + reach + 1);
        let mut needs: Vec<usize> = match self {
            Self::Trivial => Vec::new(),
            Self::NoComm => vec![point],
            Self::Stencil => near(1).collect(),
            Self::StencilPeriodic => vec![(point + width - 1) % width, point, (point + 1) % width],
            Self::Dom => (point.saturating_sub(1)..=point).collect(),
            Self::Tree => vec![point / 2],
            Self::Fft => {
                let levels = width.next_power_of_two().ilog2().max(1);
                let far = 1 << ((step - 1) % levels as usize);
                let before = point.checked_sub(far);
                before.into_iter().chain([point, point + far]).collect()
            }
            Self::Nearest => near(RADIX / 2).collect(),
            Self::Spread => {
                let radix = RADIX.min(width);
                let apart = |part: usize| (point + step + part * width / radix) % width;
                (0..radix).map(apart).collect()
            }
            Self::AllToAll => (0..width).collect(),
            Self::RandomNearest => near(RADIX / 2).filter(|_| random.happens(0.5)).collect(),
        };
        needs.sort_unstable();
        needs.dedup();
        needs
    }
}

/// A graph: the tasks of one step after those of another, by their numbers.
#[derive(Debug)]
pub(crate) struct Graph {
    /// First task of each step, and the number of tasks.
    starts: Vec<usize>,
    /// First dependence of each task in `needs`, and their number.
    firsts: Vec<usize>,
    /// Tasks that tasks need.
    needs: Vec<usize>,
}

impl Graph {
    /// The graph of a pattern; both numbers are at least 1.
    pub(crate) fn new(pattern: Pattern, width: usize, steps: usize) -> Self {
        let mut random = SplitMix::new(SEED);
        let mut graph = Self {
            starts: vec![0],
            firsts: vec![0],
            needs: Vec::new(),
        };
        let (mut before, mut before_start) = (0..0, 0);
        for step in 0..steps {
            let start = graph.tasks();
            let points = pattern.points(step, steps, width);
            for point in points.clone() {
                if step > 0 {
                    let needs = pattern.needs(step, point, width, &mut random).into_iter();
                    let there = needs.filter(|need| before.contains(need));
                    let numbered = there.map(|need| before_start + need - before.start);
                    graph.needs.extend(numbered);
                }
                graph.firsts.push(graph.needs.len());
            }
            graph.starts.push(start + points.len());
            (before, before_start) = (points, start);
        }
        graph
    }

    /// Number of steps.
    pub(crate) fn steps(&self) -> usize {
        self.starts.len() - 1
    }

    /// Number of tasks.
    pub(crate) fn tasks(&self) -> usize {
        self.firsts.len() - 1
    }

    /// Number of dependences.
    pub(crate) fn dependences(&self) -> usize {
        self.needs.len()
    }

    /// Tasks of a step, by their numbers.
    pub(crate) fn of_step(&self, step: usize) -> Range<usize> {
        self.starts[step]..self.starts[step + 1]
    }

    /// Tasks that a task needs.
    fn needs(&self, task: usize) -> &[usize] {
        &self.needs[self.firsts[task]..self.firsts[task + 1]]
    }

    /// The graph as the peers read it: steps, tasks of each, and for each task the number of those
    /// that it needs and these.
    pub(crate) fn words(&self) -> Vec<u64> {
        let mut words = vec![self.steps() as u64];
        words.extend((0..self.steps()).map(|step| self.of_step(step).len() as u64));
        for task in 0..self.tasks() {
            let needs = self.needs(task);
            words.push(needs.len() as u64);
            words.extend(needs.iter().map(|&need| need as u64));
        }
        words
    }
}

/// Outputs of a graph's tasks, each of the run that it was made in, on a line of its own.
#[derive(Debug)]
pub(crate) struct Outputs<'g> {
    graph: &'g Graph,
    cells: Vec<CachePadded<AtomicU64>>,
    /// Outputs that were not there when a task needed them.
    missed: CachePadded<AtomicU64>,
    runs: AtomicU64,
}

impl<'g> Outputs<'g> {
    /// No outputs.
    pub(crate) fn new(graph: &'g Graph) -> Self {
        Self {
            graph,
            cells: (0..graph.tasks()).map(|_| CachePadded::default()).collect(),
            missed: CachePadded::default(),
            runs: AtomicU64::new(0),
        }
    }

    /// Begins a run and returns its number; what earlier runs left counts no more. One run at a
    /// time.
    pub(crate) fn begin(&self) -> u64 {
        self.runs.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Runs a task: looks at the outputs that it needs, computes this number of steps, leaves its
    /// own.
    #[inline]
    pub(crate) fn run(&self, run: u64, task: usize, steps: u64) {
        for &need in self.graph.needs(task) {
            // Relaxed, here and below: the order is looked at, and is the runtime's to make.
            if self.cells[need].load(Ordering::Relaxed) != tag(run, need) {
                self.missed.fetch_add(1, Ordering::Relaxed);
            }
        }
        delay(steps);
        self.cells[task].store(tag(run, task), Ordering::Relaxed);
    }

    /// True if each task of this run was run, and every one of all runs found what it needed.
    pub(crate) fn are_right(&self, run: u64) -> bool {
        let mut cells = self.cells.iter().enumerate();
        let all = cells.all(|(task, cell)| cell.load(Ordering::Relaxed) == tag(run, task));
        all && self.missed.load(Ordering::Relaxed) == 0
    }
}

/// A task's work: a chain of steps, each of which needs the one before.
#[inline]
pub(crate) fn delay(steps: u64) {
    // The compiler must know neither the first value nor that the last is of no use.
    std::hint::black_box(chain(std::hint::black_box(1), steps));
}

/// Output of a task.
fn tag(run: u64, task: usize) -> u64 {
    run << 32 | task as u64
}

/// Minimum effective task granularity: the least granularity from which on all points have the
/// wanted efficiency, between two points by the logarithm of the granularity. `points` are pairs of
/// both, the granularities ascending. That of the first point where all have it; `None` where the
/// last has it not.
pub(crate) fn metg(points: &[(f64, f64)], wanted: f64) -> Option<f64> {
    let is_below = |&(_, efficiency): &(f64, f64)| efficiency < wanted;
    let Some(below) = points.iter().rposition(is_below) else {
        return points.first().map(|&(granularity, _)| granularity);
    };
    let (from, low) = points[below];
    let &(to, high) = points.get(below + 1)?;
    // `low` is less than `wanted`, which is at most `high`.
    let share = (wanted - low) / (high - low);
    Some(from * (to / from).powf(share))
}

/// Dependences of a task in the patterns that have a fixed number of them.
const RADIX: usize = 5;
const SEED: u64 = 5;
pub(super) const SIDECORE: &str = "sidecore";
pub(super) const RAYON: &str = "rayon";
pub(super) const LOOPS: &str = "openmp_loops";
pub(super) const TASKS: &str = "openmp_tasks";
pub(super) const FLOW: &str = "tbb_flow_graph";

#[cfg(test)]
mod tests {
    use super::*;

    /// Every dependence of a graph as (step, point, point of the step before).
    fn edges(pattern: Pattern, width: usize, steps: usize) -> Vec<(usize, usize, usize)> {
        let graph = Graph::new(pattern, width, steps);
        let first = |step| pattern.points(step, steps, width).start;
        let mut edges = Vec::new();
        for step in 0..graph.steps() {
            for task in graph.of_step(step) {
                let point = task - graph.of_step(step).start + first(step);
                for &need in graph.needs(task) {
                    let before = graph.of_step(step - 1);
                    assert!(before.contains(&need), "{pattern:?}: {task} needs {need}");
                    edges.push((step, point, need - before.start + first(step - 1)));
                }
            }
        }
        edges
    }

    /// Dependences of one task.
    fn of(pattern: Pattern, width: usize, step: usize, point: usize) -> Vec<usize> {
        let edges = edges(pattern, width, 12).into_iter();
        let own = edges.filter(|&(at, to, _)| (at, to) == (step, point));
        own.map(|(_, _, from)| from).collect()
    }

    #[test]
    fn dependences_are_those_of_their_pattern() {
        assert!(edges(Pattern::Trivial, 7, 9).is_empty());
        let all = edges(Pattern::NoComm, 7, 9);
        assert!(all.len() == 7 * 8 && all.iter().all(|(_, to, from)| to == from));
        assert_eq!(of(Pattern::Stencil, 6, 3, 0), [0, 1]);
        assert_eq!(of(Pattern::Stencil, 6, 3, 4), [3, 4, 5]);
        assert_eq!(of(Pattern::StencilPeriodic, 6, 3, 0), [0, 1, 5]);
        assert_eq!(of(Pattern::Nearest, 9, 2, 4), [2, 3, 4, 5, 6]);
        assert_eq!(of(Pattern::Nearest, 9, 2, 8), [6, 7, 8]);
        // Distances of 1, 2, 4, 8 and again 1.
        assert_eq!(of(Pattern::Fft, 16, 1, 5), [4, 5, 6]);
        assert_eq!(of(Pattern::Fft, 16, 4, 5), [5, 13]);
        assert_eq!(of(Pattern::Fft, 16, 5, 5), [4, 5, 6]);
        assert_eq!(of(Pattern::AllToAll, 6, 1, 2), [0, 1, 2, 3, 4, 5]);
        assert_eq!(of(Pattern::Spread, 10, 1, 0), [1, 3, 5, 7, 9]);
        assert_eq!(of(Pattern::Spread, 10, 2, 0), [0, 2, 4, 6, 8]);
        assert_eq!(of(Pattern::Tree, 8, 2, 3), [1]);
        let near = edges(Pattern::RandomNearest, 16, 30);
        let most = edges(Pattern::Nearest, 16, 30);
        assert!(near.iter().all(|edge| most.contains(edge)));
        let share = near.len() as f64 / most.len() as f64;
        assert!((0.45..0.55).contains(&share), "{share}");
        assert_eq!(near, edges(Pattern::RandomNearest, 16, 30), "every time");
    }

    #[test]
    fn trees_and_sweeps_grow_and_sweeps_end_in_a_point() {
        let widths = |pattern, width, steps| -> Vec<usize> {
            let graph = Graph::new(pattern, width, steps);
            let of_step = |step| graph.of_step(step).len();
            (0..steps).map(of_step).collect()
        };
        assert_eq!(widths(Pattern::Tree, 6, 5), [1, 2, 4, 6, 6]);
        assert_eq!(widths(Pattern::Dom, 3, 7), [1, 2, 3, 3, 3, 2, 1]);
        assert_eq!(widths(Pattern::Dom, 4, 4), [1, 2, 2, 1]);
        assert_eq!(of(Pattern::Dom, 4, 2, 2), [1]);
        assert_eq!(of(Pattern::Dom, 4, 5, 2), [1, 2]);
        // The narrowest and those of any other width have all of their tasks.
        for pattern in Pattern::ALL {
            for (width, steps) in [(1, 1), (1, 9), (2, 3), (9, 100), (3, 2)] {
                let graph = Graph::new(pattern, width, steps);
                assert_eq!(graph.steps(), steps);
                assert_eq!(graph.of_step(steps - 1).end, graph.tasks());
                let words = graph.words();
                let expected = 1 + steps + graph.tasks() + graph.dependences();
                assert_eq!((words.len(), words[0]), (expected, steps as u64));
            }
        }
    }

    #[test]
    fn a_task_that_runs_too_early_or_never_is_found() {
        let graph = Graph::new(Pattern::Stencil, 4, 3);
        let tasks = graph.tasks();
        let right = |order: &[usize]| {
            let outputs = Outputs::new(&graph);
            // An earlier run must not pass for this one.
            let run = outputs.begin();
            (0..tasks).for_each(|task| outputs.run(run, task, 1));
            assert!(outputs.are_right(run));
            let run = outputs.begin();
            order.iter().for_each(|&task| outputs.run(run, task, 1));
            outputs.are_right(run)
        };
        let mut order: Vec<usize> = (0..tasks).collect();
        assert!(right(&order));
        // Two of the same step.
        order.swap(0, 3);
        assert!(right(&order));
        // One before a task that it needs.
        order.swap(1, 4);
        assert!(!right(&order));
        assert!(!right(&(0..tasks - 1).collect::<Vec<_>>()));
    }

    #[test]
    fn the_granularity_of_an_efficiency_lies_between_two_points() {
        let points = [(1.0, 0.1), (2.0, 0.3), (8.0, 0.7), (16.0, 0.9)];
        let at = metg(&points, 0.5);
        assert!(at.is_some_and(|at| (at - 4.0).abs() < 1e-12), "{at:?}");
        assert_eq!(metg(&points, 0.95), None);
        assert_eq!(metg(&points, 0.05), Some(1.0));
        assert_eq!(metg(&[], 0.5), None);
        // One that falls below again is not yet effective.
        let noisy = [(1.0, 0.6), (2.0, 0.4), (4.0, 0.5)];
        assert_eq!(metg(&noisy, 0.5), Some(4.0));
    }
}

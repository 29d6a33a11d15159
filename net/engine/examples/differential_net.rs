//! Our TCP compared with the kernel's under many seeds: `tests/against_kernel.rs` does the same
//! with a few.
//!
//! `sudo target/release/examples/differential_net --seconds 60 --seed 1`
//!
//! Cases run concurrently, since most of the time is waiting. Ends when the time is over or
//! `--seeds` are done; every failure prints its seed, and `--seed SEED --seeds 1 --show 1` repeats
//! it and prints the traffic on all three wires. Exit status 1: the stacks differ; 2: it could not
//! run.
//!
//! Two cases in five have a bottleneck. If its queue drops more than twice as many of our frames as
//! of the kernel's, beyond what chance explains, the case is repeated up to twice, in all pairings
//! and with other random losses; it fails if that happens each time. All cases together must also
//! stay within twice the kernel's drops.
#![allow(clippy::print_stdout)] // a program for people

#[path = "../../stack/tests/common/mod.rs"]
mod common;
#[path = "../tests/common/kernel/mod.rs"]
mod kernel;

use kernel::case::Case;
use kernel::judge::{Drops, Tally, judge, judge_drops};
use kernel::{PAIRINGS, Run};
use std::time::{Duration, Instant};

fn main() {
    if let Some(obstacle) = kernel::obstacle() {
        eprintln!("differential_net: {obstacle}");
        std::process::exit(2);
    }
    let first = option("--seed", 1);
    let (seeds, seconds) = (option("--seeds", u64::MAX), option("--seconds", 60));
    let show = option("--show", 0) > 0;
    let begun = Instant::now();
    let mut next = first;
    let mut soak = Soak::default();
    while next - first < seeds && begun.elapsed() < Duration::from_secs(seconds) {
        let count = AT_ONCE.min(seeds - (next - first));
        let cases: Vec<Case> = (next..next + count).map(Case::of).collect();
        next += count;
        let runs = kernel::run(&cases, LIMIT);
        for (case, runs) in cases.iter().zip(&runs) {
            if show {
                print(case, runs);
            }
            soak.add(case, runs);
        }
        let more = attempts(&cases, &runs);
        soak.retried += more.iter().filter(|more| !more.is_empty()).count();
        for ((case, first), more) in cases.iter().zip(&runs).zip(&more) {
            let all: Vec<&[Run; 3]> = std::iter::once(first).chain(more).collect();
            let mut complaints = judge_drops(case, &all);
            complaints.extend(all.iter().flat_map(|runs| judge(case, runs)));
            soak.failed += usize::from(!complaints.is_empty());
            for complaint in complaints {
                println!("seed {} ({:?}): {complaint}", case.seed, case.kind);
            }
        }
    }
    soak.report();
    let seconds = begun.elapsed().as_secs_f64();
    println!(
        "seeds {first} to {}, {seconds:.1} s: {} failed",
        next - 1,
        soak.failed
    );
    std::process::exit(i32::from(
        soak.failed > 0 || soak.drops.are_too_many(CHANCE_FRAMES),
    ));
}

/// Repeats the cases with too many drops, each time with other random losses, until one is within
/// the limits.
fn attempts(cases: &[Case], first: &[[Run; 3]]) -> Vec<Vec<[Run; 3]>> {
    let mut more: Vec<Vec<[Run; 3]>> = cases.iter().map(|_| Vec::new()).collect();
    for attempt in 1..ATTEMPTS_MAX {
        let is_suspect = |at: &usize| {
            let all: Vec<&[Run; 3]> = std::iter::once(&first[*at]).chain(&more[*at]).collect();
            !judge_drops(&cases[*at], &all).is_empty()
        };
        let suspects: Vec<usize> = (0..cases.len()).filter(is_suspect).collect();
        let other_luck = |&at: &usize| Case {
            luck: cases[at].seed ^ attempt << 32,
            ..cases[at].clone()
        };
        let again: Vec<Case> = suspects.iter().map(other_luck).collect();
        for (at, runs) in suspects.into_iter().zip(kernel::run(&again, LIMIT)) {
            more[at].push(runs);
        }
    }
    more
}

/// Totals of all cases, each from its first attempt.
#[derive(Default)]
struct Soak {
    failed: usize,
    /// For each pairing: segments, retransmissions, random losses, and drops by a queue.
    sums: [[usize; 4]; 3],
    bottlenecks: usize,
    retried: usize,
    drops: Drops,
}

impl Soak {
    fn add(&mut self, case: &Case, runs: &[Run; 3]) {
        for (sums, run) in self.sums.iter_mut().zip(runs) {
            let [client, server] = [0, 1].map(|side| Tally::of(&run.flow, side));
            sums[0] += client.sent + server.sent;
            sums[1] += client.again + server.again;
            // These two count both directions.
            sums[2] += client.unlucky;
            sums[3] += client.dropped;
        }
        self.bottlenecks += usize::from(case.bottlenecks.iter().any(Option::is_some));
        for side in 0..2 {
            let drops = Drops::of(runs, side);
            self.drops.kernels += drops.kernels;
            self.drops.ours += drops.ours;
            self.drops.towards_ours += drops.towards_ours;
        }
    }

    fn report(&self) {
        for (pairing, [sent, again, unlucky, dropped]) in PAIRINGS.iter().zip(self.sums) {
            println!(
                "{pairing:?}: {sent} segments, {unlucky} lost, damaged, late or doubled, \
                 {dropped} dropped by a queue, {again} sent again"
            );
        }
        let Drops {
            kernels,
            ours,
            towards_ours,
        } = self.drops;
        // Plus one, so that there is a ratio for zero.
        let ratio = |count: usize| (count + 1) as f64 / (kernels + 1) as f64;
        println!(
            "{} cases with a bottleneck, {} of them tried again: {kernels} frames dropped between \
             kernels, {ours} of ours ({:.2}; at most 2), {towards_ours} of the kernel's on their \
             way to us ({:.2})",
            self.bottlenecks,
            self.retried,
            ratio(ours),
            ratio(towards_ours)
        );
    }
}

fn print(case: &Case, runs: &[Run; 3]) {
    println!("{case:#?}");
    for (pairing, run) in PAIRINGS.iter().zip(runs) {
        println!("{pairing:?}: {:?}", run.logs);
        let began_ns = run.flow.passed.first().map_or(0, |passed| passed.at_ns);
        for passed in &run.flow.passed {
            println!(
                "{:10.3} ms {} {} {} {}",
                (passed.at_ns - began_ns) as f64 / 1e6,
                ["client", "server"][passed.direction],
                if passed.arrived { "  arrived" } else { "sent" },
                passed.segment,
                passed.fate
            );
        }
    }
}

fn option(name: &str, default: u64) -> u64 {
    let mut arguments = std::env::args();
    let value = arguments.find(|argument| argument == name);
    let Some(value) = value.and_then(|_| arguments.next()) else {
        return default;
    };
    value.parse().unwrap_or_else(|_| {
        eprintln!("differential_net: {name} takes a number, not `{value}`");
        std::process::exit(2)
    })
}

/// Concurrent cases.
const AT_ONCE: u64 = 44;
/// Drops of all cases that are tolerated: the effect of one case on a run of a few seconds.
const CHANCE_FRAMES: usize = 100;
/// Attempts at a case with too many drops.
const ATTEMPTS_MAX: u64 = 3;
/// Time limit of a case.
const LIMIT: Duration = Duration::from_secs(60);

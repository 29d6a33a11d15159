//! Our TCP beside the kernel's under many seeds: what `tests/against_kernel.rs` does with a
//! handful.
//!
//! `sudo target/release/examples/differential_net --seconds 60 --seed 1`
//!
//! Cases run side by side, most of the time is waiting. Ends when the time is over or `--seeds` are
//! done; every failure prints its seed, and `--seed SEED --seeds 1 --show 1` does it again and
//! prints what passed on all three wires. Exit status 1: the stacks differ; 2: it could not run.
#![allow(clippy::print_stdout)] // a program for people

#[path = "../../net-stack/tests/common/mod.rs"]
mod common;
#[path = "../tests/common/kernel/mod.rs"]
mod kernel;

use kernel::case::Case;
use kernel::judge::{Tally, judge};
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
    let (mut next, mut failed) = (first, 0);
    let mut sums = [[0; 3]; 3];
    while next - first < seeds && begun.elapsed() < Duration::from_secs(seconds) {
        let count = AT_ONCE.min(seeds - (next - first));
        let cases: Vec<Case> = (next..next + count).map(Case::of).collect();
        next += count;
        let runs = kernel::run(&cases, LIMIT);
        for (case, runs) in cases.iter().zip(&runs) {
            for (sums, run) in sums.iter_mut().zip(runs) {
                for tally in [0, 1].map(|side| Tally::of(&run.flow, side)) {
                    sums[0] += tally.sent;
                    sums[1] += tally.again;
                }
                sums[2] += Tally::of(&run.flow, 0).unlucky;
            }
            if show {
                print(case, runs);
            }
            let complaints = judge(case, runs);
            failed += u64::from(!complaints.is_empty());
            for complaint in complaints {
                println!("seed {} ({:?}): {complaint}", case.seed, case.kind);
            }
        }
    }
    for (pairing, [sent, again, unlucky]) in PAIRINGS.iter().zip(sums) {
        println!(
            "{pairing:?}: {sent} segments, {unlucky} lost, damaged, late or doubled, \
             {again} sent again"
        );
    }
    let seconds = begun.elapsed().as_secs_f64();
    println!(
        "seeds {first} to {}, {seconds:.1} s: {failed} failed",
        next - 1
    );
    std::process::exit(i32::from(failed > 0));
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

/// Cases side by side.
const AT_ONCE: u64 = 44;
/// Nobody waits longer for a case.
const LIMIT: Duration = Duration::from_secs(60);

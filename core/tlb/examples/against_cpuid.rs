//! Runs the detector repeatedly and compares it with the processor's own description.
//!
//! `cargo run --release -p sidecore-tlb --example against_cpuid -- [RUNS] [--quick]`
//!
//! CPUID is the reference, never an input; which leaf was believed is printed.
//! Prints a row a run and, at the end, how often each figure was within its bound: 5 % for the
//! first level's capacity, 10 % for the second's, 10 % of the counters' own penalty where the
//! machine has counters.

use sidecore_measure::Machine;
use sidecore_tlb::cpuid::{self, CpuidLevel};
use sidecore_tlb::report::Level;
use sidecore_tlb::{Config, run};
use std::error::Error;
use std::io::Write;
use std::sync::atomic::AtomicBool;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let quick = arguments.iter().any(|argument| argument == "--quick");
    let count = arguments
        .iter()
        .find_map(|argument| argument.parse().ok())
        .unwrap_or(10);
    let mut out = std::io::stdout().lock();
    for line in Machine::of_this_program().lines() {
        writeln!(out, "{line}")?;
    }
    let truth = cpuid::levels();
    for said in &truth {
        writeln!(out, "CPUID, level {}: {}", said.level, said.words())?;
    }
    if truth.is_empty() {
        writeln!(
            out,
            "CPUID says nothing of data translations of 4 KiB pages"
        )?;
    }
    let mut hits = vec![0; truth.len()];
    let mut found: Vec<Vec<usize>> = vec![Vec::new(); truth.len()];
    let mut corroborated = 0;
    for seed in 1..=count {
        let config = Config {
            quick,
            levels_only: true,
            seed,
            ..Config::default()
        };
        let report = run(&config, &AtomicBool::new(false), &mut |_| ())?;
        write!(
            out,
            "run {seed:2} ({:4.1} s, load {}):",
            report.seconds, report.machine.load_start
        )?;
        for (index, (said, measured)) in report.beside_cpuid().enumerate() {
            let Some(level) = measured else {
                write!(out, "  none of {}", said.entries)?;
                continue;
            };
            let hit = is_near(level, said, BOUNDS[index.min(1)]);
            hits[index] += usize::from(hit);
            found[index].push(level.entries);
            write!(
                out,
                "  {} {} (+{:.1} cycles, confidence {:.2})",
                level.entries,
                if hit { "hit" } else { "MISS" },
                level.penalty_cycles,
                level.confidence
            )?;
        }
        for level in &report.unclear {
            write!(out, "  unclear {} ({:.2})", level.entries, level.confidence)?;
        }
        corroborated += usize::from(report.levels.iter().all(|level| level.corroborated));
        writeln!(out)?;
        out.flush()?;
    }
    for (index, (hits, found)) in hits.iter().zip(&found).enumerate() {
        let percent = BOUNDS[index.min(1)] * 100.0;
        let (least, most) = (found.iter().min(), found.iter().max());
        writeln!(
            out,
            "level {}: {hits} of {count} within {percent:.0} % of CPUID; found {} times, {} to {}",
            index + 1,
            found.len(),
            least.copied().unwrap_or(0),
            most.copied().unwrap_or(0),
        )?;
    }
    writeln!(
        out,
        "penalties corroborated by counters: {corroborated} of {count}"
    )?;
    Ok(())
}

fn is_near(level: &Level, truth: &CpuidLevel, bound: f64) -> bool {
    (level.entries as f64 / truth.entries as f64 - 1.0).abs() <= bound
}

/// Greatest relative error: of the first level, of the others.
const BOUNDS: [f64; 2] = [0.05, 0.1];

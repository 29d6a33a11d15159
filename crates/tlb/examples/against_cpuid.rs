//! Runs the detector again and again and compares it with what the processor says of itself.
//!
//! `cargo run --release -p sidecore-tlb --example against_cpuid -- [RUNS] [--quick]`
//!
//! CPUID is the reference, never an input: leaves 0x8000_0005 and 0x8000_0006 (AMD), 0x18 (Intel).
//! Prints a row a run and, at the end, how often each figure was within its bound: 5 % for the
//! first level's capacity, 10 % for the second's, 10 % of the counters' own penalty where the
//! machine has counters.

use raw_cpuid::{Associativity, CpuId, DatType};
use sidecore_sys::Machine;
use sidecore_tlb::report::Level;
use sidecore_tlb::{Config, run};
use std::error::Error;
use std::io::Write;
use std::sync::atomic::AtomicBool;

/// One translation level as CPUID describes it.
#[derive(Debug)]
struct Truth {
    entries: usize,
    ways: String,
}

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
    let truth = truth();
    for (index, level) in truth.iter().enumerate() {
        writeln!(
            out,
            "CPUID level {}: {} entries, {}",
            index + 1,
            level.entries,
            level.ways
        )?;
    }
    if truth.is_empty() {
        writeln!(
            out,
            "CPUID says nothing of data translations of 4 KiB pages"
        )?;
    }
    let mut hits = vec![0; truth.len()];
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
        for (index, level) in report.levels.iter().enumerate() {
            let hit = truth
                .get(index)
                .is_some_and(|truth| is_near(level, truth, BOUNDS[index.min(1)]));
            if let (true, Some(hits)) = (hit, hits.get_mut(index)) {
                *hits += 1;
            }
            write!(
                out,
                "  {} {} (+{:.1} cycles, confidence {:.2})",
                level.entries,
                if hit { "hit" } else { "MISS" },
                level.penalty_cycles,
                level.confidence
            )?;
        }
        corroborated += usize::from(report.levels.iter().all(|level| level.corroborated));
        writeln!(out)?;
        out.flush()?;
    }
    for (index, hits) in hits.iter().enumerate() {
        let percent = BOUNDS[index.min(1)] * 100.0;
        writeln!(
            out,
            "level {}: {hits} of {count} within {percent:.0} % of CPUID",
            index + 1
        )?;
    }
    writeln!(
        out,
        "penalties corroborated by counters: {corroborated} of {count}"
    )?;
    Ok(())
}

fn is_near(level: &Level, truth: &Truth, bound: f64) -> bool {
    (level.entries as f64 / truth.entries as f64 - 1.0).abs() <= bound
}

/// The levels for loads from 4 KiB pages, by CPUID.
fn truth() -> Vec<Truth> {
    let cpuid = CpuId::new();
    let mut levels: Vec<Truth> = Vec::new();
    if let Some(first) = cpuid.get_l1_cache_and_tlb_info() {
        levels.push(Truth {
            entries: first.dtlb_4k_size().into(),
            ways: ways(first.dtlb_4k_associativity()),
        });
    }
    if let Some(second) = cpuid.get_l2_l3_cache_and_tlb_info() {
        levels.push(Truth {
            entries: second.dtlb_4k_size().into(),
            ways: ways(second.dtlb_4k_associativity()),
        });
    }
    if let Some(all) = cpuid.get_deterministic_address_translation_info() {
        let mut intel: Vec<(u8, Truth)> = all
            .filter(|level| {
                let data = matches!(
                    level.cache_type(),
                    DatType::DataTLB | DatType::LoadOnly | DatType::UnifiedTLB
                );
                data && level.has_4k_entries()
            })
            .map(|level| {
                let truth = Truth {
                    entries: usize::from(level.ways()) * level.sets() as usize,
                    ways: format!("{} ways", level.ways()),
                };
                (level.cache_level(), truth)
            })
            .collect();
        intel.sort_by_key(|(level, _)| *level);
        levels.extend(intel.into_iter().map(|(_, truth)| truth));
    }
    levels.retain(|level| level.entries > 0);
    levels
}

fn ways(associativity: Associativity) -> String {
    match associativity {
        Associativity::FullyAssociative => "fully associative".to_owned(),
        Associativity::NWay(ways) => format!("{ways} ways"),
        Associativity::DirectMapped => "direct mapped".to_owned(),
        other => format!("{other:?}"),
    }
}

/// Greatest relative error: of the first level, of the others.
const BOUNDS: [f64; 2] = [0.05, 0.1];

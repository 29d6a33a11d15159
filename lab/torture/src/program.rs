//! The command: its arguments, its report, and the order of scenarios.

use crate::run::{Harness, Row};
use crate::scenario::SCENARIOS;
use anyhow::{Context, Result};
use clap::Parser;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Makes one system call after the other fail under every command and server of Sidecore
#[derive(Debug, Parser)]
struct Arguments {
    /// The program under test
    #[arg(long, default_value = "target/debug/sidecore")]
    program: PathBuf,
    /// Scenarios whose names contain this text
    #[arg(long, default_value = "")]
    only: String,
    /// The quick scenarios alone
    #[arg(long)]
    quick: bool,
    /// The most failing calls of each scenario; all where it has no more
    #[arg(long, default_value_t = 400)]
    calls: u64,
    /// The call that fails, to repeat one run
    #[arg(long)]
    call: Option<u64>,
    /// Seed of the choice among more calls than that
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Longest time of the whole, in seconds; scenarios share it
    #[arg(long, default_value_t = 3_600)]
    seconds: u64,
    /// Report in JSON on standard output
    #[arg(long)]
    json: bool,
    /// List the scenarios
    #[arg(long)]
    list: bool,
}

/// Runs the command that the arguments of this process name; its exit status.
pub(crate) fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match torture(&arguments) {
        Ok(rows) => report(&arguments, &rows),
        Err(error) => {
            eprintln!("torture: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn torture(arguments: &Arguments) -> Result<Vec<Row>> {
    let chosen = SCENARIOS.iter().filter(|scenario| {
        scenario.name.contains(&arguments.only) && (!arguments.quick || scenario.quick)
    });
    let chosen: Vec<_> = chosen.collect();
    if arguments.list {
        chosen
            .iter()
            .for_each(|scenario| eprintln!("{}", scenario.name));
        return Ok(Vec::new());
    }
    let program = arguments.program.canonicalize();
    let program = program.with_context(|| format!("{}", arguments.program.display()))?;
    let harness = Harness::new(program)?;
    let start = Instant::now();
    let whole = Duration::from_secs(arguments.seconds);
    let mut rows = Vec::new();
    for (index, scenario) in chosen.iter().enumerate() {
        let left = whole.saturating_sub(start.elapsed());
        let share = left / u32::try_from(chosen.len() - index)?;
        let mut random = sidecore_random::Random::new(arguments.seed);
        let row = match arguments.call {
            Some(call) => harness.one(scenario, call),
            None => harness.scenario(scenario, arguments.calls, &mut random, share),
        };
        let row = row.with_context(|| scenario.name)?;
        eprintln!(
            "{:32} {:>6} calls {:>6} runs {:>6} failures {:>4} findings",
            row.scenario,
            row.calls,
            row.runs,
            row.failures,
            row.findings.len()
        );
        for finding in row.findings.iter().take(FINDINGS_SHOWN) {
            eprintln!("    {finding}");
        }
        rows.push(row);
    }
    Ok(rows)
}

#[expect(clippy::print_stdout, reason = "the report is the program's output")]
fn report(arguments: &Arguments, rows: &[Row]) -> ExitCode {
    let findings: usize = rows.iter().map(|row| row.findings.len()).sum();
    let runs: u64 = rows.iter().map(|row| row.runs).sum();
    let failures: u64 = rows.iter().map(|row| row.failures).sum();
    if arguments.json {
        let report = serde_json::json!({
            "seed": arguments.seed, "runs": runs, "failures": failures, "rows": rows
        });
        println!("{report}");
    } else {
        println!(
            "{} scenarios, {runs} runs, {failures} with a failing call, {findings} findings; \
             seed {}",
            rows.len(),
            arguments.seed
        );
    }
    if findings == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(1)
    }
}

/// Findings of a scenario that are printed; all are in the JSON report.
const FINDINGS_SHOWN: usize = 12;

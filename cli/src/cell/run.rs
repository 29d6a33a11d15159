//! `sidecore cell run`: any policies on any machine and task mix.

use super::{draw, picture, prepare, progress};
use crate::{Outcome, output};
use anyhow::Result;
use serde::Serialize;
use sidecore_cell_sim::figures::lower_bound_s;
use sidecore_cell_sim::{Machine, simulate};
use sidecore_sched::by_name;
use std::path::PathBuf;

/// Arguments of `cell run`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The machine and its task mix; docs/machines has examples; the papers' Cell unless given
    #[arg(long, value_name = "FILE.toml")]
    machine: Option<PathBuf>,
    /// Policies: linux, edtlp, llp(N), hybrid(N), mgps, equi
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    #[arg(default_values_t = ["edtlp", "mgps", "equi"].map(String::from))]
    policy: Vec<String>,
    /// Numbers of tasks
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    #[arg(default_values_t = [1, 2, 4, 8, 16, 32, 64])]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=4096))]
    tasks: Vec<u32>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Write a picture (SVG) to this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Seed of the model's random times
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

#[derive(Serialize)]
struct Report {
    machine: String,
    seed: u64,
    rows: Vec<Row>,
}

/// One number of tasks under one policy.
#[derive(Serialize)]
struct Row {
    tasks: u32,
    policy: String,
    seconds: f64,
    engines_busy: f64,
    hosts_busy: f64,
    live_max: u32,
    kept_on_host: f64,
    lower_bound_s: f64,
}

impl Args {
    /// Runs the command.
    pub(crate) fn run(self) -> Result<Outcome> {
        for name in &self.policy {
            by_name(name)?;
        }
        let machine = match &self.machine {
            Some(path) => Machine::read(path)?,
            None => Machine::cell()?,
        };
        prepare(self.svg.as_deref())?;
        let bar = progress(self.tasks.len() * self.policy.len());
        let mut rows = Vec::new();
        for &tasks in &self.tasks {
            for name in &self.policy {
                let mut policy = by_name(name)?;
                let options = sidecore_cell_sim::Options::for_tasks(tasks, self.seed);
                let outcome = simulate(&machine, tasks, &mut *policy, options);
                bar.inc(1);
                rows.push(Row {
                    tasks,
                    policy: policy.name(),
                    seconds: outcome.seconds,
                    engines_busy: outcome.engines_busy,
                    hosts_busy: outcome.hosts_busy,
                    live_max: outcome.live_max,
                    kept_on_host: outcome.kept_on_host,
                    lower_bound_s: lower_bound_s(&machine, tasks),
                });
            }
        }
        bar.finish_and_clear();
        draw(self.svg.as_deref(), || {
            let runs = rows.iter();
            let runs = runs.map(|row| (row.policy.as_str(), row.tasks, row.seconds));
            picture::run(&machine.name, runs)
        })?;
        let report = Report {
            machine: machine.name,
            seed: self.seed,
            rows,
        };
        if self.json {
            output::json(&report)?;
        } else {
            print(&report)?;
        }
        Ok(Outcome::Done)
    }
}

fn print(report: &Report) -> Result<()> {
    output::line(&format!(
        "{}; seconds until all tasks are done; all predicted; seed {}",
        report.machine, report.seed
    ))?;
    output::line("tasks  policy         seconds  engines busy  hosts busy  live  lower bound")?;
    for row in &report.rows {
        output::line(&format!(
            "{:5}  {:10} {:11.2} {:11.0} % {:9.0} % {:5} {:12.2}",
            row.tasks,
            row.policy,
            row.seconds,
            100.0 * row.engines_busy,
            100.0 * row.hosts_busy,
            row.live_max,
            row.lower_bound_s
        ))?;
    }
    Ok(())
}

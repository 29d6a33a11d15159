//! Option `--trace-events`, and `sidecore trace`: what ran when.
//!
//! Why here: arguments and printing; recording and reading are in `sidecore_trace`.
//! Must stay true: a file that cannot be written costs a line on standard error and nothing of what
//! the command does.

use crate::{Outcome, output};
use anyhow::Result;
use clap::Subcommand;
use sidecore_trace::summary::Summary;
use sidecore_trace::{Recording, TraceError, Written};
use std::path::PathBuf;

/// Argument of every command that can be recorded.
#[derive(clap::Args, Clone)]
pub(crate) struct TraceArgs {
    /// Record which thread and which engine did what when. FILE is written at the end, and each
    /// time that SIGUSR2 comes, with the newest events; ui.perfetto.dev and `sidecore trace
    /// summary` show it
    #[arg(long, value_name = "FILE")]
    trace_events: Option<PathBuf>,
}

impl TraceArgs {
    /// Begins the recording, where one is wanted, of the command with this name. Call it before the
    /// command starts threads. The file is written when the result is dropped.
    pub(crate) fn begin(&self, command: &str) -> Result<Option<Recording>> {
        let Some(path) = &self.trace_events else {
            return Ok(None);
        };
        let process = format!("sidecore {command}");
        Ok(Some(Recording::begin(path, &process, Box::new(report))?))
    }
}

fn report(written: Result<Written, TraceError>) {
    match written {
        Ok(written) => output::note!("{written}"),
        Err(error) => output::note!("sidecore: {error}"),
    }
}

/// The commands on files of trace events.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Sum a file up: shares of engines, the longest spans, waits for engines.
    Summary(SummaryArgs),
}

#[derive(clap::Args)]
pub(crate) struct SummaryArgs {
    /// The file, as a command with --trace-events wrote it; `-` is standard input
    file: PathBuf,
    /// One JSON object on standard output
    #[arg(long)]
    json: bool,
}

impl Command {
    pub(crate) fn run(self) -> Result<Outcome> {
        let Self::Summary(args) = self;
        let summary = Summary::of_file(&args.file)?;
        match args.json {
            true => output::json(&summary)?,
            false => output::text(summary.text().trim_end())?,
        }
        Ok(Outcome::Done)
    }
}

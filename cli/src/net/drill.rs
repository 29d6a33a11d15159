//! `sidecore net drill`: scripts against the stack, in virtual time.

use crate::{Outcome, output};
use anyhow::{Context, Result};
use serde::Serialize;
use sidecore_sys::input::read_text;
use std::path::PathBuf;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The scripts, in packetdrill's notation as far as docs/formats/drill.md has it
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    scripts: Vec<Row>,
    failed: usize,
}

#[derive(Serialize)]
struct Row {
    script: String,
    /// Events that matched: all, or none where there is a problem.
    events: usize,
    /// The first line that cannot be read or did not match.
    problem: Option<String>,
}

impl Args {
    pub(crate) fn run(self) -> Result<Outcome> {
        let mut scripts = Vec::new();
        for path in &self.files {
            let script = path.display().to_string();
            let text = read_text(path, SCRIPT_BYTES_MAX);
            let text = text.with_context(|| format!("cannot read {script}"))?;
            let row = match sidecore_net_drill::run(&script, &text) {
                Ok(events) => Row {
                    script,
                    events,
                    problem: None,
                },
                Err(error) => Row {
                    script,
                    events: 0,
                    problem: Some(error.to_string()),
                },
            };
            if !self.json {
                output::text(&match &row.problem {
                    None => format!("{}: {} events came true", row.script, row.events),
                    Some(problem) => problem.clone(),
                })?;
            }
            scripts.push(row);
        }
        let failed = scripts.iter().filter(|row| row.problem.is_some()).count();
        let report = Report { scripts, failed };
        if self.json {
            output::json(&report)?;
        } else if failed > 0 {
            output::line(&format!(
                "{failed} of {} scripts failed",
                report.scripts.len()
            ))?;
        }
        Ok(if failed == 0 {
            Outcome::Done
        } else {
            Outcome::Problem
        })
    }
}

/// Scripts are written by hand.
const SCRIPT_BYTES_MAX: u64 = 16 << 20;

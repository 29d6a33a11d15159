//! `sidecore net drill`: scripts against the stack, in virtual time.

use crate::{Outcome, output};
use anyhow::{Context, Result};
use sidecore_net_drill::Report;
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

impl Args {
    pub(crate) fn run(self) -> Result<Outcome> {
        let mut report = Report::default();
        for path in &self.files {
            let script = path.display().to_string();
            let text = read_text(path, SCRIPT_BYTES_MAX);
            let text = text.with_context(|| format!("cannot read {script}"))?;
            let said = report.play(&script, &text);
            if !self.json {
                output::text(&said)?;
            }
        }
        match (self.json, report.verdict()) {
            (true, _) => output::json(&report)?,
            (false, Some(verdict)) => output::line(&verdict)?,
            (false, None) => {}
        }
        Ok(Outcome::of(report.failed == 0))
    }
}

/// Scripts are written by hand.
const SCRIPT_BYTES_MAX: u64 = 16 << 20;

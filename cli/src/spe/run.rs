//! `sidecore spe run`: a host program with what its contexts did, as a table and a timeline.
//!
//! Must stay true: the program's standard input and output are its own; the table goes to the
//! standard error; the exit status is the program's. A signal that would end this command ends the
//! program, and the terminal is left as it was.

use crate::signals::{SIGHUP, SIGINT, SIGTERM, raise_on};
use crate::{Outcome, output};
use anyhow::{Context, Result};
use sidecore_spe_tools::{Live, Traced, table, timeline};
use std::ffi::OsString;
use std::io::{IsTerminal, stderr};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::Command;

#[derive(clap::Args)]
#[command(after_help = "\
On a terminal the lowest lines show the contexts while the program runs; behind it comes a table \
of what each ran, waited for, moved by DMA and took of its store.

Exit status: the program's; 128 + N where signal N ended it.")]
pub(crate) struct Run {
    /// Draw an SVG timeline of the contexts: on which engine each ran, and what it waited for.
    #[arg(long, value_name = "FILE.svg")]
    timeline: Option<PathBuf>,
    /// Engines that contexts share [default: the processors, at least 6].
    #[arg(long, value_name = "N")]
    engines: Option<u16>,
    /// Show nothing while the program runs.
    #[arg(long)]
    no_live: bool,
    /// The program and its arguments.
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        required = true,
        value_name = "PROGRAM"
    )]
    program: Vec<OsString>,
}

impl Run {
    pub(crate) fn run(self) -> Result<Outcome> {
        let kit = super::kit()?;
        let folder = tempfile::tempdir().context("cannot make a folder for the trace")?;
        let (program, arguments) = self.program.split_first().context("no program")?;
        let mut command = Command::new(program);
        command.args(arguments);
        let signals = raise_on(&[SIGINT, SIGTERM, SIGHUP])?;
        let traced = Traced::start(&kit, command, &folder.path().join("trace"), self.engines)?;
        let live = !self.no_live && stderr().is_terminal();
        let mut live = live.then(|| Live::open(stderr())).flatten();
        let waited = traced.wait(&signals, |trace| {
            if let Some(live) = &mut live {
                live.show(trace);
            }
        });
        // The terminal's lines are given back before anything else is printed.
        drop(live);
        let (status, trace) = waited.context("cannot wait for the program")?;
        output::error_show(&table(&trace));
        if let Some(path) = &self.timeline {
            output::picture(path, &timeline(&trace)?)?;
        }
        drop(folder);
        let code = status.code();
        match code.unwrap_or_else(|| 128 + status.signal().unwrap_or(0)) {
            0 => Ok(Outcome::Done),
            code => std::process::exit(code),
        }
    }
}

//! `sidecore spe run`: a host program with what its contexts did, as a table and a timeline.
//!
//! Must stay true: the program's standard input and output are its own; the table goes to the
//! standard error; the exit status is the program's.

use super::trace::{Trace, Waits};
use crate::Outcome;
use anyhow::{Context, Result};
use std::ffi::OsString;
use std::fmt::Write as _;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::Command;

/// Arguments of `spe run`.
#[derive(clap::Args)]
pub(crate) struct Run {
    /// Draw who ran and who waited for what, as an SVG picture.
    #[arg(long, value_name = "FILE.svg")]
    timeline: Option<PathBuf>,
    /// Engines that contexts share [default: the processors, at least 6].
    #[arg(long, value_name = "N")]
    engines: Option<u16>,
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
        let file = folder.path().join("trace");
        let (program, arguments) = self.program.split_first().context("no program")?;
        let mut command = Command::new(program);
        command.args(arguments).env("SIDECORE_SPE_TRACE", &file);
        if let Some(libraries) = kit.programs().parent().map(|root| root.join("lib")) {
            let mut path = libraries.into_os_string();
            if let Some(before) = std::env::var_os("LD_LIBRARY_PATH") {
                path.push(":");
                path.push(before);
            }
            command.env("LD_LIBRARY_PATH", path);
        }
        if let Some(engines) = self.engines {
            command.env("SIDECORE_SPE_ENGINES", engines.to_string());
        }
        let status = command
            .status()
            .with_context(|| format!("cannot run {}", program.display()))?;
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        let trace = Trace::read(&text);
        eprint!("{}", table(&trace));
        if let Some(path) = &self.timeline {
            crate::output::file(path, &super::timeline::draw(&trace)?)?;
        }
        drop(folder);
        let code = status.code();
        match code.or_else(|| status.signal().map(|signal| 128 + signal)) {
            None | Some(0) => Ok(Outcome::Done),
            Some(code) => std::process::exit(code),
        }
    }
}

/// The table: a line for each context.
fn table(trace: &Trace) -> String {
    let mut text = String::new();
    if trace.contexts.is_empty() {
        return "no context ran: is the program linked with libspe2?\n".to_owned();
    }
    text += "context  ran_ms  mailbox_ms  signal_ms  event_ms  dma_ms";
    text += "  dma_commands  got_KiB  put_KiB\n";
    for (id, context) in &trace.contexts {
        let Waits {
            mailbox,
            signal,
            event,
            dma,
        } = context.waits;
        let ms = |us: u64| us as f64 / 1000.0;
        // Writing to a String does not fail.
        let _ = writeln!(
            text,
            "{id:>7}  {:>6.1}  {:>10.1}  {:>9.1}  {:>8.1}  {:>6.1}  {:>12}  {:>7}  {:>7}",
            ms(context.ran_us),
            ms(mailbox),
            ms(signal),
            ms(event),
            ms(dma),
            context.commands,
            context.got_bytes / 1024,
            context.put_bytes / 1024,
        );
    }
    text
}

//! Output of every command: reports, logs, files and pictures.
//!
//! Why here: text goes to standard output and standard error by `sidecore_terminal::print` alone,
//! which escapes it. Bytes of files, and lists of them, are written as they are where they are not
//! shown on a terminal.

use crate::Outcome;
use anyhow::Result;
use serde::Serialize;
pub(crate) use sidecore_plot::{check as check_picture, write as picture};
pub(crate) use sidecore_sys::output::{check as check_file, write as file};
use sidecore_sys::text::causes;
pub(crate) use sidecore_terminal::print::{
    error_line, error_show, json, json_line, line, lines, ready, result, show, text,
};
use sidecore_terminal::{Text, print};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Sends log lines to standard error; the level comes from `SIDECORE_LOG`.
pub(crate) fn start_logging() {
    print::start_logging("SIDECORE_LOG");
}

/// Prints a report: as JSON where that was asked for, else as `text` shows it.
pub(crate) fn report<R: Serialize>(
    json_wanted: bool,
    report: &R,
    text: impl FnOnce(&R) -> Text,
) -> Result<Outcome> {
    match json_wanted {
        true => json(report)?,
        false => show(&text(report))?,
    }
    Ok(Outcome::Done)
}

/// Form of a report.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(crate) struct JsonArgs {
    /// Report in JSON on standard output
    #[arg(long)]
    pub(crate) json: bool,
}

impl JsonArgs {
    /// Prints a report in this form.
    pub(crate) fn report<R: Serialize>(
        self,
        one: &R,
        text: impl FnOnce(&R) -> Text,
    ) -> Result<Outcome> {
        report(self.json, one, text)
    }
}

/// A report, and how long the command took: `--json` has both in one object.
#[derive(Serialize)]
pub(crate) struct Timed<R> {
    #[serde(flatten)]
    pub(crate) report: R,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) engines: Option<usize>,
    pub(crate) seconds: f64,
}

impl<R> Timed<R> {
    /// A report that is ready now.
    pub(crate) fn since(began: Instant, engines: Option<usize>, report: R) -> Self {
        Self {
            report,
            engines,
            seconds: began.elapsed().as_secs_f64(),
        }
    }
}

/// Writes one line to standard error: `note!("{} is open", path)`.
macro_rules! note {
    ($($part:tt)*) => { $crate::output::error_line(&format!($($part)*)) };
}
pub(crate) use note;

/// Writes a file where one is named.
pub(crate) fn wanted(path: &Option<PathBuf>, text: impl FnOnce() -> String) -> Result<()> {
    let path: Option<&Path> = path.as_deref();
    Ok(path.map_or(Ok(()), |path| file(path, text()))?)
}

/// Output files of a bench.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Files {
    /// Write every sample to this file (TSV)
    #[arg(long, value_name = "FILE")]
    tsv: Option<PathBuf>,
    /// Draw the figures to this file (SVG)
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

impl Files {
    /// Creates the files, empty; call it before anything is measured.
    pub(crate) fn begin(&self) -> Result<()> {
        self.tsv.as_deref().map_or(Ok(()), check_file)?;
        Ok(self.svg.as_deref().map_or(Ok(()), check_picture)?)
    }

    /// Writes the files' contents.
    pub(crate) fn write(
        &self,
        tsv: impl FnOnce() -> String,
        svg: impl FnOnce() -> Result<String>,
    ) -> Result<()> {
        wanted(&self.tsv, tsv)?;
        if let Some(path) = &self.svg {
            picture(path, &svg()?)?;
        }
        Ok(())
    }
}

/// Output form of a bench's report.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Outputs {
    /// Report in JSON on standard output
    #[arg(long, conflicts_with = "markdown")]
    json: bool,
    /// Report as Markdown tables on standard output
    #[arg(long)]
    markdown: bool,
    #[command(flatten)]
    pub(crate) files: Files,
}

impl Outputs {
    /// Prints a report in the requested form.
    pub(crate) fn print<R: Serialize>(
        &self,
        report: &R,
        markdown: impl FnOnce(&R) -> String,
        people: impl FnOnce(&R) -> Text,
    ) -> Result<()> {
        if self.json {
            json(report)?;
        } else if self.markdown {
            text(markdown(report).trim_end())?;
        } else {
            show(&people(report))?;
        }
        Ok(())
    }
}

/// An error and its causes in one line.
pub(crate) fn chain(error: &anyhow::Error) -> String {
    causes(&**error)
}

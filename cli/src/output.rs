//! Output of every command: reports, logs, files and pictures.
//!
//! Why here: text goes to standard output and standard error by `sidecore_terminal::print` alone,
//! which escapes it. Bytes of files, and lists of them, are written as they are where they are not
//! shown on a terminal.

use crate::Outcome;
use anyhow::{Context, Result};
use serde::Serialize;
use sidecore_plot::FileForm;
use sidecore_sys::folder::{check_named, write_named};
use sidecore_sys::text::causes;
pub(crate) use sidecore_terminal::print::{
    error_line, error_show, json, json_line, line, lines, ready, result, show, text,
};
use sidecore_terminal::{Text, print};
use std::io::Write;
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

/// Writes an output file: all of it, or, where anything fails, nothing, and the old file stays. `-`
/// is standard output; pipes and devices are written to directly.
pub(crate) fn file(path: &Path, text: &str) -> Result<()> {
    bytes(path, text.as_bytes())
}

/// As [`file()`], where one is named.
pub(crate) fn wanted(path: &Option<PathBuf>, text: impl FnOnce() -> String) -> Result<()> {
    let path: Option<&Path> = path.as_deref();
    path.map_or(Ok(()), |path| file(path, &text()))
}

/// As [`file()`], of bytes.
pub(crate) fn bytes(path: &Path, bytes: &[u8]) -> Result<()> {
    if path == Path::new("-") {
        let mut out = std::io::stdout().lock();
        out.write_all(bytes)?;
        return Ok(out.flush()?);
    }
    write_named(path, NEW_FILE_MODE, |file| file.write_all(bytes))
        .with_context(|| format!("cannot write {}", path.display()))
}

/// Writes a picture in the form that the file's ending asks for.
pub(crate) fn picture(path: &Path, svg: &str) -> Result<()> {
    let shown = || path.display().to_string();
    let made = FileForm::of(path).and_then(|form| form.encode(svg));
    bytes(path, &made.with_context(shown)?)
}

/// Makes sure that [`picture()`] can write there, before the work that makes the picture.
pub(crate) fn check_picture(path: &Path) -> Result<()> {
    let shown = || path.display().to_string();
    let form = FileForm::of(path).and_then(FileForm::check);
    form.with_context(shown)?;
    check_file(path)
}

/// Makes sure that [`file()`] can write there, before the work that makes its contents. The old
/// file stays.
pub(crate) fn check_file(path: &Path) -> Result<()> {
    if path == Path::new("-") {
        return Ok(());
    }
    check_named(path).with_context(|| format!("cannot write {}", path.display()))
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
        self.svg.as_deref().map_or(Ok(()), check_picture)
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

/// As open(2) gives it, less the umask.
const NEW_FILE_MODE: u32 = 0o666;

/// An error and its causes in one line.
pub(crate) fn chain(error: &anyhow::Error) -> String {
    causes(&**error)
}

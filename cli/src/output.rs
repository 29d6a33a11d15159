//! Output of every command: one JSON object, plain lines, tables, logs.
//!
//! Why here: standard output carries results only; one place keeps that promise.
//! Must stay true: no foreign text (names in files, a server's words) reaches a terminal with its
//! control characters: all but [`result`] escape them (`sidecore_sys::text`).
//! Standard error that cannot be written to is not a failure.

use crate::Outcome;
use anyhow::{Context, Result};
use serde::Serialize;
use sidecore_plot::FileForm;
use sidecore_sys::folder::{check_named, write_named};
use sidecore_sys::text::{causes, printable, printable_json};
use sidecore_terminal::{Text, columns, fold};
use std::io::{self, IsTerminal, Write};
use std::path::Path;

/// Sends log lines to standard error; the level comes from `SIDECORE_LOG` (`error`, `warn`, `info`,
/// `debug`).
pub(crate) fn start_logging() {
    let level = std::env::var("SIDECORE_LOG")
        .ok()
        .and_then(|level| level.parse().ok())
        .unwrap_or(tracing::Level::WARN);
    tracing_subscriber::fmt()
        .with_writer(|| Log)
        .with_max_level(level)
        .with_target(false)
        .without_time()
        .init();
}

/// Standard error for log lines: an event is one line, whatever is in it.
struct Log;

impl Write for Log {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let text = event.strip_suffix(b"\n").unwrap_or(event);
        error_line(&String::from_utf8_lossy(text));
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes one JSON object and a newline to standard output.
pub(crate) fn json<T: Serialize>(value: &T) -> Result<()> {
    data(&printable_json(serde_json::to_string_pretty(value)?))
}

/// As [`json`], on one line.
pub(crate) fn json_line<T: Serialize>(value: &T) -> Result<()> {
    data(&printable_json(serde_json::to_string(value)?))
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

/// Writes one line to standard output; a terminal gets it folded at words.
pub(crate) fn line(line: &str) -> Result<()> {
    // Only a tab is kept: tables may be made with them.
    let parts: Vec<_> = line.split('\t').map(printable).collect();
    text(&parts.join("\t"))
}

/// Writes lines to standard output, each as [`line()`] does.
pub(crate) fn lines(lines: &[impl AsRef<str>]) -> Result<()> {
    lines.iter().try_for_each(|text| line(text.as_ref()))
}

/// Writes lines and tables to standard output: what fits a terminal, and elsewhere all of it.
pub(crate) fn show(text: &Text) -> Result<()> {
    match &*text.render(columns(io::stdout())) {
        // Nothing to say is no empty line.
        "" => Ok(()),
        rendered => data(rendered.trim_end_matches('\n')),
    }
}

/// Prints that a server is ready, and its address. A closed pipe is no error: the server serves all
/// the same. Any other write error is one: a reader would wait forever for the line.
pub(crate) fn ready(place: &str) -> Result<()> {
    line(&format!("ready {place}")).or_else(|error| match is_broken_pipe(&error) {
        true => Ok(()),
        false => Err(error),
    })
}

/// Writes our own text to standard output, of one line or several, and a newline. Foreign names in
/// it have passed `printable`.
pub(crate) fn text(text: &str) -> Result<()> {
    data(&fold(text, columns(io::stdout())))
}

/// Writes a help text, as [`text`] does; a closed stream is no error.
pub(crate) fn help(help: &str) {
    text(help).ok();
}

/// Writes a result that must stay byte-exact, such as a tree, and a newline; escaped only on a
/// terminal.
pub(crate) fn result(bytes: &str) -> Result<()> {
    match io::stdout().is_terminal() {
        // Not folded: what is copied from the terminal is the result, too.
        true => data(&fold(bytes, None)),
        false => data(bytes),
    }
}

fn data(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.write_all(b"\n")?;
    out.flush()?;
    Ok(())
}

/// Writes one line to standard error: `note!("{} is open", path)`.
macro_rules! note {
    ($($part:tt)*) => { $crate::output::error_line(&format!($($part)*)) };
}
pub(crate) use note;

/// Writes one line to standard error.
pub(crate) fn error_line(text: &str) {
    error_text(&printable(text));
}

/// Writes lines and tables to standard error, as [`show`] does to standard output.
pub(crate) fn error_show(text: &Text) {
    error_data(&text.render(columns(io::stderr())));
}

/// Writes our own text to standard error, of one line or several.
pub(crate) fn error_text(text: &str) {
    error_data(&format!("{}\n", fold(text, columns(io::stderr()))));
}

fn error_data(text: &str) {
    // A closed standard error does not change the work.
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}

/// Writes an output file: all of it, or, where anything fails, nothing, and the old file stays. `-`
/// is standard output; pipes and devices are written to directly.
pub(crate) fn file(path: &Path, text: &str) -> Result<()> {
    bytes(path, text.as_bytes())
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

/// As open(2) gives it, less the umask.
const NEW_FILE_MODE: u32 = 0o666;

/// An error and its causes in one line.
pub(crate) fn chain(error: &anyhow::Error) -> String {
    causes(&**error)
}

/// True if an error came from a reader that closed our standard output (`EPIPE`).
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause
            .downcast_ref::<std::io::Error>()
            .is_some_and(|io| io.kind() == std::io::ErrorKind::BrokenPipe)
            || cause
                .downcast_ref::<serde_json::Error>()
                .and_then(serde_json::Error::io_error_kind)
                .is_some_and(|kind| kind == std::io::ErrorKind::BrokenPipe)
    })
}

//! Results on standard output, and remarks on standard error: one JSON object, plain lines, tables.
//!
//! Why here: standard output carries results only; one place keeps that promise.
//! Must stay true: no foreign text (names in files, a server's words) reaches a terminal with its
//! control characters: all escape them, [`result`] on a terminal alone. Standard error that cannot
//! be written to is not a failure.

use crate::{Text, columns, fold};
use serde::Serialize;
use sidecore_bare::text::{printable, printable_json};
use std::io::{self, ErrorKind, IsTerminal, Write};

/// Writes one JSON object and a newline to standard output.
///
/// # Errors
/// Of standard output, here and below.
pub fn json<T: Serialize>(value: &T) -> io::Result<()> {
    data(&printable_json(serde_json::to_string_pretty(value)?))
}

/// As [`json`], on one line.
///
/// # Errors
/// As [`json`].
pub fn json_line<T: Serialize>(value: &T) -> io::Result<()> {
    data(&printable_json(serde_json::to_string(value)?))
}

/// Writes one line to standard output; a terminal gets it folded at words.
///
/// # Errors
/// As [`json`].
pub fn line(line: &str) -> io::Result<()> {
    // Only a tab is kept: tables may be made with them.
    let parts: Vec<_> = line.split('\t').map(printable).collect();
    text(&parts.join("\t"))
}

/// Writes lines to standard output, each as [`line()`] does.
///
/// # Errors
/// As [`json`].
pub fn lines(lines: &[impl AsRef<str>]) -> io::Result<()> {
    lines.iter().try_for_each(|text| line(text.as_ref()))
}

/// Writes lines and tables to standard output: what fits a terminal, and elsewhere all of it.
///
/// # Errors
/// As [`json`].
pub fn show(text: &Text) -> io::Result<()> {
    match &*text.render(columns(io::stdout())) {
        // Nothing to say is no empty line.
        "" => Ok(()),
        rendered => data(rendered.trim_end_matches('\n')),
    }
}

/// Prints that a server is ready, and its address. A closed pipe is no error: the server serves all
/// the same. Any other write error is one: a reader would wait forever for the line.
///
/// # Errors
/// As [`json`].
pub fn ready(place: &str) -> io::Result<()> {
    line(&format!("ready {place}")).or_else(|error| match error.kind() {
        ErrorKind::BrokenPipe => Ok(()),
        _ => Err(error),
    })
}

/// Writes our own text to standard output, of one line or several, and a newline. Foreign names in
/// it have been escaped.
///
/// # Errors
/// As [`json`].
pub fn text(text: &str) -> io::Result<()> {
    data(&fold(text, columns(io::stdout())))
}

/// Writes a help text, as [`text`] does; a closed stream is no error.
pub fn help(help: &str) {
    text(help).ok();
}

/// Writes a result that must stay byte-exact, such as a tree, and a newline; escaped only on a
/// terminal.
///
/// # Errors
/// As [`json`].
pub fn result(bytes: &str) -> io::Result<()> {
    match io::stdout().is_terminal() {
        // Not folded: what is copied from the terminal is the result, too.
        true => data(&fold(bytes, None)),
        false => data(bytes),
    }
}

fn data(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.write_all(b"\n")?;
    out.flush()
}

/// Writes one line to standard error.
pub fn error_line(text: &str) {
    error_text(&printable(text));
}

/// Writes lines and tables to standard error, as [`show`] does to standard output.
pub fn error_show(text: &Text) {
    error_data(&text.render(columns(io::stderr())));
}

/// Writes our own text to standard error, of one line or several.
pub(crate) fn error_text(text: &str) {
    error_data(&format!("{}\n", fold(text, columns(io::stderr()))));
}

fn error_data(text: &str) {
    // A closed standard error does not change the work.
    let _ = io::stderr().lock().write_all(text.as_bytes());
}

/// True if an error came from a reader that closed our standard output (`EPIPE`).
#[must_use]
pub fn is_broken_pipe(error: &(dyn std::error::Error + 'static)) -> bool {
    let io = error.downcast_ref().map(io::Error::kind);
    let json = error
        .downcast_ref()
        .and_then(serde_json::Error::io_error_kind);
    io.or(json) == Some(ErrorKind::BrokenPipe) || error.source().is_some_and(is_broken_pipe)
}

/// Sends log lines to standard error; the level comes from the variable `level_from` of the
/// environment (`error`, `warn`, `info`, `debug`), and is `warn` without one.
///
/// # Panics
/// When it was called before.
#[cfg(feature = "log")]
pub fn start_logging(level_from: &str) {
    let level = std::env::var(level_from)
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
#[cfg(feature = "log")]
struct Log;

#[cfg(feature = "log")]
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

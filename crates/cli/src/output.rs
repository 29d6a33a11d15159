//! Output of every command: one JSON object, plain lines, logs, progress bars.
//!
//! Why here: standard output carries results only; one place keeps that promise.

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use sidecore_sys::folder::Folder;
use std::io::{IsTerminal, Write};
use std::path::Path;

/// Sends log lines to standard error; the level comes from `SIDECORE_LOG` (`error`, `warn`, `info`,
/// `debug`).
pub(crate) fn start_logging() {
    let level = std::env::var("SIDECORE_LOG")
        .ok()
        .and_then(|level| level.parse().ok())
        .unwrap_or(tracing::Level::WARN);
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_max_level(level)
        .with_target(false)
        .without_time()
        .init();
}

/// Writes one JSON object and a newline to standard output.
pub(crate) fn json<T: Serialize>(value: &T) -> Result<()> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer_pretty(&mut out, value)?;
    out.write_all(b"\n")?;
    out.flush()?;
    Ok(())
}

/// Writes one line to standard output.
pub(crate) fn line(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.write_all(b"\n")?;
    out.flush()?;
    Ok(())
}

/// Writes a file that a command was asked for: all of it, or, where anything fails, nothing, and
/// what was there stays. `-` is standard output; pipes and devices are written to as they are.
pub(crate) fn file(path: &Path, text: &str) -> Result<()> {
    bytes(path, text.as_bytes())
}

/// As [`file`], of bytes.
pub(crate) fn bytes(path: &Path, bytes: &[u8]) -> Result<()> {
    if path == Path::new("-") {
        let mut out = std::io::stdout().lock();
        out.write_all(bytes)?;
        return Ok(out.flush()?);
    }
    put(path, bytes).with_context(|| format!("cannot write {}", path.display()))
}

fn put(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    // What a shell has opened for us is a file that others write to as well.
    let is_open = ["/dev/fd", "/dev/stdout", "/dev/stderr", "/proc"]
        .iter()
        .any(|place| path.starts_with(place));
    let old = match std::fs::metadata(path) {
        Ok(old) if old.is_file() && !is_open => Some(old),
        Ok(_) => {
            return std::fs::OpenOptions::new()
                .append(true)
                .open(path)?
                .write_all(bytes);
        }
        Err(_) => None,
    };
    // A link stays one: what it names gets the new contents.
    let place = match old.is_some() {
        true => path.canonicalize()?,
        false => path.to_owned(),
    };
    let folder = place
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    let name = place
        .file_name()
        .ok_or(std::io::ErrorKind::InvalidFilename)?;
    let folder = Folder::open(folder.unwrap_or(Path::new(".")))?;
    folder.replace(name, NEW_FILE_MODE, |file| {
        if let Some(old) = &old {
            file.set_permissions(old.permissions())?;
        }
        file.write_all(bytes)
    })
}

/// As open(2) gives it, less the umask.
const NEW_FILE_MODE: u32 = 0o666;

/// A progress bar on standard error; hidden where that is no terminal.
pub(crate) fn progress(total: u64) -> ProgressBar {
    let target = if std::io::stderr().is_terminal() {
        ProgressDrawTarget::stderr()
    } else {
        ProgressDrawTarget::hidden()
    };
    ProgressBar::with_draw_target(Some(total), target)
}

/// A progress bar over `total` bytes.
pub(crate) fn byte_progress(total: u64) -> ProgressBar {
    let bar = progress(total);
    if let Ok(style) = ProgressStyle::with_template(
        "{msg:12} [{bar:32}] {bytes}/{total_bytes} {bytes_per_sec} {eta}",
    ) {
        bar.set_style(style);
    }
    bar
}

/// An error and its causes in one line; a cause that its effect's text already holds is not said
/// twice.
pub(crate) fn chain(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
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

//! The library's side: a line for each change of a context.
//!
//! Must stay true: without SIDECORE_SPE_TRACE in the environment each call is one load and a
//! branch. A line is one write, so a killed process leaves whole lines. The file is bounded.

use crate::mfc::Traffic;
use std::cell::Cell;
use std::fmt::Arguments;
use std::fs::File;
use std::io::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Lines at most: about 60 MB.
const LINES_MAX: u64 = 2_000_000;
/// Distance of a context's `at` lines.
const SNAPSHOT: Duration = Duration::from_millis(50);

struct Open {
    file: File,
    start: Instant,
}

static TRACE: OnceLock<Option<Open>> = OnceLock::new();

fn trace() -> Option<&'static Open> {
    let open = || {
        let path = std::env::var_os("SIDECORE_SPE_TRACE")?;
        let file = File::options().append(true).create(true).open(path).ok()?;
        Some(Open {
            file,
            start: Instant::now(),
        })
    };
    TRACE.get_or_init(open).as_ref()
}

static LINES: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// Number of the engine that this thread is.
    static ENGINE: Cell<usize> = const { Cell::new(0) };
}

/// Tells which engine this thread is.
pub(crate) fn is_engine(number: usize) {
    ENGINE.set(number);
}

/// True where there is a trace.
fn is_on() -> bool {
    trace().is_some()
}

fn line(context: u32, rest: Arguments<'_>) {
    let Some(trace) = trace() else { return };
    // Relaxed: only the number counts.
    let Some(rest) = bounded(LINES.fetch_add(1, Ordering::Relaxed), rest) else {
        return;
    };
    let text = text(trace.start.elapsed().as_micros(), context, rest);
    // A full disk ends the trace, not the program.
    (&trace.file).write_all(text.as_bytes()).ok();
}

/// The contents of line `number`; the first line beyond the bound says that it was reached.
fn bounded(number: u64, rest: Arguments<'_>) -> Option<Arguments<'_>> {
    match number {
        0..LINES_MAX => Some(rest),
        LINES_MAX => Some(format_args!("full")),
        _ => None,
    }
}

/// One line, whole: it is written by one call.
pub(super) fn text(time_us: u128, context: u32, rest: Arguments<'_>) -> String {
    format!("{time_us}\t{context}\t{rest}\n")
}

pub(crate) fn ready(context: u32) {
    line(context, format_args!("ready"));
}

pub(crate) fn runs(context: u32) {
    if is_on() {
        line(context, format_args!("run\t{}", ENGINE.get()));
    }
}

pub(crate) fn parked(context: u32, op: u64, channel: u64) {
    line(context, format_args!("wait\t{op}\t{channel}"));
}

pub(crate) fn waited(context: u32, op: u64, channel: u64, since: Instant) {
    if !is_on() {
        return;
    }
    let time = since.elapsed().as_micros();
    if time > 0 {
        line(context, format_args!("spun\t{op}\t{channel}\t{time}"));
    }
}

/// True where it is time for a context's `at` line; `last` is kept for it.
pub(crate) fn is_due(last: &mut Option<Instant>) -> bool {
    if !is_on() {
        return false;
    }
    let now = Instant::now();
    let due = last.is_none_or(|last| now - last >= SNAPSHOT);
    if due {
        *last = Some(now);
    }
    due
}

/// DMA so far, and the bytes that program, heap and stack take of the store.
pub(crate) fn at(context: u32, traffic: Traffic, [program, heap, stack]: [u64; 3]) {
    let Traffic {
        commands,
        got_bytes,
        put_bytes,
    } = traffic;
    line(
        context,
        format_args!("at\t{commands}\t{got_bytes}\t{put_bytes}\t{program}\t{heap}\t{stack}"),
    );
}

pub(crate) fn stopped(context: u32) {
    line(context, format_args!("stop"));
}

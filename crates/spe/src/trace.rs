//! The trace that `sidecore spe run` draws from: lines of tab-separated fields in a file.
//!
//! Fields: microseconds since the library's first use, context, event, and what belongs to it:
//! `run`, `yield`, `wait OP CHANNEL` (parked), `spun OP CHANNEL MICROSECONDS` (waited on its
//! engine), `stop COMMANDS GOT_BYTES PUT_BYTES`.
//!
//! Must stay true: without SIDECORE_SPE_TRACE in the environment each call is one load and a
//! branch; a line is one write, so that a process that is killed leaves whole lines.

use crate::mfc::Traffic;
use std::fmt::Arguments;
use std::fs::File;
use std::io::Write;
use std::sync::OnceLock;
use std::time::Instant;

struct Trace {
    file: File,
    start: Instant,
}

static TRACE: OnceLock<Option<Trace>> = OnceLock::new();

fn trace() -> Option<&'static Trace> {
    let open = || {
        let path = std::env::var_os("SIDECORE_SPE_TRACE")?;
        let file = File::options().append(true).create(true).open(path).ok()?;
        Some(Trace {
            file,
            start: Instant::now(),
        })
    };
    TRACE.get_or_init(open).as_ref()
}

fn line(context: u32, rest: Arguments<'_>) {
    if let Some(trace) = trace() {
        let time = trace.start.elapsed().as_micros();
        let text = format!("{time}\t{context}\t{rest}\n");
        // A full disk ends the trace, not the program.
        (&trace.file).write_all(text.as_bytes()).ok();
    }
}

pub(crate) fn runs(context: u32) {
    line(context, format_args!("run"));
}

pub(crate) fn yields(context: u32) {
    line(context, format_args!("yield"));
}

pub(crate) fn parked(context: u32, op: u64, channel: u64) {
    line(context, format_args!("wait\t{op}\t{channel}"));
}

pub(crate) fn waited(context: u32, op: u64, channel: u64, since: Instant) {
    if trace().is_none() {
        return;
    }
    let time = since.elapsed().as_micros();
    if time > 0 {
        line(context, format_args!("spun\t{op}\t{channel}\t{time}"));
    }
}

pub(crate) fn stopped(context: u32, traffic: Traffic) {
    let Traffic {
        commands,
        got_bytes,
        put_bytes,
    } = traffic;
    line(
        context,
        format_args!("stop\t{commands}\t{got_bytes}\t{put_bytes}"),
    );
}

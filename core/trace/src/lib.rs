//! Which thread and which engine did what when: a record of a process's newest events, written as
//! trace events that Perfetto and Chrome show.
//!
//! ```
//! use sidecore_trace::{Lane, Name, Recording};
//!
//! static ROUND: Name = Name::new("demo", "round", ["number", ""]);
//! static WORK: Name = Name::new("demo", "work", ["bytes", ""]).with_result("used_bytes");
//!
//! let folder = tempfile::tempdir()?;
//! let path = folder.path().join("events.json");
//! let recording = Recording::begin(&path, "demo", Box::new(|ended| {
//!     println!("{:?}", ended.map(|written| written.events));
//! }))?;
//! let engine = Lane::new(|| "engine 0 (cpu 3)".to_owned());
//! for number in 0..3 {
//!     let _round = engine.enter(&ROUND, number);
//!     let mut work = sidecore_trace::span(&WORK, 100, 0);
//!     work.set_result(42);
//! }
//! drop(recording);
//! let text = std::fs::read_to_string(&path)?;
//! assert_eq!(text.matches(r#""name":"round""#).count(), 3);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! - `recorder`: what products call on their data paths. Off it costs a load and a branch.
//! - `name`: names of spans and arguments; lanes, which are tracks that threads share.
//! - `ring`: the newest records of a thread. `registry`: all rings.
//! - `timeline` (pure): records become tracks. `json`: tracks become text.
//! - `recording`: beginning, SIGUSR2, the file. `summary`: a file read back, in figures;
//!   `text`: these, for a terminal.
//!
//! Memory: [`RECORDS`] records a thread, which are 1 MiB, for up to [`THREADS_MAX`] threads;
//! threads that record nothing take none. While the file is written, a few times as much.

mod json;
mod name;
mod recorder;
mod recording;
mod registry;
mod ring;
pub mod summary;
mod text;
mod timeline;

#[cfg(all(test, not(loom)))]
mod tests;

pub use name::{LANES_MAX, Lane, Name};
pub use recorder::{
    Begun, Span, begin, counter, flow_from, flow_to, instant, is_on, label, name_thread, resume,
    span, span_between, span_since, suspend,
};
pub use recording::{Recording, Report, TraceError, Written, write_now};
pub use registry::{RECORDS, THREADS_MAX};

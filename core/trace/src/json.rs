//! Tracks as Chrome trace events in JSON, which Perfetto reads.
//!
//! Source: "Trace Event Format" (Chromium), and Perfetto's "Visualizing external trace formats".
//! Times are microseconds of the system's monotonic clock, with three decimals. Every thread is a
//! thread of the process; a lane is one whose number is above those of all threads.
//!
//! Must stay true: one event a line, in the order of time on each track; texts of any content.

use crate::name::Name;
use crate::recorder::FIBER;
use crate::registry::{Moment, Registry, ThreadRecords};
use crate::timeline::{Event, How, LANES, Title, Tracks, What};
use serde_json::json;
use sidecore_bare::width::ToUsize;
use std::io::{self, Write};

/// Meanings of the numbers in records.
#[derive(Debug, Default)]
pub(crate) struct Meaning {
    pub(crate) names: Vec<&'static Name>,
    pub(crate) lanes: Vec<String>,
    pub(crate) labels: Vec<String>,
    /// The program, as its process is to be called.
    pub(crate) process: String,
    pub(crate) threads_left_out: u64,
    pub(crate) begun: Moment,
    pub(crate) ended: Moment,
}

impl Meaning {
    pub(crate) fn of(registry: &Registry, process: String) -> Self {
        Self {
            names: registry.names.clone(),
            lanes: registry.lanes.clone(),
            labels: registry.labels.clone(),
            process,
            threads_left_out: registry.threads_left_out,
            begun: registry.begun,
            ended: Moment::now(),
        }
    }
}

/// The first bytes of every file that this crate writes.
pub(crate) const HEAD: &str = r#"{"displayTimeUnit":"ns","otherData":{"writer":"sidecore"#;

/// Writes all tracks.
pub(crate) fn write(
    out: &mut impl Write,
    meaning: &Meaning,
    threads: &[ThreadRecords],
    tracks: &Tracks,
) -> io::Result<()> {
    let lost: serde_json::Map<_, _> = threads
        .iter()
        .filter(|thread| thread.lost > 0)
        .map(|thread| (format!("{} {}", thread.name, thread.id), thread.lost.into()))
        .collect();
    write!(out, "{HEAD} {}\",", env!("CARGO_PKG_VERSION"))?;
    write!(out, r#""clock":"CLOCK_MONOTONIC","records_lost":"#)?;
    serde_json::to_writer(&mut *out, &lost)?;
    let left_out = meaning.threads_left_out;
    write!(
        out,
        ",\"threads_left_out\":{left_out}}},\n\"traceEvents\":["
    )?;
    let mut page = Page {
        out,
        meaning,
        process: std::process::id(),
        rate: Rate::of(meaning.begun, meaning.ended),
        has_event: false,
    };
    page.metadata("process_name", page.process.into(), &meaning.process)?;
    for (&lane, events) in &tracks.lanes {
        let track = LANES + u64::from(lane);
        page.metadata("thread_name", track, meaning.lane(lane))?;
        page.sort_index(track, i64::from(lane) - LANES_FIRST)?;
        page.events(track, events)?;
    }
    for (place, (thread, events)) in threads.iter().zip(&tracks.threads).enumerate() {
        let track = u64::try_from(thread.id).unwrap_or(0);
        page.metadata("thread_name", track, &thread.name)?;
        page.sort_index(track, i64::try_from(place).unwrap_or(0))?;
        page.events(track, events)?;
    }
    writeln!(out, "\n]}}")
}

impl Meaning {
    fn name(&self, number: u32) -> Option<&'static Name> {
        // 0 is a name that found no room.
        let place = number.checked_sub(1)?;
        self.names.get(place.to_usize()).copied()
    }

    fn lane(&self, number: u32) -> &str {
        text_of(&self.lanes, number.into())
    }
}

fn text_of(table: &[String], number: u64) -> &str {
    let place = number.checked_sub(1);
    let text = place.and_then(|place| table.get(usize::try_from(place).ok()?));
    text.map_or("?", String::as_str)
}

/// Length of a cycle.
struct Rate {
    begun: Moment,
    ns_per_cycle: f64,
}

impl Rate {
    fn of(begun: Moment, ended: Moment) -> Self {
        let (ns, cycles) = (
            ended.ns.saturating_sub(begun.ns),
            ended.cycles.saturating_sub(begun.cycles),
        );
        let ns_per_cycle = match ns > SHORT_NS {
            true => ns as f64 / cycles.max(1) as f64,
            // Two readings so close to one another say little.
            false => 1e3 / sidecore_sys::clock::cycles_per_us(),
        };
        Self {
            begun,
            ns_per_cycle,
        }
    }

    fn ns(&self, cycles: u64) -> u64 {
        // Some cycles before the beginning at most: another core's counter.
        let since = cycles.saturating_sub(self.begun.cycles) as f64 * self.ns_per_cycle;
        self.begun.ns + since as u64
    }
}

struct Page<'p, W> {
    out: &'p mut W,
    meaning: &'p Meaning,
    process: u32,
    rate: Rate,
    has_event: bool,
}

impl<W: Write> Page<'_, W> {
    fn next(&mut self) -> io::Result<()> {
        let end = if self.has_event { ",\n" } else { "\n" };
        self.has_event = true;
        self.out.write_all(end.as_bytes())
    }

    fn metadata(&mut self, what: &str, track: u64, name: &str) -> io::Result<()> {
        let process = self.process;
        self.next()?;
        let event = json!({
            "ph": "M", "name": what, "pid": process, "tid": track, "args": { "name": name },
        });
        Ok(serde_json::to_writer(&mut *self.out, &event)?)
    }

    fn sort_index(&mut self, track: u64, index: i64) -> io::Result<()> {
        let process = self.process;
        self.next()?;
        let event = json!({
            "ph": "M", "name": "thread_sort_index", "pid": process, "tid": track,
            "args": { "sort_index": index },
        });
        Ok(serde_json::to_writer(&mut *self.out, &event)?)
    }

    fn events(&mut self, track: u64, events: &[Event]) -> io::Result<()> {
        events.iter().try_for_each(|event| self.event(track, event))
    }

    fn event(&mut self, track: u64, event: &Event) -> io::Result<()> {
        let meaning = self.meaning;
        let (letter, name, title) = match event.what {
            What::Begin {
                title: Title::Lane(lane),
                ..
            } => ("B", None, meaning.lane(lane)),
            What::Begin {
                title: Title::Name(name),
                ..
            } => ("B", meaning.name(name), ""),
            What::End { name, .. } => ("E", meaning.name(name), ""),
            What::Instant { name, .. } => ("i", meaning.name(name), ""),
            What::Counter { name, .. } => ("C", meaning.name(name), ""),
            What::FlowFrom { name, .. } => ("s", meaning.name(name), ""),
            What::FlowTo { name, .. } => ("f", meaning.name(name), ""),
            What::Lost(_) => ("i", None, "events lost"),
        };
        let category = match event.what {
            What::Begin {
                title: Title::Lane(_),
                ..
            } => VISIT,
            _ => name.map_or(FIBER.category, |name| name.category),
        };
        let title = name.map_or(title, |name| name.text);
        self.next()?;
        let (ns, process) = (self.rate.ns(event.cycles), self.process);
        write!(
            self.out,
            r#"{{"ph":"{letter}","pid":{process},"tid":{track},"ts":{}.{:03}"#,
            ns / 1000,
            ns % 1000
        )?;
        // An end closes the innermost span, whose name is known.
        if letter != "E" {
            write!(self.out, r#","cat":"{category}","name":"#)?;
            serde_json::to_writer(&mut *self.out, title)?;
        }
        match event.what {
            What::Begin {
                arguments, goes_on, ..
            } => self.arguments(name, arguments, goes_on.then_some("goes_on"))?,
            What::End { result, how, .. } => self.end(name, result, how)?,
            What::Instant { arguments, .. } => {
                // Its scope is the thread's track.
                self.out.write_all(br#","s":"t""#)?;
                self.arguments(name, arguments, None)?;
            }
            What::Counter { value, .. } => self.arguments(name, [value, 0], None)?,
            What::FlowFrom { number, .. } => write!(self.out, r#","id":"{number:x}""#)?,
            What::FlowTo { number, .. } => {
                // `bp`: the flow ends at the span around it, not at the next one.
                write!(self.out, r#","id":"{number:x}","bp":"e""#)?;
            }
            What::Lost(lost) => {
                write!(self.out, r#","s":"t","args":{{"events":{lost}}}"#)?;
            }
        }
        self.out.write_all(b"}")
    }

    fn arguments(
        &mut self,
        name: Option<&Name>,
        values: [u64; 2],
        flag: Option<&str>,
    ) -> io::Result<()> {
        let names = name.map_or([""; 2], |name| name.arguments);
        let mut separator = r#","args":{"#;
        for (name, value) in names.into_iter().zip(values) {
            if name.is_empty() {
                continue;
            }
            self.out.write_all(separator.as_bytes())?;
            separator = ",";
            match name.strip_prefix('$') {
                Some(name) => {
                    write!(self.out, r#""{name}":"#)?;
                    let text = text_of(&self.meaning.labels, value);
                    serde_json::to_writer(&mut *self.out, text)?;
                }
                None => write!(self.out, r#""{name}":{value}"#)?,
            }
        }
        if let Some(flag) = flag {
            write!(self.out, r#"{separator}"{flag}":true"#)?;
            separator = ",";
        }
        match separator {
            "," => self.out.write_all(b"}"),
            _ => Ok(()),
        }
    }

    fn end(&mut self, name: Option<&Name>, result: u64, how: How) -> io::Result<()> {
        let flag = match how {
            How::Done => None,
            How::Waits => Some("waits"),
            How::Open => Some("open"),
        };
        let result_name = name.map_or("", |name| name.result);
        match (flag, result_name) {
            (Some(flag), _) => write!(self.out, r#","args":{{"{flag}":true}}"#),
            (None, "") => Ok(()),
            (None, result_name) => write!(self.out, r#","args":{{"{result_name}":{result}}}"#),
        }
    }
}

/// Lanes come first.
const LANES_FIRST: i64 = 1_000_000;
/// A recording too short to measure a cycle by.
const SHORT_NS: u64 = 20_000_000;
/// The category of spans that only say in which lane their thread is.
pub(crate) const VISIT: &str = "visit";

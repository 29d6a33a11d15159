//! A file of trace events read back: what was busy for how long, and what took longest.
//!
//! Why here: a machine without a browser has a terminal; and what reads the file strictly shows
//! that it is right: tests use this, too.
//! Must stay true: any file is an error or a summary, within [`FILE_BYTES_MAX`]. Every span has a
//! beginning and an end on its track, in the order of time, or the file is refused.

use crate::TraceError;
use crate::json::VISIT;
use serde::{Deserialize, Serialize};
use sidecore_bare::width::ToU64;
use sidecore_sys::input;
use std::collections::{BTreeMap, HashMap};
use std::error::Error;
use std::io::Read;
use std::path::Path;

/// A recording in figures. Times are milliseconds.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Summary {
    /// The recorded program.
    pub process: String,
    /// From the first event to the last.
    pub recorded_ms: f64,
    /// Events on all tracks.
    pub events: u64,
    /// Records that were overwritten before the file was written.
    pub events_lost: u64,
    /// Engines and threads.
    pub(crate) tracks: Vec<TrackSummary>,
    /// Spans of each name, the greatest total first.
    pub(crate) names: Vec<NameSummary>,
    /// The longest spans, the longest first.
    pub(crate) longest: Vec<LongSpan>,
    /// Times from one span to another that it caused, by the flow's name.
    pub(crate) waits: Vec<WaitSummary>,
}

/// One track.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct TrackSummary {
    /// The engine or the thread.
    pub name: String,
    /// Spans that began.
    pub spans: u64,
    /// Time in outermost spans that are work.
    pub busy_ms: f64,
    /// Time in outermost spans that are polling or sleep.
    pub idle_ms: f64,
    /// The first as a share of the recording, 0 to 1.
    pub busy_share: f64,
}

/// All spans of one name.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct NameSummary {
    /// Its name.
    pub name: String,
    /// Number that ended.
    pub count: u64,
    /// Their time in all.
    pub total_ms: f64,
    /// The median.
    pub median_ms: f64,
    /// The longest.
    pub max_ms: f64,
}

/// One span.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct LongSpan {
    /// Its name.
    pub name: String,
    /// Its arguments: `frame 12, stored_bytes 300`.
    pub arguments: String,
    /// The engine or the thread.
    pub track: String,
    /// Its beginning, from the recording's.
    pub begin_ms: f64,
    /// Its length.
    pub length_ms: f64,
    /// True where the recording ended before it.
    pub open: bool,
}

/// All flows of one name.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct WaitSummary {
    /// Its name.
    pub name: String,
    /// Number that arrived.
    pub count: u64,
    /// The median time from one end to the other.
    pub median_ms: f64,
    /// The longest.
    pub max_ms: f64,
}

#[derive(Deserialize)]
struct File {
    #[serde(rename = "otherData")]
    other: Other,
    #[serde(rename = "traceEvents")]
    events: Vec<Event>,
}

#[derive(Deserialize)]
struct Other {
    #[serde(rename = "writer")]
    _writer: String,
    records_lost: HashMap<String, u64>,
}

#[derive(Deserialize)]
struct Event {
    ph: Phase,
    #[serde(default)]
    name: String,
    #[serde(default)]
    cat: String,
    #[serde(default)]
    ts: f64,
    tid: u64,
    #[serde(default)]
    id: String,
    #[serde(default)]
    args: serde_json::Map<String, serde_json::Value>,
}

#[derive(Deserialize, Clone, Copy, PartialEq, Eq)]
enum Phase {
    B,
    E,
    #[serde(rename = "i")]
    Instant,
    C,
    #[serde(rename = "s")]
    From,
    #[serde(rename = "f")]
    To,
    M,
}

impl Summary {
    /// Reads the file at a path, as [`Summary::read`] does; `-` is standard input.
    ///
    /// # Errors
    /// [`TraceError::Summary`].
    pub fn of_file(path: &Path) -> Result<Self, TraceError> {
        let failed = |source: Box<dyn Error + Send + Sync>| TraceError::Summary {
            name: match path == Path::new("-") {
                true => "standard input".to_owned(),
                false => path.display().to_string(),
            },
            source,
        };
        let file = input::open(path).map_err(|error| failed(error.into()))?;
        Self::read(file).map_err(|error| failed(error.into()))
    }

    /// Reads a file that `--trace-events` wrote.
    ///
    /// # Errors
    /// [`TraceError`].
    pub fn read(file: impl Read) -> Result<Self, TraceError> {
        let mut text = Vec::new();
        // One byte more than is allowed, so that a longer file is noticed.
        file.take(FILE_BYTES_MAX + 1).read_to_end(&mut text)?;
        if text.len().to_u64() > FILE_BYTES_MAX {
            return Err(TraceError::TooLong {
                bytes_max: FILE_BYTES_MAX,
            });
        }
        let file: File = serde_json::from_slice(&text)?;
        // The events own their texts, so the file's is not kept next to them.
        drop(text);
        let mut reading = Reading::default();
        for (place, event) in file.events.iter().enumerate() {
            reading.take(event).map_err(|reason| TraceError::Event {
                event: place.to_u64(),
                track: event.tid,
                reason,
            })?;
        }
        reading.finish(file.other.records_lost.values().sum())
    }
}

/// A span that began.
struct Open<'e> {
    event: &'e Event,
    begin_ns: u64,
}

#[derive(Default)]
struct Track<'e> {
    name: &'e str,
    latest_ns: u64,
    open: Vec<Open<'e>>,
    spans: u64,
    busy_ns: u64,
    idle_ns: u64,
}

#[derive(Default)]
struct Reading<'e> {
    process: &'e str,
    tracks: BTreeMap<u64, Track<'e>>,
    first_ns: Option<u64>,
    last_ns: u64,
    events: u64,
    lengths: BTreeMap<&'e str, Vec<u64>>,
    longest: Vec<(u64, Open<'e>, bool)>,
    /// Flows' beginnings and ends, by name and number.
    from: BTreeMap<(&'e str, &'e str), Vec<u64>>,
    to: BTreeMap<(&'e str, &'e str), Vec<u64>>,
}

impl<'e> Reading<'e> {
    fn take(&mut self, event: &'e Event) -> Result<(), &'static str> {
        let track = self.tracks.entry(event.tid).or_default();
        if event.ph == Phase::M {
            let name = event.args.get("name").and_then(|name| name.as_str());
            match (event.name.as_str(), name) {
                ("process_name", Some(name)) => self.process = name,
                ("thread_name", Some(name)) => track.name = name,
                ("thread_sort_index", None) => {}
                _ => return Err("unknown metadata"),
            }
            return Ok(());
        }
        if !event.ts.is_finite() || event.ts < 0.0 {
            return Err("it has no time");
        }
        // Microseconds with three decimals.
        let ns = (event.ts * 1e3).round() as u64;
        if ns < track.latest_ns {
            return Err("it is earlier than the event before it on its track");
        }
        track.latest_ns = ns;
        self.first_ns = Some(self.first_ns.map_or(ns, |first| first.min(ns)));
        self.last_ns = self.last_ns.max(ns);
        self.events += 1;
        if event.ph != Phase::E && event.name.is_empty() {
            return Err("it has no name");
        }
        let flow = (event.name.as_str(), event.id.as_str());
        match event.ph {
            Phase::B => {
                track.spans += 1;
                let begin_ns = ns;
                track.open.push(Open { event, begin_ns });
            }
            Phase::E => {
                let open = track
                    .open
                    .pop()
                    .ok_or("it ends a span that did not begin")?;
                self.end(event, open, ns);
            }
            Phase::From | Phase::To if track.open.is_empty() => {
                return Err("a flow outside of any span");
            }
            Phase::From => self.from.entry(flow).or_default().push(ns),
            Phase::To => self.to.entry(flow).or_default().push(ns),
            Phase::Instant | Phase::C | Phase::M => {}
        }
        Ok(())
    }

    fn end(&mut self, event: &Event, open: Open<'e>, ns: u64) {
        let length_ns = ns - open.begin_ns;
        let is_idle = open.event.cat == IDLE;
        // Only outermost spans: time within others would count twice.
        if let Some(track) = self.tracks.get_mut(&event.tid)
            && track.open.is_empty()
        {
            match is_idle {
                true => track.idle_ns += length_ns,
                false => track.busy_ns += length_ns,
            }
        }
        // The engine's own track has what was done there.
        if open.event.cat == VISIT {
            return;
        }
        let lengths = self.lengths.entry(&open.event.name).or_default();
        lengths.push(length_ns);
        if is_idle {
            return;
        }
        let is_open = event.args.contains_key("open");
        // Of equal lengths the first stays first.
        let place = (self.longest).partition_point(|(longer, ..)| *longer >= length_ns);
        if place < LONGEST {
            self.longest.truncate(LONGEST - 1);
            self.longest.insert(place, (length_ns, open, is_open));
        }
    }

    fn finish(self, events_lost: u64) -> Result<Summary, TraceError> {
        for (&track, state) in &self.tracks {
            if !state.open.is_empty() {
                return Err(TraceError::Event {
                    event: self.events,
                    track,
                    reason: "a span has no end",
                });
            }
        }
        let first_ns = self.first_ns.unwrap_or(0);
        let recorded_ns = self.last_ns - first_ns;
        let track_name = |number: u64| {
            let track = self.tracks.get(&number);
            track.map_or("?", |track| track.name).to_owned()
        };
        let longest = self
            .longest
            .iter()
            .map(|(length_ns, open, is_open)| LongSpan {
                name: open.event.name.clone(),
                arguments: arguments(open.event),
                track: track_name(open.event.tid),
                begin_ms: ms(open.begin_ns - first_ns),
                length_ms: ms(*length_ns),
                open: *is_open,
            });
        let longest = longest.collect();
        let waits = self.waits();
        let mut names: Vec<NameSummary> = self
            .lengths
            .into_iter()
            .map(|(name, lengths_ns)| {
                let total_ms = ms(lengths_ns.iter().sum());
                let [median_ms, max_ms] = median_and_max(lengths_ns.clone());
                NameSummary {
                    name: name.to_owned(),
                    count: lengths_ns.len().to_u64(),
                    total_ms,
                    median_ms,
                    max_ms,
                }
            })
            .collect();
        names.sort_by(|one, other| other.total_ms.total_cmp(&one.total_ms));
        // Engines have the greatest numbers, and come first.
        let (threads, lanes): (Vec<_>, Vec<_>) = (self.tracks.iter())
            .filter(|(_, track)| track.spans > 0)
            .partition(|(number, _)| **number < crate::timeline::LANES);
        let tracks = lanes
            .into_iter()
            .chain(threads)
            .map(|(_, track)| TrackSummary {
                name: track.name.to_owned(),
                spans: track.spans,
                busy_ms: ms(track.busy_ns),
                idle_ms: ms(track.idle_ns),
                busy_share: track.busy_ns as f64 / recorded_ns.max(1) as f64,
            });
        Ok(Summary {
            process: self.process.to_owned(),
            recorded_ms: ms(recorded_ns),
            events: self.events,
            events_lost,
            tracks: tracks.collect(),
            names,
            longest,
            waits,
        })
    }

    fn waits(&self) -> Vec<WaitSummary> {
        let mut by_name: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
        for ((name, number), ends) in &self.to {
            let mut begins = self
                .from
                .get(&(*name, *number))
                .cloned()
                .unwrap_or_default();
            begins.sort_unstable();
            for &end in ends {
                // A number may be used again: the last beginning before the end is its own.
                let place = begins.partition_point(|begin| *begin <= end);
                if let Some(begin) = place.checked_sub(1).map(|place| begins[place]) {
                    by_name.entry(name).or_default().push(end - begin);
                }
            }
        }
        let waits = by_name.into_iter().map(|(name, waits_ns)| {
            let count = waits_ns.len().to_u64();
            let [median_ms, max_ms] = median_and_max(waits_ns);
            WaitSummary {
                name: name.to_owned(),
                count,
                median_ms,
                max_ms,
            }
        });
        waits.collect()
    }
}

fn arguments(event: &Event) -> String {
    let texts = event.args.iter().map(|(name, value)| match value.as_str() {
        Some(text) => format!("{name} {text}"),
        None => format!("{name} {value}"),
    });
    texts.collect::<Vec<_>>().join(", ")
}

fn median_and_max(mut values_ns: Vec<u64>) -> [f64; 2] {
    values_ns.sort_unstable();
    let at = |place: usize| values_ns.get(place).copied().map_or(0.0, ms);
    [
        at(values_ns.len() / 2),
        at(values_ns.len().saturating_sub(1)),
    ]
}

fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}

/// The category of spans in which a thread only waits.
pub const IDLE: &str = "idle";
/// Spans in a summary's list.
const LONGEST: usize = 10;
/// Longest file that is read: four times the longest that is written in practice.
pub const FILE_BYTES_MAX: u64 = 2 << 30;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_none_is_named() {
        let missing = Summary::of_file(Path::new("/proc/none")).unwrap_err();
        assert_eq!(missing.to_string(), "cannot sum up /proc/none");
    }
}

//! The live exports of this machine: each server publishes its own, and a reader lists them.
//!
//! Why here: mounts, devices and NBD servers differ in their ways and places only. Must stay true:
//! what a server says is foreign: missing or odd fields count as 0 or as nothing. Any thread.

use crate::ExportError;
use crate::mount::absolute;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use sidecore_status::metrics::{Metric, Unit};
use sidecore_status::{Address, Kind, Live, Server, Status, Whose};
use sidecore_sys::ending::Watch;
use sidecore_sys::text::{bytes, printable};
use sidecore_terminal::{Column, Table, Text};
use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// An export as its server describes it. Texts are foreign.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Export {
    /// The image: an absolute path or a URL.
    pub image: String,
    /// The way of serving: `mount`, `rootless`, `file`, `attach`, `serve` or `memory`.
    pub way: String,
    /// The directory, the device or the addresses, with a space between two.
    pub path: String,
    /// The server's process.
    pub pid: u32,
    /// The server's user.
    pub uid: u32,
    /// Seconds since its start.
    pub age_s: u64,
    /// False where the server is alive and silent; then all figures are 0.
    pub is_answering: bool,
    /// The figures.
    #[serde(flatten)]
    pub figures: Figures,
}

/// Figures of an export since its start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Figures {
    /// Size of the device.
    pub size_bytes: u64,
    /// Reads of clients.
    pub reads: u64,
    /// Bytes of these reads.
    pub bytes: u64,
    /// Reads that ended in an error.
    pub failed_reads: u64,
    /// Look-ups of frames that the cache answered.
    pub hits: u64,
    /// Look-ups of frames that had to decompress.
    pub misses: u64,
    /// Compressed bytes that came over a network.
    pub fetched_bytes: u64,
    /// Requests to a network that were repeated.
    pub retries: u64,
    /// Different frames that were found damaged.
    pub damaged_frames: u64,
    /// Physical memory of the server.
    pub memory_bytes: u64,
    /// Bytes that clients wrote.
    pub written_bytes: u64,
    /// Bytes of the overlay's grains.
    pub overlay_bytes: u64,
    /// Bytes of its grains that are not durable yet.
    pub overlay_dirty_bytes: u64,
}

/// The status of an export of this process at these places, whose paths become absolute: a
/// directory, a device, or addresses (`unix:PATH`, `tcp:HOST:PORT`). `figures` returns a JSON
/// object of counters (see `sidecore_block::meter`).
pub fn status(
    image: &str,
    way: &'static str,
    places: &[String],
    figures: impl Fn() -> Value + Send + 'static,
) -> Arc<Status> {
    let image = absolute(Path::new(image)).display().to_string();
    let name = image.clone();
    let places = places.iter().map(|place| {
        let path = |text: &str| absolute(Path::new(text)).display().to_string();
        match place.split_once(':') {
            Some((kind, socket)) if SOCKETS.contains(&kind) => format!("{kind}:{}", path(socket)),
            Some(("tcp", _)) => place.clone(),
            _ => path(place),
        }
    });
    let place = places.collect::<Vec<_>>().join(" ");
    Status::new(Kind::Image, name, move || {
        let mut fields = match figures() {
            Value::Object(fields) => fields,
            _ => Map::new(),
        };
        fields.insert("image".into(), json!(image));
        fields.insert("way".into(), json!(way));
        fields.insert("where".into(), json!(place));
        Value::Object(fields)
    })
    .with_metrics(metrics)
}

/// The same status of a server whose overlay takes snapshots and grows: `take` puts a new layer at
/// a path, or at one of its own choice, and returns that and the time for which writes waited;
/// `grow` makes the device as large as asked, and returns its former size; `grown` then has its
/// clients take that size, as far as they can.
#[must_use]
pub(crate) fn with_actions<E: Display, G: Display>(
    status: Arc<Status>,
    take: impl Fn(Option<&Path>) -> Result<(PathBuf, Duration), E> + Send + 'static,
    grow: impl Fn(u64) -> Result<u64, E> + Send + 'static,
    grown: impl Fn() -> Result<(), G> + Send + 'static,
) -> Arc<Status> {
    let larger = move |size_bytes| -> Result<Value, String> {
        let former_bytes = grow(size_bytes).map_err(|error| error.to_string())?;
        grown().map_err(|error| format!("it is larger, but its device is not: {error}"))?;
        Ok(json!(Resized {
            size_bytes,
            former_bytes,
        }))
    };
    status.with_actions(move |request| {
        let size_bytes = request["size_bytes"].as_u64();
        let done = match (request["action"].as_str(), size_bytes) {
            (Some("snapshot"), _) => {
                let taken = take(request["overlay"].as_str().map(Path::new));
                let taken = taken.map_err(|error| error.to_string());
                taken.map(|(overlay, pause)| {
                    let pause_ms = pause.as_secs_f64() * 1e3;
                    json!(Snapshot { overlay, pause_ms })
                })
            }
            (Some("resize"), Some(size_bytes)) => larger(size_bytes),
            _ => Err("this server takes snapshots and becomes larger, and nothing else".into()),
        };
        done.unwrap_or_else(|error: String| json!({"error": error}))
    })
}

/// Runs a server that is bound, in the foreground, until one of `signals` stops it by `stop`. It is
/// listed with its status meanwhile, with metrics at an address where one is given; `ready` is
/// called once it is.
///
/// # Errors
/// Those of `run` and `ready`; [`ExportError::Metrics`], or no thread can be started.
pub(crate) fn run_until_signal<E: From<ExportError> + From<io::Error>>(
    signals: Watch,
    stop: impl Fn() + Send + 'static,
    metrics: Option<&Address>,
    status: &Arc<Status>,
    ready: impl FnOnce() -> io::Result<()>,
    run: impl FnOnce() -> Result<(), E>,
) -> Result<(), E> {
    let watching = signals.stop_with(stop);
    let what = "cannot start a thread to watch for signals";
    let watching = watching.map_err(|source| ExportError::os(what, source))?;
    let live = Live::begin(status, metrics, true).map_err(ExportError::from)?;
    ready()?;
    let served = run();
    // The list of servers must not name one that answers no more.
    drop(live);
    watching.end();
    served
}

/// A snapshot that was taken.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// The overlay that takes the writes from now on.
    pub overlay: PathBuf,
    /// Milliseconds for which writes waited.
    pub pause_ms: f64,
}

impl Snapshot {
    /// The same for people.
    #[must_use]
    pub fn text(&self) -> Text {
        let (path, pause_ms) = (self.overlay.display(), self.pause_ms);
        format!("{path}: takes the writes now, which waited {pause_ms:.2} ms").into()
    }
}

/// A device that has another size.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resized {
    /// Its size now, in bytes.
    pub size_bytes: u64,
    /// Its former size.
    pub former_bytes: u64,
}

impl Resized {
    /// The same for people, of the device called `name`.
    #[must_use]
    pub fn text(&self, name: &str) -> Text {
        let (now, before) = (bytes(self.size_bytes), bytes(self.former_bytes));
        format!("{name}: {now}, {before} before").into()
    }
}

/// Subtitle of a served image, for clients that list it: the last part of its name, and whether it
/// is written.
#[must_use]
pub(crate) fn subtitle(image: &str, is_writable: bool) -> String {
    let last = image.rsplit('/').next().unwrap_or(image);
    match is_writable {
        true => format!("{last}, written to an overlay"),
        false => format!("{last}, read-only"),
    }
}

/// Asks the server of the export `name` (see [`Export::is`]) to put a new overlay on top, at a path
/// of its choice unless one is given. Blocks for `timeout` at most.
///
/// # Errors
/// The reason, with the next step.
pub fn snapshot(name: &str, new: Option<&Path>, timeout: Duration) -> Result<Snapshot, String> {
    let new = new.map(|path| absolute(path).display().to_string());
    let request = json!({"op": "act", "action": "snapshot", "overlay": new});
    act(name, &request, "took no snapshot", timeout)
}

/// Asks the server of the export `name` to make its device as large as `size_bytes`. Blocks for
/// `timeout` at most.
///
/// # Errors
/// The reason, with the next step.
pub fn resize(name: &str, size_bytes: u64, timeout: Duration) -> Result<Resized, String> {
    let request = json!({"op": "act", "action": "resize", "size_bytes": size_bytes});
    act(name, &request, "did not make it larger", timeout)
}

/// Has the server of the export `name` do something; `failed` says that it did not.
fn act<T: DeserializeOwned>(
    name: &str,
    request: &Value,
    failed: &str,
    timeout: Duration,
) -> Result<T, String> {
    let is_it = |server: &Server| server.kind == Kind::Image && Export::of(server.clone()).is(name);
    let Some(answer) = sidecore_status::act(Whose::All, &is_it, request, timeout) else {
        return Err(format!(
            "no server that answers serves {name}; `sidecore block list` lists what is served"
        ));
    };
    if let Some(error) = answer.get("error").and_then(Value::as_str) {
        return Err(format!("the server of {name} {failed}: {error}"));
    }
    serde_json::from_value(Value::Object(answer))
        .map_err(|_| format!("the server of {name} gave no sensible answer; look at its log"))
}

/// The counters of an export for Prometheus.
fn metrics(fields: &Value) -> Vec<Metric> {
    let text = |key: &str| fields[key].as_str().unwrap_or_default();
    let labels = [
        ("image", text("image")),
        ("way", text("way")),
        ("where", text("where")),
    ];
    let counters = COUNTERS.iter().map(|&(name, bytes, key, help)| {
        let metric = Metric::counter(name, help);
        (metric, bytes, key)
    });
    let gauges = GAUGES.iter().map(|&(name, bytes, key, help)| {
        let metric = Metric::gauge(name, help);
        (metric, bytes, key)
    });
    let made = counters.chain(gauges).map(|(metric, is_bytes, key)| {
        let metric = match is_bytes {
            true => metric.in_unit(Unit::Bytes),
            false => metric,
        };
        metric.sample(&labels, &fields[key])
    });
    made.collect()
}

/// Name, true for bytes, key of the status, and help.
type Row = (&'static str, bool, &'static str, &'static str);

const COUNTERS: &[Row] = &[
    ("image_reads", false, "reads", "Reads of clients."),
    ("image_read", true, "read_bytes", "Bytes that clients read."),
    (
        "image_failed_reads",
        false,
        "failed_reads",
        "Reads that ended in an error.",
    ),
    (
        "image_written",
        true,
        "written_bytes",
        "Bytes that clients wrote.",
    ),
    (
        "image_cache_hits",
        false,
        "cache_hits",
        "Look-ups of frames that the cache answered.",
    ),
    (
        "image_cache_misses",
        false,
        "cache_misses",
        "Look-ups of frames that had to decompress.",
    ),
    (
        "image_fetched",
        true,
        "fetched_bytes",
        "Compressed bytes that came over a network.",
    ),
    (
        "image_retries",
        false,
        "retries",
        "Requests to a network that were repeated.",
    ),
];

const GAUGES: &[Row] = &[
    ("image_size", true, "size_bytes", "Size of the device."),
    (
        "image_damaged_frames",
        false,
        "damaged_frames",
        "Different frames found damaged.",
    ),
    (
        "image_server_memory",
        true,
        "memory_bytes",
        "Physical memory of the server.",
    ),
    (
        "image_overlay",
        true,
        "overlay_bytes",
        "Bytes of the overlay's grains.",
    ),
    (
        "image_overlay_dirty",
        true,
        "overlay_dirty_bytes",
        "Of these, bytes not durable yet.",
    ),
];

/// The live exports of this user; of all users for root. Blocks for `timeout` at most.
#[must_use]
pub fn list(timeout: Duration) -> Vec<Export> {
    let servers = sidecore_status::list(Whose::All, timeout).into_iter();
    let images = servers.filter(|server| server.kind == Kind::Image);
    images.map(Export::of).collect()
}

impl Export {
    fn of(server: Server) -> Self {
        let text = |key: &str| {
            let text = server.fields.get(key).and_then(Value::as_str);
            text.unwrap_or_default().to_owned()
        };
        let number = |key: &str| server.fields.get(key).and_then(Value::as_u64).unwrap_or(0);
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.map_or(0, |now| now.as_secs());
        let started = match server.started_unix_s {
            0 => now,
            started => started,
        };
        Self {
            image: text("image"),
            way: text("way"),
            path: text("where"),
            pid: server.pid,
            uid: server.uid,
            age_s: now.saturating_sub(started),
            is_answering: server.is_answering,
            figures: Figures {
                size_bytes: number("size_bytes"),
                reads: number("reads"),
                bytes: number("read_bytes"),
                failed_reads: number("failed_reads"),
                hits: number("cache_hits"),
                misses: number("cache_misses"),
                fetched_bytes: number("fetched_bytes"),
                retries: number("retries"),
                damaged_frames: number("damaged_frames"),
                memory_bytes: number("memory_bytes"),
                written_bytes: number("written_bytes"),
                overlay_bytes: number("overlay_bytes"),
                overlay_dirty_bytes: number("overlay_dirty_bytes"),
            },
        }
    }

    /// True if `name` is its image, its directory, its device or one of its addresses.
    #[must_use]
    pub fn is(&self, name: &str) -> bool {
        if let Some((kind, socket)) = name.split_once(':').filter(|it| SOCKETS.contains(&it.0)) {
            let address = format!("{kind}:{}", absolute(Path::new(socket)).display());
            return self.path.split(' ').any(|it| it == address);
        }
        let path = absolute(Path::new(name));
        let resolved: Option<PathBuf> = path.canonicalize().ok();
        let is_path = |text: &str| {
            let text = Path::new(text);
            !text.as_os_str().is_empty() && (text == path || Some(text) == resolved.as_deref())
        };
        // The one file of a mount lies in the directory that was given.
        let file = self.path.strip_suffix("/image");
        is_path(&self.image)
            || is_path(&self.path)
            || (self.way == "file" && file.is_some_and(is_path))
            || self.image == name
            || self.path.split(' ').any(|address| address == name)
    }

    /// Share of the look-ups of frames that the cache answered; none before the first.
    fn hit_percent(&self) -> Option<u64> {
        let (hits, misses) = (self.figures.hits, self.figures.misses);
        let all = hits.saturating_add(misses);
        (all > 0).then(|| u64::try_from(u128::from(hits) * 100 / u128::from(all)).unwrap_or(0))
    }
}

/// The row of an export in a list: way, process, age, bytes read, share of hits, damaged frames,
/// image and place. A silent server has only its process. Texts are foreign.
fn cells(export: &Export) -> [String; 8] {
    let pid = export.pid.to_string();
    if !export.is_answering {
        let mut cells = <[String; 8]>::default();
        (cells[0], cells[1]) = ("?".into(), pid);
        cells[6] = "not answering".into();
        return cells;
    }
    let hits = export.hit_percent().map(|hits| format!("{hits} %"));
    [
        printable(&export.way)
            .chars()
            .take(WAY_LETTERS_MAX)
            .collect(),
        pid,
        age(export.age_s),
        bytes(export.figures.bytes),
        hits.unwrap_or_else(|| "-".into()),
        export.figures.damaged_frames.to_string(),
        export.image.clone(),
        export.path.clone(),
    ]
}

/// A line for each export. Without room the least important columns go; images and places keep
/// their ends.
#[must_use]
pub fn table(exports: &[Export]) -> Table {
    let mut table = Table::new([
        Column::left("way"),
        Column::right("pid").rank(2),
        Column::right("age").rank(3),
        Column::right("read").rank(1),
        Column::right("hits").rank(4),
        Column::right("damaged"),
        Column::tail("image"),
        Column::tail("where"),
    ]);
    for export in exports {
        table.row(cells(export));
    }
    table
}

/// All about the exports, a line each, with an empty line between two.
#[must_use]
pub fn descriptions(exports: &[Export]) -> Text {
    let mut text = Text::new();
    for (at, export) in exports.iter().enumerate() {
        if at > 0 {
            text.line("");
        }
        text.lines(description(export));
    }
    text
}

fn description(export: &Export) -> Vec<String> {
    if !export.is_answering {
        return vec![format!("process {} is alive and not answering", export.pid)];
    }
    let figures = &export.figures;
    let hits = export.hit_percent().map(|hits| format!(" ({hits} %)"));
    let mut lines = vec![
        format!("image     {}", export.image),
        format!("served    {} at {}", export.way, export.path),
        format!(
            "process   {} of user {}, for {}",
            export.pid,
            export.uid,
            age(export.age_s)
        ),
        format!(
            "read      {} in {} reads, {} failed; the device has {}",
            bytes(figures.bytes),
            figures.reads,
            figures.failed_reads,
            bytes(figures.size_bytes)
        ),
        format!(
            "cache     {} hits{}, {} misses",
            figures.hits,
            hits.unwrap_or_default(),
            figures.misses
        ),
        format!(
            "network   {} fetched, {} retries",
            bytes(figures.fetched_bytes),
            figures.retries
        ),
        format!("damaged   {} frames", figures.damaged_frames),
        format!("memory    {}", bytes(figures.memory_bytes)),
    ];
    if figures.overlay_bytes > 0 || figures.written_bytes > 0 {
        lines.push(format!(
            "overlay   {} written, {} used, {} not durable yet",
            bytes(figures.written_bytes),
            bytes(figures.overlay_bytes),
            bytes(figures.overlay_dirty_bytes)
        ));
    }
    lines
}

/// A time in its largest unit: `5 min`.
fn age(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        7_200..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// Letters of the longest way, `rootless`.
const WAY_LETTERS_MAX: usize = 8;
/// Kinds of addresses that are paths.
const SOCKETS: [&str; 3] = ["unix", "vhost-user", "memory"];

#[cfg(test)]
mod tests;

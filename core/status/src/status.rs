//! The status of one server: the fields that all have, and those of its kind.
//!
//! Must stay true: the closure runs only when a client asks, on the thread that serves it; what it
//! returns cannot replace the fields that all servers have. Any thread.

use crate::metrics::{self, Metric, Unit};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use sidecore_sys::local_socket;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// The kinds of servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// An image that is mounted, attached or served.
    Image,
    /// A daemon of engines.
    Daemon,
    /// A protocol stack.
    Stack,
    /// A phylogenetic search.
    Search,
    /// containerd's snapshotter, whose layers are images of their own.
    Snapshotter,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Image,
        Self::Daemon,
        Self::Stack,
        Self::Search,
        Self::Snapshotter,
    ];

    /// The name in file names and JSON: `image`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Image => "image",
            Self::Daemon => "daemon",
            Self::Stack => "stack",
            Self::Search => "search",
            Self::Snapshotter => "snapshotter",
        }
    }

    /// The kind of this name.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

type Fields = Box<dyn Fn() -> Value + Send>;
type Actions = Box<dyn Fn(&Value) -> Value + Send>;
/// Makes metrics of the fields.
type Metrics = fn(&Value) -> Vec<Metric>;

/// The status of a server. Shared by all that answer for it.
pub struct Status {
    kind: Kind,
    name: String,
    started_unix_s: u64,
    fields: Mutex<Fields>,
    metrics: Mutex<Option<Metrics>>,
    actions: Mutex<Option<Actions>>,
}

impl std::fmt::Debug for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Status({} {:?})", self.kind.name(), self.name)
    }
}

impl Status {
    /// The status of this process, as a server that starts now. `fields` returns the JSON object
    /// of the kind's fields; it is called when a client asks, and may take locks for a moment.
    pub fn new(
        kind: Kind,
        name: impl Into<String>,
        fields: impl Fn() -> Value + Send + 'static,
    ) -> Arc<Self> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        Arc::new(Self {
            kind,
            name: name.into(),
            started_unix_s: now.map_or(0, |now| now.as_secs()),
            fields: Mutex::new(Box::new(fields)),
            metrics: Mutex::default(),
            actions: Mutex::default(),
        })
    }

    /// The server's kind.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The same, with metrics of its kind at the endpoint for metrics: `metrics` makes them of the
    /// fields.
    #[must_use]
    pub fn with_metrics(self: Arc<Self>, metrics: Metrics) -> Arc<Self> {
        *self.metrics.lock() = Some(metrics);
        self
    }

    /// The same, which does what its user asks for: `actions` gets the request, a JSON object with
    /// `action`, and returns a JSON object, with `error` where it was not done. It runs on the
    /// thread that serves clients, which wait meanwhile.
    #[must_use]
    pub fn with_actions(
        self: Arc<Self>,
        actions: impl Fn(&Value) -> Value + Send + 'static,
    ) -> Arc<Self> {
        *self.actions.lock() = Some(Box::new(actions));
        self
    }

    /// Does what a request asks for.
    pub(crate) fn act(&self, request: &Value) -> Value {
        match &*self.actions.lock() {
            Some(actions) => actions(request),
            None => json!({"error": "this server takes no requests"}),
        }
    }

    /// Name and kind, for people.
    #[must_use]
    pub fn summary(&self) -> String {
        format!("{} {}", self.kind.name(), self.name)
    }

    /// True if the server answers for itself now. Blocks as long as it hangs.
    #[must_use]
    pub fn is_well(&self) -> bool {
        (self.fields.lock())().is_object()
    }

    /// All metrics, as OpenMetrics text.
    #[must_use]
    pub fn metrics(&self) -> String {
        metrics::text(self.families())
    }

    /// The time of the server's start, in seconds since 1970.
    pub(crate) fn started_unix_s(&self) -> u64 {
        self.started_unix_s
    }

    /// All metrics, as of now.
    pub(crate) fn families(&self) -> Vec<Metric> {
        let fields = (self.fields.lock())();
        let started = json!(self.started_unix_s);
        let mut all = vec![
            Metric::gauge("server_start_time", "Time of the server's start.")
                .in_unit(Unit::Seconds)
                .sample(
                    &[("kind", self.kind.name()), ("name", &self.name)],
                    &started,
                ),
        ];
        if let Some(metrics) = *self.metrics.lock() {
            all.extend(metrics(&fields));
        }
        all
    }

    /// All fields, as of now.
    #[must_use]
    pub fn value(&self) -> Value {
        let mut all = match (self.fields.lock())() {
            Value::Object(fields) => fields,
            _ => Map::new(),
        };
        // After the kind's own fields, none of which may replace these.
        all.insert("kind".into(), json!(self.kind));
        all.insert("pid".into(), json!(std::process::id()));
        all.insert("uid".into(), json!(local_socket::effective_uid()));
        all.insert("started_unix_s".into(), json!(self.started_unix_s));
        all.insert("name".into(), json!(self.name));
        Value::Object(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_has_one_name() {
        for kind in Kind::ALL {
            assert_eq!(Kind::of_name(kind.name()), Some(kind));
            assert_eq!(json!(kind), json!(kind.name()));
        }
        assert_eq!(Kind::of_name("Image"), None);
    }

    #[test]
    fn own_fields_win() {
        let fields = || json!({"pid": 1, "kind": "stack", "read_bytes": 3});
        let value = Status::new(Kind::Image, "a", fields).value();
        assert_eq!(value["pid"], json!(std::process::id()));
        assert_eq!(
            (&value["kind"], &value["read_bytes"]),
            (&json!("image"), &json!(3))
        );
        let nothing = Status::new(Kind::Search, "b", || json!(7)).value();
        assert_eq!(nothing["name"], "b");
    }
}

//! Live servers as they describe themselves, taken in with bounds.
//!
//! Why here: each process writes its own description, and root sees those of all users. So nothing
//! of it is believed: texts, lists and trees are cut to their limits, and what is missing or of
//! another type is 0 or empty. Must stay true: pure; what goes on from here is bounded by the
//! limits at the end of this file. Source: the statuses of `sidecore-status`.

use serde::Serialize;
use serde_json::{Map, Value};
use sidecore_status::{Kind, Server};

/// A description of one live server.
#[derive(Debug, Clone)]
pub(crate) struct Observed {
    pub(crate) about: About,
    pub(crate) detail: Detail,
}

/// The part that all kinds have.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct About {
    pub(crate) pid: u32,
    pub(crate) uid: u32,
    pub(crate) name: String,
    pub(crate) started_unix_s: u64,
}

/// The part of each kind.
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub(crate) enum Detail {
    Image(Image),
    Daemon(Daemon),
    Stack(Stack),
    Search(Search),
    Snapshotter(Snapshotter),
}

/// containerd's snapshotter.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub(crate) struct Snapshotter {
    pub(crate) snapshots: u64,
    pub(crate) layers: u64,
}

/// An image that is mounted, attached or served.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Image {
    pub(crate) image: String,
    pub(crate) way: String,
    #[serde(rename = "where")]
    pub(crate) place: String,
    pub(crate) size_bytes: u64,
    pub(crate) read_bytes: u64,
    pub(crate) cache_hits: u64,
    pub(crate) cache_misses: u64,
    pub(crate) fetched_bytes: u64,
    pub(crate) retries: u64,
    pub(crate) damaged_frames: u64,
    pub(crate) memory_bytes: u64,
    pub(crate) overlay_dirty_bytes: u64,
}

/// A daemon of engines.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Daemon {
    pub(crate) engines: Vec<Engine>,
    pub(crate) clients: u64,
    pub(crate) jobs_total: u64,
}

/// One engine.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Engine {
    pub(crate) id: u64,
    pub(crate) cpu: Option<u64>,
    pub(crate) busy_ns: u64,
    pub(crate) jobs: u64,
}

/// A protocol stack.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Stack {
    pub(crate) address: String,
    pub(crate) sessions: Vec<Session>,
    /// Sessions of the stack, of which `sessions` are the first.
    pub(crate) sessions_total: u64,
    pub(crate) drops: u64,
}

/// One session of a stack.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Session {
    pub(crate) local: String,
    pub(crate) remote: String,
    pub(crate) state: String,
    pub(crate) rx_bytes: u64,
    pub(crate) tx_bytes: u64,
    pub(crate) rtt_us: f64,
    pub(crate) window_bytes: u64,
    pub(crate) retransmits: u64,
    /// Computed here, from two descriptions.
    pub(crate) rx_bytes_per_s: f32,
    /// Computed here, from two descriptions.
    pub(crate) tx_bytes_per_s: f32,
}

/// A search for a tree.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Search {
    pub(crate) alignment: String,
    pub(crate) model: String,
    pub(crate) step: String,
    pub(crate) log_likelihood: Option<f64>,
    pub(crate) elapsed_s: f64,
    /// Sent by itself: it may have megabytes.
    #[serde(skip_serializing)]
    pub(crate) best_tree_newick: String,
}

impl Observed {
    /// Takes a description in.
    pub(crate) fn read(server: Server) -> Self {
        let fields = Fields(&server.fields);
        let detail = match server.kind {
            Kind::Image => Detail::Image(fields.image()),
            Kind::Daemon => Detail::Daemon(fields.daemon()),
            Kind::Stack => Detail::Stack(fields.stack()),
            Kind::Search => Detail::Search(fields.search()),
            Kind::Snapshotter => Detail::Snapshotter(Snapshotter {
                snapshots: fields.count("snapshots"),
                layers: fields.count("layers"),
            }),
        };
        let about = About {
            pid: server.pid,
            uid: server.uid,
            name: cut(&server.name),
            started_unix_s: server.started_unix_s,
        };
        Self { about, detail }
    }
}

/// The fields of a description, or of an item of one of its lists.
struct Fields<'a>(&'a Map<String, Value>);

impl<'a> Fields<'a> {
    fn text(&self, key: &str) -> String {
        cut(self.0.get(key).and_then(Value::as_str).unwrap_or_default())
    }

    fn count(&self, key: &str) -> u64 {
        self.0.get(key).and_then(Value::as_u64).unwrap_or(0)
    }

    fn number(&self, key: &str) -> Option<f64> {
        self.0.get(key).and_then(Value::as_f64)
    }

    /// The objects of a list.
    fn list(&self, key: &str) -> impl Iterator<Item = Fields<'a>> + use<'a> {
        let list = self.0.get(key).and_then(Value::as_array);
        let items = list.into_iter().flatten();
        items.filter_map(|item| item.as_object().map(Fields))
    }

    fn image(&self) -> Image {
        Image {
            image: self.text("image"),
            way: self.text("way"),
            place: self.text("where"),
            size_bytes: self.count("size_bytes"),
            read_bytes: self.count("read_bytes"),
            cache_hits: self.count("cache_hits"),
            cache_misses: self.count("cache_misses"),
            fetched_bytes: self.count("fetched_bytes"),
            retries: self.count("retries"),
            damaged_frames: self.count("damaged_frames"),
            memory_bytes: self.count("memory_bytes"),
            overlay_dirty_bytes: self.count("overlay_dirty_bytes"),
        }
    }

    fn daemon(&self) -> Daemon {
        let engines = self.list("engines").take(ENGINES_MAX).map(|engine| Engine {
            id: engine.count("id"),
            cpu: engine.0.get("cpu").and_then(Value::as_u64),
            busy_ns: engine.count("busy_ns"),
            jobs: engine.count("jobs"),
        });
        Daemon {
            engines: engines.collect(),
            clients: self.count("clients"),
            jobs_total: self.count("jobs_total"),
        }
    }

    fn stack(&self) -> Stack {
        let sessions = self.list("sessions").take(SESSIONS_MAX);
        let sessions = sessions.map(|session| Session {
            local: session.text("local"),
            remote: session.text("remote"),
            state: session.text("state"),
            rx_bytes: session.count("rx_bytes"),
            tx_bytes: session.count("tx_bytes"),
            rtt_us: session.number("rtt_us").unwrap_or(0.0),
            window_bytes: session.count("window_bytes"),
            retransmits: session.count("retransmits"),
            rx_bytes_per_s: 0.0,
            tx_bytes_per_s: 0.0,
        });
        // A description lists the first sessions only, where there are many.
        let listed = self.list("sessions").fold(0, |count, _| count + 1);
        Stack {
            address: self.text("address"),
            sessions: sessions.collect(),
            sessions_total: self.count("session_count").max(listed),
            drops: self.count("drops"),
        }
    }

    fn search(&self) -> Search {
        let tree = self.0.get("best_tree_newick").and_then(Value::as_str);
        // Left out as a whole: a text that is cut off is no tree.
        let tree = tree.filter(|tree| tree.len() <= TREE_BYTES_MAX);
        Search {
            alignment: self.text("alignment"),
            model: self.text("model"),
            step: self.text("step"),
            log_likelihood: self.number("log_likelihood"),
            elapsed_s: self.number("elapsed_s").unwrap_or(0.0),
            best_tree_newick: tree.unwrap_or_default().to_owned(),
        }
    }
}

/// The first characters of a text of a server.
fn cut(text: &str) -> String {
    text.chars().take(TEXT_CHARS_MAX).collect()
}

/// Characters of a text that are kept.
pub(crate) const TEXT_CHARS_MAX: usize = 512;
/// Engines of a daemon that are shown.
pub(crate) const ENGINES_MAX: usize = 256;
/// Sessions of a stack that are shown.
pub(crate) const SESSIONS_MAX: usize = 256;
/// The largest tree of a search, in bytes; a larger one is not shown.
pub(crate) const TREE_BYTES_MAX: usize = 4 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(kind: Kind, fields: Value) -> Detail {
        let Value::Object(fields) = fields else {
            panic!("no object");
        };
        let server = Server {
            kind,
            pid: 7,
            uid: 0,
            name: "é".repeat(2000),
            started_unix_s: 1,
            is_answering: true,
            fields,
        };
        let read = Observed::read(server);
        assert_eq!(read.about.name.chars().count(), TEXT_CHARS_MAX);
        read.detail
    }

    #[test]
    fn a_description_with_missing_unknown_and_odd_fields_is_read() {
        let fields = json!({
            "image": "a.img", "where": "/mnt", "read_bytes": 12, "retries": -1, "way": null,
            "memory_bytes": "many", "novel": {"deep": [1]},
        });
        let Detail::Image(image) = read(Kind::Image, fields) else {
            panic!("another kind");
        };
        assert_eq!((&*image.place, image.read_bytes), ("/mnt", 12));
        assert_eq!((&*image.way, image.retries, image.memory_bytes), ("", 0, 0));
        // A search that has only begun.
        let fields = json!({"log_likelihood": null, "best_tree_newick": null, "elapsed_s": 0.5});
        let Detail::Search(search) = read(Kind::Search, fields) else {
            panic!("another kind");
        };
        assert_eq!((search.log_likelihood, search.elapsed_s), (None, 0.5));
        let fields = json!({"engines": [{"id": 1, "cpu": null}, 5, null, {"id": "x"}]});
        let Detail::Daemon(daemon) = read(Kind::Daemon, fields) else {
            panic!("another kind");
        };
        assert_eq!(daemon.engines.len(), 2);
    }

    #[test]
    fn hostile_descriptions_are_cut() {
        let long = "é".repeat(2000);
        let sessions = vec![json!({"local": long}); 1000];
        let fields = json!({"sessions": sessions, "session_count": 5000});
        let Detail::Stack(stack) = read(Kind::Stack, fields) else {
            panic!("another kind");
        };
        assert_eq!(
            (stack.sessions.len(), stack.sessions_total),
            (SESSIONS_MAX, 5000)
        );
        assert_eq!(stack.sessions[9].local.chars().count(), TEXT_CHARS_MAX);
        let tree = "x".repeat(TREE_BYTES_MAX + 1);
        let Detail::Search(search) = read(Kind::Search, json!({"best_tree_newick": tree})) else {
            panic!("another kind");
        };
        assert!(search.best_tree_newick.is_empty());
        let engines = vec![json!({}); 1000];
        let Detail::Daemon(daemon) = read(Kind::Daemon, json!({"engines": engines})) else {
            panic!("another kind");
        };
        assert_eq!(daemon.engines.len(), ENGINES_MAX);
    }
}

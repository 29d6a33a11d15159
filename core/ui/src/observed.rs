//! Live servers as they describe themselves, taken in with bounds.
//!
//! Why here: each process writes its own description, and root sees those of all users. So nothing
//! of it is believed: texts, lists and trees are cut to their limits, and a missing field is 0.
//! Must stay true: pure; what goes on from here is bounded by the limits at the end of this file.
//! Source: the statuses of `sidecore-status`.

use serde::{Deserialize, Serialize};

/// A description of one live server.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Observed {
    #[serde(flatten)]
    pub(crate) about: About,
    #[serde(flatten)]
    pub(crate) detail: Detail,
}

/// The part that all kinds have.
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct About {
    pub(crate) pid: u32,
    pub(crate) uid: u32,
    pub(crate) name: String,
    pub(crate) started_unix_s: f64,
}

/// The part of each kind.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub(crate) enum Detail {
    Image(Image),
    Daemon(Daemon),
    Stack(Stack),
    Search(Search),
}

/// An image that is mounted, attached or served.
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(default)]
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
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct Daemon {
    pub(crate) engines: Vec<Engine>,
    pub(crate) clients: u64,
    pub(crate) jobs_total: u64,
}

/// One engine.
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct Engine {
    pub(crate) id: u32,
    pub(crate) cpu: Option<u32>,
    pub(crate) busy_ns: u64,
    pub(crate) jobs: u64,
}

/// A protocol stack.
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct Stack {
    pub(crate) address: String,
    pub(crate) sessions: Vec<Session>,
    /// Sessions that the description had, of which `sessions` are the first.
    #[serde(skip_deserializing)]
    pub(crate) sessions_total: usize,
    pub(crate) drops: u64,
}

/// One session of a stack.
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(default)]
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
    #[serde(skip_deserializing)]
    pub(crate) rx_bytes_per_s: f32,
    /// Computed here, from two descriptions.
    #[serde(skip_deserializing)]
    pub(crate) tx_bytes_per_s: f32,
}

/// A search for a tree.
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(default)]
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
    /// Takes a description in; `None` for what is none, or of an unknown kind.
    pub(crate) fn read(description: serde_json::Value) -> Option<Self> {
        let mut read: Self = serde_json::from_value(description).ok()?;
        cut(&mut read.about.name);
        if !read.about.started_unix_s.is_finite() {
            read.about.started_unix_s = 0.0;
        }
        match &mut read.detail {
            Detail::Image(image) => {
                [&mut image.image, &mut image.way, &mut image.place]
                    .into_iter()
                    .for_each(cut);
            }
            Detail::Daemon(daemon) => daemon.engines.truncate(ENGINES_MAX),
            Detail::Stack(stack) => {
                cut(&mut stack.address);
                stack.sessions_total = stack.sessions.len();
                stack.sessions.truncate(SESSIONS_MAX);
                for session in &mut stack.sessions {
                    [&mut session.local, &mut session.remote, &mut session.state]
                        .into_iter()
                        .for_each(cut);
                }
            }
            Detail::Search(search) => {
                [&mut search.alignment, &mut search.model, &mut search.step]
                    .into_iter()
                    .for_each(cut);
                if search.best_tree_newick.len() > TREE_BYTES_MAX {
                    search.best_tree_newick.clear();
                }
            }
        }
        Some(read)
    }
}

/// Shortens a text of a server.
fn cut(text: &mut String) {
    if let Some((at, _)) = text.char_indices().nth(TEXT_CHARS_MAX) {
        text.truncate(at);
    }
    text.shrink_to_fit();
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

    #[test]
    fn a_description_with_missing_and_unknown_fields_is_read() {
        let read = Observed::read(json!({
            "kind": "image", "pid": 7, "name": "a", "image": "a.img", "where": "/mnt",
            "read_bytes": 12, "novel": {"deep": [1]},
        }));
        let read = read.expect("a description");
        assert_eq!(read.about.pid, 7);
        match read.detail {
            Detail::Image(image) => assert_eq!((&*image.place, image.read_bytes), ("/mnt", 12)),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn hostile_descriptions_are_cut_or_left_out() {
        for wrong in [
            json!(null),
            json!([]),
            json!({}),
            json!({"kind": "novel"}),
            json!({"kind": "image", "read_bytes": -1}),
            json!({"kind": "daemon", "engines": {"id": 1}}),
            json!({"kind": "image", "pid": "7"}),
        ] {
            assert!(Observed::read(wrong.clone()).is_none(), "{wrong}");
        }
        let long = "é".repeat(2000);
        let sessions = vec![json!({"local": long}); 1000];
        let read = Observed::read(json!({"kind": "stack", "name": long, "sessions": sessions}));
        let read = read.expect("a description");
        assert_eq!(read.about.name.chars().count(), TEXT_CHARS_MAX);
        let Detail::Stack(stack) = read.detail else {
            panic!("another kind");
        };
        assert_eq!(
            (stack.sessions.len(), stack.sessions_total),
            (SESSIONS_MAX, 1000)
        );
        assert_eq!(stack.sessions[9].local.chars().count(), TEXT_CHARS_MAX);
        let tree = "x".repeat(TREE_BYTES_MAX + 1);
        let read = Observed::read(json!({"kind": "search", "best_tree_newick": tree}));
        let Some(Detail::Search(search)) = read.map(|read| read.detail) else {
            panic!("another kind");
        };
        assert!(search.best_tree_newick.is_empty());
    }
}

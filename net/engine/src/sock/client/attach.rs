//! Attaching to an engine: a request over a local socket, and the shared segment in its reply.

use super::ClientOptions;
use crate::engine::ENGINES_MAX;
use crate::sock::control::{PROTOCOL, SockError, sibling_socket};
use crate::sock::layout::{KIND_SESSIONS, WISH_WAKE_DESCRIPTOR, segment_bytes};
use serde_json::Value;
use sidecore_attach::protocol::{KIND_ATTACH, KIND_STATUS};
use sidecore_attach::{Answer, Introduction, Trust};
use sidecore_bare::width::{ToU64, ToUsize};
use sidecore_sys::{SharedMap, Sharing};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The parts of an attachment.
pub(super) struct Attached {
    pub(super) socket: OwnedFd,
    pub(super) map: SharedMap,
    pub(super) bell: OwnedFd,
    pub(super) chunks: u32,
    pub(super) wake: Option<OwnedFd>,
}

pub(super) fn attach(path: &Path, options: &ClientOptions) -> Result<Attached, SockError> {
    let chunks = options.chunks;
    let wishes = if options.waits_for_others {
        WISH_WAKE_DESCRIPTOR
    } else {
        0
    };
    let words = [chunks, wishes].map(u32::to_le_bytes).concat();
    let (asked, answer) = ask(path, &options.trust, KIND_ATTACH, &words)?;
    let word = |at: usize| {
        let bytes = answer.body.get(at..at + 8)?.try_into().ok()?;
        Some(u64::from_le_bytes(bytes))
    };
    let bytes = segment_bytes(chunks);
    // Both sides compute the size: a difference means that their layouts differ.
    let fits = word(0) == Some(chunks.into()) && word(8) == Some(bytes.to_u64());
    let mut files = answer.descriptors.into_iter();
    let (map, bell, wake) = match (files.next(), files.next(), files.next()) {
        (Some(map), Some(bell), wake) if fits && wake.is_some() == options.waits_for_others => {
            (map, bell, wake)
        }
        _ => return Err(asked.nonsense().into()),
    };
    Ok(Attached {
        socket: asked.into_socket(),
        map: SharedMap::open(map, bytes, Sharing::ReadWrite)?,
        bell,
        chunks,
        wake,
    })
}

/// The status of the engine at `path`, as JSON. Blocks for some seconds at most.
///
/// # Errors
/// [`SockError`].
pub fn status(path: &Path) -> Result<String, SockError> {
    status_of(path, &Trust::default())
}

/// The same, for an engine that another trusted user may run.
///
/// # Errors
/// [`SockError`].
pub fn status_of(path: &Path, trust: &Trust) -> Result<String, SockError> {
    let (_, answer) = ask(path, trust, KIND_STATUS, &[])?;
    Ok(String::from_utf8_lossy(&answer.body).into_owned())
}

/// Sockets of all engines that share an address with the one at `path`, which is the first; `path`
/// alone if it is the only engine, or not the first of several. An application that serves all of
/// them attaches to each, and knows by the attachment which engine accepted a session. Blocks for
/// some seconds at most.
///
/// # Errors
/// [`SockError`].
pub fn siblings(path: &Path, trust: &Trust) -> Result<Vec<PathBuf>, SockError> {
    // Without a sound status there is still the engine that was asked.
    let status: Value = serde_json::from_str(&status_of(path, trust)?).unwrap_or_default();
    Ok(siblings_in(path, &status))
}

/// Status of all engines that share an address with the one at `path`, as one object: numbers are
/// sums, except `uptime_seconds`, which is the first engine's; `addresses` are the first engine's;
/// `applications` are those of all, each with its `engine_index`; `engines` has each engine's own
/// status with its `socket`. Blocks for some seconds at most.
///
/// # Errors
/// [`SockError`].
pub fn status_of_all(path: &Path, trust: &Trust) -> Result<Value, SockError> {
    let ask = |path: &Path| -> Result<Value, SockError> {
        let text = status_of(path, trust)?;
        serde_json::from_str(&text).map_err(|_| SockError::Nonsense {
            socket: path.to_owned(),
        })
    };
    let first = ask(path)?;
    let others = siblings_in(path, &first).into_iter().skip(1);
    let mut all = vec![(path.to_owned(), first)];
    for socket in others {
        let status = ask(&socket)?;
        all.push((socket, status));
    }
    Ok(merge(all))
}

/// All sessions of the engines that share an address with the one at `path`, each with its status
/// and its `engine_index`, a page at a time: sessions that begin or end meanwhile may be missing.
/// Blocks for some seconds at most for each page.
///
/// # Errors
/// [`SockError`].
pub fn sessions_of_all(path: &Path, trust: &Trust) -> Result<Vec<Value>, SockError> {
    let mut all = Vec::new();
    for (index, socket) in siblings(path, trust)?.iter().enumerate() {
        let mut from = Some(0u32);
        while let Some(number) = from {
            let (_, answer) = ask(socket, trust, KIND_SESSIONS, &number.to_le_bytes())?;
            let page = serde_json::from_slice(&answer.body);
            let mut page: Value = page.map_err(|_| SockError::Nonsense {
                socket: socket.clone(),
            })?;
            for mut session in take_list(&mut page, "sessions") {
                session["engine_index"] = index.into();
                all.push(session);
            }
            // Forwards only, whatever the other process says.
            let next = page["next"].as_u64().and_then(|it| u32::try_from(it).ok());
            from = next.filter(|next| *next > number);
        }
    }
    Ok(all)
}

fn siblings_in(path: &Path, status: &Value) -> Vec<PathBuf> {
    let number = |key: &str| status[key].as_u64().unwrap_or_default().to_usize();
    let count = match number("engine_index") {
        // Bounded: the number comes from another process.
        0 => number("engine_count").clamp(1, ENGINES_MAX),
        _ => 1,
    };
    let sockets = (0..count).map(|index| sibling_socket(path, index));
    sockets.collect()
}

/// Merges the status of several engines.
fn merge(all: Vec<(PathBuf, Value)>) -> Value {
    let mut lists = LISTS.map(|name| (name, Vec::new()));
    let mut engines = Vec::new();
    let mut whole = Value::Null;
    for (socket, mut status) in all {
        let index = status["engine_index"].clone();
        for (name, list) in &mut lists {
            for mut entry in take_list(&mut status, name) {
                entry["engine_index"] = index.clone();
                list.push(entry);
            }
        }
        // The first engine's status is the base for values that are common to all.
        if whole.is_null() {
            whole = status.clone();
        } else {
            add(&mut whole, &status);
        }
        status["socket"] = socket.to_string_lossy().into();
        engines.push(status);
    }
    for (name, list) in lists {
        whole[name] = list.into();
    }
    whole["engines"] = engines.into();
    whole
}

/// Lists whose entries, of all engines, are in one list of the whole.
const LISTS: [&str; 3] = ["applications", "listeners", "peer_prefixes"];

fn take_list(status: &mut Value, name: &str) -> Vec<Value> {
    let list = status
        .as_object_mut()
        .and_then(|status| status.remove(name));
    match list {
        Some(Value::Array(list)) => list,
        _ => Vec::new(),
    }
}

/// Adds counters; values that are common to all engines stay.
fn add(whole: &mut Value, more: &Value) {
    const OF_ALL: [&str; 4] = ["version", "uptime_seconds", "engine_index", "engine_count"];
    let (Some(whole), Some(more)) = (whole.as_object_mut(), more.as_object()) else {
        return;
    };
    for (name, value) in whole {
        // Sums of these would mean nothing.
        let of_all = OF_ALL.contains(&name.as_str());
        match (&mut *value, more.get(name)) {
            (Value::Object(_), Some(other)) => add(value, other),
            (Value::Number(number), Some(Value::Number(other))) if !of_all => {
                let sum = number.as_u64().zip(other.as_u64());
                if let Some(sum) = sum.map(|(one, other)| one.saturating_add(other)) {
                    *value = sum.into();
                }
            }
            _ => {}
        }
    }
}

fn ask(
    path: &Path,
    trust: &Trust,
    kind: u32,
    body: &[u8],
) -> Result<(Introduction, Answer), SockError> {
    let question = PROTOCOL.question(kind, body);
    let asked =
        Introduction::begin_within(PROTOCOL, path, trust, &question, ANSWER_BYTES_MAX, PATIENCE)?;
    let answer = asked.wait(PATIENCE)?;
    if answer.kind != kind {
        return Err(asked.nonsense().into());
    }
    Ok((asked, answer))
}

const PATIENCE: Duration = Duration::from_secs(5);
const ANSWER_BYTES_MAX: usize = 128 << 10;

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn counters_of_engines_are_added() {
        let status = |index: u32, sessions: u32| {
            json!({
                "version": 1, "engine_index": index, "engine_count": 2,
                "uptime_seconds": 7.5, "addresses": ["10.0.0.1/24"], "sessions": sessions,
                "engine": { "rounds": 10 }, "applications": [{ "pid": 40 + index }],
                "listeners": [{ "address": "10.0.0.1:80" }],
            })
        };
        let path = Path::new("/run/net.sock");
        let sockets = siblings_in(path, &status(0, 1));
        assert_eq!(sockets, [path, Path::new("/run/net.sock.1")]);
        assert_eq!(siblings_in(path, &status(1, 1)), [path], "asked for alone");
        let all = sockets.into_iter().zip([status(0, 3), status(1, 4)]);
        let whole = merge(all.collect());
        assert_eq!(whole["sessions"], 7);
        assert_eq!(whole["engine"]["rounds"], 20);
        assert_eq!(whole["version"], 1);
        assert_eq!(whole["uptime_seconds"], 7.5);
        assert_eq!(whole["engines"][1]["sessions"], 4);
        assert_eq!(whole["engines"][1]["socket"], "/run/net.sock.1");
        assert_eq!(whole["applications"][1]["pid"], 41);
        assert_eq!(whole["applications"][1]["engine_index"], 1);
        assert_eq!(whole["listeners"][1]["engine_index"], 1);
    }
}

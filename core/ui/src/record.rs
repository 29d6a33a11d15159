//! The last minutes of every live server, in bounded room.
//!
//! Why here: servers say how much they have done in all; a page shows how fast they do it, now and
//! over the last minutes. Must stay true: pure, time comes in as an argument; the room is bounded
//! by the limits at the end of this file, however long it runs and whatever servers say. A counter
//! that falls is a restart, not a negative rate.

use crate::curve::Curve;
use crate::observed::{Daemon, Detail, Image, Observed, Session, Stack, TEXT_CHARS_MAX};
use bytes::Bytes;
use serde_json::{Value, json};
use sidecore_status::Server;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

/// Servers that were seen, with their last samples.
#[derive(Debug, Default)]
pub(crate) struct Record {
    /// Number of the newest sample; 0 before the first.
    sequence: u64,
    entries: BTreeMap<u64, Entry>,
    /// The id of the entry of each live server.
    ids: HashMap<Identity, u64>,
    id_last: u64,
    sampled_at: Option<Duration>,
    /// Servers of the newest sample that had no room.
    left_out: usize,
}

/// Identity of a server: of one process several may have been started in the same
/// second, with one name; those are numbered.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Identity {
    kind: &'static str,
    uid: u32,
    pid: u32,
    started_unix_s: u64,
    name: String,
    number: usize,
}

/// One server.
#[derive(Debug)]
struct Entry {
    identity: Identity,
    is_silent: bool,
    observed: Observed,
    /// Rates, one value a sample, the newest last. Engines have one track each.
    tracks: Vec<Track>,
    curve: Curve,
    curve_changed: u64,
    tree: Option<Tree>,
    /// The sample in which it was missing for the first time.
    ended: Option<u64>,
}

/// Values of the last samples.
#[derive(Debug, Clone, Default)]
struct Track(VecDeque<f32>);

/// The tree of a search, and the sample that brought it.
#[derive(Debug, Clone)]
pub(crate) struct Tree {
    pub(crate) version: u64,
    pub(crate) newick: Bytes,
}

impl Record {
    /// Takes a sample: all live servers, at `now`.
    pub(crate) fn take(&mut self, now: Duration, servers: Vec<Server>) {
        self.sequence += 1;
        let past = self.sampled_at.replace(now);
        let elapsed_s = past.map_or(0.0, |past| now.saturating_sub(past).as_secs_f64());
        self.left_out = servers.len().saturating_sub(SERVERS_MAX);
        let mut seen = Vec::new();
        for server in servers.into_iter().take(SERVERS_MAX) {
            if !server.is_answering {
                self.keep_silent(&server, &mut seen);
                continue;
            }
            let mut identity = Identity::of(&server);
            while self.ids.get(&identity).is_some_and(|id| seen.contains(id)) {
                identity.number += 1;
            }
            seen.push(self.see(identity, Observed::read(server), elapsed_s));
        }
        self.end_missing(&seen);
    }

    /// Takes one server of a sample in; its id.
    fn see(&mut self, identity: Identity, observed: Observed, elapsed_s: f64) -> u64 {
        let sequence = self.sequence;
        let id = self.ids.get(&identity).copied().unwrap_or_else(|| {
            self.id_last += 1;
            self.ids.insert(identity.clone(), self.id_last);
            self.id_last
        });
        let entry = self.entries.entry(id).or_insert_with(|| Entry {
            identity,
            is_silent: false,
            observed: observed.clone(),
            tracks: Vec::new(),
            curve: Curve::default(),
            curve_changed: sequence,
            tree: None,
            ended: None,
        });
        entry.advance(observed, elapsed_s, sequence);
        id
    }

    /// A process that is too busy to answer has not ended. It says only what and whose it is, so
    /// all of its servers of that kind stay.
    fn keep_silent(&mut self, server: &Server, seen: &mut Vec<u64>) {
        for (id, entry) in &mut self.entries {
            let own = &entry.identity;
            let is_of_it =
                (own.kind, own.uid, own.pid) == (server.kind.name(), server.uid, server.pid);
            if is_of_it && entry.ended.is_none() && !seen.contains(id) {
                entry.is_silent = true;
                // The time goes on for it, too.
                entry.tracks.iter_mut().for_each(|track| track.add(0.0));
                seen.push(*id);
            }
        }
    }

    /// Marks the servers that are gone, and forgets those that went long ago.
    fn end_missing(&mut self, seen: &[u64]) {
        let sequence = self.sequence;
        for (id, entry) in &mut self.entries {
            if entry.ended.is_none() && !seen.contains(id) {
                entry.ended = Some(sequence);
                // One of the same identity that comes later is another server.
                self.ids.remove(&entry.identity);
            }
        }
        // The newest first, since ids only grow.
        let searches = self.entries.iter().rev();
        let mut searches: Vec<u64> = searches
            .filter(|(_, entry)| entry.ended.is_some() && entry.is_search())
            .map(|(id, _)| *id)
            .collect();
        let old = searches.split_off(searches.len().min(ENDED_SEARCHES_MAX));
        self.entries.retain(|id, entry| match entry.ended {
            None => true,
            Some(_) if entry.is_search() => !old.contains(id),
            Some(ended) => sequence - ended < ENDED_SAMPLES,
        });
        // A burst of servers that end at once must not stay either.
        while self.entries.len() > ENTRIES_MAX {
            // In the order of ids, so the oldest one is the first.
            let mut ended = self
                .entries
                .iter()
                .filter(|(_, entry)| entry.ended.is_some());
            let Some(id) = ended.next().map(|(id, _)| *id) else {
                break;
            };
            self.entries.remove(&id);
        }
    }

    /// Number of the newest sample.
    pub(crate) fn sequence(&self) -> u64 {
        self.sequence
    }

    /// The tree of a search.
    pub(crate) fn tree(&self, id: u64) -> Option<&Tree> {
        self.entries.get(&id)?.tree.as_ref()
    }

    /// The state for a page that has seen the sample `since`, 0 for one that has seen none: each
    /// server with the values of its tracks since then.
    pub(crate) fn state(&self, since: u64) -> Value {
        // A page of an earlier process may know a larger number.
        let since = if since > self.sequence { 0 } else { since };
        let count = usize::try_from(self.sequence - since).unwrap_or(usize::MAX);
        let servers = self.entries.iter();
        let servers: Vec<Value> = servers
            .map(|(id, entry)| entry.state(*id, since, count))
            .collect();
        json!({
            "sequence": self.sequence,
            "since": since,
            "samples_max": SAMPLES_MAX,
            "left_out": self.left_out,
            "servers": servers,
        })
    }
}

impl Identity {
    fn of(server: &Server) -> Self {
        Self {
            kind: server.kind.name(),
            uid: server.uid,
            pid: server.pid,
            started_unix_s: server.started_unix_s,
            name: server.name.chars().take(TEXT_CHARS_MAX).collect(),
            number: 0,
        }
    }
}

impl Entry {
    fn is_search(&self) -> bool {
        matches!(self.observed.detail, Detail::Search(_))
    }

    /// Goes on to a newer description of the same server.
    fn advance(&mut self, mut observed: Observed, elapsed_s: f64, sequence: u64) {
        let before = &self.observed.detail;
        let values = match (before, &mut observed.detail) {
            (Detail::Image(before), Detail::Image(image)) => image_rates(before, image, elapsed_s),
            (Detail::Daemon(before), Detail::Daemon(now)) => busy_shares(before, now, elapsed_s),
            (Detail::Stack(before), Detail::Stack(now)) => stack_rates(before, now, elapsed_s),
            (_, Detail::Search(search)) => {
                if let Some(value) = search.log_likelihood
                    && self.curve.add(search.elapsed_s, value)
                {
                    self.curve_changed = sequence;
                }
                let newick = std::mem::take(&mut search.best_tree_newick);
                let known = self.tree.as_ref().map(|tree| &tree.newick[..]);
                if !newick.is_empty() && known != Some(newick.as_bytes()) {
                    self.tree = Some(Tree {
                        version: sequence,
                        newick: newick.into(),
                    });
                }
                Vec::new()
            }
            _ => Vec::new(),
        };
        // A daemon that was restarted may have another number of engines.
        self.tracks.resize_with(values.len(), Track::default);
        for (track, value) in self.tracks.iter_mut().zip(values) {
            track.add(value);
        }
        self.observed = observed;
        self.is_silent = false;
    }

    fn state(&self, id: u64, since: u64, count: usize) -> Value {
        let mut state = serde_json::to_value(&self.observed.detail).unwrap_or_default();
        let about = serde_json::to_value(&self.observed.about).unwrap_or_default();
        if let (Value::Object(state), Value::Object(about)) = (&mut state, about) {
            state.extend(about);
        }
        state["id"] = json!(id);
        state["is_ended"] = json!(self.ended.is_some());
        state["is_silent"] = json!(self.is_silent);
        let tracks = self.tracks.iter();
        let tracks: Vec<_> = tracks.map(|track| track.last(count)).collect();
        state["tracks"] = json!(tracks);
        if self.is_search() {
            state["tree_version"] = json!(self.tree.as_ref().map(|tree| tree.version));
            if self.curve_changed > since {
                let points: Vec<_> = self.curve.points().collect();
                state["curve"] = json!(points);
            }
        }
        state
    }
}

impl Track {
    fn add(&mut self, value: f32) {
        if self.0.len() == SAMPLES_MAX {
            self.0.pop_front();
        }
        self.0.push_back(value);
    }

    /// The newest values, `count` at most, rounded: a page needs no more digits.
    fn last(&self, count: usize) -> Vec<f64> {
        let skipped = self.0.len().saturating_sub(count);
        let values = self.0.iter().skip(skipped);
        values
            .map(|value| (f64::from(*value) * 1e4).round() / 1e4)
            .collect()
    }
}

/// The rate of a counter, for a second; 0 where it fell.
fn rate(before: u64, now: u64, elapsed_s: f64) -> f32 {
    if elapsed_s <= 0.0 {
        return 0.0;
    }
    // Precision beyond a pixel's is of no use.
    (now.saturating_sub(before) as f64 / elapsed_s) as f32
}

/// One track: bytes read, a second.
fn image_rates(before: &Image, now: &Image, elapsed_s: f64) -> Vec<f32> {
    vec![rate(before.read_bytes, now.read_bytes, elapsed_s)]
}

/// One track an engine: its busy share of the time, 0 to 1.
fn busy_shares(before: &Daemon, now: &Daemon, elapsed_s: f64) -> Vec<f32> {
    let shares = now.engines.iter().enumerate().map(|(place, engine)| {
        // In its place there may be another engine than before.
        let before = before
            .engines
            .get(place)
            .filter(|before| before.id == engine.id);
        let busy = before.map_or(0.0, |before| {
            rate(before.busy_ns, engine.busy_ns, elapsed_s)
        });
        (busy / 1e9).clamp(0.0, 1.0)
    });
    shares.collect()
}

/// Three tracks: bytes received, bytes sent, dropped frames, a second. Sessions get their rates.
fn stack_rates(before: &Stack, now: &mut Stack, elapsed_s: f64) -> Vec<f32> {
    let name = |session: &Session| (session.local.clone(), session.remote.clone());
    let known: HashMap<_, _> = before.sessions.iter().map(|one| (name(one), one)).collect();
    let (mut received, mut sent) = (0.0, 0.0);
    for session in &mut now.sessions {
        if let Some(before) = known.get(&name(session)) {
            let of = |before, now| rate(0, advance(before, now), elapsed_s);
            session.rx_bytes_per_s = of(before.rx_bytes, session.rx_bytes);
            session.tx_bytes_per_s = of(before.tx_bytes, session.tx_bytes);
        }
        received += session.rx_bytes_per_s;
        sent += session.tx_bytes_per_s;
    }
    vec![received, sent, rate(before.drops, now.drops, elapsed_s)]
}

/// The advance of a counter that may have 32 bits, as those of a stack's sessions have. One that
/// falls has passed its end, unless that would be half of its range.
fn advance(before: u64, now: u64) -> u64 {
    match (u32::try_from(before), u32::try_from(now)) {
        (Ok(before), Ok(now)) if now < before => {
            let advance = now.wrapping_sub(before);
            if advance < 1 << 31 {
                u64::from(advance)
            } else {
                0
            }
        }
        _ => now.saturating_sub(before),
    }
}

/// Servers of a sample that are shown.
pub(crate) const SERVERS_MAX: usize = 256;
/// Servers that are kept, those that ended included.
pub(crate) const ENTRIES_MAX: usize = SERVERS_MAX + 64;
/// Values of a track: five minutes at one a second.
pub(crate) const SAMPLES_MAX: usize = 300;
/// Samples for which a server that ended stays.
const ENDED_SAMPLES: u64 = 30;
/// Searches that stay after their end, with their trees.
const ENDED_SEARCHES_MAX: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// A server that says `value` of itself.
    fn server(value: Value) -> Server {
        let Value::Object(mut fields) = value else {
            panic!("no object");
        };
        let kind = fields.remove("kind").unwrap_or_default();
        let number = |value: Option<Value>| value.and_then(|value| value.as_u64()).unwrap_or(0);
        let name = fields.remove("name").unwrap_or_default();
        Server {
            kind: sidecore_status::Kind::of_name(kind.as_str().unwrap()).unwrap(),
            pid: u32::try_from(number(fields.remove("pid"))).unwrap(),
            uid: 0,
            name: name.as_str().unwrap_or_default().to_owned(),
            started_unix_s: number(fields.remove("started_unix_s")),
            is_answering: true,
            fields,
        }
    }

    fn image(read_bytes: u64) -> Server {
        server(json!({"kind": "image", "pid": 1, "name": "a", "read_bytes": read_bytes}))
    }

    #[test]
    fn counters_become_rates_and_a_restart_is_no_negative_one() {
        let mut record = Record::default();
        for (second, bytes) in [(0, 1000), (1, 3000), (3, 5000), (4, 10)] {
            record.take(at(second), vec![image(bytes)]);
        }
        let state = record.state(0);
        assert_eq!(
            state["servers"][0]["tracks"],
            json!([[0.0, 2000.0, 1000.0, 0.0]])
        );
        assert_eq!(state["servers"][0]["read_bytes"], 10);
        // A page that has seen two samples gets the rest.
        assert_eq!(
            record.state(2)["servers"][0]["tracks"],
            json!([[1000.0, 0.0]])
        );
        // One of an earlier process begins anew.
        assert_eq!(record.state(99)["since"], 0);
    }

    #[test]
    fn engines_and_sessions_have_shares_and_rates() {
        let daemon = |busy_ns: u64| {
            let engines = json!([{"id": 0, "cpu": 2, "busy_ns": busy_ns, "jobs": 3}, {"id": 1}]);
            server(json!({"kind": "daemon", "engines": engines, "jobs_total": 3}))
        };
        let stack = |rx_bytes: u64, drops: u64| {
            let session = json!({"local": "a", "remote": "b", "rx_bytes": rx_bytes});
            server(json!({"kind": "stack", "sessions": [session], "drops": drops}))
        };
        let mut record = Record::default();
        record.take(at(0), vec![daemon(0), stack(0, 0)]);
        record.take(at(2), vec![daemon(500_000_000), stack(2048, 4)]);
        let state = record.state(1);
        assert_eq!(state["servers"][0]["tracks"], json!([[0.25], [0.0]]));
        assert_eq!(
            state["servers"][1]["tracks"],
            json!([[1024.0], [0.0], [2.0]])
        );
        assert_eq!(state["servers"][1]["sessions"][0]["rx_bytes_per_s"], 1024.0);
    }

    #[test]
    fn counters_of_32_bits_pass_their_end() {
        let end = u64::from(u32::MAX);
        assert_eq!(advance(end - 9, 90), 100);
        assert_eq!(advance(5000, 10), 0, "a restart");
        assert_eq!(advance(5, 1000), 995);
        assert_eq!(advance(end + 7, end + 9), 2);
        assert_eq!(advance(end + 7, 3), 0);
    }

    #[test]
    fn a_silent_server_stays_and_twins_are_two() {
        let mut record = Record::default();
        record.take(at(0), vec![image(0), image(0)]);
        record.take(at(1), vec![image(100), image(300)]);
        let both = record.state(0);
        assert_eq!(both["servers"][0]["tracks"], json!([[0.0, 100.0]]));
        assert_eq!(both["servers"][1]["tracks"], json!([[0.0, 300.0]]));
        let silent = Server {
            is_answering: false,
            name: String::new(),
            ..image(0)
        };
        record.take(at(2), vec![silent.clone(), silent]);
        record.take(at(3), vec![image(100), image(500)]);
        let later = record.state(0);
        assert_eq!(later["servers"][1]["id"], 2);
        assert_eq!(
            later["servers"][1]["tracks"],
            json!([[0.0, 300.0, 0.0, 200.0]])
        );
        assert_eq!(later["servers"][1]["is_silent"], false);
    }

    #[test]
    fn a_search_stays_after_its_end_with_its_tree_and_curve() {
        let search = |pid: u32, value: f64, tree: &str| {
            server(json!({
                "kind": "search", "pid": pid, "log_likelihood": value, "elapsed_s": 1.0,
                "best_tree_newick": tree,
            }))
        };
        let mut record = Record::default();
        record.take(at(0), vec![search(1, -10.0, "(a,b);")]);
        record.take(at(1), vec![search(1, -9.0, "(a,b);")]);
        let seen = record.state(0);
        assert_eq!(seen["servers"][0]["tree_version"], 1);
        assert!(seen["servers"][0].get("best_tree_newick").is_none());
        assert_eq!(record.state(2)["servers"][0].get("curve"), None);
        for second in 2..100 {
            record.take(at(second), vec![]);
        }
        let gone = record.state(0);
        assert_eq!(gone["servers"][0]["is_ended"], true);
        assert_eq!(record.tree(1).unwrap().newick, "(a,b);");
        // Later ones push it out.
        for pid in 2..20 {
            record.take(at(100 + u64::from(pid)), vec![search(pid, -1.0, "(c,d);")]);
        }
        record.take(at(200), vec![]);
        assert!(record.tree(1).is_none());
        assert_eq!(
            record.state(0)["servers"].as_array().unwrap().len(),
            ENDED_SEARCHES_MAX
        );
    }

    #[test]
    fn a_day_of_samples_and_a_flood_of_servers_need_no_more_room() {
        let mut record = Record::default();
        for second in 0..86_400 {
            record.take(at(second), vec![image(second * 4096)]);
        }
        assert_eq!(record.entries.len(), 1);
        let samples = &record.entries[&1].tracks[0].0;
        assert!(samples.len() == SAMPLES_MAX && samples.capacity() <= 2 * SAMPLES_MAX);
        let settled = serde_json::to_string(&record.state(0)).unwrap().len();
        // Each second a thousand others.
        for second in 0..50u32 {
            let others = (0..1000).map(|number| {
                let pid = second * 1000 + number + 2;
                server(json!({"kind": "image", "pid": pid, "name": "x".repeat(5000)}))
            });
            record.take(at(90_000 + u64::from(second)), others.collect());
            assert!(record.entries.len() <= ENTRIES_MAX);
            assert!(record.ids.len() <= ENTRIES_MAX);
        }
        assert_eq!(record.state(0)["left_out"], 1000 - SERVERS_MAX);
        for second in 0..60 {
            record.take(at(91_000 + second), vec![image(second)]);
        }
        assert_eq!((record.entries.len(), record.ids.len()), (1, 1));
        assert!(serde_json::to_string(&record.state(0)).unwrap().len() <= settled);
    }
}

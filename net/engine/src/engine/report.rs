//! The status of an engine, as JSON.
//!
//! Must stay true: `sidecore net status` prints the names of the fields, and scripts rely on them
//! (docs/commands.md).

use super::EngineStatus;
use crate::sock::server::ClientStatus;
use crate::{Counters, Stack};
use serde::{Serialize, Serializer};
use sidecore_net_stack::{Holding, SessionSummary, holders};

/// The status that `sidecore net status` prints.
#[derive(Debug, Default, Serialize)]
pub(super) struct Report {
    pub(super) version: u32,
    /// Number of this engine among those with its address, from 0, and how many there are.
    pub(super) engine_index: usize,
    pub(super) engine_count: usize,
    pub(super) uptime_seconds: f64,
    pub(super) addresses: Vec<String>,
    pub(super) networks: Vec<String>,
    pub(super) sessions: usize,
    /// `stack.memory`, and the bytes of it in buffers that are in use.
    pub(super) memory_bytes_max: usize,
    pub(super) memory_bytes: usize,
    pub(super) buffer_bytes: usize,
    pub(super) buffers_in_use: usize,
    pub(super) packets_in_fragments: usize,
    pub(super) packets_in_fragments_bytes: usize,
    pub(super) engine: EngineStatus,
    #[serde(serialize_with = "by_name")]
    pub(super) stack: Counters,
    pub(super) applications: Vec<ClientStatus>,
    pub(super) applications_cut_off: u64,
    /// The listeners, and the prefixes of peers, whose sessions hold the most of `memory_bytes`.
    pub(super) listeners: Vec<Holder>,
    pub(super) peer_prefixes: Vec<Holder>,
    /// Some of the sessions.
    pub(super) session_list: Vec<Session>,
}

/// A session in the list.
#[derive(Debug, Serialize)]
pub(super) struct Session {
    local: String,
    remote: String,
    state: String,
    rx_bytes: u32,
    tx_bytes: u32,
    rtt_us: u32,
    window_bytes: u32,
    retransmits: u32,
}

impl Session {
    fn of(session: SessionSummary) -> Self {
        Self {
            local: session.local.to_string(),
            remote: session.remote.to_string(),
            state: format!("{:?}", session.state),
            rx_bytes: session.received_bytes,
            tx_bytes: session.sent_bytes,
            rtt_us: session.rtt_us,
            window_bytes: session.window_bytes,
            retransmits: session.retransmitted,
        }
    }
}

/// Memory of the sessions of a listener, or of a prefix.
#[derive(Debug, Serialize)]
pub(super) struct Holder {
    #[serde(skip_serializing_if = "Option::is_none")]
    address: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prefix: Option<String>,
    sessions: usize,
    buffer_bytes: usize,
}

impl Holder {
    fn of(holding: Holding) -> Self {
        let is_prefix = holding.prefix_bits > 0;
        let prefix = || format!("{}/{}", holding.of.ip(), holding.prefix_bits);
        Self {
            address: (!is_prefix).then(|| holding.of.to_string()),
            prefix: is_prefix.then(prefix),
            sessions: holding.sessions,
            buffer_bytes: holding.buffer_bytes,
        }
    }
}

impl Report {
    /// The stack's part of a report.
    pub(super) fn of_stack(stack: &Stack) -> Self {
        let buffers = stack.buffers();
        let (packets_in_fragments, packets_in_fragments_bytes) = stack.fragments_held();
        let [listeners, peer_prefixes] =
            holders(stack, HOLDERS_MAX).map(|all| all.into_iter().map(Holder::of).collect());
        let known = stack.networks();
        let (addresses, networks) = (known.own.into_iter(), known.reachable.into_iter());
        Self {
            version: VERSION,
            addresses: addresses.map(|(ip, bits)| format!("{ip}/{bits}")).collect(),
            networks: networks.map(|(ip, bits)| format!("{ip}/{bits}")).collect(),
            sessions: stack.sessions(),
            memory_bytes_max: buffers.bytes_max,
            memory_bytes: buffers.bytes_in_use,
            buffer_bytes: buffers.allocated_bytes,
            buffers_in_use: buffers.in_use,
            packets_in_fragments,
            packets_in_fragments_bytes,
            stack: stack.counters(),
            listeners,
            peer_prefixes,
            session_list: stack
                .list_sessions(SESSIONS_MAX)
                .into_iter()
                .map(Session::of)
                .collect(),
            ..Self::default()
        }
    }

    pub(super) fn json(&self) -> String {
        // It has numbers and addresses only, so serialization cannot fail.
        serde_json::to_string(self).unwrap_or_default()
    }
}

fn by_name<S: Serializer>(counters: &Counters, serializer: S) -> Result<S::Ok, S::Error> {
    // A map in the order of the fields, as a derived implementation would write it.
    serializer.collect_map(counters.named())
}

/// Listeners, and prefixes of peers, in a report.
const HOLDERS_MAX: usize = 16;
/// Sessions in a report: 25 KB of the 128 KiB that an answer may have.
const SESSIONS_MAX: usize = 128;
/// Version of the report; it changes when a name changes its meaning.
const VERSION: u32 = 1;

/// A status with one application.
#[cfg(test)]
pub(crate) fn for_tests() -> String {
    let application = ClientStatus {
        pid: 41,
        uid: 1000,
        ..ClientStatus::default()
    };
    let report = Report {
        version: VERSION,
        engine_count: 1,
        uptime_seconds: 1.5,
        addresses: vec!["10.0.0.1/24".to_owned()],
        networks: vec!["10.0.0.1/24".to_owned()],
        applications: vec![application],
        ..Report::default()
    };
    report.json()
}

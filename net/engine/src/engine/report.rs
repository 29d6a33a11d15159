//! The status of an engine, as JSON.
//!
//! Must stay true: `sidecore net status` prints the names of the fields, and scripts rely on them
//! (docs/commands.md).

use super::EngineStatus;
use crate::nic::NicReport;
use crate::sock::server::ClientStatus;
use crate::sock::{Id, id_of};
use crate::{Counters, SessionInfo, SessionState, Stack};
use serde::{Serialize, Serializer};
use sidecore_net_stack::{Holding, SessionSummary, holders, session_page};
use sidecore_sys::local_socket::Peer;
use std::net::SocketAddr;

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
    /// Links of a bond, or peers of a tunnel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) nic: Option<NicReport>,
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
        // A listener has no prefix.
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

/// A session with its status, in the words of `sidecore net sessions`.
#[derive(Debug, Serialize)]
struct Detailed {
    local: String,
    remote: String,
    state: &'static str,
    /// The process that has it; none before a listener's process accepts it, and after its close.
    pid: Option<i32>,
    uid: Option<u32>,
    congestion: String,
    mss_bytes: u16,
    path_mtu_bytes: u16,
    send_scale: u8,
    receive_scale: u8,
    rtt_us: u32,
    rtt_variation_us: u32,
    rtt_min_us: u32,
    timeout_us: u32,
    window_bytes: u32,
    /// None before the first loss.
    threshold_bytes: Option<u32>,
    peer_window_bytes: u32,
    receive_window_bytes: u32,
    in_flight_bytes: u32,
    unsent_bytes: u32,
    unread_bytes: u32,
    buffer_bytes: usize,
    pacing_bytes_per_s: Option<u64>,
    segments_unacked: u32,
    segments_sacked: u32,
    segments_lost: u32,
    retransmits: u32,
    timeouts: u8,
    /// Of payload, modulo 2^32.
    sent_bytes: u32,
    acked_bytes: u32,
    received_bytes: u32,
    silent_ms: u32,
    age_ms: u64,
    is_recovering: bool,
    has_timestamps: bool,
    has_sack: bool,
    has_ecn: bool,
}

impl Detailed {
    fn of([local, remote]: [SocketAddr; 2], info: &SessionInfo, owner: Option<Peer>) -> Self {
        Self {
            local: local.to_string(),
            remote: remote.to_string(),
            state: state_name(info.state),
            pid: owner.map(|peer| peer.pid),
            uid: owner.map(|peer| peer.uid),
            congestion: format!("{:?}", info.congestion).to_lowercase(),
            mss_bytes: info.mss,
            path_mtu_bytes: info.path_mtu,
            send_scale: info.scales.0,
            receive_scale: info.scales.1,
            rtt_us: info.rtt_us,
            rtt_variation_us: info.rttvar_us,
            rtt_min_us: info.rtt_min_us,
            timeout_us: info.timeout_us,
            window_bytes: info.window,
            threshold_bytes: (info.threshold < THRESHOLD_UNSET).then_some(info.threshold),
            peer_window_bytes: info.peer_window,
            receive_window_bytes: info.receive_window,
            in_flight_bytes: info.in_flight,
            unsent_bytes: info.unsent,
            unread_bytes: info.unread,
            buffer_bytes: info.buffer_bytes,
            pacing_bytes_per_s: info.pacing_bytes_per_s,
            segments_unacked: info.segments_unacked,
            segments_sacked: info.segments_sacked,
            segments_lost: info.segments_lost,
            retransmits: info.retransmitted,
            timeouts: info.retries,
            sent_bytes: info.sent_bytes,
            acked_bytes: info.acked_bytes,
            received_bytes: info.received_bytes,
            silent_ms: info.silent_ms,
            age_ms: info.age_ns / 1_000_000,
            is_recovering: info.recovering,
            has_timestamps: info.timestamps,
            has_sack: info.sack,
            has_ecn: info.ecn.is_on(),
        }
    }
}

/// A page of the sessions from the number `from` on, as JSON: `sessions`, and `next`, the number
/// where the next page begins, if there is one.
pub(super) fn sessions(stack: &mut Stack, from: u32, owner: &dyn Fn(Id) -> Option<Peer>) -> String {
    #[derive(Serialize)]
    struct Page {
        sessions: Vec<Detailed>,
        next: Option<u32>,
    }
    let page = session_page(stack, from, DETAILED_MAX);
    let sessions = page.sessions.iter();
    let page = Page {
        sessions: sessions
            .map(|(id, ends, info)| Detailed::of(*ends, info, owner(id_of(*id))))
            .collect(),
        next: page.next,
    };
    // As above: numbers and texts only, so it cannot fail.
    serde_json::to_string(&page).unwrap_or_default()
}

/// The name of a state as ss(8) has it.
fn state_name(state: SessionState) -> &'static str {
    match state {
        SessionState::Closed => "closed",
        SessionState::SynSent => "syn-sent",
        SessionState::SynReceived => "syn-recv",
        SessionState::Established => "established",
        SessionState::FinWait1 => "fin-wait-1",
        SessionState::FinWait2 => "fin-wait-2",
        SessionState::CloseWait => "close-wait",
        SessionState::Closing => "closing",
        SessionState::LastAck => "last-ack",
        SessionState::TimeWait => "time-wait",
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
/// Sessions in a page of their status: 100 KB of the 128 KiB that an answer may have.
const DETAILED_MAX: usize = 96;
/// A threshold of slow start beyond any window: there was no loss yet.
const THRESHOLD_UNSET: u32 = 1 << 31;
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

//! An engine's status in the text format that Prometheus reads.
//!
//! Why here: names, units and help texts are part of the engine's interface; the binary only
//! prints. Must stay true: every number of the status is here (a test compares), counters end in
//! `_total`, units are in the names, and no name changes its meaning.
//! Source: the Prometheus documentation, "Exposition formats", text format version 0.0.4, and
//! "Metric and label naming".

use serde_json::Value;
use sidecore_status::metrics::Metric;
use std::fmt::Write;

/// Prometheus type of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Monotonic until the engine ends.
    Counter,
    /// Goes up and down.
    Gauge,
}

/// One metric: its name after `sidecore_net_`, its help text, and its samples: labels, and the path
/// of each value in the status.
struct Family {
    name: &'static str,
    kind: Kind,
    help: &'static str,
    samples: &'static [(&'static str, &'static str)],
}

/// The status (the JSON of [`crate::sock::client::status`], or of
/// [`crate::sock::client::status_of_all`]) as metrics. Missing values are omitted. If several
/// engines share an address, each sample has the label `engine`.
#[must_use]
pub fn text(status: &Value) -> String {
    let mut out = String::new();
    for (family, samples) in collect(status) {
        write_family(&mut out, family, samples);
    }
    out
}

/// The same for an endpoint that offers OpenMetrics.
#[must_use]
pub fn metrics(status: &Value) -> Vec<Metric> {
    let made = collect(status).into_iter().map(|(family, samples)| {
        let name = format!("net_{}", family.name);
        let metric = match family.kind {
            Kind::Counter => Metric::counter(name, family.help),
            Kind::Gauge => Metric::gauge(name, family.help),
        };
        samples.into_iter().fold(metric, |metric, (labels, value)| {
            // Ours, from the tables below: no value has a comma or a quotation mark.
            let labels: Vec<(&str, &str)> = labels
                .split(',')
                .filter_map(|label| label.split_once('='))
                .map(|(name, value)| (name, value.trim_matches('"')))
                .collect();
            metric.sample(&labels, &value)
        })
    });
    made.collect()
}

/// Samples of a family: labels and value.
type Samples = Vec<(String, Value)>;

/// All families with their samples.
fn collect(status: &Value) -> Vec<(&'static Family, Samples)> {
    let mut all = Vec::new();
    // Several engines report their statuses in a list; a single one needs no label.
    let engines = match status["engines"].as_array() {
        Some(engines) if engines.len() > 1 => {
            let engines = engines.iter();
            engines
                .map(|status| (engine_label(&status["engine_index"]), status))
                .collect()
        }
        _ => vec![(String::new(), status)],
    };
    let is_one = engines.len() == 1;
    for family in FAMILIES {
        let found = engines.iter().flat_map(|(engine, status)| {
            let samples = family.samples.iter();
            samples.filter_map(move |(labels, at)| {
                // An older engine lacks newer counters: their families are left out.
                let value = status.pointer(at)?;
                value
                    .is_number()
                    .then(|| (join_labels(engine, labels), value.clone()))
            })
        });
        all.push((family, found.collect()));
    }
    let ratios = engines
        .iter()
        .filter_map(|(engine, status)| Some((engine.clone(), hit_ratio(status)?.into())));
    all.push((&HIT_RATIO, ratios.collect()));
    let applications = status["applications"].as_array();
    for family in APPLICATION_FAMILIES {
        let samples = applications.into_iter().flatten().flat_map(|application| {
            family.samples.iter().filter_map(|(labels, at)| {
                // Both are numbers, so nothing in a label needs an escape.
                let whose = format!(
                    "pid=\"{}\",uid=\"{}\"",
                    application["pid"], application["uid"]
                );
                // The applications of all engines are in one list, each with the index of its
                // engine.
                let engine = if is_one {
                    String::new()
                } else {
                    engine_label(&application["engine_index"])
                };
                let value = application.pointer(at)?.clone();
                let whose = join_labels(&engine, &whose);
                Some((join_labels(&whose, labels), value))
            })
        });
        all.push((family, samples.collect()));
    }
    collect_nic(status, &mut all);
    all
}

/// The families of a bond's links and a tunnel's peers.
fn collect_nic(status: &Value, all: &mut Vec<(&'static Family, Samples)>) {
    for (families, list, label, key) in [
        (LINK_FAMILIES, "/nic/links", "link", "name"),
        (PEER_FAMILIES, "/nic/peers", "peer", "public_key"),
    ] {
        for family in families {
            let entries = status.pointer(list).and_then(Value::as_array);
            let samples = entries.into_iter().flatten().flat_map(|entry| {
                family.samples.iter().filter_map(move |(_, at)| {
                    // A name that would need an escape has no samples.
                    let name = entry[key].as_str()?;
                    let is_plain = !name.contains(['"', ',', '\\', '\n']);
                    let value = entry.pointer(at).filter(|value| value.is_number())?;
                    is_plain.then(|| (format!("{label}=\"{name}\""), value.clone()))
                })
            });
            all.push((family, samples.collect()));
        }
    }
}

/// Share of session look-ups that ended in the local store.
fn hit_ratio(status: &Value) -> Option<f64> {
    let number = |at: &str| status.pointer(at).and_then(Value::as_f64);
    let (all, hits) = (number("/stack/searches")?, number("/stack/search_hits")?);
    // 0 before the first look-up: NaN would make a gap in graphs and break alerts.
    Some(if all > 0.0 { hits / all } else { 0.0 })
}

fn engine_label(index: &Value) -> String {
    format!("engine=\"{index}\"")
}

fn join_labels(one: &str, other: &str) -> String {
    let both = [one, other].into_iter().filter(|labels| !labels.is_empty());
    both.collect::<Vec<_>>().join(",")
}

fn write_family(out: &mut String, family: &Family, samples: Samples) {
    // A family without samples is invalid in the format.
    if samples.is_empty() {
        return;
    }
    let total = if family.kind == Kind::Counter {
        "_total"
    } else {
        ""
    };
    let name = format!("sidecore_net_{}{total}", family.name);
    let kind = if family.kind == Kind::Counter {
        "counter"
    } else {
        "gauge"
    };
    // Writing to a string cannot fail.
    let _ = writeln!(out, "# HELP {name} {}\n# TYPE {name} {kind}", family.help);
    for (labels, value) in samples {
        let _ = match labels.as_str() {
            "" => writeln!(out, "{name} {value}"),
            labels => writeln!(out, "{name}{{{labels}}} {value}"),
        };
    }
}

const fn counter(
    name: &'static str,
    help: &'static str,
    samples: &'static [(&'static str, &'static str)],
) -> Family {
    Family {
        name,
        kind: Kind::Counter,
        help,
        samples,
    }
}

const fn gauge(
    name: &'static str,
    help: &'static str,
    samples: &'static [(&'static str, &'static str)],
) -> Family {
    Family {
        kind: Kind::Gauge,
        ..counter(name, help, samples)
    }
}

static HIT_RATIO: Family = gauge(
    "session_cache_hit_ratio",
    "Searches for a session that the local store answered, of all; 0 to 1.",
    &[],
);

static FAMILIES: &[Family] = &[
    gauge(
        "uptime_seconds",
        "Since the engine came up.",
        &[("", "/uptime_seconds")],
    ),
    gauge(
        "sessions",
        "TCP sessions in any state.",
        &[("", "/sessions")],
    ),
    gauge(
        "memory_bytes_max",
        "Budget of all sessions' buffers (`stack.memory`).",
        &[("", "/memory_bytes_max")],
    ),
    gauge(
        "memory_bytes",
        "Part of the budget that buffers in use take.",
        &[("", "/memory_bytes")],
    ),
    gauge(
        "buffer_bytes",
        "Memory taken for buffers.",
        &[("", "/buffer_bytes")],
    ),
    gauge(
        "buffers_in_use",
        "Buffers that hold something.",
        &[("", "/buffers_in_use")],
    ),
    counter(
        "rounds",
        "Rounds of the polling loop.",
        &[
            ("kind=\"work\"", "/engine/rounds"),
            ("kind=\"idle\"", "/engine/idle_rounds"),
        ],
    ),
    counter(
        "sleeps",
        "Times that the loop slept.",
        &[("", "/engine/sleeps")],
    ),
    counter(
        "stage_cycles",
        "Cycles of rounds with work, by stage.",
        &[
            ("stage=\"receive\"", "/engine/receive_cycles"),
            ("stage=\"applications\"", "/engine/applications_cycles"),
            ("stage=\"transmit\"", "/engine/transmit_cycles"),
        ],
    ),
    counter(
        "frames_handed_over",
        "Frames handed over to engines with the same address, and what became of others.",
        &[
            ("event=\"given\"", "/engine/handed_over"),
            ("event=\"lost\"", "/engine/handed_lost"),
            ("event=\"taken\"", "/engine/handed_taken"),
        ],
    ),
    counter(
        "frames_received",
        "Frames that the NIC handed over.",
        &[("", "/stack/frames_received")],
    ),
    counter(
        "frames_sent",
        "Frames handed to the NIC; a super-segment counts once.",
        &[
            ("kind=\"segment\"", "/stack/segments_sent"),
            ("kind=\"control\"", "/stack/control_sent"),
        ],
    ),
    counter(
        "frames_dropped",
        "Frames that led to nothing.",
        &[
            ("reason=\"malformed\"", "/stack/malformed"),
            ("reason=\"checksum\"", "/stack/bad_checksums"),
            ("reason=\"not_ours\"", "/stack/not_ours"),
            ("reason=\"martian\"", "/stack/martians"),
            ("reason=\"source_routed\"", "/stack/source_routed"),
            ("reason=\"option_refused\"", "/stack/options_refused"),
            ("reason=\"filter\"", "/stack/filtered"),
            ("reason=\"outside_window\"", "/stack/unacceptable"),
            ("reason=\"old_timestamp\"", "/stack/paws"),
            ("reason=\"no_memory\"", "/stack/no_memory"),
        ],
    ),
    counter(
        "fragments",
        "IP fragments.",
        &[
            ("direction=\"received\"", "/stack/fragments_received"),
            ("direction=\"sent\"", "/stack/fragments_sent"),
        ],
    ),
    counter(
        "packets_fragmented",
        "Packets sent in fragments.",
        &[("", "/stack/packets_fragmented")],
    ),
    counter(
        "packets_reassembled",
        "Packets put together from fragments.",
        &[("", "/stack/packets_reassembled")],
    ),
    counter(
        "reassemblies_failed",
        "Packets in fragments that never became whole.",
        &[
            ("reason=\"late\"", "/stack/reassemblies_late"),
            ("reason=\"refused\"", "/stack/reassemblies_refused"),
            ("reason=\"evicted\"", "/stack/reassemblies_evicted"),
        ],
    ),
    gauge(
        "packets_in_fragments",
        "Packets that wait for fragments.",
        &[("", "/packets_in_fragments")],
    ),
    gauge(
        "packets_in_fragments_bytes",
        "Memory that packets take which wait for fragments.",
        &[("", "/packets_in_fragments_bytes")],
    ),
    counter(
        "segments_out_of_order",
        "Segments kept until what is missing came.",
        &[("", "/stack/out_of_order")],
    ),
    counter(
        "segments_landed",
        "Segments whose payload the NIC put where it is read.",
        &[("", "/stack/landed")],
    ),
    counter(
        "across_bytes",
        "Bytes from one session of the stack to another without segments.",
        &[("", "/stack/across_bytes")],
    ),
    counter(
        "segments_retransmitted",
        "Segments sent again.",
        &[("", "/stack/retransmitted")],
    ),
    counter(
        "retransmission_timeouts",
        "Retransmission timeouts (RFC 6298).",
        &[("", "/stack/timeouts")],
    ),
    counter(
        "recoveries",
        "Repairs of losses that no timeout began.",
        &[("", "/stack/recoveries")],
    ),
    counter(
        "recoveries_undone",
        "Reductions of a window that turned out needless.",
        &[("", "/stack/undone")],
    ),
    counter(
        "ecn_sessions",
        "Sessions that were established with explicit congestion notification (RFC 3168).",
        &[("", "/stack/ecn_sessions")],
    ),
    counter(
        "accurate_ecn_sessions",
        "Those among them in which both ends count marks (RFC 9768).",
        &[("", "/stack/accurate_ecn_sessions")],
    ),
    counter(
        "accurate_ecn_marks_reported",
        "Marked packets that peers have told of in such sessions.",
        &[("", "/stack/accurate_ecn_reported")],
    ),
    counter(
        "ecn_marks_received",
        "Data segments that a router marked instead of dropping them.",
        &[("", "/stack/ecn_ce_received")],
    ),
    counter(
        "ecn_reductions",
        "Windows lowered because a peer echoed a mark.",
        &[("", "/stack/ecn_reductions")],
    ),
    counter(
        "tail_probes",
        "Probes for a loss at the end of a flight (RFC 8985).",
        &[("", "/stack/tail_probes")],
    ),
    counter(
        "delayed_acknowledgments",
        "Delayed acknowledgments whose time ran out.",
        &[("", "/stack/delayed_acks")],
    ),
    counter(
        "challenge_acknowledgments",
        "Challenges (RFC 5961).",
        &[("", "/stack/challenges")],
    ),
    counter(
        "sessions_opened",
        "Sessions that were established.",
        &[("", "/stack/opened")],
    ),
    counter(
        "resets",
        "Resets that ended a session, and resets sent.",
        &[
            ("direction=\"received\"", "/stack/resets_received"),
            ("direction=\"sent\"", "/stack/resets_sent"),
        ],
    ),
    counter(
        "listen_overflows",
        "SYNs dropped because a listener's queue was full.",
        &[("", "/stack/listen_overflows")],
    ),
    counter(
        "syn_cookies",
        "SYN cookies sent, and those that came back good.",
        &[
            ("event=\"sent\"", "/stack/cookies_sent"),
            ("event=\"accepted\"", "/stack/cookies_accepted"),
        ],
    ),
    counter(
        "paths_shrunk",
        "Paths that turned out to take smaller packets (RFC 8201).",
        &[("", "/stack/paths_shrunk")],
    ),
    counter(
        "datagrams",
        "UDP datagrams, by what became of them.",
        &[
            ("event=\"received\"", "/stack/datagrams_received"),
            ("event=\"sent\"", "/stack/datagrams_sent"),
            ("event=\"dropped\"", "/stack/datagrams_dropped"),
        ],
    ),
    counter(
        "session_searches",
        "Searches for a segment's session.",
        &[("", "/stack/searches")],
    ),
    counter(
        "session_search_hits",
        "Those that the local store's tags answered.",
        &[("", "/stack/search_hits")],
    ),
    counter(
        "applications_cut_off",
        "Applications cut off because they broke the protocol.",
        &[("", "/applications_cut_off")],
    ),
];

/// Metrics of each application, labelled with its process and user.
static APPLICATION_FAMILIES: &[Family] = &[
    gauge(
        "application_sockets",
        "Sockets that an application has.",
        &[("", "/sockets")],
    ),
    counter(
        "application_requests",
        "What an application asked for.",
        &[("", "/requests")],
    ),
    counter(
        "application_events",
        "Notifications to an application.",
        &[("", "/events")],
    ),
    counter(
        "application_sent_bytes",
        "Payload that an application sent.",
        &[("", "/sent_bytes")],
    ),
    counter(
        "application_received_bytes",
        "Payload that an application received.",
        &[("", "/received_bytes")],
    ),
    gauge(
        "application_buffer_bytes",
        "Buffers of the stack that an application's sessions hold.",
        &[("", "/buffer_bytes")],
    ),
    gauge(
        "application_ring_sockets",
        "Sockets of an application's programs whose bytes pass by rings.",
        &[
            ("kind=\"session\"", "/rings/sessions"),
            ("kind=\"datagram\"", "/rings/datagram_sockets"),
        ],
    ),
    counter(
        "application_ring_requests",
        "Requests of an application's programs for rings, by their outcome.",
        &[
            ("outcome=\"granted\"", "/rings/granted"),
            ("outcome=\"put_off\"", "/rings/put_off"),
            ("outcome=\"use\"", "/rings/refused_use"),
            ("outcome=\"limit\"", "/rings/refused_limit"),
            ("outcome=\"memory\"", "/rings/refused_memory"),
        ],
    ),
];

/// Metrics of each link of a bond, labelled with its interface.
static LINK_FAMILIES: &[Family] = &[counter(
    "link_frames_sent",
    "Frames of the stack that left by a link of a bond.",
    &[("", "/frames_sent")],
)];

/// Metrics of each peer of a tunnel, labelled with its public key.
static PEER_FAMILIES: &[Family] = &[
    counter(
        "peer_received_bytes",
        "Bytes of packets that came from a peer of a tunnel.",
        &[("", "/rx_bytes")],
    ),
    counter(
        "peer_sent_bytes",
        "Bytes of packets to a peer of a tunnel.",
        &[("", "/tx_bytes")],
    ),
    counter(
        "peer_packets_dropped",
        "Datagrams and packets of a peer of a tunnel that led to nothing.",
        &[("", "/dropped")],
    ),
    gauge(
        "peer_handshake_age_seconds",
        "Since the last handshake with a peer of a tunnel.",
        &[("", "/handshake_age_s")],
    ),
];

#[cfg(test)]
mod tests;

//! An engine's status as a summary for people.
//!
//! Must stay true: a number that the status lacks is 0, since the engine may be older than the
//! program that asks it.

use crate::capture::{is_within, parse_prefix};
use serde_json::Value;
use std::net::{IpAddr, SocketAddr};

/// The status (the JSON of [`crate::sock::client::status_of_all`]) as names and what is
/// said of them.
#[must_use]
pub fn facts(status: &Value) -> Vec<(&'static str, String)> {
    let mut facts = Vec::new();
    let number = |value: &Value| value.as_u64().unwrap_or_default();
    let text = |value: &Value| {
        let parts = value.as_array().into_iter().flatten();
        let parts: Vec<&str> = parts.filter_map(Value::as_str).collect();
        parts.join(" ")
    };
    let (stack, engine) = (&status["stack"], &status["engine"]);
    facts.push(("addresses", text(&status["addresses"]).to_string()));
    facts.push((
        "sessions",
        format!(
            "{} live, {} opened, {} resets received; {} of {} searches found in the \
         local store",
            number(&status["sessions"]),
            number(&stack["opened"]),
            number(&stack["resets_received"]),
            number(&stack["search_hits"]),
            number(&stack["searches"]),
        ),
    ));
    facts.push((
        "memory",
        format!(
            "{} of {} bytes in buffers; {} refusals or ends for lack of it",
            number(&status["memory_bytes"]),
            number(&status["memory_bytes_max"]),
            number(&stack["no_memory"]),
        ),
    ));
    facts.push((
        "losses",
        format!(
            "{} segments sent again, {} repairs ({} needless), {} timeouts, \
         {} probes",
            number(&stack["retransmitted"]),
            number(&stack["recoveries"]),
            number(&stack["undone"]),
            number(&stack["timeouts"]),
            number(&stack["tail_probes"]),
        ),
    ));
    facts.push((
        "marks (ECN)",
        format!(
            "{} sessions ({} accurate), {} marks received, {} windows lowered by a \
         peer's echo",
            number(&stack["ecn_sessions"]),
            number(&stack["accurate_ecn_sessions"]),
            number(&stack["ecn_ce_received"]),
            number(&stack["ecn_reductions"]),
        ),
    ));
    facts.push((
        "frames",
        format!(
            "{} received, {} segments sent, {} malformed, {} wrong checksums",
            number(&stack["frames_received"]),
            number(&stack["segments_sent"]),
            number(&stack["malformed"]),
            number(&stack["bad_checksums"]),
        ),
    ));
    facts.push((
        "fragments",
        format!(
            "{} received, {} packets put together, {} not ({} late); \
         {} packets sent in {}",
            number(&stack["fragments_received"]),
            number(&stack["packets_reassembled"]),
            number(&stack["reassemblies_late"])
                + number(&stack["reassemblies_refused"])
                + number(&stack["reassemblies_evicted"]),
            number(&stack["reassemblies_late"]),
            number(&stack["packets_fragmented"]),
            number(&stack["fragments_sent"]),
        ),
    ));
    facts.extend(nic_facts(&status["nic"]));
    // A new engine has had no round to divide by.
    let rounds = number(&engine["rounds"]).max(1);
    facts.push((
        "rounds",
        format!(
            "{rounds} with work, {} idle, {} sleeps; cycles a round: receive {}, \
         applications {}, transmit {}",
            number(&engine["idle_rounds"]),
            number(&engine["sleeps"]),
            number(&engine["receive_cycles"]) / rounds,
            number(&engine["applications_cycles"]) / rounds,
            number(&engine["transmit_cycles"]) / rounds,
        ),
    ));
    // The numbers of a single engine are those above.
    let engines = status["engines"].as_array().into_iter().flatten();
    for status in engines.filter(|_| number(&status["engine_count"]) > 1) {
        let (stack, engine) = (&status["stack"], &status["engine"]);
        facts.push((
            "engine",
            format!(
                "{}: {} sessions, {} opened, {} frames received, {} rounds; {} \
             frames handed over, {} taken, {} lost",
                status["engine_index"],
                number(&status["sessions"]),
                number(&stack["opened"]),
                number(&stack["frames_received"]),
                number(&engine["rounds"]),
                number(&engine["handed_over"]),
                number(&engine["handed_taken"]),
                number(&engine["handed_lost"]),
            ),
        ));
    }
    let of = |key: &str| status[key].as_array().into_iter().flatten();
    for (name, key, what) in [
        ("listener", "listeners", "address"),
        ("peers", "peer_prefixes", "prefix"),
    ] {
        for holder in of(key).take(HOLDERS_MAX) {
            let said = format!(
                "{}, {} sessions, {} bytes in buffers",
                holder[what].as_str().unwrap_or_default(),
                number(&holder["sessions"]),
                number(&holder["buffer_bytes"]),
            );
            facts.push((name, said));
        }
    }
    for application in status["applications"].as_array().into_iter().flatten() {
        facts.push((
            "application",
            format!(
                "pid {}, {} sockets, {} bytes sent, {} received, {} in buffers",
                application["pid"],
                number(&application["sockets"]),
                number(&application["sent_bytes"]),
                number(&application["received_bytes"]),
                number(&application["buffer_bytes"]),
            ) + &rings_of(&application["rings"]),
        ));
    }
    facts
}

/// The rings of the programs that an application supervises; nothing if it supervises none.
fn rings_of(rings: &Value) -> String {
    let number = |key: &str| rings[key].as_u64().unwrap_or_default();
    let refused = ["refused_use", "refused_limit", "refused_memory"].map(number);
    let [by_use, by_limit, by_memory] = refused;
    // No sum: an application may have written any numbers.
    if number("granted") == 0 && number("put_off") == 0 && refused == [0; 3] {
        return String::new();
    }
    format!(
        "; programs' rings: {} sessions, {} datagram sockets, {} granted, {} put off; refused: {} \
         by their use, {} by limits, {} for lack of memory",
        number("sessions"),
        number("datagram_sockets"),
        number("granted"),
        number("put_off"),
        by_use,
        by_limit,
        by_memory,
    )
}

/// Links of a bond, and peers of a tunnel.
fn nic_facts(nic: &Value) -> Vec<(&'static str, String)> {
    let number = |value: &Value| value.as_u64().unwrap_or_default();
    let word = |value: &Value| value.as_str().unwrap_or("unknown").to_owned();
    let links = nic["links"].as_array().into_iter().flatten().map(|link| {
        let is = |key: &str| link[key].as_bool().unwrap_or_default();
        let use_of = match (is("is_used"), is("is_up")) {
            (true, _) => "in use",
            (false, true) => "up, not in use",
            (false, false) => "down",
        };
        let mut said = format!(
            "{} {use_of}, {} frames sent",
            word(&link["name"]),
            number(&link["frames_sent"]),
        );
        if let Some(state) = link["lacp_state"].as_str() {
            said += &format!(", LACP {state}, partner {}", word(&link["lacp_partner"]));
        }
        for (key, what) in [
            ("is_churned", ", the ends do not agree"),
            ("is_looped", ", it leads back here"),
        ] {
            said += if is(key) { what } else { "" };
        }
        ("link", said)
    });
    let peers = nic["peers"].as_array().into_iter().flatten().map(|peer| {
        let handshake = match peer["handshake_age_s"].as_u64() {
            Some(age_s) => format!("last handshake {age_s} s ago"),
            None => "no session".to_owned(),
        };
        let said = format!(
            "{} at {}, {handshake}, {} bytes received, {} sent, {} dropped",
            word(&peer["public_key"]),
            word(&peer["endpoint"]),
            number(&peer["rx_bytes"]),
            number(&peer["tx_bytes"]),
            number(&peer["dropped"]),
        );
        ("tunnel", said)
    });
    links.chain(peers.take(PEERS_MAX)).collect()
}

/// Peers of a tunnel of which a summary has lines.
const PEERS_MAX: usize = 32;
/// Listeners, and prefixes of peers, of which a summary has lines.
const HOLDERS_MAX: usize = 4;

/// Which sessions of a list are wanted: all conditions that are given have to hold.
#[derive(Debug, Clone, Default)]
pub struct SessionFilter {
    /// One of these states ([`STATES`]); none: any.
    pub states: Vec<String>,
    /// The port of either end.
    pub port: Option<u16>,
    /// The prefix of the peer's address ([`Self::prefix`]).
    pub prefix: Option<(IpAddr, u8)>,
    /// The process that has it.
    pub pid: Option<i32>,
}

impl SessionFilter {
    /// Parses a prefix, `ADDRESS/BITS` or an address alone.
    ///
    /// # Errors
    /// The fault.
    pub fn prefix(text: &str) -> Result<(IpAddr, u8), String> {
        parse_prefix(text)
    }

    /// True for a session, as [`crate::sock::client::sessions_of_all`] has it, that is wanted.
    #[must_use]
    pub fn matches(&self, session: &Value) -> bool {
        let end = |name: &str| session[name].as_str()?.parse::<SocketAddr>().ok();
        let (local, remote) = (end("local"), end("remote"));
        let state = session["state"].as_str().unwrap_or_default();
        let is_of = |port| {
            [local, remote]
                .iter()
                .flatten()
                .any(|end| end.port() == port)
        };
        let is_in = |(net, bits)| remote.is_some_and(|end| is_within(end.ip(), net, bits));
        let is_whose = |pid: i32| session["pid"].as_i64() == Some(pid.into());
        (self.states.is_empty() || self.states.iter().any(|it| it == state))
            && self.port.is_none_or(is_of)
            && self.prefix.is_none_or(is_in)
            && self.pid.is_none_or(is_whose)
    }
}

/// Sessions as lines for people under their heading, two each, as `ss -ti` has them, with the names
/// of their processes.
#[must_use]
pub fn session_lines(sessions: &[Value]) -> Vec<String> {
    let program = |pid: i64| {
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
        Some(format!("({})", name.trim_end()))
    };
    let mut lines = vec![session_heading()];
    lines.extend(lines_of(sessions, program));
    lines
}

/// The same without the heading; `program` names a process.
fn lines_of(sessions: &[Value], program: impl Fn(i64) -> Option<String>) -> Vec<String> {
    let number = |value: &Value| value.as_u64().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut lines = Vec::new();
    for session in sessions {
        let owner = session["pid"].as_i64().map_or(String::new(), |pid| {
            let name = program(pid).unwrap_or_default();
            format!(" pid={pid} {name}")
        });
        // Send-Q of ss(8) counts what is not acknowledged, too.
        lines.push(format!(
            "{:<12} {:>7} {:>7} {:>22} {:>22}{}",
            text(&session["state"]),
            number(&session["unread_bytes"]),
            number(&session["unsent_bytes"]) + number(&session["in_flight_bytes"]),
            text(&session["local"]),
            text(&session["remote"]),
            owner.trim_end(),
        ));
        let ms = |name: &str| number(&session[name]) as f64 / 1e3;
        // An older engine does not have the field.
        let mss = number(&session["mss_bytes"]).max(1);
        // ss(8) has windows in segments.
        let mut line = format!(
            "\t{} wscale:{},{} rto:{} rtt:{:.3}/{:.3} mss:{mss} pmtu:{} cwnd:{}",
            text(&session["congestion"]),
            number(&session["send_scale"]),
            number(&session["receive_scale"]),
            ms("timeout_us"),
            ms("rtt_us"),
            ms("rtt_variation_us"),
            number(&session["path_mtu_bytes"]),
            number(&session["window_bytes"]) / mss,
        );
        if let Some(threshold) = session["threshold_bytes"].as_u64() {
            line += &format!(" ssthresh:{}", threshold / mss);
        }
        line += &format!(
            " bytes_sent:{} bytes_acked:{} bytes_received:{}",
            number(&session["sent_bytes"]),
            number(&session["acked_bytes"]),
            number(&session["received_bytes"]),
        );
        if let Some(pacing) = session["pacing_bytes_per_s"].as_u64() {
            // ss(8) has it in bits.
            line += &format!(" pacing_rate:{}bps", pacing.saturating_mul(8));
        }
        for (name, key) in COUNTED {
            match number(&session[key]) {
                0 => {}
                count => line += &format!(" {name}:{count}"),
            }
        }
        line += &format!(
            " lastrcv:{} minrtt:{:.3}",
            number(&session["silent_ms"]),
            ms("rtt_min_us")
        );
        lines.push(line);
    }
    lines
}

/// The columns of [`session_lines`].
fn session_heading() -> String {
    format!(
        "{:<12} {:>7} {:>7} {:>22} {:>22} {}",
        "State", "Recv-Q", "Send-Q", "Local address:port", "Peer address:port", "Process"
    )
}

/// States of sessions in a list, as ss(8) names them.
pub const STATES: [&str; 9] = [
    "syn-sent",
    "syn-recv",
    "established",
    "fin-wait-1",
    "fin-wait-2",
    "close-wait",
    "closing",
    "last-ack",
    "time-wait",
];
/// Counters that a line has unless they are 0: the words of ss(8), and of the list.
const COUNTED: [(&str, &str); 9] = [
    ("unacked", "segments_unacked"),
    ("sacked", "segments_sacked"),
    ("lost", "segments_lost"),
    ("retrans", "retransmits"),
    ("backoff", "timeouts"),
    ("snd_wnd", "peer_window_bytes"),
    ("rcv_wnd", "receive_window_bytes"),
    ("notsent", "unsent_bytes"),
    ("buffers", "buffer_bytes"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn links_and_peers_have_lines() {
        let status = json!({"nic": {
            "links": [
                {"name": "eth0", "is_up": true, "is_used": true, "frames_sent": 7,
                 "lacp_state": "distributing", "lacp_partner": "02:00:00:00:00:01"},
                {"name": "eth1", "is_up": false, "is_looped": true},
            ],
            "peers": [
                {"public_key": "abc=", "endpoint": "[::]:9", "handshake_age_s": 5,
                 "rx_bytes": 10, "tx_bytes": 20, "dropped": 3},
                {"public_key": "def=", "endpoint": null, "handshake_age_s": null},
            ],
        }});
        let said = nic_facts(&status["nic"]);
        let lines: Vec<String> = said
            .into_iter()
            .map(|(of, line)| format!("{of} {line}"))
            .collect();
        for (line, expected) in lines.iter().zip([
            "link eth0 in use, 7 frames sent, LACP distributing, partner 02:00:00:00:00:01",
            "link eth1 down, 0 frames sent, it leads back here",
            "tunnel abc= at [::]:9, last handshake 5 s ago, 10 bytes received, 20 sent, 3 dropped",
            "tunnel def= at unknown, no session, 0 bytes received, 0 sent, 0 dropped",
        ]) {
            assert_eq!(line, expected);
        }
        assert_eq!(lines.len(), 4);
        assert!(nic_facts(&Value::Null).is_empty());
    }

    #[test]
    fn an_application_that_supervises_programs_says_who_has_rings() {
        let rings = json!({
            "sessions": 3, "datagram_sockets": 2, "granted": 9, "put_off": 4,
            "refused_use": 1, "refused_limit": 0, "refused_memory": 7,
        });
        assert_eq!(
            rings_of(&rings),
            "; programs' rings: 3 sessions, 2 datagram sockets, 9 granted, 4 put off; refused: 1 \
             by their use, 0 by limits, 7 for lack of memory"
        );
        assert_eq!(rings_of(&json!({"sessions": 0, "granted": 0})), "");
        assert_eq!(rings_of(&Value::Null), "");
        let forged = json!({"granted": u64::MAX, "put_off": 1, "refused_use": u64::MAX});
        assert!(rings_of(&forged).contains("18446744073709551615 granted"));
    }

    #[test]
    fn sessions_are_chosen_by_all_conditions() {
        let session = json!({
            "local": "10.0.0.1:80", "remote": "192.0.2.9:5555", "state": "established", "pid": 7,
        });
        let wants = |change: &dyn Fn(&mut SessionFilter)| {
            let mut filter = SessionFilter::default();
            change(&mut filter);
            filter.matches(&session)
        };
        assert!(wants(&|_| {}));
        for port in [80, 5555] {
            assert!(wants(&|it| it.port = Some(port)));
        }
        assert!(!wants(&|it| it.port = Some(81)));
        let prefix = |text| SessionFilter::prefix(text).ok();
        assert!(wants(&|it| it.prefix = prefix("192.0.2.0/24")));
        assert!(!wants(&|it| it.prefix = prefix("10.0.0.0/8")), "the peer's");
        assert!(!wants(&|it| it.prefix = prefix("::/0")));
        assert!(wants(&|it| it.pid = Some(7)) && !wants(&|it| it.pid = Some(8)));
        assert!(wants(&|it| it.states = STATES.map(str::to_owned).to_vec()));
        assert!(!wants(&|it| it.states = vec!["time-wait".to_owned()]));
        assert!(SessionFilter::prefix("10.0.0.0/33").is_err());
    }

    #[test]
    fn lines_say_what_a_list_has_and_nothing_fails_for_what_it_lacks() {
        let session = json!({
            "local": "10.0.0.1:80", "remote": "192.0.2.9:5555", "state": "established", "pid": 7,
            "rtt_us": 1500, "mss_bytes": 1448, "window_bytes": 14_480, "retransmits": 3,
            "congestion": "cubic", "pacing_bytes_per_s": 1000,
        });
        let lines = lines_of(&[session, json!({})], |pid| Some(format!("(program{pid})")));
        assert_eq!(lines.len(), 4);
        assert!(
            lines[0].ends_with("192.0.2.9:5555 pid=7 (program7)"),
            "{}",
            lines[0]
        );
        for part in [
            "cubic ",
            "rtt:1.500/",
            "cwnd:10 ",
            "retrans:3",
            "pacing_rate:8000bps",
        ] {
            assert!(lines[1].contains(part), "{part}: {}", lines[1]);
        }
        assert!(!lines[1].contains("ssthresh") && !lines[1].contains("lost"));
    }
}

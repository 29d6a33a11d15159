//! An engine's status as a summary for people.
//!
//! Must stay true: a number that the status lacks is 0, since the engine may be older than the
//! program that asks it.

use serde_json::Value;

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
            ),
        ));
    }
    facts
}

/// Listeners, and prefixes of peers, of which a summary has lines.
const HOLDERS_MAX: usize = 4;

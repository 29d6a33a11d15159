//! The status of running engines, as the list of servers and the endpoint for metrics have it.
//!
//! Why here: the loop never waits and has no lock, so the process asks itself over its own control
//! socket, as `net status` does. Must stay true: nothing is asked before a reader asks.

use crate::metrics;
use crate::sock::client::status_of_all;
use serde_json::{Value, json};
use sidecore_attach::Trust;
use sidecore_status::{Kind, Status};
use std::path::Path;
use std::sync::Arc;

/// The status of the engines that serve at `socket`.
#[must_use]
pub fn status(socket: &Path) -> Arc<Status> {
    // The process may leave its directory.
    let socket = std::path::absolute(socket).unwrap_or_else(|_| socket.to_owned());
    let name = socket.display().to_string();
    let fields = move || {
        let status = status_of_all(&socket, &Trust::default());
        status.map_or(Value::Null, |status| fields(&status))
    };
    Status::new(Kind::Stack, name, fields)
        .with_metrics(|fields| metrics::metrics(&fields["status"]))
}

fn fields(status: &Value) -> Value {
    let addresses = status["addresses"].as_array().into_iter().flatten();
    let addresses: Vec<&str> = addresses.filter_map(Value::as_str).collect();
    let engines = status["engines"].as_array().into_iter().flatten();
    let lists = engines.filter_map(|engine| engine["session_list"].as_array());
    let sessions: Vec<&Value> = lists.flatten().collect();
    let dropped = DROPS
        .iter()
        .filter_map(|name| status["stack"][*name].as_u64());
    json!({
        "address": addresses.join(" "),
        "sessions": sessions,
        "session_count": status["sessions"],
        "drops": dropped.sum::<u64>(),
        "status": status,
    })
}

/// Counters of frames that led to nothing.
const DROPS: [&str; 7] = [
    "malformed",
    "bad_checksums",
    "martians",
    "source_routed",
    "options_refused",
    "no_memory",
    "listen_overflows",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_has_the_sessions_of_all_engines() {
        let session = |port: u16| json!({"local": format!("10.0.0.1:{port}"), "rtt_us": 5});
        let status = json!({
            "addresses": ["10.0.0.1/24", "fd00::1/64"],
            "sessions": 2,
            "stack": {"malformed": 3, "no_memory": 4, "frames_received": 100},
            "engines": [{"session_list": [session(1)]}, {"session_list": [session(2)]}],
        });
        let fields = fields(&status);
        assert_eq!(fields["address"], "10.0.0.1/24 fd00::1/64");
        assert_eq!(fields["sessions"], json!([session(1), session(2)]));
        assert_eq!(
            (&fields["drops"], &fields["session_count"]),
            (&json!(7), &json!(2))
        );
    }
}

//! A daemon's status, as the list of servers and the endpoint for metrics have it.
//!
//! Why here: the process asks itself over its own socket, as `sidecore top` does, so that a control
//! thread that hangs is seen to. Must stay true: nothing is asked before a reader asks.

use crate::server::Status;
use serde_json::{Value, json};
use sidecore_attach::Trust;
use sidecore_status::Kind;
use sidecore_status::metrics::{Metric, Unit};
use std::path::Path;
use std::sync::Arc;

/// The status of the daemon at `socket`.
#[must_use]
pub fn status(socket: &Path) -> Arc<sidecore_status::Status> {
    // The process may leave its directory.
    let socket = std::path::absolute(socket).unwrap_or_else(|_| socket.to_owned());
    let name = socket.display().to_string();
    let fields = move || {
        let status = super::status(&socket, &Trust::default());
        status.map_or(Value::Null, |status| fields(&status))
    };
    sidecore_status::Status::new(Kind::Daemon, name, fields).with_metrics(metrics)
}

fn fields(status: &Status) -> Value {
    let engines = status.engines.iter().map(|engine| {
        json!({
            "id": engine.engine,
            "cpu": engine.cpu,
            "state": engine.state,
            "busy_ns": engine.busy_ns,
            "jobs": engine.calls,
            "failures": engine.failures,
        })
    });
    json!({
        "engines": engines.collect::<Vec<_>>(),
        "clients": status.clients.len(),
        "jobs_total": status.engines.iter().map(|engine| engine.calls).sum::<u64>(),
        "attached_total": status.attached_total,
        "refused_total": status.refused_total,
        "shared_bytes": status.users.iter().map(|user| user.bytes).sum::<u64>(),
    })
}

fn metrics(fields: &Value) -> Vec<Metric> {
    let mut jobs = Metric::counter("daemon_engine_jobs", "Requests that an engine served.");
    let mut failures = Metric::counter("daemon_engine_failures", "Of these, those that failed.");
    let help = "Time that an engine spent serving.";
    let mut busy = Metric::counter("daemon_engine_busy", help).in_unit(Unit::Seconds);
    for engine in fields["engines"].as_array().into_iter().flatten() {
        let (id, cpu) = (engine["id"].to_string(), engine["cpu"].to_string());
        let labels = [("engine", id.as_str()), ("cpu", cpu.as_str())];
        let busy_s = engine["busy_ns"]
            .as_f64()
            .map_or(Value::Null, |ns| json!(ns / 1e9));
        busy = busy.sample(&labels, &busy_s);
        jobs = jobs.sample(&labels, &engine["jobs"]);
        failures = failures.sample(&labels, &engine["failures"]);
    }
    let attached = "Clients that ever attached.";
    let refused = "Connections that were refused.";
    let shared = "Memory that clients share with the daemon.";
    vec![
        busy,
        jobs,
        failures,
        Metric::gauge("daemon_clients", "Attached clients.").sample(&[], &fields["clients"]),
        Metric::counter("daemon_attached", attached).sample(&[], &fields["attached_total"]),
        Metric::counter("daemon_refused", refused).sample(&[], &fields["refused_total"]),
        Metric::gauge("daemon_shared", shared)
            .in_unit(Unit::Bytes)
            .sample(&[], &fields["shared_bytes"]),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use sidecore_status::metrics::strict;

    #[test]
    fn engines_are_labels_and_units_are_seconds() {
        let fields = || {
            json!({
                "engines": [{"id": 0, "cpu": 3, "busy_ns": 1_500_000_000_u64, "jobs": 7,
                    "failures": 0}],
                "clients": 1, "attached_total": 2, "refused_total": 0, "shared_bytes": 4096,
            })
        };
        let status = sidecore_status::Status::new(Kind::Daemon, "d", fields).with_metrics(metrics);
        let samples = strict::parse(&status.metrics()).expect("OpenMetrics");
        let busy = "sidecore_daemon_engine_busy_seconds_total";
        let (_, labels, value) = samples.iter().find(|(name, ..)| name == busy).expect("it");
        assert_eq!(*value, 1.5);
        let expected = [("engine", "0"), ("cpu", "3")].map(|(a, b)| (a.to_owned(), b.to_owned()));
        assert_eq!(*labels, expected);
        assert_eq!(samples.len(), 8);
    }
}

//! A daemon's status as lines for a terminal.
//!
//! Must stay true: names that other processes chose never reach the terminal as control characters.

use super::status::{ClientStatus, EngineState, Status};
use sidecore_sys::text::printable;

impl Status {
    /// The same for people at a terminal: engines, users, clients, a line each.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        lines(self)
    }
}

fn lines(status: &Status) -> Vec<String> {
    let busy = status
        .engines
        .iter()
        .filter(|engine| engine.state == EngineState::Busy)
        .count();
    let mut lines = vec![
        format!(
            "sidecore daemon {} at {}, up {}, grace {} ms",
            status.pid,
            printable(&status.socket),
            duration(status.uptime_ms),
            status.grace_us as f64 / 1000.0
        ),
        format!(
            "engines: {}, busy: {busy}; clients: {} ({} ever, {} refused); kernels: {}",
            status.engines.len(),
            status.clients.len(),
            status.attached_total,
            status.refused_total,
            printable(&status.kernels.join(" "))
        ),
        String::new(),
        format!(
            "{:>6} {:>4} {:<8} {:>6} {:>6} {:>12} {:>8} {:>7} {:>11} {:>8}",
            "ENGINE",
            "CORE",
            "STATE",
            "CLIENT",
            "BUSY%",
            "CALLS",
            "FAILED",
            "STALLS",
            "STALLED ms",
            "SLEEPS"
        ),
    ];
    engines(status, &mut lines);
    lines.push(String::new());
    if !status.users.is_empty() {
        users(status, &mut lines);
        lines.push(String::new());
    }
    if status.clients.is_empty() {
        lines.push("no client is attached".into());
    } else {
        clients(status, &mut lines);
    }
    lines
}

fn engines(status: &Status, lines: &mut Vec<String>) {
    for engine in &status.engines {
        let state = match engine.state {
            EngineState::Busy => "busy",
            EngineState::Polling => "polling",
            EngineState::Asleep => "asleep",
            EngineState::Orphaned => "orphaned",
        };
        let client = engine
            .client
            .map_or_else(|| "-".into(), |client| client.to_string());
        lines.push(format!(
            "{:>6} {:>4} {state:<8} {client:>6} {:>6.1} {:>12} {:>8} {:>7} {:>11.1} {:>8}",
            engine.engine,
            engine.cpu,
            engine.busy_percent,
            engine.calls,
            engine.failures,
            engine.stalls,
            engine.stall_us as f64 / 1000.0,
            engine.sleeps
        ));
    }
    for engine in status.engines.iter().filter(|it| it.left_behind > 0) {
        let (threads, verb) = match engine.left_behind {
            1 => ("thread", "has"),
            _ => ("threads", "have"),
        };
        lines.push(format!(
            "engine {}: {} {threads} of kernels that {verb} not returned; their clients are gone",
            engine.engine, engine.left_behind
        ));
    }
}

fn users(status: &Status, lines: &mut Vec<String>) {
    lines.push(format!(
        "{:>6} {:>8} {:>11} {:>11}",
        "USER", "SEGMENTS", "MEMORY MiB", "AT MOST"
    ));
    let mib = |bytes: u64| format!("{:.1}", bytes as f64 / f64::from(1 << 20));
    for user in &status.users {
        lines.push(format!(
            "{:>6} {:>8} {:>11} {:>11}",
            user.uid,
            user.segments,
            mib(user.bytes),
            user.bytes_max.map_or_else(|| "-".into(), mib),
        ));
    }
}

fn clients(status: &Status, lines: &mut Vec<String>) {
    lines.push(format!(
        "{:>6} {:>8} {:>6} {:<16} {:>6} {:>12} {:>7} {:>10} {:>9} {:<16}",
        "CLIENT",
        "PID",
        "USER",
        "PROGRAM",
        "SHARE%",
        "CALLS",
        "RUNNING",
        "BUSY ms",
        "ARENA MiB",
        "WIDTHS"
    ));
    for client in &status.clients {
        lines.push(format!(
            "{:>6} {:>8} {:>6} {:<16} {:>6.1} {:>12} {:>7} {:>10.1} {:>9.1} {:<16}{}",
            client.client,
            // Of another PID namespace.
            Some(client.pid)
                .filter(|&pid| pid > 0)
                .map_or_else(|| "-".into(), |pid| pid.to_string()),
            client.uid,
            printable(&client.command),
            client.share_percent,
            client.calls,
            client.in_flight,
            client.busy_us as f64 / 1000.0,
            client.arena_bytes as f64 / f64::from(1 << 20),
            widths(client),
            if client.locked {
                ""
            } else {
                " memory not locked"
            }
        ));
    }
}

/// A client's widths: each with its part of the samples that found it running.
fn widths(client: &ClientStatus) -> String {
    let total: u64 = client.widths.iter().sum();
    let seen = client
        .widths
        .iter()
        .enumerate()
        .filter(|(_, looks)| **looks > 0);
    let parts = seen.map(|(index, &looks)| {
        let percent = 100.0 * looks as f64 / total.max(1) as f64;
        format!("{}:{percent:.0}%", index + 1)
    });
    let text = parts.collect::<Vec<_>>().join(" ");
    if text.is_empty() { "-".into() } else { text }
}

fn duration(ms: u64) -> String {
    let s = ms / 1000;
    match s {
        0..60 => format!("{s} s"),
        60..3600 => format!("{} min {} s", s / 60, s % 60),
        _ => format!("{} h {} min", s / 3600, s / 60 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_short() {
        assert_eq!(duration(59_999), "59 s");
        assert_eq!(duration(61_000), "1 min 1 s");
        assert_eq!(duration(7_260_000), "2 h 1 min");
    }
}

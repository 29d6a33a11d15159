//! A daemon's status for people: engines, users, clients.
//!
//! Must stay true: names that other processes chose never reach the terminal as control characters.

use super::status::{ClientStatus, EngineState, Status};
use sidecore_sys::text::printable;
use sidecore_terminal::{Column, Table, Text};

impl Status {
    /// The whole status: lines and a table each of engines, users and clients.
    #[must_use]
    pub fn text(&self) -> Text {
        let mut text = Text::new();
        text.lines(self.head());
        for table in self.tables() {
            text.line("");
            text.table(table);
        }
        text.line("");
        text.lines(self.remarks());
        text
    }

    /// Two lines: the daemon, and how many engines and clients it has.
    #[must_use]
    pub fn head(&self) -> Vec<String> {
        let is_busy = |it: &&super::status::EngineStatus| it.state == EngineState::Busy;
        vec![
            format!(
                "sidecore daemon {} at {}, up {}, polls {} ms before sleeping",
                self.pid,
                printable(&self.socket),
                duration(self.uptime_ms),
                self.grace_us as f64 / 1000.0
            ),
            format!(
                "engines: {}, busy: {}; clients: {} ({} ever, {} refused)",
                self.engines.len(),
                self.engines.iter().filter(is_busy).count(),
                self.clients.len(),
                self.attached_total,
                self.refused_total,
            ),
        ]
    }

    /// Engines, and users and clients where there are any.
    #[must_use]
    pub fn tables(&self) -> Vec<Table> {
        let tables = [engines(self), users(self), clients(self)];
        tables.into_iter().filter(|it| !it.is_empty()).collect()
    }

    /// The kernels, a row each without a heading: name, version, hash.
    #[must_use]
    pub fn kernels_table(&self) -> Table {
        let columns = [
            Column::left("name"),
            Column::right("version"),
            Column::left("hash"),
        ];
        let mut table = Table::headless(columns);
        for kernel in &self.served {
            let version = kernel.version.to_string();
            table.row([kernel.name.clone(), version, kernel.hash.clone()]);
        }
        table
    }

    /// Facts outside the tables: threads that were left behind, the reasons of failures, memory
    /// that is not locked, the kernels.
    #[must_use]
    pub fn remarks(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for engine in self.engines.iter().filter(|it| it.left_behind > 0) {
            let (threads, verb) = match engine.left_behind {
                1 => ("thread", "has"),
                _ => ("threads", "have"),
            };
            lines.push(format!(
                "engine {}: {} {threads} of kernels that {verb} not returned; their clients have \
                 ended",
                engine.engine, engine.left_behind
            ));
        }
        for client in &self.clients {
            if let Some(reason) = &client.last_failure {
                let (program, reason) = (printable(&client.command), printable(reason));
                let number = client.client;
                lines.push(format!(
                    "client {number} ({program}): last failure: {reason}"
                ));
            }
        }
        for client in self.clients.iter().filter(|it| !it.locked) {
            lines.push(format!("client {}: memory not locked", client.client));
        }
        if self.clients.is_empty() {
            lines.push("no client is attached".into());
        }
        lines.push(format!("kernels: {}", printable(&self.kernels.join(" "))));
        lines
    }
}

fn engines(status: &Status) -> Table {
    let mut table = Table::new([
        Column::right("ENGINE"),
        Column::right("CORE").rank(1),
        Column::left("STATE"),
        Column::right("CLIENT").rank(2),
        Column::right("BUSY%"),
        Column::right("CALLS").rank(1),
        Column::right("FAILED").rank(3),
        Column::right("STALLS").rank(4),
        Column::right("STALLED ms").rank(5),
        Column::right("SLEEPS").rank(6),
    ]);
    for engine in &status.engines {
        let state = match engine.state {
            EngineState::Busy => "busy",
            EngineState::Polling => "polling",
            EngineState::Asleep => "asleep",
            EngineState::Orphaned => "orphaned",
        };
        let client = engine.client.map(|client| client.to_string());
        table.row([
            engine.engine.to_string(),
            engine.cpu.to_string(),
            state.to_owned(),
            client.unwrap_or_else(|| "-".into()),
            format!("{:.1}", engine.busy_percent),
            engine.calls.to_string(),
            engine.failures.to_string(),
            engine.stalls.to_string(),
            format!("{:.1}", engine.stall_us as f64 / 1000.0),
            engine.sleeps.to_string(),
        ]);
    }
    table
}

fn users(status: &Status) -> Table {
    let mut table = Table::new([
        Column::right("USER"),
        Column::right("SEGMENTS").rank(2),
        Column::right("MEMORY MiB"),
        Column::right("LIMIT MiB").rank(1),
    ]);
    for user in &status.users {
        table.row([
            user.uid.to_string(),
            user.segments.to_string(),
            mib(user.bytes),
            user.bytes_max.map_or_else(|| "-".into(), mib),
        ]);
    }
    table
}

fn clients(status: &Status) -> Table {
    let mut table = Table::new([
        Column::right("CLIENT").rank(3),
        Column::right("PID"),
        Column::right("USER").rank(4),
        Column::left("PROGRAM"),
        Column::right("SHARE%"),
        Column::right("CALLS").rank(1),
        Column::right("RUNNING").rank(2),
        Column::right("WAITING").rank(2),
        Column::right("FAILED").rank(3),
        Column::right("BUSY ms").rank(5),
        Column::right("ARENA MiB").rank(6),
        Column::left("ENGINES A LOOP").rank(7),
    ]);
    for client in &status.clients {
        // 0: of another PID namespace.
        let pid = Some(client.pid).filter(|&pid| pid > 0);
        table.row([
            client.client.to_string(),
            pid.map_or_else(|| "-".into(), |pid| pid.to_string()),
            client.uid.to_string(),
            client.command.clone(),
            format!("{:.1}", client.share_percent),
            client.calls.to_string(),
            client.in_flight.to_string(),
            client.waiting.to_string(),
            client.failures.to_string(),
            format!("{:.1}", client.busy_us as f64 / 1000.0),
            mib(client.arena_bytes),
            widths(client),
        ]);
    }
    table
}

fn mib(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / f64::from(1 << 20))
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

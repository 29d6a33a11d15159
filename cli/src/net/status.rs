//! `sidecore net status`.

use crate::{Outcome, output};
use anyhow::Result;
use sidecore_net::sock::client::status_of_all;
use sidecore_net::sock::control::find_socket;
use std::path::PathBuf;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The stack's socket.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    #[command(flatten)]
    server: crate::server::Server,
    /// Everything, as one JSON object.
    #[arg(long)]
    json: bool,
    /// Everything, in the text format of Prometheus.
    #[arg(long, conflicts_with = "json")]
    metrics: bool,
}

impl Args {
    pub(crate) fn run(self) -> Result<Outcome> {
        let trust = self.server.trust();
        let socket = self.socket.unwrap_or_else(|| find_socket(&trust));
        let status = status_of_all(&socket, &trust)?;
        if self.json {
            output::json(&status)?;
            return Ok(Outcome::Done);
        }
        if self.metrics {
            output::text(sidecore_net::metrics::text(&status).trim_end())?;
            return Ok(Outcome::Done);
        }
        let number = |value: &serde_json::Value| value.as_u64().unwrap_or_default();
        let text = |value: &serde_json::Value| {
            let parts = value.as_array().into_iter().flatten();
            let parts: Vec<&str> = parts.filter_map(serde_json::Value::as_str).collect();
            parts.join(" ")
        };
        let (stack, engine) = (&status["stack"], &status["engine"]);
        output::line(&format!("addresses      {}", text(&status["addresses"])))?;
        output::line(&format!(
            "sessions       {} live, {} opened, {} resets received; {} of {} searches found in the \
             local store",
            number(&status["sessions"]),
            number(&stack["opened"]),
            number(&stack["resets_received"]),
            number(&stack["search_hits"]),
            number(&stack["searches"]),
        ))?;
        output::line(&format!(
            "losses         {} segments sent again, {} repairs ({} needless), {} timeouts, \
             {} probes",
            number(&stack["retransmitted"]),
            number(&stack["recoveries"]),
            number(&stack["undone"]),
            number(&stack["timeouts"]),
            number(&stack["tail_probes"]),
        ))?;
        output::line(&format!(
            "marks (ECN)    {} sessions ({} accurate), {} marks received, {} windows lowered by a \
             peer's echo",
            number(&stack["ecn_sessions"]),
            number(&stack["accurate_ecn_sessions"]),
            number(&stack["ecn_ce_received"]),
            number(&stack["ecn_reductions"]),
        ))?;
        output::line(&format!(
            "frames         {} received, {} segments sent, {} malformed, {} wrong checksums",
            number(&stack["frames_received"]),
            number(&stack["segments_sent"]),
            number(&stack["malformed"]),
            number(&stack["bad_checksums"]),
        ))?;
        output::line(&format!(
            "fragments      {} received, {} packets put together, {} not ({} late); \
             {} packets sent in {}",
            number(&stack["fragments_received"]),
            number(&stack["packets_reassembled"]),
            number(&stack["reassemblies_late"])
                + number(&stack["reassemblies_refused"])
                + number(&stack["reassemblies_evicted"]),
            number(&stack["reassemblies_late"]),
            number(&stack["packets_fragmented"]),
            number(&stack["fragments_sent"]),
        ))?;
        let rounds = number(&engine["rounds"]).max(1);
        output::line(&format!(
            "rounds         {rounds} with work, {} idle, {} sleeps; cycles a round: receive {}, \
             applications {}, transmit {}",
            number(&engine["idle_rounds"]),
            number(&engine["sleeps"]),
            number(&engine["receive_cycles"]) / rounds,
            number(&engine["applications_cycles"]) / rounds,
            number(&engine["transmit_cycles"]) / rounds,
        ))?;
        let engines = status["engines"].as_array().into_iter().flatten();
        for status in engines.filter(|_| number(&status["engine_count"]) > 1) {
            let (stack, engine) = (&status["stack"], &status["engine"]);
            output::line(&format!(
                "engine         {}: {} sessions, {} opened, {} frames received, {} rounds; {} \
                 frames handed over, {} taken, {} lost",
                status["engine_index"],
                number(&status["sessions"]),
                number(&stack["opened"]),
                number(&stack["frames_received"]),
                number(&engine["rounds"]),
                number(&engine["handed_over"]),
                number(&engine["handed_taken"]),
                number(&engine["handed_lost"]),
            ))?;
        }
        for application in status["applications"].as_array().into_iter().flatten() {
            output::line(&format!(
                "application    pid {}, {} sockets, {} bytes sent, {} received",
                application["pid"],
                number(&application["sockets"]),
                number(&application["sent_bytes"]),
                number(&application["received_bytes"]),
            ))?;
        }
        Ok(Outcome::Done)
    }
}

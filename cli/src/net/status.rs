//! `sidecore net status` and `sidecore net sessions`.

use crate::{Outcome, output};
use anyhow::Result;
use sidecore_net::sock::client::{sessions_of_all, status_of_all};
use sidecore_net::summary::{STATES, SessionFilter, session_heading, session_lines};
use sidecore_terminal::Text;
use std::net::IpAddr;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    running: super::Running,
    /// Everything, as one JSON object.
    #[arg(long)]
    json: bool,
    /// Everything, in the text format of Prometheus.
    #[arg(long, conflicts_with = "json")]
    metrics: bool,
}

impl Args {
    pub(crate) fn run(self) -> Result<Outcome> {
        let (socket, trust) = self.running.find();
        let status = status_of_all(&socket, &trust)?;
        if self.metrics {
            output::text(sidecore_net::metrics::text(&status).trim_end())?;
            return Ok(Outcome::Done);
        }
        output::report(self.json, &status, |status| {
            let mut text = Text::new();
            for (name, said) in sidecore_net::summary::facts(status) {
                text.fact(name, said);
            }
            text
        })
    }
}

#[derive(clap::Args)]
pub(crate) struct SessionsArgs {
    #[command(flatten)]
    running: super::Running,
    /// Only sessions in this state; several may be given.
    #[arg(long, value_name = "STATE", value_parser = STATES)]
    state: Vec<String>,
    /// Only sessions with this port at either end.
    #[arg(long, value_name = "PORT")]
    port: Option<u16>,
    /// Only sessions whose peer is in this network, ADDRESS/BITS.
    #[arg(long, value_name = "PREFIX", value_parser = SessionFilter::prefix)]
    prefix: Option<(IpAddr, u8)>,
    /// Only sessions of this process.
    #[arg(long, value_name = "PID")]
    pid: Option<i32>,
    /// Everything, as one JSON object.
    #[arg(long)]
    json: bool,
}

impl SessionsArgs {
    pub(crate) fn run(self) -> Result<Outcome> {
        let (socket, trust) = self.running.find();
        let filter = SessionFilter {
            states: self.state,
            port: self.port,
            prefix: self.prefix,
            pid: self.pid,
        };
        let mut sessions = sessions_of_all(&socket, &trust)?;
        sessions.retain(|session| filter.matches(session));
        if self.json {
            output::json(&serde_json::json!({ "sessions": sessions }))?;
            return Ok(Outcome::Done);
        }
        let program = |pid: i64| {
            let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
            Some(format!("({})", name.trim_end()))
        };
        output::line(&session_heading())?;
        output::lines(&session_lines(&sessions, program))?;
        Ok(Outcome::Done)
    }
}

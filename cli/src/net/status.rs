//! `sidecore net status`, `sessions` and `capture`: what a running stack does.

use crate::live::Running;
use crate::{Outcome, output, signals};
use anyhow::{Context, Result};
use sidecore_net::capture::{CaptureOptions, Filter, destination, record};
use sidecore_net::sock::client::{sessions_of_all, status_of_all};
use sidecore_net::sock::control::find_socket;
use sidecore_net::summary::{STATES, SessionFilter, facts, session_lines};
use sidecore_terminal::Text;
use sidecore_terminal::values::fitting_size;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    running: Running,
    /// Everything, as one JSON object.
    #[arg(long)]
    json: bool,
    /// Everything, in the text format of Prometheus.
    #[arg(long, conflicts_with = "json")]
    metrics: bool,
}

impl Args {
    pub(crate) fn run(self) -> Result<Outcome> {
        let (socket, trust) = self.running.find(find_socket);
        let status = status_of_all(&socket, &trust)?;
        if self.metrics {
            output::text(sidecore_net::metrics::text(&status).trim_end())?;
            return Ok(Outcome::Done);
        }
        output::report(self.json, &status, |status| Text::of_facts(facts(status)))
    }
}

#[derive(clap::Args)]
pub(crate) struct SessionsArgs {
    #[command(flatten)]
    running: Running,
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
        let (socket, trust) = self.running.find(find_socket);
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
        output::lines(&session_lines(&sessions))?;
        Ok(Outcome::Done)
    }
}

#[derive(clap::Args)]
pub(crate) struct CaptureArgs {
    /// The file, in pcapng; `-` is standard output.
    #[arg(short, long, value_name = "FILE")]
    write: PathBuf,
    /// The frames that are wanted, as `tcp and (port 80 or src net 10.0.0.0/8)`.
    #[arg(long, value_name = "EXPRESSION", default_value = "")]
    filter: String,
    /// Bytes that are kept of each frame.
    #[arg(short = 's', long, value_name = "BYTES", default_value_t = 262_144)]
    #[arg(value_parser = clap::value_parser!(u32).range(64..=262_144))]
    frame_bytes: u32,
    /// End after this number of frames.
    #[arg(short = 'c', long, value_name = "N")]
    frames: Option<u64>,
    /// Go on in a new file before one is larger, at least 64KiB; out.pcapng becomes out.1.pcapng,
    /// out.2.pcapng and so on.
    #[arg(long, value_name = "SIZE", value_parser = fitting_size::<u64>(
        |bytes| bytes >= 64 << 10,
        "files of less than 64KiB would hold a frame or two",
    ))]
    file_bytes: Option<u64>,
    /// Keep the last files only.
    #[arg(long, value_name = "N", requires = "file_bytes",
          value_parser = clap::value_parser!(u64).range(1..))]
    files: Option<u64>,
    /// End after this time, in seconds.
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<u32>,
    #[command(flatten)]
    running: Running,
    /// The summary as one JSON object.
    #[arg(long)]
    json: bool,
}

impl CaptureArgs {
    pub(crate) fn run(self) -> Result<Outcome> {
        // Before a file is replaced.
        Filter::parse(&self.filter)?;
        let stop = signals::raise_on(&[signals::SIGINT, signals::SIGTERM, signals::SIGHUP])?;
        let (socket, trust) = self.running.find(find_socket);
        let name = self.write.display().to_string();
        let file = destination(&self.write, self.file_bytes, self.files)?;
        let options = CaptureOptions {
            filter: self.filter,
            frame_bytes_max: self.frame_bytes,
            frames_max: self.frames,
            time_max: self.seconds.map(|it| Duration::from_secs(it.into())),
        };
        let begun = || output::note!("capturing; SIGINT ends it");
        let summary =
            record(&socket, &trust, &options, file, &stop, begun).with_context(|| name.clone())?;
        match (self.json, summary.line(&name)) {
            (true, _) => output::json(&summary)?,
            (false, line) if name == "-" => output::note!("{line}"),
            (false, line) => output::line(&line)?,
        }
        Ok(Outcome::Done)
    }
}

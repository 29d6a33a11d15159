//! `sidecore top`: what a daemon's engines and clients do, live.
//!
//! Why here: printing; what is printed comes from `sidecore_daemon::client::status`.
//! Must stay true: however it ends, the terminal is left as it was.

use crate::{Outcome, output};
use anyhow::Result;
use sidecore_daemon::{client, find_socket};
use sidecore_terminal::Text;
use sidecore_terminal::screen::{self, View};
use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Duration;

/// Arguments of `top`.
#[derive(clap::Args)]
#[command(after_help = "\
Refreshes every second on a terminal, until q, Esc or Ctrl-C; prints once elsewhere.

Exit status: 0 shown, 2 no daemon, or it did not answer.")]
pub(crate) struct Args {
    /// The daemon's socket [default: the own user's, else /run/sidecore/daemon.sock]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    #[command(flatten)]
    server: crate::live::Server,
    /// Print once and end
    #[arg(long)]
    once: bool,
    /// Print once, as JSON
    #[arg(long)]
    json: bool,
}

impl Args {
    /// Runs the command.
    pub(crate) fn run(self) -> Result<Outcome> {
        let trust = self.server.trust();
        let socket = self.socket.unwrap_or_else(|| find_socket(&trust));
        let status = client::status(&socket, &trust)?;
        if self.json {
            output::json(&status)?;
            return Ok(Outcome::Done);
        }
        if self.once || !std::io::stdout().is_terminal() {
            output::show(&status.text())?;
            return Ok(Outcome::Done);
        }
        let mut first = Some(status);
        screen::run::<anyhow::Error>(REFRESH, || {
            let status = match first.take() {
                Some(status) => status,
                None => client::status(&socket, &trust)?,
            };
            let mut tail = Text::new();
            tail.lines(status.remarks());
            Ok(View {
                head: status.head(),
                tables: status.tables(),
                tail,
            })
        })?;
        Ok(Outcome::Done)
    }
}

/// Between two looks at the daemon.
const REFRESH: Duration = Duration::from_secs(1);

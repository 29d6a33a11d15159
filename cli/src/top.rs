//! `sidecore top`: what a daemon's engines and clients do, live.
//!
//! Why here: printing; what is printed comes from `sidecore_daemon::client::status`.
//! Must stay true: however it ends, the terminal is left as it was.

use crate::{Outcome, output};
use anyhow::Result;
use sidecore_daemon::client;
use sidecore_terminal::Text;
use sidecore_terminal::screen::{self, View};
use std::io::IsTerminal;
use std::time::Duration;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    daemon: crate::offload::Running,
    /// Print once and end
    #[arg(long)]
    once: bool,
    /// Print once, as JSON
    #[arg(long)]
    json: bool,
}

impl Args {
    pub(crate) fn run(self) -> Result<Outcome> {
        let (socket, trust) = self.daemon.find();
        let status = client::status(&socket, &trust)?;
        if self.json || self.once || !std::io::stdout().is_terminal() {
            return output::report(self.json, &status, |status| status.text());
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

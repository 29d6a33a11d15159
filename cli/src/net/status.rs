//! `sidecore net status`.

use crate::{Outcome, output};
use anyhow::Result;
use sidecore_net::sock::client::status_of_all;
use sidecore_terminal::Text;

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
        if self.json {
            output::json(&status)?;
            return Ok(Outcome::Done);
        }
        if self.metrics {
            output::text(sidecore_net::metrics::text(&status).trim_end())?;
            return Ok(Outcome::Done);
        }
        let mut text = Text::new();
        for (name, said) in sidecore_net::summary::facts(&status) {
            text.fact(name, said);
        }
        output::show(&text)?;
        Ok(Outcome::Done)
    }
}

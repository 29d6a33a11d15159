//! `sidecore block snapshot`.

use crate::{Outcome, output};
use anyhow::Result;
use sidecore_export::live::{self, Snapshot};
use std::path::PathBuf;
use std::time::Duration;

/// Arguments of `block snapshot`.
#[derive(clap::Args)]
#[command(after_help = "\
The server puts a new overlay above the one that it writes to, which is frozen: it stays as it is \
at this moment and may be read, packed and cloned. Reads and writes go on. Name the new overlay \
with --overlay when the image is served again.

Exit status: 0 taken, 2 not.")]
pub(crate) struct Args {
    /// The image, directory, device or address (unix:PATH, tcp:HOST:PORT) that is served with
    /// --overlay
    #[arg(value_name = "EXPORT")]
    export: String,
    /// File of the new overlay [default: the overlay's name and a number]
    #[arg(value_name = "NEW")]
    new: Option<PathBuf>,
    /// Report in JSON on standard output
    #[arg(long)]
    json: bool,
}

impl Args {
    /// Runs the command.
    pub(crate) fn run(self) -> Result<Outcome> {
        let taken = live::snapshot(&self.export, self.new.as_deref(), PATIENCE);
        let taken = taken.map_err(anyhow::Error::msg)?;
        if self.json {
            output::json(&taken)?;
        } else {
            let Snapshot { overlay, pause_ms } = taken;
            let path = overlay.display();
            output::line(&format!(
                "{path}: takes the writes now, which waited {pause_ms:.2} ms"
            ))?;
        }
        Ok(Outcome::Done)
    }
}

/// Time for a server to make all writes before the snapshot durable.
const PATIENCE: Duration = Duration::from_secs(60);

//! `sidecore block list` and `sidecore block status`: the live exports of this machine.
//!
//! Must stay true: neither changes anything, and a server that hangs costs a bounded time.

use crate::{Outcome, output};
use anyhow::Result;
use sidecore_export::live::{self, Export};
use std::time::Duration;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Report in JSON on standard output
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
pub(crate) struct StatusArgs {
    /// The image, directory, device or address (unix:PATH, tcp:HOST:PORT) to describe
    #[arg(value_name = "IMAGE|DIR|DEVICE|ADDRESS")]
    name: Option<String>,
    /// Report in JSON on standard output
    #[arg(long)]
    json: bool,
}

#[derive(serde::Serialize)]
struct Json {
    exports: Vec<Export>,
}

impl Args {
    pub(crate) fn run(self) -> Result<Outcome> {
        let exports = live::list(PATIENCE);
        if self.json {
            output::json(&Json { exports })?;
        } else if exports.is_empty() {
            output::note!("nothing is mounted, attached or served");
        } else {
            output::show(&live::table(&exports).into())?;
        }
        Ok(Outcome::Done)
    }
}

impl StatusArgs {
    pub(crate) fn run(self) -> Result<Outcome> {
        let mut exports = live::list(PATIENCE);
        if let Some(name) = &self.name {
            exports.retain(|export| export.is(name));
            if exports.is_empty() {
                output::note!(
                    "sidecore: no server that answers serves {name}; `sidecore block list` lists \
                     what is served"
                );
            }
        }
        let is_found = self.name.is_none() || !exports.is_empty();
        output::report(self.json, &Json { exports }, |report| {
            live::descriptions(&report.exports)
        })?;
        Ok(Outcome::of(is_found))
    }
}

/// Time for all silent servers together.
const PATIENCE: Duration = Duration::from_millis(500);

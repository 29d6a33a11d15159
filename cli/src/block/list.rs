//! `sidecore block list` and `sidecore block status`: the live exports of this machine.
//!
//! Must stay true: neither changes anything, and a server that hangs costs a bounded time.

use crate::{Outcome, output};
use anyhow::Result;
use sidecore_export::live::{self, Export};
use sidecore_terminal::{Column, Table};
use std::time::Duration;

/// Arguments of `block list`.
#[derive(clap::Args)]
#[command(after_help = "\
Lists the servers of this user; as root, those of all users. A server that is alive and silent is \
listed as not answering.

Exit status: 0 listed, also where nothing is served.")]
pub(crate) struct Args {
    /// Report in JSON on standard output
    #[arg(long)]
    json: bool,
}

/// Arguments of `block status`.
#[derive(clap::Args)]
#[command(after_help = "\
Describes all exports that `block list` lists, or those of one image, directory, device or address.

Exit status: 0 described, 1 the named one is not served, or does not answer.")]
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
    /// Runs the command.
    pub(crate) fn run(self) -> Result<Outcome> {
        let exports = live::list(PATIENCE);
        if self.json {
            output::json(&Json { exports })?;
        } else if exports.is_empty() {
            output::note!("nothing is mounted, attached or served");
        } else {
            output::show(&table(&exports).into())?;
        }
        Ok(Outcome::Done)
    }
}

impl StatusArgs {
    /// Runs the command.
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
        if self.json {
            output::json(&Json { exports })?;
        } else {
            for (index, export) in exports.iter().enumerate() {
                if index > 0 {
                    output::line("")?;
                }
                output::lines(&live::description(export))?;
            }
        }
        Ok(match is_found {
            true => Outcome::Done,
            false => Outcome::Problem,
        })
    }
}

/// A line for each export. Without room the least important columns go; images and places keep
/// their ends.
fn table(exports: &[Export]) -> Table {
    let mut table = Table::new([
        Column::left("way"),
        Column::right("pid").rank(2),
        Column::right("age").rank(3),
        Column::right("read").rank(1),
        Column::right("hits").rank(4),
        Column::right("damaged"),
        Column::tail("image"),
        Column::tail("where"),
    ]);
    for export in exports {
        table.row(live::cells(export));
    }
    table
}

/// Time for all silent servers together.
const PATIENCE: Duration = Duration::from_millis(500);

//! `sidecore offload kernels`: the kernels of a daemon, with versions and hashes.
//!
//! Why here: a client that requires a particular build of a kernel names its hash, and this command
//! prints it. Must stay true: it only queries; one JSON object with `--json`.

use crate::{Outcome, output};
use anyhow::Result;
use serde_json::json;
use sidecore_daemon::client;
use sidecore_daemon::find_socket;
use sidecore_terminal::{Column, Table};
use std::path::PathBuf;

/// Arguments of `offload kernels`.
#[derive(clap::Args)]
#[command(after_help = "\
The hash of a loaded kernel is the SHA-256 of its shared object, as sha256sum prints it; that of a \
kernel that is built in is of its name, version and build.

Exit status: 0 listed, 2 could not run.")]
pub(crate) struct Args {
    /// The daemon's socket [default: the own user's, else /run/sidecore/daemon.sock]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: crate::live::Server,
}

impl Args {
    /// Runs the command.
    pub(crate) fn run(self) -> Result<Outcome> {
        let trust = self.server.trust();
        let socket = self.socket.unwrap_or_else(|| find_socket(&trust));
        let kernels = client::status(&socket, &trust)?.served;
        if self.json {
            let kernels: Vec<_> = kernels
                .iter()
                .map(|kernel| {
                    json!({
                        "name": kernel.name,
                        "version": kernel.version,
                        "hash": kernel.hash,
                    })
                })
                .collect();
            output::json_line(&json!({ "kernels": kernels }))?;
            return Ok(Outcome::Done);
        }
        let columns = [
            Column::left("name"),
            Column::right("version"),
            Column::left("hash"),
        ];
        let mut table = Table::headless(columns);
        for kernel in kernels {
            table.row([kernel.name, kernel.version.to_string(), kernel.hash]);
        }
        output::show(&table.into())?;
        Ok(Outcome::Done)
    }
}

//! A long-running command in the list of servers, at an endpoint for metrics, at a collector that
//! the environment names, and with its service manager; and option `--server-uid`: users whose
//! servers the attaching commands trust.
//!
//! Why here: images, the daemon and the stack offer the same. Must stay true: only an address that
//! the user gave and that cannot be used ends a command.

use anyhow::Result;
use sidecore_attach::Trust;
pub(crate) use sidecore_status::Live;
use sidecore_status::{Address, Status};
use std::path::PathBuf;
use std::sync::Arc;

/// The option for metrics.
#[derive(clap::Args, Clone)]
pub(crate) struct MetricsArgs {
    /// Offer metrics for Prometheus here (OpenMetrics over HTTP, at /metrics): unix:PATH, tcp:PORT
    /// on the loopback, or tcp:ADDRESS:PORT
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<Address>,
}

impl MetricsArgs {
    /// The address, where one is given.
    pub(crate) fn address(&self) -> Option<Address> {
        self.metrics.clone()
    }

    /// Begins; call it when the server is ready. In the background no service manager waits.
    pub(crate) fn begin(&self, status: &Arc<Status>, in_foreground: bool) -> Result<Live> {
        Ok(Live::begin(status, self.metrics.as_ref(), in_foreground)?)
    }
}

/// The daemon or the stack that a command asks.
#[derive(clap::Args)]
pub(crate) struct Running {
    /// Its socket [default: the own user's, else root's in /run/sidecore]
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) server: Server,
}

impl Running {
    /// Its socket, by default the one that `find` knows, and the users whose servers are trusted.
    pub(crate) fn find(self, find: fn(&Trust) -> PathBuf) -> (PathBuf, Trust) {
        let trust = self.server.trust();
        (self.socket.unwrap_or_else(|| find(&trust)), trust)
    }
}

/// Arguments of every command that attaches to a daemon or a stack.
#[derive(clap::Args)]
pub(crate) struct Server {
    /// Id of a user whose server is trusted besides this user's and root's; others are refused
    #[arg(long, value_name = "N")]
    server_uid: Vec<u32>,
}

impl Server {
    /// The users whose servers are trusted.
    pub(crate) fn trust(&self) -> Trust {
        Trust {
            uids: self.server_uid.clone(),
        }
    }
}

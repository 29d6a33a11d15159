//! `sidecore net echo`, `discard` and `source`.

use crate::{Outcome, output, signals};
use anyhow::{Context, Result};
use sidecore_net::servers::{Service, serve};
use sidecore_net::sock::client::{Client, ClientOptions};
use sidecore_net::sock::control::default_socket;
use std::net::SocketAddr;
use std::path::PathBuf;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The address and port to serve at; `0.0.0.0` or `[::]` for any address of the stack.
    #[arg(default_value = "0.0.0.0:7")]
    address: SocketAddr,
    /// Where the stack is to be found.
    #[arg(long)]
    socket: Option<PathBuf>,
}

impl Args {
    pub(crate) fn run(self, service: Service) -> Result<Outcome> {
        let socket = self.socket.unwrap_or_else(default_socket);
        let stop = signals::raise_on(&[signals::SIGINT, signals::SIGTERM])?;
        let mut client = Client::attach(&socket, &ClientOptions::default())?;
        let listening = || {
            // Nobody may read it: the server serves all the same.
            output::line(&format!("ready {}", self.address)).ok();
        };
        let served = serve(&mut client, service, self.address, &stop, listening)
            .with_context(|| format!("cannot serve at {}", self.address))?;
        output::json(&served)?;
        Ok(Outcome::Done)
    }
}

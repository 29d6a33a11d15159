//! `sidecore net echo`, `discard`, `source`, `http` and `iperf3`.

use super::up::read_setup;
use crate::{Outcome, output, signals};
use anyhow::{Context, Result};
use sidecore_net::hosted;
use sidecore_net::sock::client::{Client, ClientOptions, siblings};
use sidecore_net::sock::control::find_socket;
use sidecore_net_apps::{Service, serve_engines};
use std::net::{Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::atomic::Ordering;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The address and port to serve at; `0.0.0.0` for any IPv4 address of the stack, `[::]` for
    /// any of either family. The latter, with the service's own port, unless given.
    address: Option<SocketAddr>,
    /// The stack's socket.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Run a stack in this process, by this configuration (as `net up` has it), instead of using
    /// one that runs.
    #[arg(long, value_name = "FILE", conflicts_with = "socket")]
    config: Option<PathBuf>,
    #[command(flatten)]
    server: crate::live::Server,
}

impl Args {
    pub(crate) fn run(self, service: Service) -> Result<Outcome> {
        let any = || SocketAddr::from((Ipv6Addr::UNSPECIFIED, service.port()));
        let address = self.address.unwrap_or_else(any);
        let trust = self.server.trust();
        let signals = signals::begin_server()?;
        let stop = signals.flag();
        let options = ClientOptions {
            trust,
            ..ClientOptions::default()
        };
        let clients = match &self.config {
            Some(path) => vec![hosted::host(&read_setup(path)?, &options)?],
            None => {
                let socket = self.socket.unwrap_or_else(|| find_socket(&options.trust));
                let mut sockets = siblings(&socket, &options.trust)?;
                if !service.is_shared() {
                    sockets.truncate(1);
                }
                let clients = sockets
                    .iter()
                    .map(|socket| Client::attach(socket, &options));
                clients.collect::<Result<_, _>>()?
            }
        };
        let mut said = Ok(());
        let listening = || {
            said = output::ready(&address.to_string());
            if said.is_err() {
                stop.store(true, Ordering::Release);
            }
        };
        let served = serve_engines(clients, service, address, &stop, listening)
            .with_context(|| format!("cannot serve at {address}"));
        signals.end();
        let served = served?;
        said?;
        output::json(&served)?;
        Ok(Outcome::Done)
    }
}

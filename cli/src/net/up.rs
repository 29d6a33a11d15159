//! `sidecore net up`, and `echo`, `discard`, `source`, `http` and `iperf3`.

use crate::live::{MetricsArgs, Running};
use crate::trace::TraceArgs;
use crate::{Outcome, output, signals};
use anyhow::{Context, Result};
use sidecore_net::hosted;
use sidecore_net::live::status;
use sidecore_net::setup::Setup;
use sidecore_net::sock::client::ClientOptions;
use sidecore_net::sock::control::find_socket;
use sidecore_net_apps::{Service, attach_all, serve_engines};
use sidecore_terminal::quantity;
use std::net::{Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The configuration is TOML: a NIC, addresses, routes; docs/net.md explains all of it.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The configuration, a TOML file; docs/net.md lists what may be written in it
    config: PathBuf,
    /// Socket for applications, instead of the configuration's.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// The most memory for the buffers of sessions, instead of the configuration's stack.memory
    #[arg(long, value_name = "SIZE", value_parser = quantity::size)]
    memory: Option<u64>,
    #[command(flatten)]
    trace: TraceArgs,
    #[command(flatten)]
    metrics: MetricsArgs,
}

impl Args {
    pub(crate) fn run(self) -> Result<Outcome> {
        let signals = signals::begin_server()?;
        // Written after `signals.end`, without the bound of the end by a signal.
        let _recording = self.trace.begin("net up")?;
        let mut setup = Setup::read(&self.config)?;
        setup.socket = self.socket.or(setup.socket);
        if let Some(bytes) = self.memory {
            setup.set_memory(usize::try_from(bytes)?);
        }
        let mut up = setup.bring_up_engines()?;
        let (stop, wake) = (Arc::new(AtomicBool::new(false)), up.waker());
        let raised = Arc::clone(&stop);
        signals.stop_with(move || {
            raised.store(true, Ordering::Release);
            wake();
        });
        let live = self.metrics.begin(&status(&up.socket), true)?;
        output::ready(&format!("{} on {}", up.socket.display(), up.nic_name))?;
        let ran = up.run(&stop);
        drop(live);
        signals.end();
        // Not bounded: the kernel takes its time for an interface, however the process ends.
        drop(up);
        ran?;
        Ok(Outcome::Done)
    }
}

/// The stack that a command uses.
#[derive(clap::Args)]
pub(super) struct StackArgs {
    #[command(flatten)]
    pub(super) running: Running,
    /// Run a stack for this command alone, by this configuration (as `net up` has it), instead of
    /// using one that runs
    #[arg(long, value_name = "FILE", conflicts_with = "socket")]
    pub(super) config: Option<PathBuf>,
}

#[derive(clap::Args)]
pub(crate) struct ServerArgs {
    /// The address and port to serve at; `0.0.0.0` for any IPv4 address of the stack, `[::]` for
    /// any of either family. The latter, with the service's own port, unless given.
    address: Option<SocketAddr>,
    #[command(flatten)]
    stack: StackArgs,
}

impl ServerArgs {
    pub(crate) fn run(self, service: Service) -> Result<Outcome> {
        let any = || SocketAddr::from((Ipv6Addr::UNSPECIFIED, service.port()));
        let address = self.address.unwrap_or_else(any);
        let signals = signals::begin_server()?;
        let stop = signals.flag();
        let (socket, trust) = self.stack.running.find(find_socket);
        let options = ClientOptions::trusting(trust);
        let clients = match &self.stack.config {
            Some(path) => vec![hosted::host(&Setup::read(path)?, &options)?],
            None => attach_all(service, &socket, &options)?,
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

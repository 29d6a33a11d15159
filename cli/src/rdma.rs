//! `sidecore rdma`: rping's exchange over a kernel's TCP socket, or over a running stack; programs
//! on libibverbs.

use crate::signals;
use crate::{Outcome, output, run_each};
use anyhow::{Context, Result};
use clap::Subcommand;
use sidecore_net::sock::client::{Client, ClientOptions};
use sidecore_rdma::ping::{TEXT_BYTES_MAX, TEXT_BYTES_MIN};
use sidecore_rdma::server::{Exchange, PingReport, serve};
use sidecore_rdma::{Options, ReadyBy, Setup};
use sidecore_sys::ending::leave;
use sidecore_sys::preload::Library;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Take part as the client: texts go and come back by RDMA, and are compared.
    Ping(Ping),
    /// Answer clients, of Linux's rping too, until a signal.
    Serve(Serve),
    /// Run a program on libibverbs and librdmacm without a kernel module.
    Run(Run),
}

#[derive(clap::Args)]
struct Common {
    /// Ask for no CRCs; they are used all the same where the peer asks.
    #[arg(long)]
    no_crc: bool,
    /// Use the running stack with this socket instead of the kernel's sockets.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Longest wait for the peer, in seconds.
    #[arg(long, value_name = "S", default_value_t = 30)]
    timeout_s: u64,
    #[command(flatten)]
    server: crate::live::Server,
}

#[derive(clap::Args)]
pub(crate) struct Ping {
    /// The server's address and port; rping's own port is 7174.
    address: SocketAddr,
    /// Rounds.
    #[arg(long, value_name = "N", default_value_t = 10)]
    rounds: u64,
    /// Length of the text, in bytes: 16 to 65535.
    #[arg(long, value_name = "N", default_value_t = 64)]
    #[arg(value_parser = clap::value_parser!(u32).range(TEXT_BYTES))]
    bytes: u32,
    /// Offer revision 1 of MPA, without depths of reads.
    #[arg(long)]
    plain: bool,
    /// Send a message of no bytes first, so that the server might send at once.
    #[arg(long, conflicts_with = "plain")]
    peer_to_peer: bool,
    /// Wait this long before the first message, in milliseconds: Linux's siw may lose one that
    /// comes right behind its reply.
    #[arg(long, value_name = "MS", default_value_t = 100)]
    settle_ms: u64,
    /// Report in JSON on standard output.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    common: Common,
}

#[derive(clap::Args)]
pub(crate) struct Serve {
    /// The address and port to serve at.
    #[arg(default_value = "0.0.0.0:7174")]
    address: SocketAddr,
    /// End after this many clients, those not counted that never introduce themselves.
    #[arg(long, value_name = "N")]
    clients: Option<u64>,
    #[command(flatten)]
    common: Common,
}

impl Command {
    pub(crate) fn run(self) -> Result<Outcome> {
        run_each!(self; Ping Serve Run)
    }
}

impl Common {
    fn exchange(&self) -> Exchange {
        Exchange {
            options: Options {
                crc: !self.no_crc,
                ..Options::default()
            },
            timeout: Duration::from_secs(self.timeout_s),
            settle: Duration::ZERO,
        }
    }

    fn client(&self) -> Result<Option<Client>> {
        let options = ClientOptions::trusting(self.server.trust());
        let attach = |path| Client::attach(path, &options);
        Ok(self.socket.as_deref().map(attach).transpose()?)
    }
}

impl Ping {
    fn run(self) -> Result<Outcome> {
        let mut exchange = self.common.exchange();
        exchange.options.setup = match (self.plain, self.peer_to_peer) {
            (true, _) => Setup::Basic,
            (false, true) => Setup::PeerToPeer(ReadyBy::Message),
            (false, false) => Setup::Enhanced,
        };
        exchange.settle = Duration::from_millis(self.settle_ms);
        let (peer, rounds, bytes) = (self.address, self.rounds, self.bytes);
        let client = self.common.client()?;
        let report = PingReport::of(client, peer, &exchange, rounds, bytes);
        let report = report.with_context(|| format!("cannot ping {peer}"))?;
        output::report(self.json, &report, |report| report.line().into())
    }
}

impl Serve {
    fn run(self) -> Result<Outcome> {
        let signals = signals::begin_server()?;
        // Nothing needs writing back: connections end with the process.
        signals.stop_with(|| leave(0));
        let exchange = self.common.exchange();
        let ready = |address: SocketAddr| output::ready(&address.to_string());
        // Standard output may be closed: the server serves all the same.
        let line = |line: &str| drop(output::line(line));
        let (client, address) = (self.common.client()?, self.address);
        serve(client, address, &exchange, self.clients, ready, line)?;
        signals.end();
        Ok(Outcome::Done)
    }
}

#[derive(clap::Args)]
pub(crate) struct Run {
    /// Use the running stack with this socket instead of the kernel's sockets
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

impl Run {
    /// Becomes the program, so that its exit status, signals and children are its own; returns
    /// only where it could not be started.
    fn run(self) -> Result<Outcome> {
        // The program may change its directory before it opens the device.
        let whole = |path: PathBuf| std::path::absolute(&path).unwrap_or(path).into_os_string();
        let socket = ("SIDECORE_RDMA_SOCKET", self.socket.map(whole));
        match LIBRARY.exec_under(&NAMES, &self.command, socket)? {}
    }
}

/// Lengths of a text.
const TEXT_BYTES: RangeInclusive<i64> = TEXT_BYTES_MIN as i64..=TEXT_BYTES_MAX as i64;
/// Names that programs load the library by.
const NAMES: [&str; 2] = ["libibverbs.so.1", "librdmacm.so.1"];
const LIBRARY: Library = Library {
    name: "libsidecore_verbs.so",
    installed_name: Some("libsidecore-verbs.so"),
    variable: "SIDECORE_VERBS_LIBRARY",
};

//! `sidecore daemon`: owns the machine's engines and serves other processes, in the foreground.
//! `sidecore top`: what a daemon's engines and clients do, live.
//!
//! Why here: it only connects the command line and `sidecore_daemon`.
//! Must stay true: `ready SOCKET` is on standard output only once clients can attach; a signal ends
//! the command with status 0 within a second, with the socket removed, whatever a kernel does.
//! However `top` ends, the terminal is left as it was.

use crate::live::{MetricsArgs, Running};
use crate::signals;
use crate::trace::TraceArgs;
use crate::{Outcome, output};
use anyhow::{Result, ensure};
use sidecore_daemon::client::live::status;
use sidecore_daemon::served::Registry;
use sidecore_daemon::{Allow, Daemon, DaemonOptions, client, find_socket};
use sidecore_engine::CoreOptions;
use sidecore_loader::{HostProgram, Limits, Loading, register_all};
use sidecore_sys::ending::leave;
use sidecore_terminal::screen::View;
use sidecore_terminal::{Text, quantity, screen};
use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Duration;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The socket's path [default: daemon.sock in /run/sidecore for root, else in
    /// $XDG_RUNTIME_DIR/sidecore, else in /tmp/sidecore-UID]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Engines, each with a core of its own [default: one less than there are cores]
    #[arg(long, value_name = "N")]
    engines: Option<usize>,
    /// Time that an idle engine polls before it sleeps, in milliseconds
    #[arg(long, value_name = "N")]
    #[arg(default_value_t = DaemonOptions::default().grace.as_millis() as u64)]
    grace_ms: u64,
    /// Allow more engines than cores; they then take turns
    #[arg(long)]
    oversubscribe: bool,
    /// An additional user, by number, that may attach; this user and root always may; may be given
    /// several times
    #[arg(long, value_name = "N")]
    allow_uid: Vec<u32>,
    /// A group, by number, whose members may attach; may be given several times
    #[arg(long, value_name = "N")]
    allow_group: Vec<u32>,
    /// The most clients of one user other than root and this one [default: a quarter of 64]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    user_connections: Option<u32>,
    /// The most shared memory of one such user, including segments it keeps after detaching
    #[arg(long, value_name = "SIZE", default_value = "512MiB", value_parser = quantity::size)]
    user_bytes: u64,
    /// The most shared memory of all clients; a quarter is kept for root and this user
    #[arg(
        long,
        visible_alias = "memory",
        value_name = "SIZE",
        default_value = "2GiB"
    )]
    #[arg(value_parser = quantity::size)]
    bytes: u64,
    /// The most requests of one such user that engines serve at once [default: no limit]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    user_requests: Option<u32>,
    /// A folder of kernels as shared objects; may be given several times [default: for root
    /// /usr/lib/sidecore/kernels and /usr/local/lib/sidecore/kernels, where they exist]
    #[arg(long, value_name = "DIR")]
    kernels: Vec<PathBuf>,
    /// The most processor time for a request that a loaded kernel's object may ask for, in
    /// milliseconds; 1,000 unless it asks
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=86_400_000))]
    kernel_ms: u64,
    /// The most memory that it may ask for, for the process of each client and engine; 256MiB
    /// unless it asks
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = quantity::size)]
    kernel_memory: u64,
    /// The most stack that it may ask for; 2MiB unless it asks
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = quantity::size)]
    kernel_stack: u64,
    /// Also serve the kernel spin_us, which keeps an engine busy for up to 1 s: for measurements
    #[arg(long)]
    spin_us: bool,
    #[command(flatten)]
    trace: TraceArgs,
    #[command(flatten)]
    metrics: MetricsArgs,
}

impl Args {
    pub(crate) fn run(self) -> Result<Outcome> {
        ensure!(
            self.engines != Some(0),
            "a daemon needs at least 1 engine; leave --engines out for one less than the cores"
        );
        let signals = signals::begin_server()?;
        let recording = self.trace.begin("daemon")?;
        let registry = self.registry()?;
        let default = DaemonOptions::default();
        let mut options = DaemonOptions {
            socket: self.socket.unwrap_or(default.socket),
            engines: self.engines.unwrap_or(0),
            grace: Duration::from_millis(self.grace_ms),
            oversubscribe: self.oversubscribe,
            allow: Allow {
                uids: self.allow_uid,
                gids: self.allow_group,
            },
            user_clients_max: self.user_connections.unwrap_or(0) as usize,
            user_bytes_max: self.user_bytes,
            bytes_max: self.bytes,
            user_requests_max: self.user_requests.unwrap_or(0),
            registry,
            core: CoreOptions::of_this_machine(),
            ..default
        };
        for remark in options.fit() {
            output::note!("sidecore: {remark}");
        }
        let daemon = Daemon::start(options)?;
        let stopper = daemon.stopper();
        signals.stop_with(move || stopper.stop());
        if let Some(remark) = daemon.remark() {
            output::note!("sidecore: {remark}");
        }
        let live = self.metrics.begin(&status(daemon.socket()), true)?;
        output::ready(&daemon.socket().display().to_string())?;
        let ended = daemon.wait();
        drop(live);
        for remark in ended.remarks() {
            output::note!("sidecore: {remark}");
        }
        if !ended.running.is_empty() {
            // The file is written without the bound of the end by a signal.
            signals.end();
            drop(recording);
            leave(if ended.failure.is_some() { 2 } else { 0 });
        }
        signals.end();
        match ended.failure {
            Some(failure) => Err(failure.into()),
            None => Ok(Outcome::Done),
        }
    }

    /// The built-in kernels and those of the folders. Refused files are reported on standard error.
    fn registry(&self) -> Result<Registry> {
        let folders = match self.kernels.is_empty() {
            true => sidecore_loader::default_folders(),
            false => self.kernels.clone(),
        };
        let loading = Loading {
            host: Some(HostProgram::this(["offload", "host"])),
            limits: Limits {
                time: Duration::from_millis(self.kernel_ms),
                memory_bytes: self.kernel_memory,
                stack_bytes: self.kernel_stack,
            },
        };
        let built_in = crate::offload::built_in(self.spin_us)?;
        let registered = register_all(built_in, &folders, &loading, |refused| {
            output::note!("sidecore: {refused}");
        });
        Ok(registered?)
    }
}

#[derive(clap::Args)]
pub(crate) struct TopArgs {
    #[command(flatten)]
    daemon: Running,
    /// Print once and end
    #[arg(long)]
    once: bool,
    /// Print once, as JSON
    #[arg(long)]
    json: bool,
}

impl TopArgs {
    pub(crate) fn run(self) -> Result<Outcome> {
        let (socket, trust) = self.daemon.find(find_socket);
        let status = client::status(&socket, &trust)?;
        if self.json || self.once || !std::io::stdout().is_terminal() {
            return output::report(self.json, &status, |status| status.text());
        }
        let mut first = Some(status);
        screen::run::<anyhow::Error>(REFRESH, || {
            let status = match first.take() {
                Some(status) => status,
                None => client::status(&socket, &trust)?,
            };
            let mut tail = Text::new();
            tail.lines(status.remarks());
            Ok(View {
                head: status.head(),
                tables: status.tables(),
                tail,
            })
        })?;
        Ok(Outcome::Done)
    }
}

/// Between two looks at the daemon.
const REFRESH: Duration = Duration::from_secs(1);

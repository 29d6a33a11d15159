//! `sidecore net up`.

use crate::live::MetricsArgs;
use crate::trace::TraceArgs;
use crate::{Outcome, output, signals};
use anyhow::{Context, Result};
use sidecore_net::live::status;
use sidecore_net::setup::Setup;
use sidecore_sys::input::read_text;
use std::path::{Path, PathBuf};
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
        let mut setup = read_setup(&self.config)?;
        setup.socket = self.socket.or(setup.socket);
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

/// Reads the configuration of a stack.
pub(super) fn read_setup(path: &Path) -> Result<Setup> {
    let named = || format!("cannot read {}", path.display());
    let text = read_text(path, SETUP_BYTES_MAX).with_context(named)?;
    Setup::parse(&text).with_context(|| path.display().to_string())
}

const SETUP_BYTES_MAX: u64 = 1 << 20;

//! `sidecore net up`.

use crate::{Outcome, output, signals::Watch};
use anyhow::{Context, Result};
use sidecore_net::setup::Setup;
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
}

impl Args {
    pub(crate) fn run(self) -> Result<Outcome> {
        let mut setup = read_setup(&self.config)?;
        setup.socket = self.socket.or(setup.socket);
        let signals = Watch::begin()?;
        let up = setup.bring_up_engines()?;
        let stop = Arc::new(AtomicBool::new(false));
        let raised = Arc::clone(&stop);
        let watching = signals.stop_with(move || raised.store(true, Ordering::Release))?;
        // Nobody may read it: the stack serves all the same.
        let said = output::line(&format!("ready {} on {}", up.socket.display(), up.nic_name));
        if said
            .as_ref()
            .is_err_and(|error| !output::is_broken_pipe(error))
        {
            return said.map(|()| Outcome::Problem);
        }
        let ran = up.run(&stop);
        watching.end();
        ran?;
        Ok(Outcome::Done)
    }
}

/// Reads the configuration of a stack.
pub(super) fn read_setup(path: &Path) -> Result<Setup> {
    let text =
        std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    Setup::parse(&text).with_context(|| path.display().to_string())
}

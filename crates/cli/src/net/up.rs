//! `sidecore net up`.

use crate::{Outcome, output, signals::Watch};
use anyhow::{Context, Result};
use sidecore_net::setup::Setup;
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
}

impl Args {
    pub(crate) fn run(self) -> Result<Outcome> {
        let text = std::fs::read_to_string(&self.config)
            .with_context(|| format!("cannot read {}", self.config.display()))?;
        let mut setup = Setup::parse(&text).with_context(|| self.config.display().to_string())?;
        setup.socket = self.socket.or(setup.socket);
        let signals = Watch::begin()?;
        let up = setup.bring_up()?;
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
        let (mut engine, door) = up.split();
        let ran = engine.run(&stop, |_| 0);
        drop(door);
        watching.end();
        ran?;
        Ok(Outcome::Done)
    }
}

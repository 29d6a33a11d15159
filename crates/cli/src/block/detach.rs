//! `sidecore block detach`.

use crate::Outcome;
use anyhow::Result;
use sidecore_block::export::attach::detach;
use sidecore_block::export::mount::Undone;
use std::path::PathBuf;

/// Arguments of `block detach`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The device that `attach` printed.
    device: PathBuf,
    /// Take the device away from programs, which then get errors, instead of refusing.
    #[arg(long)]
    force: bool,
}

impl Args {
    /// Runs the command.
    pub(crate) fn run(self) -> Result<Outcome> {
        let device = self.device.display();
        match detach(&self.device, self.force)? {
            Undone::StillUsed(_) => {
                crate::output::note!("{device} is open; it goes when the last program closes it");
            }
            Undone::TakenAway => {
                crate::output::note!(
                    "detached {device}; programs that still used it get errors now"
                );
            }
            _ => {}
        }
        Ok(Outcome::Done)
    }
}

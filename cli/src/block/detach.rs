//! `sidecore block detach`.

use super::umount::flusher;
use crate::Outcome;
use anyhow::Result;
use sidecore_export::attach::detach;
use sidecore_export::mount::Undone;
use std::path::PathBuf;

/// Arguments of `block detach`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The device that `attach` printed.
    device: PathBuf,
    /// Detach although programs use the device: readers of a read-only device get errors; programs
    /// that write keep it until they close it.
    #[arg(long)]
    force: bool,
}

impl Args {
    /// Runs the command.
    pub(crate) fn run(self) -> Result<Outcome> {
        let device = self.device.display();
        Ok(match detach(&self.device, self.force, &flusher)? {
            Undone::StillUsed(_) => {
                crate::output::note!(
                    "{device} is open; it goes when the last program closes it; what was written \
                     so far is safe"
                );
                Outcome::Done
            }
            Undone::TakenAway => {
                crate::output::note!(
                    "detached {device}; programs that still used it get errors now"
                );
                Outcome::Done
            }
            Undone::ServerDied => {
                crate::output::note!(
                    "sidecore: the server of {device} had died: what was written to it and not \
                     synced before is lost; nothing is left of it"
                );
                Outcome::Problem
            }
            _ => Outcome::Done,
        })
    }
}

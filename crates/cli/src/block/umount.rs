//! `sidecore block umount`.

use crate::Outcome;
use anyhow::Result;
use sidecore_block::export::mount::{Undone, umount};
use std::path::PathBuf;

/// Arguments of `block umount`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The directory that was given to `mount`.
    dir: PathBuf,
    /// Take open files away from programs, which then get errors, instead of refusing.
    #[arg(long)]
    force: bool,
}

impl Args {
    /// Runs the command.
    pub(crate) fn run(self) -> Result<Outcome> {
        let dir = self.dir.display();
        match umount(&self.dir, self.force)? {
            Undone::StillUsed(other) => crate::output::note!(
                "unmounted from {dir}; also mounted on {}, so its server stays until that \
                 is unmounted",
                other.display()
            ),
            Undone::TakenAway => crate::output::note!(
                "unmounted from {dir}; others (open files, another mount namespace) still used it \
                 and get errors now"
            ),
            _ => {}
        }
        Ok(Outcome::Done)
    }
}

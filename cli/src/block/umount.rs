//! `sidecore block umount`.

use crate::Outcome;
use anyhow::Result;
use sidecore_export::mount::{By, Undone, flush_input, umount};
use std::path::PathBuf;
use std::process::Command;

/// Arguments of `block umount`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The directory that was given to `mount`.
    #[arg(required_unless_present = "flush_input")]
    dir: Option<PathBuf>,
    /// Unmount although programs have files open. Read-only files give errors then; written files
    /// stay usable, and the server stays until they are closed.
    #[arg(long)]
    force: bool,
    /// Flush the file on standard input; internal. It runs as a process of its own, which the
    /// command may have to abandon while it hangs.
    #[arg(long, hide = true)]
    flush_input: bool,
}

impl Args {
    /// Runs the command.
    pub(crate) fn run(self) -> Result<Outcome> {
        let Some(dir) = &self.dir else {
            flush_input()?;
            return Ok(Outcome::Done);
        };
        let undone = umount(dir, self.force, &flusher)?;
        let dir = dir.display();
        Ok(match undone {
            Undone::StillUsed(by) => {
                let by = by_whom(&by);
                crate::output::note!(
                    "unmounted from {dir}; {by}, so its server stays until then; what was written \
                     so far is safe"
                );
                Outcome::Done
            }
            Undone::TakenAway => {
                crate::output::note!(
                    "unmounted from {dir}; others (open files, another mount namespace) still used \
                     it and get errors now"
                );
                Outcome::Done
            }
            Undone::ServerDied => {
                crate::output::note!(
                    "sidecore: the server of {dir} had died: what was written there and not synced \
                     before is lost; nothing is left of the mount"
                );
                Outcome::Problem
            }
            _ => Outcome::Done,
        })
    }
}

/// The command of a process that flushes its standard input.
pub(super) fn flusher() -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.args(["block", "umount", "--flush-input"]);
    command
}

/// Names the remaining users of a mount, and until when its server stays.
pub(super) fn by_whom(by: &By) -> String {
    match by {
        By::Mount(dir) => format!("also mounted on {} until that is unmounted", dir.display()),
        By::Namespace(pid) => format!(
            "another mount namespace (that of process {pid}) has it until it unmounts or ends"
        ),
        _ => "programs have files open there until they close them".into(),
    }
}

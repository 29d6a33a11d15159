//! `sidecore block umount` and `sidecore block detach`.

use crate::{Outcome, output};
use anyhow::Result;
use sidecore_export::attach::detach;
use sidecore_export::mount::{Undone, flush_input, umount};
use std::path::PathBuf;
use std::process::Command;

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
    pub(crate) fn run(self) -> Result<Outcome> {
        let Some(dir) = &self.dir else {
            flush_input()?;
            return Ok(Outcome::Done);
        };
        let undone = umount(dir, self.force, &flusher)?;
        Ok(show(&undone, undone.of_mount(dir)))
    }
}

#[derive(clap::Args)]
pub(crate) struct DetachArgs {
    /// The device that `attach` printed.
    device: PathBuf,
    /// Detach although programs use the device: readers of a read-only device get errors; programs
    /// that write keep it until they close it.
    #[arg(long)]
    force: bool,
}

impl DetachArgs {
    pub(crate) fn run(self) -> Result<Outcome> {
        let undone = detach(&self.device, self.force, &flusher)?;
        Ok(show(&undone, undone.of_device(&self.device)))
    }
}

fn show(undone: &Undone, said: Option<String>) -> Outcome {
    if let Some(said) = said {
        output::note!("{said}");
    }
    Outcome::of(!undone.has_lost())
}

/// The command of a process that flushes its standard input.
fn flusher() -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.args(["block", "umount", "--flush-input"]);
    command
}

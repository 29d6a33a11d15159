//! `sidecore block attach`, and `detach` and `umount`, which undo what serves an image.

use super::common::SectorArgs;
use super::mount::ServingArgs;
use crate::{Outcome, output};
use anyhow::Result;
use serde_json::json;
use sidecore_export::attach::detach;
use sidecore_export::mount::{Target, Undone, flush_input, umount};
use sidecore_export::{Ready, attach};
use std::io;
use std::path::PathBuf;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    serving: ServingArgs,
    #[command(flatten)]
    sectors: SectorArgs,
    /// Write one JSON object, with `device` and `way`, instead of the path alone.
    #[arg(long)]
    json: bool,
}

impl Args {
    pub(crate) fn run(self) -> Result<Outcome> {
        let (name, launch) = (self.serving.name(), self.serving.launch());
        if let Some(ready) = launch.in_background("attach")? {
            return show(&name, self.json, &ready);
        }
        let shown = |ready: &Ready| {
            let shown = show(&name, self.json, ready);
            shown.map(drop).map_err(io::Error::other)
        };
        let named = ("block attach", Target::Device.way());
        let serving = self.serving;
        serving.run(&launch, named, shown, |source, name, mut options, ready| {
            options.sector_bytes = self.sectors.sector_size;
            attach::serve(source, name, options, ready)
        })
    }
}

fn show(name: &str, is_json: bool, ready: &Ready) -> Result<Outcome> {
    let device = ready.place.display().to_string();
    output::note!("attached {name} as {device} ({})", ready.way);
    let attached = json!({ "device": device, "way": ready.way });
    output::report(is_json, &attached, |_| device.into())
}

#[derive(clap::Args)]
pub(crate) struct UmountArgs {
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

impl UmountArgs {
    pub(crate) fn run(self) -> Result<Outcome> {
        let Some(dir) = &self.dir else {
            flush_input()?;
            return Ok(Outcome::Done);
        };
        let undone = umount(dir, self.force)?;
        Ok(show_undone(&undone, undone.of_mount(dir)))
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
        let undone = detach(&self.device, self.force)?;
        Ok(show_undone(&undone, undone.of_device(&self.device)))
    }
}

fn show_undone(undone: &Undone, said: Option<String>) -> Outcome {
    if let Some(said) = said {
        output::note!("{said}");
    }
    Outcome::of(!undone.has_lost())
}

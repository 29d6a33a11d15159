//! `sidecore block attach`.

use super::common::{OpenArgs, OverlayArgs};
use super::mount::{FuseArgs, Serving};
use crate::trace::TraceArgs;
use crate::{Outcome, output};
use anyhow::Result;
use sidecore_export::{Ready, attach};
use sidecore_remote::access::name;
use sidecore_terminal::Text;
use std::io;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    open: OpenArgs,
    #[command(flatten)]
    overlay: OverlayArgs,
    /// Write one JSON object, with `device` and `way`, instead of the path alone.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    fuse: FuseArgs,
    #[command(flatten)]
    trace: TraceArgs,
}

/// The command's result.
#[derive(serde::Serialize)]
struct Attached {
    device: String,
    way: String,
}

impl Args {
    pub(crate) fn run(self) -> Result<Outcome> {
        let name = name(&self.open.image);
        if let Some(ready) = self.fuse.in_background("attach")? {
            show(&name, self.json, &ready)?;
            return Ok(Outcome::Done);
        }
        let serving = Serving {
            open: self.open,
            overlay: self.overlay,
            trace: self.trace,
            command: "block attach",
            way: "attach",
        };
        let shown = |ready: &Ready| show(&name, self.json, ready).map_err(io::Error::other);
        self.fuse
            .serve_image(serving, shown, |source, name, options, ready| {
                attach::serve(source, name, options, ready)
            })
    }
}

fn show(name: &str, json: bool, ready: &Ready) -> Result<()> {
    let device = ready.place.display().to_string();
    output::note!("attached {name} as {device} ({})", ready.way);
    let way = ready.way.clone();
    output::report(json, &Attached { device, way }, |attached| {
        Text::from(attached.device.clone())
    })?;
    Ok(())
}

//! `sidecore block attach`.

use super::common::OpenArgs;
use super::mount::{FuseArgs, end};
use super::overlay::OverlayArgs;
use crate::{Outcome, output};
use anyhow::Result;
use sidecore_export::Ready;
use sidecore_export::attach;
use sidecore_export::background::{self, Starter};
use std::io;
use std::path::Path;

/// Arguments of `block attach`.
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
}

/// The command's result.
#[derive(serde::Serialize)]
struct Attached {
    device: String,
    way: String,
}

impl Args {
    /// Runs the command.
    pub(crate) fn run(mut self) -> Result<Outcome> {
        if !self.fuse.foreground && !self.fuse.background_child {
            self.show(&background::start("attach")?)?;
            return Ok(Outcome::Done);
        }
        let starter = Starter::new(self.fuse.background_child);
        let result = (|| {
            self.open.make_absolute()?;
            self.overlay.make_absolute()?;
            let opened = self.overlay.open(&self.open)?;
            let source = std::sync::Arc::clone(&opened.source);
            let options = self.fuse.options(&self.open, &self.overlay)?;
            let name = super::image::name(&self.open.image);
            let mut begun = None;
            let served = attach::serve(source, Path::new(&name), options, |ready| {
                // Before the command ends: its user may list it at once.
                let status = opened.status(&name, "attach", ready.place.display().to_string());
                self.fuse.begin(&status, &mut begun)?;
                starter.tell(ready, || self.show(ready).map_err(io::Error::other))
            });
            let begun = begun.transpose();
            let closed = opened.close();
            begun?;
            served?;
            closed?;
            Ok(Outcome::Done)
        })();
        end(&starter, result)
    }

    fn show(&self, ready: &Ready) -> Result<()> {
        let device = ready.place.display().to_string();
        output::note!(
            "attached {} as {device} ({})",
            super::image::name(&self.open.image),
            ready.way
        );
        if self.json {
            output::json(&Attached {
                device,
                way: ready.way.clone(),
            })
        } else {
            output::line(&device)
        }
    }
}

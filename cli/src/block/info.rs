//! `sidecore block info`.

use crate::{Outcome, output};
use anyhow::Result;
use sidecore_block::overlay::tools::{self, Description};
use sidecore_block::pack::ImageInfo;
use std::path::PathBuf;

/// Arguments of `block info`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Image to look at: a file or a URL; or an overlay
    #[arg(value_name = "IMAGE")]
    image: PathBuf,
    #[command(flatten)]
    access: super::image::AccessArgs,
    #[command(flatten)]
    memory: super::common::MemoryArgs,
    /// Report in JSON on standard output
    #[arg(long)]
    json: bool,
}

impl Args {
    /// Runs the command.
    pub(crate) fn run(self) -> Result<Outcome> {
        if tools::is_overlay_file(&self.image)? {
            return show_overlay(&tools::describe(&self.image)?, self.json);
        }
        let access = self.access.access()?;
        let open = |bytes| access.open_to_look(&self.image, bytes);
        let index = self.memory.open(open)?.index;
        let info = ImageInfo::of(&index);
        if self.json {
            output::json(&info)?;
            return Ok(Outcome::Done);
        }
        let checked = access.keys_valid(&index);
        output::show(&info.text(&index, &checked))?;
        Ok(Outcome::Done)
    }
}

fn show_overlay(overlay: &Description, json: bool) -> Result<Outcome> {
    match json {
        true => output::json(&overlay.json())?,
        false => output::show(&overlay.text())?,
    }
    Ok(Outcome::Done)
}

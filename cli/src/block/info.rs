//! `sidecore block info`.

use super::common::{AccessArgs, MemoryArgs};
use crate::{Outcome, output};
use anyhow::Result;
use sidecore_block::overlay::tools;
use sidecore_block::pack::ImageInfo;
use std::path::PathBuf;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Image to look at: a file or a URL; or an overlay
    #[arg(value_name = "IMAGE")]
    image: PathBuf,
    #[command(flatten)]
    access: AccessArgs,
    #[command(flatten)]
    memory: MemoryArgs,
    /// Report in JSON on standard output
    #[arg(long)]
    json: bool,
}

impl Args {
    pub(crate) fn run(self) -> Result<Outcome> {
        if tools::is_overlay_file(&self.image)? {
            let overlay = tools::describe(&self.image)?;
            return output::report(self.json, &overlay.json(), |_| overlay.text());
        }
        let access = self.access.access()?;
        let open = |bytes| access.open_to_look(&self.image, bytes);
        let index = self.memory.open(open)?.index;
        output::report(self.json, &ImageInfo::of(&index), |info| {
            info.text(&index, &access.keys_valid(&index))
        })
    }
}

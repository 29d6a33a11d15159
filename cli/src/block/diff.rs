//! `sidecore block diff`.

use super::common::{OpenArgs, open_device};
use crate::{Outcome, output};
use anyhow::{Context, Result};
use sidecore_block::overlay::{open_to_read, tools};
use sidecore_block::pack::{Side, Stretch, compare};
use sidecore_terminal::progress::{Shape, bar};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Arguments of `block diff`.
#[derive(clap::Args)]
#[command(after_help = "\
Contents are compared in blocks of 4 KiB; what layers or the images' checksums say to be the same \
is not read. Each line is a stretch that differs: its first byte and its length.")]
pub(crate) struct Args {
    #[command(flatten)]
    open: OpenArgs,
    /// The other: an image, or an overlay on the first
    #[arg(value_name = "OTHER")]
    other: PathBuf,
    /// Compare overlays: the image that both stand on
    #[arg(long, value_name = "IMAGE")]
    base: Option<PathBuf>,
    /// Report in JSON on standard output
    #[arg(long)]
    json: bool,
}

impl Args {
    /// Runs the command.
    pub(crate) fn run(self) -> Result<Outcome> {
        let paths = [self.open.image.as_path(), self.other.as_path()];
        let [one, two] = paths.map(tools::is_overlay_file);
        let is_overlay = [one?, two?];
        let device_of = |path: &Path| {
            let mut open = self.open.clone();
            open.image = path.to_owned();
            open_device(&open)
        };
        let base = match (is_overlay, &self.base) {
            ([false, false], _) => None,
            (_, Some(base)) => Some(device_of(base)?),
            ([false, true], None) => Some(device_of(paths[0])?),
            ([true, false], None) => Some(device_of(paths[1])?),
            ([true, true], None) => {
                anyhow::bail!("both are overlays; name the image below them with --base IMAGE")
            }
        };
        let side = |number: usize| -> Result<Side> {
            if is_overlay[number] {
                let base = base.clone().context("an overlay without its image")?;
                let overlay = open_to_read(base, paths[number])?;
                return Ok(Side::Overlay(Arc::new(overlay)));
            }
            // The image that was opened as the base already.
            let is_base = self.base.is_none() && is_overlay[1 - number];
            match base.clone().filter(|_| is_base) {
                Some(base) => Ok(Side::Image(base)),
                None => Ok(Side::Image(device_of(paths[number])?)),
            }
        };
        let (one, two) = (side(0)?, side(1)?);
        let bar = bar(Shape::Bytes, one.size_bytes());
        bar.set_message("comparing");
        let ranges = compare(&one, &two, base.is_some(), &mut |at| bar.set_position(at))?;
        bar.finish_and_clear();
        if self.json {
            let changed_bytes = ranges.iter().map(|range| range.len_bytes).sum();
            output::json(&Json {
                changed_bytes,
                ranges,
            })?;
            return Ok(Outcome::Done);
        }
        for range in &ranges {
            output::line(&format!("{} {}", range.offset_bytes, range.len_bytes))?;
        }
        Ok(Outcome::Done)
    }
}

#[derive(serde::Serialize)]
struct Json {
    changed_bytes: u64,
    ranges: Vec<Stretch>,
}

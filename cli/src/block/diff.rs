//! `sidecore block diff`.

use super::common::{OpenArgs, open_device};
use crate::{Outcome, output};
use anyhow::{Context, Result};
use sidecore_block::device::Device;
use sidecore_block::format::{FrameCheck, Index};
use sidecore_block::overlay::{Overlay, tools};
use sidecore_block::pack::diff;
use sidecore_block::source::BlockSource;
use std::ops::Range;
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

/// One of the two.
enum Side {
    Image(Arc<Device>),
    Overlay(Arc<Overlay>),
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
                let overlay = super::overlay::open_to_read(base, paths[number])?;
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
        let (a, b) = (one.source(), two.source());
        anyhow::ensure!(
            a.size_bytes() == b.size_bytes(),
            "the contents have {} and {} bytes; only those of one size are compared",
            a.size_bytes(),
            b.size_bytes()
        );
        let mut ranges: Vec<[u64; 2]> = Vec::new();
        let bar = output::byte_progress(a.size_bytes());
        bar.set_message("comparing");
        candidates(&one, &two, base.is_some(), &mut |range| {
            bar.set_position(range.start);
            diff(a, b, range, &mut |offset, len| match ranges.last_mut() {
                Some(last) if last[0] + last[1] == offset => last[1] += len,
                _ => ranges.push([offset, len]),
            })?;
            Ok(())
        })?;
        bar.finish_and_clear();
        if self.json {
            output::json(&Json::of(&ranges))?;
            return Ok(Outcome::Done);
        }
        for [offset, len] in &ranges {
            output::line(&format!("{offset} {len}"))?;
        }
        Ok(Outcome::Done)
    }
}

impl Side {
    fn source(&self) -> &dyn BlockSource {
        match self {
            Self::Image(device) => &**device,
            Self::Overlay(overlay) => &**overlay,
        }
    }

    /// The first extent at or behind `offset` that layers hold.
    fn next_changed(&self, offset: u64) -> Result<Option<Range<u64>>> {
        let Self::Overlay(overlay) = self else {
            return Ok(None);
        };
        let changed = overlay.next_changed(offset, usize::MAX)?;
        Ok(changed.map(|it| it.offset..it.offset + it.len))
    }
}

/// Calls `each` with extents, in order; outside of them the two are the same.
fn candidates(
    one: &Side,
    two: &Side,
    share_base: bool,
    each: &mut dyn FnMut(Range<u64>) -> Result<()>,
) -> Result<()> {
    let size = one.source().size_bytes();
    match (one, two) {
        (Side::Image(a), Side::Image(b)) if !share_base => {
            let (a, b) = (a.index(), b.index());
            match comparable(a, b) {
                false => each(0..size),
                true => {
                    let mut number = 0;
                    while number < a.frames() {
                        // Two holes are equal; a hole and data may differ.
                        let holes = a.hole_run(number).min(b.hole_run(number));
                        if holes > 0 {
                            number += holes;
                            continue;
                        }
                        let (one, two) = (a.frame(number), b.frame(number));
                        let is_same = one.stored_bytes == two.stored_bytes
                            && stored_check(one.check) == stored_check(two.check);
                        if !is_same {
                            each(one.raw_offset..one.raw_offset + u64::from(one.raw_bytes))?;
                        }
                        number += 1;
                    }
                    Ok(())
                }
            }
        }
        _ => {
            let mut offset = 0;
            while offset < size {
                let next = [one.next_changed(offset)?, two.next_changed(offset)?];
                // The first of both; an overlapping one comes with it or next.
                let Some(range) = next.into_iter().flatten().min_by_key(|it| it.start) else {
                    break;
                };
                offset = range.end;
                each(range)?;
            }
            Ok(())
        }
    }
}

/// True where frames with equal checksums hold the same.
fn comparable(a: &Index, b: &Index) -> bool {
    a.format() == b.format()
        && a.frames() == b.frames()
        && a.frame_bytes() == b.frame_bytes()
        && a.has_stored_checks()
        && b.has_stored_checks()
        && (a.is_even() && b.is_even()
            || (0..a.frames()).all(|i| a.frame(i).raw_offset == b.frame(i).raw_offset))
}

fn stored_check(check: FrameCheck) -> Option<u64> {
    match check {
        FrameCheck::Stored(check) | FrameCheck::Sealed(check, _) => Some(check),
        _ => None,
    }
}

#[derive(serde::Serialize)]
struct Json {
    changed_bytes: u64,
    ranges: Vec<Stretch>,
}

#[derive(serde::Serialize)]
struct Stretch {
    offset_bytes: u64,
    len_bytes: u64,
}

impl Json {
    fn of(ranges: &[[u64; 2]]) -> Self {
        let stretch = |&[offset_bytes, len_bytes]: &[u64; 2]| Stretch {
            offset_bytes,
            len_bytes,
        };
        Self {
            changed_bytes: ranges.iter().map(|range| range[1]).sum(),
            ranges: ranges.iter().map(stretch).collect(),
        }
    }
}

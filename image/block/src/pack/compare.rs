//! Differing ranges of two images or overlays.
//!
//! Why here: what layers or the images' checksums say to be the same is not read.

use super::{PackError, diff};
use crate::device::Device;
use crate::format::{FrameCheck, Index};
use crate::overlay::tools::is_overlay_file;
use crate::overlay::{Overlay, OverlayError, open_to_read};
use crate::source::BlockSource;
use sidecore_terminal::Text;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// One of the two.
pub enum Side {
    /// An image.
    Image(Arc<Device>),
    /// Layers above one.
    Overlay(Arc<Overlay>),
}

/// A stretch that differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct Stretch {
    /// Its first byte.
    pub offset_bytes: u64,
    /// Its length.
    pub len_bytes: u64,
}

/// All that differs.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Differences {
    /// Bytes of all stretches.
    pub changed_bytes: u64,
    /// The stretches, in order.
    pub ranges: Vec<Stretch>,
}

impl Differences {
    /// A line for each stretch: its first byte and its length.
    #[must_use]
    pub fn text(&self) -> Text {
        let mut text = Text::new();
        let ranges = self.ranges.iter();
        text.lines(ranges.map(|range| format!("{} {}", range.offset_bytes, range.len_bytes)));
        text
    }
}

/// Reasons why two contents are not compared.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CompareError {
    /// Nothing says what both stand on.
    #[error("both are overlays; name the image below them with --base IMAGE")]
    NoBase,
    /// They have two sizes.
    #[error("the contents have {0} and {1} bytes; only those of one size are compared")]
    Sizes(u64, u64),
    /// One of them cannot be read.
    #[error(transparent)]
    Contents(#[from] PackError),
    /// A map of an overlay cannot be read.
    #[error(transparent)]
    Map(#[from] OverlayError),
}

/// Opens the two files, each an image or an overlay, and says whether they share a base: `base`,
/// which overlays stand on, or else the one of them that is an image. An image that is both a side
/// and the base is opened twice.
///
/// # Errors
/// Those of `open`, and [`CompareError`].
pub fn sides<E: From<CompareError>>(
    paths: [&Path; 2],
    base: Option<&Path>,
    open: impl Fn(&Path) -> Result<Arc<Device>, E>,
) -> Result<([Side; 2], bool), E> {
    let is_overlay = |path| is_overlay_file(path).map_err(CompareError::Map);
    let [one, two] = [is_overlay(paths[0])?, is_overlay(paths[1])?];
    // The image below, and the place of that side which is this image itself.
    let (base, is_base) = match (one, two, base) {
        (false, false, _) => {
            let sides = [Side::Image(open(paths[0])?), Side::Image(open(paths[1])?)];
            return Ok((sides, false));
        }
        (_, _, Some(base)) => (open(base)?, None),
        (false, true, None) => (open(paths[0])?, Some(0)),
        (true, false, None) => (open(paths[1])?, Some(1)),
        (true, true, None) => return Err(CompareError::NoBase.into()),
    };
    let side = |number: usize, is_overlay: bool| -> Result<Side, E> {
        Ok(match (is_overlay, is_base == Some(number)) {
            (true, _) => {
                let overlay = open_to_read(Arc::clone(&base), paths[number]);
                Side::Overlay(Arc::new(overlay.map_err(CompareError::Map)?))
            }
            (false, true) => Side::Image(Arc::clone(&base)),
            (false, false) => Side::Image(open(paths[number])?),
        })
    };
    Ok(([side(0, one)?, side(1, two)?], true))
}

/// Compares two sides in blocks of 4 KiB; `share_base`: an overlay among them stands on the other,
/// or both on one image. `progress` gets the place.
///
/// # Errors
/// [`CompareError`].
pub fn compare(
    one: &Side,
    two: &Side,
    share_base: bool,
    progress: &mut dyn FnMut(u64),
) -> Result<Differences, CompareError> {
    let (a, b) = (one.source(), two.source());
    if a.size_bytes() != b.size_bytes() {
        return Err(CompareError::Sizes(a.size_bytes(), b.size_bytes()));
    }
    let mut found: Vec<Stretch> = Vec::new();
    candidates(one, two, share_base, &mut |range| {
        progress(range.start);
        diff(a, b, range, &mut |offset, len| match found.last_mut() {
            // Candidates that touch may differ on both sides of their border.
            Some(last) if last.offset_bytes + last.len_bytes == offset => last.len_bytes += len,
            _ => found.push(Stretch {
                offset_bytes: offset,
                len_bytes: len,
            }),
        })?;
        Ok(())
    })?;
    Ok(Differences {
        changed_bytes: found.iter().map(|range| range.len_bytes).sum(),
        ranges: found,
    })
}

impl Side {
    /// Bytes of its contents.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.source().size_bytes()
    }

    fn source(&self) -> &dyn BlockSource {
        match self {
            Self::Image(device) => &**device,
            Self::Overlay(overlay) => &**overlay,
        }
    }

    /// The first extent at or behind `offset` that layers hold.
    fn next_changed(&self, offset: u64) -> Result<Option<Range<u64>>, OverlayError> {
        let Self::Overlay(overlay) = self else {
            return Ok(None);
        };
        let changed = overlay.next_changed(offset, usize::MAX)?;
        Ok(changed.map(|it| it.offset..it.offset + it.len))
    }
}

type Each<'a> = &'a mut dyn FnMut(Range<u64>) -> Result<(), CompareError>;

/// Calls `each` with extents, in order; outside of them the two are the same.
fn candidates(
    one: &Side,
    two: &Side,
    share_base: bool,
    each: Each<'_>,
) -> Result<(), CompareError> {
    match (one, two) {
        (Side::Image(a), Side::Image(b)) if !share_base => {
            let (a, b) = (a.index(), b.index());
            match comparable(a, b) {
                true => frames(a, b, each),
                false => each(0..one.source().size_bytes()),
            }
        }
        _ => changes(one, two, each),
    }
}

/// Frames that are not stored as the same bytes.
fn frames(a: &Index, b: &Index, each: Each<'_>) -> Result<(), CompareError> {
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

/// Extents that layers of either side hold.
fn changes(one: &Side, two: &Side, each: Each<'_>) -> Result<(), CompareError> {
    let size = one.source().size_bytes();
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

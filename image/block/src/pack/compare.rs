//! Differing ranges of two images or overlays; and an overlay's contents above another image.
//!
//! Why here: what layers or the images' checksums say to be the same is not read, and only what
//! differs is put into a new overlay.

use super::{PackError, diff};
use crate::device::Device;
use crate::format::{FrameCheck, Index};
use crate::overlay::identity::Identity;
use crate::overlay::tools::{draft, is_overlay_file, unmade};
use crate::overlay::{Overlay, OverlayError, grain, open_to_read};
use crate::source::{BlockSource, BlockWrites, ReadError, WriteError};
use sidecore_bare::text::bytes;
use sidecore_bare::width::{ToU64, ToUsize};
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
    /// A map of an overlay cannot be read, or a new overlay cannot be made.
    #[error(transparent)]
    Map(#[from] OverlayError),
    /// An overlay's contents cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A new overlay cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The contents would be in the clear.
    #[error(
        "the overlay is encrypted, and an overlay on {0} would not be; name an image that is \
         encrypted, or write the contents with `sidecore block export`"
    )]
    InTheClear(String),
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

/// Result of [`rebase`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct Rebased {
    /// Size of the device in bytes.
    pub raw_bytes: u64,
    /// Bytes of it that differ from the image below, in blocks of 4 KiB.
    pub changed_bytes: u64,
    /// Bytes of the new overlay that hold grains and the map.
    pub stored_bytes: u64,
    /// Number of layers that it replaces.
    pub layers: usize,
}

impl Rebased {
    /// The overlay at `new`, on the image that is called `name`, for people.
    #[must_use]
    pub fn text(&self, new: &Path, name: &str) -> Text {
        let (new, layers) = (new.display(), self.layers);
        let (changed, raw) = (bytes(self.changed_bytes), bytes(self.raw_bytes));
        let plural = if layers == 1 { "" } else { "s" };
        format!("{new}: {layers} layer{plural} as one on {name}; {changed} of {raw} differ").into()
    }
}

/// Makes an overlay at `new`, which must not be there yet, with the contents of `image` and the
/// overlay at `path` above it. It stands on `onto`, called `name`: the same image, to have one
/// layer in place of several, or another one. The new overlay has grains of `grain_bytes`, or of
/// the old one's size. `progress` gets the place.
///
/// # Errors
/// [`CompareError`]; there is no new file then. [`CompareError::InTheClear`] where only the old
/// image is encrypted; [`OverlayError::Size`] where the new one is larger than the device.
pub fn rebase(
    (image, path): (&Arc<Device>, &Path),
    (onto, name): (&Arc<Device>, &str),
    (new, grain_bytes): (&Path, Option<u64>),
    progress: &mut dyn FnMut(u64),
) -> Result<Rebased, CompareError> {
    let (below, identity) = (identity_of(image)?, identity_of(onto)?);
    if below.key.is_some() && identity.key.is_none() {
        return Err(CompareError::InTheClear(name.to_owned()));
    }
    let from = open_to_read(Arc::clone(image), path)?;
    let raw_bytes = from.size_bytes();
    let grain_bytes = grain_bytes.unwrap_or_else(|| from.grain_bytes().into());
    let sizes = (raw_bytes, grain(Some(grain_bytes), raw_bytes));
    let base: Arc<dyn BlockSource> = Arc::clone(onto) as _;
    let (output, to) = draft(new, (base, &identity), sizes, name)?;
    let mut changed_bytes = 0;
    let mut put = |range: Range<u64>| {
        changed_bytes += put_differences(&from, &to, range, progress)?;
        Ok::<(), CompareError>(())
    };
    // Of an image without checksums an identity covers its ends alone: another one of the same
    // size may have it, too.
    let is_certain = Arc::ptr_eq(image, onto) || onto.index().is_checked();
    match is_certain && below.hash == identity.hash {
        // Where no layer has anything, both are the image.
        true => {
            let mut at = 0;
            while let Some(changed) = from.next_changed(at, usize::MAX)? {
                at = changed.offset + changed.len;
                put(changed.offset..at)?;
            }
        }
        false => put(0..raw_bytes)?,
    }
    to.close()?;
    let stored_bytes = to.used().bytes;
    drop(to);
    output.finish().map_err(|error| unmade(error).of(new))?;
    Ok(Rebased {
        raw_bytes,
        changed_bytes,
        stored_bytes,
        layers: from.layers(),
    })
}

fn identity_of(device: &Device) -> Result<Identity, OverlayError> {
    Identity::of(device.index(), device.image()).map_err(OverlayError::read)
}

/// Writes to `to` what differs in `from`; returns the number of these bytes.
fn put_differences(
    from: &Overlay,
    to: &Overlay,
    range: Range<u64>,
    progress: &mut dyn FnMut(u64),
) -> Result<u64, CompareError> {
    let mut changed_bytes = 0;
    let mut at = range.start;
    while at < range.end {
        progress(at);
        // A step at a time: the list of what differs is bounded.
        let end = range.end.min(at.saturating_add(STEP_BYTES));
        let mut found = Vec::new();
        diff(from, to, at..end, &mut |offset, len| {
            found.push(offset..offset + len);
        })?;
        for range in found {
            changed_bytes += range.end - range.start;
            put_contents(from, to, range)?;
        }
        at = end;
    }
    Ok(changed_bytes)
}

/// Copies a range; zeros take no room.
fn put_contents(from: &Overlay, to: &Overlay, range: Range<u64>) -> Result<(), CompareError> {
    let len = range.end - range.start;
    let mut piece = vec![0; len.min(PIECE_BYTES.to_u64()).to_usize()];
    let mut at = range.start;
    while at < range.end {
        let left = range.end - at;
        let extent = from.extent(at);
        let len = match extent.zero {
            true => extent.len.clamp(1, left),
            false => left.min(PIECE_BYTES.to_u64()),
        };
        if extent.zero {
            to.write_zeroes(at, len)?;
        } else {
            let piece = &mut piece[..len.to_usize()];
            from.read_into(at, piece)?;
            to.write(at, piece)?;
        }
        at += len;
    }
    Ok(())
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

/// Bytes that are compared before those that differ are written.
const STEP_BYTES: u64 = 64 << 20;
/// Bytes that are copied at once.
const PIECE_BYTES: usize = 1 << 20;

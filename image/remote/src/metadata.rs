//! The metadata of a tree in a remote image: frames that a walk over it needs first.

use crate::HEAD_BYTES;
use sidecore_block::format::{Frame, FrameReader, Index};
use sidecore_block::image::Image;
use sidecore_block::inner::metadata_end;

/// Frames of a tree's metadata that are worth a prefetch, from the first one that did not come with
/// the image's head. Without it, a walk over a remote tree waits a round trip for every few of
/// them. Empty for any other image.
#[must_use]
pub(crate) fn frames_of_metadata(image: &Image, index: &Index) -> Vec<u64> {
    let first = (index.frames() > 0 && !index.is_zero(0)).then(|| index.frame(0));
    // Bytes beyond the head are not here yet; the mount fetches them anyway.
    let is_here = |frame: &Frame| frame.offset + u64::from(frame.stored_bytes) <= HEAD_BYTES;
    let Some(first) = first.filter(is_here) else {
        return Vec::new();
    };
    let mut reader = FrameReader::of(index, false);
    // A damaged frame is reported to its reader.
    let end = reader.read(image, &first).ok().and_then(metadata_end);
    let end = end.unwrap_or(0).min(index.raw_bytes());
    let frames = match end {
        0 => 0,
        end => index.frame_at(end - 1) + 1,
    };
    let mut bytes = 0;
    let is_worth_it = |frame: &u64| {
        bytes += u64::from(index.frame(*frame).stored_bytes);
        bytes <= METADATA_BYTES
    };
    index.stored_in(0..frames).take_while(is_worth_it).collect()
}

/// Compressed metadata that one prefetch covers: those of some 60,000 files. The first up to 320
/// KiB came with the first replies and are not fetched again.
const METADATA_BYTES: u64 = 1 << 20;

//! An image's contents, back in a file.

use super::walk::Walk;
use super::{PackError, Sink, Target, open_image, workers};
use crate::format::{Frame, FrameReader, Index};
use crate::image::Image;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Result of [`unpack`].
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Unpacked {
    /// Bytes of contents.
    pub raw_bytes: u64,
    /// Frames that were inflated.
    pub frames: u64,
    /// Frames that are all zeros: holes in the file where the file system has those.
    pub zero_frames: u64,
}

/// Writes the contents of the image at `path` to `target`, `engines` inflating. `progress` is
/// called on this thread with the bytes that are done.
///
/// # Errors
/// [`PackError`]: the first damaged frame ends it, and nothing then stands under the target's name.
pub fn unpack(
    path: &Path,
    target: Target<'_>,
    engines: usize,
    progress: &mut (dyn FnMut(u64) + Send),
) -> Result<Unpacked, PackError> {
    let image = Image::from(open_image(path)?);
    let index = image.index(false)?;
    unpack_image(&image, &index, target, engines, progress)
}

/// As [`unpack`], of an image that was opened and whose index was read.
///
/// # Errors
/// As [`unpack`].
pub fn unpack_image(
    image: &Image,
    index: &Index,
    target: Target<'_>,
    engines: usize,
    progress: &mut (dyn FnMut(u64) + Send),
) -> Result<Unpacked, PackError> {
    index.check_unlocked()?;
    let metadata = image.file().and_then(|file| file.metadata().ok());
    let identity = metadata.map(|found| (found.dev(), found.ino()));
    let mut sink = Sink::open(target, identity)?;
    let mut walk = Walk::new(image, index);
    let mut zero_frames = 0;
    workers::run_frames(
        &super::engines(engines)?,
        index.frame_bytes() as usize,
        || (Default::default(), Vec::new(), false),
        || Ok(FrameReader::of(index, false)),
        |(step, ..)| Ok(walk.next(step)),
        |reader, (step, raw, zero)| {
            let frame = index.frame(step.frame);
            let bytes = step
                .read(reader, image, &frame)
                .map_err(|source| bad(step.frame, &frame, source))?;
            raw.clear();
            raw.extend_from_slice(bytes);
            *zero = crate::format::write::is_zero(raw);
            Ok(())
        },
        |(_, raw, zero)| -> Result<(), PackError> {
            if *zero {
                zero_frames += 1;
                sink.skip_zeros(raw)?;
            } else {
                sink.write(raw)?;
            }
            progress(sink.offset);
            Ok(())
        },
    )?;
    sink.finish(None)?;
    Ok(Unpacked {
        raw_bytes: index.raw_bytes(),
        frames: index.frames(),
        zero_frames,
    })
}

fn bad(number: u64, frame: &Frame, source: crate::format::FrameError) -> PackError {
    PackError::Frame {
        frame: number,
        offset: frame.raw_offset,
        end: frame.raw_offset + u64::from(frame.raw_bytes),
        source,
    }
}

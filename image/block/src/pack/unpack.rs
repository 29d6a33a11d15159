//! Unpacks an image's contents into a file.

use super::walk::{Step, Walk};
use super::{PackError, Sink, Target, Work, open_image, workers};
use crate::format::{Frame, FrameReader, Index};
use crate::image::Image;
use sidecore_bare::width::{ToU64, ToUsize};
use sidecore_terminal::Text;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Result of [`unpack`].
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Unpacked {
    /// Bytes of contents.
    pub raw_bytes: u64,
    /// Frames that were decompressed.
    pub frames: u64,
    /// Frames that are all zeros: holes in the file where the file system has those.
    pub zero_frames: u64,
}

impl Unpacked {
    /// The file at `path`, written in `seconds`, for people.
    #[must_use]
    pub fn text(&self, path: &Path, seconds: f64) -> Text {
        super::written(path, self.raw_bytes, seconds)
    }
}

/// Writes the contents of the image at `path` to `target`, with these engines and bounds.
/// `progress` is called on this thread with the number of bytes done.
///
/// # Errors
/// [`PackError`]: the first damaged frame ends it; the target is then unchanged.
pub fn unpack(
    path: &Path,
    target: Target<'_>,
    work: impl Into<Work>,
    progress: &mut (dyn FnMut(u64) + Send),
) -> Result<Unpacked, PackError> {
    let image = Image::from(open_image(path)?);
    let index = image.index(false)?;
    unpack_image(&image, &index, target, work, progress)
}

/// As [`unpack`], for an open image whose index was read.
///
/// # Errors
/// As [`unpack`].
pub fn unpack_image(
    image: &Image,
    index: &Index,
    target: Target<'_>,
    work: impl Into<Work>,
    progress: &mut (dyn FnMut(u64) + Send),
) -> Result<Unpacked, PackError> {
    index.check_unlocked()?;
    let work = work.into();
    let jobs = work.jobs(index.memory_bytes().to_u64(), job_bytes(index))?;
    // The target must not be the image under another name.
    let metadata = image.file().and_then(|file| file.metadata().ok());
    let identity = metadata.map(|found| (found.dev(), found.ino()));
    let mut sink = Sink::open(target, identity)?;
    let mut walk = Walk::new(image, index);
    let mut zero_frames = 0;
    workers::run_frames(
        &super::engines(work.engines)?,
        index.frame_bytes().to_usize(),
        jobs,
        Job::default,
        || Ok(FrameReader::of(index, false)),
        |job| {
            work.check_time()?;
            Ok(walk.next(&mut job.step))
        },
        |reader, job| {
            if job.step.holes > 0 {
                return Ok(());
            }
            let frame = index.frame(job.step.frame);
            let read = job.step.read(reader, image, &frame, &mut job.raw);
            read.map_err(|source| bad(frame.number, &frame, source))?;
            // Also found in images that do not mark zeros: holes of the output save space.
            job.is_zero = crate::format::write::is_zero(&job.raw);
            Ok(())
        },
        |job| -> Result<(), PackError> {
            if job.step.holes > 0 {
                zero_frames += job.step.holes;
                sink.skip_zeros(run_bytes(index, job.step.frame, job.step.holes))?;
            } else if job.is_zero {
                zero_frames += 1;
                sink.skip_zeros(job.raw.len().to_u64())?;
            } else {
                sink.write(&job.raw)?;
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

/// A frame in progress, or a run of holes.
#[derive(Default)]
struct Job {
    step: Step,
    raw: Vec<u8>,
    is_zero: bool,
}

/// Memory of one frame in progress.
pub(super) fn job_bytes(index: &Index) -> u64 {
    u64::from(index.frame_bytes()) + u64::from(index.stored_bytes_max())
}

/// Contents of a run of frames in bytes.
pub(super) fn run_bytes(index: &Index, first: u64, frames: u64) -> u64 {
    let last = index.frame(first + frames - 1);
    last.raw_offset + u64::from(last.raw_bytes) - index.frame(first).raw_offset
}

fn bad(number: u64, frame: &Frame, source: crate::format::FrameError) -> PackError {
    PackError::Frame {
        frame: number,
        offset: frame.raw_offset,
        end: frame.raw_offset + u64::from(frame.raw_bytes),
        source,
    }
}

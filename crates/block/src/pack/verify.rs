//! Inflating every frame of an image and checking it against everything that the image carries.

use super::walk::{Step, Walk};
use super::{PackError, open_image, workers};
use crate::format::audit::Audit;
use crate::format::{FrameError, FrameReader, Index, write::is_zero};
use crate::image::Image;
use std::path::Path;

/// A frame that cannot be had.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct BadFrame {
    /// Its number.
    pub frame: u64,
    /// Offset of its contents in the device.
    pub raw_offset: u64,
    /// Bytes of contents lost.
    pub raw_bytes: u32,
    /// The fault that was found.
    pub reason: String,
}

/// Result of [`verify`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verified {
    /// The format's name.
    pub format: &'static str,
    /// Number of frames.
    pub frames: u64,
    /// The first thousand of them that are damaged.
    pub bad_frames: Vec<BadFrame>,
    /// Number of damaged frames in all.
    pub bad_frames_total: u64,
    /// Faults of tables that the image was read without, a line each.
    pub table_faults: Vec<String>,
    /// Bytes of contents that were inflated and checked.
    pub raw_bytes: u64,
    /// Checksums that frames were checked with, for people.
    pub checksums: &'static str,
}

/// Verifies the image at `path`, `engines` inflating. `progress` is called, on one thread, with the
/// bytes of contents that are done.
///
/// # Errors
/// [`PackError`] when the image cannot be opened at all. Damaged frames are no error: they are what
/// is looked for.
pub fn verify(
    path: &Path,
    engines: usize,
    progress: &mut (dyn FnMut(u64) + Send),
) -> Result<Verified, PackError> {
    let image = Image::from(open_image(path)?);
    let index = image.index(false)?;
    verify_image(&image, &index, engines, progress)
}

/// As [`verify`], of an image that was opened and whose index was read.
///
/// # Errors
/// [`PackError`] when no engine can be had.
pub fn verify_image(
    image: &Image,
    index: &Index,
    engines: usize,
    progress: &mut (dyn FnMut(u64) + Send),
) -> Result<Verified, PackError> {
    index.check_unlocked()?;
    let mut report = Verified {
        format: index.format().name(),
        frames: index.frames(),
        bad_frames: Vec::new(),
        bad_frames_total: 0,
        table_faults: Vec::new(),
        raw_bytes: 0,
        checksums: index.checksums(),
    };
    let mut audit = Audit::begin(image, index)?;
    let mut walk = Walk::new(image, index);
    let mut done = 0;
    workers::run_frames(
        &super::engines(engines)?,
        index.frame_bytes() as usize,
        || (Step::default(), None, 0),
        || Ok(FrameReader::of(index, true)),
        |(step, ..)| Ok(walk.next(step)),
        |reader, (step, fault, end)| {
            let number = step.frame;
            *fault = match step.read(reader, image, &index.frame(number)) {
                Ok(raw) if index.is_zero(number) && !is_zero(raw) => Some(FrameError::NotZero),
                Ok(_) => None,
                Err(error) => Some(error),
            };
            *end = reader.stored_end();
            Ok(())
        },
        |(step, fault, end)| -> Result<(), PackError> {
            let number = step.frame;
            let frame = index.frame(number);
            done += u64::from(frame.raw_bytes);
            progress(done);
            audit.frame(&frame, fault.is_none().then_some(*end))?;
            let Some(fault) = fault.take() else {
                report.raw_bytes += u64::from(frame.raw_bytes);
                return Ok(());
            };
            report.bad_frames_total += 1;
            if report.bad_frames.len() < BAD_FRAMES_MAX {
                report.bad_frames.push(BadFrame {
                    frame: number,
                    raw_offset: frame.raw_offset,
                    raw_bytes: frame.raw_bytes,
                    reason: fault.to_string(),
                });
            }
            Ok(())
        },
    )?;
    report.table_faults = audit.finish(index)?;
    Ok(report)
}

/// A thoroughly damaged image of a terabyte should not fill the memory with messages.
const BAD_FRAMES_MAX: usize = 1000;

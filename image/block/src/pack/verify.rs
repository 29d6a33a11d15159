//! Verifies an image: decompresses every frame and checks it against all checksums and tables.

use super::unpack::{job_bytes, run_bytes};
use super::walk::{Step, Walk};
use super::{PackError, Work, open_image, workers};
use crate::format::audit::Audit;
use crate::format::{FrameError, FrameReader, Index, write::is_zero};
use crate::image::Image;
use sidecore_bare::text::bytes;
use sidecore_bare::width::{ToU64, ToUsize};
use sidecore_terminal::Text;
use std::path::Path;

/// A frame that is damaged.
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

/// Result of [`verify`]. JSON has the numbers of damaged frames, and the faults.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[serde(into = "Json")]
pub struct Verified {
    /// The format's name.
    pub format: &'static str,
    /// Number of frames.
    pub frames: u64,
    /// The first thousand of them that are damaged.
    pub bad_frames: Vec<BadFrame>,
    /// Number of damaged frames in all.
    pub bad_frames_total: u64,
    /// Faults of tables that reading did not need, one a line.
    pub table_faults: Vec<String>,
    /// Bytes of contents that were decompressed and checked.
    pub raw_bytes: u64,
    /// Kind of checksums that frames were checked with, for messages.
    pub checksums: &'static str,
    /// True where the image has the digest that its manifest names; `None` unless the caller has
    /// compared them.
    pub digest_matches: Option<bool>,
}

impl Verified {
    /// True where no frame and no table is damaged, and no digest is another one.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let is_damaged = self.bad_frames_total > 0 || !self.table_faults.is_empty();
        !is_damaged && self.digest_matches != Some(false)
    }

    /// The damage, and a line about the image `name`, which took `seconds`.
    #[must_use]
    pub fn text(&self, name: &str, seconds: f64) -> Text {
        let mut text = Text::new();
        for bad in &self.bad_frames {
            text.line(format!(
                "frame {} (contents from byte {}, {} bytes): {}",
                bad.frame, bad.raw_offset, bad.raw_bytes, bad.reason
            ));
        }
        for fault in &self.table_faults {
            let contents = match self.bad_frames_total {
                0 => "the contents are whole: unpack it and pack it again",
                _ => "it was read without",
            };
            text.line(format!("{fault}; {contents}"));
        }
        text.line(format!(
            "{name}: {} of {} frames damaged, {} sound in {seconds:.1} s; checksums: {}",
            self.bad_frames_total,
            self.frames,
            bytes(self.raw_bytes),
            self.checksums,
        ));
        match self.digest_matches {
            None => {}
            Some(true) => text.line("the layer has the digest that its manifest names"),
            Some(false) => text.line("the layer does not have the digest of its manifest"),
        }
        text
    }
}

/// Result of [`verify`] as programs read it.
#[derive(serde::Serialize)]
struct Json {
    format: &'static str,
    frames: u64,
    bad_frames: Vec<u64>,
    bad_frames_total: u64,
    faults: Vec<BadFrame>,
    table_faults: Vec<String>,
    raw_bytes: u64,
    checksums: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    digest_matches: Option<bool>,
}

impl From<Verified> for Json {
    fn from(verified: Verified) -> Self {
        Self {
            format: verified.format,
            frames: verified.frames,
            bad_frames: verified.bad_frames.iter().map(|bad| bad.frame).collect(),
            bad_frames_total: verified.bad_frames_total,
            faults: verified.bad_frames,
            table_faults: verified.table_faults,
            raw_bytes: verified.raw_bytes,
            checksums: verified.checksums,
            digest_matches: verified.digest_matches,
        }
    }
}

/// Verifies the image at `path`, with these engines and bounds. `progress` is called, on one
/// thread, with the number of bytes of contents done.
///
/// # Errors
/// [`PackError`] when the image cannot be opened at all. Damaged frames are not an error: the
/// report lists them.
pub fn verify(
    path: &Path,
    work: impl Into<Work>,
    progress: &mut (dyn FnMut(u64) + Send),
) -> Result<Verified, PackError> {
    let image = Image::from(open_image(path)?);
    let index = image.index(false)?;
    verify_image(&image, &index, work, progress)
}

/// As [`verify`], for an open image whose index was read.
///
/// # Errors
/// [`PackError`] when no engine can be started.
pub fn verify_image(
    image: &Image,
    index: &Index,
    work: impl Into<Work>,
    progress: &mut (dyn FnMut(u64) + Send),
) -> Result<Verified, PackError> {
    index.check_unlocked()?;
    let work = work.into();
    let jobs = work.jobs(index.memory_bytes().to_u64(), job_bytes(index))?;
    let mut report = Verified {
        format: index.format().name(),
        frames: index.frames(),
        bad_frames: Vec::new(),
        bad_frames_total: 0,
        table_faults: Vec::new(),
        raw_bytes: 0,
        checksums: index.checksums(),
        digest_matches: None,
    };
    let mut audit = Audit::begin(image, index)?;
    let mut walk = Walk::new(image, index);
    let mut done = 0;
    workers::run_frames(
        &super::engines(work.engines)?,
        index.frame_bytes().to_usize(),
        jobs,
        Job::default,
        // All checks are on: a verified frame must match every checksum that the image carries.
        || Ok(FrameReader::of(index, true)),
        |job| {
            work.check_time()?;
            Ok(walk.next(&mut job.step))
        },
        |reader, job| {
            if job.step.holes > 0 {
                return Ok(());
            }
            let number = job.step.frame;
            let frame = index.frame(number);
            // A frame marked as zeros would be served as zeros, so its bytes must agree.
            job.fault = match job.step.read(reader, image, &frame, &mut job.raw) {
                Ok(()) if index.is_zero(number) && !is_zero(&job.raw) => Some(FrameError::NotZero),
                Ok(()) => None,
                Err(error) => Some(error),
            };
            job.stored_end = reader.stored_end();
            Ok(())
        },
        |job| -> Result<(), PackError> {
            let number = job.step.frame;
            if job.step.holes > 0 {
                let bytes = run_bytes(index, number, job.step.holes);
                report.raw_bytes += bytes;
                done += bytes;
                progress(done);
                return Ok(());
            }
            let frame = index.frame(number);
            done += u64::from(frame.raw_bytes);
            progress(done);
            let fault = &mut job.fault;
            // The last bytes are known of sound frames only.
            audit.frame(&frame, fault.is_none().then_some(job.stored_end))?;
            let Some(fault) = fault.take() else {
                report.raw_bytes += u64::from(frame.raw_bytes);
                return Ok(());
            };
            report.bad_frames_total += 1;
            // All damaged frames are counted, but only the first are listed.
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

/// A frame in progress, or a run of holes.
#[derive(Default)]
struct Job {
    step: Step,
    raw: Vec<u8>,
    fault: Option<FrameError>,
    stored_end: u32,
}

/// A thoroughly damaged image of a terabyte should not fill the memory with messages.
const BAD_FRAMES_MAX: usize = 1000;

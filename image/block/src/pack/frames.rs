//! The life of a packed frame: read from the source, compressed by an engine, written in order.

use super::cut::Cutter;
use super::sink::Sink;
use super::source::Filled;
use super::{Options, PackError, Source, Work};
use crate::codec::{self, CodecId, Deflater};
use crate::format::FormatError;
use crate::format::lock::FrameKey;
use crate::format::write::{ImageWriter, Packed, is_zero};
use sidecore_bare::width::ToU64;
use std::sync::Arc;

/// One frame on its way, or a run of frames of zeros.
#[derive(Debug)]
pub(super) struct Job {
    number: u64,
    /// Number of frames that it stands for.
    repeats: u64,
    source_bytes: u64,
    /// A whole frame of zeros, for which `raw` has only the length.
    hole: bool,
    raw: Vec<u8>,
    stored: Vec<u8>,
    packed: Packed,
}

impl Default for Job {
    fn default() -> Self {
        Self {
            number: 0,
            repeats: 1,
            source_bytes: 0,
            hole: false,
            raw: Vec::new(),
            stored: Vec::new(),
            packed: Packed::of(&[], &[]),
        }
    }
}

impl Job {
    /// Gives the frame its leaf.
    fn seal(&mut self) {
        self.packed = self.packed.with_leaf(self.number, &self.stored);
    }
}

/// State of an engine from frame to frame.
pub(super) struct Kernel {
    deflater: Box<dyn Deflater>,
    /// A whole frame of zeros, once one has been compressed: all are the same.
    zeros: Option<(Vec<u8>, Packed)>,
    /// Frames are to have leaves.
    is_sealed: bool,
    /// Frames of zeros are holes.
    is_thin: bool,
    /// The key of an image to be encrypted.
    key: Option<Arc<FrameKey>>,
}

impl Kernel {
    pub(super) fn new(
        options: &Options,
        is_sealed: bool,
        is_thin: bool,
        key: Option<Arc<FrameKey>>,
    ) -> Result<Self, PackError> {
        let codec = options.format.codec();
        let deflater = codec::make_tuned_deflater(codec, options.level, options.tune)
            .map_err(FormatError::from)?;
        Ok(Self {
            deflater,
            zeros: None,
            is_sealed,
            is_thin,
            key,
        })
    }
}

/// The kernel: compresses and describes one frame.
pub(super) fn deflate(kernel: &mut Kernel, job: &mut Job) -> Result<(), PackError> {
    if kernel.is_thin {
        // Frames that were read may also be zeros.
        job.hole = job.hole || is_zero(&job.raw);
        if job.hole {
            return Ok(());
        }
    }
    let known = kernel.zeros.as_ref().filter(|_| job.hole);
    match known {
        Some((stored, packed)) => {
            job.stored.clone_from(stored);
            job.packed = *packed;
        }
        None => {
            if job.hole {
                job.raw.fill(0);
            }
            let deflated = kernel.deflater.deflate(&job.raw, &mut job.stored);
            deflated.map_err(|source| PackError::Deflate {
                frame: job.number,
                source,
            })?;
            job.packed = Packed::of(&job.stored, &job.raw);
            if job.hole {
                kernel.zeros = Some((job.stored.clone(), job.packed));
            }
        }
    }
    // Encrypted after compression, and sealed after encryption: the leaf covers the stored bytes.
    if let Some(key) = &kernel.key {
        let (number, raw_bytes) = (job.number, job.packed.raw_bytes);
        let encrypted = key.encrypt(number, raw_bytes, &mut job.stored);
        encrypted.map_err(|_| PackError::Encrypt { frame: number })?;
        job.packed = job.packed.with_stored(&job.stored);
    }
    if kernel.is_sealed {
        job.seal();
    }
    Ok(())
}

/// Treatment of whole frames of zeros that the source reports as holes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HoleRuns {
    /// A thin image: a run of any length is one entry.
    Listed,
    /// All are alike: one is compressed, and written for each.
    Repeated,
    /// Each is compressed.
    Single,
}

/// The first step: makes jobs of the source's contents, in order.
pub(super) struct Reading {
    pub(super) source: Source,
    /// The cutter of frames that follow the contents.
    pub(super) cutter: Option<Cutter>,
    /// Contents of a frame; of the largest where they follow the contents.
    pub(super) frame_bytes: usize,
    /// True if the last frame is filled with zeros.
    pub(super) pads: bool,
    pub(super) holes: HoleRuns,
    /// Frames so far.
    pub(super) frames: u64,
    pub(super) work: Work,
}

impl Reading {
    /// Sets `job` to the next frame or run of frames; false at the source's end.
    pub(super) fn next(&mut self, job: &mut Job) -> Result<bool, PackError> {
        self.work.check_time()?;
        // Frame numbers are given here, in order, because encryption and leaves depend on them.
        job.number = self.frames;
        let found = match &mut self.cutter {
            Some(cutter) => cutter.next(&mut self.source, &mut job.raw)?,
            None => {
                job.raw.resize(self.frame_bytes, 0);
                self.source.fill(&mut job.raw)?
            }
        };
        let (Filled::Bytes(filled) | Filled::Zeros(filled)) = found;
        job.source_bytes = filled.to_u64();
        job.hole = found == Filled::Zeros(self.frame_bytes);
        job.repeats = 1;
        if job.hole {
            let more = match self.holes {
                HoleRuns::Listed => u64::MAX,
                HoleRuns::Repeated => REPEATS_MAX - 1,
                HoleRuns::Single => 0,
            };
            job.repeats += self.source.skip_frames(self.frame_bytes, more);
            job.source_bytes *= job.repeats;
        }
        match found {
            _ if job.hole => {}
            Filled::Zeros(_) => job.raw.fill(0),
            Filled::Bytes(_) => job.raw[filled..].fill(0),
        }
        // A format without padding stores the last frame at its real length.
        if !self.pads {
            job.raw.truncate(filled);
        }
        self.frames += job.repeats * u64::from(filled > 0);
        Ok(filled > 0)
    }
}

/// The last step: writes compressed frames, in order, and counts.
pub(super) struct Writing<'p> {
    pub(super) sink: Sink,
    pub(super) writer: Box<dyn ImageWriter>,
    pub(super) codec: CodecId,
    /// A thin image, in which holes are entries of a list.
    pub(super) lists_holes: bool,
    pub(super) progress: &'p mut (dyn FnMut(u64) + Send),
    /// Bytes of the source that are done.
    pub(super) source_bytes: u64,
    pub(super) raw_bytes: u64,
    pub(super) zero_frames: u64,
}

impl Writing<'_> {
    pub(super) fn push(&mut self, job: &Job) -> Result<(), PackError> {
        let raw_bytes = job.raw.len().to_u64() * job.repeats;
        let is_zeros = match self.lists_holes && job.hole {
            true => {
                self.writer.push_holes(job.repeats, raw_bytes)?;
                true
            }
            false => {
                for _ in 0..job.repeats {
                    // An uncompressed frame of zeros becomes a hole of the file.
                    match job.packed.zero && self.codec == CodecId::Store {
                        true => self.sink.skip_zeros(job.stored.len().to_u64())?,
                        false => self.sink.write(&job.stored)?,
                    }
                    self.writer.push(&job.packed)?;
                }
                job.packed.zero
            }
        };
        self.raw_bytes += raw_bytes;
        self.zero_frames += job.repeats * u64::from(is_zeros);
        self.source_bytes += job.source_bytes;
        (self.progress)(self.source_bytes);
        Ok(())
    }
}

/// Frames of zeros in one job: few enough that progress stays visible.
const REPEATS_MAX: u64 = 4096;

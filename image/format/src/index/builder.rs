//! The checks that a list of frames passes to become an [`Index`].
//!
//! Why here: tables of every format are read by parsers of their own and promise the same; one
//! place checks it, frame by frame, as they are read.
//! Must stay true: nothing is allocated for frames that were not read. An error names the frame.

use super::{Checks, Hole, Index, OFFSET_MASK, Place, Places, Raws, frame_size};
use crate::codec::CodecId;
use crate::{FRAME_BYTES_MAX, Format, FormatError, Frame, FrameCheck};
use crate::{next_raw_bytes, stored_bytes_limit};
use sidecore_bare::width::{ToU64, ToUsize};
use std::mem;

/// Collects frames in order and checks each against its neighbours, the file and the limits.
#[derive(Debug)]
pub(crate) struct Builder {
    format: Format,
    variant: &'static str,
    file_bytes: u64,
    expected: u64,
    places: Vec<Place>,
    sizes: Vec<u32>,
    /// Empty as long as all frames are of one size.
    raw_offsets: Vec<u64>,
    frame_bytes: u32,
    stored_bytes_max: u32,
    raw_bytes: u64,
    /// End of the last frame's compressed bytes.
    end: u64,
    packed: bool,
    /// The last frame was smaller than those before: no frame may follow without an offset table.
    short: bool,
    stored_checks: Vec<u64>,
    raw_checks: Vec<u32>,
    zeros: Vec<u64>,
    holes: Vec<Hole>,
    /// Codec of a thin image's frames.
    codec: Option<CodecId>,
}

impl Builder {
    /// Expects `frames` frames. Memory is allocated as they are added: the number may be false, and
    /// the table a hole of its file.
    pub(crate) fn new(format: Format, variant: &'static str, file_bytes: u64, frames: u64) -> Self {
        let mut places = Vec::new();
        // `frames` comes from the file: a false number must not reserve memory for itself.
        places.reserve_exact(frames.min(RESERVED_MAX).to_usize() + 1);
        Self {
            format,
            variant,
            file_bytes,
            expected: frames,
            places,
            sizes: Vec::new(),
            raw_offsets: Vec::new(),
            frame_bytes: 0,
            stored_bytes_max: 0,
            raw_bytes: 0,
            end: 0,
            packed: true,
            short: false,
            stored_checks: Vec::new(),
            raw_checks: Vec::new(),
            zeros: Vec::new(),
            holes: Vec::new(),
            codec: None,
        }
    }

    /// Makes it the index of a thin image, whose frames are of `codec`.
    pub(crate) fn set_thin(&mut self, codec: CodecId) {
        self.codec = Some(codec);
    }

    /// Number of the next frame.
    fn next(&self) -> u64 {
        self.places.len().to_u64() + self.holes.last().map_or(0, |it| it.end - it.stored_before)
    }

    /// Adds a run of `frames` holes with `raw_bytes` of zeros, in frames of `frame_bytes`.
    ///
    /// # Errors
    /// [`FormatError::Table`] if the run is empty, or continues the one before.
    pub(crate) fn push_holes(
        &mut self,
        frames: u64,
        raw_bytes: u64,
        frame_bytes: u32,
    ) -> Result<(), FormatError> {
        // Adjacent runs are refused, so that each image has one form, which the tree's root covers.
        let first = self.next();
        let touches = self.holes.last().is_some_and(|it| it.end == first);
        if frames == 0 || touches {
            return Err(FormatError::Table {
                format: self.variant,
                frame: first,
                frames: self.expected,
                reason: "a run of holes is empty, or follows another one",
                value: frames,
            });
        }
        self.holes.push(Hole {
            first,
            end: first + frames,
            stored_before: self.places.len().to_u64(),
        });
        let largest = next_raw_bytes(raw_bytes, frame_bytes);
        self.frame_bytes = self.frame_bytes.max(largest);
        self.raw_bytes += raw_bytes;
        Ok(())
    }

    /// Changes the index's format, if the frames themselves determine it.
    pub(crate) fn set_format(&mut self, format: Format) {
        self.format = format;
    }

    /// End of the next frame in the file, once its sizes and its place have been checked.
    fn checked_end(&self, frame: &Frame) -> Result<u64, FormatError> {
        let number = self.places.len().to_u64();
        let table = |reason, value| FormatError::Table {
            format: self.variant,
            frame: number,
            frames: self.expected,
            reason,
            value,
        };
        if frame.raw_bytes > FRAME_BYTES_MAX {
            return Err(FormatError::FrameTooLarge {
                format: self.variant,
                frame: number,
                bytes: frame.raw_bytes.into(),
                limit: FRAME_BYTES_MAX.into(),
            });
        }
        // Two frames would begin at one offset, and a lookup could return either.
        if frame.raw_bytes == 0 {
            return Err(table("inflates to nothing", 0));
        }
        // No codec compresses to nothing; a size of 0 is the mark of a hole.
        if frame.stored_bytes == 0 {
            return Err(table("has no compressed bytes", 0));
        }
        if u64::from(frame.stored_bytes) > stored_bytes_limit(frame.raw_bytes) {
            let reason = "its compressed bytes are far more than its contents";
            return Err(table(reason, frame.stored_bytes.into()));
        }
        let end = frame.offset.checked_add(frame.stored_bytes.into());
        end.filter(|&end| end <= self.file_bytes && end <= OFFSET_MASK)
            .ok_or_else(|| table("begins or ends outside the file", frame.offset))
    }

    /// Adds the next frame; its `raw_offset` is set here.
    ///
    /// # Errors
    /// [`FormatError::Table`] or [`FormatError::FrameTooLarge`].
    pub(crate) fn push(&mut self, frame: Frame, zero: bool) -> Result<(), FormatError> {
        let end = self.checked_end(&frame)?;
        let number = self.places.len().to_u64();
        // A gap or another order: from here on ends do not follow from the next beginning.
        if number > 0 && frame.offset != self.end && self.packed {
            self.unpack();
        }
        if !self.packed {
            self.sizes.push(frame.stored_bytes);
        }
        // Before the frame is added: it compares the frame with those before it.
        self.even(frame.raw_bytes);
        self.places.push(Place::new(frame.offset, frame.codec));
        self.end = end;
        self.raw_bytes += u64::from(frame.raw_bytes);
        self.stored_bytes_max = self.stored_bytes_max.max(frame.stored_bytes);
        match frame.check {
            FrameCheck::None => {}
            FrameCheck::Stored(check) | FrameCheck::Sealed(check, _) => {
                self.stored_checks.push(check);
            }
            FrameCheck::Raw(check) => self.raw_checks.push(check),
        }
        if zero {
            let word = (number / 64).to_usize();
            if self.zeros.len() <= word {
                self.zeros.resize(word + 1, 0);
            }
            self.zeros[word] |= 1 << (number % 64);
        }
        Ok(())
    }

    /// The frames are not contiguous: store the size of each.
    fn unpack(&mut self) {
        self.packed = false;
        let ends = self.places.iter().skip(1).map(|place| place.offset());
        let sizes = (self.places.iter().zip(ends.chain([self.end])))
            .map(|(place, end)| frame_size(end - place.offset()));
        self.sizes.extend(sizes);
    }

    /// Stores raw offsets only from the first frame on that differs from those before it.
    fn even(&mut self, raw_bytes: u32) {
        let number = self.places.len().to_u64();
        let first = u64::from(self.frame_bytes);
        // A shorter frame is usual as the last one; only a frame after it makes the sizes uneven.
        if self.raw_offsets.is_empty() && number > 0 && (self.short || raw_bytes > self.frame_bytes)
        {
            self.raw_offsets.extend((0..number).map(|i| i * first));
        }
        if !self.raw_offsets.is_empty() {
            self.raw_offsets.push(self.raw_bytes);
        }
        self.short = number > 0 && raw_bytes < self.frame_bytes;
        self.frame_bytes = self.frame_bytes.max(raw_bytes);
    }

    /// The checksums: one of each frame, or none at all.
    fn take_checks(&mut self) -> Result<Checks, FormatError> {
        let frames = self.places.len();
        match (self.stored_checks.len(), self.raw_checks.len()) {
            // Only holes.
            (0, 0) if self.codec.is_some() => Ok(Checks::Stored(Box::default())),
            (0, 0) => Ok(Checks::None),
            (n, 0) if n == frames => Ok(Checks::Stored(mem::take(&mut self.stored_checks).into())),
            (0, n) if n == frames => Ok(Checks::Raw(mem::take(&mut self.raw_checks).into())),
            (stored, raw) => Err(FormatError::Table {
                format: self.variant,
                frame: (stored + raw).to_u64(),
                frames: frames.to_u64(),
                reason: "has no checksum, though others have one",
                value: 0,
            }),
        }
    }

    /// Ends the list.
    ///
    /// # Errors
    /// [`FormatError::Empty`] if no frame was added; [`FormatError::Table`] if some frames have a
    /// checksum of one kind and others do not.
    pub(crate) fn finish(mut self) -> Result<Index, FormatError> {
        let (frames, all_frames) = (self.places.len(), self.next());
        let first = self.places.first().map(|place| place.codec());
        let Some(codec) = first.or(self.codec).filter(|_| self.next() > 0) else {
            return Err(FormatError::Empty {
                format: self.variant,
            });
        };
        let checks = self.take_checks()?;
        let places = if self.packed {
            // The end of the last frame is the beginning of one that does not exist.
            self.places.push(Place::new(self.end, codec));
            Places::Packed(self.places.into())
        } else {
            Places::Scattered(self.places.into(), self.sizes.into())
        };
        let raws = if self.raw_offsets.is_empty() {
            Raws::Even
        } else {
            self.raw_offsets.push(self.raw_bytes);
            Raws::Uneven(self.raw_offsets.into())
        };
        // No bits at all is the usual case; otherwise every stored frame has one.
        if !self.zeros.is_empty() {
            self.zeros.resize(frames.div_ceil(64), 0);
        }
        Ok(Index {
            format: self.format,
            variant: self.variant,
            frames: all_frames,
            raw_bytes: self.raw_bytes,
            stored_bytes: self.file_bytes,
            frame_bytes: self.frame_bytes,
            stored_bytes_max: self.stored_bytes_max,
            codec,
            places,
            raws,
            checks,
            zeros: self.zeros.into(),
            holes: self.holes.into(),
            is_thin: self.codec.is_some(),
            tree: None,
            leaves: None,
            lock: None,
            key: None,
        })
    }
}

/// Number of entries for which memory is reserved before any was read.
const RESERVED_MAX: u64 = 64 << 10;

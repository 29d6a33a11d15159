//! All frames of an image in order; the frames of a remote image are fetched ahead of the engines.
//!
//! Why here: unpacking and verifying take every frame once. Engines read a local file themselves;
//! frames of a remote image must be requested long before.
//! Must stay true: an engine never waits for a network; the requests ahead stay within the remote
//! source's window.

use super::source::data_from;
use crate::format::{Format, Frame, FrameError, FrameReader, Index, ReadAt};
use crate::image::{Image, Stored};
use sidecore_bare::width::ToUsize;
use std::io;
use std::ops::Range;

/// The next frame, or a run of holes.
#[derive(Default)]
pub(super) struct Step {
    /// Its number.
    pub(super) frame: u64,
    /// Number of frames from there on that are holes, if it is one.
    pub(super) holes: u64,
    /// Its compressed bytes, read from a local image.
    stored: Vec<u8>,
    /// Its compressed bytes, fetched from a remote image, or the error of the fetch.
    fetched: Option<io::Result<Stored>>,
}

impl Step {
    /// Puts the frame's compressed bytes into `out`.
    pub(super) fn stored(
        &mut self,
        image: &Image,
        frame: &Frame,
        out: &mut Vec<u8>,
    ) -> io::Result<()> {
        out.clear();
        match self.fetched.take() {
            None => {
                out.resize(frame.stored_bytes.to_usize(), 0);
                image.read_exact_at(out, frame.offset)
            }
            Some(fetched) => {
                out.extend_from_slice(&fetched?);
                Ok(())
            }
        }
    }

    /// Reads, checks and decompresses the frame into `raw`. The memory for that belongs to this
    /// step, so that the number of steps bounds the memory.
    pub(super) fn read(
        &mut self,
        reader: &mut FrameReader,
        image: &Image,
        frame: &Frame,
        raw: &mut Vec<u8>,
    ) -> Result<(), FrameError> {
        match self.fetched.take() {
            None => {
                self.stored.resize(frame.stored_bytes.to_usize(), 0);
                image.read_exact_at(&mut self.stored, frame.offset)?;
                reader.read_stored_to(&self.stored, frame, raw)
            }
            Some(Ok(stored)) => reader.read_stored_to(&stored, frame, raw),
            Some(Err(error)) => Err(error.into()),
        }
    }
}

/// The walk.
pub(super) struct Walk<'i> {
    image: &'i Image,
    index: &'i Index,
    next: u64,
    /// Frames below this were requested.
    asked: u64,
    /// Compressed bytes that were requested and not consumed yet.
    ahead_bytes: u64,
    is_raw: bool,
    /// For a raw image, the extent of data that the next frame lies in or before.
    data: Range<u64>,
}

impl<'i> Walk<'i> {
    pub(super) fn new(image: &'i Image, index: &'i Index) -> Self {
        Self {
            image,
            index,
            next: 0,
            asked: 0,
            ahead_bytes: 0,
            is_raw: index.format() == Format::Raw,
            data: 0..0,
        }
    }

    /// Number of frames of a raw image, from the next one on, that lie in a hole of its file:
    /// walking a sparse file of terabytes takes only the time of its data.
    fn file_holes(&mut self) -> u64 {
        let Some(file) = self.image.file().filter(|_| self.is_raw) else {
            return 0;
        };
        let (frame_bytes, end) = (u64::from(self.index.frame_bytes()), self.index.raw_bytes());
        let at = self.next * frame_bytes;
        if at >= self.data.end {
            self.data = data_from(file, at);
        }
        match self.data.start {
            start if start >= end => self.index.frames() - self.next,
            start => start.saturating_sub(at) / frame_bytes,
        }
    }

    /// Goes on at `frame`, without requesting those before it; it may lie in the run of holes that
    /// came last.
    pub(super) fn seek(&mut self, frame: u64) {
        self.next = frame;
    }

    /// Sets `step` to the next frame, or to a run of holes; false when there is none. Waits for the
    /// network if the image is remote.
    pub(super) fn next(&mut self, step: &mut Step) -> bool {
        if self.next >= self.index.frames() {
            return false;
        }
        step.frame = self.next;
        step.fetched = None;
        step.holes = self.index.hole_run(self.next).max(self.file_holes());
        if step.holes > 0 {
            self.next += step.holes;
            return true;
        }
        self.next += 1;
        step.fetched = self.image.remote().map(|remote| {
            let frame = self.index.frame(step.frame);
            let bytes = u64::from(frame.stored_bytes);
            match self.asked > step.frame {
                true => self.ahead_bytes = self.ahead_bytes.saturating_sub(bytes),
                false => self.asked = step.frame + 1,
            }
            let window = remote.window_bytes();
            // An eighth of a window at a time: neighbours are joined into long requests, and the
            // link never idles before the next ones are sent.
            let low = self.ahead_bytes <= window / 8 * 7;
            let (index, asked, ahead) = (self.index, &mut self.asked, &mut self.ahead_bytes);
            let mut behind = std::iter::from_fn(|| {
                *asked += index.hole_run(*asked);
                let more = low && *ahead < window && *asked < index.frames();
                let frame = more.then(|| index.frame(*asked))?;
                *asked += 1;
                *ahead += u64::from(frame.stored_bytes);
                Some(frame)
            });
            let fetched = remote.fetch(&[frame], &mut behind)?;
            let missing = || io::Error::other("the source returned nothing");
            fetched.into_iter().next().ok_or_else(missing)
        });
        true
    }
}

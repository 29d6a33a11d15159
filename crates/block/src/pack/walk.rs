//! All frames of an image in order, those of an image far away brought ahead of the engines.
//!
//! Why here: unpacking and verifying take every frame once; who reads a file reads it on the
//! engines, who reads over a network must have asked long before.
//! Must stay true: an engine never waits for a network; no more is asked for ahead than the far
//! source's window.

use crate::format::{Frame, FrameError, FrameReader, Index, ReadAt};
use crate::image::{Image, Stored};
use std::io;

/// A frame's turn.
#[derive(Default)]
pub(super) struct Step {
    /// Its number.
    pub(super) frame: u64,
    /// Its compressed bytes, of an image far away, or why they cannot be had.
    brought: Option<io::Result<Stored>>,
}

impl Step {
    /// Puts the frame's compressed bytes, as they are, into `out`.
    pub(super) fn stored(
        &mut self,
        image: &Image,
        frame: &Frame,
        out: &mut Vec<u8>,
    ) -> io::Result<()> {
        out.clear();
        match self.brought.take() {
            None => {
                out.resize(frame.stored_bytes as usize, 0);
                image.read_exact_at(out, frame.offset)
            }
            Some(brought) => {
                out.extend_from_slice(&brought?);
                Ok(())
            }
        }
    }

    /// Reads, checks and inflates the frame.
    pub(super) fn read<'r>(
        &mut self,
        reader: &'r mut FrameReader,
        image: &Image,
        frame: &Frame,
    ) -> Result<&'r [u8], FrameError> {
        match self.brought.take() {
            None => reader.read(image, frame),
            Some(Ok(stored)) => reader.read_stored(&stored, frame),
            Some(Err(error)) => Err(error.into()),
        }
    }
}

/// The walk.
pub(super) struct Walk<'i> {
    image: &'i Image,
    index: &'i Index,
    next: u64,
    /// Frames below this were asked for.
    asked: u64,
    /// Compressed bytes that were asked for and whose turn has not come.
    ahead_bytes: u64,
}

impl<'i> Walk<'i> {
    pub(super) fn new(image: &'i Image, index: &'i Index) -> Self {
        Self {
            image,
            index,
            next: 0,
            asked: 0,
            ahead_bytes: 0,
        }
    }

    /// Makes `step` the next frame's; false when there is none. Waits for a network, where the
    /// image lies behind one.
    pub(super) fn next(&mut self, step: &mut Step) -> bool {
        if self.next >= self.index.frames() {
            return false;
        }
        step.frame = self.next;
        self.next += 1;
        step.brought = self.image.far().map(|far| {
            let frame = self.index.frame(step.frame);
            let bytes = u64::from(frame.stored_bytes);
            match self.asked > step.frame {
                true => self.ahead_bytes = self.ahead_bytes.saturating_sub(bytes),
                false => self.asked = step.frame + 1,
            }
            let window = far.window_bytes();
            // An eighth of a window at a time: neighbours are joined into long requests, and the
            // link does not run dry before the next ones are asked for.
            let low = self.ahead_bytes <= window / 8 * 7;
            let (index, asked, ahead) = (self.index, &mut self.asked, &mut self.ahead_bytes);
            let mut behind = std::iter::from_fn(|| {
                let more = low && *ahead < window && *asked < index.frames();
                let frame = more.then(|| index.frame(*asked))?;
                *asked += 1;
                *ahead += u64::from(frame.stored_bytes);
                Some(frame)
            });
            let brought = far.bring(&[frame], &mut behind)?;
            let missing = || io::Error::other("the source brought nothing");
            brought.into_iter().next().ok_or_else(missing)
        });
        true
    }
}

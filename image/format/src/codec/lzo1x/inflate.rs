//! Decompressing LZO1X frames: the fast loop while the margins allow it, otherwise the plain step.
//!
//! Why here: the device's engines hold an [`Inflate`]. It can stop at any target and continue
//! later, so that a frame is decompressed only as far as a read needs.
//!
//! Must stay true: the state between two calls is a `Cursor` (two positions and the literals just
//! copied) and nothing else; bytes reported as final are never written again. Time is linear: every
//! turn and every step moves the cursor. One engine at a time (`&mut self`); any thread.
//!
//! Source: docs/formats/lzo1x.md.

use super::fast;
use super::reference::{self, Cursor, Lzo1xError, Step};
use crate::codec::{CodecError, CodecId, Inflater};

/// Decompresses LZO1X streams, one after another. Its only state is its position.
#[derive(Debug)]
pub struct Inflate {
    cursor: Cursor,
    ended: bool,
}

impl Inflate {
    /// A decompressor at the start of a frame.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            cursor: Cursor::START,
            ended: false,
        }
    }

    /// As [`Inflater::advance`], but with the error in full, and the stream need not fill `out`:
    /// returns how many bytes are final. [`Self::has_ended`] then returns true if the end marker
    /// was read.
    ///
    /// # Errors
    /// The first fault of the stream.
    pub fn try_advance(
        &mut self,
        frame: &[u8],
        out: &mut [u8],
        target: usize,
    ) -> Result<usize, Lzo1xError> {
        // A full output is not the end: the marker must follow, and nothing after it.
        while !self.ended && (self.cursor.output < target || self.cursor.output >= out.len()) {
            // It stops at whatever it does not handle, and the plain step takes that one
            // instruction.
            fast::run(frame, out, &mut self.cursor, target);
            if self.cursor.output < target || self.cursor.output >= out.len() {
                self.ended = reference::step(frame, out, &mut self.cursor)? == Step::End;
            }
        }
        Ok(self.cursor.output)
    }

    /// Number of output bytes that are final.
    #[must_use]
    pub const fn output(&self) -> usize {
        self.cursor.output
    }

    /// True when the end marker was read.
    #[must_use]
    pub const fn has_ended(&self) -> bool {
        self.ended
    }
}

impl Default for Inflate {
    fn default() -> Self {
        Self::new()
    }
}

impl Inflater for Inflate {
    fn codec(&self) -> CodecId {
        CodecId::Lzo1x
    }

    fn reset(&mut self) {
        *self = Self::new();
    }

    fn advance(
        &mut self,
        frame: &[u8],
        out: &mut [u8],
        target: usize,
    ) -> Result<usize, CodecError> {
        let codec = CodecId::Lzo1x;
        let expected = out.len();
        match self.try_advance(frame, out, target) {
            // Valid, but shorter than the index says.
            Ok(got) if self.ended && got != expected => Err(CodecError::Length {
                codec,
                got,
                expected,
                at_least: false,
            }),
            Ok(got) => Ok(got),
            Err(Lzo1xError::OutputOverrun { needed, .. }) => Err(CodecError::Length {
                codec,
                got: needed,
                expected,
                at_least: true,
            }),
            Err(error) => Err(CodecError::Corrupt {
                codec,
                reason: error.reason(),
            }),
        }
    }
}

//! Position of a decompressor in a frame, and the check that the caller still passes the same
//! frame.
//!
//! Why here: [`super::Inflater::advance`] continues where it stopped. The libraries behind it keep
//! addresses of their earlier output; a caller that passes another buffer must get an error, not
//! undefined behaviour.

use super::{CodecError, CodecId, corrupt};

/// Position of a decompressor.
#[derive(Debug, Default)]
pub(super) struct Position {
    /// Bytes of the frame that have been consumed.
    pub(super) read: usize,
    /// Bytes of the output that are final.
    pub(super) written: usize,
    /// Address and length of the frame and of the output of the calls so far; only compared, never
    /// dereferenced.
    buffers: Option<[usize; 4]>,
    /// The result to return until the next reset, once the frame is done or was refused.
    ended: Option<Result<usize, CodecError>>,
}

impl Position {
    /// Opens a call of `advance`. `Some` is its result if there is nothing left to do.
    pub(super) fn enter(
        &mut self,
        codec: CodecId,
        frame: &[u8],
        out: &[u8],
        target: usize,
    ) -> Result<Option<usize>, CodecError> {
        let buffers = [
            frame.as_ptr().addr(),
            frame.len(),
            out.as_ptr().addr(),
            out.len(),
        ];
        // `advance` may be called again only with the same buffers: matches refer to bytes written
        // before.
        match self.buffers {
            None => self.buffers = Some(buffers),
            Some(before) if before == buffers => {}
            Some(_) => {
                return Err(corrupt(
                    codec,
                    "continued with other buffers than it began with",
                ));
            }
        }
        // An error is final: after it, the output is unspecified and must not be continued.
        match &self.ended {
            Some(Ok(done)) => Ok(Some(*done)),
            Some(Err(error)) => Err(error.clone()),
            None if self.written >= target && self.written > 0 => Ok(Some(self.written)),
            None => Ok(None),
        }
    }

    /// Closes a call of `advance`: an error or the end of the frame is kept until the next reset.
    pub(super) fn leave(&mut self, result: &Result<usize, CodecError>) {
        let whole = self.buffers.map(|[.., out_bytes]| out_bytes);
        match result {
            Ok(done) if Some(*done) != whole => {}
            other => self.ended = Some(other.clone()),
        }
    }

    /// The frame's bytes are consumed: valid only if the output is complete.
    pub(super) fn finish(&self, codec: CodecId, expected: usize) -> Result<usize, CodecError> {
        if self.written == expected {
            Ok(expected)
        } else {
            Err(CodecError::Length {
                codec,
                got: self.written,
                expected,
                at_least: false,
            })
        }
    }

    /// The output is full and the frame is not at its end.
    pub(super) fn too_long(&self, codec: CodecId, expected: usize) -> CodecError {
        CodecError::Length {
            codec,
            // At least one more byte was due; how many is not known.
            got: self.written.max(expected) + 1,
            expected,
            at_least: true,
        }
    }
}

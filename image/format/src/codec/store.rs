//! Frames that are not compressed at all.
//!
//! Why here: raw images, and frames that did not shrink, are handled like all others.

use super::{CodecError, CodecId, Deflater, Inflater};

/// Copies.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct StoreInflater {
    done: usize,
}

impl Inflater for StoreInflater {
    fn codec(&self) -> CodecId {
        CodecId::Store
    }

    fn reset(&mut self) {
        self.done = 0;
    }

    fn advance(
        &mut self,
        frame: &[u8],
        out: &mut [u8],
        target: usize,
    ) -> Result<usize, CodecError> {
        // Stored as it is: both lengths are one.
        if frame.len() != out.len() {
            return Err(CodecError::Length {
                codec: CodecId::Store,
                got: frame.len(),
                expected: out.len(),
                at_least: false,
            });
        }
        let target = target.min(out.len());
        if self.done < target {
            out[self.done..target].copy_from_slice(&frame[self.done..target]);
            self.done = target;
        }
        Ok(self.done)
    }
}

/// Copies.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct StoreDeflater;

impl Deflater for StoreDeflater {
    fn codec(&self) -> CodecId {
        CodecId::Store
    }

    fn deflate(&mut self, raw: &[u8], out: &mut Vec<u8>) -> Result<(), CodecError> {
        out.clear();
        out.extend_from_slice(raw);
        Ok(())
    }
}

//! Content-defined chunking: frame boundaries that follow the bytes, so that versions of one source
//! share most frames.
//!
//! Why here: with frames of one size, all frames behind the first inserted byte change; boundaries
//! of a rolling hash are the same again a few frames later.
//! Must stay true: boundaries depend only on the bytes and the requested average, in particular not
//! on engines, on holes, or on how much a read returns.
//! Source: W. Xia et al., "The Design of Fast Content-Defined Chunking for Data Deduplication
//! Based Storage Systems", IEEE TPDS 31(9), 2020.

use super::PackError;
use super::source::{Filled, Source};
use crate::format::write::is_zero;
use fastcdc::v2020::FastCDC;
use sidecore_bare::width::ToUsize;

/// Cuts one source into frames.
pub(super) struct Cutter {
    /// A buffer of the largest frame's size.
    buffer: Box<[u8]>,
    /// Bytes of the buffer that are read and not returned yet.
    filled: usize,
    average_bytes: usize,
    ended: bool,
}

impl Cutter {
    /// Frames of `average_bytes`, a quarter of it at least (save for the last) and [`bytes_max`] of
    /// it at most.
    pub(super) fn new(average_bytes: u32) -> Self {
        Self {
            buffer: vec![0; bytes_max(average_bytes).to_usize()].into(),
            filled: 0,
            average_bytes: average_bytes.to_usize(),
            ended: false,
        }
    }

    /// Puts the next frame into `raw`; [`Filled::Zeros`] for a largest frame of zeros, for which
    /// only the length of `raw` is set. No bytes at the source's end.
    pub(super) fn next(
        &mut self,
        source: &mut Source,
        raw: &mut Vec<u8>,
    ) -> Result<Filled, PackError> {
        let max = self.buffer.len();
        while self.filled < max && !self.ended {
            let free = &mut self.buffer[self.filled..];
            let wanted = free.len();
            let got = match source.fill(free)? {
                // The same frame that cutting these bytes would give, without reading them.
                Filled::Zeros(zeros) if zeros == max => {
                    raw.resize(max, 0);
                    return Ok(Filled::Zeros(max));
                }
                Filled::Zeros(zeros) => {
                    free[..zeros].fill(0);
                    zeros
                }
                Filled::Bytes(bytes) => bytes,
            };
            self.filled += got;
            self.ended = got < wanted;
        }
        let bytes = &self.buffer[..self.filled];
        // A whole buffer of zeros would be cut at its end anyway; as a hole it needs no search.
        if self.filled == max && is_zero(bytes) {
            raw.resize(max, 0);
            self.filled = 0;
            return Ok(Filled::Zeros(max));
        }
        let average = self.average_bytes;
        // The cut depends on the contents alone, so frames after an insertion are equal again.
        let mut chunks = FastCDC::new(bytes, average / FACTOR, average, max);
        let end = chunks.next().map_or(0, |chunk| chunk.length);
        raw.clear();
        raw.extend_from_slice(&bytes[..end]);
        self.buffer.copy_within(end..self.filled, 0);
        self.filled -= end;
        Ok(Filled::Bytes(end))
    }
}

/// The largest frame for an average of `average_bytes`.
pub(super) fn bytes_max(average_bytes: u32) -> u32 {
    average_bytes.saturating_mul(FACTOR as u32)
}

/// Ratio of the average to the smallest frame, and of the largest to the average.
const FACTOR: usize = 4;

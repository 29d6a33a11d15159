//! Raw images: the bytes unchanged.
//!
//! Why here: for comparison, and because a device over a plain file is useful by itself.

use super::read_at::Bytes;
use super::write::{Ending, ImageWriter, Packed};
use super::{FormatError, Index, foreign};
use crate::codec::CodecId;
use sidecore_bare::width::{ToU64, ToUsize};
use std::io;

/// Accepts any bytes that no other format claimed, unless another program has to convert them
/// first: a user that mounts a qcow2 image wants the disk in it, not its bytes.
pub(super) fn parse(bytes: &Bytes<'_>) -> Result<Index, FormatError> {
    let mut head = [0; foreign::HEAD_BYTES];
    // A file may be shorter than that, and still be compressed.
    let head = &mut head[..bytes.size.min(foreign::HEAD_BYTES.to_u64()).to_usize()];
    bytes.fill(head, 0)?;
    match foreign::recognize(head) {
        Some(foreign) => Err(FormatError::Foreign {
            kind: foreign.kind,
            next: foreign.next,
        }),
        None => any(bytes),
    }
}

/// Accepts any bytes.
pub(super) fn any(bytes: &Bytes<'_>) -> Result<Index, FormatError> {
    if bytes.size == 0 {
        return Err(FormatError::Empty { format: "raw" });
    }
    Ok(Index::same(bytes.size, FRAME_BYTES))
}

/// Adds nothing.
pub(super) struct RawWriter;

impl ImageWriter for RawWriter {
    fn codec(&self) -> CodecId {
        CodecId::Store
    }

    fn push(&mut self, _: &Packed) -> Result<(), FormatError> {
        Ok(())
    }

    fn finish(&mut self, _: &mut dyn io::Write) -> Result<Ending, FormatError> {
        Ok(Ending::default())
    }
}

/// Unit in which a raw image is cached.
const FRAME_BYTES: u32 = 64 << 10;

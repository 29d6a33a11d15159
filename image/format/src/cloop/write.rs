//! Writing cloop images: V2.0 with zlib blocks, V4.0 with LZO1X blocks.
//!
//! Why here: V2.0 is the variant that `extract_compressed_fs` and qemu read; V4.0 with LZO1X is the
//! documents' miniLZO variant.
//! Must stay true, because the real driver refuses anything else: no block is ever stored
//! uncompressed; if the header is last, block 0 does not begin at byte 0, so [`PADDING`] comes
//! first.

use super::super::write::{Ending, ImageWriter, Layout, Packed};
use super::super::{Format, FormatError};
use super::HEAD_BYTES;
use crate::codec::CodecId;
use sidecore_bare::width::{ToU64, ToUsize};
use std::io;

/// Writes either variant.
pub(crate) struct CloopWriter {
    lzo: bool,
    head_first: bool,
    block_bytes: u32,
    blocks_expected: u64,
    /// Offset of every block, and of the end of the last.
    offsets: Vec<u64>,
}

impl CloopWriter {
    pub(crate) fn new(format: Format, layout: &Layout) -> Result<Self, FormatError> {
        let lzo = format == Format::CloopLzo;
        // The table in front has a fixed size, and is filled in at the end.
        let known = layout.raw_bytes.filter(|_| layout.seekable);
        if known.is_none() && !lzo {
            return Err(FormatError::CannotWrite {
                format: NAME,
                what: "to a pipe, or from a source of unknown size".into(),
                reason: "the table of V2.0 stands in front of the blocks",
                next: "read from and write to a file, or take --format cloop-lzo, zstd or lz4",
            });
        }
        let blocks = known.map_or(0, |raw| raw.div_ceil(layout.frame_bytes.into()));
        too_many(blocks)?;
        let head_first = known.is_some();
        let first = if head_first {
            HEAD_BYTES + (blocks + 1) * 8
        } else {
            PADDING
        };
        Ok(Self {
            lzo,
            head_first,
            block_bytes: layout.frame_bytes,
            blocks_expected: blocks,
            offsets: vec![first],
        })
    }

    fn head(&self) -> Vec<u8> {
        let mut head = vec![0; 128];
        let preamble: &[u8] = if self.lzo { PREAMBLE_V4 } else { PREAMBLE_V2 };
        head[..preamble.len()].copy_from_slice(preamble);
        head.extend(self.block_bytes.to_be_bytes());
        head.extend((self.offsets.len() as u32 - 1).to_be_bytes());
        head
    }

    fn table(&self) -> impl Iterator<Item = u8> {
        let flag = if self.lzo { LZO_FLAG << 60 } else { 0 };
        self.offsets
            .iter()
            .flat_map(move |offset| (offset | flag).to_be_bytes())
    }
}

impl ImageWriter for CloopWriter {
    fn codec(&self) -> CodecId {
        if self.lzo {
            CodecId::Lzo1x
        } else {
            CodecId::Zlib
        }
    }

    fn pads_last_frame(&self) -> bool {
        true
    }

    fn start(&mut self) -> Vec<u8> {
        vec![0; self.offsets[0].to_usize()]
    }

    fn push(&mut self, frame: &Packed) -> Result<(), FormatError> {
        too_many(self.offsets.len().to_u64())?;
        let end = self.offsets[self.offsets.len() - 1] + u64::from(frame.stored_bytes);
        self.offsets.push(end);
        Ok(())
    }

    fn finish(&mut self, tail: &mut dyn io::Write) -> Result<Ending, FormatError> {
        let mut bytes;
        if self.head_first {
            // The room left in front is for exactly these blocks.
            if self.offsets.len().to_u64() - 1 != self.blocks_expected {
                return Err(FormatError::CannotWrite {
                    format: NAME,
                    what: format!("{} blocks", self.offsets.len() - 1),
                    reason: "the source has changed its size while it was read",
                    next: "pack it again while nothing writes to it",
                });
            }
            bytes = self.head();
            bytes.extend(self.table());
            return Ok(Ending {
                front: Some(bytes),
                root: None,
            });
        }
        // Readers look for the header at the end of the file.
        bytes = self.table().collect();
        bytes.extend(self.head());
        tail.write_all(&bytes).map_err(FormatError::Write)?;
        Ok(Ending::default())
    }
}

fn too_many(blocks: u64) -> Result<(), FormatError> {
    if blocks < u64::from(u32::MAX) {
        return Ok(());
    }
    Err(FormatError::CannotWrite {
        format: NAME,
        what: format!("{blocks} blocks"),
        reason: "the head counts them in 32 bits",
        next: "take a larger --frame",
    })
}

const NAME: &str = "cloop";
/// Bytes in front of the blocks if the header is last.
const PADDING: u64 = 512;
const LZO_FLAG: u64 = 4;
/// The magic of the format: qemu and `file` recognize a V2.0 image by exactly these bytes.
const PREAMBLE_V2: &[u8] = b"#!/bin/sh\n#V2.0 Format\n\
    modprobe cloop file=$0 && mount -r -t iso9660 /dev/cloop $1\nexit $?\n";
const PREAMBLE_V4: &[u8] = b"#!/bin/sh\n#V4.0 Format\nexec sidecore block mount \"$0\" \"$1\"\n";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_counted_in_32_bits_and_the_table_has_one_entry_more() {
        assert!(too_many(u64::from(u32::MAX) - 1).is_ok());
        assert!(too_many(u64::from(u32::MAX)).is_err());
    }
}

//! The literals section of a block.
//!
//! Must stay true: [`MARGIN`] readable bytes lie after literals of ours, and the same number after
//! literals that stay in the frame; the fast loop copies past their end. Pure.
//! Source: RFC 8878, section 3.1.1.3.1.

use crate::Error;
use crate::frame::BLOCK_BYTES_MAX;
use crate::huffman::Tree;
use sidecore_bare::width::ToUsize;

/// Bytes after the literals that may be read, with any values.
pub(crate) const MARGIN: usize = 32;
/// Minimum number of literals for four streams.
const FOUR_STREAMS_MIN: usize = 6;

/// A literals section whose header has been read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Section<'a> {
    kind: Kind<'a>,
    /// Literals.
    pub(crate) count: usize,
    /// Bytes of the section in the block.
    pub(crate) bytes: usize,
}

#[derive(Debug, Clone, Copy)]
enum Kind<'a> {
    /// From the first literal to the block's end.
    Raw(&'a [u8]),
    Run(u8),
    Coded {
        has_tree: bool,
        is_four: bool,
        coded: &'a [u8],
    },
}

/// Reads the header of the section at the start of `block`. It may give at most `count_max`
/// literals.
pub(crate) fn section(block: &[u8], count_max: usize) -> Result<Section<'_>, Error> {
    let &first = block.first().ok_or(Error::Literals)?;
    let format = (first >> 2) & 3;
    if first & 3 < 2 {
        // Section 3.1.1.3.1.1: sizes of 5 bits have two formats, as the upper bit is the size's.
        let (header, shift) = match format {
            1 => (2, 4),
            3 => (3, 4),
            _ => (1, 3),
        };
        let count = (number(block, header)? >> shift).to_usize();
        // A run stores one byte for all; it is there even for a run of none.
        let is_run = first & 3 == 1;
        let bytes = header + if is_run { 1 } else { count };
        if count > count_max || bytes > block.len() {
            return Err(Error::Literals);
        }
        let rest = &block[header..];
        let kind = if is_run {
            Kind::Run(rest[0])
        } else {
            Kind::Raw(rest)
        };
        return Ok(Section { kind, count, bytes });
    }
    // Both sizes have one width. Only the first format means a single stream.
    let (header, width) = match format {
        0 | 1 => (3, 10),
        2 => (4, 14),
        _ => (5, 18),
    };
    let sizes = number(block, header)? >> 4;
    let count = (sizes & ((1 << width) - 1)).to_usize();
    let coded_bytes = (sizes >> width).to_usize();
    let coded = block
        .get(header..)
        .and_then(|rest| rest.get(..coded_bytes))
        .ok_or(Error::Literals)?;
    let is_four = format != 0;
    // As libzstd: the first three of four segments would not fit fewer literals.
    if count > count_max || (is_four && count < FOUR_STREAMS_MIN) {
        return Err(Error::Literals);
    }
    let has_tree = first & 3 == 2;
    Ok(Section {
        kind: Kind::Coded {
            has_tree,
            is_four,
            coded,
        },
        count,
        bytes: header + coded_bytes,
    })
}

fn number(block: &[u8], count: usize) -> Result<u64, Error> {
    let bytes = block.get(..count).ok_or(Error::Literals)?;
    let mut whole = [0; 8];
    whole[..count].copy_from_slice(bytes);
    Ok(u64::from_le_bytes(whole))
}

/// Memory for a block's literals, with its margin.
pub(crate) struct Room(Box<[u8; BLOCK_BYTES_MAX + MARGIN]>);

impl Room {
    pub(crate) fn new() -> Self {
        let room = vec![0; BLOCK_BYTES_MAX + MARGIN].into_boxed_slice();
        let room = room.try_into().unwrap_or_else(|_| unreachable!());
        Self(room)
    }
}

impl<'a> Section<'a> {
    /// Decodes the literals: returns them with at least [`MARGIN`] bytes after them.
    pub(crate) fn decode<'r>(&self, tree: &mut Tree, room: &'r mut Room) -> Result<&'r [u8], Error>
    where
        'a: 'r,
    {
        let whole = self.count + MARGIN;
        match self.kind {
            // In place, if the rest of the block is long enough to be the margin: usually it is.
            Kind::Raw(rest) if rest.len() >= whole => return Ok(rest),
            Kind::Raw(rest) => room.0[..self.count].copy_from_slice(&rest[..self.count]),
            Kind::Run(byte) => room.0[..whole].fill(byte),
            Kind::Coded {
                has_tree,
                is_four,
                mut coded,
            } => {
                if has_tree {
                    let taken = tree.read(coded)?;
                    coded = &coded[taken..];
                } else if !tree.is_there() {
                    // A treeless block relies on the tree of an earlier block of its frame.
                    return Err(Error::Tree);
                }
                let out = &mut room.0[..self.count];
                if is_four {
                    tree.four_streams(coded, out)?;
                } else {
                    tree.one_stream(coded, out)?;
                }
            }
        }
        Ok(&room.0[..whole])
    }
}

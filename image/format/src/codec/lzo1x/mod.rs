//! LZO1X, our own: decompression at several times the usual speed, compression from fast to strong.
//!
//! Why here: the images of 2007 held miniLZO blocks, and cloop's V4.0 with compressor 4 still does.
//! The only well-maintained library is GPL, which this crate cannot link.
//!
//! - [`Inflate`]: the codec's [`Inflater`](super::Inflater): `fast` while the margins allow it,
//!   otherwise `reference`.
//! - [`Deflate`]: the codec's [`Deflater`], levels 1 to 9: `greedy` up to 3,
//!   `optimal` above.
//! - `emit`: the only place that turns literals and matches into instruction bytes.
//!
//! The level chooses the parser; all levels share one emitter, so every level's streams decompress
//! alike. The stream for a frame depends on the frame and the level alone; it always ends in the
//! end marker and is at most [`bound`] bytes.
//!
//! Must stay true: whatever the bytes, decompression neither panics nor leaves its slices; every
//! stream made here is accepted by liblzo2's `lzo1x_decompress_safe`, with the same bytes. `unsafe`
//! is in `fast` alone.
//!
//! Source: docs/formats/lzo1x.md (its own sources: Linux's Documentation/staging/lzo.rst, and
//! liblzo2 2.10 as a program to compare with). `README.md` in this folder explains the fast loop
//! and its margins. Any thread; no state is shared.

mod emit;
mod fast;
mod greedy;
mod inflate;
mod optimal;
mod reference;
#[cfg(test)]
mod tests;

pub use inflate::Inflate;
pub use reference::{Lzo1xError, inflate as inflate_plainly};

use crate::codec::{CodecError, CodecId, Deflater};
use emit::Emitter;
use greedy::Greedy;
use optimal::Optimal;

/// The fastest level.
pub const LEVEL_MIN: u8 = 1;
/// The strongest level.
pub const LEVEL_MAX: u8 = 9;
/// The default level: nearly as strong as [`LEVEL_MAX`], several times as fast.
pub(crate) const LEVEL_DEFAULT: u8 = 7;

/// The longest frame in bytes: positions are kept in 32 bits, prices in sixteenths of a byte.
const FRAME_BYTES_MAX: usize = 1 << 27;

/// Compresses frames, one after another, at one level. Its scratch memory is allocated once: 64 KiB
/// up to level 3, about 2 MiB above.
pub struct Deflate {
    parser: Parser,
}

enum Parser {
    Greedy(Greedy),
    Optimal(Box<Optimal>),
}

impl Deflate {
    /// A compressor at `level`, 1 to 9; a level outside that range is clamped.
    #[must_use]
    pub fn new(level: u8) -> Self {
        let level = level.clamp(LEVEL_MIN, LEVEL_MAX);
        Self {
            parser: match level {
                0..=3 => Parser::Greedy(Greedy::new(level)),
                _ => Parser::Optimal(Box::new(Optimal::new(level))),
            },
        }
    }
}

impl Deflater for Deflate {
    fn codec(&self) -> CodecId {
        CodecId::Lzo1x
    }

    fn deflate(&mut self, raw: &[u8], out: &mut Vec<u8>) -> Result<(), CodecError> {
        if raw.len() > FRAME_BYTES_MAX {
            let reason = "a frame of LZO1X holds at most 128 MiB; choose smaller frames";
            return Err(CodecError::Deflate {
                codec: CodecId::Lzo1x,
                reason,
            });
        }
        out.clear();
        // Once: growing would copy the stream several times.
        out.reserve(bound(raw.len()));
        // The parsers leave the last literals: only the end of the frame ends a run.
        let mut emitter = Emitter::new(out);
        let anchor = match &mut self.parser {
            Parser::Greedy(parser) => parser.parse(raw, &mut emitter),
            Parser::Optimal(parser) => parser.parse(raw, &mut emitter),
        };
        emitter.literals(&raw[anchor..]);
        emitter.end();
        Ok(())
    }
}

/// The longest possible stream for a frame of `raw_bytes`: all literals. A match never costs more
/// than the literals that it replaces, but may split a run in two, whose second half needs a length
/// of its own.
pub const fn bound(raw_bytes: usize) -> usize {
    raw_bytes + raw_bytes / 16 + 16
}

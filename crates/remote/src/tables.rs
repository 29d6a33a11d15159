//! An image's heads and tables, read by parsers in small pieces and fetched in large ones.
//!
//! Why here: a parser looks at a file's first and last bytes and then walks through a table; each
//! look would cost a round trip. Head and tail come with the first two requests, and pieces of a
//! table many at a time, twice as many with each.
//! Must stay true: bytes come from the same image as frames do; a bounded number of them is held.

use crate::fetch::Fetcher;
use parking_lot::Mutex;
use sidecore_block::codec::CodecId;
use sidecore_block::format::{Frame, FrameCheck};
use sidecore_block::image::Stored;
use std::io;

/// Bytes of the image that are here.
pub(crate) struct Tables {
    size_bytes: u64,
    /// Head and tail.
    ends: [(u64, Stored); 2],
    recent: Mutex<Recent>,
}

/// Pieces that a parser is walking through.
#[derive(Default)]
struct Recent {
    pieces: Vec<(u64, Stored)>,
    /// The byte after the last piece that was fetched.
    end: u64,
    /// Bytes that were fetched last.
    ahead_bytes: u64,
}

impl Tables {
    pub(crate) fn new(size_bytes: u64, ends: [(u64, Stored); 2]) -> Self {
        Self {
            size_bytes,
            ends,
            recent: Mutex::default(),
        }
    }

    pub(crate) fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// The bytes of a frame that lies in the image's head or tail.
    pub(crate) fn of_ends(&self, frame: &Frame) -> Option<Stored> {
        let found = self.ends.iter().find_map(|piece| {
            let bytes = part(piece, frame.offset);
            bytes.get(..frame.stored_bytes as usize)
        });
        found.map(Into::into)
    }

    /// Fills `buf` from `offset`.
    pub(crate) fn read(&self, fetcher: &Fetcher, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let end = offset.checked_add(buf.len() as u64);
        if end.is_none_or(|end| end > self.size_bytes) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            let copied = self.copy(&mut buf[done..], at);
            done += copied;
            if copied == 0 {
                self.fetch(fetcher, at, (buf.len() - done) as u64)?;
            }
        }
        Ok(())
    }

    /// Copies what is here of the bytes from `at`; how many.
    fn copy(&self, buf: &mut [u8], at: u64) -> usize {
        let recent = self.recent.lock();
        for piece in self.ends.iter().chain(&recent.pieces) {
            let bytes = part(piece, at);
            let bytes = &bytes[..bytes.len().min(buf.len())];
            if !bytes.is_empty() {
                buf[..bytes.len()].copy_from_slice(bytes);
                return bytes.len();
            }
        }
        0
    }

    /// Fetches bytes from `at` on, at least as many as are needed next.
    fn fetch(&self, fetcher: &Fetcher, at: u64, needed: u64) -> io::Result<()> {
        let ahead = {
            let recent = self.recent.lock();
            match recent.end == at {
                true => recent.ahead_bytes.saturating_mul(2).min(AHEAD_BYTES_MAX),
                false => AHEAD_BYTES_MIN,
            }
        };
        // A reader of much asks again and again, so that no more is held than this.
        let bytes = ahead
            .max(needed.min(AHEAD_BYTES_MAX))
            .min(self.size_bytes - at);
        let pieces: Vec<Frame> = (at..at + bytes)
            .step_by(PIECE_BYTES as usize)
            .map(|start| piece(start, PIECE_BYTES.min(at + bytes - start)))
            .collect();
        let stored = fetcher.bring(&pieces, &mut std::iter::empty())?;
        let mut recent = self.recent.lock();
        recent.pieces = pieces.iter().map(|it| it.offset).zip(stored).collect();
        recent.end = at + bytes;
        recent.ahead_bytes = bytes;
        Ok(())
    }
}

/// A part of a table, as if it were a frame.
fn piece(offset: u64, bytes: u64) -> Frame {
    Frame {
        offset,
        stored_bytes: bytes as u32,
        raw_bytes: 0,
        raw_offset: 0,
        number: 0,
        codec: CodecId::Store,
        check: FrameCheck::None,
    }
}

/// The bytes of a piece from `at` on.
fn part((start, bytes): &(u64, Stored), at: u64) -> &[u8] {
    let skipped = at
        .checked_sub(*start)
        .and_then(|it| usize::try_from(it).ok());
    skipped
        .and_then(|skipped| bytes.get(skipped..))
        .unwrap_or_default()
}

const PIECE_BYTES: u64 = 512 << 10;
const AHEAD_BYTES_MIN: u64 = 256 << 10;
const AHEAD_BYTES_MAX: u64 = 16 << 20;

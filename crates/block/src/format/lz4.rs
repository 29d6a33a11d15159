//! LZ4: one standard LZ4 frame per frame of the image, and our index frame at the end.
//!
//! Why here: the fastest codec to inflate. Any `lz4 -d` unpacks such a file: frames follow one
//! another, and it skips the index. Without the index (a plain `.lz4` file) nothing says where
//! frames begin, and the file is refused.
//! Source: LZ4 Frame Format Description 1.6.4. Map: `docs/formats/lz4.md`.

use super::lock::Locker;
use super::read_at::Bytes;
use super::sidx::{self, Found, Shape};
use super::table::{Table, Tail};
use super::tree::Signer;
use super::write::{Ending, ImageWriter, Layout, Packed, Seal};
use super::{Format, FormatError, Index, thin};
use crate::codec::{CodecId, lz4};
use std::io;

const NAME: &str = "lz4";

/// True when the file begins as one of this format.
pub(super) fn probe(bytes: &Bytes<'_>) -> Result<bool, FormatError> {
    Ok((bytes.array::<4>(0)?).is_some_and(|head| head == lz4::FRAME_MAGIC.to_le_bytes()))
}

/// Reads the index.
pub(super) fn parse(bytes: &Bytes<'_>) -> Result<Index, FormatError> {
    let reason = match sidx::read(bytes, bytes.size, Format::Lz4, NAME)? {
        Found::Index(index) => return Ok(*index),
        Found::Nothing => "the image is cut short, or was not written by this program",
        Found::Damaged(reason) => reason,
    };
    Err(FormatError::NoIndex {
        format: NAME,
        at: "the end of the file",
        reason,
        next: "fetch it again, or unpack it with `lz4 -d` and pack the result",
    })
}

/// Writes the index.
pub(super) struct Lz4Writer {
    index: sidx::Writer,
    frame_bytes: u32,
    table: Table,
    seal: Option<Seal>,
    lock: Option<Locker>,
}

impl Lz4Writer {
    pub(super) fn new(layout: &Layout) -> Self {
        Self {
            index: sidx::Writer::new(CodecId::Lz4Frame, layout.frame_bytes, Shape::of(layout)),
            frame_bytes: layout.frame_bytes,
            table: Table::default(),
            seal: None,
            lock: None,
        }
    }
}

impl ImageWriter for Lz4Writer {
    fn codec(&self) -> CodecId {
        CodecId::Lz4Frame
    }

    fn seal(&mut self, signer: Signer) -> bool {
        self.seal = Some(Seal::new(signer, self.index.is_thin()));
        true
    }

    fn lock(&mut self, lock: Locker) -> bool {
        self.lock = Some(lock);
        true
    }

    fn start(&mut self) -> Vec<u8> {
        match &self.lock {
            Some(lock) => lock.head().to_vec(),
            None if self.index.is_thin() => thin::head(CodecId::Lz4Frame).to_vec(),
            None => Vec::new(),
        }
    }

    fn push_holes(&mut self, frames: u64, raw_bytes: u64) -> Result<(), FormatError> {
        if let Some(seal) = &mut self.seal {
            seal.push_holes(frames, raw_bytes, self.frame_bytes);
        }
        self.table.push_holes(frames, raw_bytes);
        Ok(())
    }

    fn push(&mut self, frame: &Packed) -> Result<(), FormatError> {
        if let Some(seal) = &mut self.seal {
            seal.push(frame, NAME)?;
        }
        self.table.push(frame.entry());
        Ok(())
    }

    fn finish(&mut self, tail: &mut dyn io::Write) -> Result<Ending, FormatError> {
        let mut tail = Tail::new(tail);
        let sealed = self.seal.as_mut().map(|seal| seal.finish(NAME, &mut tail));
        let root = sealed.transpose()?.map(|(root, _)| root);
        let mac = self.lock.as_ref().map(Locker::mac);
        let written = self.index.finish(&self.table, mac, &mut tail)?;
        written.ok_or_else(|| FormatError::CannotWrite {
            format: NAME,
            what: format!("{} frames", self.table.count()),
            reason: "the index is a skippable frame, whose length has 32 bits",
            next: "take a larger --frame",
        })?;
        tail.end()?;
        Ok(Ending { front: None, root })
    }
}

//! Writing of formats whose frames follow one another, with our index frame after them.
//!
//! Why here: zstd and LZ4 differ in the codec of the frames and in the data after the index; hash
//! trees, encryption and holes are the same for both.
//! Must stay true: every frame is in the table, and so in the index, in the order in which it was
//! written.

use super::lock::Locker;
use super::sidx::{self, Shape};
use super::table::{Table, Tail};
use super::tree::Signer;
use super::write::{Ending, ImageWriter, Layout, Packed, Seal};
use super::{FormatError, thin};
use crate::codec::CodecId;
use std::io;

/// The differences between these formats.
pub(super) struct Form {
    pub(super) name: &'static str,
    pub(super) codec: CodecId,
    /// The limit of the number of frames, as a reason for messages.
    pub(super) limit: &'static str,
    /// Writes the data after the index; false if the table has too many frames for it.
    pub(super) close: fn(&Written<'_>, &mut Tail<'_>) -> Result<bool, FormatError>,
}

/// The parts of an image that are written before its end.
pub(super) struct Written<'w> {
    pub(super) table: &'w Table,
    pub(super) is_thin: bool,
    pub(super) is_locked: bool,
    /// Bytes of our own frames without contents: the hash tree, if there is one, and the index.
    pub(super) tree_bytes: Option<u32>,
    pub(super) index_bytes: u32,
}

/// The writer of all these formats.
pub(super) struct IndexedWriter {
    form: &'static Form,
    index: sidx::Writer,
    frame_bytes: u32,
    table: Table,
    seal: Option<Seal>,
    lock: Option<Locker>,
}

impl IndexedWriter {
    pub(super) fn new(form: &'static Form, layout: &Layout) -> Self {
        Self {
            form,
            index: sidx::Writer::new(form.codec, layout.frame_bytes, Shape::of(layout)),
            frame_bytes: layout.frame_bytes,
            table: Table::default(),
            seal: None,
            lock: None,
        }
    }
}

impl ImageWriter for IndexedWriter {
    fn codec(&self) -> CodecId {
        self.form.codec
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
            None if self.index.is_thin() => thin::head(self.form.codec).to_vec(),
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
            seal.push(frame, self.form.name)?;
        }
        self.table.push(frame.entry());
        Ok(())
    }

    fn finish(&mut self, tail: &mut dyn io::Write) -> Result<Ending, FormatError> {
        let form = self.form;
        let too_many = || FormatError::CannotWrite {
            format: form.name,
            what: format!("{} frames", self.table.count()),
            reason: form.limit,
            next: "take a larger --frame",
        };
        let mut tail = Tail::new(tail);
        let sealed = self
            .seal
            .as_mut()
            .map(|seal| seal.finish(form.name, &mut tail));
        let sealed = sealed.transpose()?;
        // The tree comes first: the index is found from the end, and the tree from the index.
        let mac = self.lock.as_ref().map(Locker::mac);
        let index = self.index.finish(&self.table, mac, &mut tail)?;
        let written = Written {
            table: &self.table,
            is_thin: self.index.is_thin(),
            is_locked: self.lock.is_some(),
            tree_bytes: sealed.map(|(_, tree_bytes)| tree_bytes),
            index_bytes: index.ok_or_else(too_many)?,
        };
        if !(form.close)(&written, &mut tail)? {
            return Err(too_many());
        }
        tail.end()?;
        let root = sealed.map(|(root, _)| root);
        Ok(Ending { front: None, root })
    }
}

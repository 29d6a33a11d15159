//! Audit of an image's redundant tables: each is compared with the tables that reading used
//! instead.
//!
//! Why here: if the seek table is damaged, reading continues with the index frame, and vice versa.
//! Reading also needs no hash tree unless the caller requires one. A check of the whole image has
//! to report each damaged table.
//! Must stay true: an audit sees the frames in order, each once; it reports nothing about an
//! undamaged image. Its memory is bounded.
//! Called from: one thread at a time.

use super::read_at::Bytes;
use super::seekable::{self, Table};
use super::sidecar;
use super::sidx::{self, Found};
use super::skippable::{MAGIC, SKIPPABLE_BYTES, le32};
use super::{Format, FormatError, Frame, Index, ReadAt, thin};
use sidecore_bare::width::{ToU64, ToUsize};

/// The comparison of one image's tables.
pub struct Audit<'a> {
    bytes: Bytes<'a>,
    /// The seek table of a zstd image that is read by its index frame.
    table: Option<Table>,
    /// Entries of the seek table that were read and not compared yet, and the number of compared
    /// ones.
    piece: Vec<u8>,
    compared: u64,
    faults: Vec<String>,
}

impl<'a> Audit<'a> {
    /// Checks all tables of the image `source` except the seek table's entries; `index` was read
    /// from that image.
    ///
    /// # Errors
    /// [`FormatError::Io`].
    pub fn begin(source: &'a dyn ReadAt, index: &Index) -> Result<Self, FormatError> {
        let mut audit = Self {
            bytes: Bytes::new(source)?,
            table: None,
            piece: Vec::new(),
            compared: 0,
            faults: Vec::new(),
        };
        // An encrypted image has one table, which its key has authenticated. A file with a sidecar
        // index also has one, which was checked as a whole.
        if index.lock().is_some() || index.variant() == sidecar::NAME {
            return Ok(audit);
        }
        let by_index = index.has_stored_checks();
        let end = match index.format() {
            Format::Zstd => {
                let table = Table::find(&audit.bytes)?;
                let start = table.start;
                // The seek table of a thin image is empty.
                if index.is_thin() {
                    if table.frames != 0 {
                        audit.table_fault("it has entries, though the image is a thin one");
                    }
                } else if by_index {
                    audit.table = Some(table);
                } else if let Some(reason) = audit.lost_index(&table)? {
                    let fault = format!("the index frame is damaged: {reason}");
                    audit.faults.push(fault);
                }
                start
            }
            Format::Lz4 => audit.bytes.size,
            _ => return Ok(audit),
        };
        if by_index && let Some(reason) = audit.lost_tree(index, end)? {
            audit
                .faults
                .push(format!("the hash tree is damaged: {reason}"));
        }
        Ok(audit)
    }

    /// Compares the next frame, as in the index; `end` is the last four of its compressed bytes if
    /// the frame is undamaged.
    ///
    /// # Errors
    /// [`FormatError::Io`].
    pub fn frame(&mut self, frame: &Frame, end: Option<u32>) -> Result<(), FormatError> {
        let number = self.compared;
        let Some(entry) = self.entry()? else {
            return Ok(());
        };
        let [stored_bytes, raw_bytes, check] = entry;
        // The sizes come first: with a wrong size the bytes of the checksum are not the frame's.
        let differs = match end {
            _ if stored_bytes != frame.stored_bytes => Some("compressed size"),
            _ if raw_bytes != frame.raw_bytes => Some("size of contents"),
            Some(end) if check != end => Some("checksum"),
            _ => None,
        };
        if let Some(field) = differs {
            self.table_fault(&format!(
                "its entry {number} has another {field} than the frame"
            ));
        }
        Ok(())
    }

    /// The faults that were found, one per line. Called after all frames.
    ///
    /// # Errors
    /// [`FormatError::Io`].
    pub fn finish(mut self, index: &Index) -> Result<Vec<String>, FormatError> {
        let mut offset = self.frames_end(index);
        // Our own frames, which have no contents.
        while let Some([stored_bytes, raw_bytes, check]) = self.entry()? {
            offset += u64::from(stored_bytes);
            if raw_bytes != 0 || check != seekable::NOTHING_CHECK {
                self.table_fault("an entry gives contents to a frame that has none");
            }
        }
        if self
            .table
            .as_ref()
            .is_some_and(|table| table.start != offset)
        {
            self.table_fault("its sizes do not add up to where it begins");
        }
        Ok(self.faults)
    }

    /// End of the last stored frame.
    fn frames_end(&self, index: &Index) -> u64 {
        match index.last_stored() {
            Some(last) => last.offset + u64::from(last.stored_bytes),
            None => thin::head(index.codec()).len().to_u64(),
        }
    }

    /// The seek table's next entry.
    fn entry(&mut self) -> Result<Option<[u32; 3]>, FormatError> {
        let Some(table) = self
            .table
            .as_ref()
            .filter(|table| self.compared < table.frames)
        else {
            return Ok(None);
        };
        // Without the checksum bit entries have another width, and all that follow would be
        // misread.
        if table.descriptor != seekable::CHECKED_BIT {
            self.table_fault("its descriptor is not the one that stands in our images");
            return Ok(None);
        }
        let at = (self.compared % PIECE_ENTRIES).to_usize() * ENTRY_BYTES;
        if at == 0 {
            let left = (table.frames - self.compared).min(PIECE_ENTRIES);
            self.piece.resize(left.to_usize() * ENTRY_BYTES, 0);
            let offset = self.compared * ENTRY_BYTES.to_u64();
            let start = table.start + SKIPPABLE_BYTES;
            self.bytes.fill(&mut self.piece, start + offset)?;
        }
        self.compared += 1;
        let entry = &self.piece[at..at + ENTRY_BYTES];
        Ok(Some([le32(entry), le32(&entry[4..]), le32(&entry[8..])]))
    }

    /// One fault is enough: the table cannot be relied on.
    fn table_fault(&mut self, reason: &str) {
        // Ends the comparison; entries after a false one would each be reported again.
        self.table = None;
        self.faults
            .push(format!("the seek table is damaged: {reason}"));
    }

    /// The fault of the index frame of an image that is read by its seek table; `None` if the image
    /// never had one.
    fn lost_index(&self, table: &Table) -> Result<Option<&'static str>, FormatError> {
        // Reading fell back to the seek table: the index frame is missing, damaged, or never
        // existed.
        match sidx::read(&self.bytes, table.start, Format::Zstd, seekable::NAME) {
            Ok(Found::Damaged(reason)) => return Ok(Some(reason)),
            Ok(Found::Index(_)) => return Ok(None),
            Ok(Found::Nothing) => {}
            Err(error @ FormatError::Io { .. }) => return Err(error),
            Err(_) => return Ok(Some("it speaks of frames that cannot be")),
        }
        // Even its end is missing; the seek table may still know where it begins.
        if !table.is_checked() || table.frames == 0 {
            return Ok(None);
        }
        let last = table.start + SKIPPABLE_BYTES + (table.frames - 1) * ENTRY_BYTES.to_u64();
        let entry = self.bytes.array::<ENTRY_BYTES>(last)?.unwrap_or_default();
        let start = table.start.checked_sub(le32(&entry).into());
        let head = start
            .map(|start| self.bytes.array::<16>(start))
            .transpose()?;
        let ours = head.flatten().is_some_and(|head| {
            le32(&entry[4..]) == 0 && head[..4] == MAGIC.to_le_bytes() && head[8..] == sidx::TAG
        });
        Ok(ours.then_some("its end is not there"))
    }

    /// The fault of the hash tree between the last frame and the index frame that ends at `end`;
    /// `None` if there is no tree.
    fn lost_tree(&self, index: &Index, end: u64) -> Result<Option<&'static str>, FormatError> {
        let Some(tree) = index.tree() else {
            let tail = end.checked_sub(8).map(|at| self.bytes.array::<4>(at));
            let index_bytes = tail.transpose()?.flatten().map_or(0, |tail| le32(&tail));
            let between = self.frames_end(index) + u64::from(index_bytes);
            return Ok((between != end).then_some("what stands in its place is none"));
        };
        Ok(match tree.leaves(&self.bytes, index)? {
            None => Some("it is one of another image"),
            Some((_, root)) if root != tree.root => Some("its leaves do not give its root"),
            Some(_) => None,
        })
    }
}

const ENTRY_BYTES: usize = 12;
/// Entries that are read at once.
const PIECE_ENTRIES: u64 = 4096;

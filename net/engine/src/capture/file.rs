//! The file of a capture, or several, one after the other.
//!
//! Must stay true: a file holds whole blocks alone, whatever ends the capture.

use super::{CaptureError, INTERFACE, PACKET, SECTION};
use sidecore_bare::width::ToU64 as _;
use std::fs::File;
use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};

/// The file of a capture, new or emptied; `-` is standard output. Where a file may have
/// `file_bytes_max` at most, it is the first of several, of which the last `files_max` stay. Call
/// it once the filter is known to be good.
///
/// # Errors
/// [`CaptureError::Create`], [`CaptureError::Divided`].
pub fn destination(
    path: &Path,
    file_bytes_max: Option<u64>,
    files_max: Option<u64>,
) -> Result<Box<dyn Write>, CaptureError> {
    if path != Path::new("-") {
        let file = CaptureFile::create(path.to_owned(), file_bytes_max, files_max);
        let path = path.to_owned();
        let file = file.map_err(|source| CaptureError::Create { path, source })?;
        return Ok(Box::new(file));
    }
    match file_bytes_max {
        Some(_) => Err(CaptureError::Divided),
        None => {
            let output = io::stdout().lock();
            Ok(Box::new(BufWriter::with_capacity(
                OUTPUT_BUFFER_BYTES,
                output,
            )))
        }
    }
}

/// Files of a capture that goes on in a new one where a frame does not fit.
#[derive(Debug, Clone)]
pub(super) struct CaptureRing {
    /// Their path: the number of each, from 1 on, stands before the extension (`out.1.pcapng`).
    pub(super) path: PathBuf,
    /// Bytes of a file, at most, unless its only frame is larger.
    pub(super) file_bytes_max: u64,
    /// The number of files that stay; the oldest is removed for a further one. None: all stay.
    pub(super) files_max: Option<u64>,
}

impl CaptureRing {
    /// The path of a file.
    pub(super) fn file(&self, number: u64) -> PathBuf {
        let mut name = self.path.file_stem().unwrap_or_default().to_os_string();
        name.push(format!(".{number}"));
        if let Some(extension) = self.path.extension() {
            name.push(".");
            name.push(extension);
        }
        self.path.with_file_name(name)
    }
}

/// The file that is being written of several.
#[derive(Debug)]
struct Turn {
    files: CaptureRing,
    number: u64,
    /// Frames in this file.
    frames: u64,
    /// The blocks with which each file begins.
    head: Vec<Vec<u8>>,
}

/// A file of blocks, each passed to it in one piece. If the disk is full, it ends with a whole
/// block, so that readers find no damage.
#[derive(Debug)]
pub(super) struct CaptureFile {
    file: File,
    blocks: Vec<u8>,
    /// Ends of the blocks in `blocks`.
    ends: Vec<usize>,
    /// Bytes of the whole blocks in the file.
    whole_bytes: u64,
    /// Its place among several files.
    turn: Option<Turn>,
}

impl CaptureFile {
    /// The empty file at `path`, or, where one may have `file_bytes_max` at most, the first of
    /// several, of which the last `files_max` stay: `out.pcapng` becomes `out.1.pcapng`.
    ///
    /// # Errors
    /// It cannot be created.
    fn create(
        path: PathBuf,
        file_bytes_max: Option<u64>,
        files_max: Option<u64>,
    ) -> io::Result<Self> {
        match file_bytes_max {
            Some(file_bytes_max) => Self::first(CaptureRing {
                path,
                file_bytes_max,
                files_max,
            }),
            None => File::create(path).map(Self::new),
        }
    }

    pub(super) fn new(file: File) -> Self {
        Self {
            file,
            blocks: Vec::new(),
            ends: Vec::new(),
            whole_bytes: 0,
            turn: None,
        }
    }

    /// The first of several files.
    pub(super) fn first(files: CaptureRing) -> io::Result<Self> {
        let number = 1;
        let file = Self::new(File::create(files.file(number))?);
        Ok(Self {
            turn: Some(Turn {
                files,
                number,
                frames: 0,
                head: Vec::new(),
            }),
            ..file
        })
    }

    /// True if a frame's block belongs to the next file.
    fn is_full_for(&self, block: &[u8]) -> bool {
        let Some(turn) = &self.turn else {
            return false;
        };
        let bytes = self.whole_bytes + (self.blocks.len() + block.len()).to_u64();
        kind_of(block) == PACKET && turn.frames > 0 && bytes > turn.files.file_bytes_max
    }

    /// Goes on in the next file, which begins as the first one did.
    fn turn_over(&mut self) -> io::Result<()> {
        self.flush()?;
        let Some(turn) = &mut self.turn else {
            return Ok(());
        };
        turn.number += 1;
        turn.frames = 0;
        self.file = File::create(turn.files.file(turn.number))?;
        self.whole_bytes = 0;
        for block in &turn.head {
            self.blocks.extend(block);
            self.ends.push(self.blocks.len());
        }
        let oldest = turn.files.files_max;
        let oldest = oldest.map_or(0, |kept| turn.number.saturating_sub(kept));
        // They are numbered from 1 on.
        if oldest > 0 {
            // The user may have moved it away.
            std::fs::remove_file(turn.files.file(oldest)).ok();
        }
        Ok(())
    }

    /// Writes the blocks; the number of bytes that the file took.
    fn write_blocks(&mut self) -> (usize, io::Result<()>) {
        let mut taken = 0;
        while taken < self.blocks.len() {
            match self.file.write(&self.blocks[taken..]) {
                Ok(0) => return (taken, Err(ErrorKind::WriteZero.into())),
                Ok(count) => taken += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return (taken, Err(error)),
            }
        }
        (taken, Ok(()))
    }
}

impl Write for CaptureFile {
    fn write(&mut self, block: &[u8]) -> io::Result<usize> {
        if self.is_full_for(block) {
            self.turn_over()?;
        }
        if let Some(turn) = &mut self.turn {
            match kind_of(block) {
                SECTION | INTERFACE => turn.head.push(block.to_vec()),
                PACKET => turn.frames += 1,
                _ => {}
            }
        }
        // Blocks are never divided between two writes.
        if self.blocks.len() + block.len() > FILE_BUFFER_BYTES {
            self.flush()?;
        }
        self.blocks.extend(block);
        self.ends.push(self.blocks.len());
        Ok(block.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let (taken, written) = self.write_blocks();
        let mut ends = self.ends.iter().rev();
        let whole = ends.find(|end| **end <= taken).copied().unwrap_or(0);
        self.whole_bytes += whole.to_u64();
        if written.is_err() {
            // Fails on a pipe or a device, which have no end to move.
            self.file.set_len(self.whole_bytes).ok();
        }
        self.blocks.clear();
        self.ends.clear();
        written
    }
}

/// The type of a block.
fn kind_of(block: &[u8]) -> u32 {
    block
        .first_chunk()
        .map_or(0, |kind| u32::from_le_bytes(*kind))
}

/// Bytes of blocks that are written at once.
const FILE_BUFFER_BYTES: usize = 1 << 20;
const OUTPUT_BUFFER_BYTES: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn standard_output_is_one_file_and_a_fault_names_the_file() {
        let refused = destination(Path::new("-"), Some(1 << 20), None).err();
        assert!(matches!(refused, Some(CaptureError::Divided)));
        let nowhere = Path::new("/proc/none/a.pcapng");
        let refused = destination(nowhere, None, None).err().expect("no folder");
        assert_eq!(refused.to_string(), "cannot write /proc/none/a.pcapng");
    }
}

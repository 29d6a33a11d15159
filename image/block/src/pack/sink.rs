//! Destination of an image or of its contents: written in order, complete or absent.

use super::{PackError, Target};
use crate::format::FormatError;
use crate::format::output::Output;
use crate::format::write::{Ending, ImageWriter};
use sidecore_bare::width::{ToU64, ToUsize};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// Destination to which bytes are written in order.
pub(super) struct Sink {
    kind: SinkKind,
    /// Bytes accepted so far.
    pub(super) offset: u64,
    /// The last of them, not written yet: small frames are many.
    pending: Vec<u8>,
    path: PathBuf,
}

enum SinkKind {
    File(Output),
    Stdout(io::Stdout),
}

impl Sink {
    pub(super) fn open(target: Target<'_>, source: Option<(u64, u64)>) -> Result<Self, PackError> {
        let (kind, path) = match target {
            Target::Stdout => (SinkKind::Stdout(io::stdout()), "standard output".into()),
            Target::Path(path, existing) => {
                let output =
                    Output::create(path, existing).map_err(|source| PackError::Target {
                        path: path.to_owned(),
                        source,
                    })?;
                if source.is_some() && output.replaces() == source {
                    return Err(PackError::SameFile {
                        path: path.to_owned(),
                    });
                }
                (SinkKind::File(output), path.to_owned())
            }
        };
        Ok(Self {
            kind,
            offset: 0,
            pending: Vec::new(),
            path,
        })
    }

    fn failed(&self, source: io::Error) -> PackError {
        PackError::Target {
            path: self.path.clone(),
            source,
        }
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<(), PackError> {
        self.take(bytes).map_err(|error| self.failed(error))
    }

    /// Writes the end of the image that `writer` makes.
    pub(super) fn end(&mut self, writer: &mut dyn ImageWriter) -> Result<Ending, PackError> {
        writer.finish(self).map_err(|error| self.unwritten(error))
    }

    /// Maps an error of a writer that wrote into this sink.
    pub(super) fn unwritten(&self, error: FormatError) -> PackError {
        match error {
            FormatError::Write(error) => self.failed(error),
            other => other.into(),
        }
    }

    fn take(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.pending.len() + bytes.len() > PENDING_BYTES_MAX {
            self.flush()?;
        }
        self.offset += bytes.len().to_u64();
        if bytes.len() < PENDING_BYTES_MAX {
            self.pending.extend_from_slice(bytes);
            return Ok(());
        }
        self.put(bytes)
    }

    /// Writes the last `bytes` before [`Self::offset`].
    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        let start = self.offset - bytes.len().to_u64();
        match &mut self.kind {
            SinkKind::File(output) => output.file().write_all_at(bytes, start),
            SinkKind::Stdout(stdout) => stdout.write_all(bytes),
        }
    }

    /// Advances by `bytes` without writing, where that leaves zeros.
    pub(super) fn skip_zeros(&mut self, bytes: u64) -> Result<(), PackError> {
        match &self.kind {
            SinkKind::File(output) if output.starts_empty() => {
                self.flush().map_err(|error| self.failed(error))?;
                self.offset += bytes;
                Ok(())
            }
            _ => {
                // The target may hold other bytes, so zeros are written.
                let zeros = vec![0; bytes.min(PENDING_BYTES_MAX.to_u64()).to_usize()];
                let mut left = bytes;
                while left > 0 {
                    let take = left.min(zeros.len().to_u64());
                    self.write(&zeros[..take.to_usize()])?;
                    left -= take;
                }
                Ok(())
            }
        }
    }

    pub(super) fn finish(mut self, front: Option<&[u8]>) -> Result<(), PackError> {
        self.flush().map_err(|error| self.failed(error))?;
        let path = self.path;
        let failed = |source| PackError::Target { path, source };
        match self.kind {
            SinkKind::Stdout(mut stdout) => stdout.flush().map_err(failed),
            SinkKind::File(output) => (|| {
                if let Some(front) = front {
                    output.file().write_all_at(front, 0)?;
                }
                // Skipped zeros at the end were not written, so the length is set.
                if output.starts_empty() {
                    output.file().set_len(self.offset)?;
                }
                output.finish()
            })()
            .map_err(failed),
        }
    }
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.take(bytes).map(|()| bytes.len())
    }

    /// Writes the pending bytes.
    fn flush(&mut self) -> io::Result<()> {
        let mut pending = std::mem::take(&mut self.pending);
        self.put(&pending)?;
        pending.clear();
        self.pending = pending;
        Ok(())
    }
}

/// Small writes are gathered up to this many bytes.
const PENDING_BYTES_MAX: usize = 256 << 10;

//! What is packed: a file, a block device, standard input, or a directory (through a file system
//! made of it).

use super::PackError;
use crate::format::ReadAt;
use crate::inner;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Something to pack, opened.
pub struct Source {
    reader: Box<dyn Read + Send>,
    /// What messages call it.
    pub(super) path: PathBuf,
    /// Its size in bytes, where it has one.
    pub size_bytes: Option<u64>,
    /// The file system that was made of a directory.
    pub inner: Option<inner::Kind>,
    /// Device and inode, to notice a target that is the source.
    pub(super) identity: Option<(u64, u64)>,
}

impl Source {
    /// Opens `path`; `-` is standard input. A directory becomes a file system of `kind`, which is
    /// made now, in a file without a name in `scratch`: blocks until that is done.
    ///
    /// # Errors
    /// [`PackError::Source`] or [`PackError::Inner`].
    pub fn open(path: &Path, kind: inner::Kind, scratch: &Path) -> Result<Self, PackError> {
        if path == Path::new("-") {
            return Ok(Self::from_reader(Box::new(io::stdin()), "standard input"));
        }
        let failed = |source| PackError::Source {
            path: path.to_owned(),
            source,
        };
        let metadata = std::fs::metadata(path).map_err(failed)?;
        let mut made = None;
        let file = if metadata.is_dir() {
            made = Some(kind);
            inner::make(path, kind, scratch)?
        } else {
            File::open(path).map_err(failed)?
        };
        let size_bytes = match file.metadata().map_err(failed)?.file_type() {
            kind if kind.is_file() => Some(file.size_bytes().map_err(failed)?),
            kind if std::os::unix::fs::FileTypeExt::is_block_device(&kind) => {
                let size = file.size_bytes().map_err(failed)?;
                rustix::fs::seek(&file, rustix::fs::SeekFrom::Start(0))
                    .map_err(|error| failed(error.into()))?;
                Some(size)
            }
            // Pipes and the like.
            _ => None,
        };
        // Reading ahead helps: every byte is read once, in order. Where it is not understood
        // nothing is lost.
        let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Sequential);
        Ok(Self {
            reader: Box::new(file),
            path: path.to_owned(),
            size_bytes,
            inner: made,
            identity: metadata.is_file().then(|| (metadata.dev(), metadata.ino())),
        })
    }

    /// A source of unknown size that messages call `name`.
    #[must_use]
    pub fn from_reader(reader: Box<dyn Read + Send>, name: &str) -> Self {
        Self {
            reader,
            path: name.into(),
            size_bytes: None,
            inner: None,
            identity: None,
        }
    }

    /// Fills `buf` as far as there are bytes; less than its length only at the end.
    pub(super) fn fill(&mut self, buf: &mut [u8]) -> Result<usize, PackError> {
        let mut done = 0;
        while done < buf.len() {
            match self.reader.read(&mut buf[done..]) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => {
                    return Err(PackError::Source {
                        path: self.path.clone(),
                        source,
                    });
                }
            }
        }
        Ok(done)
    }
}

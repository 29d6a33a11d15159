//! Sources of packing: a file, a block device, standard input, or a directory (through a file
//! system made of it).
//!
//! Holes of a file are queried (`SEEK_DATA`, `SEEK_HOLE` of lseek(2)), not read: packing a sparse
//! disk of hundreds of gigabytes takes only the time of its data.

use super::PackError;
use super::compressed;
use crate::format::foreign::{self, Foreign};
use crate::format::{OVERLAY_KIND, ReadAt};
use crate::inner;
use rustix::fs::OFlags;
use sidecore_bare::width::{ToU64, ToUsize};
use sidecore_sys::folder::{self, Folder};
use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// An open source.
pub struct Source {
    reader: Reader,
    /// Name in messages.
    pub(super) path: PathBuf,
    /// Its size in bytes, if it is known.
    pub size_bytes: Option<u64>,
    /// The file system that was made of a directory.
    pub inner: Option<inner::Kind>,
    /// Device and inode, to detect a target that is the source.
    pub(super) identity: Option<(u64, u64)>,
}

/// The form in which a source's bytes are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// As they are, or a file system of a directory.
    AsIs,
    /// The contents of a compressed file, or of a disk in qcow2.
    Contents,
    /// A file system of the files in a tar.
    Tar,
}

impl Form {
    /// The part of `memory_bytes` that decompressing the source may take: as much as the largest
    /// usual windows of zstd and xz, of the memory that is allowed by default.
    #[must_use]
    pub fn memory_bytes(self, memory_bytes: u64) -> u64 {
        match self {
            Self::AsIs => 0,
            Self::Contents | Self::Tar => memory_bytes / 5 * 4,
        }
    }
}

/// Source of the bytes.
enum Reader {
    /// In order, to the end.
    Stream(Box<dyn Read + Send>),
    /// A regular file, which may have holes.
    File(Sparse),
}

/// A regular file, read from the first byte to the last.
struct Sparse {
    file: File,
    /// Offset of the next byte.
    at: u64,
    size_bytes: u64,
    /// The extent of data that `at` lies in or before; the rest up to its end is a hole.
    data: Range<u64>,
}

/// Bytes of a source that are holes, and the others.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Holes {
    pub(super) hole_bytes: u64,
    pub(super) data_bytes: u64,
}

/// Result of [`Source::fill`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Filled {
    /// This many bytes, now in the buffer; fewer than its length only at the end.
    Bytes(usize),
    /// This many zeros, which were not read; the buffer is unchanged.
    Zeros(usize),
}

impl Source {
    /// Opens `path`; `-` is standard input. A directory becomes a file system of `kind`, which is
    /// made now, in a file without a name in `scratch`: blocks until that is done.
    ///
    /// # Errors
    /// [`PackError::Source`] or [`PackError::Inner`].
    pub fn open(path: &Path, kind: inner::Kind, scratch: &Path) -> Result<Self, PackError> {
        Self::open_by(path, kind, &inner::Rules::default(), scratch)
    }

    /// Opens `path` in a form. A directory, and a tar, become a file system by `rules`, made in
    /// `scratch`: blocks until that is done. Decompression uses at most `memory_bytes`.
    ///
    /// # Errors
    /// As [`Self::open`]; [`PackError::NoTree`] for rules without a tree, and
    /// [`PackError::Empty`].
    pub fn open_in(
        path: &Path,
        form: Form,
        (kind, rules): (inner::Kind, &inner::Rules),
        scratch: &Path,
        memory_bytes: u64,
    ) -> Result<Self, PackError> {
        let has_rules = !rules.is_empty();
        if has_rules && form != Form::Tar && !path.is_dir() {
            let path = path.to_owned();
            return Err(PackError::NoTree { path });
        }
        let source = match form {
            Form::Tar => Self::open_tar(path, rules, scratch, memory_bytes),
            // Rules mean a directory, which nothing has compressed.
            Form::Contents if !has_rules => Self::open_unpacked(path, kind, scratch, memory_bytes),
            Form::Contents | Form::AsIs => Self::open_by(path, kind, rules, scratch),
        }?;
        match source.size_bytes {
            Some(0) => Err(PackError::Empty {
                path: path.to_owned(),
            }),
            _ => Ok(source),
        }
    }

    /// The same, with rules for the tree that a directory becomes; a file has none.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_by(
        path: &Path,
        kind: inner::Kind,
        rules: &inner::Rules,
        scratch: &Path,
    ) -> Result<Self, PackError> {
        if path == Path::new("-") {
            return Ok(Self::from_reader(Box::new(io::stdin()), "standard input"));
        }
        let failed = |source| PackError::Source {
            path: path.to_owned(),
            source,
        };
        let opened = open_named(path).map_err(failed)?;
        let metadata = opened.metadata().map_err(failed)?;
        let mut made = None;
        let file = if metadata.is_dir() {
            made = Some(kind);
            let directory = Folder::from_descriptor(path.to_owned(), opened.into());
            inner::make_by(&directory, kind, rules, scratch)?
        } else {
            opened
        };
        let size_bytes = match file.metadata().map_err(failed)? {
            found if found.is_file() => Some(file.size_bytes().map_err(failed)?),
            found if is_device(&found) => {
                let size = file.size_bytes().map_err(failed)?;
                rustix::fs::seek(&file, rustix::fs::SeekFrom::Start(0))
                    .map_err(|error| failed(error.into()))?;
                Some(size)
            }
            // Pipes and the like.
            _ => None,
        };
        // Read-ahead helps: every byte is read once, in order. If the call is not supported,
        // nothing is lost.
        let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Sequential);
        let regular = file.metadata().map_err(failed)?.is_file();
        let reader = match size_bytes.filter(|_| regular) {
            Some(size_bytes) => Reader::File(Sparse::new(file, size_bytes)),
            None => Reader::Stream(Box::new(file)),
        };
        Ok(Self {
            reader,
            path: path.to_owned(),
            size_bytes,
            inner: made,
            // An image written onto the device that it is made of would grow into what is not read.
            identity: (metadata.is_file() || is_device(&metadata))
                .then(|| (metadata.dev(), metadata.ino())),
        })
    }

    /// Opens a tar, which may be compressed (gzip, xz, zstd), and makes an erofs of its files, in a
    /// file without a name in `scratch`: blocks until that is done. `-` is standard input.
    /// Decompression uses at most `memory_bytes`.
    ///
    /// # Errors
    /// [`PackError::Source`] or [`PackError::Inner`].
    pub fn open_tar(
        path: &Path,
        rules: &inner::Rules,
        scratch: &Path,
        memory_bytes: u64,
    ) -> Result<Self, PackError> {
        let failed = |source| PackError::Source {
            path: path.to_owned(),
            source,
        };
        let stream: Box<dyn Read + Send> = match path == Path::new("-") {
            true => Box::new(io::stdin()),
            false => Box::new(open_named(path).map_err(failed)?),
        };
        let mut stream = compressed::plain(stream, memory_bytes).map_err(failed)?;
        let file = inner::make_of_tar(&mut stream, rules, scratch)?;
        let size_bytes = file.size_bytes().map_err(failed)?;
        Ok(Self {
            reader: Reader::File(Sparse::new(file, size_bytes)),
            path: path.to_owned(),
            size_bytes: Some(size_bytes),
            inner: Some(inner::Kind::Erofs),
            identity: None,
        })
    }

    /// As [`Self::open`], but with the contents of a compressed file or stream (gzip, xz, zstd) or
    /// of a qcow2 disk. Other files are opened as by [`Self::open`]. Decompression uses at most
    /// `memory_bytes`.
    ///
    /// # Errors
    /// As [`Self::open`]; [`PackError::Foreign`] where the file, or the contents of a compressed
    /// one, is in a known but unsupported form.
    pub fn open_unpacked(
        path: &Path,
        kind: inner::Kind,
        scratch: &Path,
        memory_bytes: u64,
    ) -> Result<Self, PackError> {
        let mut source = Self::open(path, kind, scratch)?;
        // A directory was made into a file system: it is no compressed file.
        if source.inner.is_some() {
            return Ok(source);
        }
        let failed = |source| PackError::Source {
            path: path.to_owned(),
            source,
        };
        let stream: Box<dyn Read + Send> = match source.reader {
            Reader::Stream(stream) => stream,
            Reader::File(sparse) => {
                let head = sparse.head().map_err(failed)?;
                // An image that Sidecore reads itself is refused: other commands unpack it.
                compressed::refuse_image(path, &sparse.file, &head)?;
                if compressed::is_qcow2(&head) {
                    let file = compressed::disk_of(path, &sparse.file, scratch)?;
                    let size_bytes = file.size_bytes().map_err(failed)?;
                    source.size_bytes = Some(size_bytes);
                    source.reader = Reader::File(Sparse::new(file, size_bytes));
                    return Ok(source);
                }
                if !compressed::is_stream(&head) {
                    compressed::refuse(path, &head, &sparse.end().map_err(failed)?, false)?;
                    source.reader = Reader::File(sparse);
                    return Ok(source);
                }
                Box::new(sparse.file)
            }
        };
        let (stream, is_compressed) = compressed::open(path, stream, memory_bytes)?;
        source.reader = Reader::Stream(stream);
        // The size of a compressed stream is known only at its end.
        if is_compressed {
            source.size_bytes = None;
        }
        Ok(source)
    }

    /// Checks a source whose bytes are to be packed as they are: a line for people where it holds a
    /// disk that another program has to unpack. Of a stream only the beginning is known before it
    /// is packed: this waits for it, and keeps it for the packing.
    ///
    /// # Errors
    /// [`PackError::Part`]; [`PackError::Source`] for a stream that cannot be read.
    pub fn check_form(&mut self) -> Result<Option<String>, PackError> {
        let Some(Foreign { kind, next, .. }) = self.foreign()? else {
            return Ok(None);
        };
        let path = self.path.clone();
        // Bytes of a disk in another format are still all of a disk; these are not.
        if kind == OVERLAY_KIND {
            return Err(PackError::Part { path, kind, next });
        }
        let path = path.display();
        Ok(Some(format!(
            "{path} is a {kind}; its bytes are packed as they are. For what is in it: {next}"
        )))
    }

    fn foreign(&mut self) -> Result<Option<Foreign>, PackError> {
        match &mut self.reader {
            Reader::Stream(stream) => {
                let stream_taken = std::mem::replace(stream, Box::new(io::empty()));
                let peeked = compressed::peek(stream_taken);
                let (head, whole) = peeked.map_err(|source| PackError::Source {
                    path: self.path.clone(),
                    source,
                })?;
                *stream = whole;
                Ok(foreign::recognize(&head))
            }
            Reader::File(sparse) => {
                // A file that cannot be read now fails when it is packed.
                let head = sparse.head().ok();
                let end = || foreign::recognize_end(&sparse.end().ok()?);
                let found = head.and_then(|head| foreign::recognize(&head));
                Ok(found.or_else(end))
            }
        }
    }

    /// Bytes of holes, if known without reading; beyond a bounded number of extents all counts as
    /// data.
    pub(super) fn hole_bytes(&self) -> Holes {
        let (size_bytes, sparse) = match &self.reader {
            Reader::File(sparse) => (sparse.size_bytes, Some(sparse)),
            Reader::Stream(_) => (self.size_bytes.unwrap_or(0), None),
        };
        let mut holes = Holes::default();
        let mut at = 0;
        for _ in 0..STRETCHES_MAX {
            let Some(sparse) = sparse.filter(|_| at < size_bytes) else {
                break;
            };
            let data = sparse.data_from(at);
            holes.hole_bytes += data.start.min(size_bytes) - at;
            holes.data_bytes += data.end.min(size_bytes).saturating_sub(data.start);
            at = data.end.min(size_bytes);
        }
        holes.data_bytes += size_bytes - at;
        holes
    }

    /// A source of unknown size that messages call `name`.
    #[must_use]
    pub fn from_reader(reader: Box<dyn Read + Send>, name: &str) -> Self {
        Self {
            reader: Reader::Stream(reader),
            path: name.into(),
            size_bytes: None,
            inner: None,
            identity: None,
        }
    }

    /// Skips whole frames of `frame_bytes` that lie in a hole, at most `max`; returns their number.
    pub(super) fn skip_frames(&mut self, frame_bytes: usize, max: u64) -> u64 {
        match &mut self.reader {
            Reader::File(sparse) => sparse.skip_frames(frame_bytes.to_u64(), max),
            Reader::Stream(_) => 0,
        }
    }

    /// Fills `buf` as far as there are bytes, or reports that they are all zeros.
    pub(super) fn fill(&mut self, buf: &mut [u8]) -> Result<Filled, PackError> {
        if let Reader::File(sparse) = &mut self.reader
            && let Some(bytes) = sparse.skip_hole(buf.len())
        {
            return Ok(Filled::Zeros(bytes));
        }
        let failed = |source| PackError::Source {
            path: self.path.clone(),
            source,
        };
        let mut done = 0;
        while done < buf.len() {
            let read = match &mut self.reader {
                Reader::Stream(reader) => reader.read(&mut buf[done..]),
                Reader::File(sparse) => sparse.read(&mut buf[done..]),
            };
            match read {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(failed(source)),
            }
        }
        if let Reader::File(sparse) = &self.reader
            && done < buf.len()
        {
            sparse.check_length().map_err(failed)?;
        }
        Ok(Filled::Bytes(done))
    }
}

/// Directory in which the file system of a packed directory is built: `TMPDIR`, or else the folder
/// of the image `output`, which has room.
#[must_use]
pub fn scratch_directory(output: &Path) -> PathBuf {
    if let Some(directory) = std::env::var_os("TMPDIR").filter(|directory| !directory.is_empty()) {
        return directory.into();
    }
    match output.parent() {
        // Standard output is in no folder.
        _ if output.as_os_str() == "-" => std::env::temp_dir(),
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => ".".into(),
    }
}

/// Opens the file named by the user. Waits for the writer of a pipe, but not for another user's
/// pipe.
fn open_named(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = folder::open_named(path, flags, 0)?;
    let metadata = file.metadata()?;
    if !metadata.file_type().is_fifo() {
        rustix::fs::fcntl_setfl(&file, OFlags::empty())?;
        return Ok(file);
    }
    let uid = metadata.uid();
    let is_own = uid == 0 || uid == rustix::process::geteuid().as_raw();
    // A file without a name was passed by descriptor (`/dev/stdin`): its owner does not matter.
    let is_named = rustix::fs::fstatfs(&file)?.f_type != PIPES_MAGIC;
    if is_named && !is_own {
        let text = format!("it is a pipe of user {uid}, who may never write to it");
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
    }
    // The same pipe, now waiting for a writer.
    File::open(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

fn is_device(metadata: &Metadata) -> bool {
    metadata.file_type().is_block_device()
}

impl Sparse {
    fn new(file: File, size_bytes: u64) -> Self {
        Self {
            file,
            at: 0,
            size_bytes,
            data: 0..0,
        }
    }

    /// Its last bytes, which may identify its form.
    fn end(&self) -> io::Result<Vec<u8>> {
        let bytes = self.size_bytes.min(foreign::END_BYTES.to_u64());
        let mut end = vec![0; bytes.to_usize()];
        FileExt::read_exact_at(&self.file, &mut end, self.size_bytes - bytes)?;
        Ok(end)
    }

    /// Its first bytes, which may identify its form.
    fn head(&self) -> io::Result<Vec<u8>> {
        let mut head = vec![0; foreign::HEAD_BYTES];
        let bytes = self.file.read_at(&mut head, 0)?;
        head.truncate(bytes);
        Ok(head)
    }

    /// Skips the next `len` bytes, or all up to the end, if they lie in a hole; returns their
    /// number.
    fn skip_hole(&mut self, len: usize) -> Option<usize> {
        if self.at >= self.data.end {
            self.data = self.data_from(self.at);
        }
        let end = self.size_bytes.min(self.at + len.to_u64());
        if self.at >= end || end > self.data.start {
            return None;
        }
        let bytes = (end - self.at).to_usize();
        self.at = end;
        Some(bytes)
    }

    /// Skips the rest of the hole that [`Self::skip_hole`] has found, in whole frames.
    fn skip_frames(&mut self, frame_bytes: u64, max: u64) -> u64 {
        let end = self.data.start.min(self.size_bytes);
        let frames = (end.saturating_sub(self.at) / frame_bytes).min(max);
        self.at += frames * frame_bytes;
        frames
    }

    /// The first extent of data at or after `at`.
    fn data_from(&self, at: u64) -> Range<u64> {
        data_from(&self.file, at)
    }

    /// Reads up to the end that the file had when it was opened.
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let left = self.size_bytes.saturating_sub(self.at);
        let len = left.min(buf.len().to_u64()).to_usize();
        let bytes = self.file.read_at(&mut buf[..len], self.at)?;
        self.at += bytes.to_u64();
        Ok(bytes)
    }

    /// Fails where the file is shorter than it was: what is missing has been taken for its end, or
    /// for a hole.
    fn check_length(&self) -> io::Result<()> {
        match self.file.metadata()?.len() < self.size_bytes {
            true => Err(io::Error::other(
                "it has become shorter since it was opened",
            )),
            false => Ok(()),
        }
    }
}

/// The first extent of data of `file` at or after `at`; after the last one, a range at the end of
/// all offsets. If the file system does not report holes, all is data.
pub(super) fn data_from(file: &File, at: u64) -> Range<u64> {
    use rustix::fs::{SeekFrom, seek};
    let start = match seek(file, SeekFrom::Data(at)) {
        Ok(start) => start,
        // No data from here on.
        Err(rustix::io::Errno::NXIO) => return u64::MAX - 1..u64::MAX,
        Err(_) => return at..u64::MAX,
    };
    let end = seek(file, SeekFrom::Hole(start)).unwrap_or(u64::MAX);
    start..end.max(start + 1)
}

/// Most extents examined before the kind of image is chosen.
const STRETCHES_MAX: usize = 64 << 10;

/// `PIPEFS_MAGIC` of Linux: the file system of pipes without a name.
const PIPES_MAGIC: rustix::fs::FsWord = 0x5049_5045;

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads all of a source; returns the number of its bytes.
    fn read_all(source: &mut Source) -> Result<u64, PackError> {
        let (mut buffer, mut bytes) = (vec![0; 64 << 10], 0);
        loop {
            match source.fill(&mut buffer)? {
                Filled::Bytes(0) | Filled::Zeros(0) => return Ok(bytes),
                Filled::Bytes(more) | Filled::Zeros(more) => bytes += more.to_u64(),
            }
        }
    }

    #[test]
    fn a_source_keeps_the_length_that_it_had() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk");
        let open = || {
            std::fs::write(&path, vec![7_u8; 300_000]).unwrap();
            Source::open(&path, inner::Kind::Erofs, folder.path()).unwrap()
        };
        let set_length = |bytes| {
            let file = File::options().write(true).open(&path).unwrap();
            file.set_len(bytes).unwrap();
        };
        let mut grows = open();
        set_length(400_000);
        assert_eq!(read_all(&mut grows).unwrap(), 300_000);
        // A shorter image would look whole, and so would one with zeros at its end.
        for left in [0, 100_000, 299_999] {
            for is_begun in [false, true] {
                let mut shrinks = open();
                if is_begun {
                    shrinks.fill(&mut [0; 1000]).unwrap();
                }
                set_length(left);
                let error = read_all(&mut shrinks).unwrap_err();
                assert!(error.to_string().contains("shorter"), "{left}: {error}");
            }
        }
    }
}

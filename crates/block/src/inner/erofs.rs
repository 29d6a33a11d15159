//! An erofs made of a directory: its names and attributes looked at first, then the contents read
//! once, file after file.
//!
//! Contents are stored directory by directory, the files of one before those of the directories in
//! it: who reads a directory's files in order reads the image in order, and what is alike is
//! compressed together.
//!
//! Must stay true: symbolic links are not followed; hard links stay one file; a file's contents are
//! those that it had, to the length that it had when its name was looked at.

use super::chunks::Chunks;
use super::{InnerError, tree};
use rustix::fs::{OFlags, SeekFrom, lgetxattr, llistxattr, seek};
use rustix::io::Errno;
use sidecore_erofs::write::{CHUNK_BYTES, Id, Layout, Meta, Node, Tree, Unfit, is_storable};
use std::collections::HashMap;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Writes an erofs of `directory`, whose `entries` are sorted, to `file`.
pub(super) fn make(
    directory: &Path,
    entries: &[PathBuf],
    file: &File,
    scratch: &Path,
    epoch: Option<u64>,
) -> Result<(), InnerError> {
    let seen = Seen::look(directory, entries, epoch)?;
    let uuid = match epoch {
        Some(_) => seen.identity.uuid(),
        None => random_uuid(scratch)?,
    };
    let (contents, firsts) = (seen.contents, seen.firsts);
    let path_of = |id: Id| match firsts[id as usize] {
        Some(entry) => directory.join(&entries[entry as usize]),
        None => directory.to_owned(),
    };
    let unfit = |error: Unfit| InnerError::Unfit {
        path: path_of(error.id),
        source: error.what,
    };
    let failed = |source| InnerError::Store {
        path: scratch.to_owned(),
        source,
    };
    let mut layout = Layout::new(seen.tree).map_err(unfit)?;
    let mut chunks = Chunks::new(file, layout.data_at());
    let mut buffer = vec![0; CHUNK_BYTES as usize];
    for content in &contents {
        let path = path_of(content.id);
        let mut reader = Reader::open(&path, content)?;
        while let Some(piece) = reader.next(&mut buffer)? {
            let (count, at) = match piece {
                Piece::Hole(count) => (count, None),
                Piece::Bytes(len) => {
                    let len = len.next_multiple_of(super::BLOCK_BYTES as usize);
                    let bytes = &buffer[..len];
                    let is_hole = content.may_have_holes() && bytes.iter().all(|&byte| byte == 0);
                    let at = (!is_hole).then(|| chunks.keep(bytes)).transpose();
                    (1, at.map_err(failed)?)
                }
            };
            layout.place(content.id, count, at).map_err(unfit)?;
        }
    }
    let sealed = layout.seal(chunks.end(), uuid).map_err(unfit)?;
    sealed
        .write(|at, bytes| chunks.put(at, bytes))
        .and_then(|()| chunks.flush())
        .and_then(|()| file.set_len(sealed.image_bytes()))
        .map_err(failed)
}

/// A file whose contents are to be stored.
struct Content {
    id: Id,
    /// Number of its directory's entry, by which the order goes.
    directory: Option<u32>,
    /// Device and inode.
    identity: (u64, u64),
    size_bytes: u64,
    is_sparse: bool,
}

impl Content {
    /// True where the layout has room for the places of chunks.
    fn may_have_holes(&self) -> bool {
        self.is_sparse || self.size_bytes > CHUNK_BYTES
    }
}

/// A tree as its names and attributes were found.
struct Seen {
    tree: Tree,
    /// In the order in which they are stored.
    contents: Vec<Content>,
    /// The first entry of each inode; none for the root.
    firsts: Vec<Option<u32>>,
    identity: tree::Identity,
}

impl Seen {
    fn look(directory: &Path, entries: &[PathBuf], epoch: Option<u64>) -> Result<Self, InnerError> {
        let mut attributes = Attributes::new();
        let metadata = fs::metadata(directory).map_err(InnerError::reading(directory))?;
        attributes.read(directory)?;
        let unfit_at = |path: &Path| {
            let path = path.to_owned();
            move |error: Unfit| InnerError::Unfit {
                path,
                source: error.what,
            }
        };
        let mut seen = Self {
            tree: Tree::new(meta(&metadata, epoch), attributes.each())
                .map_err(unfit_at(directory))?,
            contents: Vec::new(),
            firsts: vec![None],
            identity: tree::Identity::default(),
        };
        let mut directories: HashMap<&Path, (Id, Option<u32>)> = HashMap::new();
        directories.insert(Path::new(""), (0, None));
        let mut linked: HashMap<(u64, u64), Id> = HashMap::new();
        for (number, entry) in entries.iter().enumerate() {
            let number = u32::try_from(number).ok();
            let path = directory.join(entry);
            let metadata = fs::symlink_metadata(&path).map_err(InnerError::reading(&path))?;
            seen.identity.add(entry, Some(&metadata));
            let identity = (metadata.dev(), metadata.ino());
            let is_linked = metadata.nlink() > 1 && !metadata.is_dir();
            let above = entry.parent().and_then(|above| directories.get(above));
            // Sorted as they are, a directory comes before what is in it.
            let &(parent, parent_number) = above.unwrap_or(&(0, None));
            let known = linked.get(&identity).copied().filter(|_| is_linked);
            let id = match known {
                Some(id) => id,
                None => {
                    attributes.read(&path)?;
                    let id = seen
                        .add(&path, &metadata, epoch, &attributes)?
                        .map_err(unfit_at(&path))?;
                    seen.firsts.push(number);
                    if metadata.is_dir() {
                        directories.insert(entry, (id, number));
                    }
                    if metadata.is_file() {
                        seen.contents.push(Content {
                            id,
                            directory: parent_number,
                            identity,
                            size_bytes: metadata.len(),
                            is_sparse: is_sparse(&metadata),
                        });
                    }
                    if is_linked {
                        linked.insert(identity, id);
                    }
                    id
                }
            };
            let name = entry.file_name().unwrap_or_default().as_bytes();
            seen.tree.link(parent, name, id).map_err(unfit_at(&path))?;
        }
        // Stable: the files of one directory stay in the order of their names.
        seen.contents.sort_by_key(|content| content.directory);
        Ok(seen)
    }

    fn add(
        &mut self,
        path: &Path,
        metadata: &Metadata,
        epoch: Option<u64>,
        attributes: &Attributes,
    ) -> Result<Result<Id, Unfit>, InnerError> {
        let kind = metadata.file_type();
        let (major, minor) = {
            let device = metadata.rdev();
            (rustix::fs::major(device), rustix::fs::minor(device))
        };
        let target;
        let node = if kind.is_file() {
            Node::File {
                size_bytes: metadata.len(),
                may_be_hole: is_sparse(metadata),
            }
        } else if kind.is_dir() {
            Node::Directory
        } else if kind.is_symlink() {
            target = fs::read_link(path).map_err(InnerError::reading(path))?;
            Node::Link(target.as_os_str().as_bytes())
        } else if kind.is_char_device() {
            Node::CharacterDevice(major, minor)
        } else if kind.is_block_device() {
            Node::BlockDevice(major, minor)
        } else if kind.is_fifo() {
            Node::Fifo
        } else {
            Node::Socket
        };
        Ok(self
            .tree
            .add(meta(metadata, epoch), node, attributes.each()))
    }
}

/// True where less is stored than there is.
fn is_sparse(metadata: &Metadata) -> bool {
    metadata.blocks().saturating_mul(512) < metadata.len()
}

fn meta(metadata: &Metadata, epoch: Option<u64>) -> Meta {
    let found = (metadata.mtime(), metadata.mtime_nsec());
    let latest = epoch.map_or((i64::MAX, 0), |epoch| {
        (epoch.try_into().unwrap_or(i64::MAX), 0)
    });
    let (mtime_s, mtime_ns) = found.min(latest);
    Meta {
        // The rest says the kind.
        permissions: (metadata.mode() & 0o7777) as u16,
        uid: metadata.uid(),
        gid: metadata.gid(),
        mtime_s,
        mtime_ns: u32::try_from(mtime_ns).unwrap_or_default(),
    }
}

/// Extended attributes of one file at a time.
struct Attributes {
    names: Vec<u8>,
    value: Vec<u8>,
    found: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Attributes {
    fn new() -> Self {
        Self {
            names: vec![0; NAMES_BYTES_MAX],
            value: vec![0; VALUE_BYTES_MAX],
            found: Vec::new(),
        }
    }

    /// Reads those of `path` itself that erofs can hold; others belong to the file system that it
    /// lies on.
    fn read(&mut self, path: &Path) -> Result<(), InnerError> {
        let failed = |errno: Errno| InnerError::reading(path)(errno.into());
        self.found.clear();
        let len = match llistxattr(path, &mut self.names[..]) {
            Ok(len) => len,
            // The file system has none.
            Err(Errno::NOTSUP) => return Ok(()),
            Err(errno) => return Err(failed(errno)),
        };
        for name in self.names[..len].split(|&byte| byte == 0) {
            if !is_storable(name) {
                continue;
            }
            match lgetxattr(path, name, &mut self.value[..]) {
                Ok(len) => self.found.push((name.to_vec(), self.value[..len].to_vec())),
                // Gone meanwhile.
                Err(Errno::NODATA) => {}
                Err(errno) => return Err(failed(errno)),
            }
        }
        Ok(())
    }

    fn each(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.found
            .iter()
            .map(|(name, value)| (&name[..], &value[..]))
    }
}

/// A file's contents, chunk after chunk, holes not read.
struct Reader<'p> {
    file: File,
    path: &'p Path,
    size_bytes: u64,
    at: u64,
    is_sparse: bool,
    /// The stretch of data that `at` lies in or before; all else up to its end is a hole.
    data: Range<u64>,
}

/// Next part of a file's contents.
enum Piece {
    /// A number of chunks of zeros.
    Hole(u64),
    /// One chunk of so many bytes; up to the end of its block the buffer is zeros.
    Bytes(usize),
}

impl<'p> Reader<'p> {
    fn open(path: &'p Path, content: &Content) -> Result<Self, InnerError> {
        let failed = InnerError::reading(path);
        // Whatever has the name by now: nothing waits for a pipe's writer.
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(flags.bits().cast_signed())
            .open(path)
            .map_err(&failed)?;
        let metadata = file.metadata().map_err(&failed)?;
        let mut reader = Self {
            file,
            path,
            size_bytes: content.size_bytes,
            at: 0,
            is_sparse: content.is_sparse,
            data: 0..0,
        };
        // A number alone may be another file's by now.
        if !metadata.is_file() || (metadata.dev(), metadata.ino()) != content.identity {
            return Err(reader.changed());
        }
        if !reader.is_sparse {
            reader.data = 0..u64::MAX;
        }
        Ok(reader)
    }

    fn changed(&self) -> InnerError {
        InnerError::Changed {
            path: self.path.to_owned(),
        }
    }

    /// The next chunk, in `buffer` where it is not a hole; none at the end.
    fn next(&mut self, buffer: &mut [u8]) -> Result<Option<Piece>, InnerError> {
        let left = self.size_bytes - self.at;
        if left == 0 {
            return Ok(None);
        }
        if self.at >= self.data.end {
            self.data = data_from(&self.file, self.at);
        }
        let hole = self.data.start.min(self.size_bytes).saturating_sub(self.at);
        let chunks = match hole == left {
            true => hole.div_ceil(CHUNK_BYTES),
            false => hole / CHUNK_BYTES,
        };
        if chunks > 0 {
            // What is no longer there looks like a hole, too.
            let metadata = self
                .file
                .metadata()
                .map_err(InnerError::reading(self.path))?;
            if metadata.len() < self.size_bytes {
                return Err(self.changed());
            }
            self.at += left.min(chunks * CHUNK_BYTES);
            return Ok(Some(Piece::Hole(chunks)));
        }
        let len = left.min(CHUNK_BYTES) as usize;
        let mut done = 0;
        while done < len {
            match self
                .file
                .read_at(&mut buffer[done..len], self.at + done as u64)
            {
                Ok(0) => return Err(self.changed()),
                Ok(read) => done += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(InnerError::reading(self.path)(error)),
            }
        }
        let padded = len.next_multiple_of(super::BLOCK_BYTES as usize);
        buffer[len..padded].fill(0);
        self.at += len as u64;
        Ok(Some(Piece::Bytes(len)))
    }
}

/// The first stretch of data at or behind `at`. Where the file system knows no holes, all is data.
fn data_from(file: &File, at: u64) -> Range<u64> {
    let start = match seek(file, SeekFrom::Data(at)) {
        Ok(start) => start,
        // No data from here on.
        Err(Errno::NXIO) => return u64::MAX..u64::MAX,
        Err(_) => return at..u64::MAX,
    };
    let end = seek(file, SeekFrom::Hole(start)).unwrap_or(u64::MAX);
    start..end.max(start + 1)
}

/// A UUID of random bits (RFC 9562, version 4).
fn random_uuid(scratch: &Path) -> Result<[u8; 16], InnerError> {
    use ring::rand::SecureRandom;
    let mut uuid = [0; 16];
    let drawn = ring::rand::SystemRandom::new().fill(&mut uuid);
    drawn.map_err(|_| InnerError::Scratch {
        path: scratch.to_owned(),
        source: io::Error::other("the system gives no random numbers for a UUID"),
    })?;
    uuid[6] = uuid[6] & 0x0F | 0x40;
    uuid[8] = uuid[8] & 0x3F | 0x80;
    Ok(uuid)
}

/// The longest list of names, and the longest value, that Linux gives (xattr(7)).
const NAMES_BYTES_MAX: usize = 64 << 10;
const VALUE_BYTES_MAX: usize = 64 << 10;

#[cfg(test)]
mod tests;

//! Makes an erofs of a directory: reads its names and attributes first, then the contents once,
//! file after file.
//!
//! Contents are stored directory by directory, the files of one before those of its subdirectories.
//! A reader that goes through a directory's files in order reads the image in order, and similar
//! contents are compressed together. Files that the rules have come first are before all others.
//!
//! Must stay true: symbolic links are not followed; hard links stay one file. A file's contents are
//! those at the time of reading, up to the length that it had when its attributes were read.

use super::chunks::Chunks;
use super::rules::Rules;
use super::tree::{self, Visit, identity};
use super::{InnerError, random_uuid, size_bytes};
use rustix::fs::{FileType, OFlags, SeekFrom, Stat, seek};
use rustix::fs::{fgetxattr, flistxattr, fstat, getxattr, listxattr, readlinkat};
use rustix::io::Errno;
use sidecore_bare::width::{ToU64, ToUsize};
use sidecore_erofs::write::{CHUNK_BYTES, Id, Layout, Meta, Node, Tree, Unfit, is_storable};
use sidecore_sys::folder::Folder;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Writes an erofs of `directory` to `file`.
pub(super) fn make(
    directory: &Folder,
    file: &File,
    scratch: &Path,
    (rules, epoch): (&Rules, Option<u64>),
) -> Result<(), InnerError> {
    // All names and attributes first: the layout needs their number before the first byte of data.
    let seen = Seen::look(directory, rules, epoch)?;
    // A reproducible image must not hold random bits.
    let uuid = match epoch {
        Some(_) => seen.identity.uuid(),
        None => random_uuid(scratch)?,
    };
    let (contents, names) = (seen.contents, seen.names);
    let unfit = |error: Unfit| InnerError::Unfit {
        path: directory.path().join(names.path(error.id)),
        source: error.what,
    };
    let failed = |source| InnerError::Store {
        path: scratch.to_owned(),
        source,
    };
    let mut layout = Layout::new(seen.tree).map_err(unfit)?;
    let mut chunks = Chunks::new(file, layout.data_at());
    let mut buffer = vec![0; CHUNK_BYTES.to_usize()];
    // The directory of the last file: the files of one directory are consecutive.
    let mut here: Option<(Id, Folder)> = None;
    for content in &contents {
        let path = directory.path().join(names.path(content.id));
        let folder = match here.take().filter(|(id, _)| *id == content.directory) {
            Some((_, folder)) => folder,
            None => directory
                .beneath(&names.path(content.directory))
                .map_err(InnerError::reading(&path))?,
        };
        // Kept open: the next file is most often in the same directory.
        let (_, folder) = here.insert((content.directory, folder));
        let mut reader = Reader::open(folder, names.name(content.id), &path, content)?;
        while let Some(piece) = reader.next(&mut buffer)? {
            let (count, at) = match piece {
                Piece::Hole(count) => (count, None),
                Piece::Bytes(len) => {
                    // Whole blocks: the kernel maps the last one with its padding.
                    let len = len.next_multiple_of(super::BLOCK_BYTES.to_usize());
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
    /// The directory of its first name, which determines the order of equal ranks.
    directory: Id,
    rank: usize,
    /// Device and inode.
    identity: (u64, u64),
    size_bytes: u64,
    is_sparse: bool,
}

impl Content {
    /// True if the layout has room for the places of chunks.
    fn may_have_holes(&self) -> bool {
        self.is_sparse || self.size_bytes > CHUNK_BYTES
    }
}

/// The first name of each inode, in its directory; the root has no name.
struct Names(Vec<(Id, Box<OsStr>)>);

impl Names {
    fn name(&self, id: Id) -> &OsStr {
        &self.0[id.to_usize()].1
    }

    /// Path of an inode inside the tree; empty for the root.
    fn path(&self, id: Id) -> PathBuf {
        let mut names = Vec::new();
        let mut at = id;
        while at != 0 {
            let (above, name) = &self.0[at.to_usize()];
            names.push(&**name);
            at = *above;
        }
        names.into_iter().rev().collect()
    }
}

/// A tree with the names and attributes that were read.
struct Seen {
    tree: Tree,
    /// In the order in which they are stored.
    contents: Vec<Content>,
    names: Names,
    identity: tree::Identity,
}

impl Seen {
    fn look(directory: &Folder, rules: &Rules, epoch: Option<u64>) -> Result<Self, InnerError> {
        let mut attributes = Attributes::new();
        let root = directory.path();
        let stat = directory.stat().map_err(InnerError::reading(root))?;
        attributes.read(directory.as_fd(), root)?;
        let unfit_at = |path: &Path| {
            let path = root.join(path);
            move |error: Unfit| InnerError::Unfit {
                path,
                source: error.what,
            }
        };
        let mut seen = Self {
            tree: Tree::new(rules.apply(meta(&stat, epoch)), attributes.each())
                .map_err(unfit_at(Path::new("")))?,
            contents: Vec::new(),
            names: Names(vec![(0, Box::default())]),
            identity: tree::Identity::default(),
        };
        // The directories from the root down to the parent of the visited entry.
        let mut above: Vec<Id> = vec![0];
        let mut linked: HashMap<(u64, u64), Id> = HashMap::new();
        tree::walk_by(directory, rules, |visit| {
            above.truncate(visit.depth + 1);
            // A directory is visited before its entries.
            let parent = above[visit.depth];
            let stat = visit.stat;
            let kind = FileType::from_raw_mode(stat.st_mode);
            seen.identity.add(visit.path, stat);
            // Directories have several links, too: `.` and the `..` of each subdirectory.
            let is_linked = stat.st_nlink > 1 && kind != FileType::Directory;
            let known = linked.get(&identity(stat)).copied().filter(|_| is_linked);
            let name = visit.path.file_name().unwrap_or_default();
            let id = match known {
                Some(id) => id,
                None => {
                    attributes.read(visit.file, &root.join(visit.path))?;
                    let id = seen
                        .add(root, visit, (rules, epoch), &attributes)?
                        .map_err(unfit_at(visit.path))?;
                    seen.names.0.push((parent, name.into()));
                    if kind == FileType::RegularFile {
                        seen.contents.push(Content {
                            id,
                            directory: parent,
                            rank: rules.rank(visit.path),
                            identity: identity(stat),
                            size_bytes: size_bytes(stat),
                            is_sparse: is_sparse(stat),
                        });
                    }
                    if is_linked {
                        linked.insert(identity(stat), id);
                    }
                    id
                }
            };
            if kind == FileType::Directory {
                above.push(id);
            }
            let named = seen.tree.link(parent, name.as_bytes(), id);
            named.map_err(unfit_at(visit.path))
        })?;
        // A stable sort: the files of one directory stay in the order of their names.
        seen.contents
            .sort_by_key(|content| (content.rank, content.directory));
        Ok(seen)
    }

    fn add(
        &mut self,
        root: &Path,
        visit: &Visit<'_>,
        (rules, epoch): (&Rules, Option<u64>),
        attributes: &Attributes,
    ) -> Result<Result<Id, Unfit>, InnerError> {
        let stat = visit.stat;
        let (major, minor) = {
            let device = stat.st_rdev;
            (rustix::fs::major(device), rustix::fs::minor(device))
        };
        // Lives as long as the node that borrows it.
        let target;
        let node = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Node::File {
                size_bytes: size_bytes(stat),
                may_be_hole: is_sparse(stat),
            },
            FileType::Directory => Node::Directory,
            FileType::Symlink => {
                let read = readlinkat(visit.file, "", Vec::new());
                target = read
                    .map_err(|errno| InnerError::reading(&root.join(visit.path))(errno.into()))?;
                Node::Link(target.as_bytes())
            }
            FileType::CharacterDevice => Node::CharacterDevice(major, minor),
            FileType::BlockDevice => Node::BlockDevice(major, minor),
            FileType::Fifo => Node::Fifo,
            FileType::Socket | FileType::Unknown => Node::Socket,
        };
        Ok(self
            .tree
            .add(rules.apply(meta(stat, epoch)), node, attributes.each()))
    }
}

/// True if the file takes less space than its length.
fn is_sparse(stat: &Stat) -> bool {
    super::stored_bytes(stat) < size_bytes(stat)
}

fn meta(stat: &Stat, epoch: Option<u64>) -> Meta {
    let found = (
        stat.st_mtime,
        i64::try_from(stat.st_mtime_nsec).unwrap_or_default(),
    );
    let latest = epoch.map_or((i64::MAX, 0), |epoch| {
        (epoch.try_into().unwrap_or(i64::MAX), 0)
    });
    // Later times are cut, earlier ones kept, as the specification of SOURCE_DATE_EPOCH asks.
    let (mtime_s, mtime_ns) = found.min(latest);
    Meta {
        // The other bits are the kind.
        permissions: (stat.st_mode & 0o7777) as u16,
        uid: stat.st_uid,
        gid: stat.st_gid,
        mtime_s,
        mtime_ns: u32::try_from(mtime_ns).unwrap_or_default(),
    }
}

/// Reader of extended attributes, one file at a time.
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

    /// Reads the attributes of `file` that erofs can hold, also those of a symbolic link itself;
    /// others belong to the source file system. `path` is for messages.
    fn read(&mut self, file: BorrowedFd<'_>, path: &Path) -> Result<(), InnerError> {
        let failed = |errno: Errno| InnerError::reading(path)(errno.into());
        self.found.clear();
        let mut reach = None;
        let mut listed = flistxattr(file, &mut self.names[..]);
        if listed == Err(Errno::BADF) {
            // The descriptor is opened with O_PATH, which the descriptor calls refuse; its path in
            // /proc works.
            let path = reach.insert(format!("/proc/self/fd/{}", file.as_raw_fd()));
            listed = listxattr(&**path, &mut self.names[..]);
        }
        let len = match listed {
            Ok(len) => len,
            // The file system does not support attributes.
            Err(Errno::NOTSUP) => return Ok(()),
            Err(errno) => return Err(failed(errno)),
        };
        for name in self.names[..len].split(|&byte| byte == 0) {
            // Such as `system.nfs4_acl`: they mean something on their own file system alone.
            if !is_storable(name) {
                continue;
            }
            let got = match &reach {
                Some(path) => getxattr(&**path, name, &mut self.value[..]),
                None => fgetxattr(file, name, &mut self.value[..]),
            };
            match got {
                Ok(len) => self.found.push((name.to_vec(), self.value[..len].to_vec())),
                // Removed meanwhile.
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

/// A file's contents, chunk after chunk; holes are not read.
struct Reader<'p> {
    file: File,
    path: &'p Path,
    size_bytes: u64,
    at: u64,
    is_sparse: bool,
    /// The data range that contains or follows `at`; everything else up to its end is a hole.
    data: Range<u64>,
}

/// Next part of a file's contents.
enum Piece {
    /// A number of chunks of zeros.
    Hole(u64),
    /// One chunk of this many bytes; up to the end of its block the buffer is zeros.
    Bytes(usize),
}

impl<'p> Reader<'p> {
    /// Opens the file `name` in `folder`; `path` is for messages.
    fn open(
        folder: &Folder,
        name: &OsStr,
        path: &'p Path,
        content: &Content,
    ) -> Result<Self, InnerError> {
        let failed = InnerError::reading(path);
        // NOCTTY: opening must have no effect, whatever the name has become meanwhile.
        let opened = folder.open_file(Path::new(name), OFlags::RDONLY | OFlags::NOCTTY, 0);
        let file = match opened {
            Ok(file) => file,
            // Replaced by a link meanwhile.
            Err(error) if error.raw_os_error() == Some(Errno::LOOP.raw_os_error()) => {
                return Err(InnerError::Changed {
                    path: path.to_owned(),
                });
            }
            Err(error) => return Err(failed(error)),
        };
        let stat = fstat(&file).map_err(|errno| failed(errno.into()))?;
        let mut reader = Self {
            file,
            path,
            size_bytes: content.size_bytes,
            at: 0,
            is_sparse: content.is_sparse,
            data: 0..0,
        };
        // The inode number alone may belong to another file by now.
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind != FileType::RegularFile || identity(&stat) != content.identity {
            return Err(reader.changed());
        }
        // Without holes there is nothing to look for: two system calls less for each file.
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

    /// The next chunk, in `buffer` unless it is a hole; `None` at the end.
    fn next(&mut self, buffer: &mut [u8]) -> Result<Option<Piece>, InnerError> {
        let left = self.size_bytes - self.at;
        if left == 0 {
            return Ok(None);
        }
        if self.at >= self.data.end {
            self.data = data_from(&self.file, self.at);
        }
        let hole = self.data.start.min(self.size_bytes).saturating_sub(self.at);
        // A hole at the end may cover a part of the last chunk; elsewhere only whole chunks are
        // left out.
        let chunks = match hole == left {
            true => hole.div_ceil(CHUNK_BYTES),
            false => hole / CHUNK_BYTES,
        };
        if chunks > 0 {
            // A truncated part looks like a hole, too.
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
        let len = left.min(CHUNK_BYTES).to_usize();
        let mut done = 0;
        while done < len {
            match self
                .file
                .read_at(&mut buffer[done..len], self.at + done.to_u64())
            {
                Ok(0) => return Err(self.changed()),
                Ok(read) => done += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(InnerError::reading(self.path)(error)),
            }
        }
        let padded = len.next_multiple_of(super::BLOCK_BYTES.to_usize());
        buffer[len..padded].fill(0);
        self.at += len.to_u64();
        Ok(Some(Piece::Bytes(len)))
    }
}

/// The first data range at or after `at`. On a file system without support for holes, all is data.
fn data_from(file: &File, at: u64) -> Range<u64> {
    // lseek(2): ENXIO where no data follow; other errors where holes are not supported.
    let start = match seek(file, SeekFrom::Data(at)) {
        Ok(start) => start,
        // No data from here on.
        Err(Errno::NXIO) => return u64::MAX..u64::MAX,
        Err(_) => return at..u64::MAX,
    };
    let end = seek(file, SeekFrom::Hole(start)).unwrap_or(u64::MAX);
    start..end.max(start + 1)
}

/// The longest list of names, and the longest value, on Linux (xattr(7)).
const NAMES_BYTES_MAX: usize = 64 << 10;
const VALUE_BYTES_MAX: usize = 64 << 10;

#[cfg(test)]
mod tests {
    //! Files that change between the reading of their names and the reading of their contents.

    use super::*;
    use std::fs::{self, OpenOptions};

    fn content(path: &Path) -> Content {
        let stat = rustix::fs::stat(path).unwrap();
        Content {
            id: 1,
            directory: 0,
            rank: 0,
            identity: identity(&stat),
            size_bytes: size_bytes(&stat),
            is_sparse: is_sparse(&stat),
        }
    }

    fn read(path: &Path, content: &Content) -> Result<Vec<u8>, InnerError> {
        let (folder, name) = Folder::of_file(path).unwrap();
        let mut reader = Reader::open(&folder, &name, path, content)?;
        let mut buffer = vec![0xEE; CHUNK_BYTES as usize];
        let mut bytes = Vec::new();
        while let Some(piece) = reader.next(&mut buffer)? {
            match piece {
                Piece::Hole(chunks) => {
                    bytes.resize(bytes.len() + (chunks * CHUNK_BYTES) as usize, 0)
                }
                Piece::Bytes(len) => bytes.extend(&buffer[..len]),
            }
        }
        bytes.truncate(content.size_bytes as usize);
        Ok(bytes)
    }

    #[test]
    fn a_file_that_grows_is_cut_where_it_ended() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        fs::write(&path, vec![7; 100_000]).unwrap();
        let before = content(&path);
        fs::write(&path, vec![7; 300_000]).unwrap();
        assert!(read(&path, &before).unwrap() == vec![7; 100_000]);
    }

    #[test]
    fn a_file_that_becomes_shorter_is_an_error_that_names_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("cut");
        let sparse = directory.path().join("sparse");
        fs::write(&path, vec![7; 300_000]).unwrap();
        File::create(&sparse).unwrap().set_len(1 << 20).unwrap();
        for path in [path, sparse] {
            let before = content(&path);
            OpenOptions::new()
                .write(true)
                .open(&path)
                .unwrap()
                .set_len(100_000)
                .unwrap();
            let error = read(&path, &before).unwrap_err();
            assert!(matches!(error, InnerError::Changed { .. }), "{error}");
            assert!(error.to_string().contains(path.to_str().unwrap()));
        }
    }

    #[test]
    fn another_file_in_its_place_is_not_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        fs::write(&path, b"mine").unwrap();
        let before = content(&path);
        fs::write(directory.path().join("other"), b"else").unwrap();
        fs::rename(directory.path().join("other"), &path).unwrap();
        assert!(matches!(
            read(&path, &before),
            Err(InnerError::Changed { .. })
        ));
        // Neither the target of a link nor a pipe is read; a pipe would block.
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", &path).unwrap();
        let error = read(&path, &before).unwrap_err();
        assert!(matches!(error, InnerError::Changed { .. }), "{error}");
        fs::remove_file(&path).unwrap();
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        let kind = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, &path, kind, mode, 0).unwrap();
        assert!(matches!(
            read(&path, &before),
            Err(InnerError::Changed { .. })
        ));
    }

    #[test]
    fn holes_are_not_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("sparse");
        let file = File::create(&path).unwrap();
        file.set_len(1 << 30).unwrap();
        file.write_all_at(b"here", (1 << 29) + 5).unwrap();
        let content = content(&path);
        let (folder, name) = Folder::of_file(&path).unwrap();
        let mut reader = Reader::open(&folder, &name, &path, &content).unwrap();
        let mut buffer = vec![0xEE; CHUNK_BYTES as usize];
        let (mut holes, mut read) = (0, 0);
        while let Some(piece) = reader.next(&mut buffer).unwrap() {
            match piece {
                Piece::Hole(chunks) => holes += chunks,
                Piece::Bytes(_) => read += 1,
            }
        }
        assert_eq!((holes, read), ((1 << 30) / CHUNK_BYTES - 1, 1));
    }
}

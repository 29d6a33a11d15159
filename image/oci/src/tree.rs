//! The file system of a layer: erofs metadata over contents that lie where the tar puts them.
//!
//! Why here: a tar has no index and its contents begin at any 512th byte; a file system has both an
//! index and blocks. Each file gets a run of whole blocks in the order of the tar, so the places of
//! contents are known as they stream in, before the metadata are.
//!
//! Whiteouts become those of overlayfs: `.wh.NAME` a character device 0:0, `.wh..wh..opq` an
//! attribute of its directory.
//!
//! Must stay true: no path leaves the root or passes through a link; attributes that overlayfs
//! itself obeys are never taken from a layer; equal layers give equal bytes. Pure.
//! Source: OCI Image Format Specification 1.1, "Image Layer Filesystem Changeset"; Linux,
//! `Documentation/filesystems/overlayfs.rst`, "whiteouts and opaque directories".

use crate::tar::{Entry, Kind};
use sidecore_bare::width::ToUsize;
use sidecore_erofs::write::{
    BLOCK_BYTES, CHUNK_BYTES, Layout, Meta, Node, Tree, Unfit, is_storable,
};
use std::collections::BTreeMap;

/// Byte of a layer's device at which the contents of its files begin: metadata lie before. The
/// room between them is a hole.
pub(crate) const CONTENTS_AT: u64 = 1 << 30;

/// The contents of a file: where they lie in the tar and on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) device_at: u64,
    pub(crate) tar_at: u64,
    pub(crate) bytes: u64,
}

/// A layer that cannot become a file system. It can still be unpacked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TreeError {
    /// A path that leaves the root, is too long or too deep.
    #[error("the layer has the path `{0}`, which is no path inside it")]
    Path(String),
    /// A path through something that is no directory of this layer.
    #[error("the layer's path `{0}` passes through what is no directory there")]
    Through(String),
    /// A hard link to what is no file of this layer.
    #[error("the layer's hard link `{0}` leads to no file in it")]
    HardLink(String),
    /// More than erofs can hold.
    #[error("the layer does not fit a file system: {0}")]
    Unfit(#[from] Unfit),
    /// More entries than the bound.
    #[error("the layer has more than {ENTRIES_MAX} entries")]
    Entries,
    /// More extended attributes than the bound.
    #[error("the layer has more than {ATTRIBUTES_MAX} extended attributes")]
    Attributes,
    /// More metadata than the bound.
    #[error("the layer's metadata take more than 1 GiB")]
    Metadata,
}

/// Entries of a layer, as they come.
pub(crate) struct Collector {
    inodes: Vec<Inode>,
    extents: Vec<Extent>,
    end: u64,
    /// Attributes of all entries.
    attributes: usize,
    implied: bool,
}

struct Inode {
    /// Index in `extents`, of a file with contents.
    extent: Option<usize>,
    entry: Entry,
    /// `None` for what is no directory.
    names: Option<BTreeMap<Box<[u8]>, usize>>,
    is_opaque: bool,
}

/// A layer's metadata and the places of its contents.
pub(crate) struct Layer {
    pub(crate) metadata: Vec<u8>,
    pub(crate) extents: Vec<Extent>,
    /// Size of the device in bytes.
    pub(crate) device_bytes: u64,
    /// True if the tar lacks an entry for a directory on the path of another: its attributes are
    /// those of the layer below, which are not known here.
    pub(crate) has_implied_directories: bool,
}

impl Collector {
    pub(crate) fn new() -> Self {
        let root = Entry {
            kind: Kind::Directory,
            permissions: 0o755,
            ..Entry::default()
        };
        Self {
            inodes: vec![Inode::new(root)],
            extents: Vec::new(),
            end: CONTENTS_AT,
            attributes: 0,
            implied: false,
        }
    }

    /// Takes the next entry; returns the byte of the device at which its contents begin.
    ///
    /// # Errors
    /// [`TreeError`].
    pub(crate) fn add(&mut self, mut entry: Entry) -> Result<u64, TreeError> {
        if self.inodes.len() >= ENTRIES_MAX {
            return Err(TreeError::Entries);
        }
        let at = self.end;
        let mut extent = None;
        if entry.kind == Kind::File && entry.size_bytes > 0 {
            self.extents.push(Extent {
                device_at: at,
                tar_at: entry.data_at,
                bytes: entry.size_bytes,
            });
            extent = Some(self.extents.len() - 1);
            // Also for a file that a later entry replaces: its contents stream in all the same.
            self.end += entry.size_bytes.next_multiple_of(BLOCK_BYTES);
        }
        let path = std::mem::take(&mut entry.path);
        let names = parts(&path)?;
        entry.attributes.retain(|(name, _)| is_taken(name));
        // Entries that others replace count, too: their memory is kept.
        self.attributes += entry.attributes.len();
        if self.attributes > ATTRIBUTES_MAX {
            return Err(TreeError::Attributes);
        }
        let Some((name, above)) = names.split_last() else {
            // The root itself has attributes, too.
            if entry.kind == Kind::Directory {
                self.inodes[0].entry = entry;
            }
            return Ok(at);
        };
        let directory = self.directory(above, &path)?;
        if let Some(hidden) = name.strip_prefix(b".wh.") {
            self.hide(directory, hidden, &path)?;
            return Ok(at);
        }
        let id = match entry.kind {
            // A name of an inode that is there: writers put the file itself first.
            Kind::HardLink => self.target(&entry.link, &path)?,
            _ => {
                self.inodes.push(Inode {
                    extent,
                    ..Inode::new(entry)
                });
                self.inodes.len() - 1
            }
        };
        self.enter(directory, name, id);
        Ok(at)
    }

    /// Gives an inode a name; a later entry replaces an earlier one, but a directory keeps its
    /// names.
    fn enter(&mut self, directory: usize, name: &[u8], id: usize) {
        let old = self.inodes[directory]
            .names
            .as_mut()
            .and_then(|names| names.insert(name.into(), id));
        let Some(old) = old.filter(|&old| old != id) else {
            return;
        };
        if self.inodes[id].names.is_some() && self.inodes[old].names.is_some() {
            // Writers may describe a directory after the files in it, or twice.
            self.inodes[id].names = self.inodes[old].names.take();
            self.inodes[id].is_opaque = self.inodes[old].is_opaque;
        }
    }

    /// Takes a whiteout.
    fn hide(&mut self, directory: usize, hidden: &[u8], path: &[u8]) -> Result<(), TreeError> {
        match hidden {
            b".wh..opq" => self.inodes[directory].is_opaque = true,
            // Names that a storage driver of old kept for itself.
            _ if hidden.starts_with(b".wh.") => {}
            // A whiteout of the directory itself or of its parent would reach out of its place.
            b"" | b"." | b".." => return Err(TreeError::Path(shown(path))),
            name => {
                let whiteout = Entry {
                    kind: Kind::CharacterDevice,
                    ..Entry::default()
                };
                self.inodes.push(Inode::new(whiteout));
                self.enter(directory, name, self.inodes.len() - 1);
            }
        }
        Ok(())
    }

    /// The directory of some names; those that no entry has made yet are made.
    fn directory(&mut self, names: &[&[u8]], path: &[u8]) -> Result<usize, TreeError> {
        let mut id = 0;
        for name in names {
            let found = match &self.inodes[id].names {
                Some(names) => names.get(*name).copied(),
                None => return Err(TreeError::Through(shown(path))),
            };
            id = match found {
                Some(found) => found,
                None => {
                    if self.inodes.len() >= ENTRIES_MAX {
                        return Err(TreeError::Entries);
                    }
                    // Its owner and mode are those of the layer below, which overlayfs would hide
                    // behind made-up ones.
                    self.implied = true;
                    let directory = Entry {
                        kind: Kind::Directory,
                        permissions: 0o755,
                        ..Entry::default()
                    };
                    self.inodes.push(Inode::new(directory));
                    let new = self.inodes.len() - 1;
                    self.enter(id, name, new);
                    new
                }
            };
        }
        match self.inodes[id].names {
            Some(_) => Ok(id),
            None => Err(TreeError::Through(shown(path))),
        }
    }

    /// The file that a hard link leads to.
    fn target(&self, link: &[u8], path: &[u8]) -> Result<usize, TreeError> {
        let mut id = 0;
        for name in parts(link)? {
            // No link is followed on the way: a name of another kind has no names below it.
            let names = self.inodes[id].names.as_ref();
            let found = names.and_then(|names| names.get(name));
            id = *found.ok_or_else(|| TreeError::HardLink(shown(path)))?;
        }
        match self.inodes[id].names {
            None => Ok(id),
            Some(_) => Err(TreeError::HardLink(shown(path))),
        }
    }

    /// Makes the metadata of the file system of the layer with this digest; with `is_dense` the
    /// contents begin right behind them, and not at [`CONTENTS_AT`].
    ///
    /// # Errors
    /// [`TreeError`].
    pub(crate) fn finish_at(mut self, is_dense: bool, sha256: &[u8]) -> Result<Layer, TreeError> {
        // Devices that are not dense stay on this machine, where the index says it of them.
        let uuid = uuid_of(sha256, is_dense && !self.implied);
        let root = &self.inodes[0];
        let mut tree = Tree::new(meta(&root.entry), attributes(root))?;
        // The number of each inode in the tree, and the extent of each inode there.
        let mut numbers = vec![None; self.inodes.len()];
        numbers[0] = Some(0);
        let mut contents = Vec::new();
        // A list, not recursion: the depth of a hostile tree would be that of the stack.
        let mut waiting = vec![0];
        while let Some(id) = waiting.pop() {
            let Some(names) = &self.inodes[id].names else {
                continue;
            };
            let parent = numbers[id].unwrap_or_default();
            for (name, &child) in names {
                let number = match numbers[child] {
                    // A further name of a file that is in the tree already.
                    Some(number) => number,
                    None => {
                        let inode = &self.inodes[child];
                        let entry = &inode.entry;
                        let number = tree.add(meta(entry), node(entry), attributes(inode))?;
                        numbers[child] = Some(number);
                        contents.extend(inode.extent.map(|extent| (number, extent)));
                        waiting.push(child);
                        number
                    }
                };
                tree.link(parent, name, number)?;
            }
        }
        let mut layout = Layout::new(tree)?;
        // Contents were written from there on, before the size of the metadata was known.
        if layout.data_at() > CONTENTS_AT {
            return Err(TreeError::Metadata);
        }
        if is_dense {
            let shift = CONTENTS_AT - layout.data_at().next_multiple_of(BLOCK_BYTES);
            self.end -= shift;
            for extent in &mut self.extents {
                extent.device_at -= shift;
            }
        }
        for (number, extent) in contents {
            let extent = self.extents[extent];
            let chunks = extent.bytes.div_ceil(CHUNK_BYTES);
            layout.place(number, chunks, Some(extent.device_at))?;
        }
        let sealed = layout.seal(self.end, uuid)?;
        let mut metadata = Vec::new();
        sealed.write(|at, bytes| {
            let end = at.to_usize() + bytes.len();
            // Parts come in any order, and the room between them is zeros.
            if metadata.len() < end {
                metadata.resize(end, 0);
            }
            metadata[at.to_usize()..end].copy_from_slice(bytes);
            Ok::<(), TreeError>(())
        })?;
        Ok(Layer {
            metadata,
            extents: self.extents,
            device_bytes: sealed.image_bytes(),
            has_implied_directories: self.implied,
        })
    }
}

impl Inode {
    fn new(entry: Entry) -> Self {
        Self {
            extent: None,
            names: (entry.kind == Kind::Directory).then(BTreeMap::new),
            entry,
            is_opaque: false,
        }
    }
}

/// The UUID of a layer's file system: a half of the layer's digest. Where the file system is
/// signed, it says of which layer it is, and by the second half that it `has_all` entries of
/// directories: an annotation that says so is the registry's word alone.
fn uuid_of(sha256: &[u8], has_all: bool) -> [u8; 16] {
    let half = match has_all {
        true => sha256.last_chunk(),
        false => sha256.first_chunk(),
    };
    half.copied().unwrap_or_default()
}

/// The UUID of a converted layer, as hexadecimal digits, by those of the layer's digest. All images
/// of earlier versions have that of a layer with implied directories.
pub(crate) fn uuid_digits(sha256: &str, has_implied: bool) -> &str {
    let half = match has_implied {
        true => sha256.get(..32),
        false => sha256.get(32..64),
    };
    half.unwrap_or_default()
}

fn node(entry: &Entry) -> Node<'_> {
    let (major, minor) = entry.device;
    match entry.kind {
        Kind::File | Kind::HardLink => Node::File {
            size_bytes: entry.size_bytes,
            may_be_hole: false,
        },
        Kind::Link => Node::Link(&entry.link),
        Kind::CharacterDevice => Node::CharacterDevice(major, minor),
        Kind::BlockDevice => Node::BlockDevice(major, minor),
        Kind::Directory => Node::Directory,
        Kind::Fifo => Node::Fifo,
    }
}

fn meta(entry: &Entry) -> Meta {
    Meta {
        permissions: entry.permissions,
        uid: entry.uid,
        gid: entry.gid,
        mtime_s: entry.mtime_s,
        mtime_ns: entry.mtime_ns,
    }
}

fn attributes(inode: &Inode) -> impl Iterator<Item = (&[u8], &[u8])> {
    let opaque: Option<(&[u8], &[u8])> = inode.is_opaque.then_some((OPAQUE, b"y"));
    let own = inode.entry.attributes.iter();
    own.map(|(name, value)| (&name[..], &value[..]))
        .chain(opaque)
}

/// True for attributes that are taken from a layer: overlayfs would follow its own anywhere.
fn is_taken(name: &[u8]) -> bool {
    let of_overlayfs = name.starts_with(b"trusted.overlay.") || name.starts_with(b"user.overlay.");
    !of_overlayfs && is_storable(name)
}

/// The names of a path.
fn parts(path: &[u8]) -> Result<Vec<&[u8]>, TreeError> {
    let names = path.split(|&byte| byte == b'/');
    let names = names.filter(|name| !matches!(*name, b"" | b"."));
    // One more than is allowed shows that there are too many, however long the path is.
    let names: Vec<_> = names.take(DEPTH_MAX + 1).collect();
    let is_inside = !names.contains(&&b".."[..]) && !path.contains(&0);
    match is_inside && names.len() <= DEPTH_MAX && path.len() <= PATH_BYTES_MAX {
        true => Ok(names),
        false => Err(TreeError::Path(shown(path))),
    }
}

fn shown(path: &[u8]) -> String {
    let end = path.len().min(SHOWN_BYTES_MAX);
    String::from_utf8_lossy(&path[..end])
        .escape_debug()
        .to_string()
}

const OPAQUE: &[u8] = b"trusted.overlay.opaque";
/// Entries of a layer: memory for them stays below 1 GiB.
pub(crate) const ENTRIES_MAX: usize = 2_000_000;
/// Extended attributes of a layer, each of which takes some hundred bytes beyond its value.
const ATTRIBUTES_MAX: usize = 4_000_000;
const DEPTH_MAX: usize = 256;
const PATH_BYTES_MAX: usize = 4096;
const SHOWN_BYTES_MAX: usize = 200;

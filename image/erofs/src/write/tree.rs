//! Inodes and names, as collected by a caller.

use super::attributes;
use super::{Fault, Unfit};
use crate::Kind;
use crate::inode::LINK_BYTES_MAX;
use sidecore_bare::width::{ToU64, ToUsize};

/// Number of an inode in a [`Tree`], in the order of [`Tree::add`]; the root is 0.
pub type Id = u32;

/// Inodes, and the names that directories have for them. An inode without a name is left out.
#[derive(Debug)]
pub struct Tree {
    pub(super) inodes: Vec<Inode>,
}

/// Attributes that all kinds of files have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Meta {
    /// Permissions, with the set-user-id, set-group-id and sticky bits; other bits are ignored.
    pub permissions: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Time of the last change: seconds since 1970, negative before.
    pub mtime_s: i64,
    /// Nanoseconds of that time; larger values count as 999,999,999.
    pub mtime_ns: u32,
}

/// Kind of a file, with the data of that kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Node<'a> {
    /// Regular file.
    File {
        /// Size in bytes, below 2^63.
        size_bytes: u64,
        /// True if the contents may be zeros that are not stored. A file longer than a chunk may
        /// always have such chunks.
        may_be_hole: bool,
    },
    /// Directory; [`Tree::link`] adds its entries.
    Directory,
    /// Symbolic link.
    Link(&'a [u8]),
    /// Character device: major and minor number.
    CharacterDevice(u32, u32),
    /// Block device: major and minor number.
    BlockDevice(u32, u32),
    /// Named pipe.
    Fifo,
    /// Socket.
    Socket,
}

#[derive(Debug)]
pub(super) struct Inode {
    pub(super) kind: Kind,
    pub(super) meta: Meta,
    pub(super) links: u32,
    pub(super) body: Body,
    /// Bytes after the inode; empty without attributes.
    pub(super) attributes: Box<[u8]>,
}

#[derive(Debug)]
pub(super) enum Body {
    Nothing,
    Device(u32),
    Link(Box<[u8]>),
    File {
        size_bytes: u64,
        may_be_hole: bool,
    },
    Directory {
        /// `None` while it has no name; its own number for the root.
        parent: Option<Id>,
        entries: Vec<(Box<[u8]>, Id)>,
    },
}

impl Tree {
    /// A tree that consists of a root directory with the given extended attributes (full names).
    ///
    /// # Errors
    /// [`Unfit`]: the attributes do not fit.
    pub fn new<'a>(
        root: Meta,
        attributes: impl IntoIterator<Item = (&'a [u8], &'a [u8])>,
    ) -> Result<Self, Unfit> {
        let mut tree = Self { inodes: Vec::new() };
        tree.add(root, Node::Directory, attributes)?;
        if let Body::Directory { parent, .. } = &mut tree.inodes[0].body {
            *parent = Some(0);
        }
        Ok(tree)
    }

    /// Adds an inode that has no name yet, with the given extended attributes (full names).
    ///
    /// # Errors
    /// [`Unfit`] with the number that the inode would have had.
    pub fn add<'a>(
        &mut self,
        meta: Meta,
        node: Node<'_>,
        attributes: impl IntoIterator<Item = (&'a [u8], &'a [u8])>,
    ) -> Result<Id, Unfit> {
        let id = Id::try_from(self.inodes.len()).unwrap_or(Id::MAX);
        let unfit = |what| Unfit { id, what };
        // The largest number stands for a tree that is full.
        if id == Id::MAX {
            return Err(unfit(Fault::Full));
        }
        let (kind, body) = body_of(node).map_err(unfit)?;
        let attributes = attributes::encode(attributes).map_err(unfit)?;
        self.inodes.push(Inode {
            kind,
            meta: Meta {
                permissions: meta.permissions & 0o7777,
                mtime_ns: meta.mtime_ns.min(999_999_999),
                ..meta
            },
            // A directory has its own `.` and a name; others count their names.
            links: if kind == Kind::Directory { 2 } else { 0 },
            body,
            attributes,
        });
        Ok(id)
    }

    /// Gives an inode a name in a directory. An inode that is not a directory may have several
    /// names: hard links.
    ///
    /// # Errors
    /// [`Unfit`] of the inode, or of the directory. Equal names are detected later, in
    /// [`super::Layout::new`].
    ///
    /// # Panics
    /// If one of the numbers was not returned by [`Self::add`].
    pub fn link(&mut self, directory: Id, name: &[u8], id: Id) -> Result<(), Unfit> {
        let unfit = |what| Unfit { id, what };
        let is_name =
            !matches!(name, b"" | b"." | b"..") && !name.iter().any(|it| b"/\0".contains(it));
        if !is_name {
            return Err(unfit(Fault::Name(String::from_utf8_lossy(name).into())));
        }
        if name.len() > NAME_BYTES_MAX {
            return Err(unfit(Fault::NameLength(name.len())));
        }
        if let Body::Directory { parent, .. } = &mut self.inodes[id.to_usize()].body {
            // A root inside itself would not be a tree.
            if parent.is_some() {
                return Err(unfit(Fault::DirectoryLinked));
            }
            *parent = Some(directory);
            // Its `..` is a link to the parent.
            self.add_link(directory)?;
        } else {
            self.add_link(id)?;
        }
        match &mut self.inodes[directory.to_usize()].body {
            Body::Directory { entries, .. } => {
                entries.push((name.into(), id));
                Ok(())
            }
            _ => Err(Unfit {
                id: directory,
                what: Fault::NoDirectory,
            }),
        }
    }

    fn add_link(&mut self, id: Id) -> Result<(), Unfit> {
        let links = &mut self.inodes[id.to_usize()].links;
        let what = Fault::Full;
        *links = links.checked_add(1).ok_or(Unfit { id, what })?;
        Ok(())
    }

    /// Number of inodes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.inodes.len()
    }

    /// Always false: there is always a root.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.inodes.is_empty()
    }
}

/// The kind of a file and its data, if erofs can hold them.
fn body_of(node: Node<'_>) -> Result<(Kind, Body), Fault> {
    Ok(match node {
        Node::File {
            size_bytes,
            may_be_hole,
        } => {
            // Sizes are signed in the kernel.
            if i64::try_from(size_bytes).is_err() {
                return Err(Fault::Full);
            }
            let body = Body::File {
                size_bytes,
                may_be_hole,
            };
            (Kind::File, body)
        }
        Node::Directory => {
            let body = Body::Directory {
                parent: None,
                entries: Vec::new(),
            };
            (Kind::Directory, body)
        }
        Node::Link(target) => {
            let fits = (1..=LINK_BYTES_MAX).contains(&target.len().to_u64());
            if !fits || target.contains(&0) {
                return Err(Fault::Link(target.len()));
            }
            (Kind::Link, Body::Link(target.into()))
        }
        Node::CharacterDevice(major, minor) => {
            (Kind::CharacterDevice, Body::Device(device(major, minor)?))
        }
        Node::BlockDevice(major, minor) => (Kind::BlockDevice, Body::Device(device(major, minor)?)),
        Node::Fifo => (Kind::Fifo, Body::Nothing),
        Node::Socket => (Kind::Socket, Body::Nothing),
    })
}

/// A device number as Linux packs it into 32 bits (`new_encode_dev`).
fn device(major: u32, minor: u32) -> Result<u32, Fault> {
    match major < 1 << 12 && minor < 1 << 20 {
        true => Ok(minor & 0xFF | major << 8 | (minor & !0xFF) << 12),
        false => Err(Fault::Device(major, minor)),
    }
}

const NAME_BYTES_MAX: usize = 255;

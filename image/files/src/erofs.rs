//! The tree of an erofs, as [`sidecore_erofs`] reads it.

use crate::{Attribute, FilesError, Names, Node, Piece, Places, Sink, Tree, is_dots, pass};
use sidecore_erofs::{Bytes, Erofs, Unreadable};
use sidecore_format::source::BlockSource;
use std::ops::Range;
use std::sync::Arc;

/// See the module.
pub(crate) struct ErofsTree {
    erofs: Erofs<Lent>,
    source: Arc<dyn BlockSource>,
}

/// A source's bytes, as the parser reads them.
struct Lent(Arc<dyn BlockSource>);

impl Bytes for Lent {
    fn size_bytes(&self) -> u64 {
        self.0.size_bytes()
    }

    fn read_into(&self, offset: u64, dst: &mut [u8]) -> Result<(), Unreadable> {
        // The device has logged the reason.
        self.0.read_into(offset, dst).map_err(|_| Unreadable)
    }
}

impl ErofsTree {
    pub(crate) fn open(source: Arc<dyn BlockSource>) -> Result<Self, FilesError> {
        let erofs = Erofs::open(Lent(Arc::clone(&source)))?;
        Ok(Self { erofs, source })
    }
}

impl Tree for ErofsTree {
    fn name(&self) -> &'static str {
        "erofs"
    }

    fn root(&self) -> u64 {
        self.erofs.root()
    }

    fn node(&self, id: u64) -> Result<Node, FilesError> {
        let inode = self.erofs.inode(id)?;
        let rdev = inode.rdev;
        Ok(Node {
            id,
            kind: inode.kind,
            permissions: inode.permissions,
            links: inode.links,
            uid: inode.uid,
            gid: inode.gid,
            size_bytes: inode.size_bytes,
            mtime_s: inode.mtime_s,
            mtime_ns: inode.mtime_ns,
            device: crate::unpacked_device(rdev),
        })
    }

    fn list(&self, directory: &Node, visit: &mut Names<'_>) -> Result<(), FilesError> {
        let inode = self.erofs.inode(directory.id)?;
        let mut result = Ok(());
        self.erofs.list(&inode, 0, &mut |entry| {
            if !is_dots(entry.name) {
                result = visit(entry.name, entry.nid);
            }
            result.is_ok()
        })?;
        result
    }

    fn link(&self, node: &Node) -> Result<Vec<u8>, FilesError> {
        Ok(self.erofs.link(&self.erofs.inode(node.id)?)?)
    }

    fn contents(
        &self,
        node: &Node,
        range: Range<u64>,
        sink: &mut Sink<'_>,
    ) -> Result<(), FilesError> {
        let inode = self.erofs.inode(node.id)?;
        let mut at = range.start;
        let mut extents = Vec::new();
        while at < range.end {
            let len = (range.end - at).min(STEP_BYTES);
            extents.clear();
            self.erofs.extents(&inode, at, len, &mut extents)?;
            for extent in &extents {
                match extent.at {
                    Some(start) => pass(&*self.source, start..start + extent.len, sink)?,
                    None => sink(Piece::Hole(extent.len)).map_err(FilesError::Output)?,
                }
            }
            at += len;
        }
        Ok(())
    }

    fn places(&self, node: &Node, visit: &mut Places<'_>) -> Result<(), FilesError> {
        let inode = self.erofs.inode(node.id)?;
        let mut at = 0;
        let mut extents = Vec::new();
        while at < inode.size_bytes {
            let len = (inode.size_bytes - at).min(STEP_BYTES);
            extents.clear();
            self.erofs.extents(&inode, at, len, &mut extents)?;
            for extent in &extents {
                if let Some(start) = extent.at {
                    visit(start..start + extent.len);
                }
            }
            at += len;
        }
        Ok(())
    }

    fn attributes(&self, node: &Node) -> Result<Vec<Attribute>, FilesError> {
        let inode = self.erofs.inode(node.id)?;
        let names = self.erofs.attribute_names(&inode)?;
        let names = names.split(|&byte| byte == 0).filter(|it| !it.is_empty());
        names
            .map(|name| {
                let value = self.erofs.attribute(&inode, name)?.unwrap_or_default();
                Ok((name.to_vec(), value))
            })
            .collect()
    }
}

/// Part of a file whose places are looked up together: their list takes memory.
const STEP_BYTES: u64 = 64 << 20;

//! A store of container layers as c/storage (podman, CRI-O, buildah) looks for them: one folder an
//! image and layer, which is made when its name is looked up.
//!
//! | path | is |
//! |---|---|
//! | `BASE64(IMAGE)/DIGEST/diff` | a link to the layer's files |
//! | `BASE64(IMAGE)/DIGEST/info` | its digests and sizes, as JSON |
//! | `BASE64(IMAGE)/DIGEST/blob` | the layer as it is in the registry |
//!
//! Creating `use` announces a user of the layer and removing its folder the end of one; both are
//! answered by `ENOENT`, as c/storage expects. Another error says that the user is not counted.
//!
//! Must stay true: a link is read anew each time, and its layer is mounted then: the kernel's
//! names outlive a mount that has no user. A look-up that fails is not remembered, as a registry
//! may come back. Root alone enters: a look-up makes requests to servers of the caller's choice.
//!
//! Threads: the session's, any number at once; a look-up blocks the one that does it.
//! Source: c/storage, `pkg/` of its overlay driver ("additional layer stores").

use super::abi::{Attributes, ROOT, flag};
use super::nodes::{Answer, List, Nodes, ReadReply, Space, Terms};
use parking_lot::Mutex;
use rustix::io::Errno;
use sidecore_bare::width::{ToU64, ToUsize};
use std::collections::HashMap;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::Arc;

/// A layer of a store.
#[derive(Debug, Clone)]
pub struct LayerEntry {
    /// The folder on which it is mounted.
    pub files: PathBuf,
    /// The document of its digests and sizes.
    pub info: Vec<u8>,
    /// Bytes of its blob.
    pub blob_bytes: u64,
}

/// Layers that [`super::FuseServer::start_layers`] shows. Called from any thread.
pub trait LayerSource: Send + Sync + 'static {
    /// The name of an image as it is written in a path, if it is one.
    fn image(&self, name: &[u8]) -> Option<String>;

    /// A layer of an image, which is mounted when this returns; `None` where it cannot be. Blocks,
    /// also on a network.
    fn layer(&self, image: &str, digest: &str) -> Option<LayerEntry>;

    /// Bytes of a layer's blob; fewer only at its end. Blocks on a network.
    ///
    /// # Errors
    /// The registry's.
    fn blob(&self, image: &str, digest: &str, offset: u64, len: usize) -> io::Result<Vec<u8>>;

    /// One more user of a layer.
    ///
    /// # Errors
    /// It is not counted: the layer may be unmounted at any time.
    fn begin_use(&self, digest: &str) -> io::Result<()>;

    /// One user less; after the last one the layer may be unmounted.
    fn end_use(&self, digest: &str);
}

/// The file system as the session calls it.
pub(super) struct LayersFs {
    source: Arc<dyn LayerSource>,
    names: Mutex<Names>,
}

/// Images and layers that were found.
#[derive(Default)]
struct Names {
    folders: Vec<Folder>,
    /// By the parent's node and the name.
    numbers: HashMap<(u64, Vec<u8>), usize>,
}

#[derive(Clone)]
enum Folder {
    Image(Arc<str>),
    Layer(Arc<Layer>),
}

struct Layer {
    image: Arc<str>,
    digest: String,
    entry: LayerEntry,
}

/// Parts of a folder; a node's number is its folder's number times four, and the part's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Folder = 0,
    Files = 1,
    Info = 2,
    Blob = 3,
}

impl LayersFs {
    pub(super) fn new(source: Arc<dyn LayerSource>) -> Self {
        Self {
            source,
            names: Mutex::default(),
        }
    }

    fn folder(&self, node: u64) -> Answer<(Folder, Part)> {
        let number = (node / PARTS).checked_sub(1).ok_or(Errno::NOENT)?;
        let names = self.names.lock();
        let folder = names.folders.get(number.to_usize()).ok_or(Errno::NOENT)?;
        let part = match node % PARTS {
            0 => Part::Folder,
            1 => Part::Files,
            2 => Part::Info,
            _ => Part::Blob,
        };
        Ok((folder.clone(), part))
    }

    fn layer(&self, node: u64) -> Answer<(Arc<Layer>, Part)> {
        match self.folder(node)? {
            (Folder::Layer(layer), part) => Ok((layer, part)),
            (Folder::Image(_), _) => Err(Errno::NOENT),
        }
    }

    /// The node of a folder of this name, which is made by `make` at the first time.
    fn named(
        &self,
        parent: u64,
        name: &[u8],
        make: impl FnOnce() -> Option<Folder>,
    ) -> Answer<Attributes> {
        let key = (parent, name.to_vec());
        let known = self.names.lock().numbers.get(&key).copied();
        let number = match known {
            Some(number) => number,
            None => {
                // Without the lock: it may wait for a registry.
                let made = make().ok_or(Errno::NOENT)?;
                let mut names = self.names.lock();
                if names.folders.len() >= FOLDERS_MAX {
                    tracing::error!("the store of layers is full; start it again");
                    return Err(Errno::NOSPC);
                }
                match names.numbers.get(&key) {
                    Some(&number) => number,
                    None => {
                        let number = names.folders.len();
                        names.folders.push(made);
                        names.numbers.insert(key, number);
                        number
                    }
                }
            }
        };
        Ok(of_folder((number.to_u64() + 1) * PARTS))
    }
}

impl Nodes for LayersFs {
    fn agree(&mut self, terms: &mut Terms) {
        // Look-ups of other layers go on while one waits for its registry.
        terms.take(flag::PARALLEL_DIROPS);
        terms.take(flag::NO_OPEN_SUPPORT);
        terms.take(flag::NO_OPENDIR_SUPPORT);
    }

    fn look_up(&self, parent: u64, name: &[u8]) -> Answer<Option<Attributes>> {
        if parent == ROOT {
            let image = || Some(Folder::Image(self.source.image(name)?.into()));
            return self.named(ROOT, name, image).map(Some);
        }
        let found = match self.folder(parent)? {
            (Folder::Image(image), Part::Folder) => {
                let digest = std::str::from_utf8(name).map_err(|_| Errno::NOENT)?;
                self.named(parent, name, || {
                    let entry = self.source.layer(&image, digest)?;
                    let digest = digest.to_owned();
                    Some(Folder::Layer(Arc::new(Layer {
                        image: Arc::clone(&image),
                        digest,
                        entry,
                    })))
                })?
            }
            (Folder::Layer(layer), Part::Folder) => {
                let part = match name {
                    b"diff" => Part::Files,
                    b"info" => Part::Info,
                    b"blob" => Part::Blob,
                    _ => return Err(Errno::NOENT),
                };
                of_part(parent + part as u64, part, &layer.entry)
            }
            _ => return Err(Errno::NOTDIR),
        };
        Ok(Some(found))
    }

    fn attributes(&self, node: u64) -> Answer<Attributes> {
        if node == ROOT {
            return Ok(Attributes {
                mode: libc::S_IFDIR | 0o700,
                ..of_folder(ROOT)
            });
        }
        Ok(match self.folder(node)? {
            (_, Part::Folder) => of_folder(node),
            (Folder::Layer(layer), part) => of_part(node, part, &layer.entry),
            (Folder::Image(_), _) => return Err(Errno::NOENT),
        })
    }

    fn link(&self, node: u64) -> Answer<Vec<u8>> {
        let (layer, part) = self.layer(node)?;
        if part != Part::Files {
            return Err(Errno::INVAL);
        }
        // It may have been unmounted since it was found.
        let entry = self.source.layer(&layer.image, &layer.digest);
        Ok(entry.ok_or(Errno::IO)?.files.into_os_string().into_vec())
    }

    fn read(&self, node: u64, offset: u64, len: usize, reply: ReadReply<'_>) {
        let (layer, part) = match self.layer(node) {
            Ok(found) => found,
            Err(errno) => return reply.error(errno),
        };
        match part {
            Part::Info => {
                let info = layer
                    .entry
                    .info
                    .get(offset.to_usize()..)
                    .unwrap_or_default();
                reply.pieces(&[&info[..info.len().min(len)]]);
            }
            Part::Blob => match (self.source).blob(&layer.image, &layer.digest, offset, len) {
                Ok(bytes) => reply.pieces(&[&bytes]),
                Err(error) => {
                    tracing::warn!("a layer's blob cannot be read: {error}");
                    reply.error(Errno::IO);
                }
            },
            Part::Folder | Part::Files => reply.error(Errno::ISDIR),
        }
    }

    fn list(&self, node: u64, _: u64, _: &mut List) -> Answer<()> {
        // Nothing is listed: names are made as they are asked for.
        self.attributes(node).map(drop)
    }

    fn create(&self, parent: u64, name: &[u8]) -> Errno {
        match self.layer(parent) {
            Ok((layer, Part::Folder)) if name == b"use" => {
                match self.source.begin_use(&layer.digest) {
                    Ok(()) => Errno::NOENT,
                    Err(error) => {
                        tracing::warn!("layer {} cannot be used: {error}", layer.digest);
                        Errno::IO
                    }
                }
            }
            _ => Errno::PERM,
        }
    }

    fn remove_folder(&self, parent: u64, name: &[u8]) -> Errno {
        let number = self
            .names
            .lock()
            .numbers
            .get(&(parent, name.to_vec()))
            .copied();
        let node = number.map(|number| (number.to_u64() + 1) * PARTS);
        match node.and_then(|node| self.layer(node).ok()) {
            Some((layer, _)) => {
                self.source.end_use(&layer.digest);
                Errno::NOENT
            }
            None => Errno::PERM,
        }
    }

    fn space(&self) -> Space {
        Space {
            blocks: 0,
            block_bytes: 4096,
            nodes: self.names.lock().folders.len().to_u64(),
        }
    }
}

fn of_folder(node: u64) -> Attributes {
    Attributes {
        node,
        mode: libc::S_IFDIR | 0o755,
        links: 2,
        block_bytes: 4096,
        ..Attributes::default()
    }
}

fn of_part(node: u64, part: Part, entry: &LayerEntry) -> Attributes {
    let (mode, size_bytes) = match part {
        Part::Files => (
            libc::S_IFLNK | 0o777,
            entry.files.as_os_str().len().to_u64(),
        ),
        Part::Info => (libc::S_IFREG | 0o444, entry.info.len().to_u64()),
        Part::Blob => (libc::S_IFREG | 0o444, entry.blob_bytes),
        Part::Folder => return of_folder(node),
    };
    Attributes {
        mode,
        size_bytes,
        blocks: size_bytes.div_ceil(512),
        links: 1,
        ..of_folder(node)
    }
}

const PARTS: u64 = 4;
/// Images and layers that are remembered; each takes some hundred bytes.
const FOLDERS_MAX: usize = 1 << 16;

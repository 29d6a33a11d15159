//! Folders of layers (`layer` says what is in one), and files in them that are whole or not there.
//!
//! Must stay true: a file that others rely on has its name only once it is durable.
//! Called from: any thread.

use crate::build::{BuildError, build};
use crate::index::{INDEX_BYTES_MAX, Index, IndexError, hex};
use crate::tree::Layer as Tree;
use ring::digest;
use sidecore_bare::width::ToU64;
use sidecore_remote::is_sha256;
use sidecore_sys::folder::Folder;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Reasons why a layer cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LayerError {
    /// Its folder.
    #[error("cannot use {folder}: {source}")]
    Folder {
        /// The folder.
        folder: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Its index.
    #[error(transparent)]
    Index(#[from] IndexError),
    /// Its bytes.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// Its bytes are not those that its digest names.
    #[error("the layer that came is sha256:{found}, not sha256:{wanted}")]
    Digest {
        /// The digest of what came.
        found: String,
        /// The digest that was asked for.
        wanted: String,
    },
    /// The digest is none.
    #[error("`{0}` is no digest: 64 digits after `sha256:`")]
    Name(String),
}

/// Folders of layers.
#[derive(Debug, Clone)]
pub struct Store {
    root: PathBuf,
}

impl Store {
    /// The layers in a folder, which is made where it is not there.
    ///
    /// # Errors
    /// [`LayerError::Folder`].
    pub fn open(root: &Path) -> Result<Self, LayerError> {
        make_folder(root).map_err(of_folder(root))?;
        Ok(Self {
            root: root.to_owned(),
        })
    }

    /// The folder of the layer with a digest (64 digits).
    ///
    /// # Errors
    /// [`LayerError`].
    pub fn folder(&self, sha256: &str) -> Result<PathBuf, LayerError> {
        // The digest becomes the name of a folder, and may come from a manifest.
        if !is_sha256(sha256) {
            return Err(LayerError::Name(sha256.escape_debug().take(80).collect()));
        }
        let folder = self.root.join(sha256);
        make_folder(&folder).map_err(of_folder(&folder))?;
        Ok(folder)
    }

    /// The device of a layer that is whole here: a file that the kernel can mount.
    #[must_use]
    pub fn whole(&self, sha256: &str) -> Option<PathBuf> {
        let folder = self.root.join(sha256);
        folder.join(COMPLETE).exists().then(|| folder.join(DATA))
    }

    /// The index of a layer that is here; true if it is trusted.
    #[must_use]
    pub fn index(&self, sha256: &str) -> Option<(Index, bool)> {
        let folder = self.folder(sha256).ok()?;
        let bytes = read_bounded(&folder.join(INDEX), INDEX_BYTES_MAX + 64).ok()?;
        let index = Index::read(&bytes, sha256).ok()?;
        Some((index, folder.join(TRUSTED).exists()))
    }

    /// Keeps an index that came from elsewhere.
    ///
    /// # Errors
    /// [`LayerError::Folder`].
    pub fn keep_index(&self, index: &Index) -> Result<(), LayerError> {
        let folder = self.folder(&index.layer())?;
        write_whole(&folder, INDEX, &index.to_bytes()).map_err(of_folder(&folder))
    }

    /// Reads a whole layer once: its index and contents are here afterwards. Returns the index.
    ///
    /// # Errors
    /// [`LayerError`].
    pub fn fetch_whole(&self, sha256: &str, input: &mut dyn Read) -> Result<Index, LayerError> {
        let folder = self.folder(sha256)?;
        let failed = || of_folder(&folder);
        // Under another name until it is whole: a server may read the file of that name.
        let name = format!("data.{}", std::process::id());
        let data = open_data(&folder.join(&name)).map_err(failed())?;
        let result = (|| {
            let built = build(input, Some(&data))?;
            let found = built.index.layer();
            if found != sha256 {
                let wanted = sha256.to_owned();
                return Err(LayerError::Digest { found, wanted });
            }
            // The digest was right, so the file may become visible: metadata, then durability, then
            // the name.
            write_tree(&data, &built.layer).map_err(failed())?;
            data.sync_all().map_err(failed())?;
            fs::rename(folder.join(&name), folder.join(DATA)).map_err(failed())?;
            write_whole(&folder, INDEX, &built.index.to_bytes()).map_err(failed())?;
            write_whole(&folder, TRUSTED, b"").map_err(failed())?;
            // Last: it says that all else is durable.
            write_whole(&folder, COMPLETE, b"").map_err(failed())?;
            Ok(built.index)
        })();
        if result.is_err() {
            let _ = fs::remove_file(folder.join(&name));
        }
        result
    }
}

/// Writes metadata, and gives the file its length.
pub(crate) fn write_tree(data: &File, tree: &Tree) -> io::Result<()> {
    data.write_all_at(&tree.metadata, 0)?;
    data.set_len(tree.device_bytes)
}

pub(crate) fn open_data(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true).create(true).truncate(false);
    options.mode(0o600).open(path)
}

/// Reads a file of at most `bytes_max`.
pub(crate) fn read_bounded(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?
        .take(bytes_max + 1)
        .read_to_end(&mut bytes)?;
    match bytes.len().to_u64() <= bytes_max {
        true => Ok(bytes),
        false => Err(io::Error::other("the file is too long")),
    }
}

/// Writes a file durably: readers see all of it or none, also after a crash.
pub(crate) fn write_whole(folder: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    let folder = Folder::open(folder)?;
    folder.replace(name.as_ref(), 0o600, |file| file.write_all(bytes))?;
    folder.sync()
}

fn make_folder(path: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true).mode(0o700).create(path)
}

pub(crate) fn of_folder(folder: &Path) -> impl FnOnce(io::Error) -> LayerError {
    let folder = folder.to_owned();
    move |source| LayerError::Folder { folder, source }
}

/// SHA-256 of bytes, as 64 digits.
#[must_use]
pub fn sha256_of(bytes: &[u8]) -> String {
    hex(digest::digest(&digest::SHA256, bytes).as_ref())
}

pub(crate) const INDEX: &str = "index";
pub(crate) const TRUSTED: &str = "trusted";
pub(crate) const DATA: &str = "data";
pub(crate) const COMPLETE: &str = "complete";

//! Folders of layers (`layer` says what is in one), and files in them that are whole or not there.
//!
//! Must stay true: a file that others rely on has its name only once it is durable.
//! Called from: any thread.

use crate::build::{BuildError, build};
use crate::index::{INDEX_BYTES_MAX, Index, IndexError, hex};
use crate::tree::Layer as Tree;
use ring::digest;
use rustix::fs::OFlags;
use sidecore_bare::width::{ToU64, ToUsize};
use sidecore_remote::is_sha256;
use sidecore_sys::folder::Folder;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

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
    /// The layers in a folder, which is made where it is not there. It is found again where this
    /// process leaves its directory.
    ///
    /// # Errors
    /// [`LayerError::Folder`].
    pub fn open(root: &Path) -> Result<Self, LayerError> {
        make_folder(root).map_err(of_folder(root))?;
        let root = std::path::absolute(root).map_err(of_folder(root))?;
        Ok(Self { root })
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
        // A removal that was cut short may have left the one without the other.
        let is_whole = folder.join(COMPLETE).exists() && folder.join(DATA).exists();
        is_whole.then(|| folder.join(DATA))
    }

    /// The index of a layer that is here; true if it is trusted.
    #[must_use]
    pub fn index(&self, sha256: &str) -> Option<(Index, bool)> {
        // It may come from a manifest; see `folder`. None is made here.
        let folder = is_sha256(sha256).then(|| self.root.join(sha256))?;
        let (index, _, is_trusted) = index_in(&Folder::open(&folder).ok()?, sha256)?;
        Some((index, is_trusted))
    }

    /// True if something of a layer is here that it can be mounted by.
    #[must_use]
    pub(crate) fn has_any(&self, sha256: &str) -> bool {
        self.root.join(sha256).join(INDEX).exists()
    }

    /// True if all bytes of a layer have been here.
    #[must_use]
    pub(crate) fn is_trusted(&self, sha256: &str) -> bool {
        self.root.join(sha256).join(TRUSTED).exists()
    }

    /// SHA-256 of a layer's tar (64 digits), where all bytes of the layer have shown it.
    #[must_use]
    pub(crate) fn tar_sha256(&self, sha256: &str) -> Option<String> {
        let bytes = read_bounded(&self.root.join(sha256).join(TRUSTED), 64).ok()?;
        // Earlier versions wrote the file without contents.
        String::from_utf8(bytes).ok().filter(|it| is_sha256(it))
    }

    /// Keeps an index that came from elsewhere.
    ///
    /// # Errors
    /// [`LayerError::Folder`].
    pub fn keep_index(&self, index: &Index) -> Result<(), LayerError> {
        let folder = self.folder(&index.layer())?;
        // It said so of another index.
        let was_trusted = fs::remove_file(folder.join(TRUSTED)).is_ok();
        let keep = || {
            let open = Folder::open(&folder)?;
            let (name, mut file) = open.temporary(0o600)?;
            file.write_all(&index.to_bytes())?;
            open.rename(&name, INDEX.as_ref())?;
            // Otherwise a crash costs another fetch alone: an index has a hash of its own. A
            // container waits for this.
            match was_trusted {
                true => open.sync(),
                false => Ok(()),
            }
        };
        keep().map_err(of_folder(&folder))
    }

    /// Keeps the paths of files that a container reads first.
    ///
    /// # Errors
    /// [`LayerError::Folder`].
    pub(crate) fn keep_start(&self, sha256: &str, paths: &[String]) -> Result<(), LayerError> {
        let folder = self.folder(sha256)?;
        let mut text = paths.join("\n").into_bytes();
        text.truncate(START_BYTES_MAX.to_usize());
        // A hint: one that a crash has cut costs some time.
        fs::write(folder.join(START), text).map_err(of_folder(&folder))
    }

    /// Reads a whole layer once: its index and contents are here afterwards. Returns the index.
    ///
    /// # Errors
    /// [`LayerError`].
    pub fn fetch_whole(&self, sha256: &str, input: &mut dyn Read) -> Result<Index, LayerError> {
        let path = self.folder(sha256)?;
        let failed = || of_folder(&path);
        let folder = Folder::open(&path).map_err(failed())?;
        // A file of this fetch alone: a server may read the one of the final name, and another
        // fetch of this digest, by another image's word, may get other bytes.
        let (name, data) = folder.temporary(0o600).map_err(failed())?;
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
            folder.rename(&name, DATA.as_ref()).map_err(failed())?;
            let write = |name, bytes: &[u8]| write_in(&folder, name, bytes).map_err(failed());
            write(INDEX, &built.index.to_bytes())?;
            write(TRUSTED, built.tar_sha256.as_bytes())?;
            // Last: it says that all else is durable.
            write(COMPLETE, b"")?;
            Ok(built.index)
        })();
        if result.is_err() {
            let _ = folder.remove_file(&name);
        }
        result
    }

    /// Removes what is here of a layer; one that is served keeps the files that are open.
    pub(crate) fn forget(&self, sha256: &str) {
        if !is_sha256(sha256) {
            return;
        }
        let folder = self.root.join(sha256);
        // First: a removal that is cut short must not leave it without the contents.
        let _ = fs::remove_file(folder.join(COMPLETE));
        remove_folder(&folder);
    }

    /// Removes files that a fetch of a layer has left unfinished, hours ago.
    pub(crate) fn remove_unfinished(&self, sha256: &str) {
        let entries = fs::read_dir(self.root.join(sha256));
        for entry in entries.into_iter().flatten().flatten() {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            // The first is that of earlier versions.
            let is_unfinished = name.starts_with("data.") || name.starts_with(".sidecore-");
            let modified = entry.metadata().and_then(|it| it.modified());
            let age = modified.ok().and_then(|it| it.elapsed().ok());
            if is_unfinished && age.is_some_and(|age| age > UNFINISHED_AGE_MIN) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }

    /// Digests of all layers of which something is here.
    pub(crate) fn layers(&self) -> Vec<String> {
        digests_in(&self.root).unwrap_or_default()
    }
}

/// The names in a folder that are digests (64 digits).
pub(crate) fn digests_in(folder: &Path) -> io::Result<Vec<String>> {
    let mut digests = Vec::new();
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name().into_string();
        digests.extend(name.ok().filter(|it| is_sha256(it)));
    }
    Ok(digests)
}

/// Removes a folder with all that is in it; a failure is logged, and no more.
pub(crate) fn remove_folder(folder: &Path) {
    if let Err(error) = fs::remove_dir_all(folder)
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!("{} is left: {error}", folder.display());
    }
}

/// Gives a folder without a record a name that no record has. A clean-up finds it there if this
/// process ends before it is deleted.
pub(crate) fn set_aside(folder: PathBuf) -> PathBuf {
    let aside = folder.with_extension("removed");
    match fs::rename(&folder, &aside) {
        Ok(()) => aside,
        // Deleted where it is: no record gets its number before the next start.
        Err(_) => folder,
    }
}

/// Bytes and inodes of a folder's files; hard links count once. Files of a running container come
/// and go while they are counted.
pub(crate) fn usage_of(folder: &Path) -> io::Result<(i64, i64)> {
    let mut seen = BTreeSet::new();
    let mut bytes = 0;
    let mut waiting = vec![folder.to_owned()];
    while let Some(path) = waiting.pop() {
        let Some(stat) = if_there(fs::symlink_metadata(&path))? else {
            continue;
        };
        // A hard link takes no further blocks.
        if !seen.insert((stat.dev(), stat.ino())) {
            continue;
        }
        bytes += i64::try_from(stat.blocks()).unwrap_or_default() * 512;
        if stat.is_dir()
            && let Some(entries) = if_there(fs::read_dir(&path))?
        {
            waiting.extend(entries.flatten().map(|entry| entry.path()));
        }
    }
    Ok((bytes, i64::try_from(seen.len()).unwrap_or_default()))
}

/// The result, unless it is that the file has gone.
fn if_there<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Makes all files on a folder's file system durable. One call: to open and sync each file of a
/// layer would take a wait for the disk each.
pub(crate) fn sync(folder: &Path) -> io::Result<()> {
    Ok(rustix::fs::syncfs(File::open(folder)?)?)
}

/// Writes metadata, and gives the file its length.
pub(crate) fn write_tree(data: &File, tree: &Tree) -> io::Result<()> {
    data.write_all_at(&tree.metadata, 0)?;
    data.set_len(tree.device_bytes)
}

pub(crate) fn open_data(folder: &Folder, name: &str) -> io::Result<File> {
    folder.open_file(name.as_ref(), OFlags::RDWR | OFlags::CREATE, 0o600)
}

/// The index in a layer's folder, its hash, and true if it is trusted.
pub(crate) fn index_in(folder: &Folder, sha256: &str) -> Option<(Index, [u8; 32], bool)> {
    let file = folder.read_file(INDEX.as_ref()).ok()?;
    let bytes = bounded(file, INDEX_BYTES_MAX + 64).ok()?;
    let (index, hash) = Index::read_with_hash(&bytes, sha256).ok()?;
    Some((index, hash, has(folder, TRUSTED)))
}

/// True if a folder has a file of this name.
pub(crate) fn has(folder: &Folder, name: &str) -> bool {
    folder.stat_of(name.as_ref()).is_ok()
}

/// Reads a file of at most `bytes_max`.
pub(crate) fn read_bounded(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    bounded(File::open(path)?, bytes_max)
}

fn bounded(file: File, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(bytes_max + 1).read_to_end(&mut bytes)?;
    match bytes.len().to_u64() <= bytes_max {
        true => Ok(bytes),
        false => Err(io::Error::other("the file is too long")),
    }
}

/// Writes a file durably: readers see all of it or none, also after a crash.
pub(crate) fn write_whole(folder: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    write_in(&Folder::open(folder)?, name, bytes)
}

/// The same in a folder that is open: an error once it has been removed, whatever lies at its path
/// by then.
pub(crate) fn write_in(folder: &Folder, name: &str, bytes: &[u8]) -> io::Result<()> {
    folder.replace(name.as_ref(), 0o600, |file| file.write_all(bytes))?;
    folder.sync()
}

/// Reads a file whose end may be cut off before the device's, where it is zeros.
pub(crate) fn read_or_zeros(file: &File, mut dst: &mut [u8], mut offset: u64) -> io::Result<()> {
    while !dst.is_empty() {
        match file.read_at(dst, offset) {
            Ok(0) => {
                dst.fill(0);
                return Ok(());
            }
            Ok(bytes) => {
                dst = &mut dst[bytes..];
                offset += bytes.to_u64();
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Reads the marks that are there; returns their number.
pub(crate) fn read_marks(file: &File, marks: &mut [u8]) -> io::Result<usize> {
    let bytes = file.metadata()?.len().min(marks.len().to_u64()).to_usize();
    file.read_exact_at(&mut marks[..bytes], 0)?;
    Ok(bytes)
}

/// Paths of files that a container reads first, where they are known: one a line.
pub(crate) fn read_start(folder: &Folder) -> Option<Vec<u8>> {
    bounded(folder.read_file(START.as_ref()).ok()?, START_BYTES_MAX).ok()
}

/// Removes marks and bytes that were kept before this boot, or for another index.
pub(crate) fn forget_others(folder: &Folder, own: &str) {
    for name in folder.names().unwrap_or_default() {
        let text = name.to_string_lossy();
        let of = [HERE, BLOB].iter().find_map(|it| text.strip_prefix(it));
        if of.is_some_and(|of| of != own) {
            let _ = folder.remove_file(&name);
        }
    }
}

/// End of the names of the marks in this boot of the index with this hash.
pub(crate) fn suffix_of(boot: &str, hash: &[u8; 32]) -> String {
    format!("{boot}-{}", hex(&hash[..8]))
}

pub(crate) fn boot_id() -> io::Result<String> {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    Ok(text.trim().to_owned())
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

/// A fetch that lives writes more often.
const UNFINISHED_AGE_MIN: Duration = Duration::from_secs(4 * 3600);
/// Paths of a few hundred files.
const START_BYTES_MAX: u64 = 64 << 10;
const START: &str = "start";
pub(crate) const INDEX: &str = "index";
pub(crate) const TRUSTED: &str = "trusted";
pub(crate) const DATA: &str = "data";
pub(crate) const COMPLETE: &str = "complete";
pub(crate) const HERE: &str = "here-";
pub(crate) const BLOB: &str = "blob-";

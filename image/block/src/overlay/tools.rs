//! Creates, opens and clones overlays by their paths.
//!
//! Why here: file names, locks and the relation of layers are checked here, once.
//! Must stay true: an existing file is never replaced. No link of another user is followed. A new
//! file is made, and on failure removed, in a folder that is opened once. A layer below is
//! recognised by its identifier, and must not have changed since.
//! Called from: any thread; blocks on the disk.

use super::OverlayError;
use super::chain::{LAYERS_MAX, Overlay, larger};
use super::format::{ENTRY_BYTES, GRAIN_BYTES_DEFAULT, GRAIN_BYTES_RANGE, Id, Parent, Superblock};
use super::identity::Identity;
use super::layer::{Layer, write_superblocks};
use super::load::{self, MAP_BYTES};
use super::seal::{LayerLock, Seal, random};
use super::store::{FileStore, Store};
use crate::format::output::{Existing, Output};
use crate::source::BlockSource;
use rustix::fs::OFlags;
use sidecore_bare::width::ToU64;
use sidecore_sys::folder::{Folder, open_named};
use sidecore_terminal::Text;
use std::ffi::OsString;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;
use std::sync::Arc;

/// Creates an overlay on an image, a sealed one if the image is encrypted. `name` is the image's,
/// for messages.
///
/// # Errors
/// [`OverlayError`]; there is no new file then.
pub fn create(
    path: &Path,
    base: &Identity,
    grain_bytes: u32,
    name: &str,
) -> Result<(), OverlayError> {
    create_sized(path, base, (base.size_bytes, grain_bytes), name)
}

/// The same, for a device of `size_bytes`, as large as its image or larger.
///
/// # Errors
/// As [`create`]; [`OverlayError::Size`] for a smaller one.
pub fn create_sized(
    path: &Path,
    base: &Identity,
    sizes: (u64, u32),
    name: &str,
) -> Result<(), OverlayError> {
    make(path, &first(base, sizes, name)?, Some(base)).map(drop)
}

/// The superblock of a first overlay on an image.
fn first(
    base: &Identity,
    (size_bytes, grain_bytes): (u64, u32),
    name: &str,
) -> Result<Superblock, OverlayError> {
    if size_bytes < base.size_bytes {
        return Err(OverlayError::Size {
            wanted: size_bytes,
            size_bytes: base.size_bytes,
        });
    }
    let superblock = Superblock {
        grain_bytes,
        id: random()?,
        salt: u64::from_le_bytes(random()?),
        generation: 1,
        size_bytes,
        frozen: false,
        half: 0,
        sequence: 1,
        slots: 0,
        snapshot: None,
        parent: Parent::Base,
        base: base.hash,
        base_name: name.to_owned(),
        lock: new_lock(Some(base))?,
    };
    superblock.check_sizes()?;
    Ok(superblock)
}

/// A first overlay on `base`, open to be written, and its file, which gets its name by
/// [`Output::finish`] and is gone without it. Close and drop the overlay before.
///
/// # Errors
/// As [`create_sized`].
pub(crate) fn draft(
    path: &Path,
    (base, identity): (Arc<dyn BlockSource>, &Identity),
    sizes: (u64, u32),
    name: &str,
) -> Result<(Output, Overlay), OverlayError> {
    let made = || {
        let superblock = first(identity, sizes, name)?;
        let output = Output::create(path, Existing::Keep).map_err(unmade)?;
        let file = output.file().try_clone().map_err(unmade)?;
        let store = FileStore::lock(file, true).map_err(unmade)?;
        let store = store.ok_or(OverlayError::InUse)?;
        write_superblocks(&store, &superblock, &seal_for(&superblock, Some(identity))?)?;
        let layer = Layer::open(Box::new(store), identity.key.as_deref(), true, MAP_BYTES)?;
        Ok((output, Overlay::new(base, vec![layer], true)))
    };
    made().map_err(|error: OverlayError| error.of(path))
}

/// The reason why an overlay's file cannot be made.
pub(crate) fn unmade(source: std::io::Error) -> OverlayError {
    let source: std::io::Error = match source.kind() {
        // Without the advice of commands that may replace a file.
        ErrorKind::AlreadyExists => rustix::io::Errno::EXIST.into(),
        _ => source,
    };
    let what = "cannot make the overlay";
    OverlayError::Io { what, source }
}

/// Default grain of a new overlay on a device of this size: the smallest that keeps the pointers of
/// its map, which every snapshot writes, below 16 MiB.
#[must_use]
pub(crate) fn grain_bytes_for(size_bytes: u64) -> u32 {
    let mut grain_bytes = GRAIN_BYTES_DEFAULT;
    let leaf_span = |grain: u32| u64::from(grain) * u64::from(grain) / ENTRY_BYTES.to_u64();
    while grain_bytes < *GRAIN_BYTES_RANGE.end()
        && size_bytes.div_ceil(leaf_span(grain_bytes)) > POINTERS_MAX
    {
        grain_bytes *= 2;
    }
    grain_bytes
}

/// A lock for a new layer, if its image is encrypted.
fn new_lock(base: Option<&Identity>) -> Result<Option<LayerLock>, OverlayError> {
    let key = base.and_then(|base| base.key.as_deref());
    key.map(LayerLock::new).transpose()
}

/// The seal of a layer with the lock of `superblock`, without verifying its code.
fn seal_for(superblock: &Superblock, base: Option<&Identity>) -> Result<Seal, OverlayError> {
    let key = base.and_then(|base| base.key.as_deref());
    match (&superblock.lock, key) {
        (None, _) => Ok(Seal::Open),
        (Some(lock), Some(key)) => Ok(Seal::of(lock, key)),
        (Some(_), None) => Err(OverlayError::Locked {
            name: superblock.base_name.clone(),
        }),
    }
}

/// Opens an overlay directly on `base`, in any store, with `map_bytes` of its map in memory: for
/// tests of disk faults and of hostile files. Does not check that `base` is the overlay's own.
///
/// # Errors
/// [`OverlayError`].
pub fn open_in(
    store: Box<dyn Store>,
    base: Arc<dyn BlockSource>,
    identity: &Identity,
    writable: bool,
    map_bytes: usize,
) -> Result<Overlay, OverlayError> {
    let layer = Layer::open(store, identity.key.as_deref(), writable, map_bytes)?;
    Ok(Overlay::new(base, vec![layer], writable))
}

/// Opens an overlay and the layers below it. Without `writable`, the file is not written to, and
/// other processes may read it at the same time.
///
/// # Errors
/// [`OverlayError`].
pub fn open(
    path: &Path,
    base: Arc<dyn BlockSource>,
    identity: &Identity,
    writable: bool,
) -> Result<Overlay, OverlayError> {
    let mut layers = Vec::new();
    let mut next = path.to_owned();
    let mut expected: Option<Id> = None;
    loop {
        // A cycle of parents in damaged files must end.
        if layers.len() == LAYERS_MAX {
            return Err(OverlayError::TooManyLayers.of(path));
        }
        let is_top = layers.is_empty();
        let map_bytes = match is_top {
            true => MAP_BYTES,
            false => LOWER_MAP_BYTES,
        };
        let layer = open_layer(&next, identity, writable && is_top, map_bytes)?;
        let superblock = layer.superblock();
        // Only a frozen layer may lie below another: writes to it would change the layers above.
        let same = expected.is_none_or(|id| id == superblock.id && superblock.frozen);
        let top = layers.first().map(Layer::superblock);
        if !same || top.is_some_and(|top| top.grain_bytes != superblock.grain_bytes) {
            return Err(OverlayError::WrongParent { path: next }.of(path));
        }
        layers.push(layer);
        match superblock.parent {
            Parent::Base => break,
            Parent::Overlay { id, path } => {
                expected = Some(id);
                next = directory_of(&next).join(path);
            }
        }
    }
    let identity = identity.clone();
    let put =
        move |path: &Path, new: &Path, below: &Superblock| put_above(path, new, below, &identity);
    Ok(Overlay::new(base, layers, writable).lying_at(path, Box::new(put)))
}

/// Makes an overlay at `new` above the open one at `path`, whose superblock is `below`, and opens
/// it to be written.
///
/// # Errors
/// [`OverlayError`]; there is no new file then.
fn put_above(
    path: &Path,
    new: &Path,
    below: &Superblock,
    identity: &Identity,
) -> Result<Layer, OverlayError> {
    let made = make_above(path, new, below, Some(identity))?;
    open_layer(new, identity, true, MAP_BYTES).inspect_err(|_| made.remove())
}

fn open_layer(
    path: &Path,
    identity: &Identity,
    writable: bool,
    map_bytes: usize,
) -> Result<Layer, OverlayError> {
    let open = || {
        let file = open_named(path, access(writable), 0).map_err(OverlayError::read)?;
        let store = FileStore::lock(file, writable).map_err(OverlayError::read)?;
        let store = store.ok_or(OverlayError::InUse)?;
        // Before the file is written to.
        check_base(&load::superblock(&store)?.0, identity)?;
        let key = identity.key.as_deref();
        let layer = Layer::open(Box::new(store), key, writable, map_bytes)?;
        if writable {
            // A flush also promises that the file's name is durable: that is in the directory.
            let (folder, _) = Folder::of_file(path).map_err(OverlayError::write)?;
            folder.sync().map_err(OverlayError::write)?;
        }
        Ok(layer)
    };
    open().map_err(|error: OverlayError| error.of(path))
}

fn check_base(superblock: &Superblock, identity: &Identity) -> Result<(), OverlayError> {
    let is_it = superblock.base == identity.hash && superblock.size_bytes >= identity.size_bytes;
    is_it.then_some(()).ok_or_else(|| OverlayError::WrongBase {
        name: superblock.base_name.clone(),
    })
}

/// Makes the device of the overlay at `path` larger, which no process has open; zeros lie behind
/// the former end. For an overlay on an encrypted image, `base` is that image. Returns the former
/// size.
///
/// # Errors
/// [`OverlayError`]; nothing has changed then, except where the disk failed.
pub fn grow(path: &Path, base: Option<&Identity>, size_bytes: u64) -> Result<u64, OverlayError> {
    let grow = || {
        let file = open_named(path, access(true), 0).map_err(OverlayError::read)?;
        let store = FileStore::lock(file, true).map_err(OverlayError::read)?;
        let store = store.ok_or(OverlayError::InUse)?;
        let former = to_clone(&store, base)?.size_bytes;
        if larger(former, size_bytes)? {
            let key = base.and_then(|base| base.key.as_deref());
            Layer::open(Box::new(store), key, true, MAP_BYTES)?.grow(size_bytes)?;
        }
        Ok(former)
    };
    grow().map_err(|error: OverlayError| error.of(path))
}

/// Form of a clone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CloneKind {
    /// A first overlay of an image.
    New,
    /// A copy that shares its blocks on the disk; both can be written.
    Reflink,
    /// A layer above the first, which is frozen.
    Layer,
}

impl CloneKind {
    /// The clone `new` of `overlay`, or of an image, for people.
    #[must_use]
    pub fn text(self, overlay: &Path, new: &Path) -> Text {
        let (overlay, new) = (overlay.display(), new.display());
        Text::from(match self {
            Self::New => format!("{new}: an overlay on {overlay}, with nothing in it"),
            Self::Reflink => format!("{new}: a copy that shares blocks with {overlay}"),
            Self::Layer => {
                format!("{new}: a layer above {overlay}, which takes no more writes")
            }
        })
    }
}

/// Makes `new` an overlay with the contents of the one at `path`: by a reflink where the file
/// system supports it and `may_link` is true, else by a layer above it. For an overlay on an
/// encrypted image, `base` is that image.
///
/// # Errors
/// [`OverlayError`]; there is no new file then.
pub fn clone(
    path: &Path,
    new: &Path,
    base: Option<&Identity>,
    may_link: bool,
) -> Result<CloneKind, OverlayError> {
    clone_sized(path, new, base, (may_link, None))
}

/// The same, with a device of `size_bytes`, as large as the overlay's or larger: a larger one is a
/// layer, and reads as zeros behind the end of the other.
///
/// # Errors
/// As [`clone`]; [`OverlayError::Size`] for a smaller one.
pub fn clone_sized(
    path: &Path,
    new: &Path,
    base: Option<&Identity>,
    (may_link, size_bytes): (bool, Option<u64>),
) -> Result<CloneKind, OverlayError> {
    let file = open_named(path, access(true), 0);
    let file = file.map_err(|error| OverlayError::read(error).of(path))?;
    let lock = |file| FileStore::lock(file, true).map_err(OverlayError::read);
    let copy = file.try_clone().map_err(OverlayError::read)?;
    let Some(store) = lock(copy).map_err(|error| error.of(path))? else {
        // The lock is held by readers of a frozen overlay, and they allow another overlay on top.
        return clone_frozen(path, new, base, size_bytes);
    };
    let superblock = to_clone(&store, base).map_err(|error| error.of(path))?;
    let sized = sized(&superblock, size_bytes).map_err(|error| error.of(path))?;
    let may_link = may_link && !superblock.frozen && sized == superblock;
    if may_link && reflink(&file, path, new, &superblock, base)? {
        return Ok(CloneKind::Reflink);
    }
    if !superblock.frozen {
        let seal = seal_for(&superblock, base).map_err(|error| error.of(path))?;
        // The new one first: a frozen overlay without a clone would be of no use.
        let made = make_above(path, new, &sized, base)?;
        let frozen = Superblock {
            frozen: true,
            generation: superblock.generation + 1,
            ..superblock
        };
        // The log's contents stay valid: readers accept them. The sync covers them, too.
        if let Err(error) = write_superblocks(&store, &frozen, &seal) {
            made.remove();
            return Err(error.of(path));
        }
        return Ok(CloneKind::Layer);
    }
    make_above(path, new, &sized, base)?;
    Ok(CloneKind::Layer)
}

/// The superblock of an overlay, with the size of the layer above it.
fn sized(below: &Superblock, size_bytes: Option<u64>) -> Result<Superblock, OverlayError> {
    let sized = Superblock {
        size_bytes: size_bytes.unwrap_or(below.size_bytes),
        ..below.clone()
    };
    if sized.size_bytes < below.size_bytes {
        return Err(OverlayError::Size {
            wanted: sized.size_bytes,
            size_bytes: below.size_bytes,
        });
    }
    sized.check_sizes()?;
    Ok(sized)
}

/// The superblock of an overlay to be cloned. A sealed one also needs its image, and must have been
/// written with that image's key.
fn to_clone(store: &dyn Store, base: Option<&Identity>) -> Result<Superblock, OverlayError> {
    let (superblock, _) = load::superblock(store)?;
    if let Some(base) = base {
        check_base(&superblock, base)?;
        load::seal_of(&superblock, base.key.as_deref())?;
    }
    // An error if it needs a key and there is none.
    seal_for(&superblock, base)?;
    Ok(superblock)
}

/// A clone of an overlay that other processes have open.
fn clone_frozen(
    path: &Path,
    new: &Path,
    base: Option<&Identity>,
    size_bytes: Option<u64>,
) -> Result<CloneKind, OverlayError> {
    let file = open_named(path, access(false), 0);
    let file = file.map_err(|error| OverlayError::read(error).of(path))?;
    let store = FileStore::unlocked(file);
    let superblock = to_clone(&store, base).map_err(|error| error.of(path))?;
    if !superblock.frozen {
        return Err(OverlayError::InUse.of(path));
    }
    let sized = sized(&superblock, size_bytes).map_err(|error| error.of(path))?;
    make_above(path, new, &sized, base)?;
    Ok(CloneKind::Layer)
}

/// Makes an overlay above another.
fn make_above(
    path: &Path,
    new: &Path,
    below: &Superblock,
    base: Option<&Identity>,
) -> Result<New, OverlayError> {
    let superblock = Superblock {
        id: random()?,
        salt: u64::from_le_bytes(random()?),
        generation: 1,
        frozen: false,
        half: 0,
        sequence: 1,
        slots: 0,
        snapshot: None,
        parent: Parent::Overlay {
            id: below.id,
            path: path_from(directory_of(new), path)?,
        },
        // Each layer has a key of its own.
        lock: new_lock(base.filter(|_| below.lock.is_some()))?,
        ..below.clone()
    };
    make(new, &superblock, base)
}

/// `path` relative to `directory` if it lies below it, else absolute.
fn path_from(directory: &Path, path: &Path) -> Result<String, OverlayError> {
    let full = path
        .canonicalize()
        .map_err(|error| OverlayError::read(error).of(path))?;
    let directory = directory.canonicalize();
    let directory = directory.map_err(|error| OverlayError::read(error).of(path))?;
    let seen = match full.strip_prefix(&directory) {
        Ok(below) => below,
        Err(_) => &full,
    };
    let text = seen
        .to_str()
        .filter(|text| text.len() <= super::format::NAME_BYTES_MAX);
    text.map(str::to_owned).ok_or(OverlayError::LongPath)
}

/// Copies the file at `path` by sharing its blocks; false where the file system does not support
/// it.
fn reflink(
    file: &File,
    path: &Path,
    new: &Path,
    superblock: &Superblock,
    base: Option<&Identity>,
) -> Result<bool, OverlayError> {
    let seal = seal_for(superblock, base)?;
    let (made, copy) = New::create(new)?;
    if rustix::fs::ioctl_ficlone(&copy, file).is_err() {
        made.remove();
        return Ok(false);
    }
    let store = FileStore::unlocked(copy);
    // An identifier of its own: the two diverge.
    let renamed = (|| {
        let mut superblock = superblock.clone();
        superblock.id = random()?;
        superblock.generation += 1;
        if let Parent::Overlay { path: below, .. } = &mut superblock.parent {
            // The path is relative to the folder of the file that contains it.
            let full = directory_of(path).join(below.as_str());
            *below = path_from(directory_of(new), &full)?;
        }
        write_superblocks(&store, &superblock, &seal)?;
        store.sync().map_err(OverlayError::write)
    })();
    if let Err(error) = renamed {
        made.remove();
        return Err(error);
    }
    Ok(true)
}

fn make(
    path: &Path,
    superblock: &Superblock,
    base: Option<&Identity>,
) -> Result<New, OverlayError> {
    let seal = seal_for(superblock, base)?;
    let (made, file) = New::create(path)?;
    let store = FileStore::unlocked(file);
    match write_superblocks(&store, superblock, &seal) {
        Ok(()) => Ok(made),
        Err(error) => {
            made.remove();
            Err(error.of(path))
        }
    }
}

/// Place of a file that was just created.
struct New {
    folder: Folder,
    name: OsString,
}

impl New {
    fn create(path: &Path) -> Result<(Self, File), OverlayError> {
        let failed = |source| unmade(source).of(path);
        let (folder, name) = Folder::of_file(path).map_err(failed)?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        let file = folder.open_file(Path::new(&name), flags, 0o666);
        Ok((Self { folder, name }, file.map_err(failed)?))
    }

    /// Removes it. Best effort: there is an error to report already.
    fn remove(&self) {
        let _ = self.folder.remove_file(&self.name);
    }
}

pub(super) fn access(writable: bool) -> OFlags {
    match writable {
        true => OFlags::RDWR,
        false => OFlags::RDONLY,
    }
}

fn directory_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// True when the file at `path` begins as an overlay does; false also where there is no such file.
///
/// # Errors
/// [`OverlayError`] where the file cannot be read: an overlay must not be treated as an image.
pub fn is_overlay_file(path: &Path) -> Result<bool, OverlayError> {
    let mut head = [0; 8];
    let opened = open_named(path, access(false) | OFlags::NONBLOCK, 0);
    let read = opened.and_then(|mut file| file.read_exact(&mut head));
    match read {
        Ok(()) => Ok(sidecore_format::is_overlay(&head)),
        Err(error) => match error.kind() {
            // A URL is not a file, and a file shorter than the mark is no overlay.
            ErrorKind::NotFound | ErrorKind::UnexpectedEof | ErrorKind::IsADirectory => Ok(false),
            _ => Err(OverlayError::read(error).of(path)),
        },
    }
}

/// Maximum number of pointers to leaves in a new overlay, unless its grain size is given.
const POINTERS_MAX: u64 = 1 << 20;
/// Leaves of the map in memory, of each layer below.
pub(super) const LOWER_MAP_BYTES: usize = 4 << 20;

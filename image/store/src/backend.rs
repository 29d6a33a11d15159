//! Places of a store's objects: a few operations on small names, and a folder that has them.
//!
//! Why here: versions, packs and leases are the same bytes in a folder and on a server; only this
//! module knows files. Backends of buckets, and of web servers, which are read alone, are made by
//! `sidecore-remote`, which knows the network.
//! Must stay true: an object is visible under its key only once all of it is durable. A key is made
//! of names that this crate has checked; no link is followed below a store's folder.
//! Called from: any thread; blocks on the disk or the network.

use sidecore_bare::width::{ToU64, ToUsize};
use sidecore_sys::folder::{Folder, FolderError};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::io::{self, Read, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

/// BLAKE3 of an object, or the name of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Id(pub(crate) [u8; 32]);

impl Id {
    /// The id of an object with these bytes.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        Self(*blake3::hash(bytes).as_bytes())
    }

    /// Reads 64 hexadecimal digits in lower case.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let id = Self(*blake3::Hash::from_hex(text).ok()?.as_bytes());
        // One spelling, so that an object has one key.
        (id.to_string() == text).then_some(id)
    }

    /// Key of the pack with this id.
    pub(crate) fn pack(&self) -> String {
        format!("{PACKS}/{self}")
    }

    /// Key of the manifest with this id.
    pub(crate) fn manifest(&self) -> String {
        format!("{MANIFESTS}/{self}")
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&blake3::Hash::from_bytes(self.0).to_hex())
    }
}

/// Exclusive use of a store, until it is dropped.
pub type Lock = Box<dyn Send>;

/// The objects of a store by their keys: `store`, `condemned`, and a name in one of four folders
/// (`packs`, `manifests`, `refs`, `leases`).
pub trait Backend: Send + Sync {
    /// Name of the place for messages, without secrets.
    fn name(&self) -> String;

    /// All bytes of an object; `None` where there is none.
    ///
    /// # Errors
    /// The system's; an object of more than `bytes_max`.
    fn get(&self, key: &str, bytes_max: u64) -> io::Result<Option<Vec<u8>>>;

    /// The bytes of a range, which the caller has bounded.
    ///
    /// # Errors
    /// The system's; `UnexpectedEof` where the object ends too early.
    fn read(&self, key: &str, range: Range<u64>) -> io::Result<Vec<u8>>;

    /// The last bytes of an object, at most `bytes_max`, with its size in bytes; `None` where there
    /// is none. One request, where a request costs a round trip.
    ///
    /// # Errors
    /// The system's.
    fn read_end(&self, key: &str, bytes_max: u64) -> io::Result<Option<(u64, Vec<u8>)>> {
        let Some(size_bytes) = self.size(key)? else {
            return Ok(None);
        };
        let begin = size_bytes.saturating_sub(bytes_max);
        Ok(Some((size_bytes, self.read(key, begin..size_bytes)?)))
    }

    /// Size of an object in bytes; `None` where there is none.
    ///
    /// # Errors
    /// The system's.
    fn size(&self, key: &str) -> io::Result<Option<u64>>;

    /// Writes an object, or replaces it: readers see all of the new bytes or all of the old ones,
    /// also after a crash. Durable on return.
    ///
    /// # Errors
    /// The system's; then the old object is as it was.
    fn put(&self, key: &str, bytes: &[u8]) -> io::Result<()>;

    /// Removes an object; one that is not there is no error.
    ///
    /// # Errors
    /// The system's.
    fn remove(&self, key: &str) -> io::Result<()>;

    /// As [`Self::remove`], of an object that nothing needs: after a crash it may be there again,
    /// which spares the wait for the disk.
    ///
    /// # Errors
    /// The system's.
    fn discard(&self, key: &str) -> io::Result<()> {
        self.remove(key)
    }

    /// Names in a folder of the store, sorted.
    ///
    /// # Errors
    /// The system's.
    fn list(&self, folder: &str) -> io::Result<Vec<String>>;

    /// Waits for the exclusive use of the store, among all processes that use it.
    ///
    /// # Errors
    /// The system's; `TimedOut` after a minute, or a few where a lock outlives its process.
    fn lock(&self) -> io::Result<Lock>;

    /// True where a process that stands still may lose the lock and not see it at once: a request
    /// that it has sent before may still take effect. [`Self::put`] must then refuse to write a
    /// name, a lease or the list of what may go, if it has changed since it was read.
    fn lock_may_end(&self) -> bool {
        false
    }

    /// Requests that are made side by side where many are needed: more than one where each costs a
    /// round trip.
    fn requests_max(&self) -> usize {
        1
    }

    /// Removes what writers that died have left unfinished, older than `age`.
    ///
    /// # Errors
    /// The system's.
    fn clean(&self, age: Duration) -> io::Result<()> {
        let _ = age;
        Ok(())
    }
}

/// A store in a folder. A crash at any moment leaves the store whole: objects are written under
/// another name, synced and renamed, and then the folder is synced.
#[derive(Debug)]
pub struct FolderBackend {
    root: Folder,
}

impl FolderBackend {
    /// Makes the folder and those in it, where they are missing. A new folder is closed to other
    /// users: they may not read the images themselves. An existing one keeps its mode.
    ///
    /// # Errors
    /// The system's; a folder of another user, or one that others may write to.
    pub fn create(path: &Path) -> io::Result<Self> {
        let root = Folder::create_own(path, ROOT_MODE).map_err(FolderError::into_io)?;
        for name in [PACKS, MANIFESTS, REFS, LEASES] {
            let made = root.create_inside(OsStr::new(name), FOLDER_MODE);
            made.map_err(FolderError::into_io)?;
        }
        // The four folders are durable before settings are written: a store that opens has them
        // all.
        root.sync()?;
        // Its own name is to be there, too, after a crash. A path may end with no name (`..`).
        if let Ok((above, _)) = Folder::of_file(path) {
            above.sync()?;
        }
        Ok(Self { root })
    }

    /// Opens the folder.
    ///
    /// # Errors
    /// The system's.
    pub fn open(path: &Path) -> io::Result<Self> {
        let root = Folder::open(path)?;
        Ok(Self { root })
    }

    /// The folder of a key, and the name in it.
    fn place(&self, key: &str) -> io::Result<(Folder, OsString)> {
        let (folder, name) = key.rsplit_once('/').unwrap_or(("", key));
        Ok((self.root.beneath(Path::new(folder))?, name.into()))
    }

    fn open_object(&self, key: &str) -> io::Result<Option<File>> {
        match self.root.read_file(Path::new(key)) {
            Ok(file) => Ok(Some(file)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl Backend for FolderBackend {
    fn name(&self) -> String {
        self.root.path().display().to_string()
    }

    fn get(&self, key: &str, bytes_max: u64) -> io::Result<Option<Vec<u8>>> {
        let Some(file) = self.open_object(key)? else {
            return Ok(None);
        };
        let mut bytes = Vec::new();
        // One byte more, to see that there is more.
        file.take(bytes_max.saturating_add(1))
            .read_to_end(&mut bytes)?;
        match bytes.len().to_u64() <= bytes_max {
            true => Ok(Some(bytes)),
            false => Err(too_long(bytes_max)),
        }
    }

    fn read(&self, key: &str, range: Range<u64>) -> io::Result<Vec<u8>> {
        let file = self.root.read_file(Path::new(key))?;
        let mut bytes = vec![0; range.end.saturating_sub(range.start).to_usize()];
        // An object never changes, so a short read is damage, not growth.
        file.read_exact_at(&mut bytes, range.start)?;
        Ok(bytes)
    }

    fn size(&self, key: &str) -> io::Result<Option<u64>> {
        match self.open_object(key)? {
            Some(file) => Ok(Some(file.metadata()?.len())),
            None => Ok(None),
        }
    }

    fn put(&self, key: &str, bytes: &[u8]) -> io::Result<()> {
        let (folder, name) = self.place(key)?;
        folder.replace(&name, FILE_MODE, |file| file.write_all(bytes))?;
        // The name is durable only after its folder is synced.
        folder.sync()
    }

    fn remove(&self, key: &str) -> io::Result<()> {
        self.discard(key)?;
        let (folder, _) = self.place(key)?;
        folder.sync()
    }

    fn discard(&self, key: &str) -> io::Result<()> {
        let (folder, name) = self.place(key)?;
        match folder.remove_file(&name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }

    fn list(&self, folder: &str) -> io::Result<Vec<String>> {
        let names = self.root.beneath(Path::new(folder))?.names()?;
        let names = names.into_iter().filter_map(|name| name.into_string().ok());
        // Unfinished objects have hidden names.
        let mut names: Vec<_> = names.filter(|name| !name.starts_with('.')).collect();
        names.sort_unstable();
        Ok(names)
    }

    fn lock(&self) -> io::Result<Lock> {
        // An opening of its own: the lock belongs to the opening, and ends with it.
        let folder = self.root.beneath(Path::new(""))?;
        folder.lock_within(LOCK_WAIT_MAX)?;
        Ok(Box::new(folder))
    }

    fn clean(&self, age: Duration) -> io::Result<()> {
        for folder in ["", PACKS, MANIFESTS, REFS, LEASES] {
            let folder = self.root.beneath(Path::new(folder))?;
            for name in folder.names()? {
                let is_unfinished = name.to_string_lossy().starts_with(UNFINISHED);
                // A file that is gone, or of no known age, is left to its writer.
                let modified = is_unfinished
                    .then(|| folder.read_file(Path::new(&name)).ok())
                    .flatten()
                    .and_then(|file| file.metadata().ok()?.modified().ok());
                let is_old = modified.and_then(|at| at.elapsed().ok()) >= Some(age);
                if is_unfinished && is_old {
                    folder.remove_file(&name)?;
                }
            }
        }
        Ok(())
    }
}

/// The error of an object that is longer than its kind can be.
fn too_long(bytes_max: u64) -> io::Error {
    let text = format!("it has more than {bytes_max} bytes, which is the most of its kind");
    io::Error::new(io::ErrorKind::InvalidData, text)
}

pub(crate) const PACKS: &str = "packs";
pub(crate) const MANIFESTS: &str = "manifests";
pub(crate) const REFS: &str = "refs";
pub(crate) const LEASES: &str = "leases";
/// Begin of the names of files that are being written (`Folder::unused_name`).
const UNFINISHED: &str = ".sidecore-";
/// The folder's user alone reaches what is in it, until the folder is opened (chmod).
const ROOT_MODE: u32 = 0o700;
/// Others may read, less the umask, where the folder is open to them; and never write.
const FOLDER_MODE: u32 = 0o755;
const FILE_MODE: u32 = 0o644;
/// Steps under the lock read references and write small objects: seconds at most.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(60);

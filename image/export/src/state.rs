//! Records of mounts and attached devices, in files that survive the server.
//!
//! Why here: `umount` and `detach` run in other processes than the server, and a killed server
//! cannot clean up; the next command does it from these records.
//!
//! One directory for each server, `/run/sidecore/block/N` (without root:
//! `$XDG_RUNTIME_DIR/sidecore/block/N`), with `state.json` (a [`Record`]), `lock` (held by the
//! server as long as it lives) and `log` (its standard error).
//!
//! Must stay true:
//! - A record names a mount or a device before others can see it, so whatever is left has a record.
//! - The lock alone decides if a server lives: the kernel drops it with the process, so neither a
//!   reused process number nor another PID namespace can mislead. The process number is used only
//!   while the lock is held.
//! - Cleaning touches only objects that still match the record: the mount's number and source, the
//!   loop device's file.
//!
//! Callable from any thread; [`StateDir::clean_stale`] may take as long as an unmount does.

pub(crate) mod table;

use super::ExportError;
use super::fuse::Device;
pub(crate) use super::fuse::place::detach as detach_mount;
use super::loopdev;
use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};
use sidecore_sys::folder::{Folder, FolderError};
use std::ffi::OsString;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Record of the mounts and devices of one server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The server's process number.
    pub pid: u32,
    /// The image's absolute path.
    pub image: PathBuf,
    /// The file's name inside the FUSE mount, which identifies its loop device.
    pub file_name: String,
    /// The FUSE file system; its minor number names the connection that can be aborted.
    pub fuse: Option<Device>,
    /// The loop device's number.
    pub loop_number: Option<u32>,
    /// The device that `attach` printed.
    pub device: Option<PathBuf>,
    /// The mount on a directory, where there is one.
    pub(crate) mount: Option<MountRecord>,
    /// The contents, as their source identifies them, where another server may go on with them.
    #[serde(default)]
    pub identity: Option<String>,
    /// It takes writes; records without this field do, too.
    #[serde(default = "yes")]
    pub writable: bool,
    /// The kernel has released everything that was set up: the server makes its data durable, and
    /// ends.
    #[serde(default)]
    pub released: bool,
    /// The reason why written data are not durable.
    #[serde(default)]
    pub fault: Option<String>,
}

fn yes() -> bool {
    true
}

/// A visible mount on a directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MountRecord {
    /// The directory, absolute.
    pub dir: PathBuf,
    /// The mount's source, as the mount table names it.
    pub source: String,
    /// The mount's number in the server's namespace; `None` for a FUSE file, whose number is known
    /// only after it is visible.
    pub id: Option<u64>,
    /// The file system's device, by which its copies in other mount namespaces are recognised.
    #[serde(default)]
    pub device: Option<Device>,
}

impl Record {
    /// A record of this process that only names the image.
    #[must_use]
    pub fn new(image: PathBuf) -> Self {
        Self {
            pid: std::process::id(),
            image,
            file_name: String::new(),
            fuse: None,
            loop_number: None,
            device: None,
            mount: None,
            identity: None,
            writable: false,
            released: false,
            fault: None,
        }
    }
}

impl MountRecord {
    /// This mount's entry in the table, if it is still there and on top.
    ///
    /// # Errors
    /// When the table cannot be read.
    pub(crate) fn find(&self) -> io::Result<Option<table::Mount>> {
        Ok(table::at(&self.dir)?.filter(|mount| self.is(mount)))
    }

    /// True for this mount, and for its copies in other namespaces.
    pub(crate) fn is(&self, mount: &table::Mount) -> bool {
        let same = match (self.device, self.id) {
            (Some(device), _) => device == mount.device,
            (None, Some(id)) => id == mount.id,
            (None, None) => true,
        };
        same && mount.source == *self.source
    }
}

/// The directory of all records.
#[derive(Debug, Clone)]
pub struct StateDir {
    path: PathBuf,
}

/// One server's directory in it, as others see it.
#[derive(Debug)]
pub struct Entry {
    /// The server's directory.
    pub path: PathBuf,
    /// Record of the mounts and devices it has set up.
    pub record: Record,
    /// True when the server lived when this was read.
    pub alive: bool,
    /// Its lock, which shows that it has ended even after it has removed its directory.
    lock: Option<File>,
}

/// A server's own directory; removed by [`Claim::release`], or by the next command once the process
/// is gone.
#[derive(Debug)]
pub struct Claim {
    path: PathBuf,
    lock: File,
}

impl StateDir {
    /// The directory for this user. `SIDECORE_STATE_DIR` overrides it.
    #[must_use]
    pub fn of_user() -> Self {
        // A directory that is empty after a boot, as the mounts are.
        let path = if let Some(path) = std::env::var_os("SIDECORE_STATE_DIR") {
            std::path::absolute(&path).unwrap_or_else(|_| PathBuf::from(path))
        } else if rustix::process::geteuid().is_root() {
            PathBuf::from("/run/sidecore/block")
        } else if let Some(path) = session_folder(std::env::var_os("XDG_RUNTIME_DIR")) {
            path.join("sidecore/block")
        } else {
            let user = rustix::process::geteuid().as_raw();
            std::env::temp_dir().join(format!("sidecore-{user}/block"))
        };
        Self { path }
    }

    /// Takes a directory for this process; `record` is written by [`Claim::write`].
    ///
    /// # Errors
    /// When the directory cannot be made, or `SERVERS_MAX` are there.
    pub fn claim(&self, record: &Record) -> Result<Claim, ExportError> {
        let _all = self.lock_all()?;
        for number in 0..SERVERS_MAX {
            let path = self.path.join(number.to_string());
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                Err(error) => return Err(ExportError::state(&path, error)),
            }
            // The lock, not the process number, shows that the server lives: numbers are used
            // again.
            let lock = lock_file(&path.join("lock"))
                .and_then(|file| {
                    rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
                    Ok(file)
                })
                .map_err(|error| ExportError::state(&path, error))?;
            let claim = Claim { path, lock };
            claim.write(record)?;
            return Ok(claim);
        }
        Err(ExportError::TooMany(SERVERS_MAX))
    }

    /// All servers' records.
    ///
    /// # Errors
    /// When the directory is there and cannot be read.
    pub fn entries(&self) -> Result<Vec<Entry>, ExportError> {
        let mut entries = Vec::new();
        for path in self.paths()? {
            // A directory that has just been removed, or has no record yet, has no owner to list.
            if let Ok(text) = std::fs::read(path.join("state.json"))
                && let Ok(record) = serde_json::from_slice(&text)
            {
                let mut entry = Entry::new(path, record);
                entry.alive = entry.is_alive();
                entries.push(entry);
            }
        }
        Ok(entries)
    }

    /// Undoes the leftovers of dead servers of this user. A failure is logged.
    pub fn clean_after_the_dead() {
        if let Err(error) = Self::of_user().clean_stale() {
            tracing::warn!("cannot look for what dead servers have left: {error}");
        }
    }

    /// Undoes the leftovers of dead servers. Called at the start of every command.
    ///
    /// # Errors
    /// When the records cannot be read; leftovers that cannot be undone are logged and tried again
    /// the next time.
    pub fn clean_stale(&self) -> Result<(), ExportError> {
        if !self.path.exists() {
            return Ok(());
        }
        let _all = self.lock_all()?;
        for entry in self.entries()? {
            if !entry.alive {
                clean(&entry);
            }
        }
        for path in self.paths()? {
            if !is_locked(&path) && !path.join("state.json").exists() {
                remove(&path);
            }
        }
        Ok(())
    }

    /// Keeps two servers from taking the same directory or device at once, while the file is held.
    ///
    /// # Errors
    /// When the directory cannot be made.
    pub(crate) fn lock_all(&self) -> Result<File, ExportError> {
        let failed = |error| ExportError::state(&self.path, error);
        self.trusted(true)?;
        let file = lock_file(&self.path.join("lock")).map_err(failed)?;
        rustix::fs::flock(&file, FlockOperation::LockExclusive).map_err(|e| failed(e.into()))?;
        Ok(file)
    }

    /// In a world-writable directory another user may have made ours first, to have us unmount on
    /// that user's behalf: it and all above it must belong to this user or root. Then no other user
    /// can change what the path leads to while it is used.
    fn trusted(&self, make: bool) -> Result<(), ExportError> {
        let opened = match make {
            true => Folder::create_trusted(&self.path, 0o755),
            false => Folder::open_trusted(&self.path),
        };
        let failed = |error: FolderError| ExportError::state(&self.path, error.into_io());
        opened.map(drop).map_err(failed)
    }

    fn paths(&self) -> Result<Vec<PathBuf>, ExportError> {
        let failed = |error| ExportError::state(&self.path, error);
        let listing = match std::fs::read_dir(&self.path) {
            Ok(listing) => listing,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(failed(error)),
        };
        self.trusted(false)?;
        let mut paths = Vec::new();
        for entry in listing {
            let entry = entry.map_err(failed)?;
            // Only directories that `claim` has made: the path may have been set to a directory
            // that others use too.
            let ours = entry
                .file_name()
                .to_str()
                .is_some_and(|it| it.parse::<u16>().is_ok());
            if ours && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                paths.push(entry.path());
            }
        }
        paths.sort();
        Ok(paths)
    }
}

impl Entry {
    /// An entry whose server is not known to live.
    pub(crate) fn new(path: PathBuf, record: Record) -> Self {
        let lock = OpenOptions::new().write(true).open(path.join("lock")).ok();
        Self {
            path,
            record,
            alive: false,
            lock,
        }
    }

    /// The record as the server has written it since, if it can be read.
    pub(crate) fn again(&self) -> Option<Record> {
        let text = std::fs::read(self.path.join("state.json")).ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// True when the server's process lives now; its export may live without it.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.lock.as_ref().is_some_and(is_held)
    }
}

impl Claim {
    /// The server's directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A directory that a server before this one has claimed, with its lock.
    pub(crate) fn of(path: PathBuf, lock: File) -> Self {
        Self { path, lock }
    }

    /// Another descriptor of the lock, which is held as long as one of both is open.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn lock(&self) -> io::Result<File> {
        self.lock.try_clone()
    }

    /// Writes the record, whole or not at all.
    ///
    /// # Errors
    /// When the file cannot be written, or a path in it is not UTF-8.
    pub fn write(&self, record: &Record) -> Result<(), ExportError> {
        // A rename replaces the record at once: a reader sees the old one or the new one.
        let new = self.path.join("state.json.new");
        serde_json::to_vec_pretty(record)
            .map_err(io::Error::from)
            .and_then(|text| std::fs::write(&new, text))
            .and_then(|()| std::fs::rename(&new, self.path.join("state.json")))
            .map_err(|error| ExportError::state(&self.path, error))
    }

    /// Keeps the directory, with the record of the fault, for the next command; the last act of a
    /// server that could not end in order.
    pub(crate) fn leave(self) {
        std::mem::forget(self.lock);
    }

    /// Removes the directory; the last act of a server.
    pub fn release(self) {
        remove(&self.path);
        // Held until the process is gone, for which `umount` waits.
        std::mem::forget(self.lock);
    }
}

/// Undoes what a record names, from the outside in, and removes its directory. Users lose
/// everything and get EIO: the server is dead (or about to be), so they would get nothing else.
/// False where something is left, and the directory with it, for the next command.
pub(crate) fn clean(entry: &Entry) -> bool {
    let record = &entry.record;
    // The mount first: it holds the loop device.
    let mut left = false;
    if let Some(mount) = &record.mount {
        match mount.find() {
            Ok(Some(_)) => left |= !detach_mount(&mount.dir),
            Ok(None) => {}
            Err(error) => {
                tracing::warn!("cannot read the mount table: {error}");
                left = true;
            }
        }
    }
    // By the file's name, which is unique, and not by the number in the record: a server may have
    // died after it had connected a device and before it wrote so.
    let named = record.file_name.starts_with("sidecore-");
    for number in if named {
        loopdev::all_on(&record.file_name)
    } else {
        Vec::new()
    } {
        if let Err(error) = loopdev::clear(number) {
            tracing::warn!("cannot clear /dev/loop{number}: {error}");
            left = true;
        }
    }
    if !left {
        remove(&entry.path);
    }
    !left
}

/// Empties the log in a server's directory once it is long. The directory lies in memory, and each
/// failed read of an image that is damaged or far away is logged, as is each failed start.
pub(crate) fn bound_log(folder: &Path) {
    let log = OpenOptions::new().write(true).open(folder.join("log"));
    if let Ok(log) = log
        && log.metadata().is_ok_and(|it| it.len() > LOG_BYTES_MAX)
    {
        // All its writers append: the next line is its first.
        match log.set_len(0) {
            Ok(()) => tracing::warn!("the log was emptied: it had {LOG_BYTES_MAX} bytes"),
            Err(error) => tracing::warn!("the log is long and cannot be emptied: {error}"),
        }
    }
}

fn lock_file(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(path)
}

/// True when a living server holds the lock of the directory `path`.
fn is_locked(path: &Path) -> bool {
    let lock = OpenOptions::new().write(true).open(path.join("lock"));
    lock.is_ok_and(|file| is_held(&file))
}

/// True when another process holds this lock. Asks for a shared lock, so that two processes that
/// ask do not take each other for a server.
fn is_held(lock: &File) -> bool {
    match rustix::fs::flock(lock, FlockOperation::NonBlockingLockShared) {
        Ok(()) => {
            let _ = rustix::fs::flock(lock, FlockOperation::Unlock);
            false
        }
        Err(error) => error == rustix::io::Errno::WOULDBLOCK,
    }
}

/// The file that a keeper holds, in its server's directory.
pub(crate) fn keeper_name(number: usize) -> String {
    format!("keeper-{number}")
}

/// Keepers of a mount: only if all of them and the server are killed at once, the mount is lost.
pub(crate) const KEEPERS: usize = 2;
/// The file that a server with keepers holds.
pub(crate) const SERVING: &str = "serving";
/// The file that is there once such a server ends in order.
pub(crate) const FAREWELL: &str = "farewell";

/// Removes a server's directory: our own files, then the directory, which fails if anything else is
/// in it.
fn remove(path: &Path) {
    for name in ["state.json.new", "state.json", "log", "lock"] {
        let _ = std::fs::remove_file(path.join(name));
    }
    let keepers = (0..KEEPERS).map(keeper_name);
    for name in keepers.chain([SERVING.to_owned(), FAREWELL.to_owned()]) {
        let _ = std::fs::remove_file(path.join(name));
    }
    // The link by which erofs was given the FUSE file, if a server died at that moment.
    for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_symlink()) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
    if let Err(error) = std::fs::remove_dir(path)
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!("cannot remove {}: {error}", path.display());
    }
}

/// Most bytes of a server's log, as it is looked at every few seconds.
const LOG_BYTES_MAX: u64 = 4 << 20;
/// Most servers on one machine.
pub(crate) const SERVERS_MAX: usize = 4096;

/// The folder that the session gave its user. The specification has relative paths ignored: two
/// commands in different folders would not find the same state.
fn session_folder(given: Option<OsString>) -> Option<PathBuf> {
    given.map(PathBuf::from).filter(|path| path.is_absolute())
}

#[cfg(test)]
mod tests;

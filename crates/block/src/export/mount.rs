//! Mounting the file system inside an image, and undoing it.
//!
//! Why here: the export that needs nothing of its users: they see a directory. [`serve`] runs in
//! the server's process (see `server.rs` for the order of things), [`umount`] in any other.
//!
//! Must stay true: after `umount`, or after the next command when a server was killed, nothing is
//! left: no mount, no loop device, no process, no record.
//!
//! Callable from any thread that does not serve reads; both block.

mod inner;
mod server;

pub use inner::{Content, FileSystem, detect};
pub use server::{Target, serve};

use super::ExportError;
use super::fuse::connection;
use super::state::{self, Entry, StateDir, table};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Outcome of [`umount`] or of `detach`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Undone {
    /// Nothing is left.
    Completely,
    /// Users that this mount namespace cannot see had it; they get errors now, and the rest goes
    /// when they do.
    TakenAway,
    /// It is also mounted there, by a bind mount, or the device is open; that still works, and the
    /// rest goes when it does.
    StillUsed(PathBuf),
}

/// Undoes what `serve` set up on `dir`. With `force`, programs that use it get errors instead of a
/// refusal here.
///
/// # Errors
/// [`ExportError::NotMounted`], [`ExportError::Busy`] (nothing has changed then), or the system's.
pub fn umount(dir: &Path, force: bool) -> Result<Undone, ExportError> {
    let states = StateDir::of_user();
    let entry = find(&states, dir)?;
    // Whatever dead servers have left goes now; this one too, if its server is dead.
    states.clean_stale()?;
    let (Some(entry), Some(dir)) = (
        &entry,
        entry
            .as_ref()
            .and_then(|it| Some(&it.record.mount.as_ref()?.dir)),
    ) else {
        return Err(ExportError::NotMounted(dir.to_owned()));
    };
    if !entry.is_alive() {
        return after_death(entry);
    }
    let mount = entry
        .record
        .mount
        .as_ref()
        .and_then(|it| it.find().transpose());
    let mount = mount
        .transpose()
        .map_err(|e| ExportError::os("cannot read the mount table", e))?;
    if mount.is_some() {
        match unmount_patiently(dir, force) {
            Ok(()) | Err(Errno::INVAL) => {}
            Err(Errno::BUSY) if !force => return Err(ExportError::Busy(dir.clone())),
            Err(Errno::BUSY | Errno::PERM) => {
                state::detach_mount(dir);
            }
            Err(errno) => return Err(ExportError::os("cannot unmount", errno)),
        }
    }
    if let Some(mount) = mount
        && !force
        && let Ok(mounts) = table::read()
        && let Some(other) = mounts.into_iter().find(|it| it.device == mount.device)
    {
        return Ok(Undone::StillUsed(other.dir));
    }
    finish(entry)
}

/// Unmounts. A refusal because of users is believed only after [`BUSY_GRACE`]: indexers look at
/// new mounts for a moment, and a process that is just being started holds its parent's files.
fn unmount_patiently(dir: &Path, force: bool) -> Result<(), Errno> {
    let begun = Instant::now();
    loop {
        let result = match rustix::mount::unmount(dir, UnmountFlags::NOFOLLOW) {
            Err(Errno::PERM) => unmount_by_helper(dir),
            result => result,
        };
        if result != Err(Errno::BUSY) || force || begun.elapsed() > BUSY_GRACE {
            return result;
        }
        std::thread::sleep(BUSY_PAUSE);
    }
}

/// Unmounts what a user without rights has mounted, by the set-user-id helper, which says no more
/// than that it could not: users are the one cause for that.
fn unmount_by_helper(dir: &Path) -> Result<(), Errno> {
    let mut helper = std::process::Command::new("fusermount3");
    match helper.arg("-uq").arg("--").arg(dir).status() {
        Ok(status) if status.success() => Ok(()),
        Ok(_) => Err(Errno::BUSY),
        Err(_) => Err(Errno::PERM),
    }
}

/// Waits for a server whose work was undone, and takes the files from users that still hold it.
pub(crate) fn finish(entry: &Entry) -> Result<Undone, ExportError> {
    if gone_within(entry, GRACE) {
        StateDir::of_user().clean_stale()?;
        return Ok(Undone::Completely);
    }
    // The server lives, so the connection's number is still its own.
    if let Some(device) = entry.record.fuse
        && let Err(error) = connection::abort(device.minor)
    {
        tracing::warn!("cannot abort FUSE connection {}: {error}", device.minor);
    }
    if !gone_within(entry, GRACE) {
        return Err(ExportError::Stuck(entry.record.pid));
    }
    StateDir::of_user().clean_stale()?;
    Ok(Undone::TakenAway)
}

/// Outcome of cleaning up after a dead server.
pub(crate) fn after_death(entry: &Entry) -> Result<Undone, ExportError> {
    if entry.path.exists() {
        let left = std::io::Error::from(std::io::ErrorKind::ResourceBusy);
        return Err(ExportError::os(
            "a dead server's mount or device could not be undone, see above",
            left,
        ));
    }
    Ok(Undone::Completely)
}

/// True when a server's process ended before `limit` had passed. If it was killed, its directory
/// stays for [`StateDir::clean_stale`].
pub(crate) fn gone_within(entry: &Entry, limit: Duration) -> bool {
    let start = Instant::now();
    while entry.is_alive() {
        if start.elapsed() > limit {
            return false;
        }
        std::thread::sleep(LOOK_AGAIN);
    }
    true
}

/// The image, as its server was given it, that is mounted on `dir` by a server of this user's that
/// lives.
///
/// # Errors
/// When the records or the table of mounts cannot be read.
pub fn image_on(dir: &Path) -> Result<Option<PathBuf>, ExportError> {
    let Some(entry) = find(&StateDir::of_user(), dir)?.filter(|entry| entry.alive) else {
        return Ok(None);
    };
    let Some(mount) = &entry.record.mount else {
        return Ok(None);
    };
    let found = mount.find().map_err(|source| ExportError::Directory {
        dir: dir.to_owned(),
        source,
    })?;
    Ok(found.map(|_| entry.record.image))
}

/// The server that mounted on `dir`; the newest, if there was one before it.
fn find(states: &StateDir, dir: &Path) -> Result<Option<Entry>, ExportError> {
    // A dead mount cannot be looked into, so its name must do as it is written, symbolic links
    // above it resolved.
    let absolute = std::path::absolute(dir).map_err(|source| ExportError::Directory {
        dir: dir.to_owned(),
        source,
    })?;
    let above = absolute
        .parent()
        .and_then(|parent| parent.canonicalize().ok());
    let resolved = above
        .zip(absolute.file_name())
        .map(|(parent, name)| parent.join(name));
    let canonical = dir.canonicalize().ok();
    let names = [Some(absolute), resolved, canonical];
    let is_it = |entry: &Entry| {
        let mount = entry.record.mount.as_ref();
        mount.is_some_and(|mount| names.iter().flatten().any(|name| *name == mount.dir))
    };
    let mut entries = states.entries()?;
    entries.retain(is_it);
    entries.sort_by_key(|entry| entry.alive);
    Ok(entries.pop())
}

/// Time limit for a server to see that it is not needed any more.
pub(crate) const GRACE: Duration = Duration::from_secs(3);
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// Time for which a mount must be busy to count as in use.
const BUSY_GRACE: Duration = Duration::from_millis(500);

const BUSY_PAUSE: Duration = Duration::from_millis(10);

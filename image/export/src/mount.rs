//! Mounting the file system inside an image, and undoing it.
//!
//! Why here: the export that needs no tools of its users: they see a directory. [`serve`] runs in
//! the server's process (see `server.rs` for the order of things), [`umount`] in any other.
//!
//! Must stay true: after `umount`, or after the next command when a server was killed, nothing is
//! left: no mount, no loop device, no process, no record.
//!
//! Callable from any thread that does not serve reads; both block.

pub(super) mod above;
pub(super) mod ending;
pub mod fstab;
mod inner;
mod server;
pub(super) mod undo;

pub use inner::{Content, FileSystem, check_uuid, detect};
pub(super) use server::absolute;
pub use server::{Target, serve};
pub use undo::flush_input;
pub(crate) use undo::{Flusher, flusher};

use super::ExportError;
use super::state::{Entry, StateDir};
use ending::Outcome;
use std::ffi::OsString;
use std::fmt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
pub(super) use undo::Undoing;

/// Outcome of [`umount`] or of `detach`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Undone {
    /// Nothing is left, and all written data are safe.
    Completely,
    /// Its users get errors now, and the rest is removed when they close it. Nothing was written to
    /// it.
    TakenAway,
    /// Others still use it, and can continue; its server ends when they release it. All data
    /// written so far is safe.
    StillUsed(By),
    /// Its server had died. Written data that were not flushed before are lost.
    ServerDied,
}

/// The current user of a mount or a device.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum By {
    /// Another mount of it, here.
    Mount(PathBuf),
    /// Another mount namespace, that of this process among others.
    Namespace(u32),
    /// Programs that have it open.
    Programs,
}

impl Undone {
    /// True where written data may be lost.
    #[must_use]
    pub fn has_lost(&self) -> bool {
        matches!(self, Self::ServerDied)
    }

    /// Message about the mount on `dir`, where more is to be known than that it is gone.
    #[must_use]
    pub fn of_mount(&self, dir: &Path) -> Option<String> {
        let dir = dir.display();
        Some(match self {
            Self::Completely => return None,
            Self::StillUsed(by) => format!(
                "unmounted from {dir}; {by}, so its server stays until then; what was written so \
                 far is safe"
            ),
            Self::TakenAway => format!(
                "unmounted from {dir}; others (open files, another mount namespace) still used it \
                 and get errors now"
            ),
            Self::ServerDied => format!(
                "sidecore: the server of {dir} had died: what was written there and not synced \
                 before is lost; nothing is left of the mount"
            ),
        })
    }

    /// Message about the block device at `device`, where more is to be known than that it is gone.
    #[must_use]
    pub fn of_device(&self, device: &Path) -> Option<String> {
        let device = device.display();
        Some(match self {
            Self::Completely => return None,
            Self::StillUsed(_) => format!(
                "{device} is open; it goes when the last program closes it; what was written so \
                 far is safe"
            ),
            Self::TakenAway => {
                format!("detached {device}; programs that still used it get errors now")
            }
            Self::ServerDied => format!(
                "sidecore: the server of {device} had died: what was written to it and not synced \
                 before is lost; nothing is left of it"
            ),
        })
    }
}

/// The user, and until when its server stays.
impl fmt::Display for By {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mount(dir) => {
                write!(
                    to,
                    "also mounted on {} until that is unmounted",
                    dir.display()
                )
            }
            Self::Namespace(pid) => write!(
                to,
                "another mount namespace (that of process {pid}) has it until it unmounts or ends"
            ),
            Self::Programs => to.write_str("programs have files open there until they close them"),
        }
    }
}

/// Undoes the set-up of `serve` on `dir`. With `force`, programs that use it do not prevent that:
/// they get errors if it is read-only, and keep their open files if it is writable. A process of
/// its own flushes written data before and after: call it in the program `sidecore`.
///
/// # Errors
/// [`ExportError::NotMounted`], [`ExportError::Busy`] and [`ExportError::NotFlushed`] (nothing has
/// changed then, unless it says otherwise), or the system's.
pub fn umount(dir: &Path, force: bool) -> Result<Undone, ExportError> {
    let states = StateDir::of_user();
    let entry = find(&states, dir)?;
    // Leftovers of all dead servers are removed now; this mount too, if its server is dead.
    states.clean_stale()?;
    let (Some(entry), Some(record)) = (
        &entry,
        entry.as_ref().and_then(|it| it.record.mount.as_ref()),
    ) else {
        return Err(ExportError::NotMounted(dir.to_owned()));
    };
    // The clean-up above has removed the mount, unless that failed.
    if !entry.is_alive() {
        return after_death(entry);
    }
    let found = record
        .find()
        .map_err(|e| ExportError::os("cannot read the mount table", e))?;
    let Some(found) = found else {
        return already_gone(entry, &record.dir, force, &flusher);
    };
    let mut hands = undo::Mount::new(entry, &record.dir, found, &flusher);
    let outcome = ending::undo(&mut hands, entry.record.writable, force);
    let undoing = hands.into_undoing();
    if outcome == Outcome::Busy {
        return Err(ExportError::Busy(record.dir.clone()));
    }
    undoing.result(outcome, &record.dir)
}

/// The mount is not in this namespace's table: its server is about to end, or serves other users.
fn already_gone(
    entry: &Entry,
    dir: &Path,
    force: bool,
    flusher: &Flusher<'_>,
) -> Result<Undone, ExportError> {
    let mut hands = undo::Gone(Undoing::new(entry, flusher));
    match ending::undo(&mut hands, entry.record.writable, force) {
        Outcome::StillUsed => Err(ExportError::NotMountedHere {
            dir: dir.to_owned(),
            pid: entry.record.pid,
        }),
        outcome => hands.0.result(outcome, dir),
    }
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
    Ok(match entry.record.writable {
        true => Undone::ServerDied,
        false => Undone::Completely,
    })
}

/// True when a server's process ended within `limit`. If it was killed, its directory stays for
/// [`StateDir::clean_stale`].
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

/// True where a living server of this user has mounted `image`, a path or a name, on `dir`.
///
/// # Errors
/// When the records or the table of mounts cannot be read.
pub fn is_mounted(image: &Path, dir: &Path) -> Result<bool, ExportError> {
    // The record has the path that the server made absolute before it left its folder.
    let absolute = std::path::absolute(image).unwrap_or_else(|_| image.to_owned());
    Ok(image_on(dir)?.is_some_and(|there| there == absolute || there == image))
}

/// The image (as its server received it) that a living server of this user has mounted on `dir`.
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

/// The server that mounted on `dir`; the newest, if there are several.
fn find(states: &StateDir, dir: &Path) -> Result<Option<Entry>, ExportError> {
    // A dead mount cannot be accessed, so the name is compared as written, with the symbolic links
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
    // The living one is last: a dead server's record may name the same directory.
    entries.sort_by_key(|entry| entry.alive);
    Ok(entries.pop())
}

/// Time limit for a server to notice that it is not needed any more.
pub(crate) const GRACE: Duration = Duration::from_secs(3);
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// Becomes `sidecore block mount` with these options, as [`fstab::words`] has them. Returns where
/// the image called `name` is on the folder already, for a `mount -a` that calls again. For a
/// process that is `sidecore`.
///
/// # Errors
/// The table of mounts cannot be read, or the command not be started.
pub fn become_mount(
    options: Vec<OsString>,
    (source, name): (&Path, &str),
    dir: &Path,
) -> Result<(), ExportError> {
    // The image's name is not in the table of mounts.
    if is_mounted(Path::new(name), dir)? {
        return Ok(());
    }
    let mut command = Command::new("/proc/self/exe");
    command.arg0("sidecore").args(["block", "mount"]);
    command.args(options).arg("--").args([source, dir]);
    let what = "cannot start `sidecore block mount`";
    Err(ExportError::os(what, command.exec()))
}

//! An image as a block device: ublk where the kernel has it, else a loop device on the FUSE file.
//!
//! Why here: programs that need a block device (mount(8), partition tools, virtual machines) get
//! one. [`serve`] runs in the server's process, [`detach`] in any other.
//!
//! Must stay true: a device in use is not removed without `force`.
//! Callable from any thread that does not serve reads; both block.

use super::fuse::FuseOptions;
use super::loopdev;
use super::mount::{
    GRACE, Target, Undoing, Undone, above, after_death, ending, flusher, gone_within, undo,
};
use super::state::{Entry, StateDir, table};
use super::ublk;
use super::{ExportError, Ready};
use sidecore_format::source::BlockSource;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Serves `source` as a block device until it is detached; see [`super::mount::serve`].
///
/// # Errors
/// [`ExportError`]; nothing is left then.
pub fn serve(
    source: Arc<dyn BlockSource>,
    image: &Path,
    options: FuseOptions,
    ready: impl FnOnce(&Ready) -> io::Result<()> + Send,
) -> Result<(), ExportError> {
    match ublk::available() {
        // ublk queues answer reads only.
        Ok(()) if source.writes().is_none() => {
            let (read_ahead_bytes, sector_bytes) = (options.read_ahead_bytes, options.sector_bytes);
            ublk::serve(source, image, read_ahead_bytes, sector_bytes, ready)
        }
        other => {
            if let Err(reason) = other {
                tracing::debug!("no ublk: {reason}");
            }
            super::mount::serve(source, image, &Target::Device, options, ready)
        }
    }
}

/// Has the kernel take the present size of a source that has grown, of which this process serves
/// `place`: a device that [`serve`] made, or a directory on which one is mounted. The file system
/// there keeps its size. Does nothing where there is no device. Blocks on this process's own
/// server: call it on a thread that serves no reads.
///
/// # Errors
/// [`ExportError::Loop`], or the mount table's.
pub fn take_size(place: &Path) -> Result<(), ExportError> {
    let number_of = |path: &Path| {
        let number = path.to_str()?.strip_prefix("/dev/loop")?;
        number.parse::<u32>().ok()
    };
    let number = match number_of(place) {
        Some(number) => Some(number),
        None => {
            let here = table::at(place);
            let here = here.map_err(|e| ExportError::os("cannot read the mount table", e))?;
            here.and_then(|mount| number_of(Path::new(&mount.source)))
        }
    };
    match number {
        Some(number) => loopdev::take_size(number).map_err(ExportError::Loop),
        None => Ok(()),
    }
}

/// Removes a device that [`serve`] made. With `force`, users of the device do not prevent it: they
/// get errors if it is read-only, and keep using it if it is writable. A process of its own
/// flushes written data before and after: call it in the program `sidecore`.
///
/// # Errors
/// [`ExportError::NotAttached`], [`ExportError::DeviceBusy`], [`ExportError::NotFlushed`] (nothing
/// has changed then), or the system's.
pub fn detach(device: &Path, force: bool) -> Result<Undone, ExportError> {
    let states = StateDir::of_user();
    let path = device.canonicalize().unwrap_or_else(|_| device.to_owned());
    if let Some(dev_id) = ublk::dev_id_of(&path) {
        return detach_ublk(&states, dev_id, path, force);
    }
    let mut entries = states.entries()?;
    // Looked up before the clean-up, which removes the records of dead servers.
    entries.retain(|entry| entry.record.device.as_ref() == Some(&path));
    entries.sort_by_key(|entry| entry.alive);
    let Some(entry) = entries.pop() else {
        states.clean_stale()?;
        return Err(ExportError::NotAttached(path));
    };
    // Leftovers of all dead servers are removed now; this device too, if its server is dead.
    states.clean_stale()?;
    if !entry.is_alive() {
        return after_death(&entry);
    }
    let mounts = mounts_here(&entry)?;
    if !force {
        refuse_if_used(&entry, &path, &mounts)?;
    }
    let mut hands = undo::Device {
        undoing: Undoing::new(&entry, &flusher),
        number: entry.record.loop_number.unwrap_or_default(),
        mounts,
        error: None,
    };
    let outcome = ending::undo(&mut hands, entry.record.writable, force);
    match hands.error {
        Some(error) => Err(ExportError::Loop(error)),
        None => hands.undoing.result(outcome, &path),
    }
}

/// Removes a ublk device, even if its server died.
fn detach_ublk(
    states: &StateDir,
    dev_id: u32,
    path: PathBuf,
    force: bool,
) -> Result<Undone, ExportError> {
    states.clean_stale()?;
    if !ublk::attached().iter().any(|it| it.dev_id == dev_id) {
        return Err(ExportError::NotAttached(path));
    }
    match ublk::stop(dev_id, force) {
        // Its server may just have removed it.
        Ok(()) | Err(ublk::Error::NoSuchDevice { .. }) => {}
        Err(ublk::Error::Busy { .. }) => {
            let device = path.display().to_string();
            return Err(ExportError::DeviceBusy {
                next: format!("run `umount {device}` first"),
                by: "mounted, or below another device".into(),
                device,
            });
        }
        Err(error) => return Err(error.into()),
    }
    let server = states
        .entries()?
        .into_iter()
        .find(|entry| entry.alive && entry.record.device.as_ref() == Some(&path));
    // The device goes before the process: its end is what callers may rely on.
    if let Some(entry) = server
        && !gone_within(&entry, GRACE)
    {
        return Err(ExportError::Stuck(entry.record.pid));
    }
    states.clean_stale()?;
    Ok(Undone::Completely)
}

/// Directories on which a device or its partitions are mounted in this namespace.
fn mounts_here(entry: &Entry) -> Result<Vec<PathBuf>, ExportError> {
    let mounts = table::read().map_err(|e| ExportError::os("cannot read the mount table", e))?;
    let mounts = above::mounts_on(&entry.record, mounts).into_iter();
    Ok(mounts.map(|mount| mount.dir).collect())
}

/// A mounted device, or one with mounted partitions, is in use. So is an open one, but only the
/// driver knows that: it is then removed when it is closed.
fn refuse_if_used(entry: &Entry, path: &Path, mounts: &[PathBuf]) -> Result<(), ExportError> {
    let device = path.display().to_string();
    if let Some(dir) = mounts.first() {
        return Err(ExportError::DeviceBusy {
            device,
            by: format!("mounted on {}", dir.display()),
            next: format!("run `umount {}` first", dir.display()),
        });
    }
    // Device mapper and md hold the device without a mount.
    if let Some(holder) = entry.record.loop_number.and_then(above::holder) {
        return Err(ExportError::DeviceBusy {
            device,
            by: format!("/dev/{holder} is built on it"),
            next: format!("take /dev/{holder} down first"),
        });
    }
    Ok(())
}

//! An image as a block device: ublk where the kernel has it, else a loop device on the FUSE file.
//!
//! Why here: programs that want a device (mount(8), partition tools, virtual machines) get one.
//! [`serve`] runs in the server's process, [`detach`] in any other.
//!
//! Must stay true: a device that is in use is not taken away unasked.
//! Callable from any thread that does not serve reads; both block.

use super::fuse::FuseOptions;
use super::loopdev;
use super::mount::{GRACE, Target, Undone, after_death, finish, gone_within};
use super::state::{Entry, StateDir, table};
use super::ublk;
use super::{ExportError, Ready};
use crate::source::BlockSource;
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
    ready: impl FnOnce(&Ready) -> io::Result<()>,
) -> Result<(), ExportError> {
    match ublk::available() {
        // Its queues answer reads alone.
        Ok(()) if source.writes().is_none() => {
            ublk::serve(source, image, options.read_ahead_bytes, ready)
        }
        other => {
            if let Err(reason) = other {
                tracing::debug!("no ublk: {reason}");
            }
            super::mount::serve(source, image, &Target::Device, options, ready)
        }
    }
}

/// Takes a device away that [`serve`] made. With `force`, whoever uses it gets errors instead of a
/// refusal here.
///
/// # Errors
/// [`ExportError::NotAttached`], [`ExportError::DeviceBusy`] (nothing has changed then), or the
/// system's.
pub fn detach(device: &Path, force: bool) -> Result<Undone, ExportError> {
    let states = StateDir::of_user();
    let path = device.canonicalize().unwrap_or_else(|_| device.to_owned());
    if let Some(dev_id) = ublk::dev_id_of(&path) {
        return detach_ublk(&states, dev_id, path, force);
    }
    let mut entries = states.entries()?;
    entries.retain(|entry| entry.record.device.as_ref() == Some(&path));
    entries.sort_by_key(|entry| entry.alive);
    let Some(entry) = entries.pop() else {
        states.clean_stale()?;
        return Err(ExportError::NotAttached(path));
    };
    // Whatever dead servers have left goes now; this device too, if its server is dead.
    states.clean_stale()?;
    if !entry.is_alive() {
        return after_death(&entry);
    }
    if !force {
        refuse_if_used(&entry, &path)?;
    }
    if let Some(number) = entry.record.loop_number
        && loopdev::is_on(number, &entry.record.file_name)
    {
        loopdev::clear(number).map_err(ExportError::Loop)?;
        // The driver keeps an open device until it is closed.
        if !force && !gone_within(&entry, GRACE) {
            return Ok(Undone::StillUsed(path));
        }
    }
    finish(&entry)
}

/// Takes a ublk device away, also one whose server died.
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
        // Its server may just have taken it away by itself.
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
    if let Some(entry) = server
        && !gone_within(&entry, GRACE)
    {
        return Err(ExportError::Stuck(entry.record.pid));
    }
    states.clean_stale()?;
    Ok(Undone::Completely)
}

/// A mounted device, or one with mounted partitions, is in use. So is an open one, but only the
/// driver knows that: it then goes when it is closed.
fn refuse_if_used(entry: &Entry, path: &Path) -> Result<(), ExportError> {
    let Some(number) = entry.record.loop_number else {
        return Ok(());
    };
    let device = path.display().to_string();
    let partition = format!("{device}p");
    let mounts = table::read().map_err(|e| ExportError::os("cannot read the mount table", e))?;
    let used = mounts.into_iter().find(|mount| {
        let source = mount.source.to_string_lossy();
        source == *device || source.starts_with(&partition)
    });
    if let Some(mount) = used {
        return Err(ExportError::DeviceBusy {
            device,
            by: format!("mounted on {}", mount.dir.display()),
            next: format!("run `umount {}` first", mount.dir.display()),
        });
    }
    let holders = std::fs::read_dir(format!("/sys/block/loop{number}/holders"));
    if let Some(holder) = holders.ok().and_then(|mut list| list.next()?.ok()) {
        let name = holder.file_name().to_string_lossy().into_owned();
        return Err(ExportError::DeviceBusy {
            device,
            by: format!("/dev/{name} is built on it"),
            next: format!("take /dev/{name} down first"),
        });
    }
    Ok(())
}

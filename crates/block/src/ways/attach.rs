//! An image as a block device: ublk where the kernel has it, else a loop device on the FUSE file.
//!
//! Why here: programs that want a device (mount(8), partition tools, virtual machines) get one.
//! [`serve`] runs in the server's process, [`detach`] in any other.
//!
//! Must stay true: a device that is in use is not taken away unasked.
//! Callable from any thread that does not serve reads; both block.

use super::fuse::FuseOptions;
use super::loopdev;
use super::mount::{
    GRACE, Ready, Target, Undone, WayError, absolute, after_death, finish, gone_within, on_signals,
};
use super::state::{Entry, Record, StateDir, table};
use super::ublk;
use crate::source::BlockSource;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// Serves `source` as a block device until it is detached; see [`super::mount::serve`].
///
/// # Errors
/// [`WayError`]; nothing is left then.
pub fn serve(
    source: Arc<dyn BlockSource>,
    image: &Path,
    options: FuseOptions,
    ready: impl FnOnce(&Ready) -> io::Result<()>,
) -> Result<(), WayError> {
    match ublk::available() {
        Ok(()) => serve_ublk(source, image, &options, ready),
        Err(reason) => {
            tracing::info!("no ublk: {reason}");
            super::mount::serve(source, image, &Target::Device, options, ready)
        }
    }
}

/// Serves through ublk. A server that was killed leaves its device waiting, so that the next
/// `attach` of the same image goes on where it ended; only `detach` takes such a device away.
fn serve_ublk(
    source: Arc<dyn BlockSource>,
    image: &Path,
    options: &FuseOptions,
    ready: impl FnOnce(&Ready) -> io::Result<()>,
) -> Result<(), WayError> {
    let states = StateDir::of_user();
    states.clean_stale()?;
    let mut record = Record::new(absolute(image));
    let claim = states.claim(&record)?;
    let result = (|| {
        let options = ublk::Options {
            read_ahead_kib: options.read_ahead_bytes / 1024,
            image: record.image.clone(),
            ..ublk::Options::default()
        };
        let server = ublk::start_or_recover(source, &options)?;
        let (id, stopper) = (server.dev_id(), server.stopper());
        let mut asked = false;
        on_signals(move || {
            // The second time, whoever uses it gets errors.
            let stopped = if asked {
                stopper.stop()
            } else {
                ublk::stop(id, false)
            };
            asked = true;
            if let Err(error) = stopped {
                tracing::warn!("{error}; a second signal takes it away");
            }
        })?;
        let path = server.device_path().to_owned();
        record.device = Some(path.clone());
        claim.write(&record)?;
        ready(&Ready {
            place: path,
            way: "ublk".into(),
            state: claim.path().to_owned(),
            pid: record.pid,
        })
        .map_err(|e| WayError::os("the command that started this server is gone", e))?;
        Ok(server.run()?)
    })();
    claim.release();
    result
}

/// Takes a device away that [`serve`] made. With `force`, whoever uses it gets errors instead of a
/// refusal here.
///
/// # Errors
/// [`WayError::NotAttached`], [`WayError::DeviceBusy`] (nothing has changed then), or the system's.
pub fn detach(device: &Path, force: bool) -> Result<Undone, WayError> {
    let path = device.canonicalize().unwrap_or_else(|_| device.to_owned());
    match ublk::dev_id_of(&path) {
        Some(id) => detach_ublk(id, &path, force),
        None => detach_loop(&path, force),
    }
}

fn detach_ublk(id: u32, path: &Path, force: bool) -> Result<Undone, WayError> {
    if !ublk::attached().iter().any(|device| device.dev_id == id) {
        return Err(WayError::NotAttached(path.to_owned()));
    }
    ublk::stop(id, force)?;
    let states = StateDir::of_user();
    if let Some(entry) = find(&states, path)? {
        gone_within(&entry, GRACE);
    }
    states.clean_stale()?;
    Ok(Undone::Completely)
}

fn detach_loop(path: &Path, force: bool) -> Result<Undone, WayError> {
    let states = StateDir::of_user();
    let Some(entry) = find(&states, path)? else {
        states.clean_stale()?;
        return Err(WayError::NotAttached(path.to_owned()));
    };
    if !force {
        refuse_if_used(&entry, path)?;
    }
    states.clean_stale()?;
    if !entry.is_alive() {
        return after_death(&entry);
    }
    if let Some(number) = entry.record.loop_number
        && loopdev::is_on(number, &entry.record.file_name)
    {
        loopdev::clear(number).map_err(WayError::Loop)?;
        // The driver keeps an open device until it is closed.
        if !force && !gone_within(&entry, GRACE) {
            return Ok(Undone::StillUsed(path.to_owned()));
        }
    }
    finish(&entry)
}

/// The server of a device; the living one, if there was one before it.
fn find(states: &StateDir, device: &Path) -> Result<Option<Entry>, WayError> {
    let mut entries = states.entries()?;
    entries.retain(|entry| entry.record.device.as_deref() == Some(device));
    entries.sort_by_key(|entry| entry.alive);
    Ok(entries.pop())
}

/// A mounted device, or one with mounted partitions, is in use. So is an open one, but only the
/// driver knows that: it then goes when it is closed.
fn refuse_if_used(entry: &Entry, path: &Path) -> Result<(), WayError> {
    let Some(number) = entry.record.loop_number else {
        return Ok(());
    };
    let device = path.display().to_string();
    let partition = format!("{device}p");
    let mounts = table::read().map_err(|e| WayError::os("cannot read the mount table", e))?;
    let used = mounts.into_iter().find(|mount| {
        let source = mount.source.to_string_lossy();
        source == *device || source.starts_with(&partition)
    });
    if let Some(mount) = used {
        return Err(WayError::DeviceBusy {
            device,
            by: format!("mounted on {}", mount.dir.display()),
            next: format!("run `umount {}` first", mount.dir.display()),
        });
    }
    let holders = std::fs::read_dir(format!("/sys/block/loop{number}/holders"));
    if let Some(holder) = holders.ok().and_then(|mut list| list.next()?.ok()) {
        let name = holder.file_name().to_string_lossy().into_owned();
        return Err(WayError::DeviceBusy {
            device,
            by: format!("/dev/{name} is built on it"),
            next: format!("take /dev/{name} down first"),
        });
    }
    Ok(())
}

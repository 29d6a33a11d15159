//! The set-up of a mount or device: the FUSE file first, then the users' view of it.
//!
//! Why here: each kind of target has steps of its own between the claim of a record and the point
//! from which the server only waits.
//! Must stay true: each step is recorded before other processes can see it, so that a later
//! command can undo what a killed server has left; a mount goes on with the contents that it began
//! with, or ends.

use super::{Server, Target, abort, away, check_free, directory};
use crate::fuse::{self, Device, FuseOptions, FuseServer, Keeping, MountPoint, Tree};
use crate::keeper::{Estate, Kept};
use crate::loopdev::{self, Lifetime, LoopDevice};
use crate::mount::ending::Event;
use crate::mount::{Content, FileSystem, detect, inner};
use crate::state::{MountRecord, StateDir};
use crate::{ExportError, Ready};
use rustix::fs::{AtFlags, StatxFlags};
use rustix::mount::MoveMountFlags;
use sidecore_format::source::BlockSource;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

impl Server {
    pub(super) fn set_up(
        &mut self,
        target: &Target,
        mut options: FuseOptions,
        events: SyncSender<Event>,
    ) -> Result<Ready, ExportError> {
        options.file_name = self.record.file_name.clone().into();
        options.mount_source = format!("sidecore-{}", self.record.pid);
        // A queue's only thread would wait for the network, and with it all other requests.
        options.queued &= !self.source.waits_for_a_network();
        let usual = options.read_ahead_bytes == fuse::READ_AHEAD_BYTES_DEFAULT;
        if usual && matches!(target, Target::File { .. }) && self.source.waits_for_a_network() {
            // A reader of such a file is visible only through its read-ahead, of which two windows
            // are in flight. With smaller windows the link would be full some round trips later.
            options.read_ahead_bytes = FAR_FILE_READ_AHEAD_BYTES;
        }
        if !matches!(target, Target::Mount { .. }) {
            options.keeping = Keeping::No;
        }
        let read_ahead_bytes = options.read_ahead_bytes;
        let mut place = MountPoint::Hidden;
        let mut content = None;
        match target {
            Target::Mount { file_systems, .. } => {
                content = Some(self.allowed_file_system(file_systems)?);
            }
            Target::Device => {}
            Target::File { dir: given } | Target::Tree { dir: given } => {
                let dir = directory(given)?;
                self.record.mount = Some(MountRecord {
                    dir,
                    source: options.mount_source.clone(),
                    id: None,
                    device: None,
                });
                // Before the mount exists: a server that dies in between leaves a record to undo.
                self.claim.write(&self.record)?;
                place = MountPoint::At(given);
            }
        }
        if content == Some(FileSystem::Erofs) {
            // erofs refuses a file of a file system that is stacked on another, which passthrough
            // makes it.
            options.passthrough = false;
        }
        if !matches!(target, Target::File { .. } | Target::Tree { .. }) {
            // A loop device consists of whole sectors; only one that is attached has large ones.
            if !matches!(target, Target::Device) {
                options.sector_bytes = loopdev::SECTOR_BYTES;
            }
            options.pad_to_bytes = options.sector_bytes.into();
        }
        let on_end = move || {
            let _ = events.send(Event::Released);
        };
        // A file system that is mounted on the file keeps pages of its own.
        options.drop_behind = content.is_some();
        let source = Arc::clone(&self.source);
        let mut fuse = match target {
            Target::Tree { dir } => {
                let tree = open_tree(source)?;
                options.check_permissions = false;
                FuseServer::start_tree(tree, &options, dir, on_end)?
            }
            _ => FuseServer::start(source, &options, place, on_end)?,
        };
        let kept = fuse.take_kept();
        let tuning = (read_ahead_bytes, options.sector_bytes);
        let put = away(|| self.put_in_place(&fuse, target, content, tuning));
        let (place, way) = match put {
            Ok(put) => put,
            Err(error) => {
                fuse.take_away();
                return Err(error);
            }
        };
        // From here on only the new mount or device holds the FUSE file.
        drop(fuse.release());
        if let Some(device) = kept {
            let begun = Estate::new(device, &self.claim).and_then(Kept::begin);
            let failed = |error: &std::io::Error| {
                tracing::warn!("no keeper: a kill of this server ends its mount: {error}");
            };
            self.kept = begun.inspect_err(failed).ok();
        }
        Ok(Ready {
            place,
            way,
            state: self.claim.path().to_owned(),
            pid: self.record.pid,
        })
    }

    /// Goes on with the mount of a server that is gone, which its keeper hands over.
    pub(super) fn adopt(
        source: Arc<dyn BlockSource>,
        states: StateDir,
        mut options: FuseOptions,
        events: SyncSender<Event>,
    ) -> Result<(Self, Ready), ExportError> {
        let (kept, device, claim, record) =
            Kept::take_over().map_err(|e| ExportError::os("cannot take over the mount", e))?;
        if let Err(error) = check_same(record.identity.as_deref(), source.identity().as_deref()) {
            if matches!(error, ExportError::OtherImage) {
                // The kernel has pages of the first image: with another one below them, readers
                // would find a mixture. They get errors, and no further server is started.
                abort(&record);
                kept.farewell();
            }
            return Err(error);
        }
        options.file_name = record.file_name.clone().into();
        options.passthrough = false;
        options.pad_to_bytes = u64::from(loopdev::SECTOR_BYTES);
        options.drop_behind = true;
        let on_end = move || {
            let _ = events.send(Event::Released);
        };
        claim.write(&record)?;
        FuseServer::adopt(Arc::clone(&source), &options, device, on_end)?;
        let place = record.mount.as_ref().map(|it| it.dir.clone());
        let ready = Ready {
            place: place.unwrap_or_default(),
            way: "after another server".into(),
            state: claim.path().to_owned(),
            pid: record.pid,
        };
        let server = Self {
            source,
            claim,
            record,
            states,
            inner: None,
            kept: Some(kept),
        };
        Ok((server, ready))
    }

    /// The file system inside, if the kernel may mount it.
    fn allowed_file_system(&self, allowed: &[String]) -> Result<FileSystem, ExportError> {
        let file_system = match detect(&*self.source)? {
            Content::FileSystem(file_system) => file_system,
            Content::PartitionTable => return Err(ExportError::Partitions),
            Content::Unknown => return Err(ExportError::NoFileSystem),
        };
        let name = file_system.name();
        // The kernel's parsers of file systems are not made for hostile images: the administrator
        // chooses which of them an image may reach.
        if !allowed.iter().any(|allowed| allowed == name) {
            return Err(ExportError::NotAllowed(name));
        }
        if self.source.writes().is_some() && !file_system.is_writable() {
            return Err(ExportError::NotWritable(name));
        }
        Ok(file_system)
    }

    /// Sets up the users' view of the FUSE file; returns it, and the way it was made. Call it apart
    /// from the FUSE device: it waits for the session.
    fn put_in_place(
        &mut self,
        fuse: &FuseServer,
        target: &Target,
        content: Option<FileSystem>,
        (read_ahead_bytes, sector_bytes): (u32, u32),
    ) -> Result<(PathBuf, String), ExportError> {
        // The connection's number, with which another process can abort it.
        self.record.fuse = Some(fuse.device());
        self.claim.write(&self.record)?;
        match (target, content) {
            (Target::Mount { dir, trusted, .. }, Some(file_system)) => {
                self.mount(fuse, file_system, dir, *trusted, read_ahead_bytes)
            }
            (Target::Tree { dir }, _) => {
                Ok((directory(dir)?, "erofs, read by this program".into()))
            }
            (Target::File { dir }, _) => {
                Ok((dir.join("image"), "the contents as one FUSE file".into()))
            }
            _ => self.attach(fuse, read_ahead_bytes, sector_bytes),
        }
    }

    /// Mounts the file system inside: directly from the FUSE file where the kernel can, else on a
    /// loop device.
    fn mount(
        &mut self,
        fuse: &FuseServer,
        file_system: FileSystem,
        dir: &Path,
        trusted: bool,
        read_ahead_bytes: u32,
    ) -> Result<(PathBuf, String), ExportError> {
        let dir = directory(dir)?;
        let image = fuse
            .open_image()
            .map_err(|e| ExportError::os("cannot open the FUSE file", e))?;
        // One layer less; where the kernel refuses it, a loop device works for every file system.
        let mut direct = None;
        if file_system == FileSystem::Erofs {
            direct = self.mount_direct(file_system, &image, trusted)?;
        }
        // Alive until the mount holds the device.
        let mut _loop_device = None;
        let (mount, source, way) = match direct {
            Some((mount, source)) => {
                let way = format!("{}, straight from the FUSE file", file_system.name());
                (mount, source, way)
            }
            None => {
                let writable = self.source.writes().is_some();
                let (lifetime, sector_bytes) = (Lifetime::UntilUnused, loopdev::SECTOR_BYTES);
                let device =
                    LoopDevice::connect(&image, lifetime, writable, writable, sector_bytes)
                        .map_err(ExportError::Loop)?;
                self.record.loop_number = Some(device.number());
                self.claim.write(&self.record)?;
                let source = loopdev::path(device.number()).display().to_string();
                set_loop_read_ahead(device.number(), read_ahead_bytes);
                _loop_device = Some(device);
                let mount = inner::mount_nowhere(file_system, &source, trusted, writable)?;
                self.inner = Some(file_system);
                let way = format!("{} on {source} on the FUSE file", file_system.name());
                (mount, source, way)
            }
        };
        self.place(&mount, dir.clone(), source)?;
        Ok((dir, way))
    }

    /// Mounts the FUSE file itself, if the kernel can (erofs since 6.12); returns the mount and its
    /// source's name.
    fn mount_direct(
        &self,
        file_system: FileSystem,
        image: &std::fs::File,
        trusted: bool,
    ) -> Result<Option<(OwnedFd, String)>, ExportError> {
        // The file has no path; a link to our descriptor, in this thread's table, gives it one
        // during the call.
        let link = self.claim.path().join(&self.record.file_name);
        let target = format!("/proc/thread-self/fd/{}", image.as_raw_fd());
        std::os::unix::fs::symlink(target, &link)
            .map_err(|error| ExportError::state(self.claim.path(), error))?;
        let source = link.to_string_lossy().into_owned();
        let mount = inner::mount_nowhere(file_system, &source, trusted, false);
        let _ = std::fs::remove_file(&link);
        match mount {
            Ok(mount) => Ok(Some((mount, source))),
            Err(ExportError::Inner {
                source, messages, ..
            }) => {
                tracing::debug!(
                    "no {} without a loop device: {source}{messages}",
                    file_system.name()
                );
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Attaches a detached mount to a directory, recorded first.
    pub(super) fn place(
        &mut self,
        mount: &OwnedFd,
        dir: PathBuf,
        source: String,
    ) -> Result<(), ExportError> {
        let failed = |e: rustix::io::Errno| ExportError::os("cannot look at the new mount", e);
        let flags = AtFlags::EMPTY_PATH;
        let stat = rustix::fs::statx(mount, "", flags, StatxFlags::MNT_ID).map_err(failed)?;
        // Two servers may have passed the check; only one at a time continues to the mount.
        let _all = self.states.lock_all()?;
        check_free(&dir)?;
        self.record.mount = Some(MountRecord {
            dir: dir.clone(),
            source,
            id: Some(stat.stx_mnt_id),
            device: Some(Device {
                major: stat.stx_dev_major,
                minor: stat.stx_dev_minor,
            }),
        });
        self.claim.write(&self.record)?;
        let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
        rustix::mount::move_mount(mount.as_fd(), "", rustix::fs::CWD, &dir, flags).map_err(|e| {
            ExportError::Directory {
                dir,
                source: e.into(),
            }
        })
    }

    /// Makes a block device.
    fn attach(
        &mut self,
        fuse: &FuseServer,
        read_ahead_bytes: u32,
        sector_bytes: u32,
    ) -> Result<(PathBuf, String), ExportError> {
        let image = fuse
            .open_image()
            .map_err(|e| ExportError::os("cannot open the FUSE file", e))?;
        let writable = self.source.writes().is_some();
        // Stays until it is cleared: no mount holds it, and programs come and go.
        let lifetime = Lifetime::UntilCleared;
        let device = LoopDevice::connect(&image, lifetime, true, writable, sector_bytes)
            .map_err(ExportError::Loop)?;
        let path = loopdev::path(device.number());
        set_loop_read_ahead(device.number(), read_ahead_bytes);
        self.record.loop_number = Some(device.number());
        self.record.device = Some(path.clone());
        if let Err(error) = self.claim.write(&self.record) {
            let _ = loopdev::clear(device.number());
            return Err(error);
        }
        Ok((path, "loop device on the FUSE file".into()))
    }
}

/// Checks that an image is the one that a mount began with; records of earlier versions do not say.
fn check_same(recorded: Option<&str>, found: Option<&str>) -> Result<(), ExportError> {
    match (recorded, found) {
        (None, _) => Ok(()),
        (Some(recorded), Some(found)) if recorded == found => Ok(()),
        (Some(_), Some(_)) => Err(ExportError::OtherImage),
        // It may be read the next time.
        (Some(_), None) => Err(ExportError::Unidentified),
    }
}

/// Opens the file system inside for [`Target::Tree`].
fn open_tree(source: Arc<dyn BlockSource>) -> Result<Tree, ExportError> {
    match detect(&*source)? {
        Content::FileSystem(FileSystem::Erofs) => Ok(Tree::open(source)?),
        Content::FileSystem(other) => Err(ExportError::OnlyErofs(other.name())),
        Content::PartitionTable => Err(ExportError::Partitions),
        Content::Unknown => Err(ExportError::NoFileSystem),
    }
}

fn set_loop_read_ahead(number: u32, bytes: u32) {
    let path = format!("/sys/block/loop{number}/queue/read_ahead_kb");
    if let Err(error) = std::fs::write(&path, (bytes / 1024).to_string()) {
        tracing::info!("read-ahead stays at the kernel's default: cannot write {path}: {error}");
    }
}

/// Read-ahead in the one file of a remote image, by default: half of the bandwidth-delay product of
/// a link of 1 Gb/s and 200 ms. Trees keep the general default: for files shorter than a window the
/// rest of it would be fetched in vain.
const FAR_FILE_READ_AHEAD_BYTES: u32 = 16 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_goes_on_with_its_own_image_alone() {
        check_same(Some("1 a"), Some("1 a")).unwrap();
        // A record of an earlier version.
        check_same(None, Some("1 a")).unwrap();
        let refused = check_same(Some("1 a"), Some("1 b")).unwrap_err();
        assert!(matches!(refused, ExportError::OtherImage), "{refused}");
        let refused = check_same(Some("1 a"), None).unwrap_err();
        assert!(matches!(refused, ExportError::Unidentified), "{refused}");
    }
}

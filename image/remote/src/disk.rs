//! Disk cache of frames: content-addressed, shared by processes, of bounded size.
//!
//! Each frame is one file. If the image has checksums of compressed frames, the file's name is that
//! checksum and the compressed length, so that images share common frames. Otherwise the name is
//! made of the image and the frame's place in it; where nothing tells the image's versions apart,
//! such frames are not cached. The file ends with a checksum of its contents.
//!
//! Must stay true: the bytes that [`Disk::get`] returns have passed their checksum, whatever a
//! crash, another process or the disk did to the file. A file gets its name only when it is
//! complete (written under a temporary name, then renamed). No fault of the cache fails a read,
//! since the bytes can be fetched over the network; a fault is logged once. The files take at most
//! the limit, plus one part in [`SLACK`] of it for each process that writes.
//! The folder must belong to this user or root, and other users must not be able to write to it.
//! Otherwise it is not used, with a warning: a user that can write there could choose the bytes
//! that are read. It is accessed through its descriptor, and no symbolic link in it is followed.
//! The checksums do not protect against an author who makes colliding images on purpose: share one
//! cache only among images whose authors are equally trusted.

use crate::origin::Identity;
use parking_lot::Mutex;
use rustix::fs::{FileType, FlockOperation, OFlags};
use sidecore_bare::width::{ToU64, ToUsize};
use sidecore_block::format::{Frame, FrameCheck};
use sidecore_sys::folder::{Folder, FolderError};
use std::ffi::{OsStr, OsString};
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// A cache directory, for the frames of one image.
pub(crate) struct Disk {
    folder: Folder,
    /// Files that are not complete yet.
    temporaries: Folder,
    limit_bytes: u64,
    /// Hash of the image's name, size and validator; `None` without one.
    image: Option<u64>,
    /// Bytes written since the files were last counted.
    written: AtomicU64,
    /// Held by the thread that counts the files.
    counting: Mutex<()>,
    /// True once the user was warned that frames are not cached.
    told: AtomicBool,
}

impl Disk {
    /// Opens or creates the cache in `directory`, for the image `name`; `None`, with a warning, if
    /// other users may change its files.
    ///
    /// # Errors
    /// The directory cannot be created or written to.
    pub(crate) fn open(
        directory: &Path,
        limit_bytes: u64,
        name: &str,
        identity: &Identity,
    ) -> io::Result<Option<Self>> {
        let (folder, temporaries) = match Self::folders(directory) {
            Ok(folders) => folders,
            // For example root's folder: it exists, but this user has no access.
            Err(FolderError::Call { source, .. })
                if source.kind() == io::ErrorKind::PermissionDenied && directory.is_dir() =>
            {
                warn_of(directory, &source);
                return Ok(None);
            }
            Err(FolderError::Call { source, .. }) => return Err(source),
            Err(refused) => {
                tracing::warn!(
                    "--cache is not used: {refused}. Every frame comes over the network each time"
                );
                return Ok(None);
            }
        };
        // Frames without checksums must not be found again after the image has changed.
        let image = identity.validator.as_deref().map(|validator| {
            let text = format!("{name}\n{}\n{validator}", identity.size_bytes);
            xxh3_64(text.as_bytes())
        });
        let disk = Self {
            folder,
            temporaries,
            limit_bytes,
            image,
            // An earlier process may have left it full, so the first write counts the files.
            written: AtomicU64::new(u64::MAX / 2),
            counting: Mutex::new(()),
            told: AtomicBool::new(false),
        };
        // Tested now and not at the first frame: the user that starts a server still reads its
        // output.
        if let Err(error) = disk.probe() {
            disk.tell(&error);
        }
        Ok(Some(disk))
    }

    /// The folder, and the one for incomplete files; all path components are created and checked.
    fn folders(directory: &Path) -> Result<(Folder, Folder), FolderError> {
        let folder = Folder::create_own(directory, 0o700)?;
        for part in 0..PARTS {
            folder.create_inside(&part_name(part), 0o700)?;
        }
        let temporaries = folder.create_inside(OsStr::new(TEMPORARY), 0o700)?;
        Ok((folder, temporaries))
    }

    /// The frame's compressed bytes, if they are cached and their checksum matches.
    pub(crate) fn get(&self, frame: &Frame) -> Option<Vec<u8>> {
        let (part, name) = self.place(frame)?;
        let part = self.folder.beneath(Path::new(&part)).ok()?;
        let mut file = part.read_file(Path::new(&name)).ok()?;
        let bytes = frame.stored_bytes.to_usize();
        let mut buffer = vec![0; bytes + CHECK_BYTES];
        let whole = file.read_exact(&mut buffer).is_ok();
        let check = xxh3_64(buffer.get(..bytes)?).to_le_bytes();
        if !whole || buffer[bytes..] != check || !is_sound(frame, &buffer[..bytes]) {
            // Torn by a crash, or damaged: the next fetch of the frame writes it again.
            let _ = part.remove_file(&name);
            return None;
        }
        // The time of its last use; if the call is refused, the file is only evicted sooner.
        let _ = file.set_modified(SystemTime::now());
        buffer.truncate(bytes);
        Some(buffer)
    }

    /// Caches a frame's compressed bytes.
    pub(crate) fn put(&self, frame: &Frame, bytes: &[u8]) {
        if !is_sound(frame, bytes) {
            return;
        }
        let Some(place) = self.place(frame) else {
            return;
        };
        if let Err(error) = self.write(place, bytes) {
            self.tell(&error);
        }
        let written = self
            .written
            .fetch_add(bytes.len().to_u64(), Ordering::Relaxed);
        if written >= self.limit_bytes / SLACK {
            self.count();
        }
    }

    /// Writes a file and removes it.
    fn probe(&self) -> io::Result<()> {
        let (name, mut file) = self.temporaries.temporary(0o600)?;
        let written = file.write_all(&[0; PROBE_BYTES]);
        let _ = self.temporaries.remove_file(&name);
        written
    }

    /// Warns once that frames are not cached; otherwise every frame would repeat the warning.
    fn tell(&self, error: &io::Error) {
        if self.told.swap(true, Ordering::Relaxed) {
            return;
        }
        warn_of(self.folder.path(), error);
    }

    fn write(&self, (part, name): (OsString, OsString), bytes: &[u8]) -> io::Result<()> {
        let part = self.folder.beneath(Path::new(&part))?;
        // Renamed only when it is whole: readers of other processes see all of it or nothing.
        let (temporary, mut file) = self.temporaries.temporary(0o600)?;
        let written = file
            .write_all(bytes)
            .and_then(|()| file.write_all(&xxh3_64(bytes).to_le_bytes()))
            .and_then(|()| self.temporaries.move_to(&temporary, &part, &name));
        if written.is_err() {
            let _ = self.temporaries.remove_file(&temporary);
        }
        written
    }

    /// Names of a frame's folder and file; `None` if it cannot be cached.
    fn place(&self, frame: &Frame) -> Option<(OsString, OsString)> {
        let (kind, name) = match frame.check {
            FrameCheck::Stored(check) | FrameCheck::Sealed(check, _) => ('c', check),
            FrameCheck::Raw(_) | FrameCheck::None => (
                'i',
                xxh3_64_with_seed(&frame.offset.to_le_bytes(), self.image?),
            ),
        };
        let bytes = frame.stored_bytes;
        let file = format!("{kind}{name:016x}-{bytes:x}");
        Some((part_name(name % PARTS), file.into()))
    }

    /// Counts the files, and evicts the least recently used ones if the limit is exceeded.
    fn count(&self) {
        // Another thread or process is counting already: one is enough.
        let Some(_counting) = self.counting.try_lock() else {
            return;
        };
        self.written.store(0, Ordering::Relaxed);
        let flags = OFlags::WRONLY | OFlags::CREATE;
        let Ok(lock) = self.folder.open_file(Path::new("lock"), flags, 0o600) else {
            return;
        };
        if rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            return;
        }
        let mut files = Vec::new();
        let mut total = 0;
        for part in 0..PARTS {
            let Ok(folder) = self.folder.beneath(Path::new(&part_name(part))) else {
                continue;
            };
            for (name, bytes, used) in entries(&folder) {
                total += bytes;
                files.push((used, bytes, part, name));
            }
        }
        for (name, _, used) in entries(&self.temporaries) {
            // Left by a crash.
            if used.elapsed().is_ok_and(|age| age > TEMPORARY_AGE_MAX) {
                let _ = self.temporaries.remove_file(&name);
            }
        }
        if total <= self.limit_bytes {
            return;
        }
        // By time first: the least recently used go. Below the limit, so that counts are rare.
        files.sort_unstable();
        let goal = self.limit_bytes - self.limit_bytes / SLACK;
        for (_, bytes, part, name) in files {
            if total <= goal {
                break;
            }
            let folder = self.folder.beneath(Path::new(&part_name(part)));
            if folder.is_ok_and(|folder| folder.remove_file(&name).is_ok()) {
                total -= bytes;
            }
        }
    }
}

/// False if the bytes do not match the frame's own checksum.
pub(crate) fn is_sound(frame: &Frame, bytes: &[u8]) -> bool {
    match frame.check {
        FrameCheck::Stored(check) => xxh3_64(bytes) == check,
        FrameCheck::Sealed(_, leaf) => leaf.is_of(frame.raw_bytes, bytes),
        FrameCheck::Raw(_) | FrameCheck::None => true,
    }
}

/// Files of a folder, with sizes and times of their last use.
fn entries(folder: &Folder) -> impl Iterator<Item = (OsString, u64, SystemTime)> {
    let names = folder.names().unwrap_or_default().into_iter();
    names.filter_map(|name| {
        let stat = folder.stat_of(&name).ok()?;
        let used = u64::try_from(stat.st_mtime).ok()?;
        let used =
            SystemTime::UNIX_EPOCH + Duration::new(used, u32::try_from(stat.st_mtime_nsec).ok()?);
        let bytes = u64::try_from(stat.st_size).ok()?;
        let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        is_file.then_some((name, bytes, used))
    })
}

fn part_name(part: u64) -> OsString {
    format!("{part:02x}").into()
}

const CHECK_BYTES: usize = 8;
/// A full disk accepts no further page.
const PROBE_BYTES: usize = 4096;
const TEMPORARY: &str = "tmp";
/// Number of folders over which files are spread, so that none gets too long.
const PARTS: u64 = 256;
/// One part in this many of the limit is written between two counts, and evicted at once.
const SLACK: u64 = 16;
/// Age at which a temporary file counts as abandoned.
const TEMPORARY_AGE_MAX: Duration = Duration::from_secs(3600);

fn warn_of(directory: &Path, error: &io::Error) {
    tracing::warn!(
        "--cache keeps nothing in {} ({error}): every frame comes over the network each time; \
         free space there, or name a directory that you may write in",
        directory.display()
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use sidecore_block::codec::CodecId;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn frame(offset: u64, bytes: &[u8], checked: bool) -> Frame {
        Frame {
            offset,
            stored_bytes: bytes.len() as u32,
            raw_bytes: 4096,
            raw_offset: 0,
            number: 0,
            codec: CodecId::Zstd,
            check: match checked {
                true => FrameCheck::Stored(xxh3_64(bytes)),
                false => FrameCheck::None,
            },
        }
    }

    fn open(directory: &Path, limit: u64, name: &str) -> Disk {
        open_version(directory, limit, name, Some("1"))
    }

    fn open_version(directory: &Path, limit: u64, name: &str, version: Option<&str>) -> Disk {
        let identity = Identity {
            size_bytes: 1 << 30,
            validator: version.map(str::to_owned),
        };
        let disk = Disk::open(directory, limit, name, &identity);
        disk.unwrap().unwrap()
    }

    #[test]
    fn frames_are_shared_by_contents_and_kept_apart_without_a_checksum() {
        let directory = tempfile::tempdir().unwrap();
        let (one, other) = (
            open(directory.path(), 1 << 30, "one"),
            open(directory.path(), 1 << 30, "other"),
        );
        one.put(&frame(0, b"checked", true), b"checked");
        assert_eq!(other.get(&frame(77, b"checked", true)).unwrap(), b"checked");
        one.put(&frame(0, b"plain", false), b"plain");
        assert_eq!(one.get(&frame(0, b"plain", false)).unwrap(), b"plain");
        assert_eq!(one.get(&frame(8, b"plain", false)), None);
        assert_eq!(other.get(&frame(0, b"plain", false)), None);
        // Bytes that do not match the frame's checksum are not cached.
        one.put(&frame(0, b"right", true), b"wrong");
        assert_eq!(one.get(&frame(0, b"right", true)), None);
    }

    /// An image that was replaced by one of the same name and size.
    #[test]
    fn frames_without_a_checksum_belong_to_one_version_of_their_image() {
        let directory = tempfile::tempdir().unwrap();
        let open = |version| open_version(directory.path(), 1 << 30, "image", version);
        let (plain, checked) = (frame(0, b"plain", false), frame(8, b"checked", true));
        for version in [None, Some("1")] {
            open(version).put(&plain, b"plain");
            open(version).put(&checked, b"checked");
        }
        assert_eq!(open(Some("1")).get(&plain).unwrap(), b"plain");
        assert_eq!(open(Some("2")).get(&plain), None);
        // Nothing tells its versions apart.
        assert_eq!(open(None).get(&plain), None);
        open(None).put(&plain, b"older");
        assert_eq!(open(None).get(&plain), None);
        assert_eq!(open(None).get(&checked).unwrap(), b"checked");
    }

    /// Any byte of a file changed, and any end cut off: never the wrong bytes.
    #[test]
    fn a_damaged_file_is_no_file() {
        let directory = tempfile::tempdir().unwrap();
        let disk = open(directory.path(), 1 << 30, "image");
        for checked in [true, false] {
            let bytes: Vec<u8> = (0..50).collect();
            let frame = frame(9, &bytes, checked);
            let (part, name) = disk.place(&frame).unwrap();
            let path = directory.path().join(part).join(name);
            for at in 0..bytes.len() + CHECK_BYTES {
                disk.put(&frame, &bytes);
                let mut whole = fs::read(&path).unwrap();
                fs::write(&path, &whole[..at]).unwrap();
                assert_eq!(disk.get(&frame), None, "cut at {at}");
                assert!(!path.exists());
                whole[at] ^= 1;
                fs::write(&path, &whole).unwrap();
                assert_eq!(disk.get(&frame), None, "byte {at}");
                disk.put(&frame, &bytes);
                assert_eq!(disk.get(&frame).as_deref(), Some(&*bytes));
            }
        }
    }

    #[test]
    fn a_directory_that_takes_nothing_is_said_once() {
        let directory = tempfile::tempdir().unwrap();
        let disk = open(directory.path(), 1 << 30, "image");
        disk.put(&frame(0, b"kept", true), b"kept");
        assert!(!disk.told.load(Ordering::Relaxed));
        fs::remove_dir(directory.path().join(TEMPORARY)).unwrap();
        disk.put(&frame(0, b"lost", true), b"lost");
        assert!(disk.told.load(Ordering::Relaxed));
        assert_eq!(disk.get(&frame(0, b"lost", true)), None);
        assert_eq!(disk.get(&frame(0, b"kept", true)).unwrap(), b"kept");
    }

    /// Like a folder planted by another user, inside a folder that everybody may write to.
    #[test]
    fn a_directory_that_others_may_change_is_not_used() {
        let place = tempfile::tempdir().unwrap();
        let precious = place.path().join("precious");
        fs::write(&precious, "precious").unwrap();
        let directory = place.path().join("cache");
        fs::create_dir(&directory).unwrap();
        symlink(&precious, directory.join("lock")).unwrap();
        let open = || {
            let identity = Identity {
                size_bytes: 1 << 30,
                validator: None,
            };
            Disk::open(&directory, 1 << 20, "image", &identity).unwrap()
        };
        fs::set_permissions(&directory, PermissionsExt::from_mode(0o777)).unwrap();
        assert!(open().is_none());
        // Closed now, but a part of it is not.
        fs::set_permissions(&directory, PermissionsExt::from_mode(0o700)).unwrap();
        fs::create_dir(directory.join("2a")).unwrap();
        fs::set_permissions(directory.join("2a"), PermissionsExt::from_mode(0o777)).unwrap();
        assert!(open().is_none());
        fs::set_permissions(directory.join("2a"), PermissionsExt::from_mode(0o700)).unwrap();
        // Nor is a link in it ever followed.
        let disk = open().unwrap();
        disk.put(&frame(0, b"kept", true), b"kept");
        assert_eq!(disk.get(&frame(0, b"kept", true)).unwrap(), b"kept");
        assert_eq!(fs::read(&precious).unwrap(), b"precious");
    }

    #[test]
    fn the_files_stay_within_their_limit_and_the_last_used_stay() {
        let directory = tempfile::tempdir().unwrap();
        let limit = 64 * 1024;
        let disk = open(directory.path(), limit, "image");
        let often = frame(1, &[1; 1000], false);
        disk.put(&often, &[1; 1000]);
        for at in 0..1000 {
            disk.put(&frame(1000 + at, &[2; 1000], false), &[2; 1000]);
            assert!(disk.get(&often).is_some(), "thrown out after {at}");
            let parts = (0..PARTS).map(|part| directory.path().join(part_name(part)));
            let parts = parts.map(|part| Folder::open(&part).unwrap());
            let total: u64 = parts
                .flat_map(|it| entries(&it).collect::<Vec<_>>())
                .map(|it| it.1)
                .sum();
            assert!(
                total <= limit + limit / SLACK + 2000,
                "{total} bytes after {at}"
            );
        }
        assert_eq!(
            fs::read_dir(directory.path().join(TEMPORARY))
                .unwrap()
                .count(),
            0
        );
    }
}

//! Frames kept on disk: content-addressed, shared by processes, bounded.
//!
//! A frame is one file, named by the checksum of its compressed bytes and their number where the
//! image has such a checksum (so that images share what they have in common), and otherwise by the
//! image and the frame's place in it. A checksum of the contents ends the file.
//!
//! Must stay true: what [`Disk::get`] gives has passed its checksum, whatever a crash, another
//! process or the disk did to the file; a file has its name only when it is whole (written under
//! another one, then renamed); nothing that goes wrong here makes a read fail, for the network has
//! the bytes, too, but it is said once; the files take at most the limit and one part in [`SLACK`]
//! of it for each process that writes.
//! The checksums are no defence against whoever makes images on purpose that share them: one cache
//! is for images of makers that are trusted alike.
//! Called from: any thread.

use crate::origin::Identity;
use parking_lot::Mutex;
use rustix::fs::FlockOperation;
use sidecore_block::format::{Frame, FrameCheck};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// A cache directory, for the frames of one image.
pub(crate) struct Disk {
    directory: PathBuf,
    limit_bytes: u64,
    /// Of the image's name, size and validator.
    image: u64,
    /// Bytes written since the files were last counted.
    written: AtomicU64,
    /// Numbers temporary files.
    files: AtomicU64,
    /// Held by the thread that counts.
    counting: Mutex<()>,
    /// True once somebody was told that frames are not kept.
    told: AtomicBool,
}

impl Disk {
    /// Opens or makes the cache in `directory`, for the image `name`.
    ///
    /// # Errors
    /// The directory cannot be made or written in.
    pub(crate) fn open(
        directory: &Path,
        limit_bytes: u64,
        name: &str,
        identity: &Identity,
    ) -> io::Result<Self> {
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true).mode(0o700);
        builder.create(directory.join(TEMPORARY))?;
        for part in 0..PARTS {
            builder.create(directory.join(format!("{part:02x}")))?;
        }
        let validator = identity.validator.as_deref().unwrap_or_default();
        let text = format!("{name}\n{}\n{validator}", identity.size_bytes);
        let disk = Self {
            directory: directory.to_owned(),
            limit_bytes,
            image: xxh3_64(text.as_bytes()),
            // Who came before may have left it full.
            written: AtomicU64::new(u64::MAX / 2),
            files: AtomicU64::new(0),
            counting: Mutex::new(()),
            told: AtomicBool::new(false),
        };
        // Now, and not at the first frame: whoever starts a server still listens.
        if let Err(error) = disk.probe() {
            disk.tell(&error);
        }
        Ok(disk)
    }

    /// The frame's compressed bytes, if they are here and sound.
    pub(crate) fn get(&self, frame: &Frame) -> Option<Vec<u8>> {
        let path = self.path(frame);
        let mut file = File::open(&path).ok()?;
        let bytes = frame.stored_bytes as usize;
        let mut buffer = vec![0; bytes + CHECK_BYTES];
        let whole = file.read_exact(&mut buffer).is_ok();
        let check = xxh3_64(buffer.get(..bytes)?).to_le_bytes();
        if !whole || buffer[bytes..] != check || !is_sound(frame, &buffer[..bytes]) {
            // Torn by a crash, or damaged: the next one who has the bytes writes it again.
            let _ = fs::remove_file(&path);
            return None;
        }
        // The time of its last use; refused, it is only thrown out sooner.
        let _ = file.set_modified(SystemTime::now());
        buffer.truncate(bytes);
        Some(buffer)
    }

    /// Keeps a frame's compressed bytes.
    pub(crate) fn put(&self, frame: &Frame, bytes: &[u8]) {
        if !is_sound(frame, bytes) {
            return;
        }
        if let Err(error) = self.write(&self.path(frame), bytes) {
            self.tell(&error);
        }
        let written = self
            .written
            .fetch_add(bytes.len() as u64, Ordering::Relaxed);
        if written >= self.limit_bytes / SLACK {
            self.count();
        }
    }

    /// Writes a file and removes it.
    fn probe(&self) -> io::Result<()> {
        let path = self.temporary();
        let written = File::create(&path).and_then(|mut file| file.write_all(&[0; PROBE_BYTES]));
        let _ = fs::remove_file(&path);
        written
    }

    /// Says that frames are not kept, once: every frame would say the same.
    fn tell(&self, error: &io::Error) {
        if self.told.swap(true, Ordering::Relaxed) {
            return;
        }
        tracing::warn!(
            "--cache keeps nothing in {} ({error}): every frame comes over the network each time; \
             free space there, or name a directory that you may write in",
            self.directory.display()
        );
    }

    /// A name that nobody else uses.
    fn temporary(&self) -> PathBuf {
        let number = self.files.fetch_add(1, Ordering::Relaxed);
        // Two images of one process have numbers of their own.
        let name = format!("{}-{:016x}-{number}", std::process::id(), self.image);
        self.directory.join(TEMPORARY).join(name)
    }

    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let temporary = self.temporary();
        let mut file = File::create(&temporary)?;
        let written = file
            .write_all(bytes)
            .and_then(|()| file.write_all(&xxh3_64(bytes).to_le_bytes()))
            .and_then(|()| fs::rename(&temporary, path));
        if written.is_err() {
            let _ = fs::remove_file(&temporary);
        }
        written
    }

    fn path(&self, frame: &Frame) -> PathBuf {
        let (kind, name) = match frame.check {
            FrameCheck::Stored(check) | FrameCheck::Sealed(check, _) => ('c', check),
            FrameCheck::Raw(_) | FrameCheck::None => (
                'i',
                xxh3_64_with_seed(&frame.offset.to_le_bytes(), self.image),
            ),
        };
        let part = name % PARTS;
        let bytes = frame.stored_bytes;
        self.directory
            .join(format!("{part:02x}/{kind}{name:016x}-{bytes:x}"))
    }

    /// Counts the files, and throws out those that were used longest ago if they are too many.
    fn count(&self) {
        // Another thread is at it, or another process: one is enough.
        let Some(_counting) = self.counting.try_lock() else {
            return;
        };
        self.written.store(0, Ordering::Relaxed);
        let lock = File::create(self.directory.join("lock"));
        let Ok(lock) = lock else { return };
        if rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            return;
        }
        let mut files = Vec::new();
        let mut total = 0;
        for part in 0..PARTS {
            for (path, bytes, used) in entries(&self.directory.join(format!("{part:02x}"))) {
                total += bytes;
                files.push((used, bytes, path));
            }
        }
        for (path, _, used) in entries(&self.directory.join(TEMPORARY)) {
            // Left by a crash.
            if used.elapsed().is_ok_and(|age| age > TEMPORARY_AGE_MAX) {
                let _ = fs::remove_file(path);
            }
        }
        if total <= self.limit_bytes {
            return;
        }
        files.sort_unstable();
        let goal = self.limit_bytes - self.limit_bytes / SLACK;
        for (_, bytes, path) in files {
            if total <= goal {
                break;
            }
            if fs::remove_file(path).is_ok() {
                total -= bytes;
            }
        }
    }
}

/// True unless the frame's own checksum says otherwise.
pub(crate) fn is_sound(frame: &Frame, bytes: &[u8]) -> bool {
    match frame.check {
        FrameCheck::Stored(check) => xxh3_64(bytes) == check,
        FrameCheck::Sealed(_, leaf) => leaf.is_of(frame.raw_bytes, bytes),
        FrameCheck::Raw(_) | FrameCheck::None => true,
    }
}

/// Files of a directory, with sizes and times of their last use.
fn entries(directory: &Path) -> impl Iterator<Item = (PathBuf, u64, SystemTime)> + use<> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| {
        let metadata = entry.metadata().ok()?;
        let used = metadata.modified().ok()?;
        metadata
            .is_file()
            .then(|| (entry.path(), metadata.len(), used))
    })
}

const CHECK_BYTES: usize = 8;
/// A full disk takes no page more.
const PROBE_BYTES: usize = 4096;
const TEMPORARY: &str = "tmp";
/// Directories of files, so that none gets too long.
const PARTS: u64 = 256;
/// One part in so many of the limit is written between two counts, and thrown out at once.
const SLACK: u64 = 16;
/// Age at which a temporary file belongs to nobody.
const TEMPORARY_AGE_MAX: Duration = Duration::from_secs(3600);

#[cfg(test)]
mod tests {
    use super::*;
    use sidecore_block::codec::CodecId;

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
        let identity = Identity {
            size_bytes: 1 << 30,
            validator: None,
        };
        Disk::open(directory, limit, name, &identity).unwrap()
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
        // Bytes that are not the frame's are not kept.
        one.put(&frame(0, b"right", true), b"wrong");
        assert_eq!(one.get(&frame(0, b"right", true)), None);
    }

    /// Any byte of a file changed, and any end cut off: never the wrong bytes.
    #[test]
    fn a_damaged_file_is_no_file() {
        let directory = tempfile::tempdir().unwrap();
        let disk = open(directory.path(), 1 << 30, "image");
        for checked in [true, false] {
            let bytes: Vec<u8> = (0..50).collect();
            let frame = frame(9, &bytes, checked);
            let path = disk.path(&frame);
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
            let parts = (0..PARTS).map(|part| directory.path().join(format!("{part:02x}")));
            let total: u64 = parts.flat_map(|it| entries(&it)).map(|it| it.1).sum();
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

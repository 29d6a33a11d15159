//! An image and the overlays above it, as a new image: only changed frames are compressed, the
//! others are copied compressed.
//!
//! Why here: it is packing with another source; copied frames have to be checked like unpacked
//! ones. An encrypted image becomes an encrypted one with another key: frames are decrypted and
//! encrypted again, but not compressed again.
//!
//! Must stay true: a frame is copied only after its checksum in the image's table (and its leaf,
//! where the image is trusted) has matched; the new image appears under its name only when it is
//! whole.

use super::source::Holes;
use super::walk::{Step, Walk};
use super::{Guard, Options, PackError, Sink, Target, Work, workers};
use crate::codec::{self, Deflater};
use crate::format::lock::{FrameKey, Locker};
use crate::format::write::{Layout, Packed};
use crate::format::{FRAME_BYTES_RANGE, Format, FormatError, Frame, FrameCheck, FrameError, Index};
use crate::image::Image;
use crate::overlay::{Changed, Overlay};
use crate::source::BlockSource;
use sidecore_bare::text::bytes;
use sidecore_bare::width::{ToU64, ToUsize};
use sidecore_terminal::Text;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_64;

/// Result of [`commit`].
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Committed {
    /// The format's name.
    pub format: &'static str,
    /// Size of the device in bytes.
    pub raw_bytes: u64,
    /// Size of the new image in bytes.
    pub stored_bytes: u64,
    /// Bytes of the device per frame.
    pub frame_bytes: u32,
    /// Number of frames.
    pub frames: u64,
    /// Number of those that were copied compressed.
    pub copied_frames: u64,
    /// Root of the new image's hash tree in hexadecimal digits, where it has one.
    pub root_hash: Option<String>,
}

impl Committed {
    /// The image at `path`, made in `seconds`, for people.
    #[must_use]
    pub fn text(&self, path: &Path, seconds: f64) -> Text {
        let mut text = Text::from(format!(
            "{}: {} in {} frames, {} of them copied, {} stored as {} in {seconds:.1} s",
            path.display(),
            bytes(self.raw_bytes),
            self.frames,
            self.copied_frames,
            bytes(self.stored_bytes),
            self.format,
        ));
        if let Some(root) = &self.root_hash {
            text.line(format!("root hash {root}"));
        }
        text
    }
}

/// Writes the contents of `overlay`, whose base is `image`, as a new image. It has the format and
/// the frames of `image` where that is zstd or LZ4 as Sidecore writes them, and else those of
/// `options`. It is guarded as `guard` says. The commit of an encrypted image is always encrypted;
/// without a lock in `guard`, the keys that open the old image open the new one. `progress` is
/// called with the number of bytes that are done.
///
/// # Errors
/// [`PackError`]; the target is then unchanged.
pub fn commit(
    image: &Image,
    index: &Index,
    overlay: &Overlay,
    target: Target<'_>,
    options: &Options,
    guard: Guard,
    progress: &mut (dyn FnMut(u64) + Send),
) -> Result<Committed, PackError> {
    // Without a lock given, an encrypted image stays readable with its old keys.
    let lock = match guard.lock {
        Some(lock) => Some(lock),
        None => successor(index)?,
    };
    let guard = Guard { lock, ..guard };
    // Frames can be copied only into the same format with the same frame size.
    let raw_bytes = overlay.size_bytes();
    // Of a device that has grown, the last frame changes its length and all behind it are new.
    let copies = can_copy(index) && raw_bytes == index.raw_bytes();
    let (format, frame_bytes) = match copies {
        true => (index.format(), index.frame_bytes()),
        false => (options.format, options.frame_bytes),
    };
    let codec = format.codec();
    let is_thin = match copies {
        true => index.is_thin(),
        false => super::is_worth_it(holes_of(overlay), frame_bytes),
    };
    let work = Work::of(options.engines, options.limits);
    // A job holds a frame's contents and its compressed bytes, old or new.
    let job_bytes = u64::from(frame_bytes) + u64::from(index.stored_bytes_max().max(frame_bytes));
    let jobs = work.jobs(index.memory_bytes().to_u64(), job_bytes)?;
    let mut writer = format.writer(&Layout {
        frame_bytes,
        raw_bytes: Some(raw_bytes),
        seekable: matches!(target, Target::Path(..)),
        uneven: false,
        thin: is_thin,
    })?;
    let is_sealed = guard.seal.is_some();
    let next = [
        "leave out --recipient and --new-passphrase-file",
        "leave out --tree and --sign",
    ];
    let keys = Keys {
        old: index.key().cloned(),
        new: guard.apply(&mut *writer, format, next)?,
    };
    // The target must not be the image under another name.
    let metadata = image.file().and_then(|file| file.metadata().ok());
    let identity = metadata.map(|found| (found.dev(), found.ino()));
    let mut sink = Sink::open(target, identity)?;
    sink.write(&writer.start())?;
    let mut walk = copies.then(|| Walk::new(image, index));
    let mut changes = Changes::new(overlay);
    let (mut frames, mut copied_frames) = (0, 0);
    let mut done_bytes = 0;
    workers::run_frames(
        &super::engines(options.engines)?,
        frame_bytes.to_usize(),
        jobs,
        Job::default,
        || {
            let made = codec::make_tuned_deflater(codec, options.level, options.tune);
            made.map_err(|error| PackError::Format(FormatError::from(error)))
        },
        |job: &mut Job| {
            work.check_time()?;
            let start = frames * u64::from(frame_bytes);
            if start >= raw_bytes {
                return Ok(false);
            }
            job.number = frames;
            job.holes = 0;
            // Thin images record runs of holes without frames. Only the last run may end in a
            // partial frame.
            if is_thin {
                let bytes = zeros_from(overlay, start, raw_bytes);
                let holes = match start + bytes == raw_bytes {
                    true => bytes.div_ceil(frame_bytes.into()),
                    false => bytes / u64::from(frame_bytes),
                };
                if holes > 0 {
                    job.holes = holes;
                    job.hole_bytes = bytes.min(holes * u64::from(frame_bytes));
                    frames += holes;
                    return Ok(true);
                }
            }
            frames += 1;
            let end = (start + u64::from(frame_bytes)).min(raw_bytes);
            job.raw_bytes = (end - start) as u32;
            // A frame is copied compressed unless the overlay changed a byte of it.
            let is_changed = changes.touch(start, end).map_err(unreadable)?;
            job.copied = None;
            // The walk over the old image must stay at the same frame number: holes were passed
            // above, and a run of holes that the overlay has written to is one step of the walk.
            if let Some(walk) = &mut walk {
                walk.seek(job.number);
            }
            if let Some(walk) = &mut walk
                && walk.next(&mut job.step)
                && !is_changed
                && job.step.holes == 0
            {
                let frame = index.frame(job.number);
                let read = job.step.stored(image, &frame, &mut job.stored);
                read.map_err(|error| bad(job.number, &frame, error.into()))?;
                job.copied = Some((frame, index.is_zero(job.number)));
                return Ok(true);
            }
            job.raw.resize(job.raw_bytes.to_usize(), 0);
            let read = overlay.read_into(start, &mut job.raw);
            read.map_err(|error| unreadable(error.to_string()))?;
            Ok(true)
        },
        |deflater, job| match job.holes {
            0 => finish(deflater, job, &keys, is_sealed),
            _ => Ok(()),
        },
        |job| {
            if job.holes > 0 {
                writer.push_holes(job.holes, job.hole_bytes)?;
                copied_frames += job.holes;
                done_bytes += job.hole_bytes;
                progress(done_bytes);
                return Ok(());
            }
            sink.write(&job.stored)?;
            if let Some(packed) = &job.packed {
                writer.push(packed)?;
            }
            copied_frames += u64::from(job.copied.is_some());
            done_bytes += u64::from(job.raw_bytes);
            progress(done_bytes);
            Ok(())
        },
    )?;
    // The writer's tables follow the last frame; the head may be rewritten after them.
    let ending = sink.end(&mut *writer)?;
    let stored_bytes = sink.offset;
    sink.finish(ending.front.as_deref())?;
    Ok(Committed {
        format: format.name(),
        raw_bytes,
        stored_bytes,
        frame_bytes,
        frames,
        copied_frames,
        root_hash: ending.root.map(|root| crate::trust::digits_of(&root)),
    })
}

/// A lock that opens with the keys of an encrypted image; `None` for an image in plain text.
fn successor(index: &Index) -> Result<Option<Locker>, PackError> {
    let Some(lock) = index.lock() else {
        return Ok(None);
    };
    let key = index.key().ok_or(PackError::Format(FormatError::Locked))?;
    match Locker::successor(lock, key) {
        Some(locker) => Ok(Some(locker)),
        None => Err(PackError::Format(FormatError::CannotWrite {
            format: index.format().name(),
            what: "an encrypted image".to_owned(),
            reason: "its key cannot be made: the system has no random bytes, or the old one's head \
                     has no room",
            next: "name those who may read it with --recipient",
        })),
    }
}

/// Keys of frames, of the old image and of the new one.
struct Keys {
    old: Option<Arc<FrameKey>>,
    new: Option<Arc<FrameKey>>,
}

impl Keys {
    /// Decrypts the bytes of a frame of the old image.
    fn decrypt(&self, frame: u64, raw_bytes: u32, stored: &mut Vec<u8>) -> Result<(), FrameError> {
        let Some(key) = &self.old else { return Ok(()) };
        let mut buffer = Vec::new();
        let opened = key.decrypt(frame, raw_bytes, stored, &mut buffer);
        let len = opened.map_err(|_| FrameError::NotAuthentic)?.len();
        buffer.truncate(len);
        *stored = buffer;
        Ok(())
    }
}

/// One frame on its way.
#[derive(Default)]
struct Job {
    number: u64,
    /// Frames from there on that are holes of a thin image, and their contents.
    holes: u64,
    hole_bytes: u64,
    raw_bytes: u32,
    step: Step,
    /// The frame whose compressed bytes are in `stored`, and true if it is declared zeros.
    copied: Option<(Frame, bool)>,
    raw: Vec<u8>,
    stored: Vec<u8>,
    packed: Option<Packed>,
}

/// The kernel: compresses a frame, or checks one that is copied.
fn finish(
    deflater: &mut Box<dyn Deflater>,
    job: &mut Job,
    keys: &Keys,
    is_sealed: bool,
) -> Result<(), PackError> {
    let mut packed = match &job.copied {
        Some((frame, zero)) => {
            // Checked before it is copied: a damaged frame must not get a new checksum that vouches
            // for it.
            check(frame, &job.stored)
                .and_then(|()| keys.decrypt(job.number, frame.raw_bytes, &mut job.stored))
                .map_err(|error| bad(job.number, frame, error))?;
            let end = job.stored.last_chunk::<4>().copied().unwrap_or_default();
            Packed {
                stored_bytes: job.stored.len() as u32,
                raw_bytes: frame.raw_bytes,
                zero: *zero,
                stored_check: xxh3_64(&job.stored),
                stored_end: u32::from_le_bytes(end),
                leaf: None,
            }
        }
        None => {
            let deflated = deflater.deflate(&job.raw, &mut job.stored);
            deflated.map_err(|source| PackError::Deflate {
                frame: job.number,
                source,
            })?;
            Packed::of(&job.stored, &job.raw)
        }
    };
    if let Some(key) = &keys.new {
        let encrypted = key.encrypt(job.number, packed.raw_bytes, &mut job.stored);
        encrypted.map_err(|_| PackError::Encrypt { frame: job.number })?;
        packed = packed.with_stored(&job.stored);
    }
    if is_sealed {
        // Leaves cover the stored bytes, so they are made after encryption.
        packed = packed.with_leaf(job.number, &job.stored);
    }
    job.packed = Some(packed);
    Ok(())
}

fn check(frame: &Frame, stored: &[u8]) -> Result<(), FrameError> {
    let (FrameCheck::Stored(expected) | FrameCheck::Sealed(expected, _)) = frame.check else {
        return Ok(());
    };
    let found = xxh3_64(stored);
    if found != expected {
        return Err(FrameError::StoredCheck {
            bytes: frame.stored_bytes,
            found,
            expected,
        });
    }
    match frame.check {
        FrameCheck::Sealed(_, leaf) if !leaf.is_of(frame.raw_bytes, stored) => {
            Err(FrameError::Untrusted)
        }
        _ => Ok(()),
    }
}

/// True if the old image's frames can be used unchanged in the new one.
fn can_copy(index: &Index) -> bool {
    matches!(index.format(), Format::Zstd | Format::Lz4)
        && index.is_even()
        && index.frame_bytes().is_power_of_two()
        && FRAME_BYTES_RANGE.contains(&index.frame_bytes())
        && index.codec() == index.format().codec()
        && index.has_stored_checks()
}

/// Number of zero bytes from `start` that the image and its layers know of.
fn zeros_from(overlay: &Overlay, start: u64, end: u64) -> u64 {
    let mut at = start;
    while at < end {
        let extent = overlay.extent(at);
        if !extent.zero || extent.len == 0 {
            break;
        }
        at = at.saturating_add(extent.len).min(end);
    }
    at - start
}

/// The holes of a device, if known without reading; beyond a bounded number of extents all counts
/// as data.
fn holes_of(source: &dyn BlockSource) -> Holes {
    let mut holes = Holes::default();
    let end = source.size_bytes();
    let mut at = 0;
    for _ in 0..EXTENTS_MAX {
        let extent = source.extent(at);
        let len = extent.len.min(end - at);
        match extent.zero {
            true => holes.hole_bytes += len,
            false => holes.data_bytes += len,
        }
        at += len;
        // An empty extent would not advance.
        if at >= end || len == 0 {
            break;
        }
    }
    holes.data_bytes += end - at;
    holes
}

/// Most extents examined before the kind of image is chosen.
const EXTENTS_MAX: usize = 64 << 10;

/// The changed extents, requested in order.
struct Changes<'o> {
    overlay: &'o Overlay,
    next: Option<Changed>,
    asked: bool,
}

impl<'o> Changes<'o> {
    fn new(overlay: &'o Overlay) -> Self {
        Self {
            overlay,
            next: None,
            asked: false,
        }
    }

    /// True if a layer has any of the bytes from `start` to `end`.
    fn touch(&mut self, start: u64, end: u64) -> Result<bool, String> {
        let over = self.next.is_some_and(|it| it.offset + it.len <= start);
        if !self.asked || over {
            let next = self.overlay.next_changed(start, usize::MAX);
            self.next = next.map_err(|error| error.to_string())?;
            self.asked = true;
        }
        Ok(self.next.is_some_and(|it| it.offset < end))
    }
}

fn unreadable(reason: String) -> PackError {
    PackError::Source {
        path: "the image with its overlay".into(),
        source: io::Error::other(reason),
    }
}

fn bad(number: u64, frame: &Frame, source: FrameError) -> PackError {
    PackError::Frame {
        frame: number,
        offset: frame.raw_offset,
        end: frame.raw_offset + u64::from(frame.raw_bytes),
        source,
    }
}

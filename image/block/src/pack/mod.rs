//! Packing an image, compressed on all engines; and unpacking it.
//!
//! Why here: `pack`, `unpack` and `verify` are the same walk over frames with different kernels;
//! formats (`format::write`) and codecs do the rest.
//! Must stay true: memory is bounded by the number of engines and the frame size, not by the image
//! (save for 24 bytes of table per frame, and 32 more with a hash tree); frames are written in
//! order; a target appears under its name only when it is whole.
//! Called from: any thread, which does the reading and writing itself and blocks until all is done.

mod choices;
mod commit;
mod compare;
mod compressed;
mod cut;
mod error;
mod flat;
mod frames;
mod info;
mod limits;
mod sidecar;
mod sink;
pub(crate) mod source;
mod unpack;
mod verify;
mod walk;
mod workers;

use crate::codec::{self, Tune};
use crate::format::lock::{FrameKey, Locker};
use crate::format::tree::Signer;
use crate::format::write::{ImageWriter, Layout};
use crate::format::{Format, FormatError};
use cut::Cutter;
use frames::{HoleRuns, Job, Kernel, Reading, Writing};
use sidecore_bare::text::bytes;
use sidecore_bare::width::{ToU64, ToUsize};
use sidecore_offload::{OffloadError, Pool, PoolConfig};
use sidecore_terminal::Text;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

pub use crate::format::output::Existing;
pub use choices::{ChoiceError, FRAME_BYTES, Wanted};
pub use commit::{Committed, commit};
pub use compare::{CompareError, Differences, Rebased, Side, Stretch, compare, rebase, sides};
pub use error::PackError;
use flat::diff;
pub use flat::{Exported, FlatFormat, export};
pub use info::ImageInfo;
pub use limits::{Deadline, Limits, Work};
pub use sidecar::{Indexed, index_file};
use sink::Sink;
use source::Holes;
pub use source::{Form, Source, scratch_directory};
pub use unpack::{Unpacked, unpack, unpack_image};
pub use verify::{BadFrame, Verified, verify, verify_image};

/// Options of [`pack`].
#[derive(Debug, Clone)]
pub struct Options {
    /// Its format.
    pub format: Format,
    /// Bytes of the device per frame: a power of two from 4 KiB to 1 MiB.
    pub frame_bytes: u32,
    /// True for frames whose boundaries follow the contents ([`Format::Zstd`] and [`Format::Lz4`]
    /// alone): `frame_bytes` is then their average, a quarter of it the least and four times it the
    /// most that a frame holds.
    pub cdc: bool,
    /// The codec's level; `None`: its default.
    pub level: Option<i32>,
    /// The goal of the image's optimization.
    pub tune: Tune,
    /// Number of engines that compress.
    pub engines: usize,
    /// Treatment of runs of zeros.
    pub thin: Thin,
    /// Bounds of the work.
    pub limits: Limits,
}

impl Options {
    /// Of a zstd image with the usual frames, tuned for speed.
    #[must_use]
    pub fn zstd(level: Option<i32>, engines: usize, limits: Limits) -> Self {
        Self {
            format: Format::Zstd,
            frame_bytes: FRAME_BYTES,
            cdc: false,
            level,
            tune: Tune::Speed,
            engines,
            thin: Thin::Auto,
            limits,
        }
    }
}

/// Choice of a thin image, in which runs of zeros are listed and not stored: `zstd -d` and versions
/// of this program before thin images refuse it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Thin {
    /// A thin image if the frames of the source's holes would take more than a few MiB and more
    /// than a small part of the data's size, or would be too many for an image.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// Destination of an image or of its contents.
#[derive(Debug, Clone, Copy)]
pub enum Target<'a> {
    /// A file of this name, or a block device.
    Path(&'a Path, Existing),
    /// Standard output.
    Stdout,
}

/// Result of [`pack`].
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Report {
    /// The format's name.
    pub format: &'static str,
    /// Size of the device in bytes.
    pub raw_bytes: u64,
    /// Size of the image in bytes.
    pub stored_bytes: u64,
    /// Bytes of the device per frame; their average where frames follow the contents.
    pub frame_bytes: u32,
    /// Number of frames.
    pub frames: u64,
    /// Number of those that are all zeros.
    pub zero_frames: u64,
    /// Root of the image's hash tree in hexadecimal digits, where it has one.
    pub root_hash: Option<String>,
    /// The file system that was made of a directory or a tar.
    pub inner: Option<&'static str>,
}

/// A file of contents that was written, for people.
fn written(path: &Path, raw_bytes: u64, seconds: f64) -> Text {
    let (path, raw) = (path.display(), bytes(raw_bytes));
    format!("{path}: {raw} in {seconds:.1} s").into()
}

impl Report {
    /// The image at `path`, made in `seconds`, for people.
    #[must_use]
    pub fn text(&self, path: &Path, seconds: f64) -> Text {
        let (raw, stored) = (self.raw_bytes, self.stored_bytes);
        let mut text = Text::from(format!(
            "{}: {} in {} frames, {} stored ({:.2}:1) as {} in {seconds:.1} s",
            path.display(),
            bytes(raw),
            self.frames,
            bytes(stored),
            raw as f64 / stored as f64,
            self.format,
        ));
        if let Some(root) = &self.root_hash {
            text.line(format!("root hash {root}"));
        }
        text
    }
}

/// Packs `source`. `progress` is called, on one thread, with the number of bytes of the source
/// done.
///
/// # Errors
/// [`PackError`]; the target is then unchanged.
pub fn pack(
    source: Source,
    target: Target<'_>,
    options: &Options,
    progress: &mut (dyn FnMut(u64) + Send),
) -> Result<Report, PackError> {
    pack_guarded(source, target, options, Guard::default(), progress)
}

/// Protection of an image against changes and unauthorised reading.
#[derive(Default)]
pub struct Guard {
    /// The image carries a hash tree, whose root this signs ([`crate::trust::signer`]).
    pub seal: Option<Signer>,
    /// The image is encrypted ([`crate::secret::Readers::locker`]).
    pub lock: Option<Locker>,
}

impl Guard {
    /// Has `writer` lock and seal the image; returns the key of its frames. The next steps for a
    /// user are those where the format has no place for a lock, and for a tree.
    ///
    /// # Errors
    /// [`FormatError::CannotWrite`].
    fn apply(
        self,
        writer: &mut dyn ImageWriter,
        format: Format,
        next: [&'static str; 2],
    ) -> Result<Option<Arc<FrameKey>>, PackError> {
        let key = self.lock.as_ref().map(|lock| Arc::clone(lock.key()));
        let cannot = |what: &str, reason, next| FormatError::CannotWrite {
            format: format.name(),
            what: what.to_owned(),
            reason,
            next,
        };
        if let Some(lock) = self.lock
            && !writer.lock(lock)
        {
            let reason = "the format has no place for a lock";
            return Err(cannot("an encrypted image", reason, next[0]).into());
        }
        if let Some(signer) = self.seal
            && !writer.seal(signer)
        {
            let reason = "the format has no place for one";
            return Err(cannot("a hash tree", reason, next[1]).into());
        }
        Ok(key)
    }
}

impl Options {
    fn check_level(&self) -> Result<(), PackError> {
        let levels = codec::levels(self.format.codec());
        match self.level.filter(|level| !levels.contains(level)) {
            None => Ok(()),
            Some(level) => Err(PackError::Level {
                format: self.format.name(),
                level,
                min: *levels.start(),
                max: *levels.end(),
            }),
        }
    }

    /// True if `source` becomes a thin image. It needs a reader that knows such images, so
    /// [`Thin::Auto`] makes one only if it saves enough.
    fn is_thin(&self, source: &Source) -> bool {
        match self.thin {
            Thin::Always => true,
            Thin::Never => false,
            Thin::Auto => {
                let can_be = matches!(self.format, Format::Zstd | Format::Lz4) && !self.cdc;
                can_be && is_worth_it(source.hole_bytes(), self.frame_bytes)
            }
        }
    }
}

/// As [`pack`], for a guarded image; the root of its hash tree is in the report.
///
/// # Errors
/// As [`pack`]; and [`FormatError::CannotWrite`] where the format has no room for a tree, or cannot
/// be encrypted.
pub fn pack_guarded(
    source: Source,
    target: Target<'_>,
    options: &Options,
    guard: Guard,
    progress: &mut (dyn FnMut(u64) + Send),
) -> Result<Report, PackError> {
    // Checked before the target is opened, as everything else that can fail early.
    options.check_level()?;
    let is_thin = options.is_thin(&source);
    let inner = source.inner.map(|kind| kind.name());
    let mut writer = options.format.writer(&Layout {
        frame_bytes: options.frame_bytes,
        raw_bytes: source.size_bytes,
        seekable: matches!(target, Target::Path(..)),
        uneven: options.cdc,
        thin: is_thin,
    })?;
    if guard.lock.is_some() && options.cdc {
        return Err(PackError::Format(FormatError::CannotWrite {
            format: options.format.name(),
            what: "an encrypted image whose frames follow the contents".to_owned(),
            reason: "sizes of frames would tell of what is in them, and no two images share a key",
            next: "leave out --cdc or --encrypt",
        }));
    }
    let is_sealed = guard.seal.is_some();
    let other_format = "take --format zstd or lz4";
    let key = guard.apply(&mut *writer, options.format, [other_format; 2])?;
    // From here on the target has a temporary file; it appears under its name only in `finish`.
    let mut sink = Sink::open(target, source.identity)?;
    sink.write(&writer.start())?;

    let frame_bytes = match options.cdc {
        true => cut::bytes_max(options.frame_bytes),
        false => options.frame_bytes,
    }
    .to_usize();
    let work = Work::of(options.engines, options.limits);
    // A frame's contents and its compressed bytes.
    let job_bytes = 2 * frame_bytes.to_u64();
    let mut reading = Reading {
        source,
        cutter: options.cdc.then(|| Cutter::new(options.frame_bytes)),
        frame_bytes,
        pads: writer.pads_last_frame(),
        holes: match is_thin {
            true => HoleRuns::Listed,
            // Leaves and encrypted frames depend on their numbers.
            false if is_sealed || key.is_some() => HoleRuns::Single,
            false => HoleRuns::Repeated,
        },
        frames: 0,
        work,
    };
    let mut writing = Writing {
        sink,
        writer,
        codec: options.format.codec(),
        lists_holes: is_thin,
        progress,
        source_bytes: 0,
        raw_bytes: 0,
        zero_frames: 0,
    };
    workers::run_frames(
        &engines(options.engines)?,
        frame_bytes,
        work.jobs(0, job_bytes)?,
        Job::default,
        || Kernel::new(options, is_sealed, is_thin, key.clone()),
        |job| reading.next(job),
        frames::deflate,
        |job| writing.push(job),
    )?;
    let frames = reading.frames;
    let Writing {
        mut sink,
        mut writer,
        raw_bytes,
        zero_frames,
        ..
    } = writing;
    // No format can describe an image without frames.
    if frames == 0 {
        return Err(FormatError::Empty {
            format: options.format.name(),
        }
        .into());
    }
    let ending = sink.end(&mut *writer)?;
    let stored_bytes = sink.offset;
    sink.finish(ending.front.as_deref())?;
    Ok(Report {
        format: options.format.name(),
        raw_bytes,
        stored_bytes,
        frame_bytes: options.frame_bytes,
        frames,
        zero_frames,
        root_hash: ending.root.map(|root| crate::trust::digits_of(&root)),
        inner,
    })
}

/// True if `Thin::Auto` chooses a thin image for a source with `holes`.
fn is_worth_it(holes: Holes, frame_bytes: u32) -> bool {
    let hole_frames = holes.hole_bytes / u64::from(frame_bytes);
    let frames = (holes.hole_bytes + holes.data_bytes) / u64::from(frame_bytes);
    let takes_bytes = hole_frames * HOLE_FRAME_BYTES;
    frames > THICK_FRAMES_MAX
        || takes_bytes > HOLES_BYTES_MAX && takes_bytes > holes.data_bytes / HOLES_SHARE
}

/// Bytes that a frame of zeros takes in an image and its tables.
const HOLE_FRAME_BYTES: u64 = 51;
/// Frames of holes may take this much in any image.
const HOLES_BYTES_MAX: u64 = 4 << 20;
/// Frames of holes may take one part in this many of the data as they are.
const HOLES_SHARE: u64 = 32;
/// Frames beyond which a seek table soon has no room, and a full index takes GiBs.
const THICK_FRAMES_MAX: u64 = 64 << 20;

/// Opens an image's file for reading.
fn open_image(path: &Path) -> Result<File, PackError> {
    File::open(path).map_err(|source| PackError::Source {
        path: path.to_owned(),
        source,
    })
}

/// A pool of the requested number of engines.
fn engines(engines: usize) -> Result<Pool, OffloadError> {
    Pool::start(PoolConfig {
        engines,
        ..PoolConfig::default()
    })
}

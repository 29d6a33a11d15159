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
mod info;
mod limits;
mod sidecar;
pub(crate) mod source;
mod unpack;
mod verify;
mod walk;
mod workers;

use crate::codec::{self, CodecId, Deflater, Tune};
use crate::format::lock::{FrameKey, Locker};
use crate::format::output::Output;
use crate::format::tree::Signer;
use crate::format::write::{Ending, ImageWriter, Layout, Packed, is_zero};
use crate::format::{Format, FormatError};
use cut::Cutter;
use sidecore_offload::{OffloadError, Pool, PoolConfig};
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use crate::format::output::Existing;
pub use choices::{ChoiceError, Chosen, FRAME_BYTES, Wanted};
pub use commit::{Committed, commit};
pub use compare::{CompareError, Side, Stretch, compare};
pub use error::PackError;
use flat::diff;
pub use flat::{Exported, FlatFormat, export};
pub use info::ImageInfo;
pub use limits::{Deadline, Limits, Work};
pub use sidecar::{Indexed, index_file};
pub use source::Source;
use source::{Filled, Holes};
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

/// As [`pack`], for a guarded image; the root of its hash tree is in the report.
///
/// # Errors
/// As [`pack`]; and [`FormatError::CannotWrite`] where the format has no room for a tree, or cannot
/// be encrypted.
pub fn pack_guarded(
    mut source: Source,
    target: Target<'_>,
    options: &Options,
    guard: Guard,
    progress: &mut (dyn FnMut(u64) + Send),
) -> Result<Report, PackError> {
    let codec = options.format.codec();
    let levels = codec::levels(codec);
    // Checked before the target is opened, as everything else that can fail early.
    if let Some(level) = options.level.filter(|level| !levels.contains(level)) {
        return Err(PackError::Level {
            format: options.format.name(),
            level,
            min: *levels.start(),
            max: *levels.end(),
        });
    }
    // Thin images need a reader that knows them, so `Auto` makes one only if it saves enough.
    let is_thin = match options.thin {
        Thin::Always => true,
        Thin::Never => false,
        Thin::Auto => {
            let can_be = matches!(options.format, Format::Zstd | Format::Lz4) && !options.cdc;
            can_be && is_worth_it(source.hole_bytes(), options.frame_bytes)
        }
    };
    let mut writer = options.format.writer(&Layout {
        frame_bytes: options.frame_bytes,
        raw_bytes: source.size_bytes,
        seekable: matches!(target, Target::Path(..)),
        uneven: options.cdc,
        thin: is_thin,
    })?;
    let Guard { seal, lock } = guard;
    let is_sealed = seal.is_some();
    let key = lock.as_ref().map(|lock| Arc::clone(lock.key()));
    if lock.is_some() && options.cdc {
        return Err(PackError::Format(FormatError::CannotWrite {
            format: options.format.name(),
            what: "an encrypted image whose frames follow the contents".to_owned(),
            reason: "sizes of frames would tell of what is in them, and no two images share a key",
            next: "leave out --cdc or --encrypt",
        }));
    }
    if let Some(lock) = lock
        && !writer.lock(lock)
    {
        return Err(PackError::Format(FormatError::CannotWrite {
            format: options.format.name(),
            what: "an encrypted image".to_owned(),
            reason: "the format has no place for a lock",
            next: "take --format zstd or lz4",
        }));
    }
    if let Some(signer) = seal
        && !writer.seal(signer)
    {
        return Err(PackError::Format(FormatError::CannotWrite {
            format: options.format.name(),
            what: "a hash tree".to_owned(),
            reason: "the format has no place for one",
            next: "take --format zstd or lz4",
        }));
    }
    // From here on the target has a temporary file; it appears under its name only in `finish`.
    let mut sink = Sink::open(target, source.identity)?;
    sink.write(&writer.start())?;

    let mut cutter = options.cdc.then(|| Cutter::new(options.frame_bytes));
    let frame_bytes = match options.cdc {
        true => cut::bytes_max(options.frame_bytes),
        false => options.frame_bytes,
    } as usize;
    let pads = writer.pads_last_frame();
    // Leaves and encrypted frames depend on their numbers.
    let every_hole_is_alike = !is_sealed && key.is_none();
    let (mut frames, mut raw_bytes, mut zero_frames, mut source_done) = (0, 0, 0, 0);
    let work = Work::of(options.engines, options.limits);
    // A frame's contents and its compressed bytes.
    let job_bytes = 2 * frame_bytes as u64;
    workers::run_frames(
        &engines(options.engines)?,
        frame_bytes,
        work.jobs(0, job_bytes)?,
        Job::default,
        || {
            let deflater = codec::make_tuned_deflater(codec, options.level, options.tune)
                .map_err(FormatError::from)?;
            Ok(Kernel {
                deflater,
                zeros: None,
                is_sealed,
                is_thin,
                key: key.clone(),
            })
        },
        |job: &mut Job| -> Result<bool, PackError> {
            // Frame numbers are given here, in order, because encryption and leaves depend on them.
            work.check_time()?;
            job.number = frames;
            let found = match &mut cutter {
                Some(cutter) => cutter.next(&mut source, &mut job.raw)?,
                None => {
                    job.raw.resize(frame_bytes, 0);
                    source.fill(&mut job.raw)?
                }
            };
            let (Filled::Bytes(filled) | Filled::Zeros(filled)) = found;
            job.source_bytes = filled as u64;
            job.hole = found == Filled::Zeros(frame_bytes);
            job.repeats = 1;
            // In a thin image a run of holes is one entry; otherwise equal frames are compressed
            // once and written repeatedly.
            if job.hole && is_thin {
                job.repeats += source.skip_frames(frame_bytes, u64::MAX);
                job.source_bytes *= job.repeats;
            } else if job.hole && every_hole_is_alike {
                job.repeats += source.skip_frames(frame_bytes, REPEATS_MAX - 1);
                job.source_bytes *= job.repeats;
            }
            match found {
                _ if job.hole => {}
                Filled::Zeros(_) => job.raw.fill(0),
                Filled::Bytes(_) => job.raw[filled..].fill(0),
            }
            // A format without padding stores the last frame at its real length.
            if !pads {
                job.raw.truncate(filled);
            }
            frames += job.repeats * u64::from(filled > 0);
            Ok(filled > 0)
        },
        deflate,
        |job| {
            if is_thin && job.hole {
                writer.push_holes(job.repeats, job.raw.len() as u64 * job.repeats)?;
                raw_bytes += job.raw.len() as u64 * job.repeats;
                zero_frames += job.repeats;
                source_done += job.source_bytes;
                progress(source_done);
                return Ok(());
            }
            for _ in 0..job.repeats {
                // An uncompressed frame of zeros becomes a hole of the file.
                match job.packed.zero && codec == CodecId::Store {
                    true => sink.skip_zeros(job.stored.len() as u64)?,
                    false => sink.write(&job.stored)?,
                }
                writer.push(&job.packed)?;
            }
            raw_bytes += job.raw.len() as u64 * job.repeats;
            zero_frames += job.repeats * u64::from(job.packed.zero);
            source_done += job.source_bytes;
            progress(source_done);
            Ok(())
        },
    )?;
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
    })
}

/// One frame on its way, or a run of frames of zeros.
#[derive(Debug)]
struct Job {
    number: u64,
    /// Number of frames that it stands for.
    repeats: u64,
    source_bytes: u64,
    /// A whole frame of zeros, for which `raw` has only the length.
    hole: bool,
    raw: Vec<u8>,
    stored: Vec<u8>,
    packed: Packed,
}

impl Default for Job {
    fn default() -> Self {
        Self {
            number: 0,
            repeats: 1,
            source_bytes: 0,
            hole: false,
            raw: Vec::new(),
            stored: Vec::new(),
            packed: Packed::of(&[], &[]),
        }
    }
}

impl Job {
    /// Gives the frame its leaf.
    fn seal(&mut self) {
        self.packed = self.packed.with_leaf(self.number, &self.stored);
    }
}

/// State of an engine from frame to frame.
struct Kernel {
    deflater: Box<dyn Deflater>,
    /// A whole frame of zeros, once one has been compressed: all are the same.
    zeros: Option<(Vec<u8>, Packed)>,
    /// Frames are to have leaves.
    is_sealed: bool,
    /// Frames of zeros are holes.
    is_thin: bool,
    /// The key of an image to be encrypted.
    key: Option<Arc<FrameKey>>,
}

/// The kernel: compresses and describes one frame.
fn deflate(kernel: &mut Kernel, job: &mut Job) -> Result<(), PackError> {
    if kernel.is_thin {
        // Frames that were read may also be zeros.
        job.hole = job.hole || is_zero(&job.raw);
        if job.hole {
            return Ok(());
        }
    }
    let known = kernel.zeros.as_ref().filter(|_| job.hole);
    match known {
        Some((stored, packed)) => {
            job.stored.clone_from(stored);
            job.packed = *packed;
        }
        None => {
            if job.hole {
                job.raw.fill(0);
            }
            let deflated = kernel.deflater.deflate(&job.raw, &mut job.stored);
            deflated.map_err(|source| PackError::Deflate {
                frame: job.number,
                source,
            })?;
            job.packed = Packed::of(&job.stored, &job.raw);
            if job.hole {
                kernel.zeros = Some((job.stored.clone(), job.packed));
            }
        }
    }
    // Encrypted after compression, and sealed after encryption: the leaf covers the stored bytes.
    if let Some(key) = &kernel.key {
        let (number, raw_bytes) = (job.number, job.packed.raw_bytes);
        let encrypted = key.encrypt(number, raw_bytes, &mut job.stored);
        encrypted.map_err(|_| PackError::Encrypt { frame: number })?;
        job.packed = job.packed.with_stored(&job.stored);
    }
    if kernel.is_sealed {
        job.seal();
    }
    Ok(())
}

/// Destination to which bytes are written in order.
struct Sink {
    kind: SinkKind,
    /// Bytes accepted so far.
    offset: u64,
    /// The last of them, not written yet: small frames are many.
    pending: Vec<u8>,
    path: PathBuf,
}

enum SinkKind {
    File(Output),
    Stdout(io::Stdout),
}

impl Sink {
    fn open(target: Target<'_>, source: Option<(u64, u64)>) -> Result<Self, PackError> {
        let (kind, path) = match target {
            Target::Stdout => (SinkKind::Stdout(io::stdout()), "standard output".into()),
            Target::Path(path, existing) => {
                let output =
                    Output::create(path, existing).map_err(|source| PackError::Target {
                        path: path.to_owned(),
                        source,
                    })?;
                if source.is_some() && output.replaces() == source {
                    return Err(PackError::SameFile {
                        path: path.to_owned(),
                    });
                }
                (SinkKind::File(output), path.to_owned())
            }
        };
        Ok(Self {
            kind,
            offset: 0,
            pending: Vec::new(),
            path,
        })
    }

    fn failed(&self, source: io::Error) -> PackError {
        PackError::Target {
            path: self.path.clone(),
            source,
        }
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), PackError> {
        self.take(bytes).map_err(|error| self.failed(error))
    }

    /// Writes the end of the image that `writer` makes.
    fn end(&mut self, writer: &mut dyn ImageWriter) -> Result<Ending, PackError> {
        writer.finish(self).map_err(|error| self.unwritten(error))
    }

    /// Maps an error of a writer that wrote into this sink.
    fn unwritten(&self, error: FormatError) -> PackError {
        match error {
            FormatError::Write(error) => self.failed(error),
            other => other.into(),
        }
    }

    fn take(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.pending.len() + bytes.len() > PENDING_BYTES_MAX {
            self.flush()?;
        }
        self.offset += bytes.len() as u64;
        if bytes.len() < PENDING_BYTES_MAX {
            self.pending.extend_from_slice(bytes);
            return Ok(());
        }
        self.put(bytes)
    }

    /// Writes the last `bytes` before [`Self::offset`].
    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        let start = self.offset - bytes.len() as u64;
        match &mut self.kind {
            SinkKind::File(output) => output.file().write_all_at(bytes, start),
            SinkKind::Stdout(stdout) => stdout.write_all(bytes),
        }
    }

    /// Advances by `bytes` without writing, where that leaves zeros.
    fn skip_zeros(&mut self, bytes: u64) -> Result<(), PackError> {
        match &self.kind {
            SinkKind::File(output) if output.starts_empty() => {
                self.flush().map_err(|error| self.failed(error))?;
                self.offset += bytes;
                Ok(())
            }
            _ => {
                // The target may hold other bytes, so zeros are written.
                let zeros = vec![0; bytes.min(PENDING_BYTES_MAX as u64) as usize];
                let mut left = bytes;
                while left > 0 {
                    let take = left.min(zeros.len() as u64);
                    self.write(&zeros[..take as usize])?;
                    left -= take;
                }
                Ok(())
            }
        }
    }

    fn finish(mut self, front: Option<&[u8]>) -> Result<(), PackError> {
        self.flush().map_err(|error| self.failed(error))?;
        let path = self.path;
        let failed = |source| PackError::Target { path, source };
        match self.kind {
            SinkKind::Stdout(mut stdout) => stdout.flush().map_err(failed),
            SinkKind::File(output) => (|| {
                if let Some(front) = front {
                    output.file().write_all_at(front, 0)?;
                }
                // Skipped zeros at the end were not written, so the length is set.
                if output.starts_empty() {
                    output.file().set_len(self.offset)?;
                }
                output.finish()
            })()
            .map_err(failed),
        }
    }
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.take(bytes).map(|()| bytes.len())
    }

    /// Writes the pending bytes.
    fn flush(&mut self) -> io::Result<()> {
        let mut pending = std::mem::take(&mut self.pending);
        self.put(&pending)?;
        pending.clear();
        self.pending = pending;
        Ok(())
    }
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

/// Frames of zeros in one job: few enough that progress stays visible.
const REPEATS_MAX: u64 = 4096;

/// Small writes are gathered up to this many bytes.
const PENDING_BYTES_MAX: usize = 256 << 10;

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

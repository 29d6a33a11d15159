//! Making an image, all engines deflating; and the way back.
//!
//! Why here: `pack`, `unpack` and `verify` are the same walk over frames with different kernels;
//! formats ([`crate::format::write`]) and codecs do the rest.
//! Must stay true: memory is bounded by the number of engines and the frame size, not by the image
//! (save for 16 to 28 bytes of table per frame); frames are written in order; a target appears
//! under its name only when it is whole.
//! Called from: any thread, which does the reading and writing itself and blocks until all is done.

mod error;
pub(crate) mod output;
mod source;
mod unpack;
mod verify;
mod workers;

use crate::codec::{self, Deflater, Tune};
use crate::format::write::{Layout, Packed};
use crate::format::{Format, FormatError};
use output::Output;
use sidecore_offload::{OffloadError, Pool, PoolConfig};
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

pub use error::PackError;
pub use output::Existing;
pub use source::Source;
pub use unpack::{Unpacked, unpack};
pub use verify::{BadFrame, Verified, verify};

/// How an image is to be made.
#[derive(Debug, Clone)]
pub struct Options {
    /// Its format.
    pub format: Format,
    /// Bytes of the device per frame: a power of two from 4 KiB to 1 MiB.
    pub frame_bytes: u32,
    /// The codec's level; its default where there is none.
    pub level: Option<i32>,
    /// What it is made for.
    pub tune: Tune,
    /// How many engines deflate.
    pub engines: usize,
}

/// Where an image or its contents go.
#[derive(Debug, Clone, Copy)]
pub enum Target<'a> {
    /// A file of this name, or a block device.
    Path(&'a Path, Existing),
    /// Standard output.
    Stdout,
}

/// What was made.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Report {
    /// The format's name.
    pub format: &'static str,
    /// Size of the device in bytes.
    pub raw_bytes: u64,
    /// Size of the image in bytes.
    pub stored_bytes: u64,
    /// Bytes of the device per frame.
    pub frame_bytes: u32,
    /// How many frames there are.
    pub frames: u64,
    /// How many of them are all zeros.
    pub zero_frames: u64,
}

/// Packs `source`. `progress` is called, on one thread, with the bytes of the source that are done.
///
/// # Errors
/// [`PackError`]; nothing then stands under the target's name that did not before.
pub fn pack(
    mut source: Source,
    target: Target<'_>,
    options: &Options,
    progress: &mut (dyn FnMut(u64) + Send),
) -> Result<Report, PackError> {
    let codec = options.format.codec();
    let levels = codec::levels(codec);
    if let Some(level) = options.level.filter(|level| !levels.contains(level)) {
        return Err(PackError::Level {
            format: options.format.name(),
            level,
            min: *levels.start(),
            max: *levels.end(),
        });
    }
    let mut writer = options.format.writer(&Layout {
        frame_bytes: options.frame_bytes,
        raw_bytes: source.size_bytes,
        seekable: matches!(target, Target::Path(..)),
    })?;
    let mut sink = Sink::open(target, source.identity)?;
    sink.write(&writer.start())?;

    let frame_bytes = options.frame_bytes as usize;
    let pads = writer.pads_last_frame();
    let (mut frames, mut raw_bytes, mut zero_frames, mut source_done) = (0, 0, 0, 0);
    workers::run_frames(
        &engines(options.engines)?,
        frame_bytes,
        Job::default,
        || {
            codec::make_tuned_deflater(codec, options.level, options.tune)
                .map_err(|error| FormatError::from(error).into())
        },
        |job: &mut Job| -> Result<bool, PackError> {
            job.number = frames;
            job.raw.resize(frame_bytes, 0);
            let filled = source.fill(&mut job.raw)?;
            job.source_bytes = filled as u64;
            if filled < frame_bytes {
                if pads {
                    job.raw[filled..].fill(0);
                } else {
                    job.raw.truncate(filled);
                }
            }
            frames += u64::from(filled > 0);
            Ok(filled > 0)
        },
        deflate,
        |job| {
            sink.write(&job.stored)?;
            writer.push(&job.packed)?;
            raw_bytes += job.raw.len() as u64;
            zero_frames += u64::from(job.packed.zero);
            source_done += job.source_bytes;
            progress(source_done);
            Ok(())
        },
    )?;
    if frames == 0 {
        return Err(FormatError::Empty {
            format: options.format.name(),
        }
        .into());
    }
    let ending = writer.finish()?;
    sink.write(&ending.tail)?;
    let stored_bytes = sink.offset;
    sink.finish(ending.front.as_deref())?;
    Ok(Report {
        format: options.format.name(),
        raw_bytes,
        stored_bytes,
        frame_bytes: options.frame_bytes,
        frames,
        zero_frames,
    })
}

/// One frame on its way.
#[derive(Debug)]
struct Job {
    number: u64,
    source_bytes: u64,
    raw: Vec<u8>,
    stored: Vec<u8>,
    packed: Packed,
}

impl Default for Job {
    fn default() -> Self {
        Self {
            number: 0,
            source_bytes: 0,
            raw: Vec::new(),
            stored: Vec::new(),
            packed: Packed::of(&[], &[]),
        }
    }
}

/// The kernel: deflates and describes one frame.
fn deflate(deflater: &mut Box<dyn Deflater>, job: &mut Job) -> Result<(), PackError> {
    (deflater.deflate(&job.raw, &mut job.stored)).map_err(|source| PackError::Deflate {
        frame: job.number,
        source,
    })?;
    job.packed = Packed::of(&job.stored, &job.raw);
    Ok(())
}

/// Where bytes are written in order.
struct Sink {
    kind: SinkKind,
    /// How many have been.
    offset: u64,
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
                let found = std::fs::metadata(path).ok();
                if found.is_some_and(|found| source == Some((found.dev(), found.ino()))) {
                    return Err(PackError::SameFile {
                        path: path.to_owned(),
                    });
                }
                let output =
                    Output::create(path, existing).map_err(|source| PackError::Target {
                        path: path.to_owned(),
                        source,
                    })?;
                (SinkKind::File(output), path.to_owned())
            }
        };
        Ok(Self {
            kind,
            offset: 0,
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
        let result = match &mut self.kind {
            SinkKind::File(output) => output.file().write_all_at(bytes, self.offset),
            SinkKind::Stdout(stdout) => stdout.write_all(bytes),
        };
        result.map_err(|error| self.failed(error))?;
        self.offset += bytes.len() as u64;
        Ok(())
    }

    /// Goes on `bytes` further without writing, where that leaves zeros.
    fn skip_zeros(&mut self, zeros: &[u8]) -> Result<(), PackError> {
        match &self.kind {
            SinkKind::File(output) if output.starts_empty() => {
                self.offset += zeros.len() as u64;
                Ok(())
            }
            _ => self.write(zeros),
        }
    }

    fn finish(self, front: Option<&[u8]>) -> Result<(), PackError> {
        let path = self.path;
        let failed = |source| PackError::Target { path, source };
        match self.kind {
            SinkKind::Stdout(mut stdout) => stdout.flush().map_err(failed),
            SinkKind::File(output) => (|| {
                if let Some(front) = front {
                    output.file().write_all_at(front, 0)?;
                }
                if output.starts_empty() {
                    output.file().set_len(self.offset)?;
                }
                output.finish()
            })()
            .map_err(failed),
        }
    }
}

/// Opens an image's file for reading.
fn open_image(path: &Path) -> Result<File, PackError> {
    File::open(path).map_err(|source| PackError::Source {
        path: path.to_owned(),
        source,
    })
}

/// A pool of as many engines as were asked for.
fn engines(engines: usize) -> Result<Pool, OffloadError> {
    Pool::start(PoolConfig {
        engines,
        ..PoolConfig::default()
    })
}

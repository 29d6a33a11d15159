//! Makes the sidecar index of a zstd file that has no index of its own.
//!
//! Why here: frames do not state everything (their sizes, and that they are sound); decompressing
//! each of them once, on all engines, finds it out.
//! Must stay true: the file is only read; its index appears under its name only when it is whole.

use super::{Existing, PackError, Sink, Target, Work, workers};
use crate::format::sidecar::{Scan, TOO_LARGE, Walked, lacks_index, name_of};
use crate::format::zstd_frame::NO_ROOM;
use crate::format::{FRAME_BYTES_MAX, Format, FormatError, Index};
use crate::image::Image;
use sidecore_bare::text::bytes;
use sidecore_bare::width::{ToU64, ToUsize};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::xxh3_64;
use zstd_safe::DCtx;

/// Result of [`index_file`].
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Indexed {
    /// Name of the index.
    pub index: PathBuf,
    /// Size of the contents in bytes.
    pub raw_bytes: u64,
    /// Size of the file in bytes.
    pub stored_bytes: u64,
    /// Contents of the largest frame in bytes.
    pub frame_bytes: u32,
    /// Number of frames.
    pub frames: u64,
    /// Size of the index in bytes.
    pub index_bytes: u64,
}

impl Indexed {
    /// The index, made in `seconds`, on a line for people.
    #[must_use]
    pub fn line(&self, seconds: f64) -> String {
        format!(
            "{}: {} in {} frames of up to {}, {} of index in {seconds:.1} s",
            self.index.display(),
            bytes(self.raw_bytes),
            self.frames,
            bytes(self.frame_bytes.into()),
            bytes(self.index_bytes),
        )
    }
}

/// Walks over the zstd file `path`, opened as `file`, decompresses its frames with these engines
/// and bounds, and writes their positions into `output`, or into the sidecar file. `progress` is
/// called, on one thread, with the number of bytes of the file that are done.
///
/// # Errors
/// [`PackError`]: the file is no zstd file, has an index of its own, or has a frame that is damaged
/// or too large. No index is then written.
pub fn index_file(
    file: &Image,
    path: &Path,
    output: Option<&Path>,
    work: impl Into<Work>,
    progress: &mut (dyn FnMut(u64) + Send),
) -> Result<Indexed, PackError> {
    match Index::read(file) {
        Err(error) if lacks_index(&error) => {}
        Err(error) => return Err(error.into()),
        Ok(index) => {
            return Err(PackError::Indexed {
                path: path.to_owned(),
                is_zstd: index.format() == Format::Zstd,
            });
        }
    }
    // Read-ahead of the kernel helps: the walk reads every byte once, in order.
    if let Some(file) = file.file() {
        let _ = rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::Sequential);
    }
    let mut scan = Scan::new(file)?;
    let file_bytes = scan.file_bytes();
    let name = output.map_or_else(|| name_of(path), Path::to_owned);
    // The output must not be the input under another name.
    let identity = file.file().and_then(|file| file.metadata().ok());
    let identity = identity.map(|found| (found.dev(), found.ino()));
    let mut sink = Sink::open(Target::Path(&name, Existing::Replace), identity)?;
    let mut walked = Walked::default();
    let (mut number, mut offset, mut done_bytes) = (0, 0, 0);
    let work = work.into();
    let held_bytes = work.engines.to_u64() * u64::from(FRAME_BYTES_MAX) / 2;
    let jobs = work.jobs(held_bytes, BATCH_FRAME_BYTES.to_u64())?;
    workers::run_frames(
        &super::engines(work.engines)?,
        BATCH_FRAME_BYTES,
        jobs,
        Job::default,
        || {
            Ok(Kernel {
                context: DCtx::create(),
                // Pages that no frame reaches are never touched.
                raw: vec![0; FRAME_BYTES_MAX.to_usize()],
            })
        },
        |job: &mut Job| {
            work.check_time()?;
            let found = scan.next(&mut job.stored)?;
            (job.number, job.offset) = (number, offset);
            number += 1;
            offset += job.stored.len().to_u64();
            Ok(found)
        },
        inflate,
        |job| -> Result<(), PackError> {
            walked.push(&job.stored, job.check, job.raw_bytes);
            done_bytes += job.stored.len().to_u64();
            progress(done_bytes);
            Ok(())
        },
    )?;
    let written = walked.write(file_bytes, &mut sink);
    written.map_err(|error| sink.unwritten(error))?;
    let index_bytes = sink.offset;
    sink.finish(None)?;
    Ok(Indexed {
        index: name,
        raw_bytes: walked.raw_bytes(),
        stored_bytes: file_bytes,
        frame_bytes: walked.raw_bytes_max(),
        frames: walked.frames(),
        index_bytes,
    })
}

/// One frame on its way.
#[derive(Default)]
struct Job {
    number: u64,
    /// Place in the file.
    offset: u64,
    stored: Vec<u8>,
    check: u64,
    raw_bytes: u32,
}

/// State of an engine from frame to frame.
struct Kernel {
    context: DCtx<'static>,
    raw: Vec<u8>,
}

/// The kernel: determines a frame's size, and checks it.
fn inflate(kernel: &mut Kernel, job: &mut Job) -> Result<(), PackError> {
    job.check = xxh3_64(&job.stored);
    let inflated = kernel.context.decompress(&mut kernel.raw[..], &job.stored);
    let refused = |code| FormatError::Scan {
        frame: job.number,
        offset: job.offset,
        reason: match code {
            NO_ROOM => TOO_LARGE,
            _ => "is damaged",
        },
    };
    job.raw_bytes = inflated.map_err(refused)? as u32;
    Ok(())
}

/// Size of a frame when jobs are counted: the real one is not known before.
const BATCH_FRAME_BYTES: usize = 4 << 20;

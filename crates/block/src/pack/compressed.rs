//! Sources that are compressed, or a disk in qcow2: what is in them is packed.
//!
//! Why here: disks are handed about as `disk.qcow2`, `disk.img.xz` and `disk.raw.zst`; unpacking
//! one first takes room for all of it. Must stay true: a stream that is damaged or cut short is an
//! error, never a shorter image; of a qcow2 image only the file that was named is read.

use super::PackError;
use super::output::nameless;
use crate::format::foreign::{self, Inside};
use liblzma::read::XzDecoder;
use sidecore_zstd::frame::is_magic;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::Command;
use zstd_safe::{DCtx, DParameter, InBuffer, OutBuffer};

/// Contents of a compressed source.
pub(super) enum Unpacked {
    /// Bytes in order.
    Stream(Box<dyn Read + Send>),
    /// A disk, in a file without a name, with its holes.
    Disk(File),
}

/// Opens what is in `file`, which begins with `head`; none where it is no kind that is known here.
/// Of a qcow2 image the disk is written to a file without a name in `scratch`: blocks until that is
/// done.
pub(super) fn open(
    path: &Path,
    file: &File,
    head: &[u8],
    scratch: &Path,
) -> Result<Option<Unpacked>, PackError> {
    let failed = |source| PackError::Source {
        path: path.to_owned(),
        source,
    };
    let again = || file.try_clone().map(BufReader::new).map_err(failed);
    let stream: Box<dyn Read + Send> = match foreign::recognize(head).and_then(|it| it.inside) {
        Some(Inside::Gzip) => Box::new(flate2::bufread::MultiGzDecoder::new(again()?)),
        Some(Inside::Xz) => Box::new(XzDecoder::new_multi_decoder(again()?)),
        Some(Inside::Qcow2) => {
            return disk_of(path, scratch).map(|disk| Some(Unpacked::Disk(disk)));
        }
        // No foreign form: one with an index is an image.
        None if is_zstd(head) => Box::new(ZstdDecoder::new(again()?).map_err(failed)?),
        None => return Ok(None),
    };
    Ok(Some(Unpacked::Stream(stream)))
}

/// True for a frame of zstd's, or a skippable one (RFC 8878 section 3.1).
fn is_zstd(head: &[u8]) -> bool {
    head.first_chunk()
        .is_some_and(|magic| is_magic(u32::from_le_bytes(*magic)))
}

/// The disk of a qcow2 image, by qemu-img.
fn disk_of(path: &Path, scratch: &Path) -> Result<File, PackError> {
    let failed = |reason: String| PackError::Source {
        path: path.to_owned(),
        source: io::Error::other(reason),
    };
    let run = |words: &[&str], image: &str, target: Option<&str>| {
        let mut command = Command::new("qemu-img");
        command.args(words).arg(image).args(target);
        match command.output() {
            Ok(output) if output.status.success() => Ok(output.stdout),
            Ok(output) => {
                let errors = String::from_utf8_lossy(&output.stderr);
                let line = errors.lines().next().unwrap_or("it said nothing");
                Err(failed(format!("qemu-img: {line}")))
            }
            Err(error) => Err(failed(format!(
                "qemu-img, which reads qcow2, cannot be run ({error}); install qemu-utils"
            ))),
        }
    };
    // As a path and nothing else: names with a colon are protocols there.
    let name = format!("file:{}", path.display());
    let info = run(&["info", "--output=json", "-f", "qcow2"], &name, None)?;
    let info: serde_json::Value =
        serde_json::from_slice(&info).map_err(|error| failed(format!("qemu-img: {error}")))?;
    let data_file = &info["format-specific"]["data"]["data-file"];
    if !info["backing-filename"].is_null() || !data_file.is_null() {
        return Err(failed(
            "it is only a part of a disk: it names another file, which is not read; put them \
             together with `qemu-img convert -O qcow2 FILE WHOLE`"
                .to_owned(),
        ));
    }
    let size = info["virtual-size"].as_u64();
    let size = size.ok_or_else(|| failed("qemu-img does not say the disk's size".to_owned()))?;
    let disk = nameless(scratch).and_then(|disk| disk.set_len(size).map(|()| disk));
    let disk =
        disk.map_err(|error| failed(format!("no file in {}: {error}", scratch.display())))?;
    let target = format!("/proc/{}/fd/{}", std::process::id(), disk.as_raw_fd());
    let words = ["convert", "-n", "-f", "qcow2", "-O", "raw"];
    run(&words, &name, Some(&target))?;
    Ok(disk)
}

/// Frames of zstd, one behind the other, as a stream.
struct ZstdDecoder<R> {
    source: R,
    context: DCtx<'static>,
    piece: Box<[u8]>,
    /// The bytes of `piece` that are not inflated yet.
    rest: std::ops::Range<usize>,
    /// A frame has begun and is not over.
    is_inside: bool,
}

impl<R: Read> ZstdDecoder<R> {
    fn new(source: R) -> io::Result<Self> {
        let mut context = DCtx::try_create().ok_or(io::ErrorKind::OutOfMemory)?;
        context
            .set_parameter(DParameter::WindowLogMax(WINDOW_LOG_MAX))
            .map_err(refused)?;
        Ok(Self {
            source,
            context,
            piece: vec![0; PIECE_BYTES].into(),
            rest: 0..0,
            is_inside: false,
        })
    }
}

impl<R: Read> Read for ZstdDecoder<R> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        if to.is_empty() {
            return Ok(0);
        }
        loop {
            if self.rest.is_empty() {
                let read = self.source.read(&mut self.piece)?;
                self.rest = 0..read;
                if read == 0 && !self.is_inside {
                    return Ok(0);
                }
            }
            let mut input = InBuffer::around(&self.piece[self.rest.clone()]);
            let mut output = OutBuffer::around(&mut *to);
            let is_at_end = self.rest.is_empty();
            let hint = self
                .context
                .decompress_stream(&mut output, &mut input)
                .map_err(refused)?;
            let (used, made) = (input.pos(), output.pos());
            self.rest.start += used;
            self.is_inside = hint != 0;
            if made > 0 {
                return Ok(made);
            }
            if is_at_end && self.is_inside {
                let cut = "the zstd stream is cut short";
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, cut));
            }
        }
    }
}

fn refused(code: usize) -> io::Error {
    io::Error::other(format!("zstd: {}", zstd_safe::get_error_name(code)))
}

/// As `zstd -d` takes without `--long`.
const WINDOW_LOG_MAX: u32 = 27;
const PIECE_BYTES: usize = 128 << 10;

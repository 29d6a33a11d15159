//! Compressed sources and qcow2 disks: their contents are packed.
//!
//! Why here: disks are distributed as `disk.qcow2`, `disk.img.xz` and `disk.raw.zst`; unpacking one
//! first takes room for all of it.
//! Must stay true: a stream that is damaged or cut short is an error, never a shorter image. Of a
//! qcow2 image only the named file is read. Bytes in a known but unsupported form are never packed
//! as a disk.

use super::PackError;
use crate::format;
use crate::format::foreign::{self, Foreign, Inside};
use crate::format::output::nameless;
use crate::format::zstd_frame::is_magic;
use liblzma::read::XzDecoder;
use liblzma::stream::{CONCATENATED, Stream};
use sidecore_bare::width::ToU64;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use zstd_safe::{DCtx, DParameter, InBuffer, OutBuffer};

/// True if `head` begins a disk in qcow2.
pub(super) fn is_qcow2(head: &[u8]) -> bool {
    inside(head) == Some(Inside::Qcow2)
}

/// True if `head` begins a compressed stream in a supported format.
pub(super) fn is_stream(head: &[u8]) -> bool {
    is_zstd(head) || matches!(inside(head), Some(Inside::Gzip | Inside::Xz))
}

fn inside(head: &[u8]) -> Option<Inside> {
    foreign::recognize(head).and_then(|it| it.inside)
}

/// Refuses a file with this `head` and `end` if it is in a known but unsupported form.
pub(super) fn refuse(
    path: &Path,
    head: &[u8],
    end: &[u8],
    is_inside: bool,
) -> Result<(), PackError> {
    let found = foreign::recognize(head)
        .or_else(|| foreign::recognize_archive(head))
        .or_else(|| foreign::recognize_end(end));
    match found {
        // Nested, or where this form is not supported.
        Some(Foreign { inside, .. }) if inside.is_some() => Err(PackError::Foreign {
            path: path.to_owned(),
            kind: found.map_or("file", |it| it.kind),
            is_inside,
            next: match inside {
                Some(Inside::Qcow2) => "`sidecore block pack --decompress` of it as a plain file",
                _ => "the decompressors one behind the other, `... | sidecore block pack -`",
            },
        }),
        Some(Foreign { kind, next, .. }) => Err(PackError::Foreign {
            path: path.to_owned(),
            kind,
            is_inside,
            next,
        }),
        None => Ok(()),
    }
}

/// Refuses an image that this program reads itself: another command unpacks it.
pub(super) fn refuse_image(path: &Path, file: &File, head: &[u8]) -> Result<(), PackError> {
    let kind = match format::kind_of_image(file, head) {
        None => return Ok(()),
        Some(kind) => kind,
    };
    Err(PackError::Foreign {
        path: path.to_owned(),
        kind,
        is_inside: false,
        next: "`sidecore block unpack FILE -o - | sidecore block pack - -o IMAGE`",
    })
}

/// A stream, and true if it was decompressed.
pub(super) type Opened = (Box<dyn Read + Send>, bool);

/// Opens `stream` and decompresses it if necessary. The decompressor uses at most `memory_bytes`.
pub(super) fn open(
    path: &Path,
    stream: Box<dyn Read + Send>,
    memory_bytes: u64,
) -> Result<Opened, PackError> {
    let failed = |source| PackError::Source {
        path: path.to_owned(),
        source,
    };
    let (head, stream) = peek(stream).map_err(failed)?;
    let unpacked = match decoder(&head, BufReader::new(stream), memory_bytes).map_err(failed)? {
        Decoder::Of(unpacked) => unpacked,
        Decoder::None(stream) => {
            refuse(path, &head, &[], false)?;
            return Ok((Box::new(Tailed::new(stream)), false));
        }
    };
    // The decompressed bytes may be in a foreign format, too.
    let (head, unpacked) = peek(unpacked).map_err(failed)?;
    refuse(path, &head, &[], true)?;
    Ok((Box::new(Tailed::new(unpacked)), true))
}

/// A stream that is decompressed if necessary, whatever is in it.
pub(super) fn plain(
    stream: Box<dyn Read + Send>,
    memory_bytes: u64,
) -> io::Result<Box<dyn Read + Send>> {
    let (head, stream) = peek(stream)?;
    Ok(
        match decoder(&head, BufReader::new(stream), memory_bytes)? {
            Decoder::Of(unpacked) => unpacked,
            Decoder::None(stream) => Box::new(stream),
        },
    )
}

type Buffered = BufReader<Box<dyn Read + Send>>;

/// The decompressor of a stream.
enum Decoder {
    Of(Box<dyn Read + Send>),
    /// It is not compressed in a supported format.
    None(Buffered),
}

/// The decoder of a stream that begins with `head`.
fn decoder(head: &[u8], stream: Buffered, memory_bytes: u64) -> io::Result<Decoder> {
    Ok(Decoder::Of(match inside(head) {
        Some(Inside::Gzip) => Box::new(flate2::bufread::MultiGzDecoder::new(stream)),
        Some(Inside::Xz) => {
            let decoder = Stream::new_stream_decoder(memory_bytes, CONCATENATED)?;
            Box::new(Limited(XzDecoder::new_stream(stream, decoder)))
        }
        None if is_zstd(head) => Box::new(ZstdDecoder::new(stream, memory_bytes)?),
        _ => return Ok(Decoder::None(stream)),
    }))
}

/// The first bytes of a stream, and the stream with them.
pub(super) fn peek(
    mut stream: Box<dyn Read + Send>,
) -> io::Result<(Vec<u8>, Box<dyn Read + Send>)> {
    let mut head = Vec::with_capacity(foreign::HEAD_BYTES);
    let first = stream.by_ref().take(foreign::HEAD_BYTES.to_u64());
    { first }.read_to_end(&mut head)?;
    let again = io::Cursor::new(head.clone()).chain(stream);
    Ok((head, Box::new(again)))
}

/// A stream that ends with an error if its last bytes mark a disk in an unsupported form: only the
/// last bytes show it.
struct Tailed<R> {
    stream: R,
    end: Vec<u8>,
}

impl<R> Tailed<R> {
    fn new(stream: R) -> Self {
        Self {
            stream,
            end: Vec::new(),
        }
    }
}

impl<R: Read> Read for Tailed<R> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let read = self.stream.read(to)?;
        // Some formats are recognized only by their last bytes, which are known now.
        if read == 0 && !to.is_empty() {
            return match foreign::recognize_end(&self.end) {
                Some(Foreign { kind, next, .. }) => Err(io::Error::other(format!(
                    "it is a {kind}, which is not read as it is; run {next}, or give --raw for its \
                     bytes"
                ))),
                None => Ok(0),
            };
        }
        let last = &to[read - read.min(foreign::END_BYTES)..read];
        self.end.extend_from_slice(last);
        let spare = self.end.len().saturating_sub(foreign::END_BYTES);
        self.end.drain(..spare);
        Ok(read)
    }
}

/// An xz decoder whose error names the memory bound.
struct Limited<R>(R);

impl<R: Read> Read for Limited<R> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        self.0.read(to).map_err(|error| {
            let inner = error
                .get_ref()
                .and_then(|it| it.downcast_ref::<liblzma::stream::Error>());
            match inner {
                Some(liblzma::stream::Error::MemLimit) => io::Error::other(
                    "its xz dictionary takes more than --memory allows; allow more",
                ),
                _ => error,
            }
        })
    }
}

/// True for a zstd frame, or a skippable one (RFC 8878 section 3.1).
fn is_zstd(head: &[u8]) -> bool {
    head.first_chunk()
        .is_some_and(|magic| is_magic(u32::from_le_bytes(*magic)))
}

/// The disk of the qcow2 image that is open as `file`, by qemu-img.
pub(super) fn disk_of(path: &Path, file: &File, scratch: &Path) -> Result<File, PackError> {
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
    let no_room = |error: io::Error| failed(format!("no file in {}: {error}", scratch.display()));
    let copy = copy_of_foreign(file, scratch).map_err(no_room)?;
    let file = copy.as_ref().unwrap_or(file);
    // By descriptor: another file may have the name by the time that qemu-img opens it.
    let name = format!("file:{}", place_of(file));
    let info = run(&["info", "--output=json", "-f", "qcow2"], &name, None)?;
    let info: serde_json::Value =
        serde_json::from_slice(&info).map_err(|error| failed(format!("qemu-img: {error}")))?;
    let data_file = &info["format-specific"]["data"]["data-file"];
    // A backing file could be any file of this machine, chosen by the author of the image.
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
    let disk = disk.map_err(no_room)?;
    let words = ["convert", "-n", "-f", "qcow2", "-O", "raw"];
    run(&words, &name, Some(&place_of(&disk)))?;
    Ok(disk)
}

/// A path by which another process reaches an open file; no other user can exchange it.
fn place_of(file: &File) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd())
}

/// A copy of a file that another user may change; none of other files. Between the look at its head
/// and the use of it, that user could make it name a file that only this user may read.
fn copy_of_foreign(file: &File, scratch: &Path) -> io::Result<Option<File>> {
    let found = file.metadata()?;
    let is_own = found.uid() == 0 || found.uid() == rustix::process::geteuid().as_raw();
    if is_own && found.mode() & 0o022 == 0 {
        return Ok(None);
    }
    let mut copy = nameless(scratch)?;
    // Opened again: the first descriptor's offset is its reader's.
    let mut from = File::open(place_of(file))?;
    io::copy(&mut from, &mut copy)?;
    Ok(Some(copy))
}

/// zstd frames, one after another, as a stream.
struct ZstdDecoder<R> {
    source: R,
    context: DCtx<'static>,
    piece: Box<[u8]>,
    /// The bytes of `piece` that are not decompressed yet.
    rest: std::ops::Range<usize>,
    /// A frame has begun and is not over.
    is_inside: bool,
}

impl<R: Read> ZstdDecoder<R> {
    fn new(source: R, memory_bytes: u64) -> io::Result<Self> {
        let mut context = DCtx::try_create().ok_or(io::ErrorKind::OutOfMemory)?;
        let window_log = memory_bytes.max(WINDOW_BYTES_MIN).ilog2();
        let parameter = DParameter::WindowLogMax(window_log.min(WINDOW_LOG_MAX));
        context.set_parameter(parameter).map_err(refused)?;
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
                // Between frames the end of the source is the end of the stream.
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
            // The decoder may still hold output after the last input; only without any is the
            // stream cut short.
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

/// The largest window that `zstd -d` accepts without `--long`.
const WINDOW_LOG_MAX: u32 = 27;
/// Enough for every zstd file at the usual levels.
const WINDOW_BYTES_MIN: u64 = 8 << 20;
const PIECE_BYTES: usize = 128 << 10;

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::{FileExt, PermissionsExt};

    /// As of a file whose owner puts another one's name into it meanwhile.
    #[test]
    fn a_disk_that_others_may_change_is_copied_first() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk.qcow2");
        std::fs::write(&path, "first").unwrap();
        let file = File::open(&path).unwrap();
        for (mode, is_copied) in [(0o644, false), (0o664, true), (0o666, true)] {
            std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            let copy = copy_of_foreign(&file, folder.path()).unwrap();
            assert_eq!(copy.is_some(), is_copied, "{mode:o}");
            if let Some(copy) = copy {
                std::fs::write(&path, "other").unwrap();
                let mut bytes = [0; 5];
                copy.read_exact_at(&mut bytes, 0).unwrap();
                assert_eq!(&bytes, b"first");
                std::fs::write(&path, "first").unwrap();
            }
        }
    }
}

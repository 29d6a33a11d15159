//! Decompresses files: gzip (bgzip's blocks too), zstd, xz and bzip2, recognised by their first
//! bytes.
//!
//! Alignments and trees are often kept compressed; [`unpack`] runs before their parsers and returns
//! plain files unchanged. [`reader`] does the same with files of which a small part is in memory at
//! a time. A file's name is not looked at.
//! Must stay true: any bytes are accepted, and the output is bounded: a few kilobytes may unpack to
//! terabytes. Sources: RFC 1952 (gzip, members after one another), RFC 8878 (zstd), the .xz file
//! format 1.2.
//!
//! ```
//! use sidecore_alignment::packed::{UNPACKED_BYTES_MAX, unpack};
//!
//! assert_eq!(unpack(b">a\nAC\n".to_vec(), UNPACKED_BYTES_MAX)?, b">a\nAC\n");
//! assert!(unpack(b"\x1F\x8Bbroken".to_vec(), UNPACKED_BYTES_MAX).is_err());
//! # Ok::<(), sidecore_alignment::packed::PackedError>(())
//! ```

use liblzma::stream::{Action, Stream};
use sidecore_bare::width::ToUsize;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use zlib_rs::{Inflate, InflateFlush};
use zstd_safe::{DCtx, InBuffer, OutBuffer};

/// Errors of a compressed file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PackedError {
    /// It unpacks to more than the limit.
    #[error(
        "the {format} file unpacks to more than {} MiB: if that is right, unpack it yourself and \
         give the plain file, or allow more (--memory)",
        max >> 20
    )]
    TooLarge {
        /// gzip, zstd, xz or bzip2.
        format: &'static str,
        /// The limit, bytes.
        max: usize,
    },
    /// A compressed file that is not read.
    #[error(
        "it is a {format} file: gzip, zstd, xz and bzip2 are read; unpack it, and give the plain \
         file"
    )]
    Unsupported {
        /// Its format.
        format: &'static str,
    },
    /// It ends too early.
    #[error("the {format} file is cut off after {at} bytes: copy it again")]
    Cut {
        /// gzip, zstd, xz or bzip2.
        format: &'static str,
        /// Bytes of the file.
        at: usize,
    },
    /// It is damaged, or made in a way that is not supported.
    #[error("the {format} file is damaged at about byte {at}: {what}")]
    Damaged {
        /// gzip, zstd, xz or bzip2.
        format: &'static str,
        /// About where, from 0.
        at: usize,
        /// The decompressor's message.
        what: String,
    },
}

/// Unpacks a gzip, zstd, xz or bzip2 file; other bytes are returned unchanged.
///
/// Memory: the output, at most `max` bytes, and a window of at most 128 MiB.
///
/// # Errors
/// [`PackedError`].
pub fn unpack(bytes: Vec<u8>, max: usize) -> Result<Vec<u8>, PackedError> {
    let Some(decoder) = Decoder::of(&bytes)? else {
        return Ok(bytes);
    };
    let format = decoder.format();
    let mut unpacking = Unpacking::new(decoder, &bytes[..]);
    let (mut all, mut block) = (Vec::new(), vec![0; BLOCK_BYTES]);
    loop {
        match unpacking.read(&mut block) {
            Ok(0) => return Ok(all),
            // Checked block by block: a bomb is found before it is unpacked, and no more than a
            // block above the limit is ever in memory.
            Ok(count) if all.len() + count > max => {
                return Err(PackedError::TooLarge { format, max });
            }
            Ok(count) => all.extend_from_slice(&block[..count]),
            Err(error) => {
                // Bytes in memory are always there: all other errors are the decompressor's.
                let at = unpacking.at;
                let other = |error: io::Error| damaged(format, at, &error.to_string());
                return Err(error.downcast().unwrap_or_else(other));
            }
        }
    }
}

/// Reads a gzip, zstd, xz or bzip2 file unpacked; other bytes come unchanged. `source` may be a
/// pipe.
///
/// Memory: blocks of 128 KiB and a window of at most 128 MiB. The output has no bound.
///
/// # Errors
/// The source's, and a [`PackedError`] as an [`io::Error`], from here or from reading.
pub fn reader<'s>(mut source: impl BufRead + 's) -> io::Result<Box<dyn BufRead + 's>> {
    let mut head = Vec::new();
    source.by_ref().take(HEAD_BYTES).read_to_end(&mut head)?;
    let decoder = Decoder::of(&head)?;
    let whole = Cursor::new(head).chain(source);
    let Some(decoder) = decoder else {
        return Ok(Box::new(whole));
    };
    let unpacking = Unpacking::new(decoder, whole);
    Ok(Box::new(BufReader::with_capacity(BLOCK_BYTES, unpacking)))
}

impl From<PackedError> for io::Error {
    fn from(error: PackedError) -> Self {
        Self::new(io::ErrorKind::InvalidData, error)
    }
}

/// The decompressed bytes of a source.
struct Unpacking<R> {
    source: R,
    decoder: Decoder,
    /// Bytes of the source that were taken.
    at: usize,
    /// A stream (a member, a frame) has begun and is not over.
    is_inside: bool,
    /// Zeros were behind a stream.
    is_padded: bool,
}

impl<R: BufRead> Unpacking<R> {
    fn new(decoder: Decoder, source: R) -> Self {
        Self {
            source,
            decoder,
            at: 0,
            is_inside: true,
            is_padded: false,
        }
    }
}

impl<R: BufRead> Read for Unpacking<R> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let format = self.decoder.format();
        while !to.is_empty() {
            let input = self.source.fill_buf()?;
            if !self.is_inside {
                let Some(&first) = input.first() else {
                    break;
                };
                // Tape blocks are padded with zeros; gzip ignores them, too.
                if first == 0 && matches!(self.decoder, Decoder::Gzip(_)) {
                    let zeros = input.iter().take_while(|&&byte| byte == 0).count();
                    self.source.consume(zeros);
                    self.at += zeros;
                    self.is_padded = true;
                    continue;
                }
                // Behind zeros gzip takes a member for garbage, too.
                if self.is_padded || !self.decoder.begin(first) {
                    return Err(damaged(format, self.at, "something else follows").into());
                }
            }
            let step = self.decoder.step(input, to);
            let step = step.map_err(|(used, what)| damaged(format, self.at + used, what))?;
            self.source.consume(step.used);
            self.at += step.used;
            self.is_inside = !step.is_end;
            if step.made > 0 {
                return Ok(step.made);
            }
            // No progress: the data end within a stream.
            if step.used == 0 && self.is_inside {
                let at = self.at;
                return Err(PackedError::Cut { format, at }.into());
            }
        }
        Ok(0)
    }
}

/// A decompressor.
enum Decoder {
    Gzip(Inflate),
    Zstd(DCtx<'static>),
    Xz(Stream),
    Bzip2(bzip2::Decompress),
}

/// Progress of one call of a decompressor.
struct Step {
    /// Bytes of the input.
    used: usize,
    /// Bytes of the output.
    made: usize,
    /// A stream is over.
    is_end: bool,
}

impl Decoder {
    /// The one for a file that begins with these bytes; `None` for a plain file.
    fn of(head: &[u8]) -> Result<Option<Self>, PackedError> {
        // By content: names lie, and standard input has none.
        let is = |mark: &[u8]| head.starts_with(mark);
        let no_memory = |format| damaged(format, 0, "no memory to unpack it with");
        Ok(Some(if is(&GZIP) {
            Self::Gzip(Inflate::new(true, GZIP_WINDOW_BITS))
        } else if is(&ZSTD) {
            Self::Zstd(DCtx::try_create().ok_or_else(|| no_memory("zstd"))?)
        } else if is(&XZ) {
            // Without a limit a file of some bytes could request a window of 4 GiB. Streams may
            // follow one another, padded with zeros, as `cat` and pixz write them.
            let stream = Stream::new_stream_decoder(XZ_WINDOW_BYTES_MAX, CONCATENATED);
            Self::Xz(stream.map_err(|_| no_memory("xz"))?)
        } else if is(&BZIP2) {
            Self::Bzip2(bzip2::Decompress::new(false))
        } else if let Some((_, format)) = OTHERS.iter().find(|(mark, _)| is(mark)) {
            return Err(PackedError::Unsupported { format });
        } else {
            return Ok(None);
        }))
    }

    fn format(&self) -> &'static str {
        match self {
            Self::Gzip(_) => "gzip",
            Self::Zstd(_) => "zstd",
            Self::Xz(_) => "xz",
            Self::Bzip2(_) => "bzip2",
        }
    }

    /// Begins the next stream of a file that holds several: bgzip writes a member a block, parallel
    /// programs a stream a block. False where this byte begins none.
    fn begin(&mut self, first: u8) -> bool {
        match self {
            // A new one for each member: totals count from its first byte.
            Self::Gzip(inflate) if first == GZIP[0] => {
                *inflate = Inflate::new(true, GZIP_WINDOW_BITS);
            }
            Self::Bzip2(stream) if first == BZIP2[0] => *stream = bzip2::Decompress::new(false),
            // The context begins the next frame itself, or refuses it.
            Self::Zstd(_) => {}
            _ => return false,
        }
        true
    }

    /// Decompresses some bytes; no input is the source's end. An error comes with the bytes that
    /// were used up to it.
    fn step(&mut self, input: &[u8], to: &mut [u8]) -> Result<Step, (usize, &'static str)> {
        let (used, made, is_end) = match self {
            Self::Gzip(inflate) => {
                let (read, written) = (inflate.total_in(), inflate.total_out());
                let status = inflate.decompress(input, to, InflateFlush::NoFlush);
                let used = (inflate.total_in() - read).to_usize();
                let status = status
                    .map_err(|error| (used, inflate.error_message().unwrap_or(error.as_str())))?;
                let made = (inflate.total_out() - written).to_usize();
                (used, made, status == zlib_rs::Status::StreamEnd)
            }
            Self::Zstd(context) => {
                let mut input = InBuffer::around(input);
                let mut output = OutBuffer::around(to);
                let hint = context.decompress_stream(&mut output, &mut input);
                let used = input.pos();
                let hint = hint.map_err(|code| (used, zstd_safe::get_error_name(code)))?;
                // At a frame's end the decoder asks for 0 bytes more.
                (used, output.pos(), hint == 0)
            }
            Self::Xz(stream) => {
                let (read, written) = (stream.total_in(), stream.total_out());
                // Only `Finish` has the decoder of several streams report the end of the last one.
                let action = match input.is_empty() {
                    true => Action::Finish,
                    false => Action::Run,
                };
                let status = stream.process(input, to, action);
                let used = (stream.total_in() - read).to_usize();
                let status = status.map_err(|error| match error {
                    liblzma::stream::Error::MemLimit => {
                        (used, "its window is larger than xz -9 makes")
                    }
                    _ => (used, WRONG),
                })?;
                let made = (stream.total_out() - written).to_usize();
                (used, made, status == liblzma::stream::Status::StreamEnd)
            }
            Self::Bzip2(stream) => {
                let (read, written) = (stream.total_in(), stream.total_out());
                let status = stream.decompress(input, to);
                let used = (stream.total_in() - read).to_usize();
                let status = status.map_err(|_| (used, WRONG))?;
                let made = (stream.total_out() - written).to_usize();
                (used, made, status == bzip2::Status::StreamEnd)
            }
        };
        Ok(Step { used, made, is_end })
    }
}

fn damaged(format: &'static str, at: usize, what: &str) -> PackedError {
    PackedError::Damaged {
        format,
        at,
        what: what.to_owned(),
    }
}

/// The message about bytes of which the decompressor says no more.
const WRONG: &str = "the compressed bytes are wrong";
/// The most bytes that the commands unpack a file to.
pub const UNPACKED_BYTES_MAX: usize = 2 << 30;
const GZIP: [u8; 2] = [0x1F, 0x8B];
const ZSTD: [u8; 4] = [0x28, 0xB5, 0x2F, 0xFD];
const XZ: [u8; 6] = *b"\xFD7zXZ\0";
const BZIP2: [u8; 3] = *b"BZh";
/// liblzma's flag for streams after one another.
const CONCATENATED: u32 = 0x08;
/// `xz -9` needs 65 MiB.
const XZ_WINDOW_BYTES_MAX: u64 = 128 << 20;
/// Formats that are recognised, for the error, and not read.
const OTHERS: [(&[u8], &str); 4] = [
    (b"\x04\x22\x4D\x18", "LZ4"),
    (b"PK\x03\x04", "zip"),
    (b"7z\xBC\xAF\x27\x1C", "7z"),
    (b"\x1F\x9D", "compress"),
];
/// zlib's parameter for a gzip header: 16 plus the logarithm of the window.
const GZIP_WINDOW_BITS: u8 = 16 + 15;
/// Bytes by which a file is recognised.
const HEAD_BYTES: u64 = 8;
const BLOCK_BYTES: usize = 128 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    fn gz(text: &[u8]) -> Vec<u8> {
        let config = zlib_rs::DeflateConfig {
            window_bits: 31,
            ..zlib_rs::DeflateConfig::default()
        };
        let mut out = vec![0; text.len() + 1_000];
        let (stream, code) = zlib_rs::compress_slice(&mut out, text, config);
        assert_eq!(code, zlib_rs::ReturnCode::Ok);
        stream.to_vec()
    }

    fn xz_of(text: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        let mut encoder = liblzma::write::XzEncoder::new(&mut out, 6);
        std::io::Write::write_all(&mut encoder, text).unwrap();
        encoder.finish().unwrap();
        out
    }

    fn bz2_of(text: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        let mut encoder = ::bzip2::write::BzEncoder::new(&mut out, ::bzip2::Compression::fast());
        std::io::Write::write_all(&mut encoder, text).unwrap();
        encoder.finish().unwrap();
        out
    }

    fn zst(text: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(text.len() + 1_000);
        zstd_safe::compress(&mut out, text, 3).unwrap();
        out
    }

    #[test]
    fn plain_and_packed_files_come_out_alike() {
        let text: Vec<u8> = (0..400_000_u32)
            .map(|i| b"ACGT"[(i % 7 % 4) as usize])
            .collect();
        assert_eq!(unpack(text.clone(), 10).unwrap(), text);
        for pack in [gz, zst, xz_of, bz2_of] {
            assert_eq!(unpack(pack(&text), text.len()).unwrap(), text);
            // Several members or frames after one another: bgzip, pzstd, cat.
            let twice = [pack(&text[..1_000]), pack(&text[1_000..])].concat();
            assert_eq!(unpack(twice, text.len()).unwrap(), text);
            assert_eq!(unpack(pack(b""), 0).unwrap(), b"");
            // A source that gives few bytes at a time, as a pipe may.
            for piece in [1, 7, 1 << 20] {
                let packed = [pack(&text[..10_000]), pack(&text[10_000..20_000])].concat();
                let read = |bytes: &[u8]| -> io::Result<Vec<u8>> {
                    let mut all = Vec::new();
                    let source = BufReader::with_capacity(piece, bytes);
                    reader(source)?.read_to_end(&mut all).map(|_| all)
                };
                assert_eq!(read(&packed).unwrap(), text[..20_000]);
                let cut = read(&packed[..packed.len() - 9]).unwrap_err();
                let cut = cut.downcast::<PackedError>().unwrap();
                let at = packed.len() - 9;
                assert!(matches!(cut, PackedError::Cut { at: found, .. } if found == at));
                assert_eq!(read(&text[..100]).unwrap(), text[..100]);
                assert_eq!(read(b"").unwrap(), b"");
            }
        }
        let padded = [gz(b"AC"), vec![0; 100]].concat();
        assert_eq!(unpack(padded.clone(), 10).unwrap(), b"AC");
        for follows in [gz(b"GT"), b"GT".to_vec()] {
            let both = [padded.clone(), follows].concat();
            let error = damaged("gzip", padded.len(), "something else follows");
            let mut source = reader(BufReader::with_capacity(7, &both[..])).unwrap();
            let found = source.read_to_end(&mut Vec::new()).unwrap_err();
            assert_eq!(found.downcast::<PackedError>().unwrap(), error);
            drop(source);
            assert_eq!(unpack(both, 10).unwrap_err(), error);
        }
    }

    #[test]
    fn formats_that_are_not_read_are_named() {
        for (mark, format) in OTHERS {
            let error = unpack([mark, b"more"].concat(), 100).unwrap_err();
            assert_eq!(error, PackedError::Unsupported { format });
        }
    }

    #[test]
    fn damage_and_bombs_are_one_line() {
        let zeros = vec![0; 8 << 20];
        for (format, pack) in [
            ("gzip", gz as fn(&[u8]) -> Vec<u8>),
            ("zstd", zst),
            ("xz", xz_of),
            ("bzip2", bz2_of),
        ] {
            let bomb = unpack(pack(&zeros), 1 << 20).unwrap_err();
            assert!(bomb.to_string().contains("more than 1 MiB"), "{bomb}");
            let packed = pack(b"ACGTACGTAAGTCC");
            for cut in 6..packed.len() {
                let error = unpack(packed[..cut].to_vec(), 100).unwrap_err();
                assert_eq!(error, PackedError::Cut { format, at: cut }, "{cut}");
            }
            let mut followed = packed.clone();
            followed.extend_from_slice(b"more");
            let error = unpack(followed, 100).unwrap_err();
            // "more" could be the beginning of a further stream.
            let is_refused = matches!(error, PackedError::Damaged { .. } | PackedError::Cut { .. });
            assert!(is_refused, "{format}: {error:?}");
            for at in 0..packed.len() {
                let mut damaged = packed.clone();
                damaged[at] ^= 0x55;
                // Accepted or refused, never a panic.
                if let Err(error) = unpack(damaged, 100) {
                    assert!(!error.to_string().contains('\n'), "{error}");
                }
            }
        }
    }
}

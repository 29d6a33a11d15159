//! Decompresses files: gzip (bgzip's blocks too), zstd, xz and bzip2, recognised by their first
//! bytes.
//!
//! Alignments and trees are often kept compressed; [`unpack`] runs before their parsers and returns
//! plain files unchanged. A file's name is not looked at.
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
use zlib_rs::{Inflate, InflateFlush, Status};
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
    // By content: names lie, and standard input has none.
    if bytes.starts_with(&GZIP) {
        gzip(&bytes, max)
    } else if bytes.starts_with(&ZSTD) {
        zstd(&bytes, max)
    } else if bytes.starts_with(&XZ) {
        xz(&bytes, max)
    } else if bytes.starts_with(&BZIP2) {
        bzip2(&bytes, max)
    } else if let Some((_, format)) = OTHERS.iter().find(|(mark, _)| bytes.starts_with(mark)) {
        Err(PackedError::Unsupported { format })
    } else {
        Ok(bytes)
    }
}

fn gzip(bytes: &[u8], max: usize) -> Result<Vec<u8>, PackedError> {
    let mut out = Output::new("gzip", max);
    let mut rest = bytes;
    // bgzip writes one member a block, so members continue until the data end.
    while rest.starts_with(&GZIP) {
        // A new one for each member: totals count from its first byte.
        let mut inflate = Inflate::new(true, GZIP_WINDOW_BITS);
        loop {
            let (read, written) = (inflate.total_in(), inflate.total_out());
            let at = read.to_usize();
            let status = inflate.decompress(&rest[at..], &mut out.block, InflateFlush::NoFlush);
            let status = status.map_err(|error| {
                let at = bytes.len() - rest.len() + inflate.total_in().to_usize();
                out.damaged(at, inflate.error_message().unwrap_or(error.as_str()))
            })?;
            let count = (inflate.total_out() - written).to_usize();
            // Checked block by block: a bomb is found before it is unpacked.
            out.take(count)?;
            if status == Status::StreamEnd {
                rest = &rest[inflate.total_in().to_usize()..];
                break;
            }
            // No progress: the data end within a member.
            if count == 0 && inflate.total_in() == read {
                return Err(out.cut(bytes));
            }
        }
    }
    // Tape blocks are padded with zeros; gzip ignores them, too.
    match rest.iter().all(|&byte| byte == 0) {
        true => Ok(out.all),
        false => Err(out.damaged(bytes.len() - rest.len(), "something else follows")),
    }
}

fn zstd(bytes: &[u8], max: usize) -> Result<Vec<u8>, PackedError> {
    let mut out = Output::new("zstd", max);
    let mut context = DCtx::create();
    let mut input = InBuffer::around(bytes);
    loop {
        let before = input.pos();
        let mut output = OutBuffer::around(&mut out.block[..]);
        let hint = context.decompress_stream(&mut output, &mut input);
        let count = output.pos();
        // At a frame's end the decoder asks for 0 bytes more; the next frame follows at once.
        let hint =
            hint.map_err(|code| out.damaged(input.pos(), zstd_safe::get_error_name(code)))?;
        out.take(count)?;
        // A frame that ended with the data; one that has not would still ask for bytes.
        if hint == 0 && input.pos() == bytes.len() {
            return Ok(out.all);
        }
        if count == 0 && input.pos() == before {
            return Err(out.cut(bytes));
        }
    }
}

fn xz(bytes: &[u8], max: usize) -> Result<Vec<u8>, PackedError> {
    let mut out = Output::new("xz", max);
    // Without a limit a file of some bytes could request a window of 4 GiB. Streams may follow one
    // another, padded with zeros, as `cat` and pixz write them.
    let stream = Stream::new_stream_decoder(XZ_WINDOW_BYTES_MAX, CONCATENATED);
    let mut stream = stream.map_err(|_| out.damaged(0, "no memory to unpack it with"))?;
    loop {
        let (read, written) = (stream.total_in(), stream.total_out());
        let rest = &bytes[read.to_usize()..];
        // All input is there, and only `Finish` has the decoder of several streams report the end
        // of the last one.
        let status = stream.process(rest, &mut out.block, Action::Finish);
        let status = status.map_err(|error| {
            let what = match error {
                liblzma::stream::Error::MemLimit => "its window is larger than xz -9 makes",
                _ => "the compressed bytes are wrong",
            };
            out.damaged(stream.total_in().to_usize(), what)
        })?;
        let count = (stream.total_out() - written).to_usize();
        out.take(count)?;
        if status == liblzma::stream::Status::StreamEnd {
            return Ok(out.all);
        }
        if count == 0 && stream.total_in() == read {
            return Err(out.cut(bytes));
        }
    }
}

fn bzip2(bytes: &[u8], max: usize) -> Result<Vec<u8>, PackedError> {
    let mut out = Output::new("bzip2", max);
    let mut rest = bytes;
    // Parallel programs write a stream a block.
    while rest.starts_with(&BZIP2) {
        let mut stream = bzip2::Decompress::new(false);
        loop {
            let (read, written) = (stream.total_in(), stream.total_out());
            let status = stream.decompress(&rest[read.to_usize()..], &mut out.block);
            let at = bytes.len() - rest.len() + stream.total_in().to_usize();
            let status = status.map_err(|_| out.damaged(at, "the compressed bytes are wrong"))?;
            let count = (stream.total_out() - written).to_usize();
            out.take(count)?;
            if status == bzip2::Status::StreamEnd {
                rest = &rest[stream.total_in().to_usize()..];
                break;
            }
            if count == 0 && stream.total_in() == read {
                return Err(out.cut(bytes));
            }
        }
    }
    match rest.is_empty() {
        true => Ok(out.all),
        false => Err(out.damaged(bytes.len() - rest.len(), "something else follows")),
    }
}

/// Unpacked bytes, block by block.
struct Output {
    format: &'static str,
    max: usize,
    block: Vec<u8>,
    all: Vec<u8>,
}

impl Output {
    fn new(format: &'static str, max: usize) -> Self {
        Self {
            format,
            max,
            block: vec![0; BLOCK_BYTES],
            all: Vec::new(),
        }
    }

    /// Appends the block's first bytes.
    fn take(&mut self, count: usize) -> Result<(), PackedError> {
        // Before the bytes are kept: no more than a block above the limit is ever in memory.
        if self.all.len() + count > self.max {
            return Err(PackedError::TooLarge {
                format: self.format,
                max: self.max,
            });
        }
        self.all.extend_from_slice(&self.block[..count]);
        Ok(())
    }

    fn damaged(&self, at: usize, what: &str) -> PackedError {
        PackedError::Damaged {
            format: self.format,
            at,
            what: what.to_owned(),
        }
    }

    fn cut(&self, bytes: &[u8]) -> PackedError {
        PackedError::Cut {
            format: self.format,
            at: bytes.len(),
        }
    }
}

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
        }
        let padded = [gz(b"AC"), vec![0; 100]].concat();
        assert_eq!(unpack(padded, 10).unwrap(), b"AC");
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

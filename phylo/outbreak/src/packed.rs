//! Files as streams of decompressed bytes: gzip, xz, bzip2 and zstd, recognised by their first
//! bytes.
//!
//! Why here: `sidecore-phylo` decompresses whole files, which are sixty times a list's size here.
//! Must stay true: windows are bounded; any bytes are taken or refused.

use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::path::Path;
use zstd_safe::{DCtx, InBuffer, OutBuffer};

/// An opened file.
pub(crate) type Stream<'s> = Box<dyn BufRead + 's>;

/// Opens a file, decompressed if it is compressed.
pub(crate) fn open<'s>(path: &Path) -> io::Result<Stream<'s>> {
    let mut file = sidecore_sys::input::open(path)?;
    let mut head = Vec::new();
    file.by_ref().take(HEAD_BYTES).read_to_end(&mut head)?;
    let is = |mark: &[u8]| head.starts_with(mark);
    let kind = [&b"\x1F\x8B"[..], b"\xFD7zXZ\0", b"BZh", b"\x28\xB5\x2F\xFD"];
    let kind = kind.into_iter().position(is);
    let whole = BufReader::with_capacity(PIECE_BYTES, Cursor::new(head).chain(file));
    let plain: Box<dyn Read> = match kind {
        None => return Ok(Box::new(whole)),
        Some(0) => Box::new(flate2::bufread::MultiGzDecoder::new(whole)),
        Some(1) => {
            let stream = liblzma::stream::Stream::new_stream_decoder(XZ_WINDOW_MAX, CONCATENATED);
            let stream = stream.map_err(io::Error::from)?;
            Box::new(liblzma::bufread::XzDecoder::new_stream(whole, stream))
        }
        Some(2) => Box::new(bzip2::bufread::MultiBzDecoder::new(whole)),
        Some(_) => Box::new(Zstd {
            source: whole,
            context: DCtx::try_create().ok_or(io::ErrorKind::OutOfMemory)?,
            is_inside: false,
        }),
    };
    Ok(Box::new(BufReader::with_capacity(PIECE_BYTES, plain)))
}

/// A zstd stream, decompressed.
struct Zstd<R> {
    source: R,
    context: DCtx<'static>,
    /// A frame has begun and is not over.
    is_inside: bool,
}

impl<R: BufRead> Read for Zstd<R> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        while !to.is_empty() {
            let piece = self.source.fill_buf()?;
            let is_end = piece.is_empty();
            if is_end && !self.is_inside {
                break;
            }
            let mut input = InBuffer::around(piece);
            let mut output = OutBuffer::around(&mut *to);
            let hint = self.context.decompress_stream(&mut output, &mut input);
            let hint = hint.map_err(|code| {
                io::Error::other(format!("zstd: {}", zstd_safe::get_error_name(code)))
            })?;
            let (used, made) = (input.pos(), output.pos());
            self.source.consume(used);
            self.is_inside = hint != 0;
            if made > 0 {
                return Ok(made);
            }
            if is_end && self.is_inside {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(0)
    }
}

const HEAD_BYTES: u64 = 8;
const PIECE_BYTES: usize = 128 << 10;
/// `xz -9` needs 65 MiB.
const XZ_WINDOW_MAX: u64 = 128 << 20;
/// liblzma's flag for streams after one another.
const CONCATENATED: u32 = 0x08;

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn compressed_files_are_read_as_plain_ones() {
        let folder = tempfile::tempdir().unwrap();
        let text: Vec<u8> = (0..300_000_u32)
            .map(|i| b"ACGT\n"[(i % 7 % 5) as usize])
            .collect();
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(&text).unwrap();
        let mut xz = liblzma::write::XzEncoder::new(Vec::new(), 1);
        xz.write_all(&text).unwrap();
        let mut bzip2 = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::fast());
        bzip2.write_all(&text).unwrap();
        let mut zstd = Vec::with_capacity(text.len() + 1_000);
        zstd_safe::compress(&mut zstd, &text, 3).unwrap();
        let file = folder.path().join("packed");
        let read = |bytes: &[u8]| -> io::Result<Vec<u8>> {
            std::fs::write(&file, bytes).unwrap();
            let mut all = Vec::new();
            open(&file)?.read_to_end(&mut all).map(|_| all)
        };
        assert_eq!(read(&text).unwrap(), text);
        for packed in [gzip.finish(), xz.finish(), bzip2.finish(), Ok(zstd)] {
            let packed = packed.unwrap();
            assert_eq!(read(&packed).unwrap(), text);
            // Several streams after one another: bgzip, pzstd, cat.
            assert_eq!(
                read(&[&packed[..], &packed].concat()).unwrap().len(),
                2 * text.len()
            );
            assert!(read(&packed[..packed.len() - 9]).is_err());
        }
        assert_eq!(read(b"").unwrap(), b"");
    }
}

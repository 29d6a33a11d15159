//! One pass over a layer: its index, and its contents at their places on the device.
//!
//! Why here: both need the whole layer once, in order, and so does its digest.
//! Must stay true: the index is returned only for a layer that is whole; contents are written where
//! `tree` will put them.

use crate::gzip::{Boundary, Found, Gunzip, GzipError, Start, needed_window};
use crate::index::{
    Codec, FRESH, File as IndexFile, HEADERS_BYTES_MAX, INDEX_BYTES_MAX, Index, SPAN_BYTES_MAX, hex,
};
use crate::tar::{Piece, TarError, Walker};
use crate::tree::{Collector, Layer, TreeError};
use prost::Message;
use ring::digest;
use sidecore_bare::width::ToU64;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use zstd_safe::{DCtx, DParameter, InBuffer, OutBuffer};

/// Reasons why a layer has no index.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// Its bytes cannot be read, or its contents not be written.
    #[error("cannot read the layer: {0}")]
    Io(#[from] io::Error),
    /// Its gzip stream.
    #[error(transparent)]
    Gzip(#[from] GzipError),
    /// Its zstd stream.
    #[error("the layer's zstd stream is damaged ({0})")]
    Zstd(&'static str),
    /// Its tar.
    #[error(transparent)]
    Tar(#[from] TarError),
    /// Its tree.
    #[error(transparent)]
    Tree(#[from] TreeError),
    /// One of its blocks or frames is too large.
    #[error("the layer has {0} bytes without a place to begin; at most 64 MiB are indexed")]
    Span(u64),
    /// Its index is too long.
    #[error("the layer's index has {0} bytes; at most 256 MiB are read")]
    Index(u64),
    /// Its headers are too long.
    #[error("the layer's headers have more than 1 GiB")]
    Headers,
}

/// A layer that was read once.
pub struct Built {
    /// Its index.
    pub index: Index,
    pub(crate) layer: Layer,
    /// SHA-256 of its tar, 64 digits: what an image's configuration calls its diff ID.
    pub(crate) tar_sha256: String,
}

/// Reads a layer from its first to its last byte. Contents go to `contents`, at their places.
///
/// # Errors
/// [`BuildError`].
pub fn build(input: &mut dyn Read, contents: Option<&File>) -> Result<Built, BuildError> {
    let mut buffer = vec![0; READ_BYTES];
    let mut sha256 = digest::Context::new(&digest::SHA256);
    let mut decoder = None;
    let mut pass = Pass::new(contents);
    loop {
        let bytes = match input.read(&mut buffer) {
            Ok(0) => break,
            Ok(bytes) => &buffer[..bytes],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error.into()),
        };
        sha256.update(bytes);
        // Only the first read decides: a magic number stands at the start of a blob.
        let codec = Codec::of(bytes);
        let (_, decoder) = match &mut decoder {
            Some(decoder) => decoder,
            None => decoder.insert((codec, Decoder::new(codec)?)),
        };
        pass.input(bytes);
        decoder.push(bytes, &mut |found| match found {
            Found::Contents(bytes) => pass.contents(bytes),
            Found::Boundary { in_at, start } => pass.boundary(in_at, &start),
        })?;
        pass.blob_bytes += bytes.len().to_u64();
        pass.keep_needed_window(false)?;
    }
    let codec = match &decoder {
        Some((codec, decoder)) => {
            decoder.finish()?;
            *codec
        }
        // No bytes at all: an empty blob is an empty tar.
        None => Codec::Tar,
    };
    pass.finish(codec, sha256.finish().as_ref())
}

/// Decompresses a layer as it comes.
enum Decoder {
    Tar(u64),
    Gzip(Box<Gunzip>),
    Zstd(Box<Unzstd>),
}

struct Unzstd {
    context: DCtx<'static>,
    room: Vec<u8>,
    in_at: u64,
    is_between: bool,
}

impl Decoder {
    fn new(codec: Codec) -> Result<Self, BuildError> {
        Ok(match codec {
            Codec::Tar => Self::Tar(0),
            Codec::Gzip => Self::Gzip(Box::new(Gunzip::new())),
            Codec::Zstd => {
                let mut context = DCtx::create();
                // A frame's header may ask for gigabytes of window, before one byte of contents has
                // come.
                let limit = DParameter::WindowLogMax(WINDOW_LOG_MAX);
                context.set_parameter(limit).map_err(zstd_error)?;
                Self::Zstd(Box::new(Unzstd {
                    context,
                    room: vec![0; READ_BYTES],
                    in_at: 0,
                    is_between: true,
                }))
            }
        })
    }

    fn push(
        &mut self,
        bytes: &[u8],
        sink: &mut impl FnMut(Found<'_>) -> Result<(), BuildError>,
    ) -> Result<(), BuildError> {
        match self {
            Self::Gzip(gunzip) => gunzip.push(bytes, sink),
            Self::Zstd(unzstd) => unzstd.push(bytes, sink),
            Self::Tar(at) => {
                // A plain tar can be read from any byte; a boundary at each piece lets spans end
                // near their size.
                for piece in bytes.chunks(TAR_PIECE_BYTES) {
                    let start = Boundary::fresh();
                    sink(Found::Boundary { in_at: *at, start })?;
                    sink(Found::Contents(piece))?;
                    *at += piece.len().to_u64();
                }
                Ok(())
            }
        }
    }

    fn finish(&self) -> Result<(), BuildError> {
        match self {
            Self::Tar(_) => Ok(()),
            Self::Gzip(gunzip) => Ok(gunzip.finish()?),
            Self::Zstd(unzstd) if unzstd.is_between => Ok(()),
            // zstd reports no error for a stream that just stops.
            Self::Zstd(_) => Err(BuildError::Zstd("it ends inside a frame")),
        }
    }
}

impl Unzstd {
    fn push(
        &mut self,
        bytes: &[u8],
        sink: &mut impl FnMut(Found<'_>) -> Result<(), BuildError>,
    ) -> Result<(), BuildError> {
        let mut input = InBuffer::around(bytes);
        loop {
            if self.is_between && input.pos() < bytes.len() {
                let in_at = self.in_at + input.pos().to_u64();
                let start = Boundary::fresh();
                sink(Found::Boundary { in_at, start })?;
            }
            let mut output = OutBuffer::around(&mut self.room[..]);
            let result = self.context.decompress_stream(&mut output, &mut input);
            // A hint of 0 says that a frame has ended and all of it was passed on.
            let hint = result.map_err(zstd_error)?;
            let made = output.pos();
            self.is_between = hint == 0;
            if made > 0 {
                sink(Found::Contents(&self.room[..made]))?;
            }
            // A full room may hide more output, unless the frame has ended: a further call would
            // begin the next one, without a byte of it.
            if input.pos() == bytes.len() && (hint == 0 || made < self.room.len()) {
                self.in_at += bytes.len().to_u64();
                return Ok(());
            }
        }
    }
}

/// Results of one pass, as they grow.
struct Pass<'a> {
    walker: Walker,
    tree: Collector,
    headers: Vec<u8>,
    file: IndexFile,
    hash: blake3::Hasher,
    tar: digest::Context,
    tar_bytes: u64,
    blob_bytes: u64,
    /// Bytes of all windows.
    window_bytes: u64,
    /// The last place of which the window is not kept yet.
    open: Option<Start>,
    /// The blob's bytes from that place on, or those that were pushed last; and the first one's
    /// byte in the blob.
    recent: Vec<u8>,
    recent_at: u64,
    to: Option<&'a File>,
    /// Byte of the device for the next contents.
    device_at: u64,
}

impl<'a> Pass<'a> {
    fn new(to: Option<&'a File>) -> Self {
        Self {
            walker: Walker::new(false),
            tree: Collector::new(),
            headers: Vec::new(),
            file: IndexFile::default(),
            hash: blake3::Hasher::new(),
            tar: digest::Context::new(&digest::SHA256),
            tar_bytes: 0,
            blob_bytes: 0,
            window_bytes: 0,
            open: None,
            recent: Vec::new(),
            recent_at: 0,
            to,
            device_at: 0,
        }
    }

    /// Takes the next bytes of the blob, which are decompressed next.
    fn input(&mut self, bytes: &[u8]) {
        if self.open.is_none() {
            self.recent.clear();
            self.recent_at = self.blob_bytes;
        }
        self.recent.extend_from_slice(bytes);
    }

    /// Keeps the window of the last place once the contents behind it are known that may refer to
    /// it, or where no more will come.
    fn keep_needed_window(&mut self, is_over: bool) -> Result<(), BuildError> {
        let since = self.tar_bytes - self.file.tar_at.last().copied().unwrap_or_default();
        if since < WINDOW_BYTES && !is_over && self.recent.len() < NEEDED_INPUT_BYTES {
            return Ok(());
        }
        let Some(start) = self.open.take() else {
            return Ok(());
        };
        // Never more, however the blob comes in pieces: equal layers give equal indexes.
        let input = &self.recent[..self.recent.len().min(NEEDED_INPUT_BYTES)];
        let window = packed(&needed_window(&start, input))?;
        self.window_bytes += window.len().to_u64();
        self.file.windows.push(window);
        Ok(())
    }

    /// Takes the next bytes of the tar.
    fn contents(&mut self, bytes: &[u8]) -> Result<(), BuildError> {
        self.hash.update(bytes);
        self.tar.update(bytes);
        self.tar_bytes += bytes.len().to_u64();
        let Self {
            walker,
            tree,
            headers,
            device_at,
            to,
            ..
        } = self;
        walker.push(bytes, &mut |piece| {
            match piece {
                Piece::Header(bytes) => headers.extend_from_slice(bytes),
                Piece::Entry(entry) => *device_at = tree.add(entry)?,
                Piece::Contents(bytes) => {
                    if let Some(file) = to {
                        file.write_all_at(bytes, *device_at)?;
                    }
                    *device_at += bytes.len().to_u64();
                }
            }
            match headers.len().to_u64() > HEADERS_BYTES_MAX {
                true => Err(BuildError::Headers),
                false => Ok(()),
            }
        })
    }

    /// Decompression could begin here: it does, if the span so far is long enough.
    fn boundary(&mut self, in_at: u64, start: &Boundary<'_>) -> Result<(), BuildError> {
        // The first boundary always begins a span; later ones only where the span so far is worth a
        // request of its own.
        if let Some(&last) = self.file.tar_at.last() {
            if self.tar_bytes - last < span_bytes(self.window_bytes) {
                return Ok(());
            }
            self.keep_needed_window(true)?;
            self.end_span()?;
        }
        self.file.blob_at.push(in_at);
        self.file.tar_at.push(self.tar_bytes);
        let start = start.start();
        match &start {
            Start::Fresh => self.file.bits.extend([FRESH, 0]),
            Start::Block {
                bits, bit_count, ..
            } => {
                self.file.bits.extend([*bit_count, *bits]);
                // What precedes the place is of no more use, and would pile up.
                let before = usize::try_from(in_at - self.recent_at).unwrap_or(usize::MAX);
                self.recent.drain(..before.min(self.recent.len()));
                self.recent_at = in_at;
                self.open = Some(start);
            }
        }
        Ok(())
    }

    fn end_span(&mut self) -> Result<(), BuildError> {
        let last = self.file.tar_at.last().copied().unwrap_or_default();
        let bytes = self.tar_bytes - last;
        // A read of one byte would have to decompress all of the span, and hold it.
        if bytes > SPAN_BYTES_MAX {
            return Err(BuildError::Span(bytes));
        }
        let check = self.hash.finalize();
        self.hash.reset();
        self.file.checks.extend(check.as_bytes());
        Ok(())
    }

    fn finish(mut self, codec: Codec, sha256: &[u8]) -> Result<Built, BuildError> {
        self.walker.finish()?;
        self.keep_needed_window(true)?;
        if !self.file.tar_at.is_empty() {
            self.end_span()?;
        }
        self.file.blob_at.push(self.blob_bytes);
        self.file.tar_at.push(self.tar_bytes);
        // An empty blob has no span, and so no first place.
        self.file.layer = sha256.to_vec();
        self.file.headers_bytes = self.headers.len().to_u64();
        self.file.headers = packed(&self.headers)?;
        // No reader would take it.
        let index_bytes = self.file.encoded_len().to_u64();
        if index_bytes > INDEX_BYTES_MAX {
            return Err(BuildError::Index(index_bytes));
        }
        Ok(Built {
            index: Index::new(self.file, codec),
            layer: self.tree.finish_at(false, sha256)?,
            tar_sha256: hex(self.tar.finish().as_ref()),
        })
    }
}

/// Contents after which a span ends, by the bytes of all windows so far: longer ones where a very
/// large layer's windows would outgrow the index.
fn span_bytes(window_bytes: u64) -> u64 {
    let steps = window_bytes.saturating_sub(WINDOW_BYTES_DENSE) / WINDOW_BYTES_STEP;
    SPAN_BYTES << steps.min(SPAN_STEPS_MAX)
}

fn packed(bytes: &[u8]) -> Result<Vec<u8>, BuildError> {
    let mut room = vec![0; zstd_safe::compress_bound(bytes.len())];
    let length = zstd_safe::compress(&mut room[..], bytes, LEVEL).map_err(zstd_error)?;
    room.truncate(length);
    Ok(room)
}

fn zstd_error(code: zstd_safe::ErrorCode) -> BuildError {
    BuildError::Zstd(zstd_safe::get_error_name(code))
}

const READ_BYTES: usize = 128 << 10;
/// Pieces of a plain tar after which a span may begin.
const TAR_PIECE_BYTES: usize = 64 << 10;
const LEVEL: i32 = 3;
/// Contents of a span, unless blocks or frames are larger: one read decompresses them all.
const SPAN_BYTES: u64 = 256 << 10;
/// Bytes before a place that those behind it may refer to.
const WINDOW_BYTES: u64 = 32 << 10;
/// Bytes of the blob from a place on that are kept to learn what its window is needed for: blocks
/// without contents may follow one another without an end.
const NEEDED_INPUT_BYTES: usize = 128 << 10;
/// Windows up to which spans have their usual length: more than 1 GiB of contents that use all of
/// them, as none do.
const WINDOW_BYTES_DENSE: u64 = 160 << 20;
/// Windows after which the length doubles once more.
const WINDOW_BYTES_STEP: u64 = 6 << 20;
/// 16 MiB: with a block more a span is still read by itself.
const SPAN_STEPS_MAX: u64 = 6;
/// The largest window that `zstd -d` accepts by itself: 128 MiB.
const WINDOW_LOG_MAX: u32 = 27;

/// A reader of `length` bytes by positions, for a blob that is read by ranges.
pub(crate) struct Ranges<F> {
    read: F,
    at: u64,
    length: u64,
    piece: io::Cursor<Vec<u8>>,
}

impl<F: FnMut(std::ops::Range<u64>) -> io::Result<Vec<u8>>> Ranges<F> {
    pub(crate) fn new(length: u64, read: F) -> Self {
        Self {
            read,
            at: 0,
            length,
            piece: io::Cursor::default(),
        }
    }
}

impl<F: FnMut(std::ops::Range<u64>) -> io::Result<Vec<u8>>> Read for Ranges<F> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let got = self.piece.read(out)?;
        if got > 0 || self.at == self.length {
            return Ok(got);
        }
        // Large requests: each costs a round trip, and the whole blob is read.
        let end = (self.at + RANGE_BYTES).min(self.length);
        self.piece = io::Cursor::new((self.read)(self.at..end)?);
        self.at = end;
        self.piece.read(out)
    }
}

/// Bytes of a request while a whole layer is read.
const RANGE_BYTES: u64 = 4 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use sidecore_bare::width::ToUsize;
    use sidecore_random::Random;

    /// Windows may be used in full, and not compress.
    #[test]
    fn windows_of_large_layers_stay_within_the_index() {
        let (mut windows, mut contents) = (0, 0);
        while contents < 24 << 30 {
            contents += span_bytes(windows);
            windows += WINDOW_BYTES + 16;
            assert!(contents > 1 << 30 || span_bytes(windows) == SPAN_BYTES);
        }
        assert!(windows + (8 << 20) < INDEX_BYTES_MAX, "{windows}");
    }

    /// They could be kept for ever: a hostile layer may have gigabytes of them.
    #[test]
    fn blocks_without_contents_take_no_room() {
        const EMPTY: [u8; 5] = [0, 0, 0, 0xFF, 0xFF];
        let window = b"some window".to_vec();
        let start = Start::Block {
            bits: 0,
            bit_count: 0,
            window: window.clone(),
        };
        // Later blocks may refer to all of it.
        assert_eq!(needed_window(&start, &EMPTY.repeat(100)), window);
        // The last block: nothing does.
        let end = [&EMPTY.repeat(100)[..], &[1, 0, 0, 0xFF, 0xFF]].concat();
        assert_eq!(needed_window(&start, &end), vec![0; window.len()]);

        let mut tar = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        let contents = vec![7_u8; 600_000];
        header.set_size(contents.len().to_u64());
        tar.append_data(&mut header, "file", &contents[..]).unwrap();
        let tar = tar.into_inner().unwrap();
        let mut blob = b"\x1F\x8B\x08\0\0\0\0\0\0\xFF".to_vec();
        for (number, piece) in tar.chunks(50_000).enumerate() {
            let length = u16::try_from(piece.len()).unwrap();
            blob.push(0);
            blob.extend(length.to_le_bytes());
            blob.extend((!length).to_le_bytes());
            blob.extend(piece);
            // Behind those with which a span ends.
            if number % 6 == 5 {
                blob.extend(EMPTY.repeat(30_000));
            }
        }
        blob.extend([1, 0, 0, 0xFF, 0xFF]);
        // Neither the checksum nor the length is looked at here.
        blob.extend([0; 8]);
        let mut pass = Pass::new(None);
        let mut decoder = Decoder::new(Codec::Gzip).unwrap();
        for bytes in blob.chunks(10_000) {
            pass.input(bytes);
            let mut sink = |found: Found<'_>| match found {
                Found::Contents(bytes) => pass.contents(bytes),
                Found::Boundary { in_at, start } => pass.boundary(in_at, &start),
            };
            decoder.push(bytes, &mut sink).unwrap();
            pass.blob_bytes += bytes.len().to_u64();
            pass.keep_needed_window(false).unwrap();
            assert!(pass.recent.len() < NEEDED_INPUT_BYTES + 20_000);
        }
        let index = pass.finish(Codec::Gzip, &[0; 32]).unwrap().index;
        assert!(index.spans() > 1);
        for span in 0..index.spans() {
            let range = index.blob_range(span..span + 1);
            let bytes = &blob[range.start.to_usize()..range.end.to_usize()];
            index.open_span(span, bytes).unwrap();
        }
        // However it comes in pieces.
        let built = build(&mut &blob[..], None).unwrap().index;
        assert_eq!(built.to_bytes().len(), index.to_bytes().len());
    }

    /// They are most of an index, and most of their bytes are never referred to.
    #[test]
    fn unused_bytes_of_windows_are_not_kept() {
        // Words that come again, near and far.
        let mut random = Random::new(5);
        let mut letter = || b'0' + random.bits().to_le_bytes()[0] % 64;
        let words: Vec<[u8; 12]> = (0..5000).map(|_| [(); 12].map(|()| letter())).collect();
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        let mut tar = tar::Builder::new(&mut encoder);
        let text: Vec<u8> = (0..700_000_usize)
            .flat_map(|_| words[usize::try_from(random.below(5000)).unwrap()])
            .collect();
        let mut header = tar::Header::new_gnu();
        header.set_size(text.len().to_u64());
        tar.append_data(&mut header, "text", &text[..]).unwrap();
        tar.finish().unwrap();
        drop(tar);
        let blob = encoder.finish().unwrap();
        let index = build(&mut &blob[..], None).unwrap().index;
        let spans = index.spans();
        assert!(spans > 4, "{spans}");
        for span in 0..spans {
            let range = index.blob_range(span..span + 1);
            let bytes = &blob[range.start.to_usize()..range.end.to_usize()];
            index.open_span(span, bytes).unwrap();
        }
        // Whole windows of such text take more than half of their size.
        let bytes = index.to_bytes().len();
        assert!(bytes < spans * (12 << 10), "{bytes} for {spans} spans");
    }
}

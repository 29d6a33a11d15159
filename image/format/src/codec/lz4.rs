//! LZ4: bare blocks (cloop V4.0) and whole frames (our LZ4 images), blocks by liblz4, frames by us.
//!
//! Why here: liblz4's block decoder is the fastest there is; its frame decoder copies through
//! buffers of its own and cannot stop when a reader has enough. A frame of ours is therefore cut
//! into linked blocks, each decompressed straight to its place, with the bytes before it as its
//! dictionary.
//! Must stay true: the dictionary passed to liblz4 is the part of `out` that this frame has filled,
//! nothing else.
//! Called from: one thread at a time; values move between threads.
//! Source: LZ4 Frame Format Description 1.6.4, LZ4 Block Format Description.
#![allow(unsafe_code)] // C surface: liblz4 through lz4-sys

use super::{CodecError, CodecId, Deflater, Inflater, Position, corrupt};
use lz4_sys::{LZ4_compress_HC, LZ4_compressBound, LZ4_decompress_safe};
use sidecore_bare::width::{ToU64, ToUsize};
use std::ffi::{c_char, c_int, c_void};
use xxhash_rust::xxh32::xxh32;

// Functions of liblz4 that lz4-sys links but does not name.
unsafe extern "C" {
    fn LZ4_decompress_safe_usingDict(
        source: *const c_char,
        dest: *mut c_char,
        source_bytes: c_int,
        dest_bytes_max: c_int,
        dictionary: *const c_char,
        dictionary_bytes: c_int,
    ) -> c_int;
    fn LZ4_createStreamHC() -> *mut c_void;
    fn LZ4_freeStreamHC(stream: *mut c_void) -> c_int;
    fn LZ4_resetStreamHC_fast(stream: *mut c_void, level: c_int);
    fn LZ4_compress_HC_continue(
        stream: *mut c_void,
        source: *const c_char,
        dest: *mut c_char,
        source_bytes: c_int,
        dest_bytes_max: c_int,
    ) -> c_int;
}

/// Decompresses bare LZ4 blocks, always as a whole.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Lz4BlockInflater;

impl Inflater for Lz4BlockInflater {
    fn codec(&self) -> CodecId {
        CodecId::Lz4Block
    }

    fn reset(&mut self) {}

    fn advance(&mut self, frame: &[u8], out: &mut [u8], _: usize) -> Result<usize, CodecError> {
        let (Ok(source), Ok(room)) = (c_int::try_from(frame.len()), c_int::try_from(out.len()))
        else {
            return Err(corrupt(
                CodecId::Lz4Block,
                "more bytes than a block may have",
            ));
        };
        // SAFETY: both slices are valid for the lengths given; the function stays inside them for
        // any input.
        let written = unsafe {
            LZ4_decompress_safe(frame.as_ptr().cast(), out.as_mut_ptr().cast(), source, room)
        };
        match usize::try_from(written) {
            Ok(written) if written == out.len() => Ok(written),
            Ok(written) => Err(CodecError::Length {
                codec: CodecId::Lz4Block,
                got: written,
                expected: out.len(),
                at_least: false,
            }),
            Err(_) => Err(corrupt(CodecId::Lz4Block, DAMAGED)),
        }
    }
}

/// Decompresses LZ4 frames, block by block.
#[derive(Debug, Default)]
pub(crate) struct Lz4FrameInflater {
    position: Position,
    head: Option<Head>,
    verified: bool,
}

impl Inflater for Lz4FrameInflater {
    fn codec(&self) -> CodecId {
        CodecId::Lz4Frame
    }

    fn set_verified(&mut self, verified: bool) {
        self.verified = verified;
        self.reset();
    }

    fn reset(&mut self) {
        self.position = Position::default();
        self.head = None;
    }

    fn advance(
        &mut self,
        frame: &[u8],
        out: &mut [u8],
        target: usize,
    ) -> Result<usize, CodecError> {
        if let Some(done) = self.position.enter(CodecId::Lz4Frame, frame, out, target)? {
            return Ok(done);
        }
        let result = self.run(frame, out, target);
        self.position.leave(&result);
        result
    }
}

impl Lz4FrameInflater {
    fn run(&mut self, frame: &[u8], out: &mut [u8], target: usize) -> Result<usize, CodecError> {
        let head = match self.head {
            Some(head) => head,
            None => {
                let head = Head::parse(frame)?;
                // Refused before the first block: a frame of another size would fill `out` in vain.
                if let Some(content) = head.content_bytes.filter(|&n| n != out.len().to_u64()) {
                    return Err(CodecError::Length {
                        codec: CodecId::Lz4Frame,
                        got: usize::try_from(content).unwrap_or(usize::MAX),
                        expected: out.len(),
                        at_least: false,
                    });
                }
                self.position.read = head.bytes;
                self.head = Some(head);
                head
            }
        };
        loop {
            // With all output written, the end mark must still be read.
            if self.position.written >= target && self.position.written < out.len() {
                return Ok(self.position.written);
            }
            let word = self.word(frame)?;
            if word == 0 {
                return self.end(&head, frame, out);
            }
            self.block(&head, word, frame, out)?;
        }
    }

    /// Decompresses the block whose header is `word`.
    fn block(
        &mut self,
        head: &Head,
        word: u32,
        frame: &[u8],
        out: &mut [u8],
    ) -> Result<(), CodecError> {
        let length = (word & !STORED_BIT).to_usize();
        // The bound of the lengths that are passed to liblz4 below.
        if length > head.block_bytes_max {
            return Err(corrupt(
                CodecId::Lz4Frame,
                "a block is longer than the frame's head allows",
            ));
        }
        let start = self.position.read;
        let block = frame.get(start..start + length).ok_or_else(cut)?;
        self.position.read += length;
        if head.block_checks {
            let check = self.word(frame)?;
            if !self.verified && check != xxh32(block, 0) {
                return Err(corrupt(CodecId::Lz4Frame, "a block's checksum is wrong"));
            }
        }
        // Split, so that liblz4 gets the earlier bytes shared and only the rest to write to.
        let (before, room) = out.split_at_mut(self.position.written);
        let too_long = self
            .position
            .too_long(CodecId::Lz4Frame, before.len() + room.len());
        if word & STORED_BIT != 0 {
            room.get_mut(..length)
                .ok_or(too_long)?
                .copy_from_slice(block);
            self.position.written += length;
            return Ok(());
        }
        // A block may not decompress to more than the header allows, even where there is room.
        let room_bytes = room.len().min(head.block_bytes_max);
        let reach = if head.linked {
            before.len().min(WINDOW_BYTES)
        } else {
            0
        };
        let dictionary = &before[before.len() - reach..];
        // SAFETY: source, destination and dictionary are valid for the lengths given and do not
        // overlap (the dictionary ends where the destination begins); the function stays inside
        // them for any input.
        let written = unsafe {
            LZ4_decompress_safe_usingDict(
                block.as_ptr().cast(),
                room.as_mut_ptr().cast(),
                c_length(length),
                c_length(room_bytes),
                dictionary.as_ptr().cast(),
                c_length(dictionary.len()),
            )
        };
        match usize::try_from(written) {
            Ok(written) => self.position.written += written,
            Err(_) => return Err(corrupt(CodecId::Lz4Frame, DAMAGED)),
        }
        Ok(())
    }

    /// Checks the data after the last block.
    fn end(&mut self, head: &Head, frame: &[u8], out: &[u8]) -> Result<usize, CodecError> {
        let done = self.position.finish(CodecId::Lz4Frame, out.len())?;
        if head.content_check {
            let check = self.word(frame)?;
            if !self.verified && check != xxh32(out, 0) {
                return Err(corrupt(
                    CodecId::Lz4Frame,
                    "the checksum of the contents is wrong",
                ));
            }
        }
        // An image's table gives the exact length: more bytes are damage, or another frame.
        if self.position.read != frame.len() {
            return Err(corrupt(
                CodecId::Lz4Frame,
                "bytes follow the end of the frame",
            ));
        }
        Ok(done)
    }

    fn word(&mut self, frame: &[u8]) -> Result<u32, CodecError> {
        let rest = frame.get(self.position.read..).ok_or_else(cut)?;
        let (word, _) = rest.split_first_chunk::<4>().ok_or_else(cut)?;
        self.position.read += 4;
        Ok(u32::from_le_bytes(*word))
    }
}

/// A decoded frame header.
#[derive(Debug, Clone, Copy)]
struct Head {
    bytes: usize,
    linked: bool,
    block_checks: bool,
    content_check: bool,
    content_bytes: Option<u64>,
    block_bytes_max: usize,
}

impl Head {
    fn parse(frame: &[u8]) -> Result<Self, CodecError> {
        let bad = |reason| Err(corrupt(CodecId::Lz4Frame, reason));
        let (magic, rest) = frame.split_first_chunk::<4>().ok_or_else(cut)?;
        if u32::from_le_bytes(*magic) != FRAME_MAGIC {
            return bad("does not begin with the magic number of an LZ4 frame");
        }
        let &[flags, sizes, ..] = rest else {
            return Err(cut());
        };
        // Version 01 in bits 7 and 6; bit 1 of the flags and bits 7 and 3 to 0 of the sizes are
        // reserved.
        if flags >> 6 != 1 || flags & 0b10 != 0 || sizes & 0b1000_1111 != 0 {
            return bad("the frame's head has another version or reserved bits set");
        }
        if flags & DICTIONARY_FLAG != 0 {
            return bad("the frame needs a dictionary, which an image cannot carry");
        }
        let block_bytes_max = match sizes >> 4 {
            id @ 4..=7 => 1_usize << (2 * id + 8),
            _ => return bad("the frame's head names an unknown block size"),
        };
        let sized = flags & CONTENT_SIZE_FLAG != 0;
        let descriptor = if sized { 10 } else { 2 };
        let &check = rest.get(descriptor).ok_or_else(cut)?;
        if check != head_check(&rest[..descriptor]) {
            return bad("the checksum of the frame's head is wrong");
        }
        // The check above has ensured that these bytes are there if the flag is set.
        let content_bytes = (rest[2..].first_chunk::<8>()).filter(|_| sized);
        Ok(Self {
            bytes: 4 + descriptor + 1,
            linked: flags & INDEPENDENT_FLAG == 0,
            block_checks: flags & BLOCK_CHECK_FLAG != 0,
            content_check: flags & CONTENT_CHECK_FLAG != 0,
            content_bytes: content_bytes.map(|bytes| u64::from_le_bytes(*bytes)),
            block_bytes_max,
        })
    }
}

/// Compresses each frame into one LZ4 frame that carries its size and a checksum of its contents.
pub(crate) struct Lz4FrameDeflater {
    stream: *mut c_void,
    level: c_int,
    block_bytes: usize,
}

// SAFETY: the stream is reached through this value alone and liblz4 keeps no thread-local state.
unsafe impl Send for Lz4FrameDeflater {}

impl Lz4FrameDeflater {
    /// `level` is liblz4's HC, [`LEVELS`]. Frames are cut into linked blocks of `block_bytes` (at
    /// most 64 KiB), at whose ends a decompressor can stop.
    ///
    /// # Errors
    /// [`CodecError::Deflate`] if memory is short.
    pub(crate) fn new(level: i32, block_bytes: usize) -> Result<Self, CodecError> {
        // SAFETY: takes nothing.
        let stream = unsafe { LZ4_createStreamHC() };
        if stream.is_null() {
            return Err(CodecError::Deflate {
                codec: CodecId::Lz4Frame,
                reason: "no memory for liblz4's context",
            });
        }
        Ok(Self {
            stream,
            level,
            block_bytes: block_bytes.clamp(1, WINDOW_BYTES),
        })
    }
}

impl Drop for Lz4FrameDeflater {
    fn drop(&mut self) {
        // SAFETY: made by LZ4_createStreamHC and freed once.
        unsafe { LZ4_freeStreamHC(self.stream) };
    }
}

impl Deflater for Lz4FrameDeflater {
    fn codec(&self) -> CodecId {
        CodecId::Lz4Frame
    }

    fn deflate(&mut self, raw: &[u8], out: &mut Vec<u8>) -> Result<(), CodecError> {
        out.clear();
        out.extend(FRAME_MAGIC.to_le_bytes());
        // A single block refers to nothing before it, and decoders may then skip the window.
        let linked = if raw.len() > self.block_bytes {
            0
        } else {
            INDEPENDENT_FLAG
        };
        out.push(0b0100_0000 | linked | CONTENT_SIZE_FLAG | CONTENT_CHECK_FLAG);
        out.push(BLOCKS_64_KIB << 4);
        out.extend(raw.len().to_u64().to_le_bytes());
        out.push(head_check(&out[4..]));
        // SAFETY: the stream is valid.
        unsafe { LZ4_resetStreamHC_fast(self.stream, self.level) };
        for block in raw.chunks(self.block_bytes) {
            let at = out.len();
            // LZ4_COMPRESSBOUND: 255 literals cost one byte of length, and the rest is for the last
            // token.
            let bound = block.len() + block.len() / 255 + 16;
            out.resize(at + 4 + bound, 0);
            let room = &mut out[at + 4..];
            // SAFETY: source and destination are valid for the lengths given (at most 64 KiB); the
            // blocks before, to which the stream refers back, stand unchanged before this one in
            // `raw`.
            let written = unsafe {
                LZ4_compress_HC_continue(
                    self.stream,
                    block.as_ptr().cast(),
                    room.as_mut_ptr().cast(),
                    c_length(block.len()),
                    c_length(room.len()),
                )
            };
            let written = u32::try_from(written).ok().filter(|&n| n > 0);
            let written = written.ok_or(REFUSED)?;
            if written.to_usize() < block.len() {
                out.truncate(at + 4 + written.to_usize());
                out[at..at + 4].copy_from_slice(&written.to_le_bytes());
            } else {
                // The format stores a block as it is where compressing gained nothing.
                out.truncate(at);
                out.extend((block.len() as u32 | STORED_BIT).to_le_bytes());
                out.extend_from_slice(block);
            }
        }
        // The end mark: a block header of 0.
        out.extend([0; 4]);
        out.extend(xxh32(raw, 0).to_le_bytes());
        Ok(())
    }
}

/// Compresses each frame into one bare block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lz4BlockDeflater {
    level: c_int,
}

impl Lz4BlockDeflater {
    /// `level` is liblz4's HC, [`LEVELS`].
    #[must_use]
    pub(crate) fn new(level: i32) -> Self {
        Self { level }
    }
}

impl Deflater for Lz4BlockDeflater {
    fn codec(&self) -> CodecId {
        CodecId::Lz4Block
    }

    fn deflate(&mut self, raw: &[u8], out: &mut Vec<u8>) -> Result<(), CodecError> {
        let refused = CodecError::Deflate {
            codec: CodecId::Lz4Block,
            reason: "more bytes than a block may have",
        };
        let length = c_int::try_from(raw.len()).map_err(|_| refused)?;
        // SAFETY: takes a number.
        let bound = unsafe { LZ4_compressBound(length) };
        out.clear();
        out.resize(usize::try_from(bound).unwrap_or_default(), 0);
        // SAFETY: both are valid for the lengths given.
        let written = unsafe {
            LZ4_compress_HC(
                raw.as_ptr().cast(),
                out.as_mut_ptr().cast(),
                length,
                bound,
                self.level,
            )
        };
        out.truncate(
            usize::try_from(written)
                .ok()
                .filter(|&n| n > 0)
                .ok_or(REFUSED)?,
        );
        Ok(())
    }
}

/// Check byte of a frame's header: the second byte of the XXH32 of its descriptor.
fn head_check(descriptor: &[u8]) -> u8 {
    xxh32(descriptor, 0).to_le_bytes()[1]
}

/// A length for liblz4. Blocks have at most 4 MiB, and their bounds little more.
fn c_length(bytes: usize) -> c_int {
    bytes as c_int
}

fn cut() -> CodecError {
    corrupt(CodecId::Lz4Frame, "the compressed bytes end too early")
}

/// liblz4's HC levels.
pub(crate) const LEVELS: std::ops::RangeInclusive<i32> = 1..=12;

/// Size of the blocks in a frame. Blocks of 16 KiB cost nothing measurable of speed and 0.1 % of
/// ratio.
pub(crate) const BLOCK_BYTES: usize = 16 << 10;

/// The magic number of an LZ4 frame.
pub(crate) const FRAME_MAGIC: u32 = 0x184D_2204;
const INDEPENDENT_FLAG: u8 = 1 << 5;
const BLOCK_CHECK_FLAG: u8 = 1 << 4;
const CONTENT_SIZE_FLAG: u8 = 1 << 3;
const CONTENT_CHECK_FLAG: u8 = 1 << 2;
const DICTIONARY_FLAG: u8 = 1;
const STORED_BIT: u32 = 1 << 31;
const BLOCKS_64_KIB: u8 = 4;
const WINDOW_BYTES: usize = 64 << 10;
const DAMAGED: &str = "the compressed bytes are damaged or hold more than the image says";
const REFUSED: CodecError = CodecError::Deflate {
    codec: CodecId::Lz4Frame,
    reason: "liblz4 refused the frame",
};

//! A gzip stream, inflated as it comes in, with the places at which inflating can begin again.
//!
//! Why here: a file in the middle of a layer is to be read without all that precedes it. At the
//! beginning of a DEFLATE block an inflater needs the 32 KiB of contents before it and up to seven
//! bits of the last byte; at a gzip member it needs nothing.
//! Must stay true: takes any bytes; memory is that of one window. CRCs are not checked here: a
//! layer's digest and the index's checks cover more. Pure.
//! Source: RFC 1951; RFC 1952; zlib's `examples/zran.c` for the idea.

use miniz_oxide::inflate::TINFLStatus;
use miniz_oxide::inflate::core::{
    BlockBoundaryState, DecompressorOxide, decompress, inflate_flags,
};
use sidecore_bare::width::ToU64;

/// A place of a compressed stream at which decompression can begin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Start {
    /// A gzip member, a zstd frame or a plain byte begins.
    Fresh,
    /// A DEFLATE block begins: bits of the byte before, their number, and the last 32 KiB (or all)
    /// of the contents before.
    Block {
        bits: u8,
        bit_count: u8,
        window: Vec<u8>,
    },
}

impl Start {
    /// An inflater for the blocks from here on; `None` where a member or a frame begins.
    fn resumed(&self) -> Option<Box<DecompressorOxide>> {
        let Self::Block {
            bits, bit_count, ..
        } = self
        else {
            return None;
        };
        let state = BlockBoundaryState {
            // An index from elsewhere may claim any number; more than seven bits would be whole
            // bytes.
            num_bits: bit_count & 7,
            bit_buf: *bits,
            ..BlockBoundaryState::default()
        };
        Some(Box::new(DecompressorOxide::from_block_boundary_state(
            &state,
        )))
    }
}

/// A finding of an inflater.
pub(crate) enum Found<'a> {
    /// The next bytes of the contents.
    Contents(&'a [u8]),
    /// Decompression could begin again after `in_at` bytes of the input; the window is made only if
    /// asked for.
    Boundary { in_at: u64, start: Boundary<'a> },
}

/// A boundary that has not been kept yet.
pub(crate) struct Boundary<'a> {
    /// `None` where a member or a frame begins.
    block: Option<(BlockBoundaryState, &'a Window)>,
}

impl Boundary<'_> {
    /// A place at which nothing of what precedes is needed.
    pub(crate) fn fresh() -> Self {
        Self { block: None }
    }

    /// The place, with its window.
    pub(crate) fn start(&self) -> Start {
        match &self.block {
            None => Start::Fresh,
            Some((state, window)) => Start::Block {
                bits: state.bit_buf,
                bit_count: state.num_bits,
                window: window.last(),
            },
        }
    }
}

/// The gzip stream is damaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the layer's gzip stream is damaged")]
pub struct GzipError;

/// Contents, in a ring.
struct Window {
    ring: Box<[u8]>,
    at: usize,
    total: u64,
}

impl Window {
    /// The last 32 KiB of the contents of this member, or all.
    fn last(&self) -> Vec<u8> {
        let len = self.total.min(WINDOW.to_u64());
        let len = usize::try_from(len).unwrap_or(WINDOW);
        // `at` is the place of the next byte; the window ends there and may begin before the ring's
        // start.
        let start = (self.at + RING - len) % RING;
        let first = &self.ring[start..(start + len).min(RING)];
        [first, &self.ring[..len - first.len()]].concat()
    }
}

/// Inflates a gzip stream of one or several members.
pub(crate) struct Gunzip {
    inflater: Box<DecompressorOxide>,
    window: Window,
    stage: Stage,
    in_at: u64,
}

enum Stage {
    /// Bytes of a member's header that is not whole yet.
    Header(Vec<u8>),
    Body,
    /// Bytes of the trailer that are to come.
    Trailer(usize),
    /// Zeros after the last member.
    Padding,
}

impl Gunzip {
    pub(crate) fn new() -> Self {
        Self {
            inflater: Box::default(),
            window: Window {
                ring: vec![0; RING].into(),
                at: 0,
                total: 0,
            },
            stage: Stage::Header(Vec::new()),
            in_at: 0,
        }
    }

    /// Takes the next bytes of the stream.
    ///
    /// # Errors
    /// [`GzipError`], or those of `sink`.
    pub(crate) fn push<E: From<GzipError>>(
        &mut self,
        mut input: &[u8],
        sink: &mut impl FnMut(Found<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        while !input.is_empty() {
            let used = match &mut self.stage {
                Stage::Header(gathered) if gathered.is_empty() => {
                    // Zeros may follow the last member (gzip pads for tapes).
                    if input[0] == 0 && self.in_at > 0 {
                        self.stage = Stage::Padding;
                        continue;
                    }
                    gathered.push(input[0]);
                    let start = Boundary::fresh();
                    let in_at = self.in_at;
                    sink(Found::Boundary { in_at, start })?;
                    1
                }
                Stage::Header(gathered) => {
                    gathered.push(input[0]);
                    if header_is_whole(gathered)? {
                        self.stage = Stage::Body;
                        // A member's contents may not refer to those of the one before: RFC 1952
                        // has members stand alone.
                        *self.inflater = DecompressorOxide::new();
                        self.window.total = 0;
                    }
                    1
                }
                Stage::Body => {
                    self.inflate(&mut input, sink)?;
                    continue;
                }
                Stage::Trailer(left) => {
                    let used = (*left).min(input.len());
                    *left -= used;
                    if *left == 0 {
                        self.stage = Stage::Header(Vec::new());
                    }
                    used
                }
                Stage::Padding if input.iter().any(|&byte| byte != 0) => {
                    return Err(GzipError.into());
                }
                Stage::Padding => input.len(),
            };
            self.in_at += used.to_u64();
            input = &input[used..];
        }
        Ok(())
    }

    /// Inflates until the window is full, a block ends or the input does.
    fn inflate<E: From<GzipError>>(
        &mut self,
        input: &mut &[u8],
        sink: &mut impl FnMut(Found<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let window = &mut self.window;
        let (status, used, made) = decompress(
            &mut self.inflater,
            input,
            &mut window.ring,
            window.at,
            FLAGS,
        );
        let start = window.at;
        window.at = (window.at + made) % RING;
        window.total += made.to_u64();
        self.in_at += used.to_u64();
        *input = &input[used..];
        if made > 0 {
            sink(Found::Contents(&self.window.ring[start..start + made]))?;
        }
        match status {
            TINFLStatus::BlockBoundary => {
                // The window is copied only if the sink keeps this boundary: most are too near to
                // the last one.
                let state = self.inflater.block_boundary_state();
                let start = Boundary {
                    block: Some((state.ok_or(GzipError)?, &self.window)),
                };
                let in_at = self.in_at;
                sink(Found::Boundary { in_at, start })
            }
            TINFLStatus::Done => {
                self.stage = Stage::Trailer(TRAILER_BYTES);
                Ok(())
            }
            TINFLStatus::NeedsMoreInput | TINFLStatus::HasMoreOutput => Ok(()),
            _ => Err(GzipError.into()),
        }
    }

    /// Ends the stream.
    ///
    /// # Errors
    /// It ends inside a member.
    pub(crate) fn finish(&self) -> Result<(), GzipError> {
        match &self.stage {
            Stage::Header(gathered) if gathered.is_empty() && self.in_at > 0 => Ok(()),
            Stage::Padding => Ok(()),
            _ => Err(GzipError),
        }
    }
}

/// The bytes of a place's window that the contents behind it refer to, and zeros in the place of
/// all others: most of a window is never used, and zeros take no room. `input` begins at the place.
/// The whole window is needed where `input` makes less than 32 KiB of contents and is not all
/// of the stream.
pub(crate) fn needed_window(start: &Start, input: &[u8]) -> Vec<u8> {
    let Start::Block { window, .. } = start else {
        return Vec::new();
    };
    // References reach back 32 KiB: later contents copy from earlier ones at most. Two windows that
    // spell out places, in pairs of different bytes, show which bytes of the contents come from
    // which place. Literals are the same with both.
    let mut is_cut = false;
    let mut marked = |mark: &dyn Fn(usize) -> u8| {
        let marks: Vec<u8> = (0..window.len()).map(mark).collect();
        let mut out = [&marks[..], &[0; WINDOW]].concat();
        let made = start.resumed().map_or(0, |mut inflater| {
            let (status, _, made) =
                decompress(&mut inflater, input, &mut out, window.len(), FLAT_FLAGS);
            is_cut |= status == TINFLStatus::NeedsMoreInput;
            made
        });
        out[window.len()..][..made].to_vec()
    };
    let first = marked(&|at| at.to_le_bytes()[0]);
    let second = marked(&|at| {
        let [low, high, ..] = at.to_le_bytes();
        low.wrapping_add(high).wrapping_add(1)
    });
    if is_cut {
        return window.clone();
    }
    let mut needed = vec![0; window.len()];
    for (&low, &second) in first.iter().zip(&second) {
        let high = second.wrapping_sub(low).wrapping_sub(1);
        let at = usize::from(u16::from_le_bytes([low, high]));
        // The high byte of a place is below 128: a literal's is 255, and no place in the window.
        if let Some(byte) = window.get(at) {
            needed[at] = *byte;
        }
    }
    needed
}

/// Inflates `contents.len()` bytes from a place inside a stream; `input` reaches to the next place
/// or to the end.
///
/// # Errors
/// [`GzipError`]; the contents are then unspecified.
pub(crate) fn inflate_from(
    start: &Start,
    input: &[u8],
    contents: &mut [u8],
) -> Result<(), GzipError> {
    let mut done = 0;
    let mut rest = input;
    if let (Some(mut inflater), Start::Block { window, .. }) = (start.resumed(), start) {
        // The window precedes the contents in one buffer.
        let mut out = [&window[..], &vec![0; contents.len()]].concat();
        let (status, used, made) =
            decompress(&mut inflater, rest, &mut out, window.len(), FLAT_FLAGS);
        contents[..made].copy_from_slice(&out[window.len()..][..made]);
        done = made;
        rest = &rest[used..];
        match status {
            // Another member may follow in this span, or the zeros that pad the last one: these are
            // none.
            TINFLStatus::Done => {
                rest = rest.get(TRAILER_BYTES..).unwrap_or_default();
                if rest.iter().all(|&byte| byte == 0) {
                    rest = &[];
                }
            }
            // The span ends inside a member: what was made fills it, or the length below is wrong.
            TINFLStatus::HasMoreOutput | TINFLStatus::NeedsMoreInput => rest = &[],
            _ => return Err(GzipError),
        }
    }
    let mut gunzip = Gunzip::new();
    gunzip.push(rest, &mut |found| {
        if let Found::Contents(bytes) = found {
            // More contents than the index says are damage, not a reason to grow.
            let room = contents.get_mut(done..done + bytes.len());
            room.ok_or(GzipError)?.copy_from_slice(bytes);
            done += bytes.len();
        }
        Ok::<(), GzipError>(())
    })?;
    match done == contents.len() {
        true => Ok(()),
        false => Err(GzipError),
    }
}

/// True once the bytes are a whole header of a member.
fn header_is_whole(bytes: &[u8]) -> Result<bool, GzipError> {
    let magic = &MAGIC[..bytes.len().min(MAGIC.len())];
    if !bytes.starts_with(magic) || bytes.len() > HEADER_BYTES_MAX {
        return Err(GzipError);
    }
    // Ten bytes are in every header; only then do the flags say what else follows.
    let Some(&flags) = bytes.get(3).filter(|_| bytes.len() >= 10) else {
        return Ok(false);
    };
    let mut at = 10;
    if flags & 4 != 0 {
        let Some(length) = bytes.get(10..12) else {
            return Ok(false);
        };
        at += 2 + usize::from(u16::from_le_bytes([length[0], length[1]]));
    }
    // A name and a comment, each up to a zero.
    for flag in [8, 16] {
        if flags & flag != 0 {
            let rest = bytes.get(at..).unwrap_or_default();
            let Some(len) = rest.iter().position(|&byte| byte == 0) else {
                // A long name would be searched again with each byte.
                return match rest.len() > NAME_BYTES_MAX {
                    true => Err(GzipError),
                    false => Ok(false),
                };
            };
            at += len + 1;
        }
    }
    at += if flags & 2 != 0 { 2 } else { 0 };
    Ok(bytes.len() >= at)
}

const FLAGS: u32 =
    inflate_flags::TINFL_FLAG_HAS_MORE_INPUT | inflate_flags::TINFL_FLAG_STOP_ON_BLOCK_BOUNDARY;
/// For an output that is one buffer, with the window before it.
const FLAT_FLAGS: u32 = inflate_flags::TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF
    | inflate_flags::TINFL_FLAG_HAS_MORE_INPUT;
const MAGIC: [u8; 3] = [0x1F, 0x8B, 8];
const TRAILER_BYTES: usize = 8;
/// An extra field of 64 KiB, a name and a comment.
const HEADER_BYTES_MAX: usize = 80 << 10;
const NAME_BYTES_MAX: usize = 4096;
/// Room for the contents, a power of two: four windows.
const RING: usize = 128 << 10;
const WINDOW: usize = 32 << 10;

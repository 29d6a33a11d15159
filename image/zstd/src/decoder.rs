//! Decompresses frames block by block, two at a time if no reader waits for the first.
//!
//! Must stay true: whatever positions a caller passes, nothing outside the slices of this call is
//! touched: the frame's start is checked against the output each time. Any thread; a decoder is
//! used by one at a time.

use crate::Error;
use crate::bits::low_half;
use crate::execute::{FIRST_OFFSETS, Literals, Output};
use crate::frame::{self, Block, BlockKind, Header, Start};
use crate::huffman::Tree;
use crate::literals::{self, Room, Section};
use crate::sequences::{self, Chain, LIST_MAX, Lanes, Lists};
use sidecore_bare::width::ToU64;
use xxhash_rust::xxh64::xxh64;

/// A target this near is reached by one block; see [`Decoder::advance`].
const ONE_BLOCK_BYTES: usize = 32 << 10;

/// Decodes zstd frames. Holds about 0.6 MiB of state, of which a frame of 64 KiB touches a fifth;
/// made once, used for many frames.
pub struct Decoder {
    lanes: Lanes,
    lists: Lists,
    tree: Tree,
    room: Room,
    recent: [u32; 3],
    inside: Option<Inside>,
    checks_contents: bool,
}

/// The frame in progress.
struct Inside {
    header: Header,
    /// The first byte of its contents.
    start: usize,
}

/// Progress of decoding some frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    /// Compressed bytes that have been consumed.
    pub read: usize,
    /// Bytes of the contents that are final.
    pub written: usize,
}

impl std::fmt::Debug for Decoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Decoder")
            .field("is_inside_frame", &self.inside.is_some())
            .field("checks_contents", &self.checks_contents)
            .finish_non_exhaustive()
    }
}

impl Default for Decoder {
    fn default() -> Self {
        Self::new()
    }
}

impl Decoder {
    /// Allocates all memory that it will ever need.
    #[must_use]
    pub fn new() -> Self {
        Self {
            lanes: Lanes::new(),
            lists: Lists::new(),
            tree: Tree::new(),
            room: Room::new(),
            recent: FIRST_OFFSETS,
            inside: None,
            checks_contents: true,
        }
    }

    /// Sets if frames' own checksums are compared with their contents; the default is true. Disable
    /// it if the compressed bytes have been checked already.
    pub fn set_checks_contents(&mut self, checks: bool) {
        self.checks_contents = checks;
    }

    /// Drops the frame in progress; the next bytes begin a new one.
    pub fn reset(&mut self) {
        self.inside = None;
    }

    /// Decodes all frames of `input` into `out`, and returns the length of their contents.
    ///
    /// # Errors
    /// [`Error`]; `out` is then unspecified.
    pub fn decode(&mut self, input: &[u8], out: &mut [u8]) -> Result<usize, Error> {
        self.reset();
        let mut progress = Progress::default();
        let target = out.len();
        self.advance(input, out, &mut progress, target)?;
        Ok(progress.written)
    }

    /// Continues from `progress` until at least `target` bytes of `out` are final, or to the end of
    /// `input` if `target` is all of `out`. `input` begins with a frame and consists of whole
    /// frames, one after the other, skippable ones included. Together their contents have at most
    /// `out.len()` bytes. Calls that continue the same frames must pass the same `input` and `out`.
    ///
    /// Decodes two blocks at once unless the target is less than 32 KiB away, where the caller
    /// would wait for a block that it does not need.
    ///
    /// # Errors
    /// [`Error`]; bytes of `out` that were final before still are, and the decoder needs a
    /// [`Self::reset`].
    pub fn advance(
        &mut self,
        input: &[u8],
        out: &mut [u8],
        progress: &mut Progress,
        target: usize,
    ) -> Result<(), Error> {
        if progress.written > out.len() {
            return Err(Error::Full);
        }
        loop {
            // Not for a target of all contents: a checksum or skippable frames may follow them.
            if progress.written >= target && progress.written < out.len() {
                return Ok(());
            }
            if self.inside.is_none() && !self.begin(input, progress)? {
                return Ok(());
            }
            self.step(input, out, progress, target)?;
        }
    }

    /// Begins the next frame. Returns false at the end of the input.
    fn begin(&mut self, input: &[u8], progress: &mut Progress) -> Result<bool, Error> {
        loop {
            let rest = input.get(progress.read..).unwrap_or_default();
            if rest.is_empty() {
                return Ok(false);
            }
            match frame::start(rest)? {
                Start::Skippable(bytes) => {
                    // The length is any 32-bit number, so it is compared with what is there.
                    let bytes = usize::try_from(bytes).ok();
                    let bytes = bytes.filter(|&bytes| bytes <= rest.len());
                    progress.read += bytes.ok_or(Error::Truncated)?;
                }
                Start::Frame(header) => {
                    progress.read += header.bytes;
                    // Frames are independent: no block may repeat a table or an offset of another
                    // frame, or decoding would depend on where a reader began.
                    self.lanes.clear();
                    self.tree.clear();
                    self.recent = FIRST_OFFSETS;
                    let start = progress.written;
                    self.inside = Some(Inside { header, start });
                    return Ok(true);
                }
            }
        }
    }

    /// Decodes one block or two, and finishes the frame after its last one.
    fn step(
        &mut self,
        input: &[u8],
        out: &mut [u8],
        progress: &mut Progress,
        target: usize,
    ) -> Result<(), Error> {
        let Some(inside) = &self.inside else {
            return Ok(());
        };
        let (block_max, start) = (inside.header.block_bytes_max, inside.start);
        if start > progress.written {
            // Another output than before.
            return Err(Error::Offset);
        }
        // A second block would delay a reader that waits for the first.
        let is_urgent =
            target < out.len() && target.saturating_sub(progress.written) <= ONE_BLOCK_BYTES;
        let mut output = Output {
            bytes: out,
            start,
            written: progress.written,
        };
        let first = frame::block(input, progress.read, block_max)?;
        let mut last = first;
        match first.kind {
            BlockKind::Raw(bytes) => output.put(bytes)?,
            BlockKind::Run(byte, count) => output.fill(byte, count)?,
            BlockKind::Compressed(body) => {
                let parts = Parts::read(&mut self.lanes, 0, body, block_max)?;
                // Two sets of sequences decode in nearly the time of one. A block of more than
                // a list holds is decoded alone, piece by piece.
                let second = (!first.is_last && !is_urgent && parts.chain.left <= LIST_MAX)
                    .then(|| compressed(input, first.end, block_max))
                    .flatten();
                let second = match second {
                    Some((block, body)) => {
                        // If it is left for later after all, it is read again to the same tables:
                        // those that it repeats are in its lane by then.
                        let parts = Parts::read(&mut self.lanes, 1, body, block_max)?;
                        Some((block, parts)).filter(|(_, parts)| parts.chain.left <= LIST_MAX)
                    }
                    None => None,
                };
                match second {
                    Some((block, second)) => {
                        self.two(parts, second, &mut output, block_max)?;
                        last = block;
                    }
                    None => self.one(parts, &mut output, block_max)?,
                }
            }
        }
        progress.written = output.written;
        progress.read = last.end;
        if last.is_last {
            self.end(input, out, progress)?;
        }
        Ok(())
    }

    fn one(
        &mut self,
        mut parts: Parts<'_>,
        output: &mut Output<'_>,
        block_max: usize,
    ) -> Result<(), Error> {
        let mut room = block_max;
        let mut literals = parts.literals(&mut self.tree, &mut self.room)?;
        while parts.chain.left > 0 {
            let count = sequences::decode_one(&self.lanes, &mut parts.chain, &mut self.lists)?;
            let list = self.lists.of(0, count);
            output.carry_out(list, &mut literals, &mut self.recent, &mut room)?;
        }
        close(&parts.chain, literals, output, room)
    }

    fn two(
        &mut self,
        first: Parts<'_>,
        second: Parts<'_>,
        output: &mut Output<'_>,
        block_max: usize,
    ) -> Result<(), Error> {
        let counts = [first.chain.left, second.chain.left];
        let mut chains = [first.chain, second.chain];
        sequences::decode_two(&self.lanes, &mut chains, &mut self.lists)?;
        for (lane, parts) in [first, second].into_iter().enumerate() {
            let mut room = block_max;
            let mut literals = parts.literals(&mut self.tree, &mut self.room)?;
            let list = self.lists.of(lane, counts[lane]);
            output.carry_out(list, &mut literals, &mut self.recent, &mut room)?;
            close(&chains[lane], literals, output, room)?;
        }
        Ok(())
    }

    /// Checks the data after the last block.
    fn end(&mut self, input: &[u8], out: &[u8], progress: &mut Progress) -> Result<(), Error> {
        let Some(Inside { header, start }) = self.inside.take() else {
            return Ok(());
        };
        let contents = &out[start..progress.written];
        // A frame whose blocks end early is damaged, although each of them may be sound.
        if header
            .content_bytes
            .is_some_and(|bytes| bytes != contents.len().to_u64())
        {
            return Err(Error::ContentSize);
        }
        if header.has_checksum {
            let rest = &input[progress.read..];
            // Section 3.1.1: the low half of XXH64 with seed 0. Its bytes are consumed even where
            // they are not compared.
            let said = rest.first_chunk::<4>().ok_or(Error::Truncated)?;
            if self.checks_contents && low_half(xxh64(contents, 0)) != u32::from_le_bytes(*said) {
                return Err(Error::Checksum);
            }
            progress.read += said.len();
        }
        Ok(())
    }
}

/// A compressed block whose headers have been read.
struct Parts<'a> {
    section: Section<'a>,
    chain: Chain<'a>,
}

impl<'a> Parts<'a> {
    fn read(
        lanes: &mut Lanes,
        lane: usize,
        body: &'a [u8],
        block_max: usize,
    ) -> Result<Self, Error> {
        let section = literals::section(body, block_max)?;
        let chain = lanes.chain(lane, &body[section.bytes..])?;
        Ok(Self { section, chain })
    }

    fn literals<'r>(&self, tree: &mut Tree, room: &'r mut Room) -> Result<Literals<'r>, Error>
    where
        'a: 'r,
    {
        Ok(Literals {
            bytes: self.section.decode(tree, room)?,
            taken: 0,
            count: self.section.count,
        })
    }
}

/// The block at `at`, if it is a compressed one. A damaged block is left to its own decoding step.
fn compressed(input: &[u8], at: usize, block_max: usize) -> Option<(Block<'_>, &[u8])> {
    let block = frame::block(input, at, block_max).ok()?;
    match block.kind {
        BlockKind::Compressed(body) => Some((block, body)),
        _ => None,
    }
}

/// Appends the literals after the last sequence.
fn close(
    chain: &Chain<'_>,
    literals: Literals<'_>,
    output: &mut Output<'_>,
    room: usize,
) -> Result<(), Error> {
    if !chain.is_done() {
        return Err(Error::Sequences);
    }
    // What no sequence took ends the block; it counts towards the block's limit, too.
    let rest = &literals.bytes[literals.taken..literals.count];
    if rest.len() > room {
        return Err(Error::Block);
    }
    output.put(rest)
}

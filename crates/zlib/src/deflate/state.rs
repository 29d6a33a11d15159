//! A deflating stream: blocks of ours for as long as they serve the program, then the base library.
//!
//! ```text
//!           deflate(input)            full, flushed, finished
//!  program ───────────────► gathered ───────────────────────► blocks ──► pending ──► program
//!                               │  a flush that wants history kept,        ▲
//!                               │  a parameter that blocks do not know     │ trailer
//!                               ▼                                          │
//!                           base library (raw, with the last 32 KiB as its dictionary)
//! ```
//!
//! Blocks know nothing of one another. That is what makes them parallel, and what makes them wrong
//! for a program that flushes every few bytes: from its first such flush on, the base library has
//! the stream. Where the parameters never suit blocks, the base library has it from the beginning,
//! header and trailer included.
//!
//! Must stay true: block boundaries depend on the bytes and flushes alone, not on how input and
//! room were cut, nor on engines. All memory is the stream's own ([`Memory`]). One thread at a
//! time, as zlib asks.

use super::header;
use super::parameters::Parameters;
use crate::engines;
use crate::forward;
use crate::io;
use crate::memory::{Bytes, Memory, NoMemory};
use libc::c_int;
use libz_rs_sys as base;
use libz_rs_sys::*;
use sidecore_deflate::{BLOCK_BYTES, CheckKind};
use std::ptr;

/// What makes DEFLATE of the input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Maker {
    /// Blocks.
    Blocks,
    /// The base library, between a header and a trailer of ours.
    Base,
    /// The base library, header and trailer included.
    BaseAll,
}

/// The way of a stream of ours; [`Maker::BaseAll`] has its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// Nothing was written, not even the header.
    Start,
    Body,
    /// All is in `pending`, trailer included.
    Finished,
}

pub(super) struct State {
    /// The stream that it belongs to: zlib refuses a stream that was copied byte by byte.
    pub(super) owner: *mut z_stream,
    pub(super) memory: Memory,
    pub(super) parameters: Parameters,
    pub(super) maker: Maker,
    pub(super) stage: Stage,
    /// The base library's stream; without a state until it is needed.
    pub(super) base: z_stream,
    pub(super) given_header: *mut gz_header,
    check: u32,
    raw_bytes: u64,
    /// Bytes since the stream's beginning or the last flush.
    unflushed_bytes: u64,
    /// Flush of the last call, by its rank; -1 where the next call may repeat it.
    last_rank: c_int,
    /// Input that is in no block yet.
    pub(super) gathered: Bytes,
    /// Bytes of `gathered` that the base library has taken.
    fed: usize,
    /// The last 32 KiB before `gathered`.
    history: Bytes,
    /// Output for which there was no room.
    pending: Bytes,
    taken: usize,
}

impl State {
    pub(super) fn new(owner: *mut z_stream, memory: Memory, parameters: Parameters) -> Self {
        let mut base = z_stream::default();
        memory.lend_to(&mut base);
        Self {
            owner,
            memory,
            parameters,
            maker: Maker::Blocks,
            stage: Stage::Start,
            base,
            given_header: ptr::null_mut(),
            check: 0,
            raw_bytes: 0,
            unflushed_bytes: 0,
            last_rank: -2,
            gathered: Bytes::new(memory),
            fed: 0,
            history: Bytes::new(memory),
            pending: Bytes::new(memory),
            taken: 0,
        }
    }

    /// Begins a stream, after init or for a reset.
    pub(super) fn begin(&mut self, stream: &mut z_stream, blocks: bool) -> c_int {
        (stream.total_in, stream.total_out) = (0, 0);
        stream.msg = ptr::null_mut();
        stream.data_type = Z_UNKNOWN;
        self.stage = Stage::Start;
        self.check = first_check(self.parameters.wrapper);
        stream.adler = self.check.into();
        self.raw_bytes = 0;
        self.unflushed_bytes = 0;
        self.last_rank = -2;
        self.fed = 0;
        self.taken = 0;
        self.gathered.clear();
        self.history.clear();
        self.pending.clear();
        if blocks && self.parameters.suit_blocks() {
            self.end_base();
            self.maker = Maker::Blocks;
            return Z_OK;
        }
        let kept = self.maker == Maker::BaseAll && !self.base.state.is_null();
        self.maker = Maker::BaseAll;
        let result = if kept {
            // SAFETY: the base library's own stream.
            unsafe { base::deflateReset(&mut self.base) }
        } else {
            self.end_base();
            self.begin_base(self.parameters.window_bits)
        };
        stream.adler = self.base.adler;
        result
    }

    fn begin_base(&mut self, window_bits: c_int) -> c_int {
        let Parameters {
            level,
            memory_level,
            strategy,
            ..
        } = self.parameters;
        // SAFETY: a stream that has no state, and the version of this very library.
        unsafe {
            base::deflateInit2_(
                &mut self.base,
                level,
                Z_DEFLATED,
                window_bits,
                memory_level,
                strategy,
                forward::zlibVersion(),
                size_of::<z_stream>() as c_int,
            )
        }
    }

    pub(super) fn end_base(&mut self) {
        if !self.base.state.is_null() {
            // SAFETY: the base library's own stream.
            unsafe { base::deflateEnd(&mut self.base) };
            self.base.state = ptr::null_mut();
        }
    }

    /// The base library takes over: between our header and trailer, with the history as its
    /// dictionary. What was gathered is its first input.
    pub(super) fn switch_to_base(&mut self) -> Result<(), c_int> {
        if self.maker != Maker::Blocks {
            return Ok(());
        }
        self.begin_body()?;
        // Whole blocks stay blocks, however many were gathered.
        let whole = self.gathered.len().saturating_sub(1) / BLOCK_BYTES * BLOCK_BYTES;
        if whole > 0 {
            let rest = self.gathered.split_off(whole)?;
            self.emit(false)?;
            self.gathered = rest;
        }
        let result = self.begin_base(-15);
        if result != Z_OK {
            return Err(result);
        }
        self.maker = Maker::Base;
        let history = self.history.as_slice();
        if !history.is_empty() {
            // SAFETY: a raw stream at its beginning.
            unsafe {
                base::deflateSetDictionary(&mut self.base, history.as_ptr(), history.len() as u32)
            };
        }
        Ok(())
    }

    /// Writes the header once.
    fn begin_body(&mut self) -> Result<(), c_int> {
        if self.stage == Stage::Start {
            // SAFETY: what `deflateSetHeader` was given is there until the header is written.
            unsafe {
                let given = self.given_header.as_ref();
                header::write(&self.parameters, given, &mut self.pending)?;
            }
            self.stage = Stage::Body;
        }
        Ok(())
    }

    /// `deflate`, of a stream that is ours.
    ///
    /// # Safety
    /// The stream's buffers are what they say.
    pub(super) unsafe fn deflate(&mut self, stream: &mut z_stream, flush: c_int) -> c_int {
        let no_input = stream.avail_in == 0;
        if stream.next_out.is_null()
            || (!no_input && stream.next_in.is_null())
            || (self.stage == Stage::Finished && flush != Z_FINISH)
        {
            return Z_STREAM_ERROR;
        }
        if stream.avail_out == 0 {
            return Z_BUF_ERROR;
        }
        let last_rank = std::mem::replace(&mut self.last_rank, rank(flush));
        if self.taken < self.pending.len() {
            // SAFETY: the caller's promise.
            unsafe { self.drain(stream) };
            if stream.avail_out == 0 {
                self.last_rank = -1;
                return Z_OK;
            }
        } else if no_input && rank(flush) <= last_rank && flush != Z_FINISH {
            return Z_BUF_ERROR;
        }
        if self.stage == Stage::Finished {
            return if no_input { Z_STREAM_END } else { Z_BUF_ERROR };
        }
        // SAFETY: the caller's promise.
        let made = unsafe {
            self.begin_body()
                .and_then(|()| self.make(stream, flush))
                .map(|()| self.drain(stream))
        };
        match made {
            Err(code) => code,
            Ok(()) if self.taken < self.pending.len() || stream.avail_out == 0 => {
                // There may be more: the same flush may be asked for again.
                self.last_rank = -1;
                match self.stage {
                    Stage::Finished if self.taken == self.pending.len() => Z_STREAM_END,
                    _ => Z_OK,
                }
            }
            Ok(()) if self.stage == Stage::Finished => Z_STREAM_END,
            Ok(()) => Z_OK,
        }
    }

    /// # Safety
    /// As [`Self::deflate`].
    unsafe fn make(&mut self, stream: &mut z_stream, flush: c_int) -> Result<(), c_int> {
        if self.maker == Maker::Blocks {
            // SAFETY: the caller's promise.
            let all = unsafe { self.gather(stream)? };
            if !all {
                return Ok(());
            }
            match flush {
                Z_NO_FLUSH => return Ok(()),
                Z_FINISH => {
                    self.emit(true)?;
                    return self.finish();
                }
                // Nothing after a full flush refers to what was before it.
                Z_FULL_FLUSH => return self.emit_flushed(),
                Z_SYNC_FLUSH if !(1..FLUSHED_MIN).contains(&self.unflushed_bytes) => {
                    return self.emit_flushed();
                }
                _ => self.switch_to_base()?,
            }
        }
        // SAFETY: the caller's promise.
        unsafe { self.make_by_base(stream, flush) }
    }

    /// Takes input in, and makes blocks of what is full. False where there is no more room for what
    /// they became.
    ///
    /// # Safety
    /// As [`Self::deflate`].
    unsafe fn gather(&mut self, stream: &mut z_stream) -> Result<bool, c_int> {
        let batch = engines::gathered_blocks() * BLOCK_BYTES;
        while stream.avail_in > 0 {
            // SAFETY: the caller's promise.
            let input = unsafe { io::input(stream) };
            if self.gathered.is_empty() && input.len() > batch {
                // Straight from the program's memory: all but the last block, which may be the
                // stream's.
                let whole = (input.len() - 1) / BLOCK_BYTES * BLOCK_BYTES;
                let part = &input[..whole.min(DIRECT_BYTES_MAX)];
                self.take_in(stream, part);
                self.blocks(Some(part), false)?;
            } else if self.gathered.len() >= batch {
                // More comes: this was not the last block.
                self.emit(false)?;
            } else {
                let part = &input[..input.len().min(batch - self.gathered.len())];
                self.gathered.extend(part)?;
                self.take_in(stream, part);
                continue;
            }
            // SAFETY: the caller's promise.
            unsafe { self.drain(stream) };
            if self.taken < self.pending.len() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Counts input as consumed.
    fn take_in(&mut self, stream: &mut z_stream, part: &[u8]) {
        self.check = continue_check(self.parameters.wrapper, self.check, part);
        self.raw_bytes += part.len() as u64;
        self.unflushed_bytes += part.len() as u64;
        io::consume(stream, part.len());
        stream.adler = self.check.into();
    }

    /// Blocks of all that was gathered, then an empty stored block: programs look for its last four
    /// bytes, or cut them off (RFC 7692), and a block that was stored does not end with them.
    fn emit_flushed(&mut self) -> Result<(), c_int> {
        self.unflushed_bytes = 0;
        self.emit(false)?;
        Ok(self.pending.extend(&EMPTY_STORED)?)
    }

    /// Makes blocks of all that was gathered.
    fn emit(&mut self, is_last: bool) -> Result<(), c_int> {
        if is_last || !self.gathered.is_empty() {
            self.blocks(None, is_last)?;
        }
        Ok(())
    }

    /// Makes blocks of `raw`, or of what was gathered.
    fn blocks(&mut self, raw: Option<&[u8]>, is_last: bool) -> Result<(), c_int> {
        let bytes = raw.unwrap_or(self.gathered.as_slice());
        let level = self.parameters.level as u8;
        engines::deflate(bytes, level, is_last, &mut self.pending)?;
        if !is_last {
            if bytes.len() >= HISTORY_BYTES {
                self.history.clear();
            }
            self.history
                .extend(&bytes[bytes.len().saturating_sub(HISTORY_BYTES)..])?;
            self.history.keep_last(HISTORY_BYTES);
        }
        if raw.is_none() {
            self.gathered.clear();
        }
        Ok(())
    }

    /// # Safety
    /// As [`Self::deflate`].
    unsafe fn make_by_base(&mut self, stream: &mut z_stream, flush: c_int) -> Result<(), c_int> {
        // SAFETY: the caller's promise.
        unsafe { self.drain(stream) };
        let mut code = Z_OK;
        let mut asked = false;
        if self.fed < self.gathered.len() {
            if stream.avail_out == 0 {
                return Ok(());
            }
            let flush = if stream.avail_in == 0 {
                flush
            } else {
                Z_NO_FLUSH
            };
            code = self.feed_base(stream, flush);
            asked = flush != Z_NO_FLUSH;
            if self.fed < self.gathered.len() {
                return base_result(code).map(|_| ());
            }
            self.gathered.clear();
            self.fed = 0;
        }
        if !asked || stream.avail_in > 0 {
            if stream.avail_out == 0 {
                return Ok(());
            }
            // SAFETY: the caller's promise.
            let input = unsafe { io::input(stream) };
            code = io::with_base(stream, &mut self.base, |base| {
                // SAFETY: the program's buffers.
                unsafe { base::deflate(base, flush) }
            });
            let taken = input.len() - stream.avail_in as usize;
            self.check = continue_check(self.parameters.wrapper, self.check, &input[..taken]);
            self.raw_bytes += taken as u64;
            stream.adler = self.check.into();
        }
        if base_result(code)? == Z_STREAM_END {
            self.finish()?;
        }
        Ok(())
    }

    /// Gives the base library what was gathered; its output is the program's.
    fn feed_base(&mut self, stream: &mut z_stream, flush: c_int) -> c_int {
        let rest = &self.gathered.as_slice()[self.fed..];
        (self.base.next_in, self.base.avail_in) = (rest.as_ptr(), rest.len() as u32);
        (self.base.next_out, self.base.avail_out) = (stream.next_out, stream.avail_out);
        // SAFETY: our input, the program's room.
        let code = unsafe { base::deflate(&mut self.base, flush) };
        self.fed = self.gathered.len() - self.base.avail_in as usize;
        io::produced(stream, (stream.avail_out - self.base.avail_out) as usize);
        code
    }

    fn finish(&mut self) -> Result<(), c_int> {
        let wrapper = self.parameters.wrapper;
        header::write_trailer(wrapper, self.check, self.raw_bytes, &mut self.pending)?;
        self.stage = Stage::Finished;
        Ok(())
    }

    /// Writes what is pending, as far as there is room.
    ///
    /// # Safety
    /// As [`Self::deflate`].
    unsafe fn drain(&mut self, stream: &mut z_stream) {
        // SAFETY: the caller's promise.
        self.taken += unsafe { io::put(stream, &self.pending.as_slice()[self.taken..]) };
        if self.taken == self.pending.len() {
            self.pending.clear();
            self.taken = 0;
        }
    }

    /// Ends what was begun with the present parameters, so that others may be set.
    ///
    /// # Safety
    /// As [`Self::deflate`].
    pub(super) unsafe fn close_block(&mut self, stream: &mut z_stream) -> Result<(), c_int> {
        if self.maker == Maker::Blocks && !self.gathered.is_empty() {
            self.begin_body()?;
            self.emit(false)?;
        }
        // SAFETY: the caller's promise.
        unsafe { self.drain(stream) };
        if self.fed < self.gathered.len() {
            if stream.avail_out == 0 {
                return Err(Z_BUF_ERROR);
            }
            self.feed_base(stream, Z_BLOCK);
            if self.fed < self.gathered.len() {
                return Err(Z_BUF_ERROR);
            }
            self.gathered.clear();
            self.fed = 0;
        }
        Ok(())
    }

    /// Bytes that wait for room.
    pub(super) fn pending_bytes(&self) -> usize {
        self.pending.len() - self.taken
    }

    /// The last 32 KiB that came in, at most; oldest first, in two parts.
    pub(super) fn dictionary(&self) -> (&[u8], &[u8]) {
        let gathered = self.gathered.as_slice();
        let new = &gathered[gathered.len().saturating_sub(HISTORY_BYTES)..];
        let old = self.history.as_slice();
        let keep = old.len().min(HISTORY_BYTES - new.len());
        (&old[old.len() - keep..], new)
    }

    /// A copy for another stream.
    pub(super) fn duplicate(&mut self, owner: *mut z_stream) -> Result<Self, c_int> {
        let mut copy = Self {
            owner,
            base: z_stream::default(),
            gathered: self.gathered.duplicate()?,
            history: self.history.duplicate()?,
            pending: self.pending.duplicate()?,
            ..*self
        };
        self.memory.lend_to(&mut copy.base);
        if !self.base.state.is_null() {
            // SAFETY: the base library's own stream, and one without a state.
            let code = unsafe { base::deflateCopy(&mut copy.base, &mut self.base) };
            if code != Z_OK {
                copy.base.state = ptr::null_mut();
                return Err(code);
            }
        }
        Ok(copy)
    }
}

impl Drop for State {
    fn drop(&mut self) {
        self.end_base();
    }
}

/// The code of a call to the base library, unless it failed. That it could not go on is no failure:
/// what was there before it is output too.
fn base_result(code: c_int) -> Result<c_int, c_int> {
    match code {
        Z_BUF_ERROR => Ok(Z_OK),
        ..0 => Err(code),
        _ => Ok(code),
    }
}

/// zlib's order of flushes: one that follows a stronger one, without input, does nothing.
fn rank(flush: c_int) -> c_int {
    flush * 2 - if flush > Z_FINISH { 9 } else { 0 }
}

pub(super) fn first_check(wrapper: CheckKind) -> u32 {
    match wrapper {
        CheckKind::Adler32 => 1,
        CheckKind::None | CheckKind::Crc32 => 0,
    }
}

fn continue_check(wrapper: CheckKind, check: u32, bytes: &[u8]) -> u32 {
    // SAFETY: a slice.
    unsafe {
        match wrapper {
            CheckKind::None => 0,
            CheckKind::Adler32 => {
                forward::adler32_z(check.into(), bytes.as_ptr(), bytes.len()) as u32
            }
            CheckKind::Crc32 => forward::crc32_z(check.into(), bytes.as_ptr(), bytes.len()) as u32,
        }
    }
}

impl From<NoMemory> for c_int {
    fn from(_: NoMemory) -> Self {
        Z_MEM_ERROR
    }
}

const HISTORY_BYTES: usize = 32 << 10;
/// The most input that becomes blocks before their output is handed over.
const DIRECT_BYTES_MAX: usize = 32 * BLOCK_BYTES;
/// From this many bytes on, what a sync flush ends is a block without a history: the size of what
/// it loses is less than a hundredth then.
const FLUSHED_MIN: u64 = 64 << 10;
const EMPTY_STORED: [u8; 5] = [0, 0, 0, 0xff, 0xff];

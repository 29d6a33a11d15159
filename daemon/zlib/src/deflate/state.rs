//! A deflating stream: blocks of ours for as long as they serve the program, then the base library.
//!
//! ```text
//!           deflate(input)            full, flushed, finished
//!  program ───────────────► gathered ───────────────────────► blocks ──► pending ──► program
//!                               │  a flush that wants history kept,        ▲
//!                               │  a parameter that blocks do not know     │ header, trailer
//!                               ▼                                          │
//!                           base library (raw, with the last 32 KiB as its dictionary)
//! ```
//!
//! Blocks are independent of one another. So they can be made in parallel, but do not suit a
//! program that flushes every few bytes: from its first such flush on, the base library has the
//! stream. Where the parameters never suit blocks, it has it from the beginning. Header, trailer
//! and the rules of `deflate` are here in both cases.
//!
//! Must stay true: each call takes the steps of zlib's own `deflate`, in their order, with the same
//! answers: first the pending output, then whether there is anything to do, the header, the input,
//! the flush, the trailer. Pending is the output that waits here and in the base library. Block
//! boundaries depend on the bytes and flushes alone, not on how input and room were cut, nor on
//! engines. All memory is the stream's own ([`Memory`]). A call that runs out of memory may be
//! repeated: it took no input without its output. One thread at a time, as zlib asks. Source: zlib
//! 1.3, `deflate.c`.

use super::header;
use super::parameters::{HISTORY_BYTES, Parameters};
use crate::engines;
use crate::forward;
use crate::io;
use crate::memory::{Bytes, Memory, NoMemory};
use libc::c_int;
use libz_rs_sys as base;
use libz_rs_sys::*;
use sidecore_deflate::{BLOCK_BYTES, CheckKind};
use std::{mem, ptr};

/// The maker of DEFLATE from the input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Maker {
    /// Blocks.
    Blocks,
    /// The base library, between a header and a trailer of ours.
    Base,
}

/// The way of a stream, as in zlib.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Status {
    /// The header is not written.
    Init,
    Busy,
    /// All input was taken, and its last block is made.
    Finish,
}

/// Request of a call to the maker: zlib's flushes, and the one of `deflateParams`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ask {
    Flush(c_int),
    /// Gathered input becomes blocks; others may follow it with other parameters.
    Parameters,
}

impl Ask {
    fn flush(self) -> c_int {
        match self {
            Self::Flush(flush) => flush,
            Self::Parameters => Z_BLOCK,
        }
    }
}

/// Progress of the maker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Made {
    /// There was nothing for it to do.
    Nothing,
    /// It waits for input, or for room.
    More,
    /// The request is done.
    Flushed,
    /// The last block is put out.
    Finished,
}

pub(super) struct State {
    /// The stream that it belongs to: zlib refuses a stream that was copied byte by byte.
    pub(super) owner: *mut z_stream,
    pub(super) memory: Memory,
    pub(super) parameters: Parameters,
    pub(super) maker: Maker,
    pub(super) status: Status,
    /// Set once the trailer is in `pending`, or there is to be none.
    pub(super) is_closed: bool,
    /// The base library's stream; without a state until it is needed.
    pub(super) base: z_stream,
    /// Set once it ended.
    pub(super) is_base_done: bool,
    /// The last request.
    pub(super) base_parameters: Parameters,
    pub(super) given_header: *mut gz_header,
    /// The checksum of a dictionary that a zlib header is to name.
    pub(super) dictionary_check: Option<u32>,
    pub(super) check: u32,
    pub(super) raw_bytes: u64,
    /// Bytes since the stream's beginning or the last flush.
    pub(super) unflushed_bytes: u64,
    /// Flush of the last call; -1 where the next call may repeat it, -2 before the first.
    pub(super) last_flush: c_int,
    /// Set where this call only goes on with output that the last one had no room for.
    pub(super) is_repeated: bool,
    /// Input that is in no block yet.
    pub(super) gathered: Bytes,
    /// Bytes of `gathered` that the base library has taken.
    pub(super) fed: usize,
    /// The last 32 KiB before `gathered`.
    pub(super) history: Bytes,
    /// Output for which there was no room.
    pub(super) pending: Bytes,
    pub(super) taken: usize,
    /// To gather several blocks for engines.
    pub(super) leave: Option<engines::Leave>,
}

impl State {
    pub(super) fn new(owner: *mut z_stream, memory: Memory, parameters: Parameters) -> Self {
        Self {
            owner,
            memory,
            parameters,
            maker: Maker::Blocks,
            status: Status::Init,
            is_closed: false,
            base: z_stream::default(),
            is_base_done: false,
            base_parameters: parameters,
            given_header: ptr::null_mut(),
            dictionary_check: None,
            check: 0,
            raw_bytes: 0,
            unflushed_bytes: 0,
            last_flush: -2,
            is_repeated: false,
            gathered: Bytes::never_short(memory),
            fed: 0,
            history: Bytes::never_short(memory),
            pending: Bytes::never_short(memory),
            taken: 0,
            leave: None,
        }
    }

    /// Begins a stream, after init or for a reset.
    pub(super) fn begin(&mut self, stream: &mut z_stream, blocks: bool) -> c_int {
        (stream.total_in, stream.total_out) = (0, 0);
        stream.msg = ptr::null_mut();
        stream.data_type = Z_UNKNOWN;
        self.status = Status::Init;
        self.is_closed = self.parameters.wrapper == CheckKind::None;
        self.check = first_check(self.parameters.wrapper);
        // As zlib has it: 1 for raw streams too, which do not touch it later.
        stream.adler = u64::from(self.parameters.wrapper != CheckKind::Crc32);
        self.dictionary_check = None;
        self.raw_bytes = 0;
        self.unflushed_bytes = 0;
        self.last_flush = -2;
        self.fed = 0;
        self.taken = 0;
        self.gathered.clear();
        self.history.clear();
        self.pending.clear();
        self.give_leave_back();
        self.maker = Maker::Blocks;
        // The base library's memory is some 270 KiB: streams of blocks do without it.
        if blocks && self.parameters.suit_blocks() {
            return Z_OK;
        }
        self.begin_base().err().unwrap_or(Z_OK)
    }

    /// `deflate`.
    ///
    /// # Safety
    /// The stream's buffers are as its fields say.
    pub(super) unsafe fn deflate(&mut self, stream: &mut z_stream, flush: c_int) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { self.work(stream, Ask::Flush(flush)) }
    }

    /// The start of `deflateParams`, where input so far is to be made with the old parameters:
    /// [`Z_OK`] where all of it is.
    ///
    /// # Safety
    /// As [`Self::deflate`].
    pub(super) unsafe fn close_block(&mut self, stream: &mut z_stream) -> c_int {
        // SAFETY: the caller's promise.
        let code = unsafe { self.work(stream, Ask::Parameters) };
        // Other codes say that there was nothing to do, which is what is wanted.
        match code {
            Z_STREAM_ERROR | Z_MEM_ERROR => code,
            _ if stream.avail_in > 0 || self.unfed_bytes() > 0 => Z_BUF_ERROR,
            _ => Z_OK,
        }
    }

    /// Input that was taken and is in no output yet, as far as it is here.
    pub(super) fn unfed_bytes(&self) -> usize {
        self.gathered.len() - self.fed
    }

    /// # Safety
    /// As [`Self::deflate`].
    unsafe fn work(&mut self, stream: &mut z_stream, ask: Ask) -> c_int {
        // From here on in the order of zlib's `deflate`: which error comes first is part of its
        // contract.
        let flush = ask.flush();
        let no_input = stream.avail_in == 0;
        if stream.next_out.is_null()
            || (!no_input && stream.next_in.is_null())
            || (self.status == Status::Finish && flush != Z_FINISH)
        {
            return refuse(stream, Z_STREAM_ERROR);
        }
        if stream.avail_out == 0 {
            return refuse(stream, Z_BUF_ERROR);
        }
        let last_flush = mem::replace(&mut self.last_flush, flush);
        self.is_repeated = no_input && self.pending_bytes() > 0;
        if self.pending_bytes() > 0 {
            // SAFETY: the caller's promise.
            unsafe { self.drain(stream) };
            if stream.avail_out == 0 {
                self.last_flush = -1;
                return Z_OK;
            }
        } else if self.base_pending().0 == 0
            && no_input
            // The same flush again, without input, would make an empty block for each call.
            && rank(flush) <= rank(last_flush)
            && flush != Z_FINISH
        {
            return refuse(stream, Z_BUF_ERROR);
        }
        // Nothing may follow the last block.
        if self.is_made() && !no_input {
            return refuse(stream, Z_BUF_ERROR);
        }
        // SAFETY: the caller's promise.
        let result = unsafe {
            self.write_header(stream)
                .and_then(|()| self.make_and_close(stream, ask))
        };
        match result {
            Ok(code) => code,
            // The program may free memory and repeat the call.
            Err(Z_MEM_ERROR) => {
                self.last_flush = -1;
                Z_MEM_ERROR
            }
            Err(code) => code,
        }
    }

    /// True once all of the stream but its trailer is made, and out of the base library.
    fn is_made(&self) -> bool {
        self.status == Status::Finish && (self.maker == Maker::Blocks || self.is_base_done)
    }

    /// Writes the header once.
    ///
    /// # Safety
    /// As [`Self::deflate`].
    unsafe fn write_header(&mut self, stream: &mut z_stream) -> Result<(), c_int> {
        if self.status != Status::Init {
            return Ok(());
        }
        let before = self.pending.len();
        // SAFETY: the argument of `deflateSetHeader` is there until the header is written.
        let written = unsafe {
            let given = self.given_header.as_ref();
            header::write(
                &self.parameters,
                given,
                self.dictionary_check,
                &mut self.pending,
            )
        };
        // A part of a header would be followed by another whole one.
        if written.is_err() {
            self.pending.truncate(before);
            written?;
        }
        self.status = Status::Busy;
        if self.parameters.wrapper != CheckKind::None {
            stream.adler = self.check.into();
        }
        // SAFETY: the caller's promise.
        unsafe { self.drain(stream) };
        Ok(())
    }

    /// # Safety
    /// As [`Self::deflate`].
    unsafe fn make_and_close(&mut self, stream: &mut z_stream, ask: Ask) -> Result<c_int, c_int> {
        let flush = ask.flush();
        if self.pending_bytes() > 0 {
            // The header is not out.
            self.last_flush = -1;
            return Ok(Z_OK);
        }
        if stream.avail_out == 0 {
            // Or it just fitted; where that was all, nothing is left to be repeated.
            if stream.avail_in > 0 || flush != Z_NO_FLUSH {
                self.last_flush = -1;
            }
            return Ok(Z_OK);
        }
        if !self.is_made() {
            // SAFETY: the caller's promise.
            let made = unsafe {
                match self.maker {
                    Maker::Blocks => self.make(stream, ask)?,
                    Maker::Base => self.make_by_base(stream, flush)?,
                }
            };
            match made {
                Made::Nothing => return Ok(Z_OK),
                Made::More | Made::Flushed => {
                    // SAFETY: the caller's promise.
                    unsafe { self.drain(stream) };
                    if stream.avail_out == 0 {
                        // There may be more: the program may repeat the same flush.
                        self.last_flush = -1;
                    }
                    return Ok(Z_OK);
                }
                Made::Finished => (self.status, self.is_base_done) = (Status::Finish, true),
            }
        }
        if flush != Z_FINISH {
            return Ok(Z_OK);
        }
        // A raw stream has no trailer; of others it was written by an earlier call.
        if self.is_closed {
            return Ok(Z_STREAM_END);
        }
        let wrapper = self.parameters.wrapper;
        let before = self.pending.len();
        let written = header::write_trailer(wrapper, self.check, self.raw_bytes, &mut self.pending);
        // As with the header: all of it or nothing, since the call may be repeated.
        if written.is_err() {
            self.pending.truncate(before);
            written?;
        }
        self.is_closed = true;
        // SAFETY: the caller's promise.
        unsafe { self.drain(stream) };
        Ok(if self.pending_bytes() > 0 {
            Z_OK
        } else {
            Z_STREAM_END
        })
    }

    /// Writes pending output, as far as there is room.
    ///
    /// # Safety
    /// As [`Self::deflate`].
    pub(super) unsafe fn drain(&mut self, stream: &mut z_stream) {
        // SAFETY: the caller's promise.
        self.taken += unsafe { io::put(stream, &self.pending.as_slice()[self.taken..]) };
        // Its memory is kept: the next output is of a similar size, or input takes its place.
        if self.taken == self.pending.len() {
            self.pending.clear();
            self.taken = 0;
            // The base library keeps its own; and a wave of engines was an exception.
            if self.maker == Maker::Base || self.pending.room() > PENDING_ROOM_MAX {
                self.pending.give_back();
            }
        }
    }

    /// Bytes that wait for room here.
    pub(super) fn pending_bytes(&self) -> usize {
        self.pending.len() - self.taken
    }

    /// True where the stream could be ended without a loss that zlib would tell of: not begun, or
    /// finished, with no more waiting than zlib keeps.
    pub(super) fn is_ended(&mut self) -> bool {
        let waiting = self.pending_bytes() + self.base_pending().0;
        match self.status {
            Status::Init => true,
            Status::Busy => false,
            Status::Finish => waiting <= 4 << (self.parameters.memory_level + 6),
        }
    }

    /// True while a gzip header may still be given.
    pub(super) fn takes_header(&self) -> bool {
        self.parameters.wrapper == CheckKind::Crc32 && !self.is_closed
    }

    /// Gives the stream to the base library with a dictionary before the next input.
    pub(super) fn set_dictionary(&mut self, stream: &mut z_stream, dictionary: &[u8]) -> c_int {
        let is_refused = match self.parameters.wrapper {
            // A closed stream has no wrapper any more.
            _ if self.is_closed => false,
            CheckKind::None => false,
            CheckKind::Adler32 => self.status != Status::Init,
            CheckKind::Crc32 => true,
        };
        // Input that was taken already would be deflated with a dictionary that came later.
        if is_refused || self.unfed_bytes() > 0 {
            return Z_STREAM_ERROR;
        }
        if let Err(code) = self.switch_to_base() {
            return code;
        }
        // SAFETY: the base library's own stream, a slice.
        let code = unsafe {
            let bytes = io::available(dictionary.len());
            base::deflateSetDictionary(&mut self.base, dictionary.as_ptr(), bytes)
        };
        if code != Z_OK {
            return code;
        }
        // zlib counts it as input.
        let window = 1 << self.parameters.window_size_bits();
        let counted = dictionary.len().min(window);
        stream.total_in = stream.total_in.wrapping_add(counted as _);
        if self.parameters.wrapper == CheckKind::Adler32 && !self.is_closed {
            let before = forward::low_half(stream.adler);
            let check = continue_check(CheckKind::Adler32, before, dictionary);
            stream.adler = check.into();
            if !dictionary.is_empty() || self.dictionary_check.is_some() {
                self.dictionary_check = Some(check);
            }
        }
        code
    }

    /// The last 32 KiB that came in, at most; oldest first, in two parts.
    pub(super) fn dictionary(&self) -> (&[u8], &[u8]) {
        let gathered = self.gathered.as_slice();
        let new = &gathered[gathered.len().saturating_sub(HISTORY_BYTES)..];
        let old = self.history.as_slice();
        let keep = old.len().min(HISTORY_BYTES - new.len());
        (&old[old.len() - keep..], new)
    }

    /// A copy for another stream. Once it has its place, [`Self::keep_lender`] is due.
    pub(super) fn duplicate(&mut self, owner: *mut z_stream) -> Result<Self, c_int> {
        let mut copy = Self {
            owner,
            base: z_stream::default(),
            gathered: self.gathered.duplicate()?,
            history: self.history.duplicate()?,
            pending: self.pending.duplicate()?,
            leave: None,
            ..*self
        };
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

/// Refuses a call as zlib does, with its message.
pub(super) fn refuse(stream: &mut z_stream, code: c_int) -> c_int {
    let message = match code {
        Z_STREAM_ERROR => c"stream error",
        Z_MEM_ERROR => c"insufficient memory",
        _ => c"buffer error",
    };
    stream.msg = message.as_ptr().cast_mut();
    code
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

pub(super) fn continue_check(wrapper: CheckKind, check: u32, bytes: &[u8]) -> u32 {
    match wrapper {
        CheckKind::None => 0,
        CheckKind::Adler32 => forward::adler32_of(check, bytes),
        CheckKind::Crc32 => forward::crc32_of(check, bytes),
    }
}

/// Output keeps the room of some blocks.
const PENDING_ROOM_MAX: usize = 2 * BLOCK_BYTES;

impl From<NoMemory> for c_int {
    fn from(_: NoMemory) -> Self {
        Z_MEM_ERROR
    }
}

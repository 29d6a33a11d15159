//! Compressors of a stream's input: blocks on engines, or the base library.

use super::parameters::{HISTORY_BYTES, Parameters};
use super::state::{Ask, Made, Maker, State, Status, continue_check, refuse};
use crate::engines;
use crate::foreign;
use crate::forward;
use crate::io;
use crate::memory::{Bytes, MALLOC, NoMemory};
use libc::c_int;
use libz_rs_sys as base;
use libz_rs_sys::*;
use sidecore_bare::width::{ToU64, ToUsize};
use sidecore_deflate::{BLOCK_BYTES, CheckKind, block_bytes_max};
use std::{mem, ptr};

impl State {
    /// The base library's stream begins: raw, with the present parameters.
    pub(super) fn begin_base(&mut self) -> Result<(), c_int> {
        let Parameters { strategy, .. } = self.parameters;
        let memory_level = self.parameters.base_memory_level();
        let level = self.parameters.base_level();
        let window_bits = -self.parameters.window_size_bits();
        let mut code = Z_STREAM_ERROR;
        // SAFETY: the base library's own stream; or one that has no state, and the version of this
        // very library.
        unsafe {
            // With output that still waits, its reset would leave less room for the next output.
            if !self.base.state.is_null() && self.waiting_in_base().0 == 0 {
                code = base::deflateReset(&mut self.base);
                if code == Z_OK {
                    code = base::deflateParams(&mut self.base, level, strategy);
                }
            }
            if code != Z_OK {
                self.end_base();
                for is_own in [true, false] {
                    match is_own {
                        true => self.memory.lend_to(&mut self.base),
                        false => MALLOC.0.lend_to(&mut self.base),
                    }
                    code = base::deflateInit2_(
                        &mut self.base,
                        level,
                        Z_DEFLATED,
                        window_bits,
                        memory_level,
                        strategy,
                        forward::zlibVersion(),
                        STREAM_BYTES,
                    );
                    // Where blocks were begun with, zlib would have its memory by now.
                    if code == Z_OK || self.status == Status::Init || foreign::is_held() {
                        break;
                    }
                }
            }
        }
        if code != Z_OK {
            self.base.state = ptr::null_mut();
            return Err(code);
        }
        self.base_parameters = self.parameters;
        // Behind an end of ours, it has nothing to do.
        self.is_base_done = self.status == Status::Finish;
        self.maker = Maker::Base;
        Ok(())
    }

    /// The base library's stream, copied from another's, is lent this state's own memory.
    pub(super) fn keep_lender(&mut self) {
        if !self.base.state.is_null() && !MALLOC.0.lends_to(&self.base) {
            // SAFETY: the state has its place, and ends this stream before it leaves it.
            unsafe { self.memory.lend_to(&mut self.base) };
        }
    }

    pub(super) fn end_base(&mut self) {
        if !self.base.state.is_null() {
            // SAFETY: the base library's own stream.
            unsafe { base::deflateEnd(&mut self.base) };
            self.base.state = ptr::null_mut();
        }
    }

    /// The base library takes over, with the history as its dictionary. The gathered input is its
    /// first.
    pub(super) fn switch_to_base(&mut self) -> Result<(), c_int> {
        if self.maker != Maker::Blocks {
            return Ok(());
        }
        // Whole blocks stay blocks, however many were gathered.
        self.emit_blocks(self.gathered.len().saturating_sub(1) / BLOCK_BYTES)?;
        self.begin_base()?;
        let history = self.history.as_slice();
        if !history.is_empty() {
            // SAFETY: a raw stream at its beginning.
            unsafe {
                base::deflateSetDictionary(
                    &mut self.base,
                    history.as_ptr(),
                    io::available(history.len()),
                )
            };
        }
        if self.gathered.is_empty() {
            self.give_room_back();
        }
        Ok(())
    }

    /// The base library has all that was here.
    fn give_room_back(&mut self) {
        self.leave = None;
        self.fed = 0;
        self.gathered.give_back();
        self.history.give_back();
    }

    /// Blocks of the program's input.
    ///
    /// # Safety
    /// As [`Self::deflate`].
    pub(super) unsafe fn make(&mut self, stream: &mut z_stream, ask: Ask) -> Result<Made, c_int> {
        // SAFETY: the caller's promise.
        if !unsafe { self.gather(stream)? } {
            return Ok(Made::More);
        }
        // New parameters begin with the next block.
        let Ask::Flush(flush) = ask else {
            self.emit(false)?;
            return Ok(Made::Flushed);
        };
        match flush {
            Z_NO_FLUSH if self.gathered.is_empty() => return Ok(Made::Nothing),
            Z_NO_FLUSH => return Ok(Made::More),
            Z_FINISH => {
                // Before the output is out: a repeated finish must not make another last block.
                self.emit(true)?;
                self.status = Status::Finish;
                self.give_leave_back();
                // SAFETY: the caller's promise.
                unsafe { self.drain(stream) };
                return Ok(match stream.avail_out {
                    0 => Made::More,
                    _ => Made::Finished,
                });
            }
            Z_FULL_FLUSH => {
                self.emit_flushed()?;
                // Later data does not refer to earlier data.
                self.history.clear();
                return Ok(Made::Flushed);
            }
            Z_SYNC_FLUSH if !(1..FLUSHED_MIN).contains(&self.unflushed_bytes) => {
                self.emit_flushed()?;
                return Ok(Made::Flushed);
            }
            // Small flushes lose too much with blocks that have no history; the others end within a
            // byte, which blocks do not.
            _ => self.switch_to_base()?,
        }
        // Blocks that were gathered for engines come first.
        // SAFETY: the caller's promise.
        unsafe { self.drain(stream) };
        if stream.avail_out == 0 {
            return Ok(Made::More);
        }
        // SAFETY: the caller's promise.
        unsafe { self.make_by_base(stream, flush) }
    }

    /// Takes input in, and makes blocks of full buffers. False where there is no more room for
    /// their output.
    ///
    /// # Safety
    /// As [`Self::deflate`].
    unsafe fn gather(&mut self, stream: &mut z_stream) -> Result<bool, c_int> {
        while stream.avail_in > 0 {
            // SAFETY: the caller's promise.
            let input = unsafe { io::input(stream) };
            let batch = self.batch_bytes(input.len());
            if self.gathered.is_empty() && input.len() > batch {
                // Straight from the program's memory: all but the last block, which may be the
                // stream's.
                let whole = (input.len() - 1) / BLOCK_BYTES * BLOCK_BYTES;
                let at_once = match engines::are_there() {
                    true => DIRECT_BYTES_MAX,
                    false => BLOCK_BYTES,
                };
                let part = &input[..whole.min(at_once)];
                self.lend_room();
                self.blocks(Some(part), false)?;
                self.take_in(stream, part);
            } else if self.gathered.len() >= batch {
                // More comes: the last of these was not the stream's last. An incomplete block is
                // kept; there is one only where a batch has become smaller since.
                self.emit_blocks(self.gathered.len() / BLOCK_BYTES)?;
            } else {
                let part = &input[..input.len().min(batch - self.gathered.len())];
                self.make_room(part.len(), batch)?;
                self.gathered.extend(part)?;
                self.take_in(stream, part);
                // Nothing was made, so there is nothing to drain.
                continue;
            }
            // SAFETY: the caller's promise.
            unsafe { self.drain(stream) };
            if self.pending_bytes() > 0 || stream.avail_out == 0 {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Input that is gathered before any of it becomes blocks: several blocks where engines can
    /// share them.
    fn batch_bytes(&mut self, more: usize) -> usize {
        if self.leave.is_none() && self.gathered.len() + more > BLOCK_BYTES {
            self.leave = engines::Leave::ask();
        }
        match self.leave {
            Some(_) if engines::are_there() => engines::GATHERED_BLOCKS * BLOCK_BYTES,
            _ => BLOCK_BYTES,
        }
    }

    /// Makes room for `more` gathered bytes, in few steps: there are programs whose memory is not
    /// given back before the stream ends.
    fn make_room(&mut self, more: usize, batch: usize) -> Result<(), c_int> {
        // One buffer serves both: input is gathered only once all output is out.
        if self.gathered.is_empty()
            && self.pending.is_empty()
            && self.pending.room() > self.gathered.room()
        {
            mem::swap(&mut self.gathered, &mut self.pending);
        }
        let wanted = self.gathered.len() + more;
        let room = if wanted <= SMALL_BYTES {
            buffer_bytes(SMALL_BYTES)
        } else if wanted <= BLOCK_BYTES {
            BUFFER_BYTES
        } else {
            batch.max(wanted)
        };
        Ok(self.gathered.reserve_to(room)?)
    }

    /// Gathers one block at a time from now on.
    pub(super) fn give_leave_back(&mut self) {
        self.leave = None;
        if self.gathered.is_empty() && self.gathered.room() > BUFFER_BYTES {
            self.gathered.give_back();
        }
    }

    /// Lends the room for input to output that is made now.
    fn lend_room(&mut self) {
        if self.gathered.is_empty()
            && self.pending.is_empty()
            && self.gathered.room() > self.pending.room()
        {
            mem::swap(&mut self.gathered, &mut self.pending);
        }
    }

    /// The room that a stream of blocks needs until it ends, before the first, as zlib has it.
    pub(super) fn make_first_room(&mut self) -> Result<(), c_int> {
        self.gathered.reserve_to(BUFFER_BYTES)?;
        Ok(self.history.reserve_to(HISTORY_BYTES)?)
    }

    /// Counts input as consumed.
    fn take_in(&mut self, stream: &mut z_stream, part: &[u8]) {
        self.count_in(stream, part);
        self.unflushed_bytes += part.len().to_u64();
        io::consume(stream, part.len());
    }

    /// The checksum and the count of input that was taken.
    fn count_in(&mut self, stream: &mut z_stream, part: &[u8]) {
        self.raw_bytes += part.len().to_u64();
        if self.parameters.wrapper != CheckKind::None {
            self.check = continue_check(self.parameters.wrapper, self.check, part);
            stream.adler = self.check.into();
        }
    }

    /// Blocks of all gathered input, then an empty stored block. Programs look for its last four
    /// bytes, or cut them off (RFC 7692). A block that was compressed has one at its end; a second
    /// would leave a reader that looks for the first (`inflateSync`) before the flush.
    fn emit_flushed(&mut self) -> Result<(), c_int> {
        // The mark was in the output that there was no room for, and is out now.
        if self.is_repeated && self.raw_bytes > 0 && self.unflushed_bytes == 0 {
            return Ok(());
        }
        self.lend_room();
        // Of a block made in its place, the buffer has room for it.
        if self.gathered.is_empty() || !self.is_made_in_place() {
            self.pending.reserve(EMPTY_STORED.len())?;
        }
        let raw_bytes = self.gathered.len();
        self.emit(false)?;
        if raw_bytes == 0 || !ends_with_empty_stored(self.pending.as_slice(), raw_bytes) {
            self.pending.extend(&EMPTY_STORED)?;
        }
        // Only now: a call that is repeated for lack of memory still has its mark to make.
        self.unflushed_bytes = 0;
        Ok(())
    }

    /// Makes the first `count` gathered blocks, none of which is the stream's last.
    fn emit_blocks(&mut self, count: usize) -> Result<(), c_int> {
        let whole = count * BLOCK_BYTES;
        if whole == 0 {
            return Ok(());
        }
        // Nothing has to be split off, and copied.
        if whole == self.gathered.len() {
            return self.emit(false);
        }
        let rest = self.gathered.split_off(whole)?;
        match self.emit(false) {
            Ok(()) => self.gathered = rest,
            Err(code) => {
                // There was room for it before.
                self.gathered.extend(rest.as_slice())?;
                return Err(code);
            }
        }
        Ok(())
    }

    /// Makes blocks of all that was gathered.
    fn emit(&mut self, is_last: bool) -> Result<(), c_int> {
        if is_last || !self.gathered.is_empty() {
            self.blocks(None, is_last)?;
        }
        Ok(())
    }

    /// Makes blocks of `raw`, or of the gathered input: all of it, or nothing where memory is
    /// short.
    fn blocks(&mut self, raw: Option<&[u8]>, is_last: bool) -> Result<(), c_int> {
        let level = self.parameters.level as u8;
        let bytes = raw.unwrap_or(self.gathered.as_slice());
        // Reserved before the work: behind it a failure would lose the blocks, or the history.
        let kept = (self.history.len() + bytes.len()).min(HISTORY_BYTES);
        self.history.reserve_to(kept)?;
        if raw.is_none() && self.is_made_in_place() {
            return self.block_in_place(level, is_last);
        }
        let before = self.pending.len();
        if let Err(error) = engines::deflate(bytes, level, is_last, &mut self.pending) {
            self.pending.truncate(before);
            return Err(error.into());
        }
        push_history(&mut self.history, bytes)?;
        if raw.is_none() {
            self.gathered.clear();
        }
        Ok(())
    }

    /// True where a block of the gathered input can take its place: nothing waits before it, and it
    /// is made on this thread.
    fn is_made_in_place(&self) -> bool {
        let bytes = self.gathered.len();
        self.pending.is_empty()
            && (bytes < BLOCK_BYTES || (bytes == BLOCK_BYTES && !engines::are_there()))
    }

    /// Makes one block of the gathered input; the buffer becomes that of the pending output.
    fn block_in_place(&mut self, level: u8, is_last: bool) -> Result<(), c_int> {
        self.gathered
            .reserve_to(buffer_bytes(self.gathered.len()))?;
        let (gathered, history) = (&mut self.gathered, &mut self.history);
        engines::replace(gathered, level, is_last, |raw| push_history(history, raw))?;
        mem::swap(&mut self.gathered, &mut self.pending);
        Ok(())
    }

    /// # Safety
    /// As [`Self::deflate`].
    pub(super) unsafe fn make_by_base(
        &mut self,
        stream: &mut z_stream,
        flush: c_int,
    ) -> Result<Made, c_int> {
        // SAFETY: the caller's promise.
        if !unsafe { self.tell_base(stream) } {
            return Ok(Made::More);
        }
        if self.unfed_bytes() > 0 {
            // The program's flush comes behind all of its input, not behind what was gathered.
            let is_rest = stream.avail_in == 0;
            let code = self.feed_base(stream, if is_rest { flush } else { Z_NO_FLUSH });
            if self.unfed_bytes() > 0 {
                base_result(stream, code, Z_NO_FLUSH)?;
                return Ok(Made::More);
            }
            self.give_room_back();
            if is_rest {
                self.note_finish(code, flush);
                return base_result(stream, code, flush);
            }
            if stream.avail_out == 0 {
                return Ok(Made::More);
            }
        }
        // SAFETY: the caller's promise.
        let input = unsafe { io::input(stream) };
        // zlib leaves the program's message alone where a call succeeds.
        let message = stream.msg;
        let code = io::with_base(stream, &mut self.base, |base| {
            // SAFETY: the program's buffers.
            unsafe { base::deflate(base, flush) }
        });
        stream.msg = message;
        stream.data_type = self.base.data_type;
        let taken = input.len() - stream.avail_in.to_usize();
        self.count_in(stream, &input[..taken]);
        self.note_finish(code, flush);
        base_result(stream, code, flush)
    }

    /// Notes that the base library has made its last block, though not all of it is out: it refuses
    /// any other flush from then on, before it checks for room.
    fn note_finish(&mut self, code: c_int, flush: c_int) {
        if code != Z_OK || flush != Z_FINISH {
            return;
        }
        let mut room = 0_u8;
        (self.base.next_in, self.base.avail_in) = (ptr::null_mut(), 0);
        (self.base.next_out, self.base.avail_out) = (&mut room, 0);
        // SAFETY: neither input nor room.
        if unsafe { base::deflate(&mut self.base, Z_NO_FLUSH) } == Z_STREAM_ERROR {
            self.status = Status::Finish;
        }
    }

    /// Passes parameters on that were set meanwhile; false where there was no room for the base
    /// library's earlier output.
    ///
    /// # Safety
    /// As [`Self::deflate`].
    unsafe fn tell_base(&mut self, stream: &mut z_stream) -> bool {
        let (level, strategy) = (self.parameters.base_level(), self.parameters.strategy);
        // A call of `deflateParams` flushes, so it is made only where something changes.
        if self.base_parameters == self.parameters {
            return true;
        }
        let (input, given) = (stream.next_in, stream.avail_in);
        (stream.avail_in, self.base.next_in) = (0, input);
        let message = stream.msg;
        let code = io::with_base(stream, &mut self.base, |base| {
            // SAFETY: no input, the program's room.
            unsafe { base::deflateParams(base, level, strategy) }
        });
        stream.msg = message;
        (stream.next_in, stream.avail_in) = (input, given);
        if code == Z_OK {
            self.base_parameters = self.parameters;
        }
        stream.avail_out > 0
    }

    /// Gives the base library the gathered input; its output is the program's.
    fn feed_base(&mut self, stream: &mut z_stream, flush: c_int) -> c_int {
        let rest = &self.gathered.as_slice()[self.fed..];
        (self.base.next_in, self.base.avail_in) = (rest.as_ptr(), io::available(rest.len()));
        (self.base.next_out, self.base.avail_out) = (stream.next_out, stream.avail_out);
        // SAFETY: our input, the program's room.
        let code = unsafe { base::deflate(&mut self.base, flush) };
        self.fed = self.gathered.len() - self.base.avail_in.to_usize();
        io::produced(stream, (stream.avail_out - self.base.avail_out).to_usize());
        stream.data_type = self.base.data_type;
        code
    }

    /// Bytes and bits that wait in the base library.
    pub(super) fn base_pending(&mut self) -> (usize, c_int) {
        match self.maker {
            Maker::Blocks => (0, 0),
            Maker::Base => self.waiting_in_base(),
        }
    }

    fn waiting_in_base(&mut self) -> (usize, c_int) {
        let (mut bytes, mut bits) = (0, 0);
        // SAFETY: the base library's own stream.
        unsafe { base::deflatePending(&mut self.base, &mut bytes, &mut bits) };
        (ToUsize::to_usize(bytes), bits)
    }
}

/// Result of a call to the base library. A call with nothing to do is no failure, except that
/// nothing may follow a finish.
fn base_result(stream: &mut z_stream, code: c_int, flush: c_int) -> Result<Made, c_int> {
    match code {
        Z_STREAM_END => Ok(Made::Finished),
        Z_OK if matches!(flush, Z_NO_FLUSH | Z_FINISH) => Ok(Made::More),
        Z_OK => Ok(Made::Flushed),
        Z_BUF_ERROR if flush != Z_FINISH => Ok(Made::Nothing),
        _ => Err(refuse(stream, code)),
    }
}

/// True where blocks of `raw_bytes` end with an empty stored block: all but those that were stored.
fn ends_with_empty_stored(made: &[u8], raw_bytes: usize) -> bool {
    let last = (raw_bytes - 1) % BLOCK_BYTES + 1;
    // Bytes of a stored block may look like the end of an empty one.
    let stored = last + EMPTY_STORED.len() * last.div_ceil(STORED_BYTES_MAX);
    let [low, high, ..] = last.min(STORED_BYTES_MAX).to_le_bytes();
    let header = [0, low, high, !low, !high];
    let is_stored = made
        .len()
        .checked_sub(stored)
        .is_some_and(|at| made[at..].starts_with(&header));
    !is_stored && made.ends_with(&EMPTY_STORED[1..])
}

/// The last 32 KiB that came in; its memory has room for them. Matches of a later block reach that
/// far back (RFC 1951, 2).
fn push_history(history: &mut Bytes, bytes: &[u8]) -> Result<(), NoMemory> {
    let last = &bytes[bytes.len().saturating_sub(HISTORY_BYTES)..];
    history.keep_last(HISTORY_BYTES - last.len());
    history.extend(last)
}

/// Room for so much input, or for a block of it with a mark of a flush and a trailer.
const fn buffer_bytes(raw_bytes: usize) -> usize {
    block_bytes_max(raw_bytes) + 16
}

const BUFFER_BYTES: usize = buffer_bytes(BLOCK_BYTES);
/// Streams of small messages do with so much.
const SMALL_BYTES: usize = 4 << 10;
/// The most input that becomes blocks before their output is handed over.
const DIRECT_BYTES_MAX: usize = 32 * BLOCK_BYTES;
/// From this many bytes on, a sync flush ends a block without a history: the output grows by less
/// than a hundredth then.
const FLUSHED_MIN: u64 = 64 << 10;
/// A stream's size, by which the base library knows its version.
const STREAM_BYTES: c_int = size_of::<z_stream>() as c_int;
const EMPTY_STORED: [u8; 5] = [0, 0, 0, 0xff, 0xff];
/// Of one stored block (RFC 1951, 3.2.4).
const STORED_BYTES_MAX: usize = 0xffff;

//! A gzip file that is written.
//!
//! Why here: the base library's writer deflates by itself, and so on its caller alone; this one
//! calls this library's `deflate`, whose blocks may go to engines. Must stay true: return codes,
//! error codes and positions are zlib's, and so is what a reader gets. Source: zlib's manual.

use super::{Beginning, MARK};
use crate::deflate::{deflate, deflateEnd, deflateInit2_, deflateParams, deflateReset};
use crate::engines::{Use, settings};
use crate::forward::zlibVersion;
use crate::io;
use crate::memory::Memory;
use libc::{c_char, c_int, c_uint, c_void};
use libz_rs_sys::*;
use sidecore_bare::width::{ToU64, ToUsize};
use std::ffi::{CStr, CString};
use std::mem;
use std::ptr::{self, NonNull};

/// Options of a file that a [`Writer`] deflates.
pub(super) struct Mode {
    flags: c_int,
    level: c_int,
    strategy: c_int,
}

impl Mode {
    /// `None` for files that are the base library's: those that are read, those that are written as
    /// they are, and all where this library makes no blocks.
    ///
    /// # Safety
    /// Null, or a C string.
    pub(super) unsafe fn of(mode: *const c_char) -> Option<Self> {
        if mode.is_null() || settings().used == Use::Off {
            return None;
        }
        // SAFETY: the caller's promise.
        Self::read(unsafe { CStr::from_ptr(mode) }.to_bytes())
    }

    fn read(letters: &[u8]) -> Option<Self> {
        let mut kind = None;
        let mut made = Self {
            flags: libc::O_WRONLY | libc::O_CREAT,
            level: Z_DEFAULT_COMPRESSION,
            strategy: Z_DEFAULT_STRATEGY,
        };
        for &letter in letters {
            match letter {
                b'r' => kind = None,
                b'w' => kind = Some(libc::O_TRUNC),
                b'a' => kind = Some(libc::O_APPEND),
                // Both ways is refused, by the base library.
                b'+' | b'T' => return None,
                b'e' => made.flags |= libc::O_CLOEXEC,
                b'x' => made.flags |= libc::O_EXCL,
                b'0'..=b'9' => made.level = c_int::from(letter - b'0'),
                b'f' => made.strategy = Z_FILTERED,
                b'h' => made.strategy = Z_HUFFMAN_ONLY,
                b'R' => made.strategy = Z_RLE,
                b'F' => made.strategy = Z_FIXED,
                // As zlib: letters that it does not know have no effect.
                _ => {}
            }
        }
        made.flags |= kind?;
        Some(made)
    }

    /// # Safety
    /// A C string.
    pub(super) unsafe fn open(&self, path: *const c_char) -> gzFile {
        // SAFETY: the caller's promise.
        let descriptor = unsafe { libc::open(path, self.flags, 0o666) };
        if descriptor == -1 {
            return ptr::null_mut();
        }
        // SAFETY: the caller's promise.
        let name = unsafe { CStr::from_ptr(path) }.to_bytes().to_vec();
        let file = self.file(descriptor, name);
        if file.is_null() {
            // SAFETY: opened just now, and no other has its number.
            unsafe { libc::close(descriptor) };
        }
        file
    }

    pub(super) fn file(&self, descriptor: c_int, name: Vec<u8>) -> gzFile {
        if self.flags & libc::O_APPEND != 0 {
            // For `gzoffset`. A pipe has no end to go to, and needs none.
            // SAFETY: no memory is involved.
            unsafe { libc::lseek(descriptor, 0, libc::SEEK_END) };
        }
        let file = Writer {
            beginning: Beginning {
                _have: 0,
                next: &raw const MARK,
                pos: 0,
            },
            descriptor,
            name,
            level: self.level,
            strategy: self.strategy,
            buffer_bytes: BUFFER_BYTES,
            held: Vec::new(),
            room: Vec::new(),
            written: 0,
            skip: 0,
            is_ended: false,
            error: Z_OK,
            message: CString::default(),
            stream: z_stream {
                zalloc: None,
                zfree: None,
                opaque: ptr::null_mut(),
                ..z_stream::default()
            },
        };
        let place = Memory::MALLOC.put(file);
        place.map_or(ptr::null_mut(), |place| place.as_ptr().cast())
    }
}

/// Finishes and closes a file of ours, and gives its memory back.
///
/// # Safety
/// It is an open file of ours, and is not used again.
pub(super) unsafe fn close(file: gzFile) -> c_int {
    let Some(place) = NonNull::new(file.cast::<Writer>()) else {
        return Z_STREAM_ERROR;
    };
    // SAFETY: the caller's promise. The stream ends before its place is left.
    let code = unsafe { &mut *place.as_ptr() }.finish();
    // SAFETY: `Mode::file` put it there.
    drop(unsafe { Memory::MALLOC.take(place) });
    code
}

/// A gzip file that is written: zlib's rules for such files, over this library's `deflate`, which
/// makes blocks on engines where there are some.
#[repr(C)]
pub(super) struct Writer {
    /// First, as in all files.
    beginning: Beginning,
    descriptor: c_int,
    /// For messages.
    name: Vec<u8>,
    level: c_int,
    strategy: c_int,
    /// Size of `held` and of `room`, once they are there.
    buffer_bytes: usize,
    /// Input that waits for more.
    held: Vec<u8>,
    /// Room for output; empty before the first byte.
    room: Vec<u8>,
    /// Bytes of the room's output that are in the file.
    written: usize,
    /// Zeros that come before what is written next.
    skip: i64,
    /// Set once a member has all its input and is to end; a part of its end may wait for the file.
    /// Only further input begins another.
    is_ended: bool,
    pub(super) error: c_int,
    message: CString,
    stream: z_stream,
}

/// The error is in the file.
#[derive(Clone, Copy)]
struct Failed;

impl Writer {
    pub(super) fn set_buffer(&mut self, bytes: c_uint) -> c_int {
        // zlib doubles it.
        if !self.room.is_empty() || bytes > c_uint::MAX / 2 {
            return -1;
        }
        self.buffer_bytes = bytes.to_usize().max(BUFFER_BYTES_MIN);
        0
    }

    pub(super) fn place(&self) -> i64 {
        self.beginning.pos.saturating_add(self.skip)
    }

    pub(super) fn offset(&self) -> i64 {
        // SAFETY: no memory is involved.
        unsafe { libc::lseek(self.descriptor, 0, libc::SEEK_CUR) }
    }

    pub(super) fn text(&self) -> *const c_char {
        match self.error {
            Z_MEM_ERROR => c"out of memory".as_ptr(),
            _ => self.message.as_ptr(),
        }
    }

    pub(super) fn set_error(&mut self, code: c_int, text: &[u8]) {
        self.error = code;
        self.message = match text {
            [] => CString::default(),
            // Neither part has a zero: both were C strings, or are ours.
            _ => CString::new([self.name.as_slice(), b": ", text].concat()).unwrap_or_default(),
        };
    }

    fn fail(&mut self, code: c_int, text: &[u8]) -> Failed {
        self.set_error(code, text);
        Failed
    }

    pub(super) fn seek(&mut self, offset: i64, whence: c_int) -> i64 {
        let is_known = matches!(whence, libc::SEEK_SET | libc::SEEK_CUR);
        if !matches!(self.error, Z_OK | Z_BUF_ERROR) || !is_known {
            return -1;
        }
        let ahead = match whence {
            libc::SEEK_SET => offset.saturating_sub(self.beginning.pos),
            _ => offset.saturating_add(self.skip),
        };
        self.skip = ahead.max(0);
        if ahead < 0 { -1 } else { self.place() }
    }

    /// # Safety
    /// `len` bytes may be read there.
    pub(super) unsafe fn write_counted(&mut self, bytes: *const c_void, len: c_uint) -> c_int {
        if self.error != Z_OK {
            return 0;
        }
        let Ok(count) = c_int::try_from(len) else {
            self.set_error(Z_DATA_ERROR, b"requested length does not fit in int");
            return 0;
        };
        // SAFETY: the caller's promise.
        match unsafe { self.write_at(bytes, len.to_usize()) } {
            Ok(()) => count,
            Err(Failed) => 0,
        }
    }

    /// # Safety
    /// `items` of this size may be read there.
    pub(super) unsafe fn write_items(
        &mut self,
        bytes: *const c_void,
        size: usize,
        items: usize,
    ) -> usize {
        if self.error != Z_OK {
            return 0;
        }
        let Some(len) = size.checked_mul(items) else {
            self.set_error(Z_STREAM_ERROR, b"request does not fit in a size_t");
            return 0;
        };
        // SAFETY: the caller's promise.
        match unsafe { self.write_at(bytes, len) } {
            Ok(()) if len > 0 => items,
            _ => 0,
        }
    }

    pub(super) fn put(&mut self, byte: c_int) -> c_int {
        let [byte, ..] = byte.to_le_bytes();
        if self.error != Z_OK || self.write(&[byte]).is_err() {
            return -1;
        }
        byte.into()
    }

    /// # Safety
    /// Null, or a C string.
    pub(super) unsafe fn put_text(&mut self, text: *const c_char) -> c_int {
        if text.is_null() || self.error != Z_OK {
            return -1;
        }
        // SAFETY: the caller's promise.
        let text = unsafe { CStr::from_ptr(text) }.to_bytes();
        let Ok(count) = c_int::try_from(text.len()) else {
            self.set_error(Z_STREAM_ERROR, b"string length does not fit in int");
            return -1;
        };
        match self.write(text) {
            Ok(()) => count,
            Err(Failed) => -1,
        }
    }

    pub(super) fn flush(&mut self, flush: c_int) -> c_int {
        if self.error != Z_OK || !(Z_NO_FLUSH..=Z_FINISH).contains(&flush) {
            return Z_STREAM_ERROR;
        }
        let done = self.fill_gap().and_then(|()| self.compress(flush));
        done.map_or(self.error, |()| Z_OK)
    }

    pub(super) fn set_parameters(&mut self, level: c_int, strategy: c_int) -> c_int {
        if self.error != Z_OK {
            return Z_STREAM_ERROR;
        }
        if (level, strategy) == (self.level, self.strategy) {
            return Z_OK;
        }
        if self.fill_gap().is_err() {
            return self.error;
        }
        if !self.room.is_empty() {
            // Earlier input is made with the earlier parameters.
            if !self.held.is_empty() && self.compress(Z_NO_FLUSH).is_err() {
                return self.error;
            }
            // SAFETY: our stream, which has room for output. One that has ended gets them when the
            // next begins.
            unsafe { deflateParams(&mut self.stream, level, strategy) };
        }
        (self.level, self.strategy) = (level, strategy);
        Z_OK
    }

    fn finish(&mut self) -> c_int {
        let mut code = Z_OK;
        // What can be written is, whatever failed before.
        if self.fill_gap().is_err() {
            code = self.error;
        }
        if self.compress(Z_FINISH).is_err() {
            code = self.error;
        }
        // SAFETY: our stream, or none, which is refused; the file's own descriptor.
        unsafe {
            deflateEnd(&mut self.stream);
            if libc::close(self.descriptor) == -1 {
                code = Z_ERRNO;
            }
        }
        code
    }

    /// # Safety
    /// `len` bytes may be read there.
    unsafe fn write_at(&mut self, bytes: *const c_void, len: usize) -> Result<(), Failed> {
        if len == 0 || bytes.is_null() {
            return if len == 0 { Ok(()) } else { Err(Failed) };
        }
        // SAFETY: the caller's promise.
        self.write(unsafe { std::slice::from_raw_parts(bytes.cast(), len) })
    }

    fn write(&mut self, mut bytes: &[u8]) -> Result<(), Failed> {
        if bytes.is_empty() {
            return Ok(());
        }
        self.begin()?;
        self.fill_gap()?;
        if bytes.len() < self.buffer_bytes {
            loop {
                let fits = self.buffer_bytes - self.held.len();
                let (part, rest) = bytes.split_at(bytes.len().min(fits));
                self.held.extend_from_slice(part);
                self.pass(part.len());
                if rest.is_empty() {
                    return Ok(());
                }
                self.compress(Z_NO_FLUSH)?;
                bytes = rest;
            }
        }
        if !self.held.is_empty() {
            self.compress(Z_NO_FLUSH)?;
        }
        for part in bytes.chunks(DIRECT_BYTES_MAX) {
            self.pass(part.len());
            self.feed(part, Z_NO_FLUSH).map_err(|_| Failed)?;
        }
        Ok(())
    }

    fn pass(&mut self, bytes: usize) {
        self.beginning.pos += bytes.to_u64().cast_signed();
    }

    /// Writes the zeros of a seek.
    fn fill_gap(&mut self) -> Result<(), Failed> {
        let mut left = mem::take(&mut self.skip).cast_unsigned().to_usize();
        if left == 0 {
            return Ok(());
        }
        self.compress(Z_NO_FLUSH)?;
        while left > 0 {
            let part = left.min(self.buffer_bytes);
            self.held.resize(part, 0);
            self.pass(part);
            self.compress(Z_NO_FLUSH)?;
            left -= part;
        }
        Ok(())
    }

    /// Makes the buffers and the stream, before the first byte.
    fn begin(&mut self) -> Result<(), Failed> {
        if !self.room.is_empty() {
            return Ok(());
        }
        let mut room = Vec::new();
        let held = self.held.try_reserve_exact(self.buffer_bytes);
        if held.is_err() || room.try_reserve_exact(self.buffer_bytes).is_err() {
            return Err(self.fail(Z_MEM_ERROR, &[]));
        }
        room.resize(self.buffer_bytes, 0);
        // SAFETY: a stream that is to be begun, and stays in its place until it ends.
        let code = unsafe {
            deflateInit2_(
                &mut self.stream,
                self.level,
                Z_DEFLATED,
                GZIP_WINDOW_BITS,
                MEMORY_LEVEL,
                self.strategy,
                zlibVersion(),
                c_int::try_from(size_of::<z_stream>()).unwrap_or(0),
            )
        };
        if code != Z_OK {
            return Err(self.fail(Z_MEM_ERROR, &[]));
        }
        self.room = room;
        self.clear_room();
        Ok(())
    }

    /// Deflates the input that is held.
    fn compress(&mut self, flush: c_int) -> Result<(), Failed> {
        self.begin()?;
        let mut held = mem::take(&mut self.held);
        let done = self.feed(&held, flush);
        match done {
            Ok(()) => held.clear(),
            // The rest may be written after `gzclearerr`.
            Err(taken) => drop(held.drain(..taken)),
        }
        self.held = held;
        done.map_err(|_| Failed)
    }

    /// Deflates input; an error has the number of bytes that were taken before.
    fn feed(&mut self, bytes: &[u8], flush: c_int) -> Result<(), usize> {
        if self.is_ended {
            // The file may not have taken all of it before.
            self.run(Z_FINISH).map_err(|Failed| 0_usize)?;
            if bytes.is_empty() {
                return Ok(());
            }
            // SAFETY: our stream.
            unsafe {
                deflateReset(&mut self.stream);
                deflateParams(&mut self.stream, self.level, self.strategy);
            }
            self.is_ended = false;
        }
        self.stream.next_in = bytes.as_ptr();
        self.stream.avail_in = io::available(bytes.len());
        let done = self.run(flush);
        let left = mem::take(&mut self.stream.avail_in).to_usize();
        self.stream.next_in = ptr::null();
        done.map_err(|Failed| bytes.len() - left)
    }

    /// Runs `deflate` until it makes no more output.
    fn run(&mut self, flush: c_int) -> Result<(), Failed> {
        let mut code = Z_OK;
        loop {
            let is_flushed = match flush {
                Z_NO_FLUSH => false,
                // All at once, when the member has its end.
                Z_FINISH => code == Z_STREAM_END,
                _ => true,
            };
            if self.stream.avail_out == 0 || is_flushed {
                self.write_out()?;
            }
            let room = self.stream.avail_out;
            // SAFETY: the input that `feed` set, our room.
            code = unsafe { deflate(&mut self.stream, flush) };
            if !matches!(code, Z_OK | Z_STREAM_END | Z_BUF_ERROR) {
                return Err(self.fail(code, b"internal error: deflate stream corrupt"));
            }
            // Before it is written: what the file does not take now must not be followed by input.
            self.is_ended |= flush == Z_FINISH && self.stream.avail_in == 0;
            if self.stream.avail_out == room {
                break;
            }
        }
        match flush {
            // Where an earlier call could not write it, `deflate` makes no more output.
            Z_FINISH => self.write_out(),
            _ => Ok(()),
        }
    }

    /// Puts the output into the file.
    fn write_out(&mut self) -> Result<(), Failed> {
        let end = self.room.len() - self.stream.avail_out.to_usize();
        while self.written < end {
            let part = &self.room[self.written..end];
            // SAFETY: a slice.
            let count = unsafe { libc::write(self.descriptor, part.as_ptr().cast(), part.len()) };
            match usize::try_from(count) {
                Ok(count) if count > 0 => self.written += count,
                _ => {
                    let code = std::io::Error::last_os_error().raw_os_error();
                    // SAFETY: it takes any number, and returns a C string.
                    let text = unsafe { CStr::from_ptr(libc::strerror(code.unwrap_or(0))) };
                    return Err(self.fail(Z_ERRNO, text.to_bytes()));
                }
            }
        }
        self.clear_room();
        Ok(())
    }

    fn clear_room(&mut self) {
        self.written = 0;
        self.stream.next_out = self.room.as_mut_ptr();
        self.stream.avail_out = io::available(self.room.len());
    }
}

/// Size of a file's buffers until the program sets another; the base library's, too.
const BUFFER_BYTES: usize = 128 << 10;
const BUFFER_BYTES_MIN: usize = 8;
/// The most input of one call to `deflate`, whose counts have 32 bits.
const DIRECT_BYTES_MAX: usize = 1 << 30;
/// The whole window, and gzip's header and trailer.
const GZIP_WINDOW_BITS: c_int = 15 + 16;
const MEMORY_LEVEL: c_int = 8;

//! Streams of C99 (0x2100). They are the process's, so the order with its own output is kept.

use super::call::{Call, answer, length, low, number, set_errno};
use super::format;
use super::scan::{self, Input};
use crate::store::STORE_BYTES;
use parking_lot::Mutex;
use sidecore_bare::width::{ToU64, ToUsize};
use std::ffi::{c_char, c_int, c_uint, c_void};

/// The handler of 0x2100.
pub(super) unsafe extern "C" fn serve(store: *mut c_void, place: c_uint) -> c_int {
    // SAFETY: called with a store's view.
    let call = unsafe { Call::new(store, place) };
    answer(&call, -1, || c99_call(&call))
}

/// A call on a stream; a handle that is none fails with EBADF.
fn c99_call(call: &Call) -> Option<i64> {
    let on = |slot: u32, work: &dyn Fn(*mut libc::FILE) -> i64| match stream(call.word(slot)) {
        Some(file) => work(file),
        None => {
            set_errno(libc::EBADF);
            -1
        }
    };
    let text = |slot: u32| call.text(slot).unwrap_or(c"".as_ptr());
    // SAFETY: streams are open ones, texts end in the store, buffers are cut at its end.
    unsafe {
        Some(match call.operation {
            1 => on(0, &|file| {
                libc::clearerr(file);
                0
            }),
            2 => close(call),
            3 => on(0, &|file| libc::feof(file).into()),
            4 => on(0, &|file| libc::ferror(file).into()),
            // A null stream means all of them; no handle is 0.
            5 if call.word(0) == 0 => libc::fflush(std::ptr::null_mut()).into(),
            5 => on(0, &|file| libc::fflush(file).into()),
            6 | 19 => on(0, &|file| libc::fgetc(file).into()),
            7 => on(0, &|file| {
                // `fpos_t` of a program is a word, which holds what ftell answers.
                let at = libc::ftell(file);
                call.set_word_at(call.word(1), low(at.cast_unsigned()));
                if at < 0 { -1 } else { 0 }
            }),
            8 => {
                let (at, bytes) = call.buffer(0, call.size(1));
                let line = |file| {
                    let got = libc::fgets(at.cast(), length(bytes), file);
                    if got.is_null() {
                        0
                    } else {
                        i64::from(call.word(0))
                    }
                };
                stream(call.word(2)).map_or(0, line)
            }
            9 => on(0, &|file| libc::fileno(file).into()),
            10 => keep(libc::fopen(text(0), text(1))),
            11 | 23 => on(1, &|file| libc::fputc(call.signed(0), file).into()),
            12 => on(1, &|file| libc::fputs(text(0), file).into()),
            13 | 18 => transfer(call),
            14 => reopen(call),
            15 => on(0, &|file| {
                libc::fseek(file, call.signed(1).into(), call.signed(2)).into()
            }),
            16 => on(0, &|file| {
                let at = call.word_at(call.word(1));
                libc::fseek(file, at.into(), libc::SEEK_SET).into()
            }),
            17 => on(0, &|file| libc::ftell(file)),
            20 => libc::fgetc(stdin).into(),
            21 => gets(call),
            22 => {
                libc::perror(call.text(0).unwrap_or(std::ptr::null()));
                0
            }
            24 => libc::fputc(call.signed(0), stdout).into(),
            25 => libc::puts(text(0)).into(),
            26 => libc::remove(text(0)).into(),
            27 => libc::rename(text(0), text(1)).into(),
            28 => on(0, &|file| {
                libc::rewind(file);
                0
            }),
            // A buffer of a program's would be used after it: the C library keeps its own.
            29 => on(0, &|file| {
                let mode = if call.word(1) == 0 {
                    libc::_IONBF
                } else {
                    libc::_IOFBF
                };
                libc::setvbuf(file, std::ptr::null_mut(), mode, STREAM_BYTES).into()
            }),
            30 => on(0, &|file| {
                let mode = match call.word(2) & 3 {
                    0 => libc::_IOFBF,
                    1 => libc::_IOLBF,
                    _ => libc::_IONBF,
                };
                libc::setvbuf(file, std::ptr::null_mut(), mode, STREAM_BYTES).into()
            }),
            // A null command asks whether there is a shell.
            31 => libc::system(call.text(0).unwrap_or(std::ptr::null())).into(),
            // It has no name, so that nothing is left where the program dies.
            32 => keep(libc::tmpfile()),
            33 => unused_name(call),
            34 => on(1, &|file| libc::ungetc(call.signed(0), file).into()),
            35 => on(0, &|file| print(call, 1, file)),
            36 => on(0, &|file| scan(call, 1, Some(Input::Stream(file)))),
            37 => print(call, 0, stdout),
            38 => scan(call, 0, Some(Input::Stream(stdin))),
            39 => print_text(call, 2, format::room(call.word(1))),
            40 => print_text(call, 1, STORE_BYTES),
            41 => scan(call, 1, scan::text_input(call, 0)),
            _ => return None,
        })
    }
}

const STREAM_BYTES: usize = 1024;

/// vfprintf and vprintf: the format in `slot`.
fn print(call: &Call, slot: u32, file: *mut libc::FILE) -> i64 {
    let Some(text) = format::text(call, slot) else {
        set_errno(libc::EFAULT);
        return -1;
    };
    // SAFETY: an open stream, and bytes of our own.
    let written = unsafe { libc::fwrite(text.as_ptr().cast(), 1, text.len(), file) };
    if written == text.len() {
        number(written)
    } else {
        -1
    }
}

/// vsnprintf and vsprintf: the text goes to the first slot's place.
fn print_text(call: &Call, slot: u32, room: usize) -> i64 {
    let Some(text) = format::text(call, slot) else {
        set_errno(libc::EFAULT);
        return -1;
    };
    format::put(call, call.word(0), &text, room);
    number(text.len())
}

/// vfscanf, vscanf and vsscanf: the format in `slot`.
fn scan(call: &Call, slot: u32, input: Option<Input>) -> i64 {
    let scanned = input.and_then(|mut input| scan::scan(call, slot, &mut input));
    scanned.unwrap_or_else(|| {
        set_errno(libc::EFAULT);
        -1
    })
}

/// tmpnam: a name that no file has, written to the first slot's place. Without a place it fails:
/// the host has none in the store.
fn unused_name(call: &Call) -> i64 {
    let place = call.word(0);
    if place == 0 {
        set_errno(libc::EINVAL);
        return 0;
    }
    let mut name = *b"/tmp/fileXXXXXX\0";
    // SAFETY: a text with an end; the descriptor is the new file's.
    let made = unsafe {
        let file = libc::mkstemp(name.as_mut_ptr().cast());
        // The name alone is asked for.
        file >= 0 && libc::close(file) == 0 && libc::unlink(name.as_ptr().cast()) == 0
    };
    if !made {
        return 0;
    }
    call.set_bytes(place, &name);
    place.into()
}

fn close(call: &Call) -> i64 {
    let handle = call.word(0);
    let Some(file) = stream(handle) else {
        set_errno(libc::EBADF);
        return -1;
    };
    // Out of the table first: the stream is nothing's to use while it closes.
    if handle >= FIRST_HANDLE {
        STREAMS.lock()[(handle - FIRST_HANDLE).to_usize()] = None;
    }
    // SAFETY: an open stream, which the table no longer names.
    unsafe { libc::fclose(file).into() }
}

/// freopen: file name, mode, stream.
fn reopen(call: &Call) -> i64 {
    let Some(file) = stream(call.word(2)) else {
        set_errno(libc::EBADF);
        return 0;
    };
    let name = call.text(0).unwrap_or(std::ptr::null());
    let mode = call.text(1).unwrap_or(c"r".as_ptr());
    // SAFETY: texts end in the store; the stream is open.
    // The handle stays: the C library opens the new file under the same stream.
    let again = unsafe { libc::freopen(name, mode, file) };
    if again.is_null() {
        0
    } else {
        call.word(2).into()
    }
}

/// fread and fwrite: buffer, size, count, stream.
fn transfer(call: &Call) -> i64 {
    let size = call.size(1);
    // Saturated, and then cut at the store's end: a product that overflows would be a short buffer.
    let wanted = size.saturating_mul(call.size(2));
    let (at, bytes) = call.buffer(0, wanted);
    let Some(file) = stream(call.word(3)) else {
        set_errno(libc::EBADF);
        return 0;
    };
    // Before the division below; C says 0 elements, too.
    if size == 0 {
        return 0;
    }
    // SAFETY: the buffer was cut at the store's end; the stream is open.
    let done = unsafe {
        match call.operation {
            13 => libc::fread(at, size, bytes / size, file),
            _ => libc::fwrite(at, size, bytes / size, file),
        }
    };
    done.to_u64().cast_signed()
}

/// gets: a line without its end; cut at the store's end, unlike C's.
fn gets(call: &Call) -> i64 {
    let (at, bytes) = call.buffer(0, STORE_BYTES);
    // SAFETY: the buffer ends with the store.
    unsafe {
        let line: *mut c_char = libc::fgets(at.cast(), length(bytes), stdin);
        if line.is_null() {
            return 0;
        }
        // fgets keeps the line's end, gets does not.
        let length = libc::strlen(line);
        if length > 0 && *line.add(length - 1) == b'\n' as c_char {
            *line.add(length - 1) = 0;
        }
    }
    call.word(0).into()
}

unsafe extern "C" {
    static mut stdin: *mut libc::FILE;
    static mut stdout: *mut libc::FILE;
    static mut stderr: *mut libc::FILE;
}

/// A stream that a program opened.
#[derive(Clone, Copy)]
struct Stream(*mut libc::FILE);

// SAFETY: streams of the C library have a lock of their own.
unsafe impl Send for Stream {}

/// Streams that programs opened, by handle less `FIRST_HANDLE`.
static STREAMS: Mutex<Vec<Option<Stream>>> = Mutex::new(Vec::new());
const FIRST_HANDLE: u32 = 4;
/// Streams open at a time.
const STREAMS_MAX: usize = 1024;

fn stream(handle: u32) -> Option<*mut libc::FILE> {
    // SAFETY: reads the C library's variables, which no other code writes.
    // Read each time: freopen and the host's own code may replace them.
    let own = unsafe { [stdin, stdout, stderr] };
    match handle {
        0 => None,
        standard @ 1..FIRST_HANDLE => Some(own[standard.to_usize() - 1]),
        opened => {
            let streams = STREAMS.lock();
            let stream = streams.get((opened - FIRST_HANDLE).to_usize())?;
            stream.map(|stream| stream.0)
        }
    }
}

fn keep(file: *mut libc::FILE) -> i64 {
    if file.is_null() {
        return 0;
    }
    let mut streams = STREAMS.lock();
    let free = streams.iter().position(Option::is_none);
    let index = free.unwrap_or(streams.len());
    // The program's stream is not kept, so it is closed: a leak would last as long as the host.
    if index >= STREAMS_MAX {
        // SAFETY: just opened.
        unsafe { libc::fclose(file) };
        set_errno(libc::EMFILE);
        return 0;
    }
    if index == streams.len() {
        streams.push(None);
    }
    streams[index] = Some(Stream(file));
    number(index + FIRST_HANDLE.to_usize())
}

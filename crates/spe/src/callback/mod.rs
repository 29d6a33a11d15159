//! Callbacks: what a program asks of the host's C library by stop-and-signal 0x2100 to 0x21ff.
//!
//! Served here: C99's streams (0x2100), files and time of POSIX (0x2101), memory of the host
//! (0x2102). A program may register its own for the other numbers. Streams are the process's, so
//! the order with its own output is kept.
//!
//! Must stay true: addresses of a program are masked and lengths cut at the store's end; runs on
//! the thread that called `spe_context_run`. Source: libspe2's documentation, newlib for numbers.

use crate::store::{STORE_BYTES, STORE_MASK};
use parking_lot::{Mutex, RwLock};
use std::ffi::{c_char, c_int, c_uint, c_void};

/// A handler: the store's address, and the place in it of the message word.
pub(crate) type Handler = unsafe extern "C" fn(*mut c_void, c_uint) -> c_int;

/// Numbers of callbacks.
pub(crate) const NUMBERS: usize = 256;
/// Numbers that programs may replace but neither add nor remove.
pub(crate) const RESERVED: usize = 4;

static HANDLERS: RwLock<[Option<Handler>; NUMBERS]> = RwLock::new({
    let mut handlers = [None; NUMBERS];
    handlers[0] = Some(c99 as Handler);
    handlers[1] = Some(posix as Handler);
    handlers[2] = Some(memory as Handler);
    handlers
});

/// The handler of a number, if there is one.
pub(crate) fn handler(number: usize) -> Option<Handler> {
    HANDLERS.read().get(number).copied().flatten()
}

/// Sets or removes the handler of a number.
pub(crate) fn set_handler(number: usize, handler: Option<Handler>) {
    if let Some(place) = HANDLERS.write().get_mut(number) {
        *place = handler;
    }
}

/// The parameters of one call, in the store: slots of 16 bytes.
struct Call {
    store: *mut u8,
    slots: usize,
    operation: u32,
}

impl Call {
    /// # Safety
    /// `store` is a store's view, as `spe_ls_area_get` gives it.
    unsafe fn new(store: *mut c_void, place: c_uint) -> Call {
        let mut call = Call {
            store: store.cast(),
            slots: 0,
            operation: 0,
        };
        let message = call.word_at(place as usize & !3);
        call.operation = message >> 24;
        call.slots = message as usize & 0xff_ffff & STORE_MASK as usize & !15;
        call
    }

    fn word_at(&self, place: usize) -> u32 {
        let place = place & STORE_MASK as usize & !3;
        // SAFETY: aligned and inside the store.
        unsafe { self.store.add(place).cast::<u32>().read_volatile() }
    }

    fn set_word_at(&self, place: usize, value: u32) {
        let place = place & STORE_MASK as usize & !3;
        // SAFETY: aligned and inside the store.
        unsafe { self.store.add(place).cast::<u32>().write_volatile(value) }
    }

    fn word(&self, slot: usize) -> u32 {
        self.word_at(self.slots + 16 * slot)
    }

    fn signed(&self, slot: usize) -> i32 {
        self.word(slot) as i32
    }

    fn wide(&self, slot: usize) -> u64 {
        let place = self.slots + 16 * slot;
        u64::from(self.word_at(place)) | u64::from(self.word_at(place + 4)) << 32
    }

    fn set_wide(&self, value: u64) {
        self.set_word_at(self.slots, value as u32);
        self.set_word_at(self.slots + 4, (value >> 32) as u32);
    }

    /// A place of the store and how many of `bytes` are behind it.
    fn buffer(&self, slot: usize, bytes: usize) -> (*mut c_void, usize) {
        let place = self.word(slot) as usize & STORE_MASK as usize;
        // SAFETY: inside the store.
        let at = unsafe { self.store.add(place) };
        (at.cast(), bytes.min(STORE_BYTES - place))
    }

    /// A text of the store; `None` for a null pointer or one without an end.
    fn text(&self, slot: usize) -> Option<*const c_char> {
        if self.word(slot) == 0 {
            return None;
        }
        let (at, bytes) = self.buffer(slot, STORE_BYTES);
        // SAFETY: inside the store.
        let end = unsafe { libc::memchr(at, 0, bytes) };
        (!end.is_null()).then_some(at.cast_const().cast())
    }

    /// Gives the result and the error number back.
    fn finish(&self, result: i64, error: i32) {
        self.set_word_at(self.slots, result as u32);
        self.set_word_at(self.slots + 4, (result >> 32) as u32);
        self.set_word_at(self.slots + 12, error as u32);
    }
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
const FIRST_HANDLE: usize = 4;
/// Streams open at a time.
const STREAMS_MAX: usize = 1024;

fn stream(handle: u32) -> Option<*mut libc::FILE> {
    // SAFETY: reads the C library's variables, which nobody else writes.
    let own = unsafe { [stdin, stdout, stderr] };
    match handle as usize {
        0 => None,
        standard @ 1..FIRST_HANDLE => Some(own[standard - 1]),
        opened => {
            let streams = STREAMS.lock();
            let stream = streams.get(opened - FIRST_HANDLE)?;
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
    (index + FIRST_HANDLE) as i64
}

fn set_errno(number: i32) {
    // SAFETY: the thread's own.
    unsafe { *libc::__errno_location() = number };
}

fn errno() -> i32 {
    // SAFETY: the thread's own.
    unsafe { *libc::__errno_location() }
}

/// Runs a call's work and gives its outcome back; `None`: not one that is served.
fn answer(call: &Call, failed: i64, work: impl FnOnce() -> Option<i64>) -> c_int {
    set_errno(0);
    match work() {
        Some(result) => call.finish(result, errno()),
        None => call.finish(failed, libc::ENOSYS),
    }
    0
}

unsafe extern "C" fn c99(store: *mut c_void, place: c_uint) -> c_int {
    // SAFETY: called with a store's view.
    let call = unsafe { Call::new(store, place) };
    answer(&call, -1, || c99_call(&call))
}

/// A call on a stream; a handle that is none fails with EBADF.
fn c99_call(call: &Call) -> Option<i64> {
    let on = |slot: usize, work: &dyn Fn(*mut libc::FILE) -> i64| match stream(call.word(slot)) {
        Some(file) => work(file),
        None => {
            set_errno(libc::EBADF);
            -1
        }
    };
    let text = |slot: usize| call.text(slot).unwrap_or(c"".as_ptr());
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
            5 if call.word(0) == 0 => libc::fflush(std::ptr::null_mut()).into(),
            5 => on(0, &|file| libc::fflush(file).into()),
            6 | 19 => on(0, &|file| libc::fgetc(file).into()),
            7 => on(0, &|file| {
                let at = libc::ftell(file);
                call.set_word_at(call.word(1) as usize, at as u32);
                if at < 0 { -1 } else { 0 }
            }),
            8 => {
                let (at, bytes) = call.buffer(0, call.word(1) as usize);
                let line = |file| {
                    let got = libc::fgets(at.cast(), bytes as c_int, file);
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
                let at = call.word_at(call.word(1) as usize);
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
            31 => libc::system(call.text(0).unwrap_or(std::ptr::null())).into(),
            32 => keep(libc::tmpfile()),
            34 => on(1, &|file| libc::ungetc(call.signed(0), file).into()),
            _ => return None,
        })
    }
}

const STREAM_BYTES: usize = 1024;

fn close(call: &Call) -> i64 {
    let handle = call.word(0) as usize;
    let Some(file) = stream(call.word(0)) else {
        set_errno(libc::EBADF);
        return -1;
    };
    if handle >= FIRST_HANDLE {
        STREAMS.lock()[handle - FIRST_HANDLE] = None;
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
    let again = unsafe { libc::freopen(name, mode, file) };
    if again.is_null() {
        0
    } else {
        call.word(2).into()
    }
}

/// fread and fwrite: buffer, size, count, stream.
fn transfer(call: &Call) -> i64 {
    let size = call.word(1) as usize;
    let wanted = size.saturating_mul(call.word(2) as usize);
    let (at, bytes) = call.buffer(0, wanted);
    let Some(file) = stream(call.word(3)) else {
        set_errno(libc::EBADF);
        return 0;
    };
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
    done as i64
}

/// gets: a line without its end; cut at the store's end, unlike C's.
fn gets(call: &Call) -> i64 {
    let (at, bytes) = call.buffer(0, STORE_BYTES);
    // SAFETY: the buffer ends with the store.
    unsafe {
        let line: *mut c_char = libc::fgets(at.cast(), bytes as c_int, stdin);
        if line.is_null() {
            return 0;
        }
        let length = libc::strlen(line);
        if length > 0 && *line.add(length - 1) == b'\n' as c_char {
            *line.add(length - 1) = 0;
        }
    }
    call.word(0).into()
}

unsafe extern "C" fn posix(store: *mut c_void, place: c_uint) -> c_int {
    // SAFETY: called with a store's view.
    let call = unsafe { Call::new(store, place) };
    answer(&call, -1, || posix_call(&call))
}

fn posix_call(call: &Call) -> Option<i64> {
    let text = |slot: usize| call.text(slot).unwrap_or(c"".as_ptr());
    let buffer = || call.buffer(1, call.word(2) as usize);
    // SAFETY: texts end in the store, buffers are cut at its end.
    unsafe {
        Some(match call.operation {
            2 => libc::close(call.signed(0)).into(),
            3 => libc::creat(text(0), call.word(1)).into(),
            6 => libc::sysconf(libc::_SC_PAGESIZE),
            7 => {
                let now = clock(libc::CLOCK_REALTIME);
                call.set_word_at(call.word(0) as usize, now.tv_sec as u32);
                call.set_word_at(call.word(0) as usize + 4, (now.tv_nsec / 1000) as u32);
                0
            }
            8 => libc::kill(call.signed(0), call.signed(1)).into(),
            9 => libc::lseek(call.signed(0), call.signed(1).into(), call.signed(2)),
            15 => libc::open(text(0), call.signed(1), call.word(2)).into(),
            16 => libc::read(call.signed(0), buffer().0, buffer().1) as i64,
            24 => libc::unlink(text(0)).into(),
            27 => libc::write(call.signed(0), buffer().0, buffer().1) as i64,
            28 => libc::ftruncate(call.signed(0), call.signed(1).into()).into(),
            29 => libc::access(text(0), call.signed(1)).into(),
            30 => libc::dup(call.signed(0)).into(),
            31 => {
                let now = clock(libc::CLOCK_REALTIME).tv_sec;
                if call.word(0) != 0 {
                    call.set_word_at(call.word(0) as usize, now as u32);
                }
                now
            }
            32 => {
                let at = call.word(0) as usize;
                let wanted = libc::timespec {
                    tv_sec: call.word_at(at).into(),
                    tv_nsec: call.word_at(at + 4).into(),
                };
                libc::nanosleep(&wanted, std::ptr::null_mut()).into()
            }
            _ => return None,
        })
    }
}

fn clock(which: libc::clockid_t) -> libc::timespec {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: our own place.
    unsafe { libc::clock_gettime(which, &mut now) };
    now
}

unsafe extern "C" fn memory(store: *mut c_void, place: c_uint) -> c_int {
    // SAFETY: called with a store's view.
    let call = unsafe { Call::new(store, place) };
    set_errno(0);
    let pointer = |slot: usize| call.wide(slot) as *mut c_void;
    // SAFETY: pointers that the program frees are those that it was given, as in C.
    let result = unsafe {
        match call.operation {
            1 => libc::calloc(call.wide(0) as usize, call.wide(1) as usize) as u64,
            2 => {
                libc::free(pointer(0));
                0
            }
            3 => libc::malloc(call.wide(0) as usize) as u64,
            4 => libc::realloc(pointer(0), call.wide(1) as usize) as u64,
            5 => {
                let mut got = std::ptr::null_mut();
                let (align, bytes) = (call.wide(1) as usize, call.wide(2) as usize);
                let outcome = libc::posix_memalign(&mut got, align, bytes);
                let to = call.word(0) as usize;
                call.set_word_at(to, got as u64 as u32);
                call.set_word_at(to + 4, (got as u64 >> 32) as u32);
                outcome as u64
            }
            _ => {
                set_errno(libc::ENOSYS);
                0
            }
        }
    };
    call.set_wide(result);
    call.set_word_at(call.slots + 12, errno() as u32);
    0
}

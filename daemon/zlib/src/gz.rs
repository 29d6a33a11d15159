//! The functions on gzip files; `gzprintf` through `printf.c`.
//!
//! Files that are deflated are a [`Writer`]'s: its blocks may go to engines, which the base
//! library's own writer never asks. Files that are read are the base library's: a block can be
//! inflated only behind all before it, and to inflate ahead of the program needs a thread, which is
//! never started in a program's process. The kernel reads such a file ahead.

mod writer;

use crate::guard;
use libc::{c_char, c_int, c_long, c_uint, c_void, size_t};
use libz_rs_sys as base;
use libz_rs_sys::{Z_OK, Z_STREAM_ERROR, gzFile};
use std::arch::naked_asm;
use std::ptr;
use writer::{Mode, Writer, close};

/// Functions on files: ours on those that a [`Writer`] deflates, the base library's on all others.
/// Behind `=` stands the answer to a panic, which would be a bug of ours.
macro_rules! files {
    ($before:ident; $(
        $(#[$($export:tt)*])?
        fn $name:ident($($argument:ident: $kind:ty),*) of $file:ident -> $result:ty
            = $otherwise:expr, $writer:pat => $ours:expr;
    )*) => {$(
        /// The function of this name in zlib's manual.
        ///
        /// # Safety
        /// As zlib's manual says.
        $(#[$($export)*])?
        pub unsafe extern "C-unwind" fn $name($($argument: $kind),*) -> $result {
            // SAFETY: the program's promise: null, or a file that is open.
            match unsafe { writer($file) } {
                Some($writer) => guard::call($otherwise, || $ours),
                // SAFETY: the program's promises are those that the base library asks for.
                None => unsafe {
                    $before($file);
                    base::$name($($argument),*)
                },
            }
        }
    )*};
}

files! {
    as_it_is;
    fn gzclose_r(file: gzFile) of file -> c_int = Z_STREAM_ERROR, _ => Z_STREAM_ERROR;
    fn gzbuffer(file: gzFile, bytes: c_uint) of file -> c_int = -1,
        writer => writer.set_buffer(bytes);
    #[unsafe(no_mangle)]
    fn gzerror(file: gzFile, code: *mut c_int) of file -> *const c_char = ptr::null(), writer => {
        // SAFETY: the program's promise: null, or room for a code.
        if let Some(code) = unsafe { code.as_mut() } {
            *code = writer.error;
        }
        writer.text()
    };
    fn gzclearerr(file: gzFile) of file -> () = (), writer => writer.set_error(Z_OK, &[]);
    #[unsafe(no_mangle)]
    fn gzeof(file: gzFile) of file -> c_int = 0, _ => 0;
    fn gzdirect(file: gzFile) of file -> c_int = 0, _ => 0;
    #[unsafe(no_mangle)]
    fn gzread(file: gzFile, bytes: *mut c_void, len: c_uint) of file -> c_int = -1, _ => -1;
    fn gzfread(bytes: *mut c_void, size: size_t, items: size_t, file: gzFile) of file -> size_t = 0,
        _ => 0;
    #[unsafe(no_mangle)]
    fn gztell(file: gzFile) of file -> c_long = -1, writer => writer.place();
    fn gztell64(file: gzFile) of file -> i64 = -1, writer => writer.place();
    fn gzoffset(file: gzFile) of file -> c_long = -1, writer => writer.offset();
    fn gzoffset64(file: gzFile) of file -> i64 = -1, writer => writer.offset();
    #[unsafe(no_mangle)]
    fn gzgetc(file: gzFile) of file -> c_int = -1, _ => -1;
    fn gzgetc_(file: gzFile) of file -> c_int = -1, _ => -1;
    fn gzungetc(byte: c_int, file: gzFile) of file -> c_int = -1, _ => -1;
    #[unsafe(no_mangle)]
    fn gzrewind(file: gzFile) of file -> c_int = -1, _ => -1;
    fn gzseek64(file: gzFile, offset: i64, whence: c_int) of file -> i64 = -1,
        writer => writer.seek(offset, whence);
}

// Those that may carry out a seek of a file that is written.
files! {
    make_buffer;
    #[unsafe(no_mangle)]
    fn gzclose(file: gzFile) of file -> c_int = Z_STREAM_ERROR, _ => {
        // SAFETY: it is one of ours, and the program does not use it again.
        unsafe { close(file) }
    };
    fn gzclose_w(file: gzFile) of file -> c_int = Z_STREAM_ERROR, _ => {
        // SAFETY: as above.
        unsafe { close(file) }
    };
    #[unsafe(no_mangle)]
    fn gzwrite(file: gzFile, bytes: *const c_void, len: c_uint) of file -> c_int = 0, writer => {
        // SAFETY: the program's promise.
        unsafe { writer.write_counted(bytes, len) }
    };
    fn gzfwrite(bytes: *const c_void, size: size_t, items: size_t, file: gzFile) of file -> size_t
        = 0, writer => {
            // SAFETY: the program's promise.
            unsafe { writer.write_items(bytes, size, items) }
        };
    #[unsafe(no_mangle)]
    fn gzflush(file: gzFile, flush: c_int) of file -> c_int = Z_STREAM_ERROR,
        writer => writer.flush(flush);
    #[unsafe(no_mangle)]
    fn gzputc(file: gzFile, byte: c_int) of file -> c_int = -1, writer => writer.put(byte);
    #[unsafe(no_mangle)]
    fn gzputs(file: gzFile, text: *const c_char) of file -> c_int = -1, writer => {
        // SAFETY: the program's promise.
        unsafe { writer.put_text(text) }
    };
    #[unsafe(no_mangle)]
    fn gzsetparams(file: gzFile, level: c_int, strategy: c_int) of file -> c_int = Z_STREAM_ERROR,
        writer => writer.set_parameters(level, strategy);
}

/// The beginning of a file, which the macro `gzgetc` of zlib.h reads.
#[repr(C)]
struct Beginning {
    _have: c_uint,
    next: *const u8,
    pos: i64,
}

/// Files of ours point here, in place of bytes that were read: the base library's never do.
static MARK: u8 = 0;

/// The file, if it is one of ours.
///
/// # Safety
/// Null, or an open file, which one thread at a time uses.
#[inline]
unsafe fn writer<'a>(file: gzFile) -> Option<&'a mut Writer> {
    // SAFETY: the caller's promise; every zlib has these fields there.
    let beginning = unsafe { file.cast::<Beginning>().as_ref() }?;
    // SAFETY: only a `Writer` has the mark.
    ptr::eq(beginning.next, &raw const MARK).then(|| unsafe { &mut *file.cast::<Writer>() })
}

/// Nothing has to happen before the base library's function.
unsafe fn as_it_is(_file: gzFile) {}

/// Opens a file by its path.
///
/// # Safety
/// As zlib's manual says.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn gzopen(path: *const c_char, mode: *const c_char) -> gzFile {
    // SAFETY: the caller's promise.
    let Some(mode_read) = (unsafe { Mode::of(mode) }) else {
        // SAFETY: as above.
        return unsafe { base::gzopen(path, mode) };
    };
    if path.is_null() {
        return ptr::null_mut();
    }
    // SAFETY: the caller's promise.
    guard::call(ptr::null_mut(), || unsafe { mode_read.open(path) })
}

/// The same; offsets have 64 bits in both.
///
/// # Safety
/// As zlib's manual says.
pub unsafe extern "C-unwind" fn gzopen64(path: *const c_char, mode: *const c_char) -> gzFile {
    // SAFETY: the caller's promise.
    unsafe { gzopen(path, mode) }
}

/// Makes a file of a descriptor, which belongs to it from then on.
///
/// # Safety
/// As zlib's manual says.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn gzdopen(descriptor: c_int, mode: *const c_char) -> gzFile {
    // SAFETY: the caller's promise.
    match unsafe { Mode::of(mode) } {
        Some(mode) if descriptor != -1 => guard::call(ptr::null_mut(), || {
            mode.file(descriptor, format!("<fd:{descriptor}>").into_bytes())
        }),
        // SAFETY: the caller's promise.
        _ => unsafe { base::gzdopen(descriptor, mode) },
    }
}

/// Makes the buffer of a file whose first write fills a gap. The base library clears the buffer
/// before it has one: the gap would be filled with old contents of the memory.
///
/// # Safety
/// Null, or an open file.
#[inline]
unsafe fn make_buffer(file: gzFile) {
    // SAFETY: the caller's promise; every zlib has these fields there.
    let beginning = unsafe { file.cast::<Beginning>().as_ref() };
    if beginning.is_some_and(|beginning| beginning.pos == 0) {
        // SAFETY: as above, and not null.
        unsafe { make_buffer_for_gap(file) };
    }
}

/// # Safety
/// An open file.
#[cold]
unsafe fn make_buffer_for_gap(file: gzFile) {
    let mut byte = 0_u8;
    // SAFETY: the caller's promise.
    unsafe {
        let gap = base::gztell64(file);
        // To read nothing succeeds on files that are read, and on no others.
        if gap <= 0 || base::gzread(file, (&raw mut byte).cast(), 0) == 0 {
            return;
        }
        // The seek is taken back, so that the flush makes the buffer and nothing else. Not when it
        // is asked for: until something is written, the program may choose the buffer's size.
        if base::gzseek64(file, 0, libc::SEEK_SET) == 0 {
            base::gzflush(file, base::Z_NO_FLUSH);
            base::gzseek64(file, gap, libc::SEEK_SET);
        }
    }
}

/// Reads a line.
///
/// # Safety
/// As zlib's manual says.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn gzgets(file: gzFile, text: *mut c_char, len: c_int) -> *mut c_char {
    // SAFETY: the caller's promise.
    if unsafe { writer(file) }.is_some() {
        return ptr::null_mut();
    }
    if len == 1 && !text.is_null() {
        // Room for the terminating zero alone means that nothing is read; a pending seek is carried
        // out all the same.
        let mut end = 0;
        // SAFETY: the caller's promise; room for the end.
        unsafe { base::gzgets(file, &mut end, len) };
        return ptr::null_mut();
    }
    // SAFETY: the caller's promise.
    unsafe { base::gzgets(file, text, len) }
}

/// Goes to a place; a file that is written is filled up to it with zeros, once more is written.
///
/// # Safety
/// As zlib's manual says.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn gzseek(file: gzFile, offset: c_long, whence: c_int) -> c_long {
    // SAFETY: the caller's promise.
    unsafe { gzseek64(file, offset, whence) }
}

unsafe extern "C" {
    fn sidecore_z_printf();
    fn sidecore_z_vprintf();
}

/// Writes a formatted text. Its arguments are passed on as they came.
///
/// # Safety
/// As zlib's manual says.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C-unwind" fn gzprintf() {
    #[cfg(target_arch = "x86_64")]
    naked_asm!("jmp {}", sym sidecore_z_printf);
    #[cfg(target_arch = "aarch64")]
    naked_asm!("b {}", sym sidecore_z_printf);
}

/// The same with a `va_list`.
///
/// # Safety
/// As zlib's manual says.
#[unsafe(naked)]
pub unsafe extern "C-unwind" fn gzvprintf() {
    #[cfg(target_arch = "x86_64")]
    naked_asm!("jmp {}", sym sidecore_z_vprintf);
    #[cfg(target_arch = "aarch64")]
    naked_asm!("b {}", sym sidecore_z_vprintf);
}

//! The functions on gzip files, by the base library; `gzprintf` through `printf.c`.

use crate::forward::forward;
use libc::{c_char, c_int, c_long, c_uint, c_void, size_t};
use libz_rs_sys as base;
use libz_rs_sys::gzFile;
use std::arch::naked_asm;
use std::ptr;

forward! {
    fn gzopen(path: *const c_char, mode: *const c_char) -> gzFile;
    fn gzopen64(path: *const c_char, mode: *const c_char) -> gzFile;
    fn gzdopen(descriptor: c_int, mode: *const c_char) -> gzFile;
    fn gzclose_r(file: gzFile) -> c_int;
    fn gzbuffer(file: gzFile, bytes: c_uint) -> c_int;
    fn gzerror(file: gzFile, code: *mut c_int) -> *const c_char;
    fn gzclearerr(file: gzFile) -> ();
    fn gzeof(file: gzFile) -> c_int;
    fn gzdirect(file: gzFile) -> c_int;
    fn gzread(file: gzFile, bytes: *mut c_void, len: c_uint) -> c_int;
    fn gzfread(bytes: *mut c_void, size: size_t, items: size_t, file: gzFile) -> size_t;
    fn gztell(file: gzFile) -> c_long;
    fn gztell64(file: gzFile) -> i64;
    fn gzoffset(file: gzFile) -> c_long;
    fn gzoffset64(file: gzFile) -> i64;
    fn gzgetc(file: gzFile) -> c_int;
    fn gzgetc_(file: gzFile) -> c_int;
    fn gzungetc(byte: c_int, file: gzFile) -> c_int;
    fn gzrewind(file: gzFile) -> c_int;
    fn gzseek64(file: gzFile, offset: i64, whence: c_int) -> i64;
}

/// Functions that may carry out a seek of a file that is written.
macro_rules! writing {
    ($($file:ident: fn $name:ident($($argument:ident: $kind:ty),*) -> $result:ty;)*) => {$(
        /// The function of this name in zlib's manual, by the base library.
        ///
        /// # Safety
        /// As zlib's manual says.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($argument: $kind),*) -> $result {
            // SAFETY: the program's promises are those that the base library asks for.
            unsafe {
                make_buffer($file);
                base::$name($($argument),*)
            }
        }
    )*};
}

writing! {
    file: fn gzclose(file: gzFile) -> c_int;
    file: fn gzclose_w(file: gzFile) -> c_int;
    file: fn gzwrite(file: gzFile, bytes: *const c_void, len: c_uint) -> c_int;
    file: fn gzfwrite(bytes: *const c_void, size: size_t, items: size_t, file: gzFile) -> size_t;
    file: fn gzflush(file: gzFile, flush: c_int) -> c_int;
    file: fn gzputc(file: gzFile, byte: c_int) -> c_int;
    file: fn gzputs(file: gzFile, text: *const c_char) -> c_int;
    file: fn gzsetparams(file: gzFile, level: c_int, strategy: c_int) -> c_int;
}

/// The beginning of a file, which the macro `gzgetc` of zlib.h reads.
#[repr(C)]
struct Beginning {
    _have: c_uint,
    _next: *const u8,
    pos: i64,
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
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C-unwind" fn gzvprintf() {
    #[cfg(target_arch = "x86_64")]
    naked_asm!("jmp {}", sym sidecore_z_vprintf);
    #[cfg(target_arch = "aarch64")]
    naked_asm!("b {}", sym sidecore_z_vprintf);
}

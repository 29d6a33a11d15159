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
    fn gzclose(file: gzFile) -> c_int;
    fn gzclose_r(file: gzFile) -> c_int;
    fn gzclose_w(file: gzFile) -> c_int;
    fn gzbuffer(file: gzFile, bytes: c_uint) -> c_int;
    fn gzerror(file: gzFile, code: *mut c_int) -> *const c_char;
    fn gzclearerr(file: gzFile) -> ();
    fn gzeof(file: gzFile) -> c_int;
    fn gzdirect(file: gzFile) -> c_int;
    fn gzread(file: gzFile, bytes: *mut c_void, len: c_uint) -> c_int;
    fn gzfread(bytes: *mut c_void, size: size_t, items: size_t, file: gzFile) -> size_t;
    fn gzwrite(file: gzFile, bytes: *const c_void, len: c_uint) -> c_int;
    fn gzfwrite(bytes: *const c_void, size: size_t, items: size_t, file: gzFile) -> size_t;
    fn gzflush(file: gzFile, flush: c_int) -> c_int;
    fn gztell(file: gzFile) -> c_long;
    fn gztell64(file: gzFile) -> i64;
    fn gzoffset(file: gzFile) -> c_long;
    fn gzoffset64(file: gzFile) -> i64;
    fn gzputc(file: gzFile, byte: c_int) -> c_int;
    fn gzputs(file: gzFile, text: *const c_char) -> c_int;
    fn gzgetc(file: gzFile) -> c_int;
    fn gzgetc_(file: gzFile) -> c_int;
    fn gzungetc(byte: c_int, file: gzFile) -> c_int;
    fn gzsetparams(file: gzFile, level: c_int, strategy: c_int) -> c_int;
    fn gzrewind(file: gzFile) -> c_int;
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

/// Goes to a place; a file that is written is filled up to it with zeros.
///
/// # Safety
/// As zlib's manual says.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn gzseek64(file: gzFile, offset: i64, whence: c_int) -> i64 {
    // SAFETY: the caller's promise.
    unsafe {
        // The base library clears its buffer before it has one: later gaps would be filled with old
        // contents of the memory. This makes the buffer, and nothing else; files that are read
        // refuse it. Later, a pending seek would be carried out.
        if base::gztell64(file) == 0 {
            base::gzflush(file, base::Z_NO_FLUSH);
        }
        base::gzseek64(file, offset, whence)
    }
}

/// The same.
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

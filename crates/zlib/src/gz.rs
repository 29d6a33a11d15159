//! The functions on gzip files, by the base library; `gzprintf` through `printf.c`.

use crate::forward::forward;
use libc::{c_char, c_int, c_long, c_uint, c_void, size_t};
use libz_rs_sys::gzFile;
use std::arch::naked_asm;

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
    fn gzgets(file: gzFile, text: *mut c_char, len: c_int) -> *mut c_char;
    fn gzsetparams(file: gzFile, level: c_int, strategy: c_int) -> c_int;
    fn gzseek(file: gzFile, offset: c_long, whence: c_int) -> c_long;
    fn gzseek64(file: gzFile, offset: i64, whence: c_int) -> i64;
    fn gzrewind(file: gzFile) -> c_int;
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
pub unsafe extern "C" fn gzprintf() {
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
pub unsafe extern "C" fn gzvprintf() {
    #[cfg(target_arch = "x86_64")]
    naked_asm!("jmp {}", sym sidecore_z_vprintf);
    #[cfg(target_arch = "aarch64")]
    naked_asm!("b {}", sym sidecore_z_vprintf);
}

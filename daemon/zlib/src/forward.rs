//! Functions of the base library alone: checksums and their combinations, and information about the
//! library.

use libc::{c_char, c_int, c_long, c_uint, c_ulong};
use libz_rs_sys as base;
use sidecore_bare::width::ToUsize;

/// Functions with zlib's names that only call the base library's.
macro_rules! forward {
    ($($(#[$($export:tt)*])? fn $name:ident($($argument:ident: $kind:ty),*) -> $result:ty;)*) => {$(
        /// The function of this name in zlib's manual, by the base library.
        ///
        /// # Safety
        /// As zlib's manual says.
        $(#[$($export)*])?
        #[allow(unused_unsafe, reason = "some of them are safe")]
        pub unsafe extern "C-unwind" fn $name($($argument: $kind),*) -> $result {
            // SAFETY: the program's promises are those that the base library asks for.
            unsafe { ::libz_rs_sys::$name($($argument),*) }
        }
    )*};
}

forward! {
    #[unsafe(no_mangle)]
    fn get_crc_table() -> *const [u32; 256];
    fn crc32_combine(first: c_ulong, second: c_ulong, bytes: c_long) -> c_ulong;
    fn crc32_combine64(first: c_ulong, second: c_ulong, bytes: i64) -> c_ulong;
    fn crc32_combine_gen(bytes: c_long) -> c_ulong;
    fn crc32_combine_gen64(bytes: i64) -> c_ulong;
    fn crc32_combine_op(first: c_ulong, second: c_ulong, operator: c_ulong) -> c_ulong;
    fn adler32_combine(first: c_ulong, second: c_ulong, bytes: c_long) -> c_ulong;
    fn adler32_combine64(first: c_ulong, second: c_ulong, bytes: i64) -> c_ulong;
    #[unsafe(no_mangle)]
    fn zError(code: c_int) -> *const c_char;
    fn zlibCompileFlags() -> c_ulong;
}

/// The version of zlib whose ABI this is.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn zlibVersion() -> *const c_char {
    VERSION.as_ptr()
}

/// True if a program compiled against this version, with this size of a stream, fits.
///
/// # Safety
/// `version` is null or a C string.
pub(crate) unsafe fn is_compatible(version: *const c_char, stream_bytes: c_int) -> bool {
    // SAFETY: the caller's promise; a C string has at least its end.
    let first = unsafe { version.as_ref() };
    first == Some(&(b'1' as c_char))
        && usize::try_from(stream_bytes) == Ok(size_of::<base::z_stream>())
}

/// CRC-32 of bytes, continued from `crc`.
///
/// # Safety
/// `bytes` is null or `len` bytes may be read there.
pub unsafe extern "C-unwind" fn crc32_z(crc: c_ulong, bytes: *const u8, len: usize) -> c_ulong {
    if bytes.is_null() {
        return 0;
    }
    // Without a guard: programs call it for a few bytes at a time, and nothing in it could panic.
    // SAFETY: the caller's promise.
    unsafe { libdeflate_sys::libdeflate_crc32(low_half(crc), bytes.cast(), len).into() }
}

/// The same, of at most 4 GiB.
///
/// # Safety
/// As [`crc32_z`].
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn crc32(crc: c_ulong, bytes: *const u8, len: c_uint) -> c_ulong {
    // SAFETY: the caller's promise.
    unsafe { crc32_z(crc, bytes, len.to_usize()) }
}

/// Adler-32 of bytes, continued from `adler`.
///
/// # Safety
/// `bytes` is null or `len` bytes may be read there.
pub unsafe extern "C-unwind" fn adler32_z(adler: c_ulong, bytes: *const u8, len: usize) -> c_ulong {
    if bytes.is_null() {
        return 1;
    }
    // Without a guard, as the other.
    // SAFETY: the caller's promise.
    unsafe { libdeflate_sys::libdeflate_adler32(low_half(adler), bytes.cast(), len).into() }
}

/// The same, of at most 4 GiB.
///
/// # Safety
/// As [`adler32_z`].
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn adler32(adler: c_ulong, bytes: *const u8, len: c_uint) -> c_ulong {
    // SAFETY: the caller's promise.
    unsafe { adler32_z(adler, bytes, len.to_usize()) }
}

/// A checksum as zlib passes it on: a `long`, of which it has the lower half.
pub(crate) fn low_half(check: c_ulong) -> u32 {
    check as u32
}

/// [`crc32_z`] of our own memory.
pub(crate) fn crc32_of(check: u32, bytes: &[u8]) -> u32 {
    // SAFETY: a slice.
    low_half(unsafe { crc32_z(check.into(), bytes.as_ptr(), bytes.len()) })
}

/// [`adler32_z`] of our own memory.
pub(crate) fn adler32_of(check: u32, bytes: &[u8]) -> u32 {
    // SAFETY: a slice.
    low_half(unsafe { adler32_z(check.into(), bytes.as_ptr(), bytes.len()) })
}

/// Numbers alone, as programs take it apart; they compare its beginning with their header's.
const VERSION: &std::ffi::CStr = c"1.3.0";

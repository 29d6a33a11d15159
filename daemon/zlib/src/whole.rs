//! `compress`, `uncompress` and their kin: one buffer to another.
//!
//! Why here: all input and all room are known at once, so that nothing is gathered or kept.

use crate::deflate::zlib_bound;
use crate::engines;
use crate::engines::{Use, settings};
use crate::guard;
use crate::inflate::{Kind, inflate_at_once};
use crate::memory::{Bytes, Memory};
use libc::{c_int, c_ulong};
use libz_rs_sys as base;
use libz_rs_sys::*;
use sidecore_bare::width::{ToU64, ToUsize};

/// Deflates a buffer at the default level.
///
/// # Safety
/// As zlib's manual says.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn compress(
    target: *mut u8,
    target_bytes: *mut c_ulong,
    source: *const u8,
    source_bytes: c_ulong,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        compress2(
            target,
            target_bytes,
            source,
            source_bytes,
            Z_DEFAULT_COMPRESSION,
        )
    }
}

/// Deflates a buffer.
///
/// # Safety
/// As zlib's manual says.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn compress2(
    target: *mut u8,
    target_bytes: *mut c_ulong,
    source: *const u8,
    source_bytes: c_ulong,
    level: c_int,
) -> c_int {
    guard::call(Z_STREAM_ERROR, || {
        // SAFETY: the caller's promise.
        unsafe { compress_at_once(target, target_bytes, source, source_bytes, level) }
    })
}

/// # Safety
/// As [`compress2`].
unsafe fn compress_at_once(
    target: *mut u8,
    target_bytes: *mut c_ulong,
    source: *const u8,
    source_bytes: c_ulong,
    level: c_int,
) -> c_int {
    let ours = (1..=9).contains(&level) || level == Z_DEFAULT_COMPRESSION;
    // SAFETY: the caller's promise.
    let room = unsafe { target_bytes.as_mut() };
    let (Some(room), true) = (room, ours && settings().used != Use::Off) else {
        // SAFETY: the caller's promise.
        return unsafe { base::compress2(target, target_bytes, source, source_bytes, level) };
    };
    if target.is_null() || (source.is_null() && source_bytes > 0) {
        return Z_STREAM_ERROR;
    }
    let raw = match source_bytes {
        0 => &[],
        // SAFETY: the caller's promise.
        bytes => unsafe { std::slice::from_raw_parts(source, bytes.to_usize()) },
    };
    let mut made = Bytes::new(Memory::MALLOC);
    // All at once: to grow would copy it several times. What is not written is never touched.
    let part_bytes = raw.len().min(PART_BYTES);
    made.reserve_to(part_bytes + part_bytes / 1024 + 1024).ok();
    if raw.len() > sidecore_deflate::BLOCK_BYTES {
        engines::look();
    }
    // The only level below 0 that comes here stands for the usual one.
    let level = u8::try_from(level).unwrap_or(USUAL_LEVEL);
    let header = match level {
        1 => [0x78, 0x01],
        2..=5 => [0x78, 0x5e],
        USUAL_LEVEL => [0x78, 0x9c],
        _ => [0x78, 0xda],
    };
    let mut left = room.to_usize();
    *room = 0;
    let mut give = |made: &mut Bytes| {
        let bytes = made.as_slice();
        // Nothing of a part that does not fit is put.
        if bytes.len() > left {
            return Err(Z_BUF_ERROR);
        }
        // SAFETY: the caller's promise: there is room, and it is no memory of ours.
        unsafe {
            target
                .add(room.to_usize())
                .copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        }
        left -= bytes.len();
        *room += bytes.len().to_u64();
        made.clear();
        Ok(())
    };
    let mut run = || -> Result<(), c_int> {
        made.extend(&header)?;
        let parts = raw.len().div_ceil(PART_BYTES).max(1);
        // In parts, so that the output is not all in memory twice.
        for index in 0..parts {
            let start = index * PART_BYTES;
            let part = &raw[start..raw.len().min(start + PART_BYTES)];
            engines::deflate(part, level, index + 1 == parts, &mut made)?;
            give(&mut made)?;
        }
        let check = crate::forward::adler32_of(1, raw);
        made.extend(&check.to_be_bytes())?;
        give(&mut made)
    };
    run().err().unwrap_or(Z_OK)
}

/// The most bytes that [`compress`] makes of a buffer.
pub extern "C-unwind" fn compressBound(source_bytes: c_ulong) -> c_ulong {
    let bound = zlib_bound(source_bytes).saturating_add(6);
    base::compressBound(source_bytes).max(bound)
}

/// Inflates a buffer.
///
/// # Safety
/// As zlib's manual says.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn uncompress(
    target: *mut u8,
    target_bytes: *mut c_ulong,
    source: *const u8,
    mut source_bytes: c_ulong,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { uncompress2(target, target_bytes, source, &mut source_bytes) }
}

/// Inflates a buffer and says how much of it was used.
///
/// # Safety
/// As zlib's manual says.
pub unsafe extern "C-unwind" fn uncompress2(
    target: *mut u8,
    target_bytes: *mut c_ulong,
    source: *const u8,
    source_bytes: *mut c_ulong,
) -> c_int {
    guard::call(Z_STREAM_ERROR, || {
        // SAFETY: the caller's promise.
        if let (Some(room), Some(bytes)) = unsafe { (target_bytes.as_mut(), source_bytes.as_mut()) }
            && !target.is_null()
            && !source.is_null()
            && *room > 0
            && settings().used != Use::Off
        {
            // SAFETY: the caller's promise.
            let whole = unsafe {
                let input = std::slice::from_raw_parts(source, bytes.to_usize());
                inflate_at_once(Kind::Zlib, input, target, room.to_usize())
            };
            if let Ok((consumed, written)) = whole {
                (*room, *bytes) = (written.to_u64(), consumed.to_u64());
                return Z_OK;
            }
        }
        // The base library gives the error.
        // SAFETY: the caller's promise.
        unsafe { base::uncompress2(target, target_bytes, source, source_bytes) }
    })
}

/// The level that `Z_DEFAULT_COMPRESSION` stands for.
const USUAL_LEVEL: u8 = 6;
/// Input whose blocks are made before their output is handed over.
const PART_BYTES: usize = 32 * sidecore_deflate::BLOCK_BYTES;

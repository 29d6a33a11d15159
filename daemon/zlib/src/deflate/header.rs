//! Header and trailer of the DEFLATE stream (RFC 1950, RFC 1952).

use super::parameters::Parameters;
use crate::memory::{Bytes, NoMemory};
use libz_rs_sys::gz_header;
use sidecore_deflate::CheckKind;
use std::ffi::CStr;

/// Writes the header of a stream; with the program's fields for a gzip header, or with the checksum
/// of a zlib stream's dictionary.
///
/// # Safety
/// The fields of `given` are as `deflateSetHeader` requires.
pub(super) unsafe fn write(
    parameters: &Parameters,
    given: Option<&gz_header>,
    dictionary: Option<u32>,
    out: &mut Bytes,
) -> Result<(), NoMemory> {
    match parameters.wrapper {
        CheckKind::None => Ok(()),
        CheckKind::Adler32 => {
            out.extend(&parameters.zlib_header(dictionary.is_some()))?;
            dictionary.map_or(Ok(()), |check| out.extend(&check.to_be_bytes()))
        }
        CheckKind::Crc32 => {
            // SAFETY: the caller's promise.
            let fields = unsafe { Fields::of(given) };
            let start = out.len();
            let flags = u8::from(fields.is_text)
                | u8::from(fields.has_check) << 1
                | u8::from(fields.extra.is_some()) << 2
                | u8::from(fields.name.is_some()) << 3
                | u8::from(fields.comment.is_some()) << 4;
            out.extend(&[0x1f, 0x8b, 8, flags])?;
            out.extend(&fields.time.to_le_bytes())?;
            out.extend(&[parameters.gzip_effort(), fields.system])?;
            if let Some(extra) = fields.extra {
                out.extend(&(extra.len() as u16).to_le_bytes())?;
                out.extend(extra)?;
            }
            for text in [fields.name, fields.comment].into_iter().flatten() {
                out.extend(text.to_bytes_with_nul())?;
            }
            if fields.has_check {
                let check = CheckKind::Crc32.of(&out.as_slice()[start..]) as u16;
                out.extend(&check.to_le_bytes())?;
            }
            Ok(())
        }
    }
}

/// Length of the header and the trailer together.
///
/// # Safety
/// As [`write`].
pub(super) unsafe fn bytes(parameters: &Parameters, given: Option<&gz_header>) -> usize {
    match parameters.wrapper {
        CheckKind::None => 0,
        CheckKind::Adler32 => 2 + 4 + 4,
        CheckKind::Crc32 => {
            // SAFETY: the caller's promise.
            let fields = unsafe { Fields::of(given) };
            let texts = [fields.name, fields.comment].into_iter().flatten();
            let texts: usize = texts.map(|text| text.to_bytes_with_nul().len()).sum();
            let extra = fields.extra.map_or(0, |extra| 2 + extra.len());
            10 + extra + texts + if fields.has_check { 2 } else { 0 } + 8
        }
    }
}

/// Writes the trailer of a stream of `raw_bytes` with checksum `check`.
pub(super) fn write_trailer(
    wrapper: CheckKind,
    check: u32,
    raw_bytes: u64,
    out: &mut Bytes,
) -> Result<(), NoMemory> {
    match wrapper {
        CheckKind::None => Ok(()),
        CheckKind::Adler32 => out.extend(&check.to_be_bytes()),
        CheckKind::Crc32 => {
            out.extend(&check.to_le_bytes())?;
            out.extend(&(raw_bytes as u32).to_le_bytes())
        }
    }
}

struct Fields<'a> {
    is_text: bool,
    has_check: bool,
    time: u32,
    system: u8,
    extra: Option<&'a [u8]>,
    name: Option<&'a CStr>,
    comment: Option<&'a CStr>,
}

impl<'a> Fields<'a> {
    /// # Safety
    /// As [`write`].
    unsafe fn of(given: Option<&'a gz_header>) -> Self {
        let Some(given) = given else {
            return Self {
                is_text: false,
                has_check: false,
                time: 0,
                system: UNIX,
                extra: None,
                name: None,
                comment: None,
            };
        };
        let text = |start: *mut u8| {
            // SAFETY: the caller's promise: null, or a text with its end.
            (!start.is_null()).then(|| unsafe { CStr::from_ptr(start.cast()) })
        };
        let extra_bytes = (given.extra_len & 0xffff) as usize;
        let extra = (!given.extra.is_null()).then(|| {
            // SAFETY: the caller's promise.
            unsafe { std::slice::from_raw_parts(given.extra, extra_bytes) }
        });
        Self {
            is_text: given.text != 0,
            has_check: given.hcrc != 0,
            time: given.time as u32,
            system: given.os as u8,
            extra,
            name: text(given.name),
            comment: text(given.comment),
        }
    }
}

/// The system in a gzip header that the program says nothing about (RFC 1952, 2.3.1).
const UNIX: u8 = 3;

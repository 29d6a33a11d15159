//! Header and trailer of the DEFLATE stream (RFC 1950, RFC 1952).

use super::parameters::Parameters;
use crate::forward;
use crate::memory::{Bytes, NoMemory};
use libz_rs_sys::gz_header;
use sidecore_bare::width::ToUsize;
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
            // RFC 1952, 2.3: magic number, method, flags, time, effort, system.
            out.extend(&[0x1f, 0x8b, 8, flags])?;
            out.extend(&fields.time.to_le_bytes())?;
            out.extend(&[parameters.gzip_effort(), fields.system])?;
            if let Some(extra) = fields.extra {
                // `Fields::of` cuts it off at 65,535 bytes, as zlib does.
                let length = u16::try_from(extra.len()).unwrap_or(u16::MAX);
                out.extend(&length.to_le_bytes())?;
                out.extend(extra)?;
            }
            for text in [fields.name, fields.comment].into_iter().flatten() {
                out.extend(text.to_bytes_with_nul())?;
            }
            if fields.has_check {
                // Its lower half (RFC 1952, 2.3.1).
                let check = CheckKind::Crc32.of(&out.as_slice()[start..]);
                out.extend(&check.to_le_bytes()[..2])?;
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
        // With room for a dictionary's checksum, as zlib counts it.
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
            // Modulo 2^32 (RFC 1952, 2.3.1).
            out.extend(&raw_bytes.to_le_bytes()[..4])
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
        // Without a header of the program's: no time, so that equal input has equal output.
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
        let extra_bytes = (given.extra_len & 0xffff).to_usize();
        let extra = (!given.extra.is_null()).then(|| {
            // SAFETY: the caller's promise.
            unsafe { std::slice::from_raw_parts(given.extra, extra_bytes) }
        });
        Self {
            is_text: given.text != 0,
            has_check: given.hcrc != 0,
            time: forward::low_half(given.time),
            system: given.os.to_le_bytes()[0],
            extra,
            name: text(given.name),
            comment: text(given.comment),
        }
    }
}

/// The system in a gzip header that the program says nothing about (RFC 1952, 2.3.1).
const UNIX: u8 = 3;

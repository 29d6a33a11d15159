//! A stream at once, by libdeflate, where all of it and enough room for its output are there.
//!
//! Why here: that is about twice as fast as step by step. Must stay true: a failed try leaves the
//! stream as if it had not been tried. libdeflate does not get streams that it checks less than
//! zlib does: a gzip header with its own checksum, smaller windows, and raw streams, in which
//! nothing else would show that a code which no stream may have was taken for another.

use crate::engines;
use crate::forward::adler32_of;
use libc::c_void;
use libdeflate_sys as library;
use std::cell::RefCell;
use std::ptr::NonNull;

/// A stream's wrapper.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Zlib,
    Gzip,
}

impl Kind {
    /// The kind of a stream that begins with these bytes, read with these wrappers (bit 0 zlib's,
    /// bit 1 gzip's) and this window. `None` where it is of no kind that libdeflate checks as zlib
    /// does.
    pub(super) fn of(wrap: i32, window_bits: u32, input: &[u8]) -> Option<Self> {
        if !matches!(window_bits, 0 | 15) {
            return None;
        }
        let is_gzip = wrap & 2 != 0 && input.starts_with(&[0x1f, 0x8b]);
        // Deflated, no header checksum (FHCRC), nothing reserved (RFC 1952, 2.3.1).
        let is_plain =
            input.get(2) == Some(&8) && input.get(3).is_some_and(|flags| flags & 0xe2 == 0);
        match wrap & 3 {
            0 => None,
            _ if is_gzip => is_plain.then_some(Self::Gzip),
            2 => None,
            _ => Some(Self::Zlib),
        }
    }

    /// The window that the stream's header asks for.
    pub(super) fn window_bits(self, input: &[u8]) -> u32 {
        match (self, input) {
            (Self::Zlib, [first, ..]) => u32::from(first >> 4) + 8,
            _ => 15,
        }
    }
}

/// The stream could not be inflated as a whole: not all there, no room, or damaged.
pub(crate) struct NotWhole;

/// Inflates a whole stream; returns the bytes that it took and made. Bytes after it are left alone.
///
/// # Safety
/// `room` bytes may be written at `out`, which `input` does not overlap.
pub(crate) unsafe fn inflate_at_once(
    kind: Kind,
    input: &[u8],
    out: *mut u8,
    room: usize,
) -> Result<(usize, usize), NotWhole> {
    // SAFETY: the caller's promise, for both.
    unsafe {
        if let Some(done) = on_engines(kind, input, out, room) {
            return Ok(done);
        }
        let function = match kind {
            Kind::Zlib => library::libdeflate_zlib_decompress_ex,
            Kind::Gzip => library::libdeflate_gzip_decompress_ex,
        };
        here(function, input, out, room)
    }
}

/// The same on engines, for a stream whose blocks refer to nothing before them, as this library's:
/// each but the last ends with an empty stored block. Whether they do shows when they are inflated;
/// that all belong to one stream, by its checksum.
///
/// # Safety
/// As [`inflate_at_once`].
unsafe fn on_engines(
    kind: Kind,
    input: &[u8],
    out: *mut u8,
    room: usize,
) -> Option<(usize, usize)> {
    if input.len() < SHARED_MIN || !engines::are_there() {
        return None;
    }
    let (header_bytes, trailer_bytes) = match kind {
        // Deflated, a window of 32 KiB at most, a multiple of 31, no dictionary (RFC 1950, 2.2).
        Kind::Zlib
            if matches!(input[0], 0x08..=0x78)
                && input[0] & 15 == 8
                && u16::from_be_bytes([input[0], input[1]]).is_multiple_of(31)
                && input[1] & 0x20 == 0 =>
        {
            (2, 4)
        }
        // No optional fields (RFC 1952, 2.3.1).
        Kind::Gzip if input[3] == 0 => (10, 8),
        _ => return None,
    };
    let raw = &input[header_bytes..];
    let mut at = 0;
    let mut written = 0;
    let parts = std::iter::from_fn(|| {
        let near = &raw[..raw.len().min(at + PART_MAX)];
        let end = next_end(near, at)?;
        let part = &raw[at..end];
        at = end;
        Some(part)
    });
    engines::inflate(parts, |bytes| {
        let fits = bytes.len() <= room - written;
        if fits {
            // SAFETY: the caller's promise: there is room, and it is no memory of ours.
            unsafe {
                out.add(written)
                    .copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            }
            written += bytes.len();
        }
        fits
    })?;
    let rest = &raw[at..];
    if rest.len() > PART_MAX {
        return None;
    }
    let function = library::libdeflate_deflate_decompress_ex;
    // SAFETY: the caller's promise.
    let last = unsafe { here(function, rest, out.add(written), room - written) };
    let (consumed, last_bytes) = last.ok()?;
    written += last_bytes;
    // SAFETY: written just now.
    let all = unsafe { std::slice::from_raw_parts(out, written) };
    let trailer = rest.get(consumed..consumed + trailer_bytes)?;
    let is_whole = match kind {
        Kind::Zlib => trailer == adler32_of(1, all).to_be_bytes(),
        Kind::Gzip => {
            let check = crc32(all).to_le_bytes();
            // The length modulo 2^32 (RFC 1952, 2.3.1).
            trailer[..4] == check && trailer[4..] == written.to_le_bytes()[..4]
        }
    };
    let taken = header_bytes + at + consumed + trailer_bytes;
    is_whole.then_some((taken, written))
}

/// The place behind the next empty stored block from `from` on.
fn next_end(raw: &[u8], from: usize) -> Option<usize> {
    let mut last = from + EMPTY_STORED.len() - 1;
    loop {
        // As far on as the next place that may be its end.
        last += match raw.get(last)? {
            0xff if raw[last - 3..=last] == EMPTY_STORED => return Some(last + 1),
            0xff => 1,
            0 => 2,
            _ => 4,
        };
    }
}

/// A function of libdeflate that inflates a stream.
type Function = unsafe extern "C" fn(
    *mut library::libdeflate_decompressor,
    *const c_void,
    usize,
    *mut c_void,
    usize,
    *mut usize,
    *mut usize,
) -> library::libdeflate_result;

/// Inflates with this thread's tables.
///
/// # Safety
/// As [`inflate_at_once`].
unsafe fn here(
    function: Function,
    input: &[u8],
    out: *mut u8,
    room: usize,
) -> Result<(usize, usize), NotWhole> {
    thread_local! {
        static INFLATER: RefCell<Option<Inflater>> = const { RefCell::new(None) };
    }
    let run = |inflater: &Inflater| {
        let (mut consumed, mut written) = (0, 0);
        // SAFETY: the caller's promise; the inflater lives, and nothing else uses it.
        let code = unsafe {
            function(
                inflater.0.as_ptr(),
                input.as_ptr().cast(),
                input.len(),
                out.cast(),
                room,
                &mut consumed,
                &mut written,
            )
        };
        let done = code == library::libdeflate_result_LIBDEFLATE_SUCCESS;
        // Whatever is wrong, the steps find it, with zlib's code at zlib's place.
        done.then_some((consumed, written)).ok_or(NotWhole)
    };
    let kept = INFLATER.try_with(|kept| {
        let mut kept = kept.try_borrow_mut().map_err(|_| NotWhole)?;
        // Its tables are some 10 KiB: one for each thread that inflates, made at the first stream.
        if kept.is_none() {
            *kept = Inflater::new();
        }
        kept.as_ref().ok_or(NotWhole).and_then(run)
    });
    // While a thread ends, its thread-local value may have been dropped; it is done step by step
    // then.
    kept.unwrap_or(Err(NotWhole))
}

/// The CRC-32 of bytes.
pub(super) fn crc32(bytes: &[u8]) -> u32 {
    // SAFETY: a slice.
    unsafe { library::libdeflate_crc32(0, bytes.as_ptr().cast(), bytes.len()) }
}

/// libdeflate's tables.
struct Inflater(NonNull<library::libdeflate_decompressor>);

impl Inflater {
    fn new() -> Option<Self> {
        // SAFETY: no conditions.
        NonNull::new(unsafe { library::libdeflate_alloc_decompressor() }).map(Self)
    }
}

impl Drop for Inflater {
    fn drop(&mut self) {
        // SAFETY: allocated by this library, not used again.
        unsafe { library::libdeflate_free_decompressor(self.0.as_ptr()) };
    }
}

/// Streams that are worth the way to engines.
const SHARED_MIN: usize = 256 << 10;
/// A longer part of a stream has more output than an engine is given room for.
const PART_MAX: usize = engines::INFLATED_MAX;
/// The end of a block that another follows (RFC 1951, 3.2.4).
const EMPTY_STORED: [u8; 4] = [0, 0, 0xff, 0xff];

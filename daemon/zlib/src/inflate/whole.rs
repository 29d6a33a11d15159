//! A stream at once, by libdeflate, where all of it and enough room for its output are there.
//!
//! Why here: that is about twice as fast as step by step. Must stay true: a failed try leaves the
//! stream as if it had not been tried. libdeflate does not get streams that it checks less than
//! zlib does: a gzip header with its own checksum, smaller windows, and raw streams, in which
//! nothing else would show that a code which no stream may have was taken for another.

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
    let run = |inflater: &Inflater| {
        let (mut consumed, mut written) = (0, 0);
        let function = match kind {
            Kind::Zlib => library::libdeflate_zlib_decompress_ex,
            Kind::Gzip => library::libdeflate_gzip_decompress_ex,
        };
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
    // Without tables it is done step by step.
    with_inflater(run).unwrap_or(Err(NotWhole))
}

/// Allocates this thread's tables, so that [`inflate_at_once`] needs no memory later: a program
/// that begins a stream may then forbid itself all system calls but `read`, `write` and `exit`.
pub(super) fn prepare() {
    with_inflater(|_| ());
}

/// Runs work with this thread's tables, some 10 KiB, made at the first use. `None` without memory,
/// or while a thread ends, whose thread-local value may have been dropped.
fn with_inflater<R>(work: impl FnOnce(&Inflater) -> R) -> Option<R> {
    thread_local! {
        static INFLATER: RefCell<Option<Inflater>> = const { RefCell::new(None) };
    }
    let done = INFLATER.try_with(|kept| {
        let mut kept = kept.try_borrow_mut().ok()?;
        if kept.is_none() {
            *kept = Inflater::new();
        }
        kept.as_ref().map(work)
    });
    done.ok().flatten()
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

//! zlib's inflating functions: a whole stream at once by libdeflate, all else by the base library.
//!
//! Why here: libdeflate inflates about twice as fast, but only what is there from its first byte to
//! its last, with room for all of it. The first call of a stream shows that, or it does not; then
//! the base library begins at the same first byte, and stays.
//! Must stay true: a stream that was tried in vain is as if it had not been tried. What the library
//! does not check (a gzip header's own checksum, smaller windows) is not given to it.

use crate::forward::{is_compatible, zlibVersion};
use crate::guard;
use crate::io;
use crate::memory::Memory;
use crate::settings::{Use, settings};
use libc::{c_char, c_int, c_long, c_uchar, c_uint, c_ulong};
use libdeflate_sys as whole;
use libz_rs_sys as base;
use libz_rs_sys::*;
use std::cell::RefCell;
use std::ptr::{self, NonNull};

/// Who has the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Nobody: no call has looked at input.
    Fresh,
    Base,
    /// It ended, inflated as a whole.
    Done,
}

/// What a stream's `state` points to while it inflates; the mark comes first in every kind.
#[repr(C)]
struct Handle {
    magic: u64,
    owner: *mut z_stream,
    memory: Memory,
    window_bits: c_int,
    stage: Stage,
    /// The base library's stream; without a state until it is needed.
    base: z_stream,
}

impl Handle {
    /// The base library takes the stream, from its first byte.
    fn use_base(&mut self) -> c_int {
        if self.stage == Stage::Base {
            return Z_OK;
        }
        // SAFETY: the base library's own stream, or one without a state.
        let code = unsafe {
            if self.base.state.is_null() {
                base::inflateInit2_(
                    &mut self.base,
                    self.window_bits,
                    zlibVersion(),
                    size_of::<z_stream>() as c_int,
                )
            } else {
                base::inflateReset2(&mut self.base, self.window_bits)
            }
        };
        if code == Z_OK {
            self.stage = Stage::Base;
        }
        code
    }

    fn begin(&mut self, stream: &mut z_stream, window_bits: c_int) -> c_int {
        if !fits(window_bits) {
            return Z_STREAM_ERROR;
        }
        self.window_bits = window_bits;
        self.stage = Stage::Fresh;
        (stream.total_in, stream.total_out) = (0, 0);
        stream.msg = ptr::null_mut();
        stream.adler = u64::from((0..=15).contains(&window_bits));
        Z_OK
    }

    /// Inflates the stream if all of it is there, and room for it.
    ///
    /// # Safety
    /// The stream's buffers are what they say.
    unsafe fn inflate_whole(&mut self, stream: &mut z_stream, flush: c_int) -> bool {
        // SAFETY: the caller's promise.
        let input = unsafe { io::input(stream) };
        let Some(kind) = Kind::of(self.window_bits, input) else {
            return false;
        };
        let room = stream.avail_out as usize;
        let likely = flush == Z_FINISH || room >= input.len();
        if !likely || room == 0 || stream.next_out.is_null() || settings().used == Use::Off {
            return false;
        }
        // SAFETY: the caller's promise; the two do not overlap.
        let inflated = unsafe { inflate_at_once(kind, input, stream.next_out, room) };
        let Ok((consumed, written)) = inflated else {
            return false;
        };
        let out = stream.next_out;
        io::consume(stream, consumed);
        io::produced(stream, written);
        stream.adler = match kind {
            // SAFETY: written just now.
            Kind::Gzip => unsafe { whole::libdeflate_crc32(0, out.cast(), written) }.into(),
            Kind::Zlib => u32::from_be_bytes(
                input[..consumed]
                    .last_chunk::<4>()
                    .copied()
                    .unwrap_or_default(),
            )
            .into(),
            Kind::Raw => stream.adler,
        };
        stream.data_type = 0;
        self.stage = Stage::Done;
        true
    }
}

/// A stream's wrapper.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Raw,
    Zlib,
    Gzip,
}

impl Kind {
    /// The kind of a stream that begins with these bytes, read with this window; `None` where it is
    /// none that libdeflate checks as zlib does.
    fn of(window_bits: c_int, input: &[u8]) -> Option<Self> {
        let is_gzip = input.starts_with(&[0x1f, 0x8b, 8]);
        // No header checksum (FHCRC), nothing reserved (RFC 1952, 2.3.1).
        let plain = is_gzip && input.get(3).is_some_and(|flags| flags & 0xe2 == 0);
        match window_bits {
            -15 => (!input.is_empty()).then_some(Self::Raw),
            // Whatever window the header says, up to the largest.
            0 | 15 => (!is_gzip).then_some(Self::Zlib),
            31 => plain.then_some(Self::Gzip),
            32 | 47 if is_gzip => plain.then_some(Self::Gzip),
            32 | 47 => Some(Self::Zlib),
            _ => None,
        }
    }
}

/// The stream could not be inflated as a whole: not all there, no room, or damaged.
pub(crate) struct NotWhole;

/// Inflates a whole stream; the bytes that it takes and becomes. What follows it is left alone.
///
/// # Safety
/// `room` bytes may be written at `out`, which `input` does not overlap.
pub(crate) unsafe fn inflate_at_once(
    kind: Kind,
    input: &[u8],
    out: *mut u8,
    room: usize,
) -> Result<(usize, usize), NotWhole> {
    thread_local! {
        static INFLATER: RefCell<Option<Inflater>> = const { RefCell::new(None) };
    }
    let run = |inflater: &Inflater| {
        let (mut consumed, mut written) = (0, 0);
        let function = match kind {
            Kind::Raw => whole::libdeflate_deflate_decompress_ex,
            Kind::Zlib => whole::libdeflate_zlib_decompress_ex,
            Kind::Gzip => whole::libdeflate_gzip_decompress_ex,
        };
        // SAFETY: the caller's promise; the inflater lives, and nobody else uses it.
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
        let done = code == whole::libdeflate_result_LIBDEFLATE_SUCCESS;
        done.then_some((consumed, written)).ok_or(NotWhole)
    };
    let kept = INFLATER.try_with(|kept| {
        let mut kept = kept.try_borrow_mut().map_err(|_| NotWhole)?;
        if kept.is_none() {
            *kept = Inflater::new();
        }
        kept.as_ref().ok_or(NotWhole).and_then(run)
    });
    // While a thread ends, what it kept may be gone; the base library does it then.
    kept.unwrap_or(Err(NotWhole))
}

/// libdeflate's tables.
struct Inflater(NonNull<whole::libdeflate_decompressor>);

impl Inflater {
    fn new() -> Option<Self> {
        // SAFETY: no conditions.
        NonNull::new(unsafe { whole::libdeflate_alloc_decompressor() }).map(Self)
    }
}

impl Drop for Inflater {
    fn drop(&mut self) {
        // SAFETY: allocated by this library, not used again.
        unsafe { whole::libdeflate_free_decompressor(self.0.as_ptr()) };
    }
}

/// True for windows that zlib takes.
fn fits(window_bits: c_int) -> bool {
    let size = match window_bits {
        ..0 => window_bits.saturating_neg(),
        0..48 => window_bits & 15,
        _ => return false,
    };
    (8..=15).contains(&size) || (window_bits >= 0 && size == 0)
}

/// # Safety
/// The stream is null or as the program's calls left it; one thread at a time uses it.
unsafe fn open<'a>(stream: *const z_stream) -> Option<(&'a mut z_stream, &'a mut Handle)> {
    let stream = stream.cast_mut();
    // SAFETY: the caller's promise.
    let open = unsafe { stream.as_mut() }?;
    // SAFETY: whoever set it, it is null or the state of some kind of stream, all of which are
    // longer than the mark.
    let handle = unsafe { open.state.cast::<Handle>().as_mut() }?;
    (handle.magic == MAGIC && handle.owner == stream).then_some((open, handle))
}

/// Runs `work` on a stream; `otherwise` where there is none.
///
/// # Safety
/// As [`open`].
unsafe fn with<R: Copy>(
    stream: *const z_stream,
    otherwise: R,
    work: impl FnOnce(&mut z_stream, &mut Handle) -> R,
) -> R {
    guard::call(otherwise, || {
        // SAFETY: the caller's promise.
        match unsafe { open(stream) } {
            Some((stream, handle)) => work(stream, handle),
            None => otherwise,
        }
    })
}

/// Runs `work` on the base library's stream, which has it from here on.
///
/// # Safety
/// As [`open`].
unsafe fn with_base(stream: *const z_stream, work: impl FnOnce(&mut z_stream) -> c_int) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        with(stream, Z_STREAM_ERROR, |stream, handle| {
            if handle.stage == Stage::Done {
                return Z_STREAM_ERROR;
            }
            match handle.use_base() {
                Z_OK => {
                    let code = io::with_base(stream, &mut handle.base, work);
                    stream.adler = handle.base.adler;
                    stream.data_type = handle.base.data_type;
                    code
                }
                code => code,
            }
        })
    }
}

/// Begins reading a zlib stream.
///
/// # Safety
/// As zlib's manual says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn inflateInit_(
    stream: z_streamp,
    version: *const c_char,
    stream_bytes: c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { inflateInit2_(stream, 15, version, stream_bytes) }
}

/// Begins reading a stream of any kind.
///
/// # Safety
/// As zlib's manual says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn inflateInit2_(
    stream: z_streamp,
    window_bits: c_int,
    version: *const c_char,
    stream_bytes: c_int,
) -> c_int {
    guard::call(Z_STREAM_ERROR, || {
        // SAFETY: the caller's promise.
        if !unsafe { is_compatible(version, stream_bytes) } {
            return Z_VERSION_ERROR;
        }
        // SAFETY: the caller's promise.
        let Some(open) = (unsafe { stream.as_mut() }) else {
            return Z_STREAM_ERROR;
        };
        let memory = Memory::of(open);
        memory.lend_to(open);
        let mut base = z_stream::default();
        memory.lend_to(&mut base);
        let mut handle = Handle {
            magic: MAGIC,
            owner: stream,
            memory,
            window_bits,
            stage: Stage::Fresh,
            base,
        };
        open.state = ptr::null_mut();
        let begun = handle.begin(open, window_bits);
        if begun != Z_OK {
            return begun;
        }
        let Some(place) = memory.put(handle) else {
            return Z_MEM_ERROR;
        };
        open.state = place.as_ptr().cast();
        Z_OK
    })
}

/// Inflates as much as there is input and room for.
///
/// # Safety
/// As zlib's manual says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn inflate(stream: z_streamp, flush: c_int) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        with(stream, Z_STREAM_ERROR, |stream, handle| {
            if handle.stage == Stage::Fresh
                && !matches!(flush, Z_BLOCK | Z_TREES)
                && handle.inflate_whole(stream, flush)
            {
                return Z_STREAM_END;
            }
            if handle.stage == Stage::Done {
                let fits = !stream.next_out.is_null()
                    && (stream.avail_in == 0 || !stream.next_in.is_null());
                return if fits { Z_STREAM_END } else { Z_STREAM_ERROR };
            }
            let code = handle.use_base();
            if code != Z_OK {
                return code;
            }
            let code = io::with_base(stream, &mut handle.base, |base| base::inflate(base, flush));
            stream.adler = handle.base.adler;
            stream.data_type = handle.base.data_type;
            code
        })
    }
}

/// Ends a stream.
///
/// # Safety
/// As zlib's manual says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn inflateEnd(stream: z_streamp) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        with(stream, Z_STREAM_ERROR, |stream, handle| {
            if !handle.base.state.is_null() {
                base::inflateEnd(&mut handle.base);
            }
            handle.magic = 0;
            let memory = handle.memory;
            if let Some(place) = NonNull::new(stream.state.cast::<Handle>()) {
                memory.take(place);
            }
            stream.state = ptr::null_mut();
            Z_OK
        })
    }
}

/// Begins anew with the same window.
///
/// # Safety
/// As zlib's manual says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn inflateReset(stream: z_streamp) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        with(stream, Z_STREAM_ERROR, |stream, handle| {
            handle.begin(stream, handle.window_bits)
        })
    }
}

/// Begins anew with another window or wrapper.
///
/// # Safety
/// As zlib's manual says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn inflateReset2(stream: z_streamp, window_bits: c_int) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        with(stream, Z_STREAM_ERROR, |stream, handle| {
            handle.begin(stream, window_bits)
        })
    }
}

/// Begins anew and keeps the window.
///
/// # Safety
/// As zlib's manual says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn inflateResetKeep(stream: z_streamp) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        with(stream, Z_STREAM_ERROR, |stream, handle| {
            if handle.stage != Stage::Base {
                return handle.begin(stream, handle.window_bits);
            }
            (stream.total_in, stream.total_out) = (0, 0);
            let code = base::inflateResetKeep(&mut handle.base);
            stream.adler = handle.base.adler;
            stream.msg = ptr::null_mut();
            code
        })
    }
}

/// Copies a stream in the middle.
///
/// # Safety
/// As zlib's manual says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn inflateCopy(target: z_streamp, source: z_streamp) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        with(source, Z_STREAM_ERROR, |source, handle| {
            let Some(open) = target.as_mut() else {
                return Z_STREAM_ERROR;
            };
            let mut copy = Handle {
                owner: target,
                base: z_stream::default(),
                ..*handle
            };
            handle.memory.lend_to(&mut copy.base);
            if !handle.base.state.is_null() {
                let code = base::inflateCopy(&mut copy.base, &handle.base);
                if code != Z_OK {
                    return code;
                }
            }
            let memory = handle.memory;
            let mut base = copy.base;
            let Some(place) = memory.put(copy) else {
                if !base.state.is_null() {
                    base::inflateEnd(&mut base);
                }
                return Z_MEM_ERROR;
            };
            ptr::copy_nonoverlapping(source, open, 1);
            open.state = place.as_ptr().cast();
            Z_OK
        })
    }
}

/// Sets the dictionary that the stream was deflated with.
///
/// # Safety
/// As zlib's manual says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn inflateSetDictionary(
    stream: z_streamp,
    dictionary: *const c_uchar,
    bytes: c_uint,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        with_base(stream, |base| {
            base::inflateSetDictionary(base, dictionary, bytes)
        })
    }
}

/// The dictionary that the next bytes may refer to. Of a stream that was inflated in one call, and
/// has ended, it is empty.
///
/// # Safety
/// As zlib's manual says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn inflateGetDictionary(
    stream: *const z_stream,
    dictionary: *mut c_uchar,
    bytes: *mut c_uint,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        with(stream, Z_STREAM_ERROR, |_, handle| match handle.stage {
            Stage::Base => base::inflateGetDictionary(&handle.base, dictionary, bytes),
            Stage::Fresh | Stage::Done => {
                if let Some(bytes) = bytes.as_mut() {
                    *bytes = 0;
                }
                Z_OK
            }
        })
    }
}

/// Asks for the fields of a gzip header.
///
/// # Safety
/// As zlib's manual says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn inflateGetHeader(stream: z_streamp, header: gz_headerp) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { with_base(stream, |base| base::inflateGetHeader(base, header)) }
}

/// Reads bits before what comes next.
///
/// # Safety
/// As zlib's manual says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn inflatePrime(stream: z_streamp, bits: c_int, value: c_int) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { with_base(stream, |base| base::inflatePrime(base, bits, value)) }
}

/// Skips input until a full flush is found.
///
/// # Safety
/// As zlib's manual says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn inflateSync(stream: z_streamp) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { with_base(stream, |base| base::inflateSync(base)) }
}

/// True where the stream is behind the header of an empty stored block.
///
/// # Safety
/// As zlib's manual says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn inflateSyncPoint(stream: z_streamp) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        with(stream, Z_STREAM_ERROR, |_, handle| match handle.stage {
            Stage::Base => base::inflateSyncPoint(&mut handle.base),
            Stage::Fresh | Stage::Done => 0,
        })
    }
}

/// The place in the stream, for those who keep an index of it.
///
/// # Safety
/// As zlib's manual says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn inflateMark(stream: *const z_stream) -> c_long {
    // SAFETY: the caller's promise.
    unsafe {
        with(stream, NO_MARK, |_, handle| match handle.stage {
            Stage::Base => base::inflateMark(&handle.base),
            Stage::Fresh | Stage::Done => NO_MARK,
        })
    }
}

/// Lets invalid distances pass, where the library was made for that.
///
/// # Safety
/// As zlib's manual says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn inflateUndermine(stream: z_streamp, subvert: c_int) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { with_base(stream, |base| base::inflateUndermine(base, subvert)) }
}

/// Switches the comparison of checksums on or off.
///
/// # Safety
/// As zlib's manual says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn inflateValidate(stream: z_streamp, check: c_int) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { with_base(stream, |base| base::inflateValidate(base, check)) }
}

/// Codes that the tables in use take.
///
/// # Safety
/// As zlib's manual says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn inflateCodesUsed(stream: z_streamp) -> c_ulong {
    // SAFETY: the caller's promise.
    unsafe {
        with(stream, c_ulong::MAX, |_, handle| match handle.stage {
            Stage::Base => base::inflateCodesUsed(&mut handle.base),
            Stage::Fresh | Stage::Done => 0,
        })
    }
}

/// Not known: between blocks.
const NO_MARK: c_long = -(1 << 16);
/// Marks a stream that inflates; chosen at random.
const MAGIC: u64 = 0x92e4_0d7b_51fa_c638;

const _: () = assert!(align_of::<Handle>() <= 16, "malloc aligns so");

//! zlib's deflating functions. `state` does the work; here programs' arguments are checked.
//!
//! Must stay true: a stream that is null, not begun, ended, of the other direction or copied byte
//! by byte is refused, as zlib does.

mod header;
mod makers;
mod parameters;
mod state;

use crate::engines;
use crate::engines::{Use, settings};
use crate::forward::is_compatible;
use crate::guard;
use crate::io;
use crate::memory::Memory;
use libc::{c_char, c_int, c_uchar, c_uint, c_ulong};
use libz_rs_sys as base;
use libz_rs_sys::*;
use parameters::Parameters;
use sidecore_bare::width::ToUsize;
use state::{Maker, State, refuse};
use std::ptr::NonNull;

/// A stream's `state` while it deflates; the mark comes first in every kind.
#[repr(C)]
struct Handle {
    magic: u64,
    state: State,
}

/// The stream and its state, for the time of a call.
///
/// # Safety
/// The stream is null or as the program's calls left it; one thread at a time uses it.
unsafe fn open<'a>(stream: z_streamp) -> Option<(&'a mut z_stream, &'a mut State)> {
    // SAFETY: the caller's promise.
    let open = unsafe { stream.as_mut() }?;
    // SAFETY: it is null or the state of some kind of stream, all of which are longer than the
    // mark.
    let handle = unsafe { open.state.cast::<Handle>().as_mut() }?;
    if handle.magic != MAGIC || handle.state.owner != stream {
        return None;
    }
    Some((open, &mut handle.state))
}

/// Runs `work` on a stream; [`Z_STREAM_ERROR`] where there is none.
///
/// # Safety
/// As [`open`].
unsafe fn with(stream: z_streamp, work: impl FnOnce(&mut z_stream, &mut State) -> c_int) -> c_int {
    guard::call(Z_STREAM_ERROR, || {
        // SAFETY: the caller's promise.
        match unsafe { open(stream) } {
            Some((stream, state)) => work(stream, state),
            None => Z_STREAM_ERROR,
        }
    })
}

/// Begins a zlib stream.
///
/// # Safety
/// As zlib's manual says.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn deflateInit_(
    stream: z_streamp,
    level: c_int,
    version: *const c_char,
    stream_bytes: c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        deflateInit2_(
            stream,
            level,
            Z_DEFLATED,
            15,
            8,
            Z_DEFAULT_STRATEGY,
            version,
            stream_bytes,
        )
    }
}

/// Begins a stream of any kind.
///
/// # Safety
/// As zlib's manual says.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn deflateInit2_(
    stream: z_streamp,
    level: c_int,
    method: c_int,
    window_bits: c_int,
    memory_level: c_int,
    strategy: c_int,
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
        open.msg = std::ptr::null_mut();
        let checked = Parameters::checked(level, method, window_bits, memory_level, strategy);
        let Some(parameters) = checked else {
            return Z_STREAM_ERROR;
        };
        let memory = Memory::of(open);
        memory.show_in(open);
        let handle = Handle {
            magic: MAGIC,
            state: State::new(stream, memory, parameters),
        };
        // Before anything can fail: a refused stream must not look like an open one.
        open.state = std::ptr::null_mut();
        let Some(place) = memory.put(handle) else {
            return Z_MEM_ERROR;
        };
        open.state = place.as_ptr().cast();
        // SAFETY: it was put there just now.
        let state = unsafe { &mut (*place.as_ptr()).state };
        let mut begun = state.begin(open, uses_blocks());
        if begun == Z_OK && state.maker == Maker::Blocks {
            engines::prepare(state.parameters.level as u8);
            begun = state.make_first_room().err().unwrap_or(Z_OK);
        }
        if begun != Z_OK {
            // SAFETY: as above; the stream forgets it.
            drop(unsafe { memory.take(place) });
            open.state = std::ptr::null_mut();
            refuse(open, begun);
        }
        begun
    })
}

fn uses_blocks() -> bool {
    settings().used != Use::Off
}

/// Deflates as much as there is input and room for.
///
/// # Safety
/// As zlib's manual says.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn deflate(stream: z_streamp, flush: c_int) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        with(stream, |stream, state| {
            if !(Z_NO_FLUSH..=Z_BLOCK).contains(&flush) {
                return Z_STREAM_ERROR;
            }
            state.deflate(stream, flush)
        })
    }
}

/// Ends a stream; [`Z_DATA_ERROR`] if it was not finished.
///
/// # Safety
/// As zlib's manual says.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn deflateEnd(stream: z_streamp) -> c_int {
    // SAFETY: the caller's promise.
    let result = unsafe {
        with(
            stream,
            |_, state| if state.is_ended() { Z_OK } else { Z_DATA_ERROR },
        )
    };
    // SAFETY: the caller's promise.
    unsafe { release(stream) };
    result
}

/// Gives a stream's state back, if it has one of ours.
///
/// # Safety
/// As [`open`].
unsafe fn release(stream: z_streamp) {
    // SAFETY: the caller's promise.
    if let Some((open, state)) = unsafe { open(stream) } {
        let memory = state.memory;
        // Its lender is the memory of the state, which is moved out of its place.
        state.end_base();
        if let Some(place) = NonNull::new(open.state.cast::<Handle>()) {
            // SAFETY: it was put there by these functions; the stream forgets it.
            let mut handle = unsafe { memory.take(place) };
            handle.magic = 0;
        }
        open.state = std::ptr::null_mut();
    }
}

/// Begins anew with the same parameters.
///
/// # Safety
/// As zlib's manual says.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn deflateReset(stream: z_streamp) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { with(stream, |stream, state| state.begin(stream, uses_blocks())) }
}

/// The same. Keeping zlib's hash table changes no output that may be relied on.
///
/// # Safety
/// As zlib's manual says.
pub unsafe extern "C-unwind" fn deflateResetKeep(stream: z_streamp) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { deflateReset(stream) }
}

/// Copies a stream in the middle.
///
/// # Safety
/// As zlib's manual says.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn deflateCopy(target: z_streamp, source: z_streamp) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        with(source, |source, state| {
            let Some(open) = target.as_mut() else {
                return Z_STREAM_ERROR;
            };
            let copy = match state.duplicate(target) {
                Ok(copy) => copy,
                Err(code) => return code,
            };
            // The source's, as zlib does: both streams have the same allocator.
            let memory = state.memory;
            std::ptr::copy_nonoverlapping(source, open, 1);
            let handle = Handle {
                magic: MAGIC,
                state: copy,
            };
            let Some(place) = memory.put(handle) else {
                open.state = std::ptr::null_mut();
                return Z_MEM_ERROR;
            };
            open.state = place.as_ptr().cast();
            (*place.as_ptr()).state.keep_lender();
            Z_OK
        })
    }
}

/// Changes level and strategy from the next input on.
///
/// # Safety
/// As zlib's manual says.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn deflateParams(
    stream: z_streamp,
    level: c_int,
    strategy: c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        with(stream, |stream, state| {
            let (Some(level), Some(strategy)) =
                (Parameters::level(level), Parameters::strategy(strategy))
            else {
                return Z_STREAM_ERROR;
            };
            let parameters = Parameters {
                level,
                strategy,
                ..state.parameters
            };
            if !state.parameters.goes_on_as(&parameters) && state.last_flush != -2 {
                // Input so far is made with the old parameters.
                let code = state.close_block(stream);
                if code != Z_OK {
                    return code;
                }
            }
            // Before the first block, the base library gets the parameters when it starts.
            state.parameters = parameters;
            if parameters.suit_blocks() {
                // Also where the base library goes on: blocks may begin at a reset.
                if uses_blocks() {
                    engines::prepare_level(parameters.level as u8);
                }
                return Z_OK;
            }
            state.switch_to_base().err().unwrap_or(Z_OK)
        })
    }
}

/// Sets a dictionary.
///
/// # Safety
/// As zlib's manual says.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn deflateSetDictionary(
    stream: z_streamp,
    dictionary: *const c_uchar,
    bytes: c_uint,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        with(stream, |stream, state| {
            if dictionary.is_null() {
                return Z_STREAM_ERROR;
            }
            let dictionary = std::slice::from_raw_parts(dictionary, bytes.to_usize());
            state.set_dictionary(stream, dictionary)
        })
    }
}

/// The dictionary that the next bytes may refer to.
///
/// # Safety
/// As zlib's manual says.
pub unsafe extern "C-unwind" fn deflateGetDictionary(
    stream: z_streamp,
    dictionary: *mut c_uchar,
    bytes: *mut c_uint,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        with(stream, |_, state| {
            if state.maker != Maker::Blocks && state.unfed_bytes() == 0 {
                return base::deflateGetDictionary(&state.base, dictionary, bytes);
            }
            let (old, new) = state.dictionary();
            if !dictionary.is_null() {
                std::ptr::copy_nonoverlapping(old.as_ptr(), dictionary, old.len());
                std::ptr::copy_nonoverlapping(new.as_ptr(), dictionary.add(old.len()), new.len());
            }
            if let Some(bytes) = bytes.as_mut() {
                *bytes = io::available(old.len() + new.len());
            }
            Z_OK
        })
    }
}

/// Sets the fields of a gzip header.
///
/// # Safety
/// As zlib's manual says: they stay where they are until the header is written.
pub unsafe extern "C-unwind" fn deflateSetHeader(stream: z_streamp, header: gz_headerp) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        with(stream, |_, state| {
            if !state.takes_header() {
                return Z_STREAM_ERROR;
            }
            state.given_header = header;
            Z_OK
        })
    }
}

/// Output that waits for room, in bytes and bits.
///
/// # Safety
/// As zlib's manual says.
pub unsafe extern "C-unwind" fn deflatePending(
    stream: z_streamp,
    pending: *mut c_uint,
    bits: *mut c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        with(stream, |_, state| {
            let (base_bytes, base_bits) = state.base_pending();
            if let Some(pending) = pending.as_mut() {
                let bytes = base_bytes + state.pending_bytes();
                *pending = c_uint::try_from(bytes).unwrap_or(c_uint::MAX);
            }
            if let Some(bits) = bits.as_mut() {
                *bits = base_bits;
            }
            Z_OK
        })
    }
}

/// Bits of the last byte that were used; for streams that the base library makes.
///
/// # Safety
/// As zlib's manual says.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn deflateUsed(stream: z_streamp, bits: *mut c_int) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        with(stream, |_, state| {
            if state.maker != Maker::Blocks {
                return base::deflateUsed(&mut state.base, bits);
            }
            if let Some(bits) = bits.as_mut() {
                // Blocks end at a whole byte.
                *bits = 8;
            }
            Z_OK
        })
    }
}

/// Writes bits before the next output.
///
/// # Safety
/// As zlib's manual says.
pub unsafe extern "C-unwind" fn deflatePrime(
    stream: z_streamp,
    bits: c_int,
    value: c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        with(stream, |_, state| {
            // zlib refuses bits that would not fit.
            if !(0..=16).contains(&bits) || state.base_pending().0 > PRIMED_BYTES_MAX {
                return Z_BUF_ERROR;
            }
            // Blocks here begin at whole bytes; only the base library has bits in between.
            if let Err(code) = state.switch_to_base() {
                return code;
            }
            base::deflatePrime(&mut state.base, bits, value)
        })
    }
}

/// Sets how hard the base library looks for matches, which makes the stream from then on.
///
/// # Safety
/// As zlib's manual says.
pub unsafe extern "C-unwind" fn deflateTune(
    stream: z_streamp,
    good: c_int,
    lazy: c_int,
    nice: c_int,
    chain: c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        with(stream, |_, state| {
            if let Err(code) = state.switch_to_base() {
                return code;
            }
            base::deflateTune(&mut state.base, good, lazy, nice, chain)
        })
    }
}

/// The most bytes that `raw_bytes` become, in one call that finishes.
///
/// # Safety
/// As zlib's manual says.
pub unsafe extern "C-unwind" fn deflateBound(stream: z_streamp, raw_bytes: c_ulong) -> c_ulong {
    guard::call(c_ulong::MAX, || {
        // SAFETY: the caller's promise.
        let open = unsafe { open(stream) };
        let Some((_, state)) = open else {
            // SAFETY: null, with which the base library gives a bound for any stream.
            let bound = unsafe { base::deflateBound(std::ptr::null_mut(), raw_bytes) };
            return bound.max(zlib_bound(raw_bytes) + HEADER_BYTES_MAX);
        };
        // SAFETY: null, with which the base library gives a bound for any stream.
        let bound = unsafe { base::deflateBound(std::ptr::null_mut(), raw_bytes) };
        // SAFETY: the argument of `deflateSetHeader` is there until the header is written.
        let wrapped = unsafe { header::bytes(&state.parameters, state.given_header.as_ref()) };
        // More than zlib counts: a bound may be called late, with input taken but not yet made.
        let waiting = state.pending_bytes() + state.base_pending().0 + state.unfed_bytes();
        bound
            .max(zlib_bound(raw_bytes))
            .saturating_add((wrapped + waiting) as c_ulong)
    })
}

/// zlib's own bound, without header and trailer. Blocks of ours keep it: stored they take 5 bytes
/// for 64 KiB, and none becomes longer than that.
pub(crate) fn zlib_bound(raw_bytes: c_ulong) -> c_ulong {
    let more = (raw_bytes >> 12) + (raw_bytes >> 14) + (raw_bytes >> 25) + 7;
    raw_bytes.saturating_add(more)
}

/// Room for a header and a trailer of any kind that no stream says.
const HEADER_BYTES_MAX: c_ulong = 18;
/// Bytes that `deflatePrime` may put before the next output: the base library's room with the
/// smallest `memLevel` is more.
const PRIMED_BYTES_MAX: usize = 100;
/// Marks a stream that deflates; chosen at random.
const MAGIC: u64 = 0x6f31_c5d8_2a97_e40b;

const _: () = assert!(align_of::<Handle>() <= 16, "malloc aligns so");

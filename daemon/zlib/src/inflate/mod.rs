//! zlib's inflating functions: a whole stream at once by libdeflate (`whole`), all else step by
//! step.
//!
//! Top-down: here programs' arguments are checked; `machine` has the state and its steps: `header`
//! reads gzip's header, `blocks` a block's beginning, `codes` and `fast` its symbols, with tables
//! that `tables` builds and the history in `window`. `back` goes the same steps with input and
//! output by the program's functions.
//! Must stay true: code, positions, counts, checksum and message of every call are zlib's.

mod back;
mod blocks;
mod codes;
mod fast;
mod header;
mod machine;
mod run;
mod tables;
mod whole;

use crate::engines::{Use, settings};
use crate::forward::is_compatible;
use crate::guard;
use crate::io;
use crate::memory::Memory;
pub use back::{inflateBack, inflateBackEnd, inflateBackInit_};
use libc::{c_char, c_int, c_long, c_uchar, c_uint, c_ulong};
use libz_rs_sys::*;
use machine::{Machine, Mode};
use sidecore_bare::width::ToUsize;
use std::ptr::{self, NonNull};
pub(crate) use whole::{Kind, inflate_at_once};

/// Target of a stream's `state` while it inflates; the mark comes first in every kind.
#[repr(C)]
struct Handle {
    magic: u64,
    owner: *mut z_stream,
    memory: Memory,
    machine: Machine,
}

impl Handle {
    /// Inflates the stream if nothing of it was read, and all of it is there, with room for it.
    ///
    /// # Safety
    /// The stream's buffers are as its fields say.
    unsafe fn inflate_whole(&mut self, stream: &mut z_stream, flush: c_int) -> Option<c_int> {
        let machine = &mut self.machine;
        // A program that asks for blocks' ends wants to see each of them.
        if !machine.is_fresh() || matches!(flush, Z_BLOCK | Z_TREES) {
            return None;
        }
        // SAFETY: the caller's promise.
        let input = unsafe { io::input(stream) };
        let kind = Kind::of(machine.wrap, machine.window_bits, input)?;
        let room = stream.avail_out.to_usize();
        // Where it does not fit, or more is to come, the attempt is lost work: the whole stream is
        // inflated once more. A buffer that was filled is seldom the whole stream.
        let is_filled = input.len().is_multiple_of(FILLED_BYTES);
        let is_likely = flush == Z_FINISH || (room >= input.len() && !is_filled);
        if !is_likely || room == 0 || settings().used == Use::Off {
            return None;
        }
        // SAFETY: the caller's promise; the two do not overlap.
        let inflated = unsafe { inflate_at_once(kind, input, stream.next_out, room) };
        let (consumed, written) = inflated.ok()?;
        // SAFETY: written just now.
        let out = unsafe { std::slice::from_raw_parts(stream.next_out, written) };
        let check = match kind {
            Kind::Gzip => whole::crc32(out),
            Kind::Zlib => {
                let trailer = input[..consumed].last_chunk::<4>();
                u32::from_be_bytes(trailer.copied().unwrap_or_default())
            }
        };
        // 0 asks for the header's own, which the stepwise way would have read.
        if machine.window_bits == 0 {
            machine.window_bits = kind.window_bits(input);
        }
        // Whose checksum was compared has ended, and keeps no window: as zlib.
        machine.set_done(kind == Kind::Gzip, check, written);
        io::consume(stream, consumed);
        io::produced(stream, written);
        stream.adler = check.into();
        // The last block's end, with no bits left: what zlib says there.
        stream.data_type = 64;
        Some(Z_STREAM_END)
    }
}

/// # Safety
/// The stream is null or as the program's calls left it; one thread at a time uses it.
unsafe fn open<'a>(stream: *const z_stream) -> Option<(&'a mut z_stream, &'a mut Handle)> {
    let stream = stream.cast_mut();
    // SAFETY: the caller's promise.
    let open = unsafe { stream.as_mut() }?;
    // SAFETY: it is null or the state of some kind of stream, all of which are longer than the
    // mark.
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
    work: impl FnOnce(&mut z_stream, &mut Machine) -> R,
) -> R {
    guard::call(otherwise, || {
        // SAFETY: the caller's promise.
        match unsafe { open(stream) } {
            Some((stream, handle)) => work(stream, &mut handle.machine),
            None => otherwise,
        }
    })
}

/// Begins reading a zlib stream.
///
/// # Safety
/// As zlib's manual says.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn inflateInit_(
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
pub unsafe extern "C-unwind" fn inflateInit2_(
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
        open.msg = ptr::null_mut();
        let memory = Memory::of(open);
        memory.show_in(open);
        let place = memory.put_with(|| Handle {
            magic: MAGIC,
            owner: stream,
            memory,
            machine: Machine::new(memory),
        });
        let Some(place) = place else {
            return Z_MEM_ERROR;
        };
        open.state = place.as_ptr().cast();
        // SAFETY: it was put there just now.
        let machine = unsafe { &mut (*place.as_ptr()).machine };
        if machine.reset_to(open, window_bits) {
            if settings().used != Use::Off {
                whole::prepare();
            }
            return Z_OK;
        }
        open.state = ptr::null_mut();
        // SAFETY: as above; the stream has forgotten it.
        unsafe { memory.discard(place) };
        Z_STREAM_ERROR
    })
}

/// Inflates as much as there is input and room for.
///
/// # Safety
/// As zlib's manual says.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn inflate(stream: z_streamp, flush: c_int) -> c_int {
    guard::call(Z_STREAM_ERROR, || {
        // SAFETY: the caller's promise.
        let Some((stream, handle)) = (unsafe { open(stream) }) else {
            return Z_STREAM_ERROR;
        };
        if stream.next_out.is_null() || (stream.next_in.is_null() && stream.avail_in != 0) {
            return Z_STREAM_ERROR;
        }
        // SAFETY: the caller's promise.
        unsafe {
            match handle.inflate_whole(stream, flush) {
                Some(code) => code,
                None => run::run(&mut handle.machine, stream, flush),
            }
        }
    })
}

/// Ends a stream.
///
/// # Safety
/// As zlib's manual says.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn inflateEnd(stream: z_streamp) -> c_int {
    guard::call(Z_STREAM_ERROR, || {
        // SAFETY: the caller's promise.
        let Some((stream, handle)) = (unsafe { open(stream) }) else {
            return Z_STREAM_ERROR;
        };
        // A second end of it is refused for as long as the memory is not used again.
        handle.magic = 0;
        // Before the state, as allocators that work like a stack may expect.
        handle.machine.window.bytes.give_back();
        let memory = handle.memory;
        if let Some(place) = NonNull::new(stream.state.cast::<Handle>()) {
            // SAFETY: it was put there by these functions; the stream forgets it.
            unsafe { memory.discard(place) };
        }
        stream.state = ptr::null_mut();
        Z_OK
    })
}

/// Begins anew with the same window.
///
/// # Safety
/// As zlib's manual says.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn inflateReset(stream: z_streamp) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        with(stream, Z_STREAM_ERROR, |stream, machine| {
            machine.reset(stream);
            Z_OK
        })
    }
}

/// Begins anew with another window or wrapper.
///
/// # Safety
/// As zlib's manual says.
pub unsafe extern "C-unwind" fn inflateReset2(stream: z_streamp, window_bits: c_int) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        with(stream, Z_STREAM_ERROR, |stream, machine| {
            if machine.reset_to(stream, window_bits) {
                Z_OK
            } else {
                Z_STREAM_ERROR
            }
        })
    }
}

/// Begins anew and keeps the window.
///
/// # Safety
/// As zlib's manual says.
pub unsafe extern "C-unwind" fn inflateResetKeep(stream: z_streamp) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        with(stream, Z_STREAM_ERROR, |stream, machine| {
            machine.reset_keep(stream);
            Z_OK
        })
    }
}

/// Copies a stream in the middle.
///
/// # Safety
/// As zlib's manual says.
pub unsafe extern "C-unwind" fn inflateCopy(target: z_streamp, source: z_streamp) -> c_int {
    guard::call(Z_STREAM_ERROR, || {
        // SAFETY: the caller's promise.
        let (opened, target_open) = unsafe { (open(source), target.as_mut()) };
        let (Some((source, handle)), Some(open)) = (opened, target_open) else {
            return Z_STREAM_ERROR;
        };
        let memory = handle.memory;
        let Some(machine) = handle.machine.duplicate() else {
            return Z_MEM_ERROR;
        };
        let Some(place) = memory.put(Handle {
            magic: MAGIC,
            owner: target,
            memory,
            machine,
        }) else {
            return Z_MEM_ERROR;
        };
        // The whole structure, so that the program's own fields go along as in zlib.
        *open = *source;
        open.state = place.as_ptr().cast();
        Z_OK
    })
}

/// Sets the dictionary that the stream was deflated with.
///
/// # Safety
/// As zlib's manual says.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn inflateSetDictionary(
    stream: z_streamp,
    dictionary: *const c_uchar,
    bytes: c_uint,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        with(stream, Z_STREAM_ERROR, |_, machine| {
            let dictionary = if dictionary.is_null() || bytes == 0 {
                &[]
            } else {
                std::slice::from_raw_parts(dictionary, bytes.to_usize())
            };
            machine.set_dictionary(dictionary)
        })
    }
}

/// The dictionary that the next bytes may refer to.
///
/// # Safety
/// As zlib's manual says.
pub unsafe extern "C-unwind" fn inflateGetDictionary(
    stream: *const z_stream,
    dictionary: *mut c_uchar,
    bytes: *mut c_uint,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        with(stream, Z_STREAM_ERROR, |_, machine| {
            let (old, new) = machine.window.contents();
            if !dictionary.is_null() {
                ptr::copy_nonoverlapping(old.as_ptr(), dictionary, old.len());
                ptr::copy_nonoverlapping(new.as_ptr(), dictionary.add(old.len()), new.len());
            }
            if let Some(bytes) = bytes.as_mut() {
                *bytes = io::available(old.len() + new.len());
            }
            Z_OK
        })
    }
}

/// Asks for the fields of a gzip header.
///
/// # Safety
/// As zlib's manual says: they stay where they are until the header was read.
pub unsafe extern "C-unwind" fn inflateGetHeader(stream: z_streamp, header: gz_headerp) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        with(stream, Z_STREAM_ERROR, |_, machine| {
            if machine.wrap & 2 == 0 {
                return Z_STREAM_ERROR;
            }
            machine.head = header;
            // Until the header was read; programs poll it between two calls.
            if let Some(header) = header.as_mut() {
                header.done = 0;
            }
            Z_OK
        })
    }
}

/// Reads bits before the next input.
///
/// # Safety
/// As zlib's manual says.
pub unsafe extern "C-unwind" fn inflatePrime(
    stream: z_streamp,
    bits: c_int,
    value: c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        with(stream, Z_STREAM_ERROR, |_, machine| {
            machine.prime(bits, value)
        })
    }
}

/// Skips input until a full flush is found.
///
/// # Safety
/// As zlib's manual says.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn inflateSync(stream: z_streamp) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        with(stream, Z_STREAM_ERROR, |stream, machine| {
            machine.sync(stream)
        })
    }
}

/// True where the stream is behind the header of an empty stored block.
///
/// # Safety
/// As zlib's manual says.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn inflateSyncPoint(stream: z_streamp) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        with(stream, Z_STREAM_ERROR, |_, machine| {
            c_int::from(machine.mode == Mode::Stored && machine.bits == 0)
        })
    }
}

/// The place in the stream, for programs that keep an index of it.
///
/// # Safety
/// As zlib's manual says.
pub unsafe extern "C-unwind" fn inflateMark(stream: *const z_stream) -> c_long {
    // SAFETY: the caller's promise.
    unsafe { with(stream, NO_MARK, |_, machine| machine.mark()) }
}

/// Lets invalid distances pass where the library was made for that, which this one was not.
///
/// # Safety
/// As zlib's manual says.
pub unsafe extern "C-unwind" fn inflateUndermine(stream: z_streamp, _subvert: c_int) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { with(stream, Z_STREAM_ERROR, |_, _| Z_DATA_ERROR) }
}

/// Switches the comparison of checksums on or off.
///
/// # Safety
/// As zlib's manual says.
pub unsafe extern "C-unwind" fn inflateValidate(stream: z_streamp, check: c_int) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        with(stream, Z_STREAM_ERROR, |_, machine| {
            if check != 0 && machine.wrap != 0 {
                machine.wrap |= 4;
            } else {
                machine.wrap &= !4;
            }
            Z_OK
        })
    }
}

/// Entries of the tables in use, which are larger than zlib's.
///
/// # Safety
/// As zlib's manual says.
pub unsafe extern "C-unwind" fn inflateCodesUsed(stream: z_streamp) -> c_ulong {
    // SAFETY: the caller's promise.
    unsafe {
        with(stream, c_ulong::MAX, |_, machine| {
            let (literals, distances) = machine.tables();
            match machine.codes.literal_bits {
                0 => 0,
                _ => (literals.len() + distances.len()) as c_ulong,
            }
        })
    }
}

/// Buffers of programs have a multiple of these bytes.
const FILLED_BYTES: usize = 512;
/// Not known: between blocks.
const NO_MARK: c_long = -(1 << 16);
/// Marks a stream that inflates; chosen at random.
const MAGIC: u64 = 0x92e4_0d7b_51fa_c638;

const _: () = assert!(align_of::<Handle>() <= 16, "malloc aligns so");

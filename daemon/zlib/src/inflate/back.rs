//! `inflateBack`: a raw stream whose input and output go through functions of the program, a window
//! at a time.
//!
//! Why here: input is requested only when a bit is missing, and output handed over when there is no
//! room for a byte. Programs depend on the resulting position of their input.
//! Must stay true: the program's window is only written to; data for later matches is kept in one
//! of ours. Source: zlib 1.3, `infback.c`.

use super::machine::{Leave, Machine, Mode};
use super::run::Run;
use crate::foreign;
use crate::forward::is_compatible;
use crate::guard;
use crate::io::available;
use crate::memory::{Bytes, Memory};
use libc::{c_char, c_int, c_uchar, c_uint, c_void};
use libz_rs_sys::*;
use sidecore_bare::width::ToUsize;
use std::ptr::{self, NonNull};

/// Target of the stream's `state`; the mark comes first in every kind.
#[repr(C)]
struct Handle {
    magic: u64,
    memory: Memory,
    machine: Machine,
    window: *mut c_uchar,
}

/// # Safety
/// The stream is null or as the program's calls left it; one thread at a time uses it.
unsafe fn open<'a>(stream: z_streamp) -> Option<(&'a mut z_stream, &'a mut Handle)> {
    // SAFETY: the caller's promise.
    let open = unsafe { stream.as_mut() }?;
    // SAFETY: it is null or the state of some kind of stream, all of which are longer than the
    // mark.
    let handle = unsafe { open.state.cast::<Handle>().as_mut() }?;
    (handle.magic == MAGIC).then_some((open, handle))
}

/// Begins reading raw streams with the program's window.
///
/// # Safety
/// As zlib's manual says.
pub unsafe extern "C-unwind" fn inflateBackInit_(
    stream: z_streamp,
    window_bits: c_int,
    window: *mut c_uchar,
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
        if window.is_null() || !(8..=15).contains(&window_bits) {
            return Z_STREAM_ERROR;
        }
        open.msg = ptr::null_mut();
        let memory = Memory::of(open);
        memory.show_in(open);
        let mut machine = Machine::new(memory);
        machine.window_bits = window_bits.cast_unsigned();
        machine.window.bytes = Bytes::never_short(memory);
        machine.window.distance_max = 1 << window_bits;
        let handle = Handle {
            magic: MAGIC,
            memory,
            machine,
            window,
        };
        let Some(place) = memory.put(handle) else {
            return Z_MEM_ERROR;
        };
        open.state = place.as_ptr().cast();
        Z_OK
    })
}

/// Inflates one stream.
///
/// # Safety
/// As zlib's manual says.
pub unsafe extern "C-unwind" fn inflateBack(
    stream: z_streamp,
    input: Option<in_func>,
    input_with: *mut c_void,
    output: Option<out_func>,
    output_with: *mut c_void,
) -> c_int {
    guard::call(Z_STREAM_ERROR, || {
        // SAFETY: the caller's promise.
        let Some((stream, handle)) = (unsafe { open(stream) }) else {
            return Z_STREAM_ERROR;
        };
        let (Some(input), Some(output)) = (input, output) else {
            return Z_STREAM_ERROR;
        };
        stream.msg = ptr::null_mut();
        let Handle {
            machine, window, ..
        } = handle;
        let window = *window;
        machine.begin_raw();
        let size = 1_usize << machine.window_bits;
        let mut run = Run {
            flush: Z_NO_FLUSH,
            next: stream.next_in,
            have: match stream.next_in.is_null() {
                true => 0,
                false => stream.avail_in.to_usize(),
            },
            put: window,
            left: size,
            room: size,
            machine,
            stream,
        };
        let code = loop {
            // SAFETY: the caller's promise: the input of its functions may be read, and its window
            // written to.
            match unsafe { run.step() } {
                Ok(()) => continue,
                Err(Leave::Counted(Z_OK)) => {}
                Err(Leave::Counted(code) | Leave::AtOnce(code)) => break code,
            }
            // A step pauses for want of room or of input: the mode says of which.
            let is_full = match run.machine.mode {
                Mode::Match | Mode::Literal => true,
                Mode::Copy => run.have > 0,
                _ => false,
            };
            if is_full {
                // SAFETY: all of it was written.
                let whole = unsafe { std::slice::from_raw_parts(window, size) };
                // Matches look into a copy: the window is written over from its beginning.
                if !run.machine.window.put(whole, run.machine.window_bits) {
                    break Z_MEM_ERROR;
                }
                (run.put, run.left) = (window, size);
                // SAFETY: the caller's promise.
                if unsafe { call_output(output, output_with, window, size) } != 0 {
                    break Z_BUF_ERROR;
                }
            } else {
                let mut next = run.next;
                // SAFETY: the caller's promise.
                run.have = unsafe { call_input(input, input_with, &mut next) };
                run.next = next;
                // NULL says that the input ended, and not the output (zlib's manual).
                if run.have == 0 {
                    run.next = ptr::null();
                    break Z_BUF_ERROR;
                }
            }
        };
        let (next, have, made) = (run.next, run.have, size - run.left);
        (stream.next_in, stream.avail_in) = (next, available(have));
        // SAFETY: the caller's promise.
        if made > 0 && unsafe { call_output(output, output_with, window, made) } != 0 {
            return match code {
                Z_STREAM_END => Z_BUF_ERROR,
                code => code,
            };
        }
        code
    })
}

/// More input by the program's function, in bytes; none where it threw.
///
/// # Safety
/// The function's contract holds.
unsafe fn call_input(function: in_func, with: *mut c_void, next: &mut *const c_uchar) -> usize {
    let words = [with as usize, ptr::from_mut(next) as usize, 0];
    // SAFETY: the caller's promise.
    let word = unsafe { foreign::call(function as *const c_void, words) };
    // The upper half of the register is not the function's.
    (word as c_uint).to_usize()
}

/// Output to the program's function; its answer, and a refusal where it threw.
///
/// # Safety
/// The function's contract holds.
unsafe fn call_output(
    function: out_func,
    with: *mut c_void,
    window: *mut c_uchar,
    bytes: usize,
) -> c_int {
    let words = [with as usize, window as usize, bytes];
    // SAFETY: the caller's promise.
    let word = unsafe { foreign::call(function as *const c_void, words) };
    if foreign::is_held() { 1 } else { word as c_int }
}

/// Ends reading.
///
/// # Safety
/// As zlib's manual says.
pub unsafe extern "C-unwind" fn inflateBackEnd(stream: z_streamp) -> c_int {
    guard::call(Z_STREAM_ERROR, || {
        // SAFETY: the caller's promise.
        let Some((stream, handle)) = (unsafe { open(stream) }) else {
            return Z_STREAM_ERROR;
        };
        handle.magic = 0;
        handle.machine.window.bytes.give_back();
        let memory = handle.memory;
        if let Some(place) = NonNull::new(stream.state.cast::<Handle>()) {
            // SAFETY: it was put there by these functions; the stream forgets it.
            drop(unsafe { memory.take(place) });
        }
        stream.state = ptr::null_mut();
        Z_OK
    })
}

/// Marks a stream that asks for its input; chosen at random.
const MAGIC: u64 = 0xd1c8_7733_02be_9a5f;

const _: () = assert!(align_of::<Handle>() <= 16, "malloc aligns so");

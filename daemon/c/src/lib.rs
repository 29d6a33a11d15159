#![doc = include_str!("../README.md")]
//!
//! Top-down: this file has the functions of the header, [`attach`] the error codes, [`memory`]
//! buffers and their memory, [`jobs`] the open jobs.
//!
//! Must stay true: what the header says; each of its layouts is one here, of the same size (the
//! test `layouts_are_the_same_on_both_sides` compiles both). Nothing unwinds into the program. A
//! pointer that is NULL where one is needed makes a call fail, not crash; all else about pointers
//! is the caller's promise, as in C.

#![allow(unsafe_code, reason = "a C surface")]
#![allow(
    clippy::missing_safety_doc,
    reason = "the header says what each function needs"
)]

mod attach;
mod jobs;
mod memory;

use jobs::Open;
use memory::Arena;
pub(crate) use memory::RawBuffer;
use sidecore_bare::width::ToUsize;
use sidecore_daemon::client::{Attachment, ClientError, Request};
use std::ffi::{CStr, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// `struct sidecore`: an attachment, with the state that C does not see.
pub(crate) struct Sidecore {
    attachment: Attachment,
    arena: Arc<Arena>,
    open: Mutex<Open>,
}

/// `struct sidecore_request`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct RawRequest {
    words: [u64; WORDS],
    inputs: [*mut RawBuffer; RANGES],
    outputs: [*mut RawBuffer; RANGES],
    input_count: c_int,
    output_count: c_int,
    reply: [u64; WORDS],
    text: [c_char; TEXT],
}

/// `struct sidecore_options`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct RawOptions {
    size: usize,
    path: *const c_char,
    arena_bytes: u64,
    trusted_uid: i64,
    silence_ms: u32,
}

/// `struct sidecore_job`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct RawJob {
    token: u64,
    kernel: c_int,
    input_count: c_int,
    output_count: c_int,
    words: [u64; WORDS],
    segments: [RawSegment; SEGMENTS],
}

/// `struct sidecore_segment`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct RawSegment {
    buffer: *mut RawBuffer,
    offset: usize,
    bytes: usize,
}

/// `struct sidecore_outcome`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct RawOutcome {
    token: u64,
    status: c_int,
    reply: [u64; WORDS],
    text: [c_char; TEXT],
}

/// See the header, as for all functions below.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sidecore_attach(
    out: *mut *mut Sidecore,
    path: *const c_char,
    arena_bytes: u64,
) -> c_int {
    // SAFETY: the caller's promises are those of that function.
    unsafe { sidecore_attach_trusting(out, path, arena_bytes, -1) }
}

/// See the header.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sidecore_attach_trusting(
    out: *mut *mut Sidecore,
    path: *const c_char,
    arena_bytes: u64,
    trusted_uid: i64,
) -> c_int {
    // Negative: no other user than root and this one.
    let trusted = u32::try_from(trusted_uid).ok();
    // SAFETY: `out` is a place for a pointer, `path` NULL or a string, by the caller's promise.
    unsafe { attach::attach(out, path, arena_bytes, trusted, 0) }
}

/// See the header.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sidecore_attach_with(
    out: *mut *mut Sidecore,
    options: *const RawOptions,
) -> c_int {
    // SAFETY: NULL or options, by the caller's promise; the size is looked at before the rest, so
    // that options of an older and shorter header are refused.
    let size = unsafe { options.as_ref() }.map_or(0, |options| options.size);
    if out.is_null() || size < size_of::<RawOptions>() {
        return -libc::EINVAL;
    }
    // SAFETY: not NULL, and as long as ours.
    let options = unsafe { &*options };
    // Here 0 asks for nothing, as in every field of zeroed options; root is trusted anyway.
    let trusted = u32::try_from(options.trusted_uid)
        .ok()
        .filter(|&uid| uid != 0);
    // SAFETY: as in `sidecore_attach_trusting`.
    unsafe {
        attach::attach(
            out,
            options.path,
            options.arena_bytes,
            trusted,
            options.silence_ms,
        )
    }
}

/// See the header.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn sidecore_attach_text(error: c_int) -> *const c_char {
    attach::text(error)
}

/// See the header.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sidecore_detach(sc: *mut Sidecore) {
    guarded((), || {
        if !sc.is_null() {
            // SAFETY: made by `attach`, given up by the caller, and by one thread.
            drop(unsafe { Box::from_raw(sc) });
        }
    });
}

/// See the header.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sidecore_kernel(sc: *const Sidecore, name: *const c_char) -> c_int {
    guarded(-libc::EIO, || {
        // SAFETY: NULL or an attachment, by the caller's promise.
        let (Some(sc), false) = (unsafe { sc.as_ref() }, name.is_null()) else {
            return -libc::EINVAL;
        };
        // SAFETY: a string that ends, by the caller's promise.
        let name = unsafe { CStr::from_ptr(name) }.to_str();
        let number = name.ok().and_then(|name| sc.attachment.kernel(name));
        number
            .and_then(|number| c_int::try_from(number).ok())
            .unwrap_or(-libc::ENOENT)
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sidecore_engines(sc: *const Sidecore) -> c_int {
    // SAFETY: NULL or an attachment, by the caller's promise.
    unsafe { sc.as_ref() }.map_or(0, |sc| {
        // A daemon has as many as the machine has cores.
        c_int::try_from(sc.attachment.engines()).unwrap_or(c_int::MAX)
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sidecore_alloc(sc: *mut Sidecore, bytes: usize) -> RawBuffer {
    guarded(RawBuffer::NONE, || {
        // SAFETY: NULL or an attachment, by the caller's promise.
        let sc = unsafe { sc.as_ref() };
        sc.and_then(|sc| Arena::take(&sc.arena, &sc.attachment, bytes))
            .unwrap_or(RawBuffer::NONE)
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sidecore_free(buffer: *mut RawBuffer) {
    guarded((), || {
        // SAFETY: NULL or a buffer that no other code uses, by the caller's promise.
        if let Some(buffer) = unsafe { buffer.as_mut() } {
            // SAFETY: made by `sidecore_alloc`, or a copy, or zeros, by the caller's promise.
            unsafe { memory::free(buffer) };
        }
    });
}

/// See the header.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sidecore_call(
    sc: *mut Sidecore,
    kernel: c_int,
    rq: *mut RawRequest,
) -> c_int {
    // SAFETY: NULL or an attachment, by the caller's promise.
    let engine = unsafe { sc.as_ref() }.map_or(0, |sc| sc.attachment.own_engine());
    // SAFETY: the caller's promises are those of that function.
    unsafe { sidecore_call_on(sc, engine as u32, kernel, rq) }
}

/// See the header.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sidecore_call_on(
    sc: *mut Sidecore,
    engine: u32,
    kernel: c_int,
    rq: *mut RawRequest,
) -> c_int {
    guarded(INVALID, || {
        // SAFETY: NULL or what the header says, in no other use, by the caller's promise.
        let (Some(sc), Some(rq)) = (unsafe { sc.as_ref() }, unsafe { rq.as_mut() }) else {
            return INVALID;
        };
        let (mut inputs, mut outputs) = ([(0, 0); RANGES], [(0, 0); RANGES]);
        // SAFETY: the pointers that count are of buffers, by the caller's promise.
        let places = unsafe {
            let inputs = sc.ranges(&rq.inputs, rq.input_count, &mut inputs);
            inputs.zip(sc.ranges(&rq.outputs, rq.output_count, &mut outputs))
        };
        let (Some((inputs, outputs)), Ok(kernel)) = (places, u32::try_from(kernel)) else {
            return INVALID;
        };
        let request = Request {
            kernel,
            words: rq.words,
            inputs,
            outputs,
        };
        let result = sc.attachment.call(engine.to_usize(), &request);
        // Written in any case: a program may look at them before the status.
        rq.reply = result.as_ref().map_or([0; WORDS], |reply| reply.words);
        write_text(&mut rq.text, result.as_ref().err());
        match status(result.as_ref().err()) {
            // SAFETY: the outputs that count are buffers, as above.
            LOST => unsafe { sidecore_rescue(rq) },
            status => status,
        }
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sidecore_rescue(rq: *mut RawRequest) -> c_int {
    guarded(NO_MEMORY, || {
        // SAFETY: NULL or a request, by the caller's promise.
        let Some(rq) = (unsafe { rq.as_ref() }) else {
            return INVALID;
        };
        // A wrong count was refused by the call, which then put nothing anywhere.
        let count = usize::try_from(rq.output_count).map_or(0, |count| count.min(RANGES));
        // SAFETY: the outputs that count are buffers, by the caller's promise.
        match unsafe { memory::rescue(&rq.outputs[..count]) } {
            true => LOST,
            false => NO_MEMORY,
        }
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sidecore_submit(
    sc: *mut Sidecore,
    job: *const RawJob,
    id: *mut u64,
) -> c_int {
    guarded(INVALID, || {
        // SAFETY: NULL or what the header says, by the caller's promise.
        let (Some(sc), Some(job)) = (unsafe { sc.as_ref() }, unsafe { job.as_ref() }) else {
            return INVALID;
        };
        // SAFETY: the segments that count name buffers, by the caller's promise.
        match unsafe { sc.submit(job) } {
            Ok(number) => {
                // SAFETY: NULL or a place for a number, by the caller's promise.
                if let Some(id) = unsafe { id.as_mut() } {
                    *id = number;
                }
                DONE
            }
            Err(status) => status,
        }
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sidecore_poll(
    sc: *mut Sidecore,
    outcome: *mut RawOutcome,
) -> c_int {
    // SAFETY: NULL or what the header says, by the caller's promise.
    unsafe { take(sc, outcome, |attachment| attachment.poll()) }
}

/// See the header.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sidecore_wait(
    sc: *mut Sidecore,
    outcome: *mut RawOutcome,
    timeout_ms: c_int,
) -> c_int {
    // Negative: no limit.
    let timeout = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
    // SAFETY: NULL or what the header says, by the caller's promise.
    unsafe { take(sc, outcome, |attachment| attachment.wait(timeout)) }
}

/// See the header.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sidecore_cancel(sc: *mut Sidecore, id: u64) -> c_int {
    guarded(0, || {
        // SAFETY: NULL or an attachment, by the caller's promise.
        unsafe { sc.as_ref() }.map_or(0, |sc| c_int::from(sc.cancel(id)))
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sidecore_descriptor(sc: *mut Sidecore) -> c_int {
    use std::os::fd::AsRawFd;
    guarded(-libc::EIO, || {
        // SAFETY: NULL or an attachment, by the caller's promise.
        let Some(sc) = (unsafe { sc.as_ref() }) else {
            return -libc::EINVAL;
        };
        match sc.attachment.descriptor() {
            Ok(descriptor) => descriptor.as_raw_fd(),
            Err(error) => -attach::errno(&error),
        }
    })
}

impl Sidecore {
    /// The places in the arena of the first `count` buffers of a list.
    ///
    /// # Safety
    /// Those that are not NULL are buffers.
    unsafe fn ranges<'r>(
        &self,
        buffers: &[*mut RawBuffer; RANGES],
        count: c_int,
        ranges: &'r mut [(u64, u64); RANGES],
    ) -> Option<&'r [(u64, u64)]> {
        let buffers = buffers.get(..usize::try_from(count).ok()?)?;
        // Each is looked up in the arena: a buffer of another attachment has the same type in C.
        for (buffer, range) in buffers.iter().zip(ranges.iter_mut()) {
            // SAFETY: NULL or a buffer, as this function asks.
            let buffer = unsafe { buffer.as_ref() }?;
            *range = buffer.range(&self.attachment, 0, buffer.bytes)?;
        }
        Some(&ranges[..buffers.len()])
    }

    fn opened(&self) -> std::sync::MutexGuard<'_, Open> {
        // Nothing that could panic is done with it.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs one call; `otherwise` where it panics, which would be a bug of ours.
fn guarded<R>(otherwise: R, work: impl FnOnce() -> R) -> R {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or(otherwise)
}

/// Takes an outcome from an attachment.
///
/// # Safety
/// The pointers are NULL or what the header says.
unsafe fn take(
    sc: *mut Sidecore,
    outcome: *mut RawOutcome,
    from: impl FnOnce(&Attachment) -> Option<sidecore_daemon::client::Outcome>,
) -> c_int {
    guarded(0, || {
        // SAFETY: as this function asks.
        let (Some(sc), Some(outcome)) = (unsafe { sc.as_ref() }, unsafe { outcome.as_mut() })
        else {
            return 0;
        };
        from(&sc.attachment).map_or(0, |ended| {
            sc.end(&ended, outcome);
            1
        })
    })
}

/// The number of an error, or of none.
fn status(error: Option<&ClientError>) -> c_int {
    match error {
        None => DONE,
        Some(ClientError::Lost) => LOST,
        Some(ClientError::Engine { .. }) => FAILED,
        Some(ClientError::Cancelled) => CANCELLED,
        Some(ClientError::Full { .. }) => FULL,
        Some(_) => INVALID,
    }
}

/// Writes the text of a kernel's error, or none, ended by a zero.
fn write_text(text: &mut [c_char; TEXT], error: Option<&ClientError>) {
    // All of it: an earlier call's text must not stand behind a shorter one.
    *text = [0; TEXT];
    if let Some(ClientError::Engine { text: said }) = error {
        for (place, byte) in text[..TEXT - 1].iter_mut().zip(said.bytes()) {
            *place = byte as c_char;
        }
    }
}

const WORDS: usize = 6;
const RANGES: usize = 4;
const SEGMENTS: usize = sidecore_daemon::client::JOB_SEGMENTS_MAX;
const TEXT: usize = 65;

const DONE: c_int = 0;
const LOST: c_int = -libc::ECONNRESET;
const FAILED: c_int = -libc::EIO;
const INVALID: c_int = -libc::EINVAL;
const NO_MEMORY: c_int = -libc::ENOMEM;
const CANCELLED: c_int = -libc::ECANCELED;
const FULL: c_int = -libc::EAGAIN;

#[cfg(test)]
mod tests {
    //! The header's layouts compared with the library's.
    #![allow(clippy::unwrap_used)] // Helper functions of tests.

    use std::path::Path;
    use std::process::Command;

    /// The header's layouts are those of the library.
    #[test]
    fn layouts_are_the_same_on_both_sides() {
        let folder = tempfile::tempdir().unwrap();
        let source = folder.path().join("layout.c");
        let size = |name: &str, bytes: usize| {
            format!("_Static_assert(sizeof(struct {name}) == {bytes}, \"{name}\");\n")
        };
        let text = [
            "#include \"sidecore.h\"\n".to_owned(),
            size("sidecore_buffer", size_of::<crate::RawBuffer>()),
            size("sidecore_request", size_of::<crate::RawRequest>()),
            size("sidecore_options", size_of::<crate::RawOptions>()),
            size("sidecore_segment", size_of::<crate::RawSegment>()),
            size("sidecore_job", size_of::<crate::RawJob>()),
            size("sidecore_outcome", size_of::<crate::RawOutcome>()),
            format!(
                "_Static_assert(SIDECORE_JOBS == {}, \"jobs\");\n",
                sidecore_daemon::client::JOBS_MAX
            ),
            format!(
                "_Static_assert(SIDECORE_SEGMENTS == {}, \"segments\");\n",
                sidecore_daemon::client::JOB_SEGMENTS_MAX
            ),
        ];
        std::fs::write(&source, text.concat()).unwrap();
        let output = Command::new("cc")
            .args(["-std=c11", "-fsyntax-only", "-I"])
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("include"))
            .arg(&source)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
    }
}

//! One loaded kernel as engines run it.
//!
//! Why here: between the C ABI and [`Foreign`]. Must stay true: every transfer is checked against
//! its range before a byte moves. A kernel cannot name another call's memory, since a call's memory
//! is reached through `call` alone. Transfers are done at once, so a wait has nothing to do;
//! kernels may not rely on it. A run is one thread's. After every call of a kernel, the engine's
//! thread has the default control words of floating-point arithmetic again.
#![allow(unsafe_code)] // Calls foreign code, and is called by it.

use sidecore_bare::width::{ToU64, ToUsize};
use sidecore_daemon::served::{Foreign, KernelHash, Memory, Reply, Request};
use sidecore_engine::KernelError;
use sidecore_kernel_abi::raw::{ABI, Create, Destroy, HostTable, RawRun, RunFn, WORDS};
use sidecore_sys::float::{Modes, isolated};
use std::any::Any;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// A kernel of a shared object.
#[derive(Debug)]
pub(crate) struct LoadedKernel {
    pub(crate) name: String,
    pub(crate) version: u32,
    /// Hash of the whole object.
    pub(crate) hash: KernelHash,
    pub(crate) store_bytes: usize,
    pub(crate) life: Option<(Create, Destroy)>,
    pub(crate) run: RunFn,
    pub(crate) spoiler: Arc<Spoiler>,
}

/// Record of a kernel that changes the control words of floating-point arithmetic.
#[derive(Debug, Default)]
pub(crate) struct Spoiler {
    /// It left them changed, which was logged.
    reported: AtomicBool,
    /// The words that it left, for the process that logs.
    left: Mutex<Option<String>>,
}

impl Spoiler {
    /// Calls a function of the kernel, and sets the words back behind it.
    #[inline]
    fn guard<T>(&self, name: &str, call: impl FnOnce() -> T) -> T {
        let (value, left) = isolated(call);
        if let Some(left) = left {
            self.note(name, left);
        }
        value
    }

    #[cold]
    fn note(&self, name: &str, left: Modes) {
        let left = left.to_string();
        self.report(name, &left);
        *self.left.lock().unwrap_or_else(PoisonError::into_inner) = Some(left);
    }

    /// The words that a call left since this was asked last.
    #[inline]
    pub(crate) fn take(&self) -> Option<String> {
        // Relaxed: one thread runs kernels of a worker.
        if !self.reported.load(Ordering::Relaxed) {
            return None;
        }
        self.left
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }

    /// One line, with the first call that left other words.
    #[cold]
    pub(crate) fn report(&self, name: &str, left: &str) {
        // Relaxed: a flag alone.
        if !self.reported.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "kernel `{name}` left the modes of floating-point arithmetic changed ({left}); \
                 they are set back behind each of its calls"
            );
        }
    }
}

impl Foreign for LoadedKernel {
    fn name(&self) -> &str {
        &self.name
    }

    fn version(&self) -> u32 {
        self.version
    }

    fn hash(&self) -> KernelHash {
        self.hash
    }

    fn store_bytes(&self) -> usize {
        self.store_bytes
    }

    fn state(&self) -> Result<Box<dyn Any + Send>, KernelError> {
        let Some((create, destroy)) = self.life else {
            return Ok(Box::new(State {
                start: std::ptr::null_mut(),
                destroy: None,
                spoiler: Arc::clone(&self.spoiler),
            }));
        };
        // SAFETY: the object's function, called as the header says.
        let start = self.spoiler.guard(&self.name, || unsafe { create() });
        if start.is_null() {
            return Err(self.failed("its `create` made no state"));
        }
        Ok(Box::new(State {
            start,
            destroy: Some(destroy),
            spoiler: Arc::clone(&self.spoiler),
        }))
    }

    #[inline]
    fn run(
        &self,
        state: &mut (dyn Any + Send),
        store: &mut [u8],
        request: &Request,
        memory: &Memory<'_>,
    ) -> Result<Reply, KernelError> {
        let Some(state) = state.downcast_mut::<State>() else {
            unreachable!("the state that this kernel made");
        };
        // Not zeroed: that would be a good part of the cost of a short request.
        let mut input_bytes = [const { MaybeUninit::uninit() }; RANGES_MAX];
        let mut output_bytes = [const { MaybeUninit::uninit() }; RANGES_MAX];
        if memory.inputs() > RANGES_MAX || memory.outputs() > RANGES_MAX {
            return Err(self.failed("too many inputs or outputs"));
        }
        for (index, bytes) in input_bytes[..memory.inputs()].iter_mut().enumerate() {
            bytes.write(memory.input(index)?.len().to_u64());
        }
        for (index, bytes) in output_bytes[..memory.outputs()].iter_mut().enumerate() {
            bytes.write(memory.output(index)?.len().to_u64());
        }
        let mut call = Call { memory, text: None };
        let mut reply = Reply::default();
        let mut raw = RawRun {
            host: &HOST,
            call: (&raw mut call).cast(),
            state: state.start,
            store: store.as_mut_ptr(),
            store_bytes: store.len().to_u64(),
            words: request.words.as_ptr(),
            reply: reply.words.as_mut_ptr(),
            input_bytes: input_bytes.as_ptr().cast(),
            output_bytes: output_bytes.as_ptr().cast(),
            inputs: memory.inputs() as u32,
            outputs: memory.outputs() as u32,
        };
        // SAFETY: all of its pointers are as the header says and live until `run` returns. (Of the
        // lengths, those of the ranges that there are, which were written above.) The state is this
        // kernel's, and borrowed by this run alone.
        let status = self
            .spoiler
            .guard(&self.name, || unsafe { (self.run)(&mut raw) });
        match status {
            0 => Ok(reply),
            // The reply of a failed run is dropped: a kernel may have written a part of it.
            status => Err(match call.text.take() {
                Some(text) => KernelError::failed(text),
                None => self.failed(&format!("failed with status {status}")),
            }),
        }
    }
}

impl LoadedKernel {
    fn failed(&self, reason: &str) -> KernelError {
        KernelError::failed(format!("{}: {reason}", self.name))
    }
}

/// The state of one kernel on one engine.
struct State {
    start: *mut c_void,
    destroy: Option<Destroy>,
    spoiler: Arc<Spoiler>,
}

// SAFETY: the header lets a state be made, used and ended by different threads, one at a time.
unsafe impl Send for State {}

impl Drop for State {
    fn drop(&mut self) {
        if let Some(destroy) = self.destroy {
            self.spoiler.guard("destroy", || {
                // SAFETY: made by the same kernel's `create`, and given back once.
                unsafe { destroy(self.start) }
            });
        }
    }
}

/// The daemon's side of one run.
struct Call<'m> {
    memory: &'m Memory<'m>,
    /// The reason that the kernel gave.
    text: Option<String>,
}

static HOST: HostTable = HostTable {
    abi: ABI,
    bytes: size_of::<HostTable>() as u32,
    get,
    put,
    wait,
    yield_now,
    fail,
};

unsafe extern "C" fn get(
    call: *mut c_void,
    to: *mut c_void,
    input: u32,
    offset: u64,
    bytes: u64,
    _tag: u32,
) -> c_int {
    // SAFETY: a kernel passes its run's call.
    let call = unsafe { &*call.cast::<Call<'_>>() };
    let Ok(range) = call.memory.input(input.to_usize()) else {
        return REFUSED;
    };
    let part = span(offset, bytes).and_then(|(start, end)| range.range(start..end));
    let Some(part) = part else {
        return REFUSED;
    };
    // A transfer of no bytes may come with NULL.
    if bytes > 0 {
        // SAFETY: `part.len()` bytes of the kernel's own, by its word; it waits before it looks.
        let to = unsafe { std::slice::from_raw_parts_mut(to.cast::<u8>(), part.len()) };
        part.read_at(0, to);
    }
    0
}

unsafe extern "C" fn put(
    call: *mut c_void,
    output: u32,
    offset: u64,
    from: *const c_void,
    bytes: u64,
    _tag: u32,
) -> c_int {
    // SAFETY: a kernel passes its run's call.
    let call = unsafe { &*call.cast::<Call<'_>>() };
    let Ok(range) = call.memory.output(output.to_usize()) else {
        return REFUSED;
    };
    let part = span(offset, bytes).and_then(|(start, end)| range.range(start..end));
    let Some(part) = part else {
        return REFUSED;
    };
    if bytes > 0 {
        // SAFETY: `part.len()` bytes of the kernel's own, by its word; it leaves them until it
        // waited.
        let from = unsafe { std::slice::from_raw_parts(from.cast::<u8>(), part.len()) };
        part.write_at(0, from);
    }
    0
}

unsafe extern "C" fn wait(_call: *mut c_void, _tag_mask: u32) {}

unsafe extern "C" fn yield_now(call: *mut c_void) -> c_int {
    // SAFETY: a kernel passes its run's call.
    let call = unsafe { &*call.cast::<Call<'_>>() };
    c_int::from(call.memory.is_abandoned())
}

unsafe extern "C" fn fail(call: *mut c_void, text: *const c_char) {
    // The status alone says that it failed.
    if text.is_null() {
        return;
    }
    // SAFETY: a kernel passes its run's call, which nothing else borrows meanwhile, and a text that
    // ends with 0.
    let (call, text) = unsafe { (&mut *call.cast::<Call<'_>>(), CStr::from_ptr(text)) };
    call.text = Some(text.to_string_lossy().chars().take(TEXT_MAX).collect());
}

/// The beginning and end of a transfer, where they are numbers of this machine.
fn span(offset: u64, bytes: u64) -> Option<(usize, usize)> {
    let start = usize::try_from(offset).ok()?;
    let end = usize::try_from(offset.checked_add(bytes)?).ok()?;
    Some((start, end))
}

const _: () = assert!(WORDS == size_of::<Reply>() / size_of::<u64>());
/// Answer to a transfer beyond its range.
const REFUSED: c_int = -1;
/// Inputs, and outputs, of one request at most.
const RANGES_MAX: usize = 16;
/// Letters of a reason that are kept.
const TEXT_MAX: usize = 256;

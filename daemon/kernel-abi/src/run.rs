//! One request as a kernel in Rust sees it.
//!
//! Why here: kernels are written without unsafe code. Must stay true: slices of the local store and
//! of the reply end with the run, by lifetime; the state is borrowed by one run at a time.
#![allow(unsafe_code)] // Calls the daemon's functions by their addresses.

use crate::raw::{RawRun, WORDS};
use core::ffi::c_void;
use sidecore_bare::width::{ToU64, ToUsize};
use std::ffi::CString;
use std::fmt;

/// One request. Its parts are separate fields, so that they can be used at the same time.
#[non_exhaustive]
pub struct Run<'r, S> {
    /// State of this kernel on this engine.
    pub state: &'r mut S,
    /// The local store: as many bytes as the kernel asked for, aligned to 128, with whatever the
    /// last kernel left there.
    pub store: &'r mut [u8],
    /// Words of the request.
    pub words: [u64; WORDS],
    /// Words of the reply; 0 at first.
    pub reply: &'r mut [u64; WORDS],
    /// Transfers, and the question whether to go on.
    pub host: Host<'r>,
}

impl<S> Run<'_, S> {
    /// The length of an input; 0 where the request has fewer.
    #[must_use]
    pub fn input_bytes(&self, input: usize) -> usize {
        self.host
            .inputs
            .get(input)
            .map_or(0, |&bytes| bytes.to_usize())
    }

    /// The length of an output; 0 where the request has fewer.
    #[must_use]
    pub fn output_bytes(&self, output: usize) -> usize {
        self.host
            .outputs
            .get(output)
            .map_or(0, |&bytes| bytes.to_usize())
    }

    /// The number of inputs.
    #[must_use]
    pub fn inputs(&self) -> usize {
        self.host.inputs.len()
    }

    /// The number of outputs.
    #[must_use]
    pub fn outputs(&self) -> usize {
        self.host.outputs.len()
    }
}

impl<S> fmt::Debug for Run<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (inputs, outputs) = (self.inputs(), self.outputs());
        write!(f, "a request of {inputs} inputs and {outputs} outputs")
    }
}

/// The daemon's side of a request.
#[derive(Debug, Clone, Copy)]
pub struct Host<'r> {
    raw: &'r RawRun,
    inputs: &'r [u64],
    outputs: &'r [u64],
}

/// A transfer beyond the end of an input or output, or of one that the request does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutOfRange;

impl fmt::Display for OutOfRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a transfer beyond the end of its range")
    }
}

impl std::error::Error for OutOfRange {}

impl From<OutOfRange> for String {
    fn from(error: OutOfRange) -> Self {
        error.to_string()
    }
}

impl Host<'_> {
    /// Gets the bytes at `offset` of an input, as many as `to` has, and waits for them.
    ///
    /// # Errors
    /// [`OutOfRange`]; nothing is got then.
    #[inline]
    pub fn get(&self, input: u32, offset: usize, to: &mut [u8]) -> Result<(), OutOfRange> {
        let (start, bytes) = (to.as_mut_ptr().cast::<c_void>(), to.len().to_u64());
        // SAFETY: the daemon's table and call are good until the run ends; `to` is as long as said.
        let done = unsafe {
            let host = &*self.raw.host;
            let done = (host.get)(self.raw.call, start, input, offset.to_u64(), bytes, 0);
            // Also where it was refused: then there is nothing to wait for.
            (host.wait)(self.raw.call, 1);
            done
        };
        if done == 0 { Ok(()) } else { Err(OutOfRange) }
    }

    /// Puts bytes to `offset` of an output, and waits until they are there.
    ///
    /// # Errors
    /// [`OutOfRange`]; nothing is put then.
    #[inline]
    pub fn put(&self, output: u32, offset: usize, from: &[u8]) -> Result<(), OutOfRange> {
        let (start, bytes) = (from.as_ptr().cast::<c_void>(), from.len().to_u64());
        // SAFETY: as in `get`.
        let done = unsafe {
            let host = &*self.raw.host;
            let done = (host.put)(self.raw.call, output, offset.to_u64(), start, bytes, 0);
            // Before `from` is the kernel's to change again.
            (host.wait)(self.raw.call, 1);
            done
        };
        if done == 0 { Ok(()) } else { Err(OutOfRange) }
    }

    /// True if the answer is not needed any more. Called between pieces of long work, about every
    /// 200 us; an engine may use the moment for others.
    #[must_use]
    pub fn is_unwanted(&self) -> bool {
        // SAFETY: as in `get`.
        unsafe { ((*self.raw.host).yield_now)(self.raw.call) != 0 }
    }
}

/// Lends a request to `work`, and tells the daemon of a failure. The status for the daemon.
///
/// # Safety
/// `raw` is a request as the daemon passes it to a kernel whose state is an `S`.
pub(crate) unsafe fn lend<S>(
    raw: *mut RawRun,
    work: impl FnOnce(&mut Run<'_, S>) -> Result<(), String>,
) -> i32 {
    // SAFETY: the daemon's request is good until the run ends, as the caller says.
    let raw = unsafe { &*raw };
    // SAFETY: each length belongs to its pointer; each part is lent to this run alone.
    let (inputs, outputs, store, reply, words, state) = unsafe {
        (
            std::slice::from_raw_parts(raw.input_bytes, raw.inputs.to_usize()),
            std::slice::from_raw_parts(raw.output_bytes, raw.outputs.to_usize()),
            std::slice::from_raw_parts_mut(raw.store, raw.store_bytes.to_usize()),
            &mut *raw.reply.cast::<[u64; WORDS]>(),
            *raw.words.cast::<[u64; WORDS]>(),
            &mut *raw.state.cast::<S>(),
        )
    };
    let host = Host {
        raw,
        inputs,
        outputs,
    };
    let mut run = Run {
        state,
        store,
        words,
        reply,
        host,
    };
    // A panic must not unwind into the daemon; the kernel's state may be left half-changed.
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(&mut run)));
    let result = caught.unwrap_or_else(|_| Err("the kernel panicked".to_owned()));
    let Err(text) = result else {
        return 0;
    };
    // A zero would end the text early, in C.
    let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
    // SAFETY: the daemon copies the text before it returns.
    unsafe { ((*raw.host).fail)(raw.call, text.as_ptr()) };
    -1
}

//! Function that an engine's thread runs on the request before it, and room for its request and its
//! reply.
//!
//! Why `unsafe` is here: the work's type is erased on the way (these are the request packets that
//! the design allows it in). `send.rs` alone makes packets, and describes the order of reads and
//! writes.
//! Must stay true: a payload is touched by one side at a time, in the order of the messages around
//! it.
#![allow(unsafe_code)]

use sidecore_bare::width::ToUsize;
use sidecore_engine::Core;
use std::cell::UnsafeCell;
use std::mem::MaybeUninit;

/// Working parts of an engine, or of a core that is no engine's.
pub(crate) struct Driver {
    pub(crate) core: Core,
    /// Units of loops that it has done since its counters were last updated.
    pub(crate) units: u64,
}

/// Words that a request carries: two lines less its head.
pub(crate) const REQUEST_WORDS: usize = 14;
/// Words that a reply carries.
pub(crate) const REPLY_WORDS: usize = 13;

/// Room for a value of any type that fits, next to its announcing word.
#[derive(Debug)]
pub(crate) struct Payload<const WORDS: usize>(UnsafeCell<[MaybeUninit<u64>; WORDS]>);

// SAFETY: a request's payload is written by the holder of the engine's claim before it rings and
// read by the engine's thread after it was rung; a reply's is written by that thread before it
// counts the reply and read by the claim's holder after that. Only values that are `Send` go in.
unsafe impl<const WORDS: usize> Sync for Payload<WORDS> {}

impl<const WORDS: usize> Payload<WORDS> {
    pub(crate) fn new() -> Self {
        Self(UnsafeCell::new([MaybeUninit::uninit(); WORDS]))
    }

    pub(crate) const fn fits<T>() -> bool {
        size_of::<T>() <= WORDS * size_of::<u64>() && align_of::<T>() <= align_of::<u64>()
    }

    /// # Safety
    /// It is this thread's turn (see `Sync`), and no value that must be dropped is in it.
    pub(crate) unsafe fn put<T>(&self, value: T) {
        assert!(Self::fits::<T>(), "a value larger than its payload");
        // SAFETY: it fits, is aligned, and no other thread touches it now.
        unsafe { self.0.get().cast::<T>().write(value) };
    }

    /// # Safety
    /// It is this thread's turn (see `Sync`), and a `T` was put in and not taken out.
    pub(crate) unsafe fn take<T>(&self) -> T {
        // SAFETY: by this function's contract.
        unsafe { self.0.get().cast::<T>().read() }
    }
}

/// Function that an engine's thread runs on a request, leaving a reply.
///
/// # Safety
/// Of a call: that thread's turn with both payloads, and the request has the type that this takes.
pub(crate) type Run = unsafe fn(&Payload<REQUEST_WORDS>, &Payload<REPLY_WORDS>, &mut Driver);

/// A [`Run`] for the types that its sender put into the request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Packet {
    run: Run,
    /// True if the sender waits attentively and keeps the claim; else the engine releases itself.
    pub(crate) keeps_claim: bool,
}

/// A bit that no address in user space has.
const KEEPS_CLAIM: u64 = 1 << 61;

impl Packet {
    /// # Safety
    /// It goes to an engine whose request has the type that `run` takes, by a command after that.
    pub(crate) unsafe fn new(run: Run, keeps_claim: bool) -> Self {
        Self { run, keeps_claim }
    }

    /// The packet as a number below 2^62.
    pub(crate) fn to_bits(self) -> u64 {
        let address = (self.run as *const ()).expose_provenance() as u64;
        address | if self.keeps_claim { KEEPS_CLAIM } else { 0 }
    }

    /// The reverse of [`Self::to_bits`], which alone makes such numbers.
    pub(crate) fn from_bits(bits: u64) -> Self {
        let address = std::ptr::with_exposed_provenance::<()>((bits & !KEEPS_CLAIM).to_usize());
        Self {
            // SAFETY: the address is that of a function of this type (`to_bits`).
            run: unsafe { std::mem::transmute::<*const (), Run>(address) },
            keeps_claim: bits & KEEPS_CLAIM != 0,
        }
    }

    /// Runs the packet. Only the engine's thread that took it from this slot, before it replies.
    pub(crate) fn run(
        self,
        request: &Payload<REQUEST_WORDS>,
        reply: &Payload<REPLY_WORDS>,
        driver: &mut Driver,
    ) {
        // SAFETY: by the promise of `new`: the request has the type that this function takes out,
        // and the command came after that; a slot gives each command once.
        unsafe { (self.run)(request, reply, driver) }
    }
}

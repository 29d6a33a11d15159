//! One piece of work for one engine's thread, on its caller's stack.
//!
//! Why here: an off-load to an engine on another core is a request packet: the engine is told where
//! the closure lies, runs it, leaves what it gave beside it, and counts the reply. Nothing is
//! allocated.
//!
//! Why `unsafe` is here: the closure's type and lifetime are erased on the way (these are the request
//! packets that the design allows it in).
//! Must stay true: a packet is sent to the one engine whose claim its sender holds; that engine's
//! thread runs it exactly once and then, never before, counts the reply; the sender does not return
//! or unwind before it has seen that count.
#![allow(unsafe_code)]

use crate::error::message_of;
use crate::mission::{Doorbell, Mission};
use crate::shared::Driver;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A packet's address, as an engine's thread gets it. Made by [`send`] alone, and travels only
/// through a doorbell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PacketAddress(*const ());

/// The head of every packet: what runs the rest.
type Run = unsafe fn(*const (), &mut Driver);

#[repr(C, align(128))]
struct Packet<F, R> {
    run: Run,
    work: UnsafeCell<Option<F>>,
    result: UnsafeCell<Option<Result<R, String>>>,
}

impl PacketAddress {
    /// The address as a number below 2^62: user space ends before.
    pub(crate) fn to_bits(self) -> u64 {
        self.0.expose_provenance() as u64
    }

    /// The reverse of [`Self::to_bits`].
    pub(crate) fn from_bits(bits: u64) -> Self {
        Self(std::ptr::with_exposed_provenance(bits as usize))
    }

    /// Runs the packet. Only the engine's thread whose doorbell gave this address, before it replies.
    pub(crate) fn run(self, driver: &mut Driver) {
        // SAFETY: the address came from `send` through this thread's doorbell (the module's head),
        // so the packet is alive until the reply, and its head is a `Run`.
        unsafe { (*self.0.cast::<Run>())(self.0, driver) }
    }
}

/// Sends `work` to the engine behind `bell`, whose claim the caller holds and passes on, and returns
/// what it gave, or what its panic said. `wait` is called with a check whether the reply is there,
/// and should return when it is.
pub(crate) fn send<R: Send>(
    bell: &Doorbell,
    work: impl FnOnce(&mut Driver) -> R + Send,
    wait: impl FnOnce(&dyn Fn() -> bool),
) -> Result<R, String> {
    let packet = Packet {
        run: run_of(&work),
        work: UnsafeCell::new(Some(work)),
        result: UnsafeCell::new(None),
    };
    let replies = bell.replies();
    bell.ring(Mission::Run(PacketAddress(
        std::ptr::from_ref(&packet).cast(),
    )));
    let sent = Sent { bell, replies };
    wait(&|| sent.is_answered());
    drop(sent);
    match packet.result.into_inner() {
        Some(result) => result,
        None => unreachable!("an engine that replied has run the packet"),
    }
}

/// A packet on its way; dropping it waits for the reply, so that not even a panic outruns it.
struct Sent<'a> {
    bell: &'a Doorbell,
    replies: u64,
}

impl Sent<'_> {
    fn is_answered(&self) -> bool {
        self.bell.replies() != self.replies
    }
}

impl Drop for Sent<'_> {
    fn drop(&mut self) {
        while !self.is_answered() {
            std::thread::yield_now();
        }
    }
}

/// # Safety
/// `packet` is a live `Packet<F, R>` that nobody else uses before the reply.
unsafe fn run<F: FnOnce(&mut Driver) -> R, R>(packet: *const (), driver: &mut Driver) {
    // SAFETY: by this function's contract.
    let packet = unsafe { &*packet.cast::<Packet<F, R>>() };
    // SAFETY: the sender does not touch the cells before the reply, and this runs before it.
    let (work, result) = unsafe { (&mut *packet.work.get(), &mut *packet.result.get()) };
    if let Some(work) = work.take() {
        let outcome = catch_unwind(AssertUnwindSafe(|| work(driver)));
        *result = Some(outcome.map_err(|panic| message_of(panic.as_ref())));
    }
}

/// What runs packets with work of this type, which cannot be named.
fn run_of<F: FnOnce(&mut Driver) -> R, R>(_work: &F) -> Run {
    run::<F, R>
}

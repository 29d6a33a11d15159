//! One piece of work for one engine's thread, carried by the request packet itself.
//!
//! Why here: an off-load to an engine on another core costs what the lines cost that cross: one
//! with the request, the closure in it, and one with the reply, the result in it. A closure or a
//! result that is too large for its line goes by reference to the sender's stack. Nothing is
//! allocated.
//!
//! Why `unsafe` is here: the closure's type and lifetime are erased on the way (these are the
//! request packets that the design allows it in).
//! Must stay true: a packet is sent to the one engine whose claim its sender holds; that engine's
//! thread runs it exactly once and then, never before, counts the reply; the sender does not return
//! or unwind before it has seen that count; a result that lies in the reply is taken out before the
//! claim is given back.
#![allow(unsafe_code)]

use crate::command::{Command, CommandSlot};
use crate::error::message_of;
use crate::shared::{Claim, Driver};
use sidecore_engine::WaitOptions;
use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// Words that a request carries: two lines less its head.
pub(crate) const REQUEST_WORDS: usize = 14;
/// Words that a reply carries.
pub(crate) const REPLY_WORDS: usize = 13;

/// Room for a value of any type that fits, beside its announcing word.
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

    const fn fits<T>() -> bool {
        size_of::<T>() <= WORDS * size_of::<u64>() && align_of::<T>() <= align_of::<u64>()
    }

    /// # Safety
    /// It is this thread's turn (see `Sync`), and no value that must be dropped is in it.
    unsafe fn put<T>(&self, value: T) {
        assert!(Self::fits::<T>(), "a value larger than its payload");
        // SAFETY: it fits, is aligned, and nobody else touches it now.
        unsafe { self.0.get().cast::<T>().write(value) };
    }

    /// # Safety
    /// It is this thread's turn (see `Sync`), and a `T` was put in and not taken out.
    unsafe fn take<T>(&self) -> T {
        // SAFETY: by this function's contract.
        unsafe { self.0.get().cast::<T>().read() }
    }
}

/// Function that an engine's thread runs on the request before it: made by [`send`] for the types
/// that it put there.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Packet {
    run: unsafe fn(&CommandSlot, &mut Driver),
    /// True if the sender waits attentively and keeps the claim; else the engine releases itself.
    pub(crate) keeps_claim: bool,
}

/// A bit that no address in user space has.
const KEEPS_CLAIM: u64 = 1 << 61;

impl Packet {
    /// The packet as a number below 2^62.
    pub(crate) fn to_bits(self) -> u64 {
        let address = (self.run as *const ()).expose_provenance() as u64;
        address | if self.keeps_claim { KEEPS_CLAIM } else { 0 }
    }

    /// The reverse of [`Self::to_bits`], which alone makes such numbers.
    pub(crate) fn from_bits(bits: u64) -> Self {
        let address = std::ptr::with_exposed_provenance::<()>((bits & !KEEPS_CLAIM) as usize);
        Self {
            // SAFETY: the address is that of a function of this type (`to_bits`).
            run: unsafe {
                std::mem::transmute::<*const (), unsafe fn(&CommandSlot, &mut Driver)>(address)
            },
            keeps_claim: bits & KEEPS_CLAIM != 0,
        }
    }

    /// Runs the packet. Only the engine's thread that took it from this slot, before it replies.
    pub(crate) fn run(self, slot: &CommandSlot, driver: &mut Driver) {
        // SAFETY: `send` put into this slot's request what this function takes out, and sent
        // the command after that; a slot gives each command once.
        unsafe { (self.run)(slot, driver) }
    }
}

/// Sends `work` to the claimed engine's thread, waits, and returns what it gave, or what its panic
/// said. A task is parked meanwhile. An `attentive` sender looks at the reply soon: the claim then
/// stays with it until it has the reply, and the claim's line need not cross; otherwise the engine
/// gives itself back as soon as it has replied.
pub(crate) fn send<R: Send>(
    claim: Claim<'_>,
    work: impl FnOnce(&mut Driver) -> R + Send,
    attentive: bool,
) -> Result<R, String> {
    if fits_request(&work) && attentive && Payload::<REPLY_WORDS>::fits::<Outcome<R>>() {
        return send_kept(claim, work);
    }
    let mut outcome = None;
    let mut work = Some(work);
    send_released(claim, |driver| {
        outcome = work.take().map(|work| guarded(work, driver));
    });
    match outcome {
        Some(outcome) => outcome,
        None => unreachable!("an engine that replied has run the packet"),
    }
}

/// Result that an engine leaves, or the message of a panic.
type Outcome<R> = Result<R, String>;

/// Request and reply both carry all there is.
fn send_kept<R: Send, F: FnOnce(&mut Driver) -> R + Send>(claim: Claim<'_>, work: F) -> Outcome<R> {
    let slot = claim.command_slot();
    // Declared before `sent`, hence dropped after the reply came, whatever happens.
    let mut claim = Some(claim);
    // SAFETY: we hold the claim, so the request is ours to write; `run_kept` takes the work out.
    unsafe { slot.request().put(work) };
    let sent = Sent::send(slot, run_kept::<F, R>, true);
    slot.replied().wait(REPLY_WAIT, || {
        sent.is_answered().then(|| {
            // SAFETY: the engine has replied, and we still hold its claim; `run_kept` put this in.
            let outcome = unsafe { slot.reply_payload().take::<Outcome<R>>() };
            drop(claim.take());
            outcome
        })
    })
}

/// # Safety
/// [`Packet::run`]'s, where the request holds an `F` and the sender expects an `R`.
unsafe fn run_kept<F: FnOnce(&mut Driver) -> R, R>(slot: &CommandSlot, driver: &mut Driver) {
    // SAFETY: `send_kept` put the work in and rang; the reply is ours until it is counted.
    let work = unsafe { slot.request().take::<F>() };
    let outcome = guarded(work, driver);
    // SAFETY: as above; whoever kept the claim before has taken out what was there.
    unsafe { slot.reply_payload().put::<Outcome<R>>(outcome) };
}

/// The request carries a reference to `work`, which must not panic; the reply carries nothing.
fn send_released<F: FnOnce(&mut Driver) + Send>(claim: Claim<'_>, work: F) {
    let slot = claim.into_command_slot();
    let mut work = Some(work);
    // SAFETY: we held the claim, which goes with the packet; a reference needs no dropping.
    unsafe { slot.request().put(&raw mut work) };
    let sent = Sent::send(slot, run_released::<F>, false);
    slot.replied()
        .wait(REPLY_WAIT, || sent.is_answered().then_some(()));
    drop(sent);
}

/// # Safety
/// [`Packet::run`]'s, where the request holds a pointer to an `Option<F>`.
unsafe fn run_released<F: FnOnce(&mut Driver)>(slot: &CommandSlot, driver: &mut Driver) {
    // SAFETY: `send_released` put the pointer in and rang.
    let work = unsafe { slot.request().take::<*mut Option<F>>() };
    // SAFETY: the sender's frame holds the work, and does not touch it, until we reply.
    let work = unsafe { (*work).take() };
    if let Some(work) = work {
        work(driver);
    }
}

fn guarded<R>(work: impl FnOnce(&mut Driver) -> R, driver: &mut Driver) -> Outcome<R> {
    catch_unwind(AssertUnwindSafe(|| work(driver))).map_err(|panic| message_of(panic.as_ref()))
}

/// A packet on its way; dropping it waits for the reply, so that not even a panic outruns it.
struct Sent<'a> {
    slot: &'a CommandSlot,
    replies: u64,
}

impl<'a> Sent<'a> {
    fn send(
        slot: &'a CommandSlot,
        run: unsafe fn(&CommandSlot, &mut Driver),
        keeps_claim: bool,
    ) -> Self {
        let replies = slot.replies();
        slot.send(Command::Run(Packet { run, keeps_claim }));
        Self { slot, replies }
    }

    fn is_answered(&self) -> bool {
        self.slot.replies() != self.replies
    }
}

impl Drop for Sent<'_> {
    fn drop(&mut self) {
        while !self.is_answered() {
            std::thread::yield_now();
        }
    }
}

fn fits_request<F>(_work: &F) -> bool {
    Payload::<REQUEST_WORDS>::fits::<F>()
}

/// Policy of a plain thread's wait for a packet's reply: about 40 us of looking, then asleep.
const REPLY_WAIT: WaitOptions = WaitOptions {
    spins: 1_000,
    grace: Duration::ZERO,
};

//! One piece of work for one engine's thread, carried by the request packet itself.
//!
//! Why here: an off-load to an engine on another core costs as much as the cache lines that cross:
//! one with the request, the closure in it, and one with the reply, the result in it. A closure or
//! a result that is too large for its line goes by reference to the sender's stack. Nothing is
//! allocated.
//!
//! Why `unsafe` is here: the closure's type and lifetime are erased on the way (these are the
//! request packets that the design allows it in).
//! Must stay true: a packet is sent to the one engine whose claim its sender holds. That engine's
//! thread runs it exactly once and then, never before, counts the reply. The sender does not return
//! or unwind before it has seen that count. A result that lies in the reply is taken out before the
//! claim is given back.
#![allow(unsafe_code)]

use crate::command::{Command, CommandSlot};
use crate::error::{OffloadError, caught};
use crate::packet::{Driver, Packet, Payload, REPLY_WORDS, REQUEST_WORDS};
use crate::shared::Claim;
use crate::task;
use crate::tracks;
use sidecore_sync::WaitOptions;
use std::time::Duration;

impl Claim<'_> {
    /// Sends `work` to the engine's own thread and waits for the reply; a task is parked meanwhile.
    pub(crate) fn send<R: Send>(
        self,
        work: impl FnOnce(&mut Driver) -> R + Send,
    ) -> Result<R, OffloadError> {
        let _waits = sidecore_trace::span(&tracks::OFF_LOAD, 0, 0);
        send(self, work, task::is_attentive()).map_err(|message| OffloadError::Panicked { message })
    }
}

/// Sends `work` to the claimed engine's thread, waits, and returns its result, or its panic's
/// message. A task is parked meanwhile. An `attentive` sender looks at the reply soon: the claim
/// then stays with it until it has the reply, and the claim's line need not cross. Otherwise the
/// engine releases itself as soon as it has replied.
fn send<R: Send>(
    claim: Claim<'_>,
    work: impl FnOnce(&mut Driver) -> R + Send,
    attentive: bool,
) -> Outcome<R> {
    if fits_request(&work) && attentive && Payload::<REPLY_WORDS>::fits::<Outcome<R>>() {
        return send_kept(claim, work);
    }
    let mut outcome = None;
    let mut work = Some(work);
    send_released(claim, |driver| {
        outcome = work.take().map(|work| caught(|| work(driver)));
    });
    match outcome {
        Some(outcome) => outcome,
        None => unreachable!("an engine that replied has run the packet"),
    }
}

/// Result that an engine leaves, or the message of a panic: smaller than an [`OffloadError`], so
/// that larger results fit their line.
type Outcome<R> = Result<R, String>;

/// Request and reply both carry all there is.
fn send_kept<R: Send, F: FnOnce(&mut Driver) -> R + Send>(claim: Claim<'_>, work: F) -> Outcome<R> {
    let slot = claim.command_slot();
    // Declared before `sent`, hence dropped after the reply came, whatever happens.
    let mut claim = Some(claim);
    // SAFETY: we hold the claim, so the request is ours to write; `run_kept` takes the work out.
    unsafe { slot.request().put(work) };
    // SAFETY: an `F` was put in, and this engine's thread takes the command.
    let sent = Sent::send(slot, unsafe { Packet::new(run_kept::<F, R>, true) });
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
unsafe fn run_kept<F: FnOnce(&mut Driver) -> R, R>(
    request: &Payload<REQUEST_WORDS>,
    reply: &Payload<REPLY_WORDS>,
    driver: &mut Driver,
) {
    // SAFETY: `send_kept` put the work in and rang; the reply is ours until it is counted.
    let work = unsafe { request.take::<F>() };
    let outcome = caught(|| work(driver));
    // SAFETY: as above; the claim's previous holder has taken out the old contents.
    unsafe { reply.put::<Outcome<R>>(outcome) };
}

/// The request carries a reference to `work`, which must not panic; the reply carries nothing.
fn send_released<F: FnOnce(&mut Driver) + Send>(claim: Claim<'_>, work: F) {
    let slot = claim.into_command_slot();
    let mut work = Some(work);
    // SAFETY: we held the claim, which goes with the packet; a reference needs no dropping.
    unsafe { slot.request().put(&raw mut work) };
    // SAFETY: such a pointer was put in, and this engine's thread takes the command.
    let sent = Sent::send(slot, unsafe { Packet::new(run_released::<F>, false) });
    slot.replied()
        .wait(REPLY_WAIT, || sent.is_answered().then_some(()));
    drop(sent);
}

/// # Safety
/// [`Packet::run`]'s, where the request holds a pointer to an `Option<F>`.
unsafe fn run_released<F: FnOnce(&mut Driver)>(
    request: &Payload<REQUEST_WORDS>,
    _reply: &Payload<REPLY_WORDS>,
    driver: &mut Driver,
) {
    // SAFETY: `send_released` put the pointer in and rang.
    let work = unsafe { request.take::<*mut Option<F>>() };
    // SAFETY: the sender's frame holds the work, and does not touch it, until we reply.
    let work = unsafe { (*work).take() };
    if let Some(work) = work {
        work(driver);
    }
}

/// A packet on its way; dropping it waits for the reply, so that not even a panic outruns it.
struct Sent<'a> {
    slot: &'a CommandSlot,
    replies: u64,
}

impl<'a> Sent<'a> {
    fn send(slot: &'a CommandSlot, packet: Packet) -> Self {
        let replies = slot.replies();
        slot.send(Command::Run(packet));
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

//! One call: on an engine where there is one, else on this thread.

use super::args::Args;
use super::buffer::Buffer;
use super::error::ClientError;
use super::link::{Claim, Link, Watch};
use super::{Client, KernelId};
use crate::served::{Memory, Reply, Request};
use crate::shm::layout::Status;
use crate::shm::segment::Lease;
use crate::shm::slot::{self, Packet, RANGES_MAX};
use sidecore_sys::{SharedSlice, clock, shared_futex};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// See [`Client::call`].
#[inline]
pub(super) fn call(
    client: &Client,
    kernel: KernelId,
    mut args: Args<'_>,
) -> Result<Reply, ClientError> {
    args.checked()?;
    if let Some(link) = client.link()
        && let Some(number) = link.number(kernel.0)
    {
        match on_engine(client, &link, number, &mut args) {
            Tried::Done(result) => {
                client.counters.on_engines.fetch_add(1, Ordering::Relaxed);
                return result;
            }
            Tried::NoRoom => {}
            Tried::GivenUp => {
                client.counters.given_up.fetch_add(1, Ordering::Relaxed);
                // Whatever the daemon still writes, it writes where nobody looks any more.
                for (buffer, _) in args.outputs.iter_mut().flatten() {
                    buffer.move_home();
                }
            }
        }
    }
    client.counters.on_host.fetch_add(1, Ordering::Relaxed);
    on_host(client, kernel, args)
}

enum Tried {
    Done(Result<Reply, ClientError>),
    /// The arena has no room for the call's memory.
    NoRoom,
    GivenUp,
}

#[inline]
fn on_engine(client: &Client, link: &Link, number: u32, args: &mut Args<'_>) -> Tried {
    let mut packet = Packet {
        kernel: number,
        words: args.words,
        ..Packet::default()
    };
    let mut staged: [Option<Lease>; RANGES_MAX] = [const { None }; RANGES_MAX];
    if args.has_memory() && !place_memory(link, args, &mut packet, &mut staged) {
        return Tried::NoRoom;
    }
    let Some(claim) = link.claim() else {
        return Tried::GivenUp;
    };
    match claim.request(&packet, client.spin_cycles) {
        Some(result) => Tried::Done(result),
        None => Tried::GivenUp,
    }
}

impl Claim<'_> {
    /// Makes a request and waits for its answer. `None` where the link was given up.
    #[inline]
    fn request(&self, packet: &Packet, spin_cycles: u64) -> Option<Result<Reply, ClientError>> {
        self.submit(packet)?;
        if !self.spin(spin_cycles) {
            self.link.prefer_idle_engine();
            let mut watch = Watch::new(self.link);
            while !self.nap(&mut watch)? {}
        }
        self.answer()
    }

    /// Hands a request over.
    #[inline]
    pub(super) fn submit(&self, packet: &Packet) -> Option<()> {
        let (request, _) = self.link.segment.pair(self.engine)?;
        let sequence = slot::next(self.link.sequence(self.engine));
        self.link.set_sequence(self.engine, sequence);
        request.write(packet);
        if request.ring(sequence) {
            shared_futex::wake(request.bell(sequence).0, 1);
        }
        Some(())
    }

    /// Whether the answer is there.
    #[inline]
    pub(super) fn is_answered(&self) -> bool {
        let sequence = self.link.sequence(self.engine);
        let pair = self.link.segment.pair(self.engine);
        pair.is_some_and(|(_, completion)| completion.poll(sequence))
    }

    /// Looks for the answer for so many cycles; whether it came.
    #[inline]
    fn spin(&self, cycles: u64) -> bool {
        for _ in 0..TIGHT_LOOKS {
            if self.is_answered() {
                return true;
            }
        }
        let begun = clock::cycles();
        loop {
            for _ in 0..LOOKS_PER_CLOCK_READ {
                if self.is_answered() {
                    return true;
                }
                std::hint::spin_loop();
            }
            if clock::cycles().wrapping_sub(begun) >= cycles {
                return false;
            }
        }
    }

    /// Sleeps for the answer, not long; whether it came. `None` where the daemon is gone.
    pub(super) fn nap(&self, watch: &mut Watch) -> Option<bool> {
        let (_, completion) = self.link.segment.pair(self.engine)?;
        let sequence = self.link.sequence(self.engine);
        let answered = slot::before(sequence);
        if completion.doze(answered) {
            let (word, value) = completion.done(answered);
            shared_futex::wait(word, value, watch.nap());
        }
        if completion.poll(sequence) {
            return Some(true);
        }
        // An answer that came between the two looks is as good as any.
        if watch.look(self.link) && !completion.poll(sequence) {
            return None;
        }
        Some(completion.poll(sequence))
    }

    /// What the answer says. `None` where it makes no sense.
    #[inline]
    pub(super) fn answer(&self) -> Option<Result<Reply, ClientError>> {
        let (_, completion) = self.link.segment.pair(self.engine)?;
        let answer = completion.read();
        match Status::from_number(answer.status)? {
            Status::Done => Some(Ok(Reply {
                words: answer.words,
            })),
            Status::Failed => Some(Err(ClientError::Engine {
                text: completion.text(),
            })),
            // Our numbers and ranges were checked: this daemon is not what it said.
            Status::UnknownKernel | Status::BadRange => Some(Err(ClientError::Nonsense)),
        }
    }
}

/// Writes the call's memory into the packet. Outputs move to the arena for good, inputs that are
/// elsewhere are copied there for this call. False where there is no room.
fn place_memory(
    link: &Link,
    args: &mut Args<'_>,
    packet: &mut Packet,
    staged: &mut [Option<Lease>; RANGES_MAX],
) -> bool {
    let mut used = 0;
    for (index, (buffer, range)) in args.inputs.iter().flatten().enumerate() {
        let Some((lease, place)) = place_input(link, buffer, range) else {
            return false;
        };
        staged[index] = lease;
        packet.ranges[used] = place;
        used += 1;
    }
    packet.inputs = used as u8;
    for (buffer, range) in args.outputs.iter_mut().flatten() {
        if !buffer.move_to(&link.segment) {
            return false;
        }
        let Some(offset) = buffer.offset_in(&link.segment) else {
            return false;
        };
        packet.ranges[used] = ((offset + range.start) as u64, range.len() as u64);
        used += 1;
        packet.outputs += 1;
    }
    true
}

/// Where an input lies in the arena, and the lease if it had to be copied there.
pub(super) fn place_input(
    link: &Link,
    buffer: &Buffer,
    range: &Range<usize>,
) -> Option<(Option<Lease>, (u64, u64))> {
    let bytes = range.len() as u64;
    if let Some(offset) = buffer.offset_in(&link.segment) {
        return Some((None, ((offset + range.start) as u64, bytes)));
    }
    let mut lease = link.segment.lease(range.len()).ok()?;
    lease.bytes_mut()[..range.len()].copy_from_slice(&buffer.bytes()[range.clone()]);
    let offset = lease.offset() as u64;
    Some((Some(lease), (offset, bytes)))
}

/// Runs the host version on this thread.
#[cold]
fn on_host(client: &Client, kernel: KernelId, args: Args<'_>) -> Result<Reply, ClientError> {
    let Some(entry) = client.options.registry.entry(kernel.0) else {
        return Err(ClientError::UnknownKernel {
            name: format!("number {}", kernel.0),
        });
    };
    let gone = AtomicBool::new(false);
    let mut memory = Memory::new(&gone);
    for (buffer, range) in args.inputs.into_iter().flatten() {
        memory.add_input(SharedSlice::from_ref(&buffer.bytes()[range]));
    }
    for (buffer, range) in args.outputs.into_iter().flatten() {
        memory.add_output(SharedSlice::from_mut(&mut buffer.bytes_mut()[range]));
    }
    let request = Request { words: args.words };
    Ok((entry.host)(&request, &memory)?)
}

impl Watch {
    /// How long to sleep before the next look: short at first, for a daemon that is gone.
    fn nap(&mut self) -> Duration {
        self.nap_us = (self.nap_us * 2).clamp(NAP_US_MIN, NAP_US_MAX);
        Duration::from_micros(self.nap_us)
    }
}

/// Looks without the processor's pause.
const TIGHT_LOOKS: u32 = 200;
const LOOKS_PER_CLOCK_READ: u32 = 16;
/// The shortest and the longest sleep between two looks at the daemon.
const NAP_US_MIN: u64 = 500;
const NAP_US_MAX: u64 = 8_000;

//! One call: on an engine where there is one, else on this thread.

use super::args::Args;
use super::buffer::Buffer;
use super::error::ClientError;
use super::link::{Link, Progress, Slot, Waits, Watch};
use super::{Client, KernelId, Wait};
use crate::served::{Memory, Reply, Request};
use crate::shm::layout::{Pair, Status};
use crate::shm::segment::Lease;
use crate::shm::slot::{Packet, RANGES_MAX};
use sidecore_bare::width::ToU64;
use sidecore_sys::{SharedSlice, clock, cpu};
use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;
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
    let wait = Wait::of(client, kernel, args.within);
    if let Some((engine, mut slot)) = client.claim(wait) {
        let mut at = Engine {
            engine,
            slot: &mut slot,
            wait,
        };
        match at.run(client, kernel, &mut args) {
            Tried::Done(result) => {
                slot.calls += 1;
                return result;
            }
            Tried::NoEngine => {}
            Tried::NoRoom if kernel.is_remote => {
                return Err(ClientError::ArenaFull {
                    kernel: client.name_of(kernel),
                });
            }
            Tried::NoRoom => {}
            Tried::GivenUp => {
                client.counters.given_up.fetch_add(1, Ordering::Relaxed);
                // Later writes of the daemon then go to memory that no code reads any more.
                for (buffer, _) in args.outputs.iter_mut().flatten() {
                    drop(buffer.move_home());
                }
            }
            Tried::HeldUp => {
                client.counters.given_up.fetch_add(1, Ordering::Relaxed);
                let outputs = args.outputs.iter_mut().flatten();
                let leases = outputs.filter_map(|(buffer, _)| buffer.move_home());
                let leases = Arc::new(leases.collect());
                slot.leave_behind(engine, leases);
                if kernel.is_remote {
                    return Err(client.late(kernel, args.within));
                }
            }
        }
    } else if kernel.is_remote && client.is_attached() {
        return Err(client.late(kernel, args.within));
    } else {
        // The next call may find a daemon.
        drop(client.link());
    }
    client.counters.on_host.fetch_add(1, Ordering::Relaxed);
    on_host(client, kernel, args)
}

impl Client {
    fn name_of(&self, kernel: KernelId) -> &'static str {
        let entry = self.options.registry.entry(kernel.index);
        entry.map_or("", |entry| entry.name)
    }

    /// The error of a kernel that only the daemon has, after the wait for it.
    #[cold]
    pub(super) fn late(&self, kernel: KernelId, within: Option<Duration>) -> ClientError {
        let waited = within.or(self.options.remote_time_max).unwrap_or_default();
        ClientError::Late {
            kernel: self.name_of(kernel),
            waited_ms: u64::try_from(waited.as_millis()).unwrap_or(u64::MAX),
        }
    }
}

enum Tried {
    Done(Result<Reply, ClientError>),
    /// No daemon, or it has no such kernel.
    NoEngine,
    /// The arena has no room for the call's memory.
    NoRoom,
    GivenUp,
    /// The engine does not move on; the request was left there.
    HeldUp,
}

/// An engine's pair, while this thread owns it.
struct Engine<'a> {
    engine: usize,
    slot: &'a mut Slot,
    wait: Wait,
}

impl Engine<'_> {
    #[inline]
    fn run(&mut self, client: &Client, kernel: KernelId, args: &mut Args<'_>) -> Tried {
        let Some(link) = self.slot.link(self.engine, || client.link()) else {
            return Tried::NoEngine;
        };
        // Looked up for each call: after a new attachment the number is another one.
        let Some(number) = link.number(kernel.index) else {
            return Tried::NoEngine;
        };
        let mut packet = Packet {
            kernel: number,
            words: args.words,
            ..Packet::default()
        };
        let mut staged = None;
        // Calls of words alone never touch the arena, whose lock others may hold.
        if args.has_memory() {
            match place_memory(link, args, &mut packet) {
                Some(leases) => staged = Some(leases),
                None => return Tried::NoRoom,
            }
        }
        let tried = self.request(client, &packet).unwrap_or(Tried::GivenUp);
        // A request that was left behind may still read this memory, with later contents too; its
        // results are never read.
        drop(staged);
        tried
    }

    /// Makes a request and waits for its answer. `None` where the link was given up.
    #[inline]
    fn request(&mut self, client: &Client, packet: &Packet) -> Option<Tried> {
        let engine = self.engine;
        let asked = ask(
            self.slot,
            engine,
            packet,
            client.spin_cycles,
            self.wait,
            |link| {
                if let Some(better) = link.better_engine(engine) {
                    client.preferred.store(better, Ordering::Relaxed);
                }
            },
        );
        Some(match asked? {
            Asked::Answered(result) => Tried::Done(result),
            Asked::HeldUp => Tried::HeldUp,
        })
    }
}

/// Outcome of a request that was made.
pub(super) enum Asked {
    Answered(Result<Reply, ClientError>),
    /// The engine does not move on: the slot's owner leaves the request behind.
    HeldUp,
}

/// Makes a request of the attachment of a slot and waits for its answer, as long as `wait` allows;
/// `slow` is called where that takes long. `None` where the link was given up.
#[inline]
pub(super) fn ask(
    slot: &mut Slot,
    engine: usize,
    packet: &Packet,
    spin_cycles: u64,
    wait: Wait,
    slow: impl FnOnce(&Link),
) -> Option<Asked> {
    let (link, sequence, waits) = slot.next()?;
    let pending = Pending::submit(link, engine, sequence, packet)?;
    if pending.is_answered_after(&waits.patience) {
        return pending.answer().map(Asked::Answered);
    }
    let begun = clock::cycles();
    let halvings = waits.halvings.get();
    if !pending.spin(spin_cycles >> halvings, engine, waits) {
        // Only here: a quick answer pays for neither clock nor system call.
        slow(link);
        let mut watch = Watch::new(link);
        let mut progress = Progress::new(link, engine);
        while !pending.nap(&mut watch)? {
            let ends = match wait {
                Wait::UntilHeldUp => progress.is_held_up(link, engine),
                Wait::Until(_) => wait.is_over(),
            };
            if ends {
                return Some(Asked::HeldUp);
            }
        }
        // All of it would have been worth the while, or the half was not either.
        let waited = clock::cycles().wrapping_sub(begun);
        waits.halvings.set(match waited <= spin_cycles {
            true => 0,
            false => (halvings + 1).min(HALVINGS_MAX),
        });
    }
    pending.answer().map(Asked::Answered)
}

/// A request that was handed over.
pub(super) struct Pending<'a> {
    link: &'a Link,
    pair: Pair<'a>,
    sequence: u32,
}

impl<'a> Pending<'a> {
    /// Hands a request over; wakes the engine if it sleeps.
    #[inline]
    pub(super) fn submit(
        link: &'a Link,
        engine: usize,
        sequence: u32,
        packet: &Packet,
    ) -> Option<Self> {
        let pair = link.segment.pair(engine)?;
        // The request before the wake-up: an engine that wakes looks at once.
        pair.call.ring(sequence, packet);
        pair.sleep.engine.notify();
        Some(Self {
            link,
            pair,
            sequence,
        })
    }

    /// True once the answer is there.
    #[inline]
    pub(super) fn is_answered(&self) -> bool {
        self.pair.call.answered(self.sequence)
    }

    /// Looks for an answer that comes at once; true if it came. The first look waits about as long
    /// as the last quick answers took: one that comes too early takes the line from the engine,
    /// which then has to fetch it back to answer. `patience` is that wait: less after every answer
    /// that was there at the first look, more after one that was not but followed soon, unchanged
    /// after one that took long. It counts turns of an empty loop: they need no clock, and their
    /// exact length does not matter.
    #[inline]
    fn is_answered_after(&self, patience: &Cell<u32>) -> bool {
        let turns = patience.get();
        for _ in 0..turns {
            std::hint::black_box(());
        }
        if self.is_answered() {
            patience.set(turns.saturating_sub(PATIENCE_STEP));
            return true;
        }
        for _ in 0..TIGHT_LOOKS {
            if self.is_answered() {
                patience.set((turns + PATIENCE_LEAP).min(PATIENCE_MAX));
                return true;
            }
        }
        false
    }

    /// Looks for the answer for `cycles` cycles, unless this thread has the engine's core; true if
    /// it came.
    #[inline]
    fn spin(&self, cycles: u64, engine: usize, waits: &Waits) -> bool {
        let begun = clock::cycles();
        loop {
            if let Some(cpu) = self.link.activity.in_the_way(engine) {
                // The engine waits for this core. The kernel may put this thread back on it.
                if waits.may_step_aside(begun) {
                    cpu::step_aside(cpu).ok();
                } else {
                    std::thread::yield_now();
                }
            }
            for _ in 0..LOOKS_PER_CLOCK_READ {
                if self.is_answered() {
                    return true;
                }
                std::hint::spin_loop();
            }
            if clock::cycles().wrapping_sub(begun) >= cycles {
                // This thread's core may have been taken away since the last look.
                return self.is_answered();
            }
        }
    }

    /// Sleeps for the answer, not long; true if it came. `None` where the daemon has ended.
    #[cold]
    pub(super) fn nap(&self, watch: &mut Watch) -> Option<bool> {
        let nap = Some(watch.nap());
        self.pair
            .sleep
            .client
            .sleep_unless(nap, || self.is_answered());
        // An answer that came before the daemon went is as good as any.
        let gone = !self.is_answered() && watch.look(self.link);
        let answered = self.is_answered();
        (answered || !gone).then_some(answered)
    }

    /// The decoded answer. `None` if it is malformed.
    #[inline]
    pub(super) fn answer(&self) -> Option<Result<Reply, ClientError>> {
        let answer = self.pair.call.answer();
        match Status::from_number(answer.status)? {
            Status::Done => Some(Ok(Reply {
                words: answer.words,
            })),
            Status::Failed => Some(Err(ClientError::Engine {
                text: self.pair.call.text(),
            })),
            // Our numbers and ranges were checked: this daemon breaks the protocol.
            Status::UnknownKernel | Status::BadRange | Status::TakenBack => {
                Some(Err(ClientError::Nonsense))
            }
        }
    }
}

/// Copies of inputs that were outside the arena, for the time of a call.
type Staged = [Option<Lease>; RANGES_MAX];

/// Writes the call's memory into the packet. Outputs move to the arena for good, inputs that are
/// elsewhere are copied there for this call. `None` where there is no room.
fn place_memory(link: &Link, args: &mut Args<'_>, packet: &mut Packet) -> Option<Staged> {
    let mut staged: Staged = [const { None }; RANGES_MAX];
    let mut places = packet.ranges.iter_mut();
    for ((buffer, range), copy) in args.inputs.iter().flatten().zip(&mut staged) {
        let (lease, place) = place_input(link, buffer, range)?;
        *copy = lease;
        *places.next()? = place;
        packet.inputs += 1;
    }
    for (buffer, range) in args.outputs.iter_mut().flatten() {
        if !buffer.move_to(&link.segment) {
            return None;
        }
        let offset = buffer.offset_in(&link.segment)?;
        *places.next()? = ((offset + range.start).to_u64(), range.len().to_u64());
        packet.outputs += 1;
    }
    Some(staged)
}

/// An input's offset in the arena, and the lease if it had to be copied there.
pub(super) fn place_input(
    link: &Link,
    buffer: &Buffer,
    range: &Range<usize>,
) -> Option<(Option<Lease>, (u64, u64))> {
    let bytes = range.len().to_u64();
    if let Some(offset) = buffer.offset_in(&link.segment) {
        return Some((None, ((offset + range.start).to_u64(), bytes)));
    }
    let mut lease = link.segment.lease(range.len()).ok()?;
    lease.bytes_mut()[..range.len()].copy_from_slice(&buffer.bytes()[range.clone()]);
    let offset = lease.offset().to_u64();
    Some((Some(lease), (offset, bytes)))
}

/// Runs the kernel's host version on this thread.
#[cold]
fn on_host(client: &Client, kernel: KernelId, args: Args<'_>) -> Result<Reply, ClientError> {
    let Some(entry) = client.options.registry.entry(kernel.index) else {
        return Err(ClientError::UnknownKernel {
            name: format!("number {}", kernel.index),
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
    /// The time to sleep before the next look: short at first, for a daemon that has ended.
    fn nap(&mut self) -> Duration {
        self.nap_us = (self.nap_us * 2).clamp(NAP_US_MIN, NAP_US_MAX);
        Duration::from_micros(self.nap_us)
    }
}

/// Looks without the processor's pause.
const TIGHT_LOOKS: u32 = 200;
/// The change of the first look's wait, and the longest wait. It becomes less after a look that was
/// late enough, more after one that was too early (so that about one in nine is). The longest is
/// some 300 ns, which a call may also lose after longer ones.
const PATIENCE_STEP: u32 = 4;
const PATIENCE_LEAP: u32 = 32;
const PATIENCE_MAX: u32 = 1200;
const LOOKS_PER_CLOCK_READ: u32 = 16;
/// From 50 us to less than 1.
const HALVINGS_MAX: u32 = 6;
/// The shortest and the longest sleep between two looks at the daemon.
const NAP_US_MIN: u64 = 500;
const NAP_US_MAX: u64 = 8_000;

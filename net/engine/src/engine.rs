//! The polling loop: a NIC, a stack, and the applications, on one core.
//!
//! A round: receive a batch of frames, send the replies, serve the applications' requests, run the
//! timers, send frames. Frames that the stack sends to itself are processed in the same round, so
//! that two applications of one engine do not wait for the NIC, which may cost a system call. A
//! round never blocks. After a round without work the loop polls again at once, for as long as
//! [`EngineOptions::grace`] says, if that has paid off lately. Then it sleeps on the NIC's
//! descriptor and the applications' bell until there is work or a timer is due, if the NIC can wake
//! it. While there is no work and no timer is due, a round only polls the NIC and each
//! application's ring, so that a request is seen soon.
//!
//! Several engines may share one address, each with flows of its own: [`siblings`].
//!
//! Why here: `net up`, tests and benches run the same loop. Must stay true: one thread; everything
//! that could block runs on another thread (`sock::control`); the stack's state only changes by a
//! frame, a call that is counted as work, or a timer.

mod loopback;
pub(crate) mod report;
mod siblings;
mod stages;

use crate::Stack;
use crate::event_source::EventSource;
use crate::nic::{Intake, Nic, NicError, Received, Room};
use crate::sock::mailbox::Question;
use crate::sock::server::Server;
use loopback::Loopback;
use report::Report;
use serde::Serialize;
pub use siblings::{ENGINES_MAX, Siblings, siblings};
use sidecore_sched::Patience;
use sidecore_sys::{SysError, clock, cpu, local_socket};
use sidecore_trace::{self as trace, Begun};
use stages::Stages;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Options of the loop.
#[derive(Debug, Clone, Copy)]
pub struct EngineOptions {
    /// Frames that one round receives at most.
    pub batch: usize,
    /// Polling time without work before the loop sleeps; none: it never sleeps.
    pub grace: Option<Duration>,
    /// Polls that long only while waits have lately ended within it, and yields to other threads on
    /// its core meanwhile.
    pub yields: bool,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            batch: 64,
            grace: Some(Duration::from_micros(100)),
            yields: true,
        }
    }
}

/// Error that ends the loop.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The NIC failed.
    #[error(transparent)]
    Nic(#[from] NicError),
    /// The operating system refused to let the loop sleep.
    #[error(transparent)]
    Sys(#[from] SysError),
}

/// Counters of the loop.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct EngineStatus {
    /// Rounds with work.
    pub rounds: u64,
    /// Rounds without work.
    pub idle_rounds: u64,
    /// Number of sleeps.
    pub sleeps: u64,
    /// Cycles of receiving frames and replying to them; these three are extrapolated from one round
    /// in 16.
    pub receive_cycles: u64,
    /// Cycles of the applications' requests.
    pub applications_cycles: u64,
    /// Cycles of timers and of sending.
    pub transmit_cycles: u64,
    /// Frames handed over to engines with the same address; a frame for all of them counts once for
    /// each.
    pub handed_over: u64,
    /// Frames handed over that were lost, because the engine did not take them in time.
    pub handed_lost: u64,
    /// Frames taken from these engines.
    pub handed_taken: u64,
}

/// The state of an engine: NIC, stack, sockets.
#[derive(Debug)]
pub struct Engine<N> {
    nic: N,
    /// The NIC's hardware address.
    address: [u8; 6],
    /// The NIC splits headers and payload (header-data split).
    splits: bool,
    stack: Stack,
    server: Option<Server>,
    options: EngineOptions,
    /// Time of its creation.
    epoch_ns: u64,
    status: EngineStatus,
    /// Start of the current time without work.
    idle: Option<Idle>,
    patience: Patience,
    quiet: Option<Quiet>,
    cycles_per_ns: f64,
    loopback: Loopback,
    siblings: Option<Siblings>,
}

/// The stack as the receiver of a NIC with header-data split.
struct StackIntake<'s> {
    stack: &'s mut Stack,
    epoch_ns: u64,
    now_ns: &'s mut Option<u64>,
}

impl StackIntake<'_> {
    fn now_ns(&mut self) -> u64 {
        *self.now_ns.get_or_insert_with(|| since_ns(self.epoch_ns))
    }
}

impl Intake for StackIntake<'_> {
    fn room(&mut self) -> Option<Room<'_>> {
        self.stack.room()
    }

    fn take(&mut self, frame: Received<'_>) {
        let now_ns = self.now_ns();
        self.stack.receive(now_ns, frame);
    }

    fn take_split(&mut self, frame: Received<'_>) {
        let now_ns = self.now_ns();
        self.stack.receive_split(now_ns, frame);
    }
}

/// A time without work, in which only polling is needed.
#[derive(Debug, Clone, Copy)]
struct Quiet {
    from_cycles: u64,
    cycles: u64,
}

/// A wait for work.
#[derive(Debug, Clone, Copy)]
struct Idle {
    from_cycles: u64,
    /// True to poll before sleeping.
    polls: bool,
    rounds: u32,
    traced: Option<Begun>,
}

impl Idle {
    fn cycles(&self) -> u64 {
        clock::cycles().wrapping_sub(self.from_cycles)
    }
}

impl<N: Nic> Engine<N> {
    /// A loop over `nic` and `stack`; `server` serves applications in other processes.
    pub fn new(nic: N, stack: Stack, server: Option<Server>, options: EngineOptions) -> Self {
        Self {
            address: nic.capabilities().address,
            splits: nic.splits(),
            nic,
            stack,
            server,
            options,
            epoch_ns: clock::now_ns(),
            status: EngineStatus::default(),
            idle: None,
            patience: Patience::default(),
            quiet: None,
            cycles_per_ns: clock::cycles_per_us() / 1e3,
            loopback: Loopback::default(),
            siblings: None,
        }
    }

    /// Makes it one of several engines that share its stack's address. All of them need the same
    /// configuration, including the seed; see [`siblings`]. Call it before the first round.
    #[must_use]
    pub fn with_siblings(mut self, siblings: Siblings) -> Self {
        if siblings.count() > 1 {
            let (index, count) = (siblings.index() as u16, siblings.count() as u16);
            self.stack.join_shard(index, count);
            // One clock for all: timestamps and SYN cookies of one engine are valid in the others.
            self.epoch_ns = siblings.epoch_ns();
            self.siblings = Some(siblings);
        }
        self
    }

    /// The stack, for sockets in this process.
    pub fn stack(&mut self) -> &mut Stack {
        // The caller may create work, so the next round must not be skipped.
        self.quiet = None;
        &mut self.stack
    }

    /// Counters of the loop.
    #[must_use]
    pub fn status(&self) -> EngineStatus {
        let exchanged = self.siblings.as_ref().map(Siblings::exchanged);
        let exchanged = exchanged.unwrap_or_default();
        EngineStatus {
            handed_over: exchanged.given,
            handed_lost: exchanged.lost,
            handed_taken: exchanged.taken,
            ..self.status
        }
    }

    /// Runs until `stop`. `local` is called in every round, in some several times, for sockets in
    /// this process: it returns the amount of work done, 0 only if it changed nothing. After
    /// setting `stop`, the loop may sleep on for [`NAP_MAX`].
    ///
    /// # Errors
    /// [`EngineError`] when the NIC is gone.
    pub fn run(
        &mut self,
        stop: &AtomicBool,
        mut local: impl FnMut(&mut Stack) -> usize,
    ) -> Result<(), EngineError> {
        let (index, _) = self.siblings.as_ref().map_or((0, 1), Siblings::place);
        trace::name_thread(|| format!("engine {index} (cpu {})", cpu::current()));
        while !stop.load(Ordering::Acquire) {
            let work = self.round(&mut local)?;
            self.rest(work, None, NAP_MAX)?;
        }
        Ok(())
    }

    /// One round, for callers with a loop of their own; then, after a round without work, polling
    /// or sleeping for at most `rest`, as in [`Self::run`]. It may return long before.
    ///
    /// # Errors
    /// [`EngineError`] when the NIC is gone.
    pub fn turn(&mut self, rest: Duration) -> Result<(), EngineError> {
        self.turn_beside(None, rest).map(|_| ())
    }

    /// The same; a sleep also ends with an event of the other source. True if it has slept.
    ///
    /// # Errors
    /// As [`Self::turn`].
    pub(crate) fn turn_beside(
        &mut self,
        other: Option<&dyn EventSource>,
        rest: Duration,
    ) -> Result<bool, EngineError> {
        let work = self.round(&mut |_| 0)?;
        if work > 0 || !rest.is_zero() {
            return self.rest(work, other, rest);
        }
        Ok(false)
    }

    /// The server for other processes, if there is one.
    pub(crate) fn server(&mut self) -> Option<&mut Server> {
        self.server.as_mut()
    }

    /// One round; the amount of work done.
    ///
    /// # Errors
    /// [`EngineError`] when the NIC is gone.
    pub fn round(
        &mut self,
        local: &mut impl FnMut(&mut Stack) -> usize,
    ) -> Result<usize, EngineError> {
        // Read lazily: a round without work does not need the clock.
        let mut now_ns = None;
        let epoch_ns = self.epoch_ns;
        let mut stages = Stages::begin(self.status.rounds);
        let mut work = self.receive(&mut now_ns)?;
        let (mut looped, mut counted) = (0, 0);
        for _ in 0..PASSES_MAX {
            // Frames to the own address arrive in the same round; their answers are the work of the
            // next pass.
            if work > 0 || !self.loopback.is_empty() {
                let now_ns = *now_ns.get_or_insert_with(|| since_ns(epoch_ns));
                // Bounded, because two of its own sessions could keep a round busy for ever.
                let left = LOOPED_FRAMES_MAX - looped;
                let taken = self.loopback.receive(now_ns, &mut self.stack, left);
                looped += taken;
                work += taken;
                self.stack.process_staged();
                if let Some(siblings) = &mut self.siblings {
                    siblings.hand_over(&mut self.stack);
                }
            }
            stages.end(0, work - counted);
            counted = work;
            // Before the server, which then finds what local sockets have made ready.
            work += local(&mut self.stack);
            if let Some(server) = &mut self.server {
                work += server.serve(&mut self.stack);
            }
            // Without work since the last check, and with no timer due, there is nothing to send.
            if work == 0 && self.is_quiet() {
                break;
            }
            stages.end(1, work - counted);
            counted = work;
            let now_ns = *now_ns.get_or_insert_with(|| since_ns(epoch_ns));
            work += self.transmit(now_ns)?;
            stages.end(2, work - counted);
            counted = work;
            if work == 0 {
                self.begin_quiet(now_ns);
            }
            // The rest waits for the next round, so that the NIC and the applications get their
            // turn.
            if self.loopback.is_empty() || looped == LOOPED_FRAMES_MAX {
                break;
            }
        }
        if work == 0 {
            self.status.idle_rounds += 1;
        } else {
            self.status.rounds += 1;
            let idle = self.idle.and_then(|idle| idle.traced);
            stages.end_round(work, idle);
            let [receive, applications, transmit] = stages.cycles;
            self.status.receive_cycles += receive;
            self.status.applications_cycles += applications;
            self.status.transmit_cycles += transmit;
            self.quiet = None;
            if let Some(server) = &mut self.server {
                // At the end: a wake-up is a system call, and its events were visible before.
                server.wake();
            }
        }
        self.answer();
        Ok(work)
    }

    /// Frames of the NIC and of siblings, to the stack; their number.
    #[inline]
    fn receive(&mut self, now_ns: &mut Option<u64>) -> Result<usize, EngineError> {
        let (stack, epoch_ns) = (&mut self.stack, self.epoch_ns);
        let mut captures = self.server.as_mut().and_then(Server::captures);
        // A capture has frames in one piece.
        let mut work = if self.splits && captures.is_none() {
            let mut intake = StackIntake {
                stack,
                epoch_ns,
                now_ns,
            };
            self.nic.receive_split(self.options.batch, &mut intake)?
        } else {
            self.nic.receive(self.options.batch, &mut |frame| {
                let now_ns = *now_ns.get_or_insert_with(|| since_ns(epoch_ns));
                if let Some(captures) = &mut captures {
                    captures.received(frame.bytes);
                }
                stack.receive(now_ns, frame);
            })?
        };
        // Siblings may have received frames for sessions of this engine.
        if let Some(siblings) = &mut self.siblings
            && siblings.waits()
        {
            let now_ns = *now_ns.get_or_insert_with(|| since_ns(epoch_ns));
            work += siblings.receive(now_ns, &mut self.stack, self.options.batch);
        }
        Ok(work)
    }

    /// Timers, and frames to send; their number.
    fn transmit(&mut self, now_ns: u64) -> Result<usize, EngineError> {
        let (nic, mut failed, mut sent) = (&mut self.nic, None, 0);
        let (loopback, own) = (&mut self.loopback, self.address);
        let mut captures = self.server.as_mut().and_then(Server::captures);
        self.stack.transmit(now_ns, &mut |frame| {
            // The NIC would not return a frame to its own address.
            let taken = if frame.header.starts_with(&own) {
                Ok(loopback.transmit(frame))
            } else {
                nic.transmit(frame)
            };
            match taken {
                Ok(taken) => {
                    if let (true, Some(captures)) = (taken, &mut captures) {
                        captures.sent(frame);
                    }
                    sent += usize::from(taken);
                    taken
                }
                Err(error) => {
                    failed = Some(error);
                    false
                }
            }
        });
        nic.flush()?;
        match failed {
            Some(error) => Err(error.into()),
            None => Ok(sent),
        }
    }

    /// True if there was no work when last checked, and no timer is due yet.
    fn is_quiet(&self) -> bool {
        let quiet = self.quiet.as_ref();
        quiet.is_some_and(|quiet| clock::cycles().wrapping_sub(quiet.from_cycles) < quiet.cycles)
    }

    /// Starts a time without work, until the next timer is due.
    fn begin_quiet(&mut self, now_ns: u64) {
        let timer_ns = self.stack.next_timer().unwrap_or(u64::MAX);
        // Bounded, because cycles are only an estimate of the time.
        let ns = timer_ns.saturating_sub(now_ns).min(QUIET_NS_MAX);
        self.quiet = Some(Quiet {
            from_cycles: clock::cycles(),
            cycles: (ns as f64 * self.cycles_per_ns) as u64,
        });
    }

    /// Polls on, or sleeps after a long enough time without work if a wake-up is possible.
    fn rest(
        &mut self,
        work: usize,
        other: Option<&dyn EventSource>,
        limit: Duration,
    ) -> Result<bool, EngineError> {
        // Polling has paid if the work came within the grace.
        if work > 0 {
            if let Some(idle) = self.idle.take() {
                self.patience
                    .ended(idle.polls, idle.cycles() <= self.grace_cycles());
            }
            return Ok(false);
        }
        // Without a grace, the loop never sleeps.
        if self.options.grace.is_none() {
            std::hint::spin_loop();
            return Ok(false);
        }
        let (patience, yields) = (&mut self.patience, self.options.yields);
        let idle = self.idle.get_or_insert_with(|| Idle {
            from_cycles: clock::cycles(),
            polls: !yields || patience.polls(),
            rounds: 0,
            traced: trace::begin(),
        });
        idle.rounds = idle.rounds.wrapping_add(1);
        let (idle, grace_cycles) = (*idle, self.grace_cycles());
        // Polls first, unless earlier times without work have shown that sleeping is better.
        if idle.polls && idle.cycles() < grace_cycles {
            if yields && idle.rounds.is_multiple_of(ROUNDS_A_YIELD) {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
            return Ok(false);
        }
        let now_ns = since_ns(self.epoch_ns);
        let nap_max = limit.min(NAP_MAX);
        let nap = self.stack.next_timer().map_or(nap_max, |at_ns| {
            Duration::from_nanos(at_ns.saturating_sub(now_ns)).min(nap_max)
        });
        // The timer is due before a sleep and a wake-up would be over.
        if nap < NAP_MIN {
            return Ok(false);
        }
        // The memory offered for the next payload must not stay reserved for the time of a sleep.
        self.stack.retract();
        self.sleep(other, nap)
    }

    /// Sleeps until there is work, or an event of `other`, or `nap` is over; false if there was
    /// work already.
    fn sleep(
        &mut self,
        other: Option<&dyn EventSource>,
        nap: Duration,
    ) -> Result<bool, EngineError> {
        // Armed before the last look: work that arrives in between rings a bell, or is seen here.
        let armed = self.nic.arm()?
            && self.server.as_ref().is_none_or(Server::arm)
            && self.siblings.as_ref().is_none_or(Siblings::arm);
        if let Some(other) = other {
            other.announce_sleep();
        }
        let mut has_slept = false;
        let is_quiet = !other.is_some_and(EventSource::is_ready);
        // Work that was found while arming is the next round's.
        if armed
            && is_quiet
            && let Some(descriptor) = self.nic.descriptor()
        {
            // The allocation is of no weight next to the system call that follows.
            let mut descriptors = vec![descriptor];
            descriptors.extend(self.server.as_ref().map(Server::bell));
            descriptors.extend(self.siblings.as_ref().map(Siblings::bell));
            descriptors.extend(other.map(EventSource::descriptor));
            self.status.sleeps += 1;
            let nap_us = u64::try_from(nap.as_micros()).unwrap_or(u64::MAX);
            let _sleep = trace::span(&stages::SLEEP, nap_us, 0);
            has_slept = true;
            local_socket::poll(&descriptors, &mut Vec::new(), nap)?;
        }
        if let Some(other) = other {
            other.cancel_sleep();
        }
        if let Some(server) = &self.server {
            // Also if it did not sleep: otherwise processes would ring for each request.
            server.disarm();
        }
        if let Some(siblings) = &self.siblings {
            siblings.disarm();
        }
        Ok(has_slept)
    }

    /// Polling time without work, in cycles; 0 if the loop never sleeps.
    fn grace_cycles(&self) -> u64 {
        let grace = self.options.grace.unwrap_or_default();
        (grace.as_nanos() as f64 * self.cycles_per_ns) as u64
    }

    /// Answers a question of the control thread.
    fn answer(&mut self) {
        let Some(server) = self.server.as_ref().filter(|server| server.is_asked()) else {
            return;
        };
        if let Question::Sessions(from) = server.question() {
            let page = report::sessions(&mut self.stack, from, &|id| server.owner(id));
            return server.answer(page);
        }
        let (index, count) = self.siblings.as_ref().map_or((0, 1), Siblings::place);
        let report = Report {
            engine_index: index,
            engine_count: count,
            uptime_seconds: since_ns(self.epoch_ns) as f64 / 1e9,
            engine: self.status(),
            nic: self.nic.report(),
            applications: server.status_over(&self.stack).collect(),
            applications_cut_off: server.violations(),
            ..Report::of_stack(&self.stack)
        };
        server.answer(report.json());
    }
}

/// Nanoseconds since `epoch_ns`.
#[inline]
fn since_ns(epoch_ns: u64) -> u64 {
    clock::now_ns().saturating_sub(epoch_ns)
}

/// Idle rounds between two yields to other threads on the core.
const ROUNDS_A_YIELD: u32 = 8;
/// Loopback passes of one round, at most.
const PASSES_MAX: usize = 4;
/// Frames that one round takes from the loopback, over all its passes.
const LOOPED_FRAMES_MAX: usize = 1024;
/// Longest time without work in which the stack's timers are not checked.
const QUIET_NS_MAX: u64 = 1_000_000;
/// The longest sleep, and so the longest delay of a stop request.
pub const NAP_MAX: Duration = Duration::from_millis(100);
/// A shorter sleep does not pay for its two system calls.
const NAP_MIN: Duration = Duration::from_micros(20);

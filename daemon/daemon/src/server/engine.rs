//! The thread of one engine: polls the bells of all clients in turn, serves, and sleeps when none
//! rings.
//!
//! Fair share: one round looks at every client once and serves one of those that ring. It takes the
//! user that has used the least of the engine's time, and of that user's clients the one that has
//! used the least ([`Turns`]). Only the client that was served last is left alone for a moment
//! while no other rings (see [`Recent`]). A running kernel is never interrupted: others wait for as
//! long as it takes, which should be no longer than some 100 us.
//!
//! A turn is a request at the bell, or one of the client's jobs ([`jobs`]).
//!
//! Must stay true: it never waits for a client; of a packet it uses only its copy; it drops a
//! session soon after the roster does (at the next round). No system call but to sleep, to wake a
//! client that sleeps, and, while no client rings, to let others have its core.

mod jobs;

use super::DaemonOptions;
use super::error::DaemonError;
use super::roster::Roster;
pub use super::status::Bench;
use super::tracks;
use super::turns::{Account, Turn, Turns, User};
use crate::served::{Memory, Origin, Registry, Reply, Request};
use crate::shm::activity::ActivityPage;
use crate::shm::layout::{CLIENTS_MAX, Pair, Status};
use crate::shm::session::Session;
use crate::shm::slot::{Answer, Packet};
use sidecore_bare::width::ToUsize;
use sidecore_engine::Core;
use sidecore_sync::{Shared, SleepWord};
use sidecore_sys::{clock, cpu, shared_futex};
use sidecore_trace as trace;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// A client at this engine.
struct Seat {
    session: Arc<Session>,
    /// The number of the last request that was served.
    seen: u32,
    /// Time for which it is left alone after an answer, in looks at one client.
    patience: u32,
    account: Account,
    /// Its user's place among [`Server::users`].
    user: usize,
    /// True if it did not ring in this round.
    quiet: bool,
    /// True if a job had its last turn, so that a request has the next.
    had_job: bool,
}

/// The client that was served last. A look at its line right after the answer takes the line from a
/// client that is about to ring again and then has to fetch it back. So it is left alone for about
/// as long as it takes to ring again. Ends as soon as another client is served: other turns never
/// delay a turn that is due.
#[derive(Debug, Default)]
struct Recent {
    seat: usize,
    /// Rounds for which it is still left alone.
    quiet_rounds: u32,
    /// Looks at it since then.
    looks: u32,
}

impl Recent {
    /// One that was served last, and of whose next request nothing is to be learned.
    fn not_left_alone(seat: usize) -> Self {
        Self {
            seat,
            quiet_rounds: 0,
            looks: LOOKS_SOON,
        }
    }
}

/// Everything that an engine's thread owns.
pub struct Server {
    engine: usize,
    core: Core,
    registry: Registry,
    /// The kernels' names, as they are recorded.
    labels: Vec<u64>,
    /// The time since when no client rings, while that is recorded.
    idle: Option<trace::Begun>,
    activity: Arc<ActivityPage>,
    roster: Arc<Roster>,
    bench: Arc<Bench>,
    generation: u32,
    seats: Vec<Seat>,
    /// The users of these clients.
    users: Vec<User>,
    recent: Recent,
    turns: Turns,
    grace_cycles: u64,
    /// As configured: it may have to do without.
    grace_cycles_max: u64,
    /// The most of it while others wait for cores.
    wanted_cycles: u64,
    /// Idle time after which it lets others have its core now and then.
    yield_cycles: u64,
    /// True if other engines want the same core.
    shares_core: bool,
    /// They did at the start.
    shares_core_always: bool,
}

impl Server {
    /// An engine that serves the clients of `roster`, its kernels prepared.
    ///
    /// # Errors
    /// [`DaemonError::Kernel`].
    pub fn new(
        engine: usize,
        mut core: Core,
        options: &DaemonOptions,
        activity: Arc<ActivityPage>,
        roster: Arc<Roster>,
        bench: Arc<Bench>,
        shares_core: bool,
    ) -> Result<Self, DaemonError> {
        for entry in options.registry.entries() {
            (entry.prepare)(&mut core).map_err(|source| DaemonError::Kernel {
                name: entry.name,
                store_bytes: entry.store_bytes,
                source,
            })?;
        }
        let grace_us = options.grace.as_secs_f64() * 1e6;
        Ok(Self {
            engine,
            core,
            labels: (options.registry.entries().iter())
                .map(|entry| trace::label(entry.name))
                .collect(),
            idle: None,
            registry: options.registry.clone(),
            activity,
            roster,
            bench,
            // Differs from the roster's first generation, so that the first round looks at it.
            generation: u32::MAX,
            seats: Vec::with_capacity(CLIENTS_MAX),
            users: Vec::new(),
            recent: Recent::default(),
            turns: Turns::new(clock::cycles_per_us()),
            grace_cycles: (grace_us * clock::cycles_per_us()) as u64,
            grace_cycles_max: (grace_us * clock::cycles_per_us()) as u64,
            wanted_cycles: (WANTED_US * clock::cycles_per_us()) as u64,
            yield_cycles: (YIELD_US * clock::cycles_per_us()) as u64,
            shares_core,
            shares_core_always: shares_core,
        })
    }

    /// Serves until the roster ends.
    pub(crate) fn run(mut self) {
        self.bench.thread.store(cpu::thread_id(), Ordering::Relaxed);
        // A refusal costs speed, not results. The niceness keeps the kernel from putting clients
        // on this core while others have room.
        let cpu = self.bench.cpu.load(Ordering::Relaxed);
        cpu::pin(cpu).ok();
        if !self.shares_core {
            cpu::set_nice(ENGINE_NICE).ok();
        }
        trace::name_thread(|| format!("engine {} (cpu {cpu})", self.engine));
        let alarm = Alarm(Arc::clone(&self.bench));
        let mut idle_rounds = 0u32;
        let mut polled_cycles = clock::cycles();
        let mut idle_since = polled_cycles;
        loop {
            if self.roster.generation() != self.generation {
                if self.roster.has_ended() || self.bench.abandoned.load(Ordering::Relaxed) {
                    break;
                }
                self.reload();
            }
            if self.round() {
                idle_rounds = 0;
                continue;
            }
            idle_rounds = idle_rounds.wrapping_add(1);
            if self.shares_core {
                std::thread::yield_now();
            } else if idle_rounds > TIGHT_ROUNDS {
                std::hint::spin_loop();
            }
            if idle_rounds == 1 {
                self.idle = self.idle.or_else(trace::begin);
                idle_since = clock::cycles();
                polled_cycles = idle_since;
            } else if idle_rounds.is_multiple_of(ROUNDS_PER_CLOCK_READ) {
                let now = clock::cycles();
                self.note_stall(now.wrapping_sub(polled_cycles));
                // A client that runs on this core may be about to ask; without one, this takes a
                // tenth of a microsecond.
                if now.wrapping_sub(idle_since) >= self.yield_cycles {
                    std::thread::yield_now();
                }
                polled_cycles = clock::cycles();
                if now.wrapping_sub(idle_since) >= self.grace_cycles {
                    self.sleep();
                    idle_rounds = 0;
                }
            }
        }
        std::mem::forget(alarm);
    }

    /// Takes over a changed roster and has one round: `run` without a thread.
    pub fn look(&mut self) -> bool {
        if self.roster.generation() != self.generation {
            self.reload();
        }
        self.round()
    }

    /// Looks at every client once and serves one; true if any had a request.
    #[inline]
    fn round(&mut self) -> bool {
        let mut best = None;
        // The one that was served last comes last: it is no sooner ready for having a low number.
        let mut seat = self.recent.seat;
        for _ in 0..self.seats.len() {
            seat = if seat + 1 < self.seats.len() {
                seat + 1
            } else {
                0
            };
            let is_recent = seat == self.recent.seat;
            let here = &mut self.seats[seat];
            here.quiet = true;
            if is_recent && self.recent.quiet_rounds > 0 {
                self.recent.quiet_rounds -= 1;
                continue;
            }
            let Some(pair) = here.session.pair(self.engine) else {
                continue;
            };
            let asks = pair.call.rung(here.seen).is_some() || here.session.has_job();
            if asks && here.session.may_be_served() {
                here.quiet = false;
                let user = &self.users[here.user];
                best = Some(self.turns.better(best, seat, user, &here.account));
            } else if is_recent {
                self.recent.looks = self.recent.looks.saturating_add(1);
            }
        }
        let Some(turn) = best else {
            return false;
        };
        trace::span_since(self.idle.take(), &tracks::POLL, 0);
        if self.seats.len() == 1 || !self.looks_out(turn) {
            self.serve(turn);
        }
        true
    }

    /// True if the engine should look at other clients than the one whose turn it is. Where other
    /// engines want the same core, that would be at their cost.
    fn looks_out(&self, turn: Turn) -> bool {
        let quiet = self.seats.iter().filter(|seat| seat.quiet);
        let accounts = quiet.map(|seat| (&self.users[seat.user], &seat.account));
        !self.shares_core && self.turns.looks_out(turn, accounts, clock::cycles())
    }

    /// Serves the request of a client that rings, or a job of it.
    #[inline]
    fn serve(&mut self, turn: Turn) {
        if self.is_for_job(turn) {
            self.serve_job(turn);
            return;
        }
        let Seat { session, seen, .. } = &mut self.seats[turn.seat];
        let Some(pair) = session.pair(self.engine) else {
            return;
        };
        let Some(bell) = pair.call.rung(*seen) else {
            return; // Rung, and taken back: a client that writes rubbish.
        };
        // Counted only where the user's requests are limited; another engine may have been quicker.
        let serving = session.load.as_ref().map(|load| load.begin());
        if serving.as_ref().is_some_and(Option::is_none) {
            return;
        }
        let sequence = bell.sequence();
        *seen = sequence;
        let packet = pair.call.packet(bell);
        let session = &**session;
        let began = clock::cycles();
        self.bench.kernel.store(packet.kernel, Ordering::Relaxed);
        self.bench.begun_cycles.store(began, Ordering::Relaxed);
        // Relaxed: only this thread writes it.
        let count = self.bench.calls.load(Ordering::Relaxed) as u32;
        self.activity.serve(self.engine, session.client, count);
        let label = self.labels.get(packet.kernel.to_usize()).copied();
        let call = trace::span(
            &tracks::CALL,
            label.unwrap_or(0),
            session.peer.pid.unsigned_abs().into(),
        );
        let failed = serve(
            &mut self.core,
            &self.registry,
            (session, self.engine),
            &packet,
            sequence,
            pair,
        );
        drop(call);
        drop(serving);
        self.activity.rest(self.engine, count);
        let ended = clock::cycles();
        let Seat { account, user, .. } = &mut self.seats[turn.seat];
        let user = &mut self.users[*user];
        self.turns.served(turn, user, account, began, ended);
        self.count(turn.seat, ended.wrapping_sub(began), failed);
        // Only now: the fence in there waits until the answer has left, and the code above runs
        // meanwhile.
        wake_client(&self.seats[turn.seat].session, self.engine);
        self.leave_alone(turn.seat);
    }

    /// Notes the client that was served, and learns for how long to leave it alone: a little less
    /// if it had rung before the first look, more if it had not but did soon.
    #[inline]
    fn leave_alone(&mut self, seat: usize) {
        let patience = &mut self.seats[seat].patience;
        if seat == self.recent.seat {
            if self.recent.looks == 0 {
                *patience = patience.saturating_sub(1);
            } else if self.recent.looks < LOOKS_SOON {
                *patience = (*patience + PATIENCE_LEAP).min(PATIENCE_MAX);
            }
        }
        self.recent = Recent {
            seat,
            // On a shared core a round lasts as long as the others like.
            // The patience is in looks at one client; a round looks at all of them.
            quiet_rounds: match self.shares_core {
                true => 0,
                false => *patience / self.seats.len().max(1) as u32,
            },
            looks: 0,
        };
    }

    /// Adds a request to the figures. Only this thread writes them, so no read-modify-write is
    /// needed.
    #[inline]
    fn count(&self, seat: usize, cycles: u64, failed: bool) {
        let add = |counter: &AtomicU64, more: u64| {
            counter.store(counter.load(Ordering::Relaxed) + more, Ordering::Relaxed);
        };
        let bench = &*self.bench;
        bench.begun_cycles.store(0, Ordering::Relaxed);
        add(&bench.calls, 1);
        add(&bench.busy_cycles, cycles);
        if failed {
            add(&bench.failures, 1);
        }
        if let Some(served) = self.seats[seat].session.served.get(self.engine) {
            add(&served.calls, 1);
            add(&served.cycles, cycles);
            if failed {
                add(&served.failures, 1);
            }
        }
    }

    fn note_stall(&self, gap_cycles: u64) {
        if clock::cycles_to_ns(gap_cycles) > STALL_NS_MIN && !self.shares_core {
            self.bench.stalls.fetch_add(1, Ordering::Relaxed);
            self.bench
                .stall_cycles
                .fetch_add(gap_cycles, Ordering::Relaxed);
        }
    }

    /// Takes over the roster's list. The state of clients that stay is kept.
    fn reload(&mut self) {
        self.generation = self.roster.generation();
        self.follow_cores();
        let before = std::mem::take(&mut self.seats);
        let users_before = std::mem::take(&mut self.users);
        let users = &mut self.users;
        let mut place_of = |uid: u32| {
            users
                .iter()
                .position(|user| user.uid == uid)
                .unwrap_or_else(|| {
                    let known = users_before.iter().find(|user| user.uid == uid);
                    users.push(known.copied().unwrap_or_else(|| User::new(uid)));
                    users.len() - 1
                })
        };
        self.seats = self
            .roster
            .sessions()
            .into_iter()
            .map(|session| {
                let known = before
                    .iter()
                    .find(|seat| Arc::ptr_eq(&seat.session, &session));
                // Requests that an earlier thread of this engine has answered are not served again.
                let answered = || {
                    session
                        .pair(self.engine)
                        .map(|pair| pair.call.last_answered())
                };
                let seen = known.map(|seat| seat.seen).or_else(answered);
                Seat {
                    user: place_of(session.peer.uid),
                    session,
                    seen: seen.unwrap_or(0),
                    patience: known.map_or(0, |seat| seat.patience),
                    account: known.map_or_else(Account::default, |seat| seat.account),
                    quiet: true,
                    had_job: false,
                }
            })
            .collect();
        self.recent = Recent::default();
    }

    /// Goes where the process may run now.
    fn follow_cores(&mut self) {
        let cores = self.roster.cores();
        if let Some(&cpu) = cores.cpus.get(self.engine)
            && cpu != self.bench.cpu.swap(cpu, Ordering::Relaxed)
        {
            // A refusal costs speed, as at the start.
            cpu::pin(cpu).ok();
        }
        self.shares_core = self.shares_core_always || cores.is_shared;
        let polls = cores.pollers.is_none_or(|pollers| self.engine < pollers);
        self.grace_cycles = match (polls, cores.is_wanted) {
            (false, _) => 0,
            (true, false) => self.grace_cycles_max,
            (true, true) => self.grace_cycles_max.min(self.wanted_cycles),
        };
    }

    /// Tells every client that this engine sleeps, and sleeps until one rings or the roster has
    /// news.
    #[cold]
    fn sleep(&mut self) {
        let engine = self.engine;
        let pairs = || {
            self.seats
                .iter()
                .filter_map(|seat| Some((seat.session.pair(engine)?, seat.seen)))
        };
        let mut words: Vec<(&AtomicU32, u32)> = vec![(self.roster.word(), self.generation)];
        for (pair, _) in pairs() {
            let word = &pair.sleep.engine;
            words.push((word.as_atomic(), SleepWord::<Shared>::ASLEEP));
        }
        SleepWord::announce_sleep_at(pairs().map(|(pair, _)| &pair.sleep.engine));
        let has_job = self.seats.iter().any(|seat| seat.session.has_job());
        if !has_job && pairs().all(|(pair, seen)| pair.call.rung(seen).is_none()) {
            self.bench.asleep.store(true, Ordering::Relaxed);
            self.bench.sleeps.fetch_add(1, Ordering::Relaxed);
            let _sleep = trace::span(&tracks::SLEEP, 0, 0);
            // It was there when the daemon started. If a sandbox took it away since, the engine
            // polls slowly.
            if shared_futex::wait_any(&words, NAP_MAX).is_err() {
                std::thread::sleep(Duration::from_millis(1));
            }
            self.bench.asleep.store(false, Ordering::Relaxed);
        }
        for (pair, _) in pairs() {
            pair.sleep.engine.cancel_sleep();
        }
    }
}

/// Runs one request on the engine; true if it failed.
#[inline]
fn serve(
    core: &mut Core,
    registry: &Registry,
    (session, engine): (&Session, usize),
    packet: &Packet,
    sequence: u32,
    pair: Pair<'_>,
) -> bool {
    let request = Request {
        words: packet.words,
    };
    let mut memory = Memory::new(&session.gone).from(Origin::new(session, engine));
    let mut text = None;
    let result = match registry.entry(packet.kernel.to_usize()) {
        None => Err(Status::UnknownKernel),
        Some(entry) => match session.lend(packet, &mut memory) {
            Ok(()) => (entry.engine)(core, &request, &memory).map_err(|error| {
                text = Some(error.to_string());
                Status::Failed
            }),
            Err(status) => Err(status),
        },
    };
    let (status, Reply { words }) = match result {
        Ok(reply) => (Status::Done, reply),
        Err(status) => {
            let entry = registry.entry(packet.kernel.to_usize());
            session.note_failure(entry.map(|entry| entry.name), status, text.as_deref());
            (status, Reply::default())
        }
    };
    let answer = Answer {
        status: status as u32,
        words,
    };
    let text = text.as_deref().unwrap_or_default();
    pair.call.publish(sequence, &answer, text);
    status != Status::Done
}

/// Wakes the client of a session if it sleeps, after its request was answered.
#[inline]
fn wake_client(session: &Session, engine: usize) {
    if let Some(pair) = session.pair(engine) {
        pair.sleep.client.notify();
    }
}

/// Tells the control thread where an engine's thread ends by a panic, which would be our bug.
struct Alarm(Arc<Bench>);

impl Drop for Alarm {
    fn drop(&mut self) {
        self.0.broken.store(true, Ordering::Relaxed);
    }
}

/// Rounds without the processor's pause after the last request: the next may be on its way.
const TIGHT_ROUNDS: u32 = 256;
/// Number of looks within which a client that rings again was looked at too early.
const LOOKS_SOON: u32 = 32;
/// Looks by which the time that a client is left alone grows, and its greatest value: some 200 ns,
/// which a client that rings earlier than before may also lose.
const PATIENCE_LEAP: u32 = 8;
const PATIENCE_MAX: u32 = 40;
const ROUNDS_PER_CLOCK_READ: u32 = 64;
/// Four times the weight of an ordinary thread: clients move to other cores, and a few that stay
/// get some of this one.
const ENGINE_NICE: i32 = -6;
/// Idle microseconds after which an engine lets a client that runs on its core go on.
const YIELD_US: f64 = 5.0;
/// Idle microseconds after which an engine sleeps while others wait for cores: some ten times the
/// cost of waking it, so that clients whose requests follow one another see no difference.
const WANTED_US: f64 = 200.0;
/// A gap between two looks that is longer than this means that the core was taken away.
const STALL_NS_MIN: u64 = 100_000;
/// Longest sleep of an engine between two looks at its clients.
const NAP_MAX: Duration = Duration::from_secs(10);

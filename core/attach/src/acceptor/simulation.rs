//! The acceptor in virtual time: users of every behaviour, a kernel with a bounded queue and few
//! descriptors, and a maker of segments, all from a seed.
//!
//! The acceptor's own [`Book`] and [`Accounts`] run here, driven in the order of `Acceptor::wait`.
//! The kernel around them is simulated: connections that come, ask, hang up or stay silent,
//! exhausted descriptors, memory that clients keep after hanging up, and a server that shuts down.
//! A failing seed is printed; [`run`] with it repeats the failure.

use super::book::Book;
use crate::quota::{Accounts, Quota};
use crate::{AdmissionLimits, INTRODUCTION_TIME_MAX};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// A client's plan and its progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Plan {
    uid: u32,
    /// The time from the connection to the question; none: it says nothing.
    asks_after: Option<Duration>,
    /// The time from the attachment, or the connection, to the hang-up; none: it stays.
    stays: Option<Duration>,
    /// The time for which its memory is kept after that.
    keeps: Duration,
    bytes: u64,
    /// It tries again after a hang-up, and that it is answered is an invariant.
    is_honest: bool,
}

/// A connection as the kernel and the client have it.
#[derive(Debug)]
struct Socket {
    plan: Plan,
    asks_at: Option<Duration>,
    hangs_up_at: Option<Duration>,
    has_segment: bool,
}

struct World {
    random: Random,
    now: Duration,
    book: Book<Socket>,
    accounts: Accounts,
    backlog: VecDeque<Plan>,
    /// Descriptors that the process may open.
    descriptors: usize,
    /// Descriptors that something else of the process takes now and then.
    taken: usize,
    /// Orders that the maker has: connection, user, bytes, when it is done.
    orders: VecDeque<(u64, u32, u64, Duration)>,
    /// Segments that were given back by the session and are still held outside: until when.
    kept: Vec<(u32, u64, Duration)>,
    /// Honest clients that want in: since when, and their plans.
    wanting: Vec<(Duration, Plan)>,
    comes_at: Duration,
    /// Totals.
    attached: u64,
    served_honest: u64,
    longest_wait: Duration,
    silent_since: BTreeMap<u64, Duration>,
}

/// A generator of numbers (xorshift64*): a seed gives the same numbers everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    fn below(&mut self, limit: u64) -> u64 {
        (self.next() >> 11) % limit.max(1)
    }

    fn chance(&mut self, in_100: u64) -> bool {
        self.below(100) < in_100
    }

    fn ms(&mut self, limit: u64) -> Duration {
        Duration::from_millis(self.below(limit))
    }
}

/// Outcome of a run, for a test to see that something happened in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Totals {
    attached: u64,
    honest: u64,
    refused: u64,
    longest_wait: Duration,
}

const OWN: u32 = 1000;
const HONEST: [u32; 2] = [7, 8];
const QUOTA: Quota = Quota {
    places_max: 32,
    user_places_max: 8,
    bytes_max: 256 << 20,
    user_bytes_max: 64 << 20,
};
const STEP: Duration = Duration::from_millis(1);
const TICK: Duration = Duration::from_millis(20);
/// An honest client has its answer after this time, however many others crowd in: it is attached,
/// or learns which quota is used up. Our own clients wait as long.
const WAIT_MAX: Duration = Duration::from_secs(2);

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        let descriptors = [24, 64, 256, 1024][random.below(4) as usize];
        let room = descriptors;
        Self {
            book: Book::new(AdmissionLimits::default().within(room)),
            accounts: Accounts::new(QUOTA.within(room), OWN),
            random,
            now: Duration::ZERO,
            backlog: VecDeque::new(),
            descriptors,
            taken: 0,
            orders: VecDeque::new(),
            kept: Vec::new(),
            wanting: Vec::new(),
            comes_at: Duration::ZERO,
            attached: 0,
            served_honest: 0,
            longest_wait: Duration::ZERO,
            silent_since: BTreeMap::new(),
        }
    }

    /// Clients connect: any number of hostile ones at once.
    fn clients_come(&mut self) {
        if self.now >= self.comes_at {
            let pause = [1, 5, 50, 400][self.random.below(4) as usize];
            self.comes_at = self.now + self.random.ms(pause);
            let uid = match self.random.below(8) {
                0 => 0,
                1 => OWN,
                user => 100 + user as u32,
            };
            let crowd = if self.random.chance(10) { 200 } else { 6 };
            for _ in 0..=self.random.below(crowd) {
                let is_silent = self.random.chance(60);
                let plan = Plan {
                    uid,
                    asks_after: (!is_silent).then(|| self.random.ms(3000)),
                    stays: self.random.chance(90).then(|| self.random.ms(4000)),
                    keeps: self.random.ms(500),
                    bytes: self.random.below(40 << 20),
                    is_honest: false,
                };
                self.connect(plan);
            }
        }
        if self.random.chance(2) {
            let uid = HONEST[self.random.below(2) as usize];
            // One honest client of each user at a time: contention within one user is not the
            // subject.
            let busy = |other: u32| other == uid;
            let is_busy = self.wanting.iter().any(|(_, plan)| busy(plan.uid))
                || self.book.iter().any(|(_, guest)| busy(guest.uid))
                || self.kept.iter().any(|(other, ..)| busy(*other));
            if !is_busy {
                let plan = Plan {
                    uid,
                    asks_after: Some(Duration::ZERO),
                    stays: Some(self.random.ms(50)),
                    keeps: Duration::ZERO,
                    bytes: 1 << 20,
                    is_honest: true,
                };
                self.wanting.push((self.now, plan));
                self.connect(plan);
            }
        }
        // Those whose attempt came to nothing try again.
        let wanting: Vec<Plan> = self.wanting.iter().map(|(_, plan)| *plan).collect();
        for plan in wanting {
            let is_under_way = self.backlog.contains(&plan)
                || self.book.iter().any(|(_, it)| it.connection.plan == plan);
            if !is_under_way {
                self.connect(plan);
            }
        }
    }

    /// The kernel's queue is bounded: beyond it connections fail at the client.
    fn connect(&mut self, plan: Plan) {
        if self.backlog.len() < 1024 {
            self.backlog.push_back(plan);
        }
    }

    fn open(&self) -> usize {
        let sockets = self.book.iter().map(|(_, guest)| {
            let asked =
                guest.connection.asks_at.is_none() && guest.connection.plan.asks_after.is_some();
            1 + usize::from(asked) + 2 * usize::from(guest.connection.has_segment)
        });
        sockets.sum::<usize>() + self.kept.len() + self.taken
    }

    /// One turn of the control thread, as `Acceptor::wait` and the daemon have it.
    fn turn(&mut self, ends: bool) {
        let now = self.now;
        // Ready events: questions and hang-ups.
        let ready: Vec<u64> = self.book.iter().map(|(id, _)| id).collect();
        for id in ready {
            self.look_at(id);
        }
        self.sweep();
        // The listener.
        for _ in 0..64 {
            if ends || !self.book.accepts(now) || self.backlog.is_empty() {
                break;
            }
            if self.open() >= self.descriptors {
                if !self.book.run_out(now) {
                    break;
                }
                self.sweep();
                continue;
            }
            let Some(plan) = self.backlog.pop_front() else {
                break;
            };
            let socket = Socket {
                plan,
                asks_at: plan.asks_after.map(|after| now + after),
                hangs_up_at: match plan.asks_after {
                    None => plan.stays.map(|stays| now + stays),
                    Some(_) => None,
                },
                has_segment: false,
            };
            let is_preferred = self.accounts.is_preferred(plan.uid);
            if let Ok(id) = self.book.arrive(plan.uid, is_preferred, socket, now) {
                self.silent_since.insert(id, now);
                self.look_at(id);
            }
            self.sweep();
        }
        self.take_made();
        self.book.expire(now);
        self.sweep();
        // Memory that no client holds any more.
        let (freed, kept) = self.kept.drain(..).partition(|(_, _, until)| now >= *until);
        self.kept = kept;
        let freed: Vec<(u32, u64, Duration)> = freed;
        for (uid, bytes, _) in freed {
            self.accounts.give_back(uid, bytes);
        }
    }

    fn look_at(&mut self, id: u64) {
        let now = self.now;
        let Some(guest) = self.book.live_mut(id) else {
            return;
        };
        let socket = &mut guest.connection;
        if socket.hangs_up_at.is_some_and(|at| now >= at) {
            self.book.close(id);
            return;
        }
        if socket.asks_at.is_some_and(|at| now >= at) {
            socket.asks_at = None;
            let (uid, bytes) = (guest.uid, guest.connection.plan.bytes);
            if self.book.expect(id) {
                self.silent_since.remove(&id);
                let made_at = now + self.random.ms(20);
                self.orders.push_back((id, uid, bytes, made_at));
            }
        }
    }

    /// The maker: charges an order when it comes to it, and hands it on.
    fn take_made(&mut self) {
        let now = self.now;
        let (made, rest) = std::mem::take(&mut self.orders)
            .into_iter()
            .partition(|order| now >= order.3);
        self.orders = rest;
        let made: VecDeque<(u64, u32, u64, Duration)> = made;
        for (id, uid, bytes, _) in made {
            if self.accounts.charge(uid, bytes).is_err() {
                // Others have used up the quota: refuse with that reason.
                let guest = self.book.live(id);
                let plan = guest.map(|guest| guest.connection.plan);
                if let Some(plan) = plan.filter(|plan| plan.is_honest) {
                    self.is_answered(&plan);
                }
                self.book.count_refused();
                self.book.close(id);
            } else if self.book.is_expecting(id) {
                self.book.attach(id);
                self.attached += 1;
                if let Some(guest) = self.book.live_mut(id) {
                    let socket = &mut guest.connection;
                    socket.has_segment = true;
                    socket.hangs_up_at = socket.plan.stays.map(|stays| now + stays);
                    if socket.plan.is_honest {
                        let plan = socket.plan;
                        self.served_honest += 1;
                        self.is_answered(&plan);
                    }
                }
            } else {
                // Its client has disconnected: freed at once.
                self.accounts.give_back(uid, bytes);
            }
            self.sweep();
        }
    }

    fn is_answered(&mut self, plan: &Plan) {
        let Some(at) = self.wanting.iter().position(|(_, other)| other == plan) else {
            return;
        };
        let (since, _) = self.wanting.swap_remove(at);
        self.longest_wait = self.longest_wait.max(self.now - since);
    }

    fn sweep(&mut self) {
        for (id, socket) in self.book.take_closed() {
            self.silent_since.remove(&id);
            if socket.has_segment {
                let until = self.now + socket.plan.keeps;
                self.kept.push((socket.plan.uid, socket.plan.bytes, until));
            }
        }
    }

    /// The invariants, checked at every step.
    fn check(&self) {
        let limits = AdmissionLimits::default().within(self.descriptors);
        let waiting = limits.waiting_max + 2 * limits.preferred_waiting_max;
        let entries = self.book.iter().count();
        assert!(entries <= waiting + QUOTA.places_max, "{entries} entries");
        for (id, since) in &self.silent_since {
            let silent = self.now - *since;
            assert!(silent <= INTRODUCTION_TIME_MAX + TICK, "{id}: {silent:?}");
        }
        for (since, plan) in &self.wanting {
            let waits = self.now - *since;
            assert!(waits <= WAIT_MAX, "{plan:?} waits for {waits:?}");
        }
        let charged: usize = self
            .book
            .iter()
            .filter(|(_, it)| it.connection.has_segment)
            .count();
        let booked: usize = [0, OWN]
            .into_iter()
            .chain(HONEST)
            .chain(100..110)
            .map(|uid| self.accounts.usage(uid).places)
            .sum();
        assert_eq!(
            booked,
            charged + self.kept.len(),
            "every charge has its segment"
        );
        assert!(booked <= QUOTA.places_max);
    }
}

/// A server's life: some seconds, then all clients leave or the server shuts down.
fn run(seed: u64, time: Duration) -> Totals {
    let mut world = World::new(seed);
    let mut next_turn = Duration::ZERO;
    while world.now < time {
        world.clients_come();
        world.taken = match world.random.below(1000) {
            // Something else of the process opens files for a moment.
            0 => world.random.below(world.descriptors as u64 / 4) as usize,
            1..=20 => 0,
            _ => world.taken,
        };
        if world.now >= next_turn {
            world.turn(false);
            // It wakes for events, as a rule at once; on a busy machine later.
            let late = if world.random.chance(5) { TICK } else { STEP };
            let due = world.book.deadline(world.now).unwrap_or(Duration::MAX);
            next_turn = (world.now + late).min(due.max(world.now + STEP));
        }
        world.check();
        world.now += STEP;
    }
    let totals = Totals {
        attached: world.attached,
        honest: world.served_honest,
        refused: world.book.refused_total(),
        longest_wait: world.longest_wait,
    };
    // Shutdown: all connections close in one turn, and no new one is accepted.
    let all: Vec<u64> = world.book.iter().map(|(id, _)| id).collect();
    all.into_iter().for_each(|id| world.book.close(id));
    world.sweep();
    world.turn(true);
    assert_eq!(world.book.iter().count(), 0);
    // Every charge is returned once the last holder drops its memory.
    world.now += Duration::from_secs(1);
    world.turn(true);
    for uid in [0, OWN].into_iter().chain(HONEST).chain(100..110) {
        assert_eq!(world.accounts.usage(uid).places, 0, "user {uid}");
    }
    totals
}

#[test]
fn nobody_is_kept_out_and_everything_comes_back() {
    let mut sum = Totals::default();
    for seed in 1..=20 {
        let outcome = std::panic::catch_unwind(|| run(seed, Duration::from_secs(10)));
        let Ok(totals) = outcome else {
            panic!("seed {seed} fails");
        };
        sum.attached += totals.attached;
        sum.honest += totals.honest;
        sum.refused += totals.refused;
        sum.longest_wait = sum.longest_wait.max(totals.longest_wait);
    }
    assert!(
        sum.attached > 1000 && sum.honest > 500 && sum.refused > 1000,
        "{sum:?}"
    );
}

#[test]
fn a_seed_gives_the_same_run_again() {
    let time = Duration::from_secs(5);
    assert_eq!(run(11, time), run(11, time));
}

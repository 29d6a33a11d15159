//! Round trips as others make them: a bare cache line, the kernel's futex and eventfd, the channel
//! of crossbeam, a stolen `join` of rayon.
//!
//! Must stay true: each is used as its makers mean it to be used where latency counts, with a
//! partner that is already there; the partner ends before the function returns.
//! Source: futex(2), eventfd(2), the documentation of crossbeam-channel 0.5 and rayon 1.

use super::super::BenchError;
use super::Plan;
use crossbeam_utils::CachePadded;
use rustix::event::{EventfdFlags, eventfd as make_eventfd};
use sidecore_sys::{cpu, futex as kernel};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// One word on one line, which both sides poll without pause.
pub(super) fn spinning_line(plan: &Plan) -> Result<Vec<f64>, BenchError> {
    let line = CachePadded::new(AtomicU64::new(0));
    let partner = || {
        let mut seen = 0;
        loop {
            // Acquire and Release, both sides: each other's partners.
            let word = line.load(Ordering::Acquire);
            if word == STOP {
                return;
            }
            if word != seen {
                seen = word + 1;
                line.store(seen, Ordering::Release);
            }
        }
    };
    // The number's low bit says whose turn it is.
    let trip = |number: u64| {
        line.store(number << 1, Ordering::Release);
        loop {
            let word = line.load(Ordering::Acquire);
            if word & 1 == 1 {
                return word >> 1;
            }
        }
    };
    beside(plan, partner, || {
        let sampled = plan.sample("spinning_line", trip);
        line.store(STOP, Ordering::Release);
        sampled
    })
}

/// A word on one line there, a word on another back, both polled without pause: the least that an
/// off-load moves, if its request and its answer have places of their own.
pub(super) fn two_lines(plan: &Plan) -> Result<Vec<f64>, BenchError> {
    let request = CachePadded::new(AtomicU64::new(0));
    let reply = CachePadded::new(AtomicU64::new(0));
    let partner = || {
        let mut seen = 0;
        while seen != STOP {
            // Acquire and Release, both sides: each other's partners.
            let word = request.load(Ordering::Acquire);
            if word != seen {
                seen = word;
                reply.store(seen, Ordering::Release);
            }
        }
    };
    let mut seen = 0;
    let trip = |number: u64| {
        request.store(number, Ordering::Release);
        let before = seen;
        while seen == before {
            seen = reply.load(Ordering::Acquire);
        }
        seen
    };
    beside(plan, partner, || {
        let sampled = plan.sample("two_lines", trip);
        request.store(STOP, Ordering::Release);
        sampled
    })
}

/// Round trip over two futex words with two sleepers.
pub(super) fn futex(plan: &Plan) -> Result<Vec<f64>, BenchError> {
    let request = CachePadded::new(AtomicU32::new(0));
    let reply = CachePadded::new(AtomicU32::new(0));
    // Release here, to the Acquire of the woken thread.
    let send = |word: &AtomicU32, value: u32| {
        word.store(value, Ordering::Release);
        kernel::wake(word, 1);
    };
    let receive = |word: &AtomicU32, seen: u32| {
        loop {
            let value = word.load(Ordering::Acquire);
            if value != seen {
                return value;
            }
            kernel::wait(word, seen, None);
        }
    };
    let partner = || {
        let mut seen = 0;
        while seen != STOP as u32 {
            seen = receive(&request, seen);
            send(&reply, seen);
        }
    };
    let mut seen = 0;
    let trip = |number: u64| {
        send(&request, number as u32);
        seen = receive(&reply, seen);
        u64::from(seen)
    };
    beside(plan, partner, || {
        let sampled = plan.sample("futex", trip);
        send(&request, STOP as u32);
        sampled
    })
}

/// Round trip over two eventfd(2) counters.
pub(super) fn eventfd(plan: &Plan) -> Result<Vec<f64>, BenchError> {
    let make = || {
        let made = make_eventfd(0, EventfdFlags::CLOEXEC);
        made.map_err(|error| BenchError::io("make an eventfd")(error.into()))
    };
    let (request, reply) = (make()?, make()?);
    // A word that cannot be written or read makes the trip's number wrong, which is reported.
    let send = |end: &dyn AsFd, value: u64| {
        let _ = rustix::io::write(end.as_fd(), &value.to_ne_bytes());
    };
    let receive = |end: &dyn AsFd| {
        let mut bytes = [0; 8];
        match rustix::io::read(end.as_fd(), &mut bytes) {
            Ok(_) => u64::from_ne_bytes(bytes),
            Err(_) => EVENTFD_STOP,
        }
    };
    let partner = || {
        loop {
            let value = receive(&request);
            send(&reply, value);
            if value == EVENTFD_STOP {
                return;
            }
        }
    };
    let trip = |number: u64| {
        send(&request, number);
        receive(&reply)
    };
    beside(plan, partner, || {
        let sampled = plan.sample("eventfd", trip);
        send(&request, EVENTFD_STOP);
        sampled
    })
}

/// Round trip over two bounded channels of crossbeam.
pub(super) fn crossbeam(plan: &Plan) -> Result<Vec<f64>, BenchError> {
    let (request, requests) = crossbeam_channel::bounded(1);
    let (reply, replies) = crossbeam_channel::bounded(1);
    let partner = move || {
        for number in requests {
            if reply.send(number).is_err() {
                return;
            }
        }
    };
    beside(plan, partner, move || {
        plan.sample("crossbeam", |number| {
            let sent = request.send(number);
            sent.ok().and_then(|()| replies.recv().ok()).unwrap_or(STOP)
        })
    })
}

/// A `join` whose second half the other thread really steals.
pub(super) fn rayon(plan: &Plan) -> Result<Vec<f64>, BenchError> {
    let cores = [plan.caller, plan.partner];
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(cores.len())
        .thread_name(|index| format!("bench-rayon-{index}"))
        .start_handler(move |index| {
            // A refusal shows as a slow round.
            let _ = cpu::pin(cores[index]);
        })
        .build()
        .map_err(|error| BenchError::Io {
            what: "start rayon's threads".into(),
            source: std::io::Error::other(error),
        })?;
    let taken = CachePadded::new(AtomicU64::new(0));
    pool.install(|| {
        plan.sample("rayon", |number| {
            let ((), thief) = rayon::join(
                || {
                    // Acquire, to the Release of the thief.
                    while taken.load(Ordering::Acquire) != number {
                        std::hint::spin_loop();
                    }
                },
                || {
                    taken.store(number, Ordering::Release);
                    rayon::current_thread_index()
                },
            );
            if thief == rayon::current_thread_index() {
                return STOP;
            }
            number
        })
    })
}

/// Runs `partner` on its core while `measure` runs here. `measure` makes it end.
fn beside<R>(
    plan: &Plan,
    partner: impl FnOnce() + Send,
    measure: impl FnOnce() -> Result<R, BenchError>,
) -> Result<R, BenchError> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("bench-partner".into());
        let spawned = thread.spawn_scoped(scope, || {
            // A refusal shows as a slow round.
            let _ = cpu::pin(plan.partner);
            partner();
        });
        spawned.map_err(BenchError::io("start a thread"))?;
        measure()
    })
}

/// A word that is no number of a trip.
const STOP: u64 = u64::MAX;
/// The largest count of an eventfd is one less than the largest word.
const EVENTFD_STOP: u64 = u64::MAX - 1;

//! A slow link with a finite queue: its losses, its utilisation, the length of its queue, and
//! fairness, compared with the kernel's CUBIC.
//!
//! Why here: on the Internet the link is slower than both ends, and a sender that ignores it harms
//! every other user of the link. The link is a thread of ours, so that every candidate meets the
//! same one, and so that its queue can be measured.
//! Must stay true: frames of one segment each, first in, first out, tail drop; the sender decides
//! alone, so the receiver is the kernel's for all candidates.

use super::ours::{self, KERNEL, OURS, PORT, Service};
use super::wire::forward;
use super::{Ending, Places, joined, plain, start};
use crate::measure::stats::jain;
use crate::net::{Bench, BenchError, Better, Candidate, Comparison, sleep};
use sidecore_net::nic::middleware::{Clock, Delay, Impaired, RateLimit};
use sidecore_net::nic::pair::{self, Pair, PairOptions};
use sidecore_net::nic::tap::Tap;
use sidecore_net::nic::{Capabilities, Nic, NicError, Outgoing, Received};
use sidecore_sys::cpu;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A link of [`RATE_BITS_S`].
#[derive(Debug, Clone, Copy)]
struct Link {
    /// Bytes that its queue holds.
    queue_bytes: u64,
    /// Round trip of the empty link, in milliseconds.
    trip_ms: u64,
}

impl Link {
    fn name(self) -> String {
        let kilobytes = self.queue_bytes / 1000;
        format!("10 Mbit/s, {kilobytes} KB queue, {} ms", self.trip_ms)
    }
}

const LINKS: [Link; 8] = [
    link(15, 1),
    link(60, 1),
    link(200, 1),
    link(1000, 1),
    link(15, 40),
    link(60, 40),
    link(200, 40),
    link(1000, 40),
];

const fn link(kilobytes: u64, trip_ms: u64) -> Link {
    Link {
        queue_bytes: kilobytes * 1000,
        trip_ms,
    }
}

/// The sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sender {
    Ours,
    Kernel,
}

/// Outcome of one run.
struct Outcome {
    /// Of each sender, in Mbit/s, after a quarter of the time.
    rates: Vec<f64>,
    dropped: f64,
    /// Median of the round trip that a ping would have, in ms, after a quarter of the time.
    ping_ms: f64,
}

/// Runs the group.
///
/// # Errors
/// [`BenchError::Missing`] without the privilege for interfaces.
pub(super) fn run(bench: &mut Bench<'_>) -> Result<(), BenchError> {
    let places = Places::new(bench)?;
    // A round takes six minutes.
    let rounds = bench.rounds;
    bench.rounds = rounds.min(ROUNDS_MAX);
    let done = all(bench, &places);
    bench.rounds = rounds;
    done
}

fn all(bench: &mut Bench<'_>, places: &Places) -> Result<(), BenchError> {
    let links = bench.choose(&LINKS[1..2], &LINKS[..]);
    let time = bench.choose(Duration::from_millis(1500), Duration::from_secs(10));
    for &link in links {
        alone(bench, places, link, time)?;
        together(bench, places, link, time * 3 / 2)?;
    }
    Ok(())
}

/// One sender at a time.
fn alone(
    bench: &mut Bench<'_>,
    places: &Places,
    link: Link,
    time: Duration,
) -> Result<(), BenchError> {
    let name = link.name();
    let of = |what: &str| format!("{name}: {what}");
    let [dropped, rate, ping] = ["frames dropped, and one", "goodput", "ping"].map(of);
    let metrics = [
        (dropped.as_str(), "frames"),
        (rate.as_str(), "Mb/s"),
        (ping.as_str(), "ms"),
    ];
    let values = |sender, cancel: &AtomicBool| {
        let outcome = through(places, link, &[sender], time, cancel)?;
        // One more, to keep the ratio to zero finite.
        Ok(vec![
            1.0 + outcome.dropped,
            outcome.rates[0],
            outcome.ping_ms,
        ])
    };
    let series = bench.interleave_of(
        &metrics,
        &mut [
            Candidate::new("ours", |cancel| values(Sender::Ours, cancel)),
            Candidate::new("kernel CUBIC", |cancel| values(Sender::Kernel, cancel)),
        ],
    )?;
    let note = format!(
        "{time:?} a run; receiver: the kernel's; link and programs on one core, our stack on the \
         other"
    );
    let targets = [
        (Better::Lower, Some(2.0)),
        (Better::Higher, Some(0.95)),
        (
            Better::Lower,
            (link.queue_bytes == 1_000_000).then_some(1.2),
        ),
    ];
    for (index, ((metric, unit), (better, target))) in metrics.into_iter().zip(targets).enumerate()
    {
        let comparison = Comparison {
            name: "kernel CUBIC",
            metric,
            unit,
            better,
            target,
            note: &note,
        };
        let of = |who: usize| series[who].as_ref().map(|series| &series[index]);
        bench.compare(&comparison, of(0), of(1));
    }
    Ok(())
}

/// One of ours and one of the kernel's at once; and two of the kernel's, to know how fair those are
/// to each other.
fn together(
    bench: &mut Bench<'_>,
    places: &Places,
    link: Link,
    time: Duration,
) -> Result<(), BenchError> {
    let index = format!("{}: Jain's index of two flows", link.name());
    let share = format!("{}: share of the first of two flows", link.name());
    let metrics = [(index.as_str(), ""), (share.as_str(), "%")];
    let shared = |senders: [Sender; 2], cancel: &AtomicBool| {
        let rates = through(places, link, &senders, time, cancel)?.rates;
        let first = 100.0 * rates[0] / rates.iter().sum::<f64>();
        Ok(vec![jain(&rates), first])
    };
    let series = bench.interleave_of(
        &metrics,
        &mut [
            Candidate::new("ours and the kernel's", |cancel| {
                shared([Sender::Ours, Sender::Kernel], cancel)
            }),
            Candidate::new("two of the kernel's", |cancel| {
                shared([Sender::Kernel, Sender::Kernel], cancel)
            }),
        ],
    )?;
    let comparison = Comparison {
        name: "two of the kernel's",
        metric: &index,
        unit: "",
        better: Better::Higher,
        target: None,
        note: "0.9 or more is wanted of ours beside the kernel's",
    };
    let of = |who: usize| series[who].as_ref().map(|series| &series[0]);
    bench.compare(&comparison, of(0), of(1));
    if let Some(series) = &series[0] {
        bench.row(&share, None, &series[1], "%");
    }
    Ok(())
}

/// Bytes from each of `senders` to a receiver of the kernel's through one link.
fn through(
    places: &Places,
    link: Link,
    senders: &[Sender],
    time: Duration,
    cancel: &AtomicBool,
) -> Result<Outcome, BenchError> {
    let (stop, unused) = (AtomicBool::new(false), AtomicU64::new(0));
    let counts: Vec<AtomicU64> = senders.iter().map(|_| AtomicU64::new(0)).collect();
    let near = ours::tap(&places.near, KERNEL, false)?;
    let far = ours::tap(&places.far, FAR, false)?;
    let (stack_end, wire_end) = pair::link(&PairOptions::default())?;
    let listener = plain::listen(&places.far, SocketAddr::new(FAR, PORT))?;
    std::thread::scope(|scope| {
        let ending = Ending(&stop);
        let wire = start(scope, "wire", || {
            let sources = Sources {
                stack: wire_end,
                kernel: far,
            };
            carry(near, sources, link, places.partner, &stop)
        })?;
        let engine = start(scope, "engine", || {
            let service = Service::Source;
            let config = ours::config();
            ours::run(stack_end, config, service, places.engine, &stop, &unused)
        })?;
        let mut programs = Vec::new();
        for (sender, count) in senders.iter().zip(&counts) {
            let to = match sender {
                Sender::Ours => OURS,
                Sender::Kernel => FAR,
            };
            let receiver = plain::connect(&places.near, SocketAddr::new(to, PORT))?;
            if *sender == Sender::Kernel {
                let from = plain::accept(&listener)?;
                programs.push(start(scope, "sender", || {
                    plain::send(from, places.partner, &stop)
                })?);
            }
            programs.push(start(scope, "receiver", || {
                plain::receive(receiver, places.partner, &stop, count)
            })?);
        }
        let read = || -> Vec<u64> {
            // Relaxed: growing counters that publish no other memory.
            let counts = counts.iter();
            counts.map(|count| count.load(Ordering::Relaxed)).collect()
        };
        // Slow start is left out.
        sleep(time / 4, cancel)?;
        let (first, begun) = (read(), Instant::now());
        sleep(time - time / 4, cancel)?;
        let (last, seconds) = (read(), begun.elapsed().as_secs_f64());
        drop(ending);
        for program in programs {
            joined(program)?;
        }
        joined(engine)?;
        let (dropped, mut waits_ns) = joined(wire)?;
        let rates = first.iter().zip(&last);
        // The same quarter as of the rates.
        waits_ns.drain(..waits_ns.len() / 4);
        waits_ns.sort_unstable();
        let wait_ns = waits_ns.get(waits_ns.len() / 2).copied().unwrap_or(0);
        Ok(Outcome {
            rates: rates
                .map(|(first, last)| (last - first) as f64 * 8e-6 / seconds)
                .collect(),
            dropped: dropped as f64,
            ping_ms: link.trip_ms as f64 + wait_ns as f64 / 1e6,
        })
    })
}

/// Carries frames through the link until `stop` is set. Returns the number of frames dropped at a
/// full queue, and the queueing delay of a frame, in nanoseconds, each millisecond.
fn carry(
    near: Tap,
    sources: Sources,
    link: Link,
    core: usize,
    stop: &AtomicBool,
) -> Result<(u64, Vec<u64>), BenchError> {
    cpu::pin(core)?;
    let (clock, begun) = (Clock::default(), Instant::now());
    let back = Delay::new(0, link.trip_ms * 1_000_000, 0);
    let mut near = Impaired::new(near, back, clock.clone());
    let limit = RateLimit::new(RATE_BITS_S, link.queue_bytes);
    let mut sources = Impaired::new(sources, limit, clock.clone());
    let mut waits_ns = Vec::new();
    let mut sample_at_ns = 0;
    // Relaxed: it says nothing about other memory.
    while !stop.load(Ordering::Relaxed) {
        let now_ns = begun.elapsed().as_nanos() as u64;
        clock.set_ns(now_ns);
        let carried = forward(&mut sources, &mut near)? + forward(&mut near, &mut sources)?;
        sources.flush()?;
        if now_ns >= sample_at_ns {
            waits_ns.push(sources.impairment().wait_ns(now_ns));
            sample_at_ns = now_ns + 1_000_000;
        }
        if carried == 0 {
            // A frame takes 1.2 ms: what this adds is no part of it.
            std::thread::sleep(PAUSE);
        }
    }
    Ok((sources.impairment().lost(), waits_ns))
}

/// The senders' side of the link: our stack and the kernel's at one wire.
struct Sources {
    stack: Pair,
    kernel: Tap,
}

impl Nic for Sources {
    fn capabilities(&self) -> Capabilities {
        self.kernel.capabilities()
    }

    fn receive(
        &mut self,
        budget: usize,
        sink: &mut dyn FnMut(Received<'_>),
    ) -> Result<usize, NicError> {
        let half = budget / 2;
        Ok(self.stack.receive(half, sink)? + self.kernel.receive(half, sink)?)
    }

    fn transmit(&mut self, frame: &Outgoing<'_>) -> Result<bool, NicError> {
        // Each takes the frames to its hardware address, as on any shared wire.
        let first = self.stack.transmit(frame)?;
        Ok(self.kernel.transmit(frame)? && first)
    }

    fn flush(&mut self) -> Result<(), NicError> {
        self.stack.flush()?;
        self.kernel.flush()
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

const RATE_BITS_S: u64 = 10_000_000;
const ROUNDS_MAX: usize = 2;
/// Address of the kernel that sends.
const FAR: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 98, 0, 3));
const PAUSE: Duration = Duration::from_micros(50);

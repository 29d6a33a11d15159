//! Two engines with one address, each on a core of its own, compared with one: the same 10,000
//! sessions.
//!
//! Why here: it shows the gain of a second engine, and how evenly sessions are spread. With two
//! cores none is left to drive a link, so each engine's NIC has its requests prepared: a client is
//! a few words, and its next request goes in once its last is answered. The application (64 bytes
//! read in place, 64 written) is in the engine's loop. The load of both is the same code on the
//! same core. Must stay true: only answers that continue at the end of the last one count; every
//! session gets its turn before one has a second.

use super::served::config;
use super::sessions::hand::{
    BATCH, Client, HEADER, PAYLOAD, fill, frame, introduction, nic, number_of, serve, syn, word,
};
use super::{Bench, BenchError, Better, Candidate, Comparison, Group, interrupted, sleep};
use crate::measure::stats::{Series, median};
use sidecore_net::engine::{Engine, EngineOptions, Siblings, siblings};
use sidecore_net::nic::{Capabilities, Nic, NicError, Outgoing, Received, ReceivedChecksum};
use sidecore_net::{Event, ListenerId, Stack};
use sidecore_net_stack::flow;
use sidecore_sys::cpu;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The group.
pub(super) const GROUP: Group = Group {
    name: "engines",
    run,
};

fn run(bench: &mut Bench<'_>) -> Result<(), BenchError> {
    for count in [2, 4] {
        let sessions = spread(count);
        let even = SESSIONS as f64 / count as f64;
        let off = |own: &Vec<usize>| 100.0 * (own.len() as f64 - even).abs() / even;
        let most = sessions.iter().map(off).fold(0.0, f64::max);
        let name = format!("{SESSIONS} sessions over {count} engines by the hash: the least even");
        bench
            .row(name, None, &Series::new(vec![most]), "% of an even share")
            .target(Better::Lower, 5.0);
    }
    let cores = [bench.engine_cpu(), bench.partner_cpu()];
    if cores[0] == cores[1] {
        let reason = "two engines need a core each, and this machine gives one";
        return Err(BenchError::Missing(reason.into()));
    }
    let time = Duration::from_millis(bench.choose(200, 1_000));
    let candidate = |name, cores: Vec<usize>| {
        Candidate::of_one(name, move |cancel: &AtomicBool| {
            Ok(requests_s(&cores, time, cancel)? / 1e6)
        })
    };
    let mut candidates = [
        candidate("two engines, a core each", cores.to_vec()),
        candidate(ONE, vec![cores[0]]),
        candidate(OTHER, vec![cores[1]]),
    ];
    let series = bench.interleave(METRIC, "M/s", &mut candidates)?;
    for (at, name, target) in [(1, ONE, Some(1.8)), (2, OTHER, None)] {
        bench.compare(
            &Comparison {
                name,
                metric: METRIC,
                unit: "M/s",
                better: Better::Higher,
                target,
                note: "64 bytes each way, batches of 32",
            },
            series[0].as_ref(),
            series[at].as_ref(),
        );
    }
    Ok(())
}

/// The sessions of each of `count` engines, by number.
fn spread(count: usize) -> Vec<Vec<usize>> {
    let mut engines = vec![Vec::new(); count];
    for number in 0..SESSIONS {
        let hash = flow::hash_of_frame(&syn(number, &UNOPENED)).unwrap_or_default();
        engines[flow::engine_of(hash, count)].push(number);
    }
    engines
}

/// Requests that engines on these cores answer in a second, all together.
fn requests_s(cores: &[usize], time: Duration, cancel: &AtomicBool) -> Result<f64, BenchError> {
    let (progress, stop) = (Progress::default(), AtomicBool::new(false));
    let (progress, stop) = (&progress, &stop);
    let parts = siblings(cores.len())?.into_iter().zip(spread(cores.len()));
    std::thread::scope(|scope| {
        let mut threads = Vec::with_capacity(cores.len());
        for ((place, sessions), &core) in parts.zip(cores) {
            threads.push(scope.spawn(move || {
                let played = play(core, place, sessions, progress, stop);
                // One that fails ends the others and the wait for all.
                if played.is_err() {
                    stop.store(true, Ordering::Release);
                }
                played
            }));
        }
        let measured = measure(progress, cores.len(), time, stop, cancel);
        stop.store(true, Ordering::Release);
        for thread in threads {
            let failed = |_| Err(BenchError::Wrong("an engine's thread failed".into()));
            thread.join().unwrap_or_else(failed)?;
        }
        measured
    })
}

fn measure(
    progress: &Progress,
    engines: usize,
    time: Duration,
    stop: &AtomicBool,
    cancel: &AtomicBool,
) -> Result<f64, BenchError> {
    let begun = Instant::now();
    while progress.warm.load(Ordering::Acquire) < engines {
        interrupted(cancel)?;
        if stop.load(Ordering::Acquire) || begun.elapsed() > OPENING_MAX {
            let reason = format!("{SESSIONS} sessions were not open after {OPENING_MAX:?}");
            return Err(BenchError::Wrong(reason));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let now = || (progress.answers.load(Ordering::Relaxed), Instant::now());
    // The median of short times: one in which another program had a core is not the engines'.
    let (begun, mut rates) = (Instant::now(), Vec::new());
    while begun.elapsed() < time {
        let (before, from) = now();
        sleep(WINDOW, cancel)?;
        let (after, to) = now();
        rates.push((after - before) as f64 / (to - from).as_secs_f64());
    }
    Ok(median(&rates))
}

/// An engine and its application, until `stop`.
fn play(
    core: usize,
    place: Siblings,
    sessions: Vec<usize>,
    progress: &Progress,
    stop: &AtomicBool,
) -> Result<(), BenchError> {
    cpu::pin(core)?;
    let live = sessions.len();
    let prepared = Prepared::new(sessions, progress);
    let stack = sidecore_net::memory::mapped_stack(config(1), &nic())?;
    let options = EngineOptions {
        grace: None,
        batch: BATCH,
        ..EngineOptions::default()
    };
    let mut engine = Engine::new(prepared, stack, None, options).with_siblings(place);
    let listener = engine
        .stack()
        .listen(SocketAddr::from(([10, 0, 0, 1], 80)), 4096)?;
    let mut failed = None;
    engine.run(stop, |stack| match answer(stack, listener) {
        Ok(count) => count,
        Err(error) => {
            failed = Some(error);
            // Ends the other engines, too, which share the flag.
            stop.store(true, Ordering::Release);
            0
        }
    })?;
    // With sessions lost, the rate would be that of a smaller load.
    let lost = live - engine.stack().sessions();
    match failed {
        Some(error) => Err(error),
        None if lost > 0 => Err(BenchError::Wrong(format!("{lost} sessions were lost"))),
        None => Ok(()),
    }
}

/// One turn of the application; returns the amount of work done.
fn answer(stack: &mut Stack, listener: ListenerId) -> Result<usize, BenchError> {
    let mut count = 0;
    while let Some(event) = stack.next_event() {
        count += 1;
        match event {
            Event::Session(id) => serve(stack, id)?,
            Event::Listener(_) => while stack.accept(listener)?.is_some() {},
            Event::Udp(_) => {}
        }
    }
    Ok(count)
}

/// Work that the engines have done so far, for the measuring thread.
#[derive(Debug, Default)]
struct Progress {
    answers: AtomicU64,
    /// Engines whose sessions are open and have each had one request.
    warm: AtomicUsize,
}

/// A NIC behind which clients wait, each with a request.
struct Prepared<'p> {
    clients: Vec<Client>,
    /// Place of a session's client.
    places: Vec<u32>,
    numbers: Vec<usize>,
    /// Frames that go in before any request.
    first: VecDeque<Vec<u8>>,
    /// The next to be opened, then the next to be asked.
    next: usize,
    opened: bool,
    warm: bool,
    awaited: usize,
    answers: u64,
    buffer: Vec<u8>,
    progress: &'p Progress,
}

impl<'p> Prepared<'p> {
    fn new(numbers: Vec<usize>, progress: &'p Progress) -> Self {
        let mut places = vec![0; SESSIONS];
        for (place, &number) in numbers.iter().enumerate() {
            places[number] = place as u32;
        }
        Self {
            clients: vec![UNOPENED; numbers.len()],
            places,
            numbers,
            first: VecDeque::from([introduction(0)]),
            next: 0,
            opened: false,
            warm: false,
            awaited: 0,
            answers: 0,
            buffer: vec![0; HEADER + PAYLOAD],
            progress,
        }
    }

    /// The place after this one; a wrap-around to the first completes a round.
    fn step(&mut self) -> bool {
        self.next = (self.next + 1) % self.clients.len();
        self.next == 0
    }

    /// A handshake that the stack has answered.
    fn open(&mut self, frame: &Outgoing<'_>) {
        let number = number_of(frame.header);
        let client = &mut self.clients[self.places[number] as usize];
        client.learn(frame);
        client.sequence = client.sequence.wrapping_add(1);
        client.acknowledgment = client.acknowledgment.wrapping_add(1);
        self.first.push_back(self::frame(number, client, 0x10, 12));
        self.awaited -= 1;
    }

    /// An answer that continues at the end of the last one.
    fn take(&mut self, header: &[u8]) {
        let client = &mut self.clients[self.places[number_of(header)] as usize];
        if word(header, 38) == client.acknowledgment {
            client.acknowledgment = client.acknowledgment.wrapping_add(PAYLOAD as u32);
            client.sequence = word(header, 42);
            client.stamp = word(header, 58);
            self.awaited -= 1;
            self.answers += 1;
        }
    }
}

impl Nic for Prepared<'_> {
    fn capabilities(&self) -> Capabilities {
        nic()
    }

    fn receive(
        &mut self,
        budget: usize,
        sink: &mut dyn FnMut(Received<'_>),
    ) -> Result<usize, NicError> {
        let mut give = |bytes: &mut [u8]| {
            sink(Received {
                bytes,
                checksum: ReceivedChecksum::Verified,
                segment_bytes: None,
            });
        };
        let mut count = 0;
        while count < budget
            && let Some(mut frame) = self.first.pop_front()
        {
            give(&mut frame);
            count += 1;
        }
        // A batch at a time, so that no session has two requests at once.
        if count > 0 || self.awaited > 0 {
            return Ok(count);
        }
        while count < budget.min(self.clients.len()) {
            let number = self.numbers[self.next];
            let client = &self.clients[self.next];
            if self.opened {
                fill(&mut self.buffer, number, client, 0x18, 12 + PAYLOAD);
                give(&mut self.buffer);
            } else {
                give(&mut syn(number, client));
            }
            self.awaited += 1;
            count += 1;
            if self.step() {
                if self.opened && !self.warm {
                    self.warm = true;
                    self.progress.warm.fetch_add(1, Ordering::AcqRel);
                }
                self.opened = true;
                break;
            }
        }
        Ok(count)
    }

    fn transmit(&mut self, frame: &Outgoing<'_>) -> Result<bool, NicError> {
        let payload_bytes = frame.payload[0].len() + frame.payload[1].len();
        let header = frame.header;
        // Only TCP over IPv4 is for the clients; the stack also sends ARP.
        if header.len() >= HEADER && header[12..14] == [8, 0] && header[23] == 6 {
            match header[47] & 0x3f {
                0x12 => self.open(frame),
                _ if payload_bytes == PAYLOAD => self.take(header),
                _ => {}
            }
        }
        Ok(true)
    }

    fn flush(&mut self) -> Result<(), NicError> {
        if self.answers >= ANSWERS_TOLD {
            let answers = std::mem::take(&mut self.answers);
            self.progress.answers.fetch_add(answers, Ordering::Relaxed);
        }
        Ok(())
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

const UNOPENED: Client = Client {
    sequence: 7,
    acknowledgment: 0,
    stamp: 0,
};
const SESSIONS: usize = 10_000;
/// Answers that an engine counts by itself: the common word is written seldom.
const ANSWERS_TOLD: u64 = 1024;
const WINDOW: Duration = Duration::from_millis(10);
const OPENING_MAX: Duration = Duration::from_secs(20);
const METRIC: &str = "requests answered, 10,000 sessions";
const ONE: &str = "one engine";
const OTHER: &str = "one engine, the other core";

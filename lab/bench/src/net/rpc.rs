//! 64 bytes there and 64 back: application, engine, application, compared with the kernel's
//! loopback.
//!
//! Why here: it is the latency of a service that answers small questions. Three parties share two
//! cores: the engine has one; one thread on the other drives both applications, each with an
//! attachment of its own, as an event loop would, so that a round trip crosses four times from core
//! to core. The kernel gets the better of two arrangements: its two sides on two cores, or both in
//! one thread. No thread sleeps. Must stay true: every answer is compared with its request. Source:
//! own.

use super::served::Served;
use super::{Bench, BenchError, Better, Candidate, Comparison, Group};
use sidecore_net::nic::pair::{self, PairOptions};
use sidecore_net::sock::SocketOption;
use sidecore_net::sock::client::{Client, ClientOptions, Socket};
use sidecore_sys::cpu;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The group.
pub(super) const GROUP: Group = Group { name: "rpc", run };

fn run(bench: &mut Bench<'_>) -> Result<(), BenchError> {
    let trips = bench.choose(4_000, 20_000);
    let (engine, partner) = (bench.engine_cpu(), bench.partner_cpu());
    let (nic, _far) = pair::link(&PairOptions::default())?;
    let served = Served::start(nic, 1, engine, &bench.config.scratch)?;
    let socket = served.socket().to_owned();
    let mut candidates = [
        Candidate::new("application - engine - application", |cancel| {
            on_core(partner, || ours(&socket, trips, cancel))
        }),
        Candidate::new(LINE, |cancel| {
            on_core(partner, || line(trips, engine, cancel))
        }),
        Candidate::new(KERNELS[0], |cancel| {
            on_core(partner, || kernel(trips, Some(engine), cancel))
        }),
        Candidate::new(KERNELS[1], |cancel| {
            on_core(partner, || kernel(trips, None, cancel))
        }),
    ];
    let metrics = [(MEDIAN, "us"), (P99, "us")];
    let series = bench.interleave_of(&metrics, &mut candidates)?;
    drop(candidates);
    served.end()?;
    let [ours, line, first, second] = &series[..] else {
        return Err(BenchError::Wrong("not all candidates took part".into()));
    };
    let kernels = [(first, KERNELS[0]), (second, KERNELS[1])];
    let median = |at: usize| {
        kernels[at]
            .0
            .as_ref()
            .map_or(f64::MAX, |all| all[0].median())
    };
    // The kernel's better placement is the peer; the other one is only shown.
    let better = usize::from(median(1) < median(0));
    for (at, metric, target, note) in [
        (better, 0, Some(0.25), "the better of the kernel's two"),
        (better, 1, None, "the better of the kernel's two"),
        (1 - better, 0, None, ""),
    ] {
        let (peer, name) = kernels[at];
        bench.compare(
            &Comparison {
                name,
                metric: metrics[metric].0,
                unit: "us",
                better: Better::Lower,
                target,
                note,
            },
            ours.as_ref().map(|all| &all[metric]),
            peer.as_ref().map(|all| &all[metric]),
        );
    }
    if let Some(line) = line {
        bench
            .row(LINE, None, &line[0], "us")
            .note("what this machine asks for two crossings; a round trip above has four");
    }
    Ok(())
}

/// A word to `core` and back, on a line that both spin on. As [`ours`].
fn line(trips: usize, core: usize, cancel: &AtomicBool) -> Result<Vec<f64>, BenchError> {
    let (asked, answered) = (Line::default(), Line::default());
    let last = trips as u64;
    std::thread::scope(|scope| {
        let (asked, answered) = (&asked.0, &answered.0);
        let answering = scope.spawn(move || {
            if let Err(error) = cpu::pin(core) {
                // The asking side would spin for ever otherwise.
                answered.store(u64::MAX, Ordering::Release);
                return Err(error.into());
            }
            for number in 1..=last {
                spin_until(asked, number, cancel)?;
                answered.store(number, Ordering::Release);
            }
            Ok(())
        });
        let ask = || {
            let mut times = Times::new(trips);
            for number in 1..=last {
                let begun = Instant::now();
                asked.store(number, Ordering::Release);
                spin_until(answered, number, cancel)?;
                times.add(begun.elapsed());
            }
            Ok(times.figures())
        };
        let done = ask();
        let failed = |_| Err(BenchError::Wrong("the other core's thread failed".into()));
        answering.join().unwrap_or_else(failed)?;
        done
    })
}

/// A line of the cache, and its neighbour, which processors fetch with it.
#[derive(Default)]
#[repr(align(128))]
struct Line(AtomicU64);

fn spin_until(word: &AtomicU64, value: u64, cancel: &AtomicBool) -> Result<(), BenchError> {
    let mut turns = 0_u32;
    loop {
        // Partner: the other side's Release; nothing but the word itself is handed over.
        match word.load(Ordering::Acquire) {
            now if now == value => return Ok(()),
            u64::MAX => return Err(BenchError::Wrong("the other core cannot be had".into())),
            _ => {}
        }
        turns = turns.wrapping_add(1);
        if turns.is_multiple_of(1 << 20) {
            super::interrupted(cancel)?;
        }
        std::hint::spin_loop();
    }
}

/// Runs a function on a thread that stays on one core.
pub(super) fn on_core<T: Send>(
    core: usize,
    work: impl FnOnce() -> Result<T, BenchError> + Send,
) -> Result<T, BenchError> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            cpu::pin(core)?;
            work()
        });
        let failed = || BenchError::Wrong("a thread that measures failed".into());
        thread.join().unwrap_or_else(|_| Err(failed()))
    })
}

/// Both applications in this thread. Median and 99th percentile, in us.
fn ours(socket: &Path, trips: usize, cancel: &AtomicBool) -> Result<Vec<f64>, BenchError> {
    let options = ClientOptions {
        spin: Duration::from_secs(1),
        ..ClientOptions::default()
    };
    let mut server = Client::attach(socket, &options)?;
    let mut client = Client::attach(socket, &options)?;
    let service = SocketAddr::from(([10, 0, 0, 1], 5000));
    let listener = server.listen(service, 1)?;
    let near = client.connect(service)?;
    let far = accept(&mut server, listener)?;
    while !client.readiness(near).writable {
        client.poll(Duration::from_millis(10))?;
    }
    client.set(near, SocketOption::NoDelay(true))?;
    server.set(far, SocketOption::NoDelay(true))?;
    let mut times = Times::new(trips);
    let mut bytes = [0; BYTES];
    for number in 0..trips {
        let begun = Instant::now();
        client.write(near, &[number as u8; BYTES])?;
        get(&mut server, far, &mut bytes, cancel)?;
        server.write(far, &bytes)?;
        get(&mut client, near, &mut bytes, cancel)?;
        times.add(begun.elapsed());
        check(&bytes, number)?;
    }
    client.close(near)?;
    server.close(far)?;
    server.close(listener)?;
    // The engine must see the close before the next one listens there.
    client.poll(Duration::ZERO)?;
    server.poll(Duration::ZERO)?;
    Ok(times.figures())
}

fn accept(server: &mut Client, listener: Socket) -> Result<Socket, BenchError> {
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        server.poll(Duration::from_millis(10))?;
        if let Some((far, _)) = server.accept(listener) {
            return Ok(far);
        }
    }
    Err(BenchError::Wrong(
        "no session came to the engine's listener".into(),
    ))
}

/// Spins until `bytes` is full.
fn get(
    client: &mut Client,
    socket: Socket,
    bytes: &mut [u8],
    cancel: &AtomicBool,
) -> Result<(), BenchError> {
    let mut have = 0;
    let mut turns = 0u32;
    while have < bytes.len() {
        match client.read(socket, &mut bytes[have..])? {
            Some(0) => return Err(BenchError::Wrong("a session ended".into())),
            Some(count) => have += count,
            None => {
                client.poll(Duration::ZERO)?;
                turns += 1;
                if turns.is_multiple_of(1 << 20) {
                    super::interrupted(cancel)?;
                }
            }
        }
    }
    Ok(())
}

/// The kernel's loopback: the far side on `core`, or in this thread. As [`ours`].
fn kernel(trips: usize, core: Option<usize>, cancel: &AtomicBool) -> Result<Vec<f64>, BenchError> {
    let (near, mut far) = connection()?;
    let Some(core) = core else {
        return ask(near, trips, cancel, || echo(&mut far, cancel).map(drop));
    };
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let answering = scope.spawn(|| {
            if let Err(error) = cpu::pin(core) {
                // The peer must not wait for it.
                far.shutdown(Shutdown::Both).ok();
                return Err(error.into());
            }
            while echo(&mut far, &stop)? {}
            Ok(())
        });
        let asked = ask(near, trips, cancel, || Ok(()));
        stop.store(true, Ordering::Relaxed);
        let failed = |_| Err(BenchError::Wrong("the kernel's far side failed".into()));
        answering.join().unwrap_or_else(failed)?;
        asked
    })
}

/// Both ends of a session over the kernel's loopback, both non-blocking.
fn connection() -> Result<(TcpStream, TcpStream), BenchError> {
    let listener = TcpListener::bind("127.0.0.1:0").map_err(refused)?;
    let address = listener.local_addr().map_err(refused)?;
    let near = TcpStream::connect(address).map_err(refused)?;
    let (far, _) = listener.accept().map_err(refused)?;
    for stream in [&near, &far] {
        stream.set_nodelay(true).map_err(refused)?;
        stream.set_nonblocking(true).map_err(refused)?;
    }
    Ok((near, far))
}

fn refused(error: std::io::Error) -> BenchError {
    BenchError::io("use the kernel's loopback")(error)
}

/// Sends one request after the other; `between` runs the far side, where no other thread does.
fn ask(
    mut near: TcpStream,
    trips: usize,
    cancel: &AtomicBool,
    mut between: impl FnMut() -> Result<(), BenchError>,
) -> Result<Vec<f64>, BenchError> {
    let mut times = Times::new(trips);
    let mut bytes = [0; BYTES];
    for number in 0..trips {
        let begun = Instant::now();
        near.write_all(&[number as u8; BYTES]).map_err(refused)?;
        between()?;
        if !take(&mut near, &mut bytes, cancel)? {
            return Err(BenchError::Interrupted);
        }
        times.add(begun.elapsed());
        check(&bytes, number)?;
    }
    Ok(times.figures())
}

/// Answers one request; false once `stop` is raised or the session is over.
fn echo(far: &mut TcpStream, stop: &AtomicBool) -> Result<bool, BenchError> {
    let mut bytes = [0; BYTES];
    let asked = take(far, &mut bytes, stop)?;
    if asked {
        far.write_all(&bytes).map_err(refused)?;
    }
    Ok(asked)
}

/// Spins until `bytes` is full; false once `stop` is raised.
fn take(stream: &mut TcpStream, bytes: &mut [u8], stop: &AtomicBool) -> Result<bool, BenchError> {
    let mut have = 0;
    while have < bytes.len() {
        match stream.read(&mut bytes[have..]) {
            Ok(0) => return Ok(false),
            Ok(count) => have += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                if stop.load(Ordering::Relaxed) {
                    return Ok(false);
                }
            }
            Err(error) => return Err(refused(error)),
        }
    }
    Ok(true)
}

fn check(bytes: &[u8; BYTES], number: usize) -> Result<(), BenchError> {
    if *bytes == [number as u8; BYTES] {
        return Ok(());
    }
    Err(BenchError::Wrong(format!(
        "the answer to request {number} is another's"
    )))
}

/// Round trips of one round.
struct Times(Vec<f64>);

impl Times {
    fn new(count: usize) -> Self {
        Self(Vec::with_capacity(count))
    }

    fn add(&mut self, time: Duration) {
        self.0.push(time.as_secs_f64() * 1e6);
    }

    /// Median and 99th percentile, in us.
    fn figures(mut self) -> Vec<f64> {
        self.0.sort_by(f64::total_cmp);
        let at = |share: f64| self.0[((self.0.len() - 1) as f64 * share) as usize];
        vec![at(0.5), at(0.99)]
    }
}

const MEDIAN: &str = "64 B there and back, application - engine - application, median";
const P99: &str = "64 B there and back, application - engine - application, p99";
const LINE: &str = "a word to another core and back";
const KERNELS: [&str; 2] = [
    "kernel's loopback, a core a side, both spin",
    "kernel's loopback, one thread drives both sides",
];
/// Size of a request and of an answer.
const BYTES: usize = 64;
const PATIENCE: Duration = Duration::from_secs(5);

//! Cost of an empty off-load to another process, relative to a bare shared line between the same
//! two cores.
//!
//! `cargo run --release -p sidecore-bench --example daemon_latency -- [rounds]`
//!
//! Three processes: this one calls, one is the daemon, one echoes a word on a shared line. The two
//! take turns on the engine's core, round by round, so that both see the same machine; while one is
//! measured the other sleeps. Prints medians and 99th percentiles in nanoseconds, over all rounds.
//!
//! A cycle counter may count in steps (10 ns on some machines), so medians are also taken of groups
//! of 20 calls. Two virtual cores may be close at one time and distant at another, so those medians
//! are split into rounds whose bare line took less and more than 200 ns.

use sidecore_daemon::client::{Args, Client};
use sidecore_daemon::{Daemon, DaemonOptions};
use sidecore_sys::local_socket::{self, Received};
use sidecore_sys::{SharedMap, SharedSlice, Sharing, clock, cpu, shared_futex};
use std::error::Error;
use std::io::Write;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().collect();
    match args.get(1).map(String::as_str) {
        Some("daemon") => run_daemon(Path::new(&args[2])),
        Some("echo") => run_echo(Path::new(&args[2])),
        rounds => measure(rounds.unwrap_or("40").parse()?),
    }
}

/// A child process that is killed when its owner is done.
struct Process(Child);

impl Process {
    fn start(role: &str, socket: &Path) -> Result<Self> {
        let child = Command::new(std::env::current_exe()?)
            .arg(role)
            .arg(socket)
            .spawn()?;
        Ok(Self(child))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

fn run_daemon(socket: &Path) -> Result<()> {
    let options = DaemonOptions {
        socket: socket.to_owned(),
        engines: 1,
        grace: Duration::from_millis(2),
        ..DaemonOptions::default()
    };
    Daemon::start(options)?.wait();
    Ok(())
}

/// The line that goes there and back, and the word that lets the echo sleep.
fn words(memory: SharedSlice<'_>) -> Option<(&AtomicU32, &AtomicU32)> {
    Some((memory.overlay(0)?, memory.overlay(128)?))
}

const LINE_BYTES: usize = 4096;
/// Value on the line that tells the echo to sleep.
const REST: u32 = u32::MAX;

fn run_echo(socket: &Path) -> Result<()> {
    let connection = local_socket::connect(socket)?;
    local_socket::poll(
        &[connection.as_fd()],
        &mut Vec::new(),
        Duration::from_secs(20),
    )?;
    let Received::Message(_, mut files) = local_socket::receive(connection.as_fd(), &mut [0])?
    else {
        return Err("no line was sent".into());
    };
    let file = files.pop().ok_or("no line was sent")?;
    let map = SharedMap::open(file, LINE_BYTES, Sharing::ReadWrite)?;
    let (line, awake) = words(map.slice()).ok_or("too small")?;
    cpu::pin(*cpu::allowed()?.last().ok_or("no core")?)?;
    while !local_socket::is_hung_up(connection.as_fd()) {
        shared_futex::wait(awake, 0, Duration::from_millis(100));
        while awake.load(Ordering::Acquire) == 1 {
            let seen = line.load(Ordering::Acquire);
            if seen == REST {
                awake.store(0, Ordering::Release);
            } else if seen & 1 == 1 {
                line.store(seen + 1, Ordering::Release);
            }
        }
    }
    Ok(())
}

fn measure(rounds: usize) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (daemon_socket, echo_socket) = (folder.path().join("d"), folder.path().join("e"));
    let map = SharedMap::create("line", LINE_BYTES, Sharing::ReadWrite)?;
    let (line, awake) = words(map.slice()).ok_or("too small")?;
    let listener = local_socket::listen(&echo_socket, 0o600, 1)?;
    let _echo = Process::start("echo", &echo_socket)?;
    let connection = loop {
        if let Some(connection) = local_socket::accept(listener.as_fd())? {
            break connection;
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    local_socket::send(connection.as_fd(), b"l", &[map.file()])?;
    let _daemon = Process::start("daemon", &daemon_socket)?;
    let client = loop {
        if let Ok(client) = Client::attach(&daemon_socket) {
            break client;
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    let empty = client.kernel("empty")?;
    // The engine and the echo have the last core.
    cpu::pin(*cpu::allowed()?.first().ok_or("no core")?)?;
    let (mut bare, mut calls) = (Samples::default(), Samples::default());
    for _ in 0..rounds {
        line.store(0, Ordering::Release);
        awake.store(1, Ordering::Release);
        shared_futex::wake(awake, 1);
        let mut value = 1;
        round(&mut bare, || {
            line.store(value, Ordering::Release);
            while line.load(Ordering::Acquire) != value + 1 {
                std::hint::black_box(());
            }
            value += 2;
            Ok(())
        })?;
        line.store(REST, Ordering::Release);
        while awake.load(Ordering::Acquire) == 1 {
            std::thread::yield_now();
        }
        round(&mut calls, || {
            client
                .call(empty, Args::new())
                .map(drop)
                .map_err(Into::into)
        })?;
        // The engine falls asleep.
        std::thread::sleep(Duration::from_millis(5));
    }
    let mut out = std::io::stdout().lock();
    let line = figures(&bare.singles);
    let call = figures(&calls.singles);
    writeln!(
        out,
        "bare shared line     median {:5.0} ns  p99 {:6.0} ns",
        line.0, line.1
    )?;
    writeln!(
        out,
        "cross-process call   median {:5.0} ns  p99 {:6.0} ns",
        call.0, call.1
    )?;
    let ratio = call.0 / line.0;
    writeln!(
        out,
        "ratio of medians     {ratio:.2}   (limit 1.5, and 400 ns)"
    )?;
    for (name, wanted_near) in [("near", true), ("far", false)] {
        let is_wanted = |round: &usize| (bare.groups[*round] < FAR_NS) == wanted_near;
        let wanted: Vec<usize> = (0..rounds).filter(is_wanted).collect();
        if wanted.is_empty() {
            continue;
        }
        let line = median(wanted.iter().map(|&round| bare.groups[round]));
        let call = median(wanted.iter().map(|&round| calls.groups[round]));
        let ratio = call / line;
        let count = wanted.len();
        writeln!(
            out,
            "{name:4} groups of {GROUP}    line {line:5.1} ns  call {call:5.1} ns  \
             ratio {ratio:.2}  ({count} rounds)"
        )?;
    }
    let counters = client.counters();
    writeln!(
        out,
        "calls on engines {}, on the host {}",
        counters.on_engines, counters.on_host
    )?;
    Ok(())
}

/// Calls in a group.
const GROUP: usize = 20;
/// Latency of a bare line, in nanoseconds, above which a round's cores count as distant.
const FAR_NS: f64 = 200.0;

#[derive(Default)]
struct Samples {
    /// Cycles of each call.
    singles: Vec<u64>,
    /// Nanoseconds of a call in a round's median group.
    groups: Vec<f64>,
}

/// Warms up, then times each of a thousand, and then a thousand in groups.
fn round(samples: &mut Samples, mut once: impl FnMut() -> Result<()>) -> Result<()> {
    for _ in 0..200 {
        once()?;
    }
    for _ in 0..1000 {
        let begun = clock::cycles();
        once()?;
        samples.singles.push(clock::cycles() - begun);
    }
    let mut groups = Vec::new();
    for _ in 0..1000 / GROUP {
        let begun = clock::cycles();
        for _ in 0..GROUP {
            once()?;
        }
        groups.push(clock::cycles() - begun);
    }
    samples.groups.push(figures(&groups).0 / GROUP as f64);
    Ok(())
}

/// Median and 99th percentile in nanoseconds.
fn figures(cycles: &[u64]) -> (f64, f64) {
    let mut cycles = cycles.to_vec();
    cycles.sort_unstable();
    let at = |part: usize| clock::cycles_to_ns(cycles[cycles.len() * part / 100]) as f64;
    (at(50), at(99))
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

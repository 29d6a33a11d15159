//! Two processes that both use all engines of one daemon.
//!
//! `cargo run --release -p sidecore-bench --example daemon_share -- [engines] [seconds]`
//!
//! Process A runs loops over all engines, alone; then process B runs the same at the same time;
//! then A alone again. Fair share is half of A's rate alone for each. Prints loops a second, the
//! slow-down of each, and the widths that the policy chose. (Two OpenMP programs with active
//! waiting on two cores fall by four orders of magnitude.)

use sidecore_daemon::client::{Client, ClientOptions, Piece};
use sidecore_daemon::served::Registry;
use sidecore_daemon::{Daemon, DaemonOptions};
use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Pieces of a loop, and how long each takes.
const PIECES: usize = 32;
const PIECE_US: u64 = 20;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().collect();
    if args.get(1).is_some_and(|arg| arg == "client") {
        return run_client(Path::new(&args[2]), args[3].parse()?);
    }
    let engines = args.get(1).map_or(Ok(2), |arg| arg.parse())?;
    let seconds: f64 = args.get(2).map_or(Ok(2.0), |arg| arg.parse())?;
    let folder = tempfile::tempdir()?;
    let daemon = Daemon::start(DaemonOptions {
        socket: folder.path().join("daemon.sock"),
        engines,
        oversubscribe: true,
        registry: Registry::with_spin_us(),
        ..DaemonOptions::default()
    })?;
    let run = |clients: usize| -> Result<Vec<(f64, f64)>> {
        let started: Vec<Process> = (0..clients)
            .map(|_| Process::start(daemon.socket(), seconds))
            .collect::<Result<_>>()?;
        started.into_iter().map(Process::finish).collect()
    };
    // Alone before and after, since the machine's speed drifts.
    let (before, both, after) = (run(1)?, run(2)?, run(1)?);
    let alone = (before[0].0 + after[0].0) / 2.0;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{engines} engines, loops of {PIECES} x {PIECE_US} us")?;
    let (first, last) = (before[0].0, after[0].0);
    writeln!(
        out,
        "alone     {first:8.0} and {last:8.0} loops/s, width {:.2}",
        before[0].1
    )?;
    for (name, (rate, width)) in ["A beside B", "B beside A"].iter().zip(&both) {
        let slower = alone / rate;
        writeln!(
            out,
            "{name} {rate:7.0} loops/s, width {width:.2}: x{slower:.2} slower (fair: 2)"
        )?;
    }
    Ok(())
}

/// A child process that is killed when its owner is done.
struct Process(Child);

impl Process {
    fn start(socket: &Path, seconds: f64) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("client").arg(socket).arg(seconds.to_string());
        Ok(Self(command.stdout(Stdio::piped()).spawn()?))
    }

    /// Loops a second, and the mean width.
    fn finish(mut self) -> Result<(f64, f64)> {
        let mut line = String::new();
        let out = self.0.stdout.take().ok_or("no output")?;
        BufReader::new(out).read_line(&mut line)?;
        let (rate, width) = line.trim().split_once(' ').ok_or("a client said nothing")?;
        Ok((rate.parse()?, width.parse()?))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

fn run_client(socket: &Path, seconds: f64) -> Result<()> {
    let options = ClientOptions {
        registry: Registry::with_spin_us(),
        ..ClientOptions::patient()
    };
    let client = Client::attach_with(socket, options)?;
    let spin = client.kernel("spin_us")?;
    let piece = |_| Piece::new(&[PIECE_US]);
    let begun = Instant::now();
    // A moment for the other one to attach.
    while begun.elapsed() < Duration::from_millis(100) {
        client.for_each(spin, &[], &mut [], PIECES, piece)?;
    }
    let (begun, mut loops, mut widths) = (Instant::now(), 0u32, 0usize);
    while begun.elapsed().as_secs_f64() < seconds {
        widths += client.for_each(spin, &[], &mut [], PIECES, piece)?.width;
        loops += 1;
    }
    let rate = f64::from(loops) / begun.elapsed().as_secs_f64();
    let width = widths as f64 / f64::from(loops.max(1));
    writeln!(std::io::stdout(), "{rate} {width}")?;
    Ok(())
}

//! Roles of child processes, and what each role does: answer lines, sleep, stay on its cores.
//!
//! Why here: parents write roles and children play them, so neither side owns them. Any thread of
//! a child. Source: own.

use super::BenchError;
use super::work::HostWork;
use crate::measure::child::READY;
use rustix::time::{ClockId, Timespec};
use serde::{Deserialize, Serialize};
use sidecore_sys::{clock, cpu};
use std::io::{BufRead, Write};
use std::path::PathBuf;

/// Role of a process.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "role", rename_all = "snake_case")]
pub(crate) enum Role {
    /// A worker that spins while its engine works, as the papers' MPI processes did.
    Spin(Worker),
    /// A worker that sleeps until its engine is done.
    Block(Worker),
    /// Workers as tasks of ours, all in one process.
    Fibers {
        /// Work of each task; the pool has an engine on each of its cores.
        worker: Worker,
        /// Number of tasks.
        workers: usize,
    },
    /// Loops of one unit for each core, one after another, on a pool of its own.
    Loops {
        /// The cores of its engines.
        cpus: Vec<usize>,
        /// Work of a unit.
        work: HostWork,
    },
    /// An idle pool, which worked once.
    IdlePool {
        /// The cores of its engines.
        cpus: Vec<usize>,
    },
    /// A daemon.
    Daemon(Served),
    /// A client that calls the engines of a daemon, over and over.
    Client {
        /// Socket of the daemon.
        socket: PathBuf,
        /// The cores that it may use.
        cpus: Vec<usize>,
        /// Time for which each call keeps an engine busy.
        call_us: u64,
    },
    /// A program of a user that tries to block other clients of a daemon.
    Hostile(Hostile),
    /// A client that calls now and then.
    Sparse {
        /// Socket of the daemon.
        socket: PathBuf,
    },
    /// A client that calls over and over, wherever the kernel runs it.
    Unpinned {
        /// Socket of the daemon.
        socket: PathBuf,
    },
    /// The foreign process: work without pause, on one core.
    Hog {
        /// The core.
        cpu: usize,
    },
}

/// A daemon that serves.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Served {
    /// Path of the daemon's socket.
    pub(crate) socket: PathBuf,
    /// The cores of its engines, one each.
    pub(crate) cpus: Vec<usize>,
    /// Time for which they poll with nothing to do; its own choice unless given.
    pub(crate) grace_ms: Option<u64>,
    /// Users that may attach in addition to its own and root.
    pub(crate) allow_uids: Vec<u32>,
}

/// A worker.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Worker {
    /// The cores among which the kernel may move it.
    pub(crate) cpus: Vec<usize>,
    /// The host's share of a cycle.
    pub(crate) work: HostWork,
    /// Time of the engine's share of a cycle, in nanoseconds.
    pub(crate) engine_ns: u64,
}

/// A hostile program.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Hostile {
    /// Socket of the daemon.
    pub(crate) socket: PathBuf,
    /// Its attack.
    pub(crate) attack: Attack,
}

/// An attack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Attack {
    /// Attaches with large arenas, keeps the descriptors and hangs up, over and over.
    Memory,
    /// Connects and says nothing, a hundred at once, over and over.
    Connections,
    /// Attaches with large arenas and detaches, over and over, on four threads.
    Attaches,
    /// Eight threads keep engines busy for as long as one request can.
    Spinning,
}

/// Says `ready`, then answers each line with one.
pub(super) fn answer_lines<Q: serde::de::DeserializeOwned, A: Serialize>(
    mut answer: impl FnMut(Q) -> A,
) -> Result<(), BenchError> {
    say(READY)?;
    for line in std::io::stdin().lock().lines() {
        let line = line.map_err(BenchError::io("read a line"))?;
        let question = serde_json::from_str(&line).map_err(|error| BenchError::Io {
            what: format!("understand `{line}`"),
            source: error.into(),
        })?;
        let text = serde_json::to_string(&answer(question)).map_err(|error| BenchError::Io {
            what: "write an answer".into(),
            source: error.into(),
        })?;
        say(&text)?;
    }
    Ok(())
}

pub(super) fn say(line: &str) -> Result<(), BenchError> {
    let mut out = std::io::stdout().lock();
    let said = writeln!(out, "{line}").and_then(|()| out.flush());
    said.map_err(BenchError::io("answer"))
}

/// Lets the kernel move this thread among these cores only.
pub(crate) fn stay_on(cpus: &[usize]) -> Result<(), BenchError> {
    Ok(cpu::stay_on(cpus)?)
}

/// Sleeps until a time of [`clock::now_ns`].
pub(crate) fn sleep_until(moment_ns: u64) {
    let moment = Timespec {
        tv_sec: (moment_ns / 1_000_000_000) as i64,
        tv_nsec: (moment_ns % 1_000_000_000) as i64,
    };
    while clock::now_ns() < moment_ns {
        // Interrupted or done: the clock decides.
        let _ = rustix::thread::clock_nanosleep_absolute(ClockId::Monotonic, &moment);
    }
}

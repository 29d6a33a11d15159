//! Roles of the bench's child processes: `offload peer ROLE`.
//!
//! Why here: candidates that are processes must be started alike, pinned alike and counted alike,
//! ours too. A child prints `ready`, then answers each input line with a line; it ends when its
//! standard input does, however its parent ended.
//! Must stay true: whatever a child allocates or starts, it does so before `ready`.
//! The child's main thread. Source: own.

use super::BenchError;
use super::strangers::{self, Hostile};
use super::work::{Counted, HostWork, Window, count_cycles, count_loops};
use rustix::time::{ClockId, Timespec};
use serde::{Deserialize, Serialize};
use sidecore_daemon::client::{Args, Client, ClientOptions};
use sidecore_daemon::served::Registry;
use sidecore_daemon::{Allow, Daemon, DaemonOptions};
use sidecore_measure::child::READY;
use sidecore_offload::task::{self, Task};
use sidecore_offload::{Pool, PoolConfig, TaskOptions, TasksOptions};
use sidecore_sched::ClassId;
use sidecore_sys::{clock, cpu};
use std::io::{BufRead, Write};
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Plays a role, written as the bench writes it, until standard input ends. Blocks.
///
/// # Errors
/// [`BenchError::Io`] where it is no role, or where the system refuses a core, a thread or a line.
pub fn play(role: &str) -> Result<(), BenchError> {
    let role: Role = serde_json::from_str(role).map_err(|error| BenchError::Io {
        what: "play a role that the bench has not written".into(),
        source: error.into(),
    })?;
    role.play()
}

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

impl Role {
    /// Plays the role until standard input ends. Blocks.
    fn play(&self) -> Result<(), BenchError> {
        match self {
            Self::Spin(worker) => worker.count(|until_ns| {
                while clock::now_ns() < until_ns {
                    std::hint::spin_loop();
                }
            }),
            Self::Block(worker) => {
                // By default the kernel may let a sleeper oversleep by 50 us to save wake-ups.
                set_timer_slack();
                worker.count(sleep_until)
            }
            Self::Fibers { worker, workers } => fibers(worker, *workers),
            Self::Loops { cpus, work } => loops(cpus, *work),
            Self::IdlePool { cpus } => {
                let pool = start_pool(cpus)?;
                let mut units = vec![(); cpus.len()];
                pool.for_each(ClassId(0), &mut units, |_, ()| {})?;
                answer_lines(|_: ()| Vec::<Counted>::new())
            }
            Self::Daemon(served) => served.serve(),
            Self::Client {
                socket,
                cpus,
                call_us,
            } => call_over_and_over(socket, cpus, *call_us),
            Self::Hostile(hostile) => hostile.attack(),
            Self::Sparse { socket } => strangers::sparse(socket),
            Self::Unpinned { socket } => strangers::unpinned(socket),
            Self::Hog { cpu } => hog(*cpu),
        }
    }
}

impl Worker {
    fn count(&self, mut wait: impl FnMut(u64)) -> Result<(), BenchError> {
        stay_on(&self.cpus)?;
        answer_lines(|window: Window| {
            sleep_until(window.begin_ns);
            vec![count_cycles(self.work, self.engine_ns, &window, &mut wait)]
        })
    }
}

impl Served {
    fn serve(&self) -> Result<(), BenchError> {
        // Engines are made for the cores that their maker may use.
        stay_on(&self.cpus)?;
        let mut options = DaemonOptions {
            socket: self.socket.clone(),
            engines: self.cpus.len(),
            registry: Registry::with_spin_us(),
            allow: Allow {
                uids: self.allow_uids.clone(),
                gids: Vec::new(),
            },
            ..DaemonOptions::default()
        };
        if let Some(grace_ms) = self.grace_ms {
            options.grace = Duration::from_millis(grace_ms);
        }
        let daemon = Daemon::start(options)?;
        let served = answer_lines(|_: ()| Vec::<Counted>::new());
        daemon.stop();
        served
    }
}

fn call_over_and_over(socket: &Path, cpus: &[usize], call_us: u64) -> Result<(), BenchError> {
    stay_on(cpus)?;
    let options = ClientOptions {
        registry: Registry::with_spin_us(),
        ..ClientOptions::patient()
    };
    let client = Client::attach_with(socket, options)?;
    let kernel = client.kernel("spin_us")?;
    answer_lines(|window: Window| {
        sleep_until(window.begin_ns);
        let before = client.counters();
        let call = || client.call(kernel, Args::new().words(&[call_us])).is_ok();
        let counted = count_loops(&window, call);
        if client.counters().on_host > before.on_host {
            // The engines are measured: an answer of nothing is an error.
            return Vec::new();
        }
        vec![counted]
    })
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

/// A pool with an engine on each of these cores.
fn start_pool(cpus: &[usize]) -> Result<Pool, BenchError> {
    // Engines are made for the cores that their maker may use.
    stay_on(cpus)?;
    Ok(Pool::start(PoolConfig {
        engines: cpus.len(),
        ..PoolConfig::default()
    })?)
}

fn loops(cpus: &[usize], work: HostWork) -> Result<(), BenchError> {
    let pool = start_pool(cpus)?;
    let mut units = vec![(); cpus.len()];
    answer_lines(|window: Window| {
        sleep_until(window.begin_ns);
        let mut one = || pool.for_each(ClassId(0), &mut units, |_, ()| work.run());
        vec![count_loops(&window, || one().is_ok())]
    })
}

/// Workers as tasks.
fn fibers(worker: &Worker, workers: usize) -> Result<(), BenchError> {
    let pool = start_pool(&worker.cpus)?;
    let options = TasksOptions {
        cpus: worker.cpus.clone(),
        live_max: Some(workers),
        ..TasksOptions::default()
    };
    answer_lines(|window: Window| {
        sleep_until(window.begin_ns);
        let work = |_: &Task| {
            count_cycles(worker.work, worker.engine_ns, &window, |until_ns| {
                // No task cancels it.
                let _ = task::sleep_until(until_ns);
            })
        };
        let counted = pool.tasks(options.clone(), |scope| {
            let spawn = |_| scope.spawn(TaskOptions::default(), work);
            let handles: Vec<_> = (0..workers).map(spawn).collect();
            let joined = handles.into_iter().map(|handle| handle.join());
            joined.collect::<Result<Vec<Counted>, _>>()
        });
        // Failures are missing from the answer, which the parent notices.
        counted.and_then(|counted| counted).unwrap_or_default()
    })
}

fn hog(cpu: usize) -> Result<(), BenchError> {
    let stop = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&stop);
    let reader = std::thread::Builder::new().name("bench-end".into());
    let reading = reader.spawn(move || {
        for line in std::io::stdin().lock().lines() {
            if line.is_err() {
                break;
            }
        }
        seen.store(true, Ordering::Relaxed); // Nothing hangs on it but the end.
    });
    reading.map_err(BenchError::io("start a thread"))?;
    // After the reader has started: a thread inherits its maker's cores, and this one is kept busy.
    stay_on(&[cpu])?;
    say(READY)?;
    let work = HostWork::calibrate(HOG_LOOK_NS);
    while !stop.load(Ordering::Relaxed) {
        work.run();
    }
    Ok(())
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

/// Makes the kernel wake this thread at the requested time.
pub(crate) fn set_timer_slack() {
    // A refusal makes sleeps longer, not wrong.
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
}

/// Interval at which a hog checks whether it is to end, in nanoseconds.
const HOG_LOOK_NS: u64 = 1_000_000;

//! Playing the roles of the bench's child processes: `offload peer ROLE`.
//!
//! Why here: candidates that are processes must be started alike, pinned alike and counted alike,
//! ours too. A child prints `ready`, then answers each input line with a line; it ends when its
//! standard input does, however its parent ended.
//! Must stay true: whatever a child allocates or starts, it does so before `ready`.
//! The child's main thread. Source: own.

use super::BenchError;
use super::roles::{Role, Served, Worker, answer_lines, say, sleep_until, stay_on};
use super::strangers;
use super::work::{Counted, HostWork, Window, count_cycles, count_loops};
use crate::measure::child::READY;
use sidecore_daemon::client::{Args, Client, ClientOptions};
use sidecore_daemon::served::Registry;
use sidecore_daemon::{Allow, Daemon, DaemonOptions};
use sidecore_offload::task::{self, Task};
use sidecore_offload::{Pool, PoolConfig, TaskOptions, TasksOptions};
use sidecore_sched::ClassId;
use sidecore_sys::clock;
use std::io::BufRead;
use std::num::NonZeroU64;
use std::path::Path;
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

/// Makes the kernel wake this thread at the requested time.
pub(crate) fn set_timer_slack() {
    // A refusal makes sleeps longer, not wrong.
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
}

/// Interval at which a hog checks whether it is to end, in nanoseconds.
const HOG_LOOK_NS: u64 = 1_000_000;

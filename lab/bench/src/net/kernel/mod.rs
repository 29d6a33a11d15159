//! Comparisons with the local kernel, and with smoltcp, over a TAP.
//!
//! Why here: the stack has to be faster than the kernel's own for the kernel's own programs, so the
//! other end of the wire is always a plain socket of the kernel.
//!
//! - `plain`: sockets of the kernel that send and receive as fast as they can.
//! - `ours`: our stack on a TAP, with applications in the engine's own thread.
//! - one file a group: `bulk`, `smoltcp`, `flood`, `losses`, `bottleneck`; `pattern` is for
//!   `losses`, `wire` for the last two.
//!
//! Must stay true: a kernel's socket uses CUBIC on every side of every comparison; all candidates
//! have the same cores; every thread and interface ends with the round that it was made for.
//! Source: the NetX paper of 2008 (docs/papers.md).

mod bottleneck;
mod bulk;
mod flood;
mod losses;
mod ours;
mod pattern;
pub(super) mod plain;
mod smoltcp;
mod wire;

use super::namespace::Namespace;
use super::{Bench, BenchError, Group, interfaces, sleep};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// One stream compared with the kernel's.
pub(super) const BULK: Group = Group {
    name: "bulk",
    run: bulk::run,
};

/// One stream compared with smoltcp's.
pub(super) const SMOLTCP: Group = Group {
    name: "smoltcp",
    run: smoltcp::run,
};

/// One stream during a flood of SYNs.
pub(super) const FLOOD: Group = Group {
    name: "flood",
    run: flood::run,
};

/// One stream through bad wires.
pub(super) const LOSSES: Group = Group {
    name: "losses",
    run: losses::run,
};

/// A slow link with a finite queue.
pub(super) const BOTTLENECK: Group = Group {
    name: "bottleneck",
    run: bottleneck::run,
};

/// Resources of a comparison over a wire of ours.
struct Places {
    near: Namespace,
    far: Namespace,
    engine: usize,
    partner: usize,
}

impl Places {
    /// # Errors
    /// [`BenchError::Missing`] without the privilege for interfaces.
    fn new(bench: &Bench<'_>) -> Result<Self, BenchError> {
        let cancel = bench.cancel();
        Ok(Self {
            near: interfaces::alone(&cancel)?,
            far: interfaces::alone(&cancel)?,
            engine: bench.engine_cpu(),
            partner: bench.partner_cpu(),
        })
    }
}

/// Raises its flag when dropped, so that a round's threads end whatever happens.
struct Ending<'s>(&'s AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Growth of `count`: bytes a second over `time`, after a warm-up.
fn speed(count: &AtomicU64, time: Duration, cancel: &AtomicBool) -> Result<f64, BenchError> {
    sleep(time / 4, cancel)?;
    // Relaxed: a growing counter that publishes no other memory.
    let first = (count.load(Ordering::Relaxed), Instant::now());
    sleep(time, cancel)?;
    let bytes = count.load(Ordering::Relaxed) - first.0;
    let speed = bytes as f64 / first.1.elapsed().as_secs_f64();
    if bytes == 0 {
        return Err(BenchError::Wrong(format!("no byte arrived in {time:?}")));
    }
    Ok(speed)
}

/// Starts a round's thread; `name` is what `ps` and `perf` show.
fn start<'s, 'e, T: Send + 's>(
    scope: &'s std::thread::Scope<'s, 'e>,
    name: &str,
    job: impl FnOnce() -> T + Send + 's,
) -> Result<std::thread::ScopedJoinHandle<'s, T>, BenchError> {
    let thread = std::thread::Builder::new().name(name.into());
    thread
        .spawn_scoped(scope, job)
        .map_err(BenchError::io("start a thread"))
}

/// Result of a round's thread; a panic in it is passed on.
fn joined<T>(
    thread: std::thread::ScopedJoinHandle<'_, Result<T, BenchError>>,
) -> Result<T, BenchError> {
    thread
        .join()
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Byte count that marks a transfer whose data arrived altered.
const WRONG: u64 = u64::MAX;

fn gigabits(bytes_per_second: f64) -> f64 {
    bytes_per_second * 8.0 / 1e9
}

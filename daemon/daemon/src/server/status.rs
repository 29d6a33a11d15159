//! The daemon's status, for `sidecore top`. JSON on the socket; and the figures of it that engines
//! publish.

use crate::served::Entry;
use serde::{Deserialize, Serialize};
use sidecore_sys::clock;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// Status of a daemon at one moment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Status {
    /// Its process.
    pub pid: u32,
    /// Milliseconds since it started.
    pub uptime_ms: u64,
    /// The path of its socket.
    pub socket: String,
    /// Microseconds that an engine without a request polls before it sleeps.
    pub grace_us: u64,
    /// Its engines.
    pub engines: Vec<EngineStatus>,
    /// The attached clients.
    pub clients: Vec<ClientStatus>,
    /// The users with shared memory, ascending.
    #[serde(default)]
    pub users: Vec<UserStatus>,
    /// The kernels that it serves, by number.
    pub kernels: Vec<String>,
    /// The same kernels with their versions and hashes.
    pub served: Vec<KernelStatus>,
    /// Clients that ever attached.
    pub attached_total: u64,
    /// Connections that were refused: credentials, no room, messages that make no sense.
    pub refused_total: u64,
}

/// One user's share of the daemon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct UserStatus {
    /// The user.
    pub uid: u32,
    /// Segments: one a client, and those that clients keep after hanging up.
    pub segments: usize,
    /// Bytes of these segments.
    pub bytes: u64,
    /// The most bytes that they may have; none for root and the daemon's own user.
    pub bytes_max: Option<u64>,
}

/// One kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct KernelStatus {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: u32,
    /// The hash of its code, in hexadecimal digits ([`KernelHash`](crate::served::KernelHash)).
    pub hash: String,
}

impl KernelStatus {
    pub(super) fn of(entry: &Entry) -> Self {
        Self {
            name: entry.name.to_owned(),
            version: entry.version,
            hash: entry.hash.to_string(),
        }
    }
}

/// An engine's activity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum EngineState {
    /// Serving a request.
    Busy,
    /// Polling, within its grace period.
    Polling,
    /// Asleep.
    Asleep,
    /// Serving a request whose client has disconnected: the kernel has not returned.
    Orphaned,
}

/// One engine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct EngineStatus {
    /// Its number.
    pub engine: usize,
    /// Its core.
    pub cpu: usize,
    /// Its activity.
    pub state: EngineState,
    /// The client that it serves.
    pub client: Option<u32>,
    /// Part of the last second (about) that it spent serving, in percent.
    pub busy_percent: f64,
    /// Time that it spent serving since the start, in nanoseconds.
    #[serde(default)]
    pub busy_ns: u64,
    /// Requests that it served.
    pub calls: u64,
    /// Requests that ended in an error.
    pub failures: u64,
    /// Times that its core was taken from it for more than 100 us while it polled.
    pub stalls: u64,
    /// Total time of these gaps, in microseconds.
    pub stall_us: u64,
    /// Times that it went to sleep.
    pub sleeps: u64,
    /// Threads that this engine has left behind: each runs a kernel that has not returned, for a
    /// client that has disconnected.
    #[serde(default)]
    pub left_behind: u64,
}

/// One client.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ClientStatus {
    /// Its number, which may be given again after its end.
    pub client: u32,
    /// Its process; 0 where it is in a PID namespace that the daemon does not see.
    pub pid: i32,
    /// Its user.
    pub uid: u32,
    /// The name of its program.
    pub command: String,
    /// Bytes of its arena.
    pub arena_bytes: u64,
    /// True if its memory is locked in the daemon.
    pub locked: bool,
    /// Requests that engines served it.
    pub calls: u64,
    /// Engines that serve it at this moment.
    pub in_flight: u32,
    /// Its requests and jobs that wait for an engine.
    #[serde(default)]
    pub waiting: u32,
    /// Its requests and jobs that ended in an error.
    #[serde(default)]
    pub failures: u64,
    /// The kernel and the reason of the last one: for the client's own user, root and the daemon's
    /// user.
    #[serde(default)]
    pub last_failure: Option<String>,
    /// Its part of all engines' service in the last second (about), in percent.
    pub share_percent: f64,
    /// Microseconds of engines that it used.
    pub busy_us: u64,
    /// Its widths: the samples that saw it on 1, 2, 3… engines at once, taken 50 times a
    /// second. Up to the widest seen; the 64th counts wider ones, too.
    pub widths: Vec<u64>,
}

impl ClientStatus {
    /// As the user `asker` may see it of a daemon of the user `own`: a kernel's text may repeat
    /// what the kernel was given.
    pub(crate) fn seen_by(mut self, asker: u32, own: u32) -> Self {
        if ![0, own, self.uid].contains(&asker) {
            self.last_failure = None;
        }
        self
    }
}

/// Statistics that an engine's thread publishes to the control thread. All relaxed: figures for
/// people.
#[derive(Debug)]
pub struct Bench {
    /// Its core: where the process was given others, not that of the start.
    pub(crate) cpu: AtomicUsize,
    pub(crate) calls: AtomicU64,
    pub(crate) failures: AtomicU64,
    /// Cycles spent serving.
    pub(crate) busy_cycles: AtomicU64,
    /// Start of the current request; 0 between requests.
    pub(crate) begun_cycles: AtomicU64,
    /// Times that the engine's core was taken from it while it polled, and for how long in all.
    pub(crate) stalls: AtomicU64,
    pub(crate) stall_cycles: AtomicU64,
    /// Times that it went to sleep.
    pub(crate) sleeps: AtomicU64,
    pub(crate) asleep: AtomicBool,
    /// Number of the kernel that was run last.
    pub(crate) kernel: AtomicU32,
    /// The thread's number in the system.
    pub(crate) thread: AtomicI32,
    /// Set if the thread ended without being asked to.
    pub(crate) broken: AtomicBool,
    /// Set where another thread takes the engine over: this one takes no more requests. Published
    /// by the roster's generation.
    pub(crate) abandoned: AtomicBool,
}

impl Bench {
    /// Of an engine on this processor.
    #[must_use]
    pub fn new(cpu: usize) -> Self {
        Self {
            cpu: AtomicUsize::new(cpu),
            calls: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            busy_cycles: AtomicU64::new(0),
            begun_cycles: AtomicU64::new(0),
            stalls: AtomicU64::new(0),
            stall_cycles: AtomicU64::new(0),
            sleeps: AtomicU64::new(0),
            asleep: AtomicBool::new(false),
            kernel: AtomicU32::new(u32::MAX),
            thread: AtomicI32::new(0),
            broken: AtomicBool::new(false),
            abandoned: AtomicBool::new(false),
        }
    }

    /// Cycles that the engine spent serving, the request that it serves now included.
    pub(super) fn busy_cycles(&self) -> u64 {
        let begun = self.begun_cycles.load(Ordering::Relaxed);
        // The two are not read at one moment, so the figure may be off by one request.
        let running = match begun {
            0 => 0,
            begun => clock::cycles().saturating_sub(begun),
        };
        self.busy_cycles.load(Ordering::Relaxed) + running
    }

    /// Figures of the thread that takes the engine over: they go on from these.
    pub(crate) fn successor(&self) -> Self {
        let next = Self::new(self.cpu.load(Ordering::Relaxed));
        let begun = self.begun_cycles.load(Ordering::Relaxed);
        let running = match begun {
            0 => 0,
            begun => clock::cycles().saturating_sub(begun),
        };
        for (counter, before, more) in [
            (&next.calls, &self.calls, 1),
            (&next.failures, &self.failures, 1),
            (&next.busy_cycles, &self.busy_cycles, running),
            (&next.stalls, &self.stalls, 0),
            (&next.stall_cycles, &self.stall_cycles, 0),
            (&next.sleeps, &self.sleeps, 0),
        ] {
            counter.store(before.load(Ordering::Relaxed) + more, Ordering::Relaxed);
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_for_its_own_user_root_and_the_daemons() {
        let client = ClientStatus {
            client: 0,
            pid: 7,
            uid: 1000,
            command: "program".to_owned(),
            arena_bytes: 0,
            locked: true,
            calls: 1,
            in_flight: 0,
            waiting: 0,
            failures: 1,
            last_failure: Some("echo: a secret does not fit".to_owned()),
            share_percent: 0.0,
            busy_us: 0,
            widths: Vec::new(),
        };
        for (asker, sees) in [(0, true), (500, true), (1000, true), (1001, false)] {
            let seen = client.clone().seen_by(asker, 500);
            assert_eq!(seen.last_failure.is_some(), sees, "user {asker}");
            assert_eq!(seen.failures, 1);
        }
    }
}

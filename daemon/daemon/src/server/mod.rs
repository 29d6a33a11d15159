//! The daemon: one process that owns the machine's engines and serves others over shared memory.
//!
//! Top-down: [`Daemon`] is started with [`DaemonOptions`]; `control` accepts clients, has the
//! heartbeat thread and answers status questions; `crew` keeps the engines' threads; `engine` is
//! the thread of one engine, which polls the bells of all clients. Admission and each user's quota
//! are `sidecore_attach`'s. [`Status`] is what `sidecore top` shows.
//!
//! Why here: on a machine where several programs want engines, separate pools would compete for
//! cores. Must stay true: an engine never waits for a client, and a client's data is checked on a
//! copy; the fast path makes no system call. The protocol is in docs/daemon.md; source: the papers'
//! ULD daemon (request packets, shared pages locked and pre-touched, results without a copy).
//!
//! ```
//! use sidecore_daemon::client::{Args, Client, ClientOptions};
//! use sidecore_daemon::{Daemon, DaemonOptions};
//!
//! # let folder = tempfile::tempdir()?;
//! let daemon = Daemon::start(DaemonOptions {
//!     socket: folder.path().join("daemon.sock"),
//!     engines: 1,
//!     ..DaemonOptions::default()
//! })?;
//!
//! // In another process, as a rule. Others than patient ones do calls themselves on busy machines.
//! let client = Client::attach_with(daemon.socket(), ClientOptions::patient())?;
//! let empty = client.kernel("empty")?;
//! client.call(empty, Args::new())?;
//! assert_eq!(client.counters().on_engines, 1);
//! daemon.stop();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod control;
mod crew;
pub(crate) mod engine;
mod error;
mod heartbeat;
mod lines;
pub(crate) mod roster;
mod status;
mod turns;

pub use crew::Running;
pub use error::DaemonError;
pub use status::{ClientStatus, EngineState, EngineStatus, KernelStatus, Status, UserStatus};

pub use sidecore_attach::Allow;

pub use crate::shm::layout::{CLIENTS_MAX, ENGINES_MAX, VERSION as PROTOCOL_VERSION};

pub(crate) use crate::shm::layout::ARENA_BYTES_MAX;

use crate::served::Registry;
use crate::shm::activity::ActivityPage;
use crate::shm::introduction::PROTOCOL;
use crate::shm::layout::{self, ARENA_BYTES_DEFAULT};
use control::{Control, SEGMENT_NAME};
use crew::Crew;
use heartbeat::Heartbeat;
use roster::Roster;
use sidecore_attach::{Acceptor, AcceptorOptions, Quota, Trust};
use sidecore_bare::width::ToU64;
use sidecore_engine::CoreOptions;
use sidecore_sys::{cpu, descriptors, local_socket, machine, shared_futex};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

mod tracks {
    //! Names of what a daemon's engines record: `docs/trace.md` explains them.

    use sidecore_trace::Name;
    use sidecore_trace::summary::IDLE;

    /// A request of a client: by the kernel's name and the client's process.
    pub(super) static CALL: Name = Name::new("daemon", "call", ["$kernel", "client_pid"]);
    /// A part of a client's job.
    pub(super) static JOB: Name = Name::new("daemon", "job", ["client_pid", ""]);
    /// No client rings: the engine looks at all of them, again and again.
    pub(super) static POLL: Name = Name::new(IDLE, "poll", ["", ""]);
    /// The engine sleeps until a client rings.
    pub(super) static SLEEP: Name = Name::new(IDLE, "sleep", ["", ""]);
}

/// Options of a daemon.
#[derive(Debug, Clone)]
pub struct DaemonOptions {
    /// The socket's path; [`default_socket`] by default.
    pub socket: PathBuf,
    /// Engines, 1 to [`ENGINES_MAX`]; 0 for one less than the cores whose
    /// time this process may have ([`cpu::affordable`]).
    pub engines: usize,
    /// Time that an engine without a request polls before it sleeps. Waking it costs a client a
    /// system call and some ten microseconds. While others wait for cores, 0.2 ms at most.
    pub grace: Duration,
    /// The kernels that it serves.
    pub registry: Registry,
    /// The users and groups that may attach besides this user and root.
    pub allow: Allow,
    /// Allows more engines than cores. They then share cores, and let one another run
    /// while they poll.
    pub oversubscribe: bool,
    /// Largest number of clients at once, 1 to [`CLIENTS_MAX`].
    pub clients_max: usize,
    /// Of these, the most of one user other than root and the daemon's own; 0 for a quarter.
    /// Segments that a user keeps after hanging up count.
    pub user_clients_max: usize,
    /// The largest arena that a client gets, in bytes.
    pub arena_bytes_max: u64,
    /// The most bytes of all clients' segments. A quarter is kept for root and the daemon's user.
    pub bytes_max: u64,
    /// Of these, the most of one user other than root and the daemon's own.
    pub user_bytes_max: u64,
    /// The most requests of one user other than root and the daemon's own that engines serve at
    /// once; 0 for as many as there are engines.
    pub user_requests_max: u32,
    /// Each engine's core: local store, DMA mode.
    pub core: CoreOptions,
    /// Bytes of the stack of an engine's thread; 0 for the standard library's 2 MiB.
    pub stack_bytes: usize,
}

impl Default for DaemonOptions {
    fn default() -> Self {
        Self {
            socket: default_socket(),
            engines: 0,
            grace: Duration::from_millis(20),
            registry: Registry::builtin(),
            allow: Allow::default(),
            oversubscribe: false,
            clients_max: 64,
            user_clients_max: 0,
            arena_bytes_max: ARENA_BYTES_MAX,
            bytes_max: BYTES_MAX,
            user_bytes_max: USER_BYTES_MAX,
            user_requests_max: 0,
            core: CoreOptions::default(),
            stack_bytes: 0,
        }
    }
}

impl DaemonOptions {
    /// Has clients get at most three quarters of the memory that this process's control group may
    /// have: where a group's limit is reached, the kernel ends a process. The bytes of all
    /// segments, where that is less than before.
    fn within(&mut self, group_bytes: Option<u64>) -> Option<u64> {
        let most = group_bytes? / 4 * 3;
        let is_less = most < self.bytes_max;
        self.bytes_max = self.bytes_max.min(most);
        self.user_bytes_max = self.user_bytes_max.min(self.bytes_max);
        is_less.then_some(most)
    }

    /// Fits the options to what this machine lets the process have, and says what that costs: the
    /// memory of its control group, and the memory that may be locked.
    pub fn fit(&mut self) -> Vec<String> {
        let mut remarks = Vec::new();
        if let Some(bytes) = self.within(machine::memory_limit()) {
            remarks.push(format!(
                "clients get {} MiB in all, three quarters of what the control group may have; \
                 raise memory.max (MemoryMax=, --memory), or set --bytes to less",
                bytes >> 20
            ));
        }
        if let Some(bytes) = machine::lock_limit().filter(|&limit| limit < self.lock_bytes()) {
            remarks.push(format!(
                "{} KiB may be locked in memory, less than one client needs: pages may be moved or \
                 swapped; raise the limit (`ulimit -l`, LimitMEMLOCK=)",
                bytes >> 10
            ));
        }
        remarks
    }

    /// Bytes that this daemon locks for its engines and one client with the usual arena.
    #[must_use]
    fn lock_bytes(&self) -> u64 {
        self.core.store_bytes.to_u64() * self.engines.max(1).to_u64() + ARENA_BYTES_DEFAULT
    }

    fn door(&self, cpus: Vec<usize>) -> AcceptorOptions {
        let user_places_max = match self.user_clients_max {
            0 => (self.clients_max / 4).max(1),
            clients => clients,
        };
        AcceptorOptions {
            cpus,
            acceptors: 1,
            allow: self.allow.clone(),
            quota: Quota {
                places_max: self.clients_max,
                user_places_max,
                bytes_max: self.bytes_max,
                user_bytes_max: self.user_bytes_max,
            },
            remedy: |peer| {
                format!(
                    "start the daemon with --allow-uid {} or --allow-group {}",
                    peer.uid, peer.gid
                )
            },
        }
    }
}

/// The path at which a daemon listens unless given another
/// ([`sidecore_attach::default_socket`]).
#[must_use]
pub fn default_socket() -> PathBuf {
    sidecore_attach::default_socket("daemon")
}

/// The socket that a client should use unless given another: that of the own user's daemon where
/// one serves, else of root's in `/run/sidecore` ([`sidecore_attach::find_socket`]).
#[must_use]
pub fn find_socket(trust: &Trust) -> PathBuf {
    sidecore_attach::find_socket("daemon", trust)
}

/// A daemon that serves. Dropping it stops it: engines end their current requests, clients that
/// wait finish on their own cores. An engine whose kernel does not return within a third of a
/// second is left to the process's end.
#[derive(Debug)]
pub struct Daemon {
    socket: PathBuf,
    stop: Arc<Stop>,
    control: Option<JoinHandle<Ended>>,
    engines: usize,
    clients_max: usize,
    clients_wanted: usize,
}

/// The end of a daemon.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Ended {
    /// Engines that still run a kernel. Their threads end with the process; a program that ends
    /// should do so without the C library's clean-up (`_exit`), which may wait for the kernel's
    /// locks.
    pub running: Vec<Running>,
    /// The reason where it ended without having been stopped.
    pub failure: Option<DaemonError>,
}

impl Ended {
    /// The engines that still run, and behind them the reason of the end, for people; nothing where
    /// all have ended.
    #[must_use]
    pub fn remarks(&self) -> Vec<String> {
        let running = self.running.iter().map(|running| {
            let (engine, kernel) = (running.engine, running.kernel.unwrap_or("?"));
            format!(
                "engine {engine} has not returned from kernel `{kernel}`; it ends with the process"
            )
        });
        let mut remarks: Vec<String> = running.collect();
        if !remarks.is_empty() {
            remarks.extend(self.failure.as_ref().map(ToString::to_string));
        }
        remarks
    }
}

/// Handle that stops a daemon.
#[derive(Debug)]
pub(crate) struct Stop {
    /// The authoritative flag; the descriptor only wakes the control thread for it.
    raised: AtomicBool,
    poker: OwnedFd,
}

impl Stop {
    fn new() -> Result<Self, DaemonError> {
        Ok(Self {
            raised: AtomicBool::new(false),
            poker: local_socket::poker()?,
        })
    }

    fn raise(&self) {
        // Release: partner of the Acquire in `is_raised`.
        self.raised.store(true, Ordering::Release);
        local_socket::poke(self.poker.as_fd());
    }

    pub(crate) fn is_raised(&self) -> bool {
        self.raised.load(Ordering::Acquire)
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.poker.as_fd()
    }
}

impl Daemon {
    /// Takes the socket, makes the engines, and serves on threads of its own from then on. Returns
    /// once clients can attach.
    ///
    /// # Errors
    /// [`DaemonError`]: another daemon serves there, the socket is not ours to take, more engines
    /// than cores, or the operating system refuses.
    pub fn start(options: DaemonOptions) -> Result<Self, DaemonError> {
        let cpus = cpu::allowed()?;
        let engines = engine_count(&options, cpus.len())?;
        if options.clients_max == 0 || options.clients_max > CLIENTS_MAX {
            return Err(DaemonError::ClientCount {
                clients: options.clients_max,
            });
        }
        probe_kernel()?;
        let socket = options.socket.clone();
        let cpu_of_engine = engine_cpus(&cpus, engines);
        // Everything else stays off the engines' cores, if there are others.
        let is_host = |cpu: &usize| !cpu_of_engine.contains(cpu);
        let host_cpus: Vec<usize> = cpus.iter().copied().filter(is_host).collect();
        let door = Acceptor::open(PROTOCOL, &socket, options.door(host_cpus.clone()))
            .map_err(|error| DaemonError::of_socket(error, &socket))?;
        if let Some(bytes) = layout::segment_bytes(engines, ARENA_BYTES_DEFAULT) {
            door.expect(SEGMENT_NAME, bytes);
        }
        let (clients_max, clients_wanted) = (door.places_max(), options.clients_max);
        let activity = Arc::new(ActivityPage::new(&cpu_of_engine)?);
        let roster = Arc::new(Roster::default());
        let stop = Arc::new(Stop::new()?);
        let heartbeat = Heartbeat::start(Arc::clone(&activity));
        let heartbeat = heartbeat.map_err(|source| DaemonError::Thread { source })?;
        let shares_core = engines > cpus.len();
        let crew = Crew::start(&options, &activity, &roster, &cpu_of_engine, shares_core)?;
        let ending = Arc::clone(&roster);
        let control = Control::new(
            options,
            door,
            heartbeat,
            roster,
            crew,
            Arc::clone(&stop),
            cpus,
        );
        let control = std::thread::Builder::new()
            .name("sidecore-daemon".to_owned())
            .spawn(move || {
                // All clients wait for it, and it does little; without this it is slow on busy
                // machines.
                cpu::set_nice(-10).ok();
                if !host_cpus.is_empty() {
                    cpu::stay_on(&host_cpus).ok();
                }
                control.run()
            })
            .map_err(|source| {
                ending.end();
                DaemonError::Thread { source }
            })?;
        Ok(Self {
            socket,
            stop,
            control: Some(control),
            engines,
            clients_max,
            clients_wanted,
        })
    }

    /// The socket's path.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The number of its engines.
    #[must_use]
    pub fn engines(&self) -> usize {
        self.engines
    }

    /// The most clients at once: as in the options, or fewer where this process may not have open
    /// as many descriptors as they need.
    #[must_use]
    pub fn clients_max(&self) -> usize {
        self.clients_max
    }

    /// A line for people where there is room for fewer clients than the options ask for.
    #[must_use]
    pub fn remark(&self) -> Option<String> {
        let (clients, wanted) = (self.clients_max, self.clients_wanted);
        let limit = descriptors::limit();
        (clients < wanted).then(|| {
            format!(
                "room for {clients} clients, not {wanted}: the limit of {limit} open files allows \
                 no more; raise it (`ulimit -n`, LimitNOFILE=)"
            )
        })
    }

    /// A handle that stops it from another thread or a signal's handler thread, while this one is
    /// in [`Self::wait`].
    #[must_use]
    pub fn stopper(&self) -> Stopper {
        Stopper(Arc::clone(&self.stop))
    }

    /// Waits until the daemon was stopped, or cannot go on.
    pub fn wait(mut self) -> Ended {
        self.join()
    }

    /// Stops it and waits until its threads have ended and its socket is removed.
    pub fn stop(self) {
        drop(self);
    }

    fn join(&mut self) -> Ended {
        // Its panic was printed; there is nothing to undo.
        let ended = self.control.take().map(JoinHandle::join);
        ended.and_then(Result::ok).unwrap_or_default()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.stop.raise();
        self.join();
    }
}

/// Handle that stops a daemon from any thread.
#[derive(Debug, Clone)]
pub struct Stopper(Arc<Stop>);

impl Stopper {
    /// Asks the daemon to stop; does not wait for it.
    pub fn stop(&self) {
        self.0.raise();
    }
}

fn engine_count(options: &DaemonOptions, cores: usize) -> Result<usize, DaemonError> {
    let engines = match options.engines {
        0 => cores
            .min(cpu::affordable())
            .saturating_sub(1)
            .clamp(1, ENGINES_MAX),
        engines => engines,
    };
    if engines > ENGINES_MAX {
        return Err(DaemonError::EngineCount { engines });
    }
    if engines > cores && !options.oversubscribe {
        return Err(DaemonError::TooManyEngines { engines, cores });
    }
    Ok(engines)
}

/// The core of each engine, of those that there are: the first ones are left to the host for as
/// long as they suffice.
fn engine_cpus(cpus: &[usize], engines: usize) -> Vec<usize> {
    (0..engines)
        .filter_map(|engine| cpus.iter().rev().nth(engine % cpus.len().max(1)))
        .copied()
        .collect()
}

/// Engines sleep on many words at once; a kernel without that call fails now, not when the first
/// engine falls asleep.
fn probe_kernel() -> Result<(), DaemonError> {
    let word = AtomicU32::new(0);
    shared_futex::wait_any(&[(&word, 1)], Duration::ZERO)?;
    Ok(())
}

/// Shared memory that all clients together get, and one user of them, unless given others.
const BYTES_MAX: u64 = 2 << 30;
const USER_BYTES_MAX: u64 = 512 << 20;

#[cfg(test)]
mod tests {
    //! Tests that need no other process: options, the socket's path.

    use super::*;

    fn options(folder: &Path) -> DaemonOptions {
        DaemonOptions {
            socket: folder.join("daemon.sock"),
            engines: 1,
            ..DaemonOptions::default()
        }
    }

    #[test]
    fn options_that_make_no_sense_are_refused_in_one_line() {
        let folder = tempfile::tempdir().unwrap();
        let refused = |change: &dyn Fn(&mut DaemonOptions)| {
            let mut options = options(folder.path());
            change(&mut options);
            let text = Daemon::start(options).unwrap_err().to_string();
            assert!(!text.contains('\n'), "{text}");
            text
        };
        let cores = sidecore_sys::cpu::allowed().unwrap().len();
        if cores < ENGINES_MAX {
            let text = refused(&|options| options.engines = cores + 1);
            assert!(text.contains("--oversubscribe"), "{text}");
        }
        let text = refused(&|options| options.engines = ENGINES_MAX + 1);
        assert!(text.contains("1 to 1024"), "{text}");
        let text = refused(&|options| options.clients_max = 0);
        assert!(text.contains("1 to 120"), "{text}");
        let text = refused(&|options| options.core.store_bytes = 1 << 10);
        assert!(
            text.contains("echo") || text.contains("local store"),
            "{text}"
        );
    }

    #[test]
    fn clients_get_less_than_the_groups_memory() {
        let mut options = DaemonOptions::default();
        assert_eq!(options.within(None), None);
        assert_eq!(options.within(Some(16 << 30)), None);
        assert_eq!(
            (options.bytes_max, options.user_bytes_max),
            (2 << 30, 512 << 20)
        );
        assert_eq!(options.within(Some(400 << 20)), Some(300 << 20));
        assert_eq!(
            (options.bytes_max, options.user_bytes_max),
            (300 << 20, 300 << 20)
        );
    }

    #[test]
    fn a_socket_has_one_daemon_and_is_left_clean() {
        let folder = tempfile::tempdir().unwrap();
        let first = Daemon::start(options(folder.path())).unwrap();
        let error = Daemon::start(options(folder.path())).unwrap_err();
        let text = error.to_string();
        assert!(
            matches!(error, DaemonError::InUse { pid: Some(pid), .. } if pid == std::process::id())
        );
        assert!(text.contains("already serves at"), "{text}");
        let socket = first.socket().to_owned();
        first.stop();
        assert!(!socket.exists());
        let stopper = {
            let second = Daemon::start(options(folder.path())).unwrap();
            let stopper = second.stopper();
            stopper.stop();
            second.wait();
            stopper
        };
        stopper.stop();
        assert!(!socket.exists());
    }

    #[test]
    fn a_stale_socket_is_replaced_and_other_things_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let options = options(folder.path());
        // A socket without a listener, as a killed daemon leaves it.
        drop(local_socket::listen(&options.socket, 0o600, 1).unwrap());
        assert!(options.socket.exists());
        Daemon::start(options.clone()).unwrap().stop();
        std::fs::write(&options.socket, "a file").unwrap();
        let error = Daemon::start(options.clone()).unwrap_err();
        assert!(matches!(error, DaemonError::NotASocket { .. }), "{error}");
        assert_eq!(std::fs::read(&options.socket).unwrap(), b"a file");
    }

    #[test]
    fn a_socket_of_another_user_is_left_alone() {
        if local_socket::effective_uid() != 0 {
            // Only root can make one.
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let options = options(folder.path());
        drop(local_socket::listen(&options.socket, 0o600, 1).unwrap());
        std::os::unix::fs::chown(&options.socket, Some(12_345), None).unwrap();
        let error = Daemon::start(options.clone()).unwrap_err();
        assert!(error.to_string().contains("user 12345"), "{error}");
        assert!(options.socket.exists());
    }
}

//! The control thread: clients come and go, questions are answered.
//!
//! Why here: everything that needs a system call for each client is done by one thread, so that
//! engines need none. Must stay true: nothing here waits for a client; a connection that says
//! nothing, says nonsense, or does not read its answer is closed ([`Acceptor`]).

use super::DaemonOptions;
use super::crew::{Crew, Running};
use super::engine::Bench;
use super::error::DaemonError;
use super::heartbeat::Heartbeat;
use super::roster::{Cores, Pressure, Roster};
use super::status::{ClientStatus, EngineState, EngineStatus, KernelStatus, Status, UserStatus};
use super::{Ended, Stop, engine_cpus};
use crate::shm::activity::ActivityPage;
use crate::shm::introduction::{Attached, KernelName, Question};
use crate::shm::layout::{self, CLIENTS_MAX, STATUS_ENGINES_MAX, TICK_MS};
use crate::shm::load::UserLoad;
use crate::shm::session::{Names, Session};
use sidecore_attach::ConnectionId;
use sidecore_attach::protocol::KIND_STATUS;
use sidecore_attach::{Acceptor, Event, Segment, Usage};
use sidecore_bare::width::{ToU64, ToUsize};
use sidecore_sys::local_socket::{self, Peer};
use sidecore_sys::{clock, cpu};
use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// An attached client.
pub(crate) struct Client {
    session: Arc<Session>,
    /// Histogram of samples: how many saw it on 1, 2, 3... engines at once; up to the widest seen,
    /// and [`WIDTHS_MAX`].
    widths: Vec<u64>,
}

/// Counters at one moment, for differences over time.
#[derive(Default)]
struct Sample {
    at_cycles: u64,
    /// Busy cycles of each engine.
    engines: Vec<u64>,
    /// Cycles served to each session, by serial number.
    clients: Vec<(u64, u64)>,
}

/// Everything that the control thread owns.
pub(crate) struct Control {
    /// The cores of the thread that started the daemon, and those of the process then.
    cpus: Vec<usize>,
    process_cpus: Vec<usize>,
    pressure: Pressure,
    options: DaemonOptions,
    door: Acceptor<Client>,
    activity: Arc<ActivityPage>,
    /// It beats for as long as the control thread lives.
    heartbeat: Heartbeat,
    /// No client is there, and the looks are seldom.
    is_quiet: bool,
    roster: Arc<Roster>,
    crew: Crew,
    stop: Arc<Stop>,
    started: Instant,
    samples: VecDeque<Sample>,
    attached_total: u64,
}

impl Control {
    pub(crate) fn new(
        options: DaemonOptions,
        door: Acceptor<Client>,
        heartbeat: Heartbeat,
        roster: Arc<Roster>,
        crew: Crew,
        stop: Arc<Stop>,
        cpus: Vec<usize>,
    ) -> Self {
        Self {
            process_cpus: cpu::of_process().map_or(Vec::new(), |(cpus, _)| cpus),
            pressure: Pressure::default(),
            cpus,
            options,
            door,
            activity: Arc::clone(heartbeat.activity()),
            heartbeat,
            is_quiet: false,
            roster,
            crew,
            stop,
            started: Instant::now(),
            samples: VecDeque::new(),
            attached_total: 0,
        }
    }

    /// Serves until it is stopped, or cannot go on.
    pub(crate) fn run(mut self) -> Ended {
        // Where it is allowed, clients need not wait long to attach on a busy machine.
        cpu::set_nice(-10).ok();
        let failure = self.serve().err();
        Ended {
            running: self.end(),
            failure,
        }
    }

    /// # Errors
    /// The reason why it cannot go on.
    fn serve(&mut self) -> Result<(), DaemonError> {
        let tick = Duration::from_millis(TICK_MS);
        let mut next_tick = Instant::now() + tick;
        let mut next_sample = Instant::now();
        let mut next_cores = Instant::now() + CORES_EVERY;
        while !self.stop.is_raised() {
            let now = Instant::now();
            if now >= next_tick {
                self.settle_pace();
                // From now, not from the tick that was due: what was missed is not made up for.
                next_tick = now + if self.is_quiet { QUIET_TICK } else { tick };
                self.sample_widths();
                self.look_at_engines();
                if now >= next_sample {
                    self.sample();
                    next_sample = now + SAMPLE_EVERY;
                }
                if now >= next_cores {
                    self.follow_cores();
                    next_cores = now + CORES_EVERY;
                }
            }
            // An engine whose thread has panicked: its clients would wait for ever.
            if let Some(engine) = self.crew.broken() {
                return Err(DaemonError::Broken { engine });
            }
            // From now: the work above may have taken a part of the tick.
            let timeout = next_tick.saturating_duration_since(Instant::now());
            self.door.wait(&[self.stop.descriptor()], timeout)?;
            self.look_at_door();
            if !self.is_quiet {
                // A client has come meanwhile.
                next_tick = next_tick.min(Instant::now() + tick);
            }
        }
        Ok(())
    }

    /// Looks seldom, and has the heartbeat rest, while there is no client, no memory of one, and no
    /// engine at work.
    fn settle_pace(&mut self) {
        let rests = |engine| {
            let is_free = self.activity.serving(engine).is_none();
            is_free && !self.crew.is_orphaned(engine) && self.crew.left_behind(engine) == 0
        };
        let is_quiet = self.sessions().next().is_none()
            && (0..self.crew.len()).all(rests)
            && self.door.usages().is_empty();
        if is_quiet != self.is_quiet {
            self.is_quiet = is_quiet;
            self.heartbeat.rest(is_quiet);
        }
    }

    /// Ends the quiet, before a client learns that it is attached.
    fn wake_up(&mut self) {
        if self.is_quiet {
            self.is_quiet = false;
            self.heartbeat.rest(false);
            // Shares of the last second must not be those of a longer time.
            self.samples.clear();
            self.sample();
        }
    }

    /// Has the engines run where the process may run now, with the time that it has: a group's
    /// quota and set of processors may be changed at any moment. They poll less while others wait
    /// for cores.
    fn follow_cores(&mut self) {
        let Ok((cpus, affordable)) = cpu::of_process() else {
            return;
        };
        let engines = self.crew.len();
        // The thread that started the daemon may have had some of the process's cores only.
        let own = self.cpus.iter().copied();
        let left: Vec<usize> = match cpus == self.process_cpus {
            true => own.collect(),
            false => own.filter(|cpu| cpus.contains(cpu)).collect(),
        };
        let cpus = if left.is_empty() { cpus } else { left };
        let now_us = u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX);
        let is_wanted = self.pressure.look(cpu::waited_us(), now_us);
        let cpu_of_engine = engine_cpus(&cpus, engines);
        self.activity.move_to(&cpu_of_engine);
        self.roster.set_cores(Cores {
            pollers: (affordable < engines).then_some(affordable),
            is_shared: engines > cpus.len(),
            is_wanted,
            cpus: cpu_of_engine,
        });
    }

    /// Looks for engines whose client has disconnected and whose kernel does not return.
    fn look_at_engines(&mut self) {
        // Once, not for every engine: the crew asks for each that serves someone.
        let attached: Vec<u32> = self.sessions().map(|session| session.client).collect();
        self.crew.look(|client| attached.contains(&client));
    }

    /// Answers new connections, and drops clients that have disconnected.
    fn look_at_door(&mut self) {
        // A client that took a page away from us which we could not get again.
        self.door.part_where(|client| client.session.damaged());
        let mut parted = false;
        while let Some(event) = self.door.next_event() {
            match event {
                Event::Question {
                    from,
                    peer,
                    is_attached,
                    kind,
                    body,
                } => match Question::decode(kind, &body) {
                    Some(Question::Attach { .. }) if is_attached => {
                        self.door
                            .refuse(from, "this connection is attached already");
                    }
                    Some(Question::Attach { arena_bytes }) => {
                        if let Err(reason) = self.order(from, arena_bytes) {
                            self.door.refuse(from, &reason);
                        }
                    }
                    Some(Question::Status { engines_from }) => {
                        let text = self.status_text(peer.uid, engines_from);
                        self.door.answer(from, KIND_STATUS, text.as_bytes());
                    }
                    None => self.door.refuse(from, "an unknown question"),
                },
                Event::Made {
                    to,
                    peer,
                    tag: arena_bytes,
                    made,
                } => match made {
                    Ok(made) => self.attach(to, peer, arena_bytes, made),
                    Err(reason) => self.door.refuse(to, &reason),
                },
                Event::Parted(client) => {
                    // Kernels that run for it see this between two pieces of work.
                    client.session.gone.store(true, Ordering::Relaxed);
                    self.activity.forget(client.session.client);
                    parted = true;
                }
            }
        }
        // Once for all that have gone: the list goes to every engine.
        if parted {
            self.tell_engines();
        }
    }

    /// Has the memory of a session made.
    fn order(&mut self, from: ConnectionId, arena_bytes: u64) -> Result<(), String> {
        let arena_bytes_max = self.options.arena_bytes_max;
        let bytes = layout::segment_bytes(self.crew.len(), arena_bytes);
        // A size whose layout overflows is refused in the same words.
        let Some(bytes) = bytes.filter(|_| arena_bytes <= arena_bytes_max) else {
            return Err(format!(
                "an arena of {arena_bytes} bytes asked for, the daemon gives {arena_bytes_max} at \
                 most; ask for less"
            ));
        };
        // By another thread: making some hundred MiB takes longer than a heartbeat.
        self.door.order(from, SEGMENT_NAME, bytes, arena_bytes);
        Ok(())
    }

    /// Creates a session and hands it to the engines.
    fn attach(
        &mut self,
        to: ConnectionId,
        peer: Peer,
        arena_bytes: u64,
        (segment, lent): (Segment, OwnedFd),
    ) {
        self.wake_up();
        let engines = self.crew.len();
        let attached = self.sessions().map(|session| session.client);
        // A number that an engine still serves would be taken for the new client's.
        let served = (0..engines).filter_map(|engine| self.activity.serving(engine));
        let taken: Vec<u32> = attached.chain(served).collect();
        // The smallest: numbers index tables in shared memory.
        let client = (0..).find(|client| !taken.contains(client)).unwrap_or(0);
        let names = Names {
            client,
            serial: self.attached_total,
            peer,
        };
        let (bell, lent_bell) = match local_socket::pair() {
            Ok(ends) => ends,
            Err(error) => {
                self.door.refuse(to, &error.to_string());
                return;
            }
        };
        let session = Session::new(names, engines, arena_bytes, segment).with_bell(bell);
        // Before anyone sees the session: the limit holds for its first request, too.
        let session = Arc::new(session.limited(self.load_of(&peer)));
        let terms = Attached {
            client,
            engines: engines as u32,
            segment_bytes: session.bytes().to_u64(),
            arena_bytes,
            activity_bytes: self.activity.bytes().to_u64(),
            kernels: self.kernels(),
        };
        let client = Client {
            session,
            widths: Vec::new(),
        };
        let descriptors = [lent.as_fd(), self.activity.file(), lent_bell.as_fd()];
        let attached = self.door.attach(to, client, &terms.encode(), &descriptors);
        // Else the client went away while its memory was made, and there is none to serve.
        if attached.is_ok() {
            self.attached_total += 1;
            self.tell_engines();
        }
    }

    /// The count of a user's requests in flight, where there is a limit.
    fn load_of(&self, peer: &Peer) -> Option<Arc<UserLoad>> {
        let max = self.options.user_requests_max;
        // Limits keep users from each other; root and our own user could stop the daemon anyway.
        let is_preferred = peer.uid == 0 || peer.uid == local_socket::effective_uid();
        if max == 0 || is_preferred {
            return None;
        }
        // It lives as long as the last of the user's connections; a new one starts at 0.
        let of_user = |session: &&Arc<Session>| session.peer.uid == peer.uid;
        let known = self.sessions().find(of_user);
        // One count for all connections of a user.
        let known = known.and_then(|session| session.load.clone());
        Some(known.unwrap_or_else(|| Arc::new(UserLoad::new(max))))
    }

    fn kernels(&self) -> Vec<KernelName> {
        let entries = self.options.registry.entries().iter();
        entries
            .zip(0..)
            .map(|(entry, number)| KernelName {
                name: entry.name.to_owned(),
                number,
                version: entry.version,
                hash: entry.hash,
            })
            .collect()
    }

    fn tell_engines(&self) {
        self.roster.set(self.sessions().cloned().collect());
    }

    /// Notes how many engines serve each client at this moment.
    fn sample_widths(&mut self) {
        // By client, in one pass: there may be many of both.
        let mut widths = [0_usize; CLIENTS_MAX];
        for engine in 0..self.crew.len() {
            let client = self.activity.serving(engine).unwrap_or(u32::MAX);
            if let Some(width) = widths.get_mut(client.to_usize()) {
                *width += 1;
            }
        }
        for client in self.door.sessions_mut() {
            let width = widths.get(client.session.client.to_usize());
            let width = width.copied().unwrap_or(0).min(WIDTHS_MAX);
            // A moment without an engine says nothing about how wide a client's work is.
            if width > 0 {
                if client.widths.len() < width {
                    client.widths.resize(width, 0);
                }
                client.widths[width - 1] += 1;
            }
        }
    }

    /// Takes a sample, and drops those older than a second.
    fn sample(&mut self) {
        let sample = Sample {
            at_cycles: clock::cycles(),
            engines: self
                .crew
                .benches()
                .map(|bench| bench.busy_cycles())
                .collect(),
            clients: self
                .sessions()
                .map(|session| (session.serial, served_cycles(session)))
                .collect(),
        };
        self.samples.push_back(sample);
        if self.samples.len() > SAMPLES_MAX {
            self.samples.pop_front();
        }
    }

    fn sessions(&self) -> impl Iterator<Item = &Arc<Session>> {
        self.door.sessions().map(|client| &client.session)
    }

    /// The status as this user may see it.
    fn status_text(&self, asker: u32, engines_from: u64) -> String {
        let from = usize::try_from(engines_from).unwrap_or(usize::MAX);
        let none = Sample::default();
        let before = self.samples.front().unwrap_or(&none);
        let engines = self.engine_statuses(before);
        let registry = &self.options.registry;
        let mut status = Status {
            pid: std::process::id(),
            uptime_ms: self.started.elapsed().as_millis() as u64,
            socket: self.options.socket.display().to_string(),
            grace_us: self.options.grace.as_micros() as u64,
            engines: Vec::new(),
            clients: Vec::new(),
            users: Vec::new(),
            kernels: Vec::new(),
            served: Vec::new(),
            attached_total: self.attached_total,
            refused_total: self.door.refused_total(),
        };
        // What is long comes with the first engines.
        if from == 0 {
            status.clients = self.client_statuses(asker, before, &engines);
            status.users = self.user_statuses();
            status.kernels = registry.names().map(str::to_owned).collect();
            status.served = registry.entries().iter().map(KernelStatus::of).collect();
        }
        let engines = engines.into_iter().skip(from);
        status.engines = engines.take(STATUS_ENGINES_MAX).collect();
        // A structure of numbers and text always has a JSON form.
        serde_json::to_string(&status).unwrap_or_default()
    }

    fn engine_statuses(&self, before: &Sample) -> Vec<EngineStatus> {
        // At least 1: a status in the first instant has no window yet.
        let window_cycles = clock::cycles().wrapping_sub(before.at_cycles).max(1);
        let benches = self.crew.benches().enumerate();
        let status = |(engine, bench): (usize, &Arc<Bench>)| {
            let busy = bench.busy_cycles();
            // Without an earlier sample it has no share of the window.
            let busy_before = before.engines.get(engine).copied().unwrap_or(busy);
            let busy_percent = percent(busy.saturating_sub(busy_before), window_cycles);
            self.engine_status(engine, bench, busy_percent)
        };
        benches.map(status).collect()
    }

    fn client_statuses(
        &self,
        asker: u32,
        before: &Sample,
        engines: &[EngineStatus],
    ) -> Vec<ClientStatus> {
        let served: Vec<u64> = self
            .sessions()
            .map(|session| {
                let known = before
                    .clients
                    .iter()
                    .find(|(serial, _)| *serial == session.serial);
                served_cycles(session).saturating_sub(known.map_or(0, |(_, cycles)| *cycles))
            })
            .collect();
        let all = served.iter().sum::<u64>().max(1);
        let own = local_socket::effective_uid();
        let clients = self.door.sessions().zip(&served).map(|(client, cycles)| {
            client_status(client, percent(*cycles, all), engines).seen_by(asker, own)
        });
        clients.collect()
    }

    fn user_statuses(&self) -> Vec<UserStatus> {
        let own_uid = local_socket::effective_uid();
        let mut users = self.door.usages();
        users.sort_unstable_by_key(|(uid, _)| *uid);
        let status = |(uid, usage): (u32, Usage)| UserStatus {
            uid,
            segments: usage.places,
            bytes: usage.bytes,
            bytes_max: (uid != 0 && uid != own_uid).then_some(self.options.user_bytes_max),
        };
        users.into_iter().map(status).collect()
    }

    fn engine_status(&self, engine: usize, bench: &Bench, busy_percent: f64) -> EngineStatus {
        let client = self.activity.serving(engine);
        // In this order: an orphaned engine still names the client that it serves.
        let state = if self.crew.is_orphaned(engine) {
            EngineState::Orphaned
        } else if client.is_some() {
            EngineState::Busy
        } else if bench.asleep.load(Ordering::Relaxed) {
            EngineState::Asleep
        } else {
            EngineState::Polling
        };
        EngineStatus {
            engine,
            cpu: bench.cpu.load(Ordering::Relaxed),
            state,
            client,
            busy_percent,
            busy_ns: clock::cycles_to_ns(bench.busy_cycles()),
            calls: bench.calls.load(Ordering::Relaxed),
            failures: bench.failures.load(Ordering::Relaxed),
            stalls: bench.stalls.load(Ordering::Relaxed),
            stall_us: clock::cycles_to_ns(bench.stall_cycles.load(Ordering::Relaxed)) / 1000,
            sleeps: bench.sleeps.load(Ordering::Relaxed),
            left_behind: self.crew.left_behind(engine).to_u64(),
        }
    }

    /// Announces the end: clients see it at their next look; running kernels see that their clients
    /// are dropped. Those that do not return in time are named.
    fn end(self) -> Vec<Running> {
        self.activity.end();
        for session in self.sessions() {
            session.gone.store(true, Ordering::Relaxed);
        }
        self.roster.end();
        // The socket is closed first, so that no client attaches to a daemon that ends; then the
        // connections.
        drop(self.door);
        self.crew.end(END_TIME_MAX)
    }
}

fn served_cycles(session: &Session) -> u64 {
    let engines = session.served.iter();
    engines
        .map(|served| served.cycles.load(Ordering::Relaxed))
        .sum()
}

fn client_status(client: &Client, share_percent: f64, engines: &[EngineStatus]) -> ClientStatus {
    let session = &*client.session;
    let calls = session
        .served
        .iter()
        .map(|served| served.calls.load(Ordering::Relaxed));
    let failures = session
        .served
        .iter()
        .map(|served| served.failures.load(Ordering::Relaxed));
    let serves = |engine: &EngineStatus| engine.client == Some(session.client);
    let in_flight = engines.iter().filter(|&engine| serves(engine)).count();
    let waiting = session.waiting(|engine| engines.get(engine).is_some_and(serves));
    // A process of another PID namespace has no id here, and 0 is no id.
    let command = std::fs::read_to_string(format!("/proc/{}/comm", session.peer.pid));
    ClientStatus {
        client: session.client,
        pid: session.peer.pid,
        uid: session.peer.uid,
        command: command.unwrap_or_default().trim().to_owned(),
        arena_bytes: session.arena_bytes,
        locked: session.locked(),
        calls: calls.sum(),
        in_flight: in_flight as u32,
        waiting: u32::try_from(waiting).unwrap_or(u32::MAX),
        failures: failures.sum(),
        last_failure: session.last_failure(),
        share_percent,
        busy_us: clock::cycles_to_ns(served_cycles(session)) / 1000,
        widths: client.widths.clone(),
    }
}

fn percent(part: u64, whole: u64) -> f64 {
    (part as f64 / whole as f64 * 100.0).min(100.0)
}

/// The time that kernels have to return when the daemon ends.
const END_TIME_MAX: Duration = Duration::from_millis(300);
/// The widest width that is counted by itself; wider ones count as this.
const WIDTHS_MAX: usize = 64;
/// Name of clients' segments in lists of open files.
pub(super) const SEGMENT_NAME: &str = "sidecore-client";
/// Time between two notes of the figures, and the notes that are kept: about a second's worth.
const SAMPLE_EVERY: Duration = Duration::from_millis(100);
/// Time between two looks while there is no client.
const QUIET_TICK: Duration = Duration::from_millis(250);
/// Time between two looks at the cores of this process.
const CORES_EVERY: Duration = Duration::from_secs(1);
const SAMPLES_MAX: usize = 10;

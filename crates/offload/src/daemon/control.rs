//! The control thread: clients come and go, questions are answered.
//!
//! Why here: everything that needs a system call for each client is done by one thread, so that
//! engines need none. Must stay true: nothing here waits for a client; a connection that says
//! nothing, says nonsense, or does not read its answer is closed.

use super::DaemonOptions;
use super::admit::Allow;
use super::engine::Bench;
use super::roster::Roster;
use super::status::{ClientStatus, EngineState, EngineStatus, Status};
use crate::shm::board::Board;
use crate::shm::hello::{Answer, Attached, KernelName, QUESTION_BYTES, Question};
use crate::shm::layout::TICK_MS;
use crate::shm::session::Session;
use sidecore_sys::local_socket::{self, Peer, Received};
use sidecore_sys::place::Place;
use sidecore_sys::{clock, cpu};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// One connection.
struct Connection {
    socket: OwnedFd,
    peer: Peer,
    since: Instant,
    /// Readable when the process ends: a child that inherited the socket does not keep it attached.
    process_end: Option<OwnedFd>,
    session: Option<Arc<Session>>,
    /// How often it was seen on so many engines at once; entry 0 is for 1.
    widths: Vec<u64>,
}

/// Figures at one moment, to tell what happened since.
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
    options: DaemonOptions,
    place: Place,
    board: Arc<Board>,
    roster: Arc<Roster>,
    benches: Vec<Arc<Bench>>,
    threads: Vec<JoinHandle<()>>,
    poker: Arc<OwnedFd>,
    connections: Vec<Connection>,
    started: Instant,
    samples: VecDeque<Sample>,
    attached_total: u64,
    refused_total: u64,
}

impl Control {
    pub(crate) fn new(
        options: DaemonOptions,
        place: Place,
        board: Arc<Board>,
        roster: Arc<Roster>,
        benches: Vec<Arc<Bench>>,
        threads: Vec<JoinHandle<()>>,
        poker: Arc<OwnedFd>,
    ) -> Self {
        Self {
            options,
            place,
            board,
            roster,
            benches,
            threads,
            poker,
            connections: Vec::new(),
            started: Instant::now(),
            samples: VecDeque::new(),
            attached_total: 0,
            refused_total: 0,
        }
    }

    /// Serves until it is poked or an engine breaks.
    pub(crate) fn run(mut self) {
        // Where it is allowed, clients need not wait long to attach on a busy machine.
        cpu::set_nice(-10).ok();
        let tick = Duration::from_millis(TICK_MS);
        let mut next_tick = Instant::now() + tick;
        let mut next_sample = Instant::now();
        let mut ready = Vec::new();
        loop {
            let now = Instant::now();
            if now >= next_tick {
                next_tick = now + tick;
                self.sample_widths();
                if now >= next_sample {
                    self.sample();
                    next_sample = now + SAMPLE_EVERY;
                }
            }
            let broken = |bench: &Arc<Bench>| bench.broken.load(Ordering::Relaxed);
            if self.benches.iter().any(broken) {
                break;
            }
            let timeout = next_tick.saturating_duration_since(Instant::now());
            let polled = local_socket::poll(&self.descriptors(), &mut ready, timeout);
            if polled.is_err() {
                // Out of memory, at worst: it is tried again.
                std::thread::sleep(timeout);
                continue;
            }
            if ready[0] {
                break;
            }
            self.look_at_connections(&ready[2..]);
            if ready[1] {
                self.accept();
            }
        }
        self.end();
    }

    /// What to poll: the poker, the listener, then two for each connection.
    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let mut all = vec![self.poker.as_fd(), self.place.listener()];
        for connection in &self.connections {
            let socket = connection.socket.as_fd();
            all.push(socket);
            all.push(
                connection
                    .process_end
                    .as_ref()
                    .map_or(socket, |end| end.as_fd()),
            );
        }
        all
    }

    fn accept(&mut self) {
        // A few at a time, so that those who are attached are looked at, too.
        for _ in 0..8 {
            let Ok(Some(socket)) = local_socket::accept(self.place.listener()) else {
                return;
            };
            let Ok(peer) = local_socket::peer(socket.as_fd()) else {
                continue;
            };
            let own_uid = local_socket::effective_uid();
            let room = self.options.clients_max + STRANGERS_MAX;
            let refusal = if self.connections.len() >= room {
                Err(format!(
                    "the daemon has {room} connections, the most it takes; try later"
                ))
            } else {
                // Who has no list of groups is judged without one.
                let groups = local_socket::peer_groups(socket.as_fd()).unwrap_or_default();
                self.options.allow.check(&peer, &groups, own_uid)
            };
            if let Err(reason) = refusal {
                self.refused_total += 1;
                let answer = Answer::Refused(reason).encode();
                local_socket::send(socket.as_fd(), &answer, &[]).ok();
                continue;
            }
            self.connections.push(Connection {
                socket,
                peer,
                since: Instant::now(),
                process_end: local_socket::process_end(peer.pid),
                session: None,
                widths: vec![0; self.benches.len()],
            });
        }
    }

    /// Answers who asks, and parts with who is gone. `ready` has two entries for each connection.
    fn look_at_connections(&mut self, ready: &[bool]) {
        let mut parted = false;
        let mut keep = Vec::with_capacity(self.connections.len());
        for (index, pair) in ready.as_chunks::<2>().0.iter().enumerate() {
            let stays = if pair[0] {
                // What was sent before the end is moot.
                !(self.has_ended(index) || self.answer(index).is_none())
            } else if pair[1] {
                false
            } else {
                let connection = &self.connections[index];
                match &connection.session {
                    // A client that took a page away from us which we could not get again.
                    Some(session) => !session.damaged(),
                    None => connection.since.elapsed() < STRANGER_TIME_MAX,
                }
            };
            keep.push(stays);
        }
        let mut keep = keep.into_iter();
        let board = &self.board;
        self.connections.retain(|connection| {
            let stays = keep.next().unwrap_or(true);
            if let (false, Some(session)) = (stays, &connection.session) {
                session.gone.store(true, Ordering::Relaxed);
                board.forget(session.client);
                parted = true;
            }
            stays
        });
        if parted {
            self.tell_engines();
        }
    }

    /// Whether the process behind a connection ended, whoever else holds the socket.
    fn has_ended(&self, index: usize) -> bool {
        let mut ended = Vec::new();
        self.connections[index]
            .process_end
            .as_ref()
            .is_some_and(|end| {
                local_socket::poll(&[end.as_fd()], &mut ended, Duration::ZERO).is_ok() && ended[0]
            })
    }

    /// Takes one message and answers it. `None` where the connection is to be closed.
    fn answer(&mut self, index: usize) -> Option<()> {
        // One byte more than a question, to see what is longer.
        let mut bytes = [0; QUESTION_BYTES + 1];
        let socket = self.connections[index].socket.as_fd();
        let (length, descriptors) = match local_socket::receive(socket, &mut bytes) {
            Ok(Received::Message(length, descriptors)) => (length, descriptors),
            Ok(Received::Nothing) => return Some(()),
            Ok(Received::End) | Err(_) => return None,
        };
        drop(descriptors);
        let answer = match Question::decode(&bytes[..length]) {
            Ok(Question::Attach { arena_bytes }) => match self.attach(index, arena_bytes) {
                Ok(()) => return Some(()),
                Err(reason) => Answer::Refused(reason),
            },
            Ok(Question::Status) => Answer::Status(self.status_text()),
            Err(reason) => Answer::Refused(reason),
        };
        let refused = matches!(answer, Answer::Refused(_));
        self.refused_total += u64::from(refused);
        let socket = self.connections[index].socket.as_fd();
        local_socket::send(socket, &answer.encode(), &[]).ok()?;
        (!refused).then_some(())
    }

    /// Makes a session and hands it over.
    fn attach(&mut self, index: usize, arena_bytes: u64) -> Result<(), String> {
        let peer = self.connections[index].peer;
        if self.connections[index].session.is_some() {
            return Err("this connection is attached already".to_owned());
        }
        let arena_bytes_max = self.options.arena_bytes_max;
        if arena_bytes > arena_bytes_max {
            return Err(format!(
                "an arena of {arena_bytes} bytes asked for, the daemon gives {arena_bytes_max} at \
                 most; ask for less"
            ));
        }
        let sessions = self.roster.sessions();
        let clients_max = self.options.clients_max;
        let of_user = sessions
            .iter()
            .filter(|session| session.peer.uid == peer.uid);
        let own_uid = local_socket::effective_uid();
        let user_max = Allow::clients_max_of(peer.uid, own_uid, clients_max);
        if sessions.len() >= clients_max || of_user.count() >= user_max {
            return Err(format!(
                "the daemon has {} clients, the most it takes ({clients_max} in all, {user_max} of \
                 user {}); try later",
                sessions.len(),
                peer.uid
            ));
        }
        let taken = |client: &u32| sessions.iter().any(|session| session.client == *client);
        let client = (0..).find(|client| !taken(client)).unwrap_or(0);
        let engines = self.benches.len();
        let session = Session::new(client, self.attached_total, peer, engines, arena_bytes)
            .map_err(|error| error.to_string())?;
        let session = Arc::new(session);
        let attached = Answer::Attached(Attached {
            client,
            engines: engines as u32,
            segment_bytes: session.bytes() as u64,
            arena_bytes,
            board_bytes: self.board.bytes() as u64,
            kernels: self.kernels(),
        });
        let descriptors = [session.file(), self.board.file()];
        let connection = &mut self.connections[index];
        local_socket::send(connection.socket.as_fd(), &attached.encode(), &descriptors)
            .map_err(|error| error.to_string())?;
        connection.session = Some(session);
        self.attached_total += 1;
        self.tell_engines();
        Ok(())
    }

    fn kernels(&self) -> Vec<KernelName> {
        let entries = self.options.registry.entries().iter();
        entries
            .zip(0..)
            .map(|(entry, number)| KernelName {
                name: entry.name.to_owned(),
                number,
                version: entry.version,
            })
            .collect()
    }

    fn tell_engines(&self) {
        let sessions = self
            .connections
            .iter()
            .filter_map(|connection| connection.session.clone());
        self.roster.set(sessions.collect());
    }

    /// Notes how many engines serve each client at this moment.
    fn sample_widths(&mut self) {
        let serving: Vec<_> = (0..self.benches.len())
            .filter_map(|engine| self.board.serving(engine))
            .collect();
        for connection in &mut self.connections {
            let Some(session) = &connection.session else {
                continue;
            };
            let width = serving
                .iter()
                .filter(|&&client| client == session.client)
                .count();
            if width > 0 {
                connection.widths[width - 1] += 1;
            }
        }
    }

    /// Notes the figures, and forgets those of more than a second ago.
    fn sample(&mut self) {
        let sample = Sample {
            at_cycles: clock::cycles(),
            engines: self
                .benches
                .iter()
                .map(|bench| busy_cycles(bench))
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
        self.connections
            .iter()
            .filter_map(|connection| connection.session.as_ref())
    }

    fn status_text(&self) -> String {
        // A structure of numbers and text always has a JSON form.
        serde_json::to_string(&self.status()).unwrap_or_default()
    }

    fn status(&self) -> Status {
        let none = Sample::default();
        let before = self.samples.front().unwrap_or(&none);
        let window_cycles = clock::cycles().wrapping_sub(before.at_cycles).max(1);
        let benches = self.benches.iter().enumerate();
        let engines: Vec<EngineStatus> = benches
            .map(|(engine, bench)| {
                let busy = busy_cycles(bench);
                let busy_before = before.engines.get(engine).copied().unwrap_or(busy);
                self.engine_status(
                    engine,
                    bench,
                    percent(busy.saturating_sub(busy_before), window_cycles),
                )
            })
            .collect();
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
        let attached = self.connections.iter().filter_map(|connection| {
            connection
                .session
                .as_ref()
                .map(|session| (connection, session))
        });
        let clients = attached
            .zip(&served)
            .map(|((connection, session), cycles)| {
                client_status(connection, session, percent(*cycles, all), &engines)
            })
            .collect();
        Status {
            pid: std::process::id(),
            uptime_ms: self.started.elapsed().as_millis() as u64,
            socket: self.options.socket.display().to_string(),
            grace_us: self.options.grace.as_micros() as u64,
            clients,
            engines,
            kernels: self.options.registry.names().map(str::to_owned).collect(),
            attached_total: self.attached_total,
            refused_total: self.refused_total,
        }
    }

    fn engine_status(&self, engine: usize, bench: &Bench, busy_percent: f64) -> EngineStatus {
        let client = self.board.serving(engine);
        let state = if client.is_some() {
            EngineState::Busy
        } else if bench.asleep.load(Ordering::Relaxed) {
            EngineState::Asleep
        } else {
            EngineState::Polling
        };
        EngineStatus {
            engine,
            cpu: bench.cpu,
            state,
            client,
            busy_percent,
            calls: bench.calls.load(Ordering::Relaxed),
            failures: bench.failures.load(Ordering::Relaxed),
            stalls: bench.stalls.load(Ordering::Relaxed),
            stall_us: clock::cycles_to_ns(bench.stall_cycles.load(Ordering::Relaxed)) / 1000,
            sleeps: bench.sleeps.load(Ordering::Relaxed),
        }
    }

    /// Says goodbye: clients see it at their next look, engines end what they are running.
    fn end(self) {
        self.board.end();
        for session in self.sessions() {
            session.gone.store(true, Ordering::Relaxed);
        }
        // First the socket, so that nobody attaches to a daemon that ends.
        drop(self.place);
        drop(self.connections);
        self.roster.end();
        for thread in self.threads {
            // A broken engine printed its panic.
            thread.join().ok();
        }
    }
}

/// Cycles that an engine spent serving, the request that it serves now included.
fn busy_cycles(bench: &Bench) -> u64 {
    let begun = bench.begun_cycles.load(Ordering::Relaxed);
    let running = match begun {
        0 => 0,
        begun => clock::cycles().saturating_sub(begun),
    };
    bench.busy_cycles.load(Ordering::Relaxed) + running
}

fn served_cycles(session: &Session) -> u64 {
    let engines = session.served.iter();
    engines
        .map(|served| served.cycles.load(Ordering::Relaxed))
        .sum()
}

fn client_status(
    connection: &Connection,
    session: &Session,
    share_percent: f64,
    engines: &[EngineStatus],
) -> ClientStatus {
    let calls = session
        .served
        .iter()
        .map(|served| served.calls.load(Ordering::Relaxed));
    let in_flight = engines
        .iter()
        .filter(|engine| engine.client == Some(session.client))
        .count();
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
        share_percent,
        busy_us: clock::cycles_to_ns(served_cycles(session)) / 1000,
        widths: connection.widths.clone(),
    }
}

fn percent(part: u64, whole: u64) -> f64 {
    (part as f64 / whole as f64 * 100.0).min(100.0)
}

/// How often figures are noted, and how many notes are kept: about a second's worth.
const SAMPLE_EVERY: Duration = Duration::from_millis(100);
const SAMPLES_MAX: usize = 10;
/// Connections beyond the clients: who asks for a status, and who has not asked yet.
const STRANGERS_MAX: usize = 16;
/// How long a connection may do without attaching.
const STRANGER_TIME_MAX: Duration = Duration::from_secs(10);

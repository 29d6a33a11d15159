//! The server: accepts clients, keeps them within bounds, and stops cleanly.
//!
//! Why here: everything that happens once per client or once per server, not once per request.
//! Must stay true: no more than [`Options::clients_max`] clients are served at a time. Clients in
//! the handshake are limited separately, and those of one peer more strictly ([`Reception`]). Every
//! client has its own threads, so that none can delay another. When [`Server::run`] returns, no
//! thread of ours is left inside the source, or a warning was logged that one is.
//! One thread calls `run`; any thread (or a signal's) may call [`Stopper::stop`].
//! Source: the NBD protocol document, "Terminating the transmission phase".

use super::NbdError;
use super::connection::{BUFFER_BYTES, Connection};
use super::handshake::{Ending, Export, Handshake, OPTION_DATA_BYTES_MAX, Step};
use super::listen::{Address, Listener, Peer};
use super::outlet::PINNED_WAIT_MAX;
use super::session::Session;
use super::tls::Tls;
use super::wire::OPTION_BYTES;
use parking_lot::{Condvar, Mutex};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};
use sidecore_attach::{AdmissionLimits, Reception};
use sidecore_format::source::BlockSource;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Options of a server. `Options::default()` suits most uses.
#[derive(Debug, Clone)]
pub struct Options {
    /// The export's name; clients may always ask for the empty name.
    pub name: String,
    /// Description that `nbdinfo` shows next to it.
    pub description: String,
    /// Clients that are served at a time; further ones are rejected. Those of one network or user
    /// take three quarters of the places at most, except root and the server's own user.
    pub clients_max: usize,
    /// Threads that one connection may use. One is started with it, the others when requests pile
    /// up.
    pub workers_max: usize,
    /// Time for which a client may take no bytes of a reply, or stop within a request, before it is
    /// disconnected.
    pub patience: Duration,
    /// Time limit for the handshake.
    pub handshake_max: Duration,
    /// Time limit for replies in progress when [`Server::run`] is stopped.
    pub stop_max: Duration,
    /// A socket's send buffer in bytes (doubled by the kernel for its own use).
    pub send_buffer_bytes: usize,
    /// Name of the bitmap of what was written since the device's checkpoint, for clients that make
    /// incremental backups (`qemu:dirty-bitmap:NAME`).
    pub bitmap: Option<String>,
    /// Requests are of whole blocks of this size, and others are refused: 1, or 4096 for a disk
    /// whose sectors have that size. Clients that do not ask for block sizes are refused then.
    pub block_bytes: u32,
    /// TLS; with it, clients without TLS are refused.
    pub tls: Option<Tls>,
}

impl Default for Options {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            name: String::new(),
            description: String::new(),
            clients_max: CLIENTS_MAX,
            workers_max: cores.min(WORKERS_MAX),
            patience: Duration::from_secs(30),
            handshake_max: Duration::from_secs(10),
            stop_max: Duration::from_secs(7),
            send_buffer_bytes: SEND_BUFFER_BYTES,
            bitmap: None,
            block_bytes: 1,
            tls: None,
        }
    }
}

impl Options {
    /// Options for `source`: the threads that its waits ask for, and the time that its end takes.
    #[must_use]
    pub fn for_source(source: &dyn BlockSource) -> Self {
        let own = Self::default();
        let is_writable = source.writes().is_some();
        Self {
            workers_max: match (source.waits_for_a_network(), is_writable) {
                (true, _) => REMOTE_WORKERS_MAX,
                (_, true) => WRITE_WORKERS_MAX,
                _ => own.workers_max,
            },
            stop_max: match is_writable {
                true => own.stop_max,
                false => STOP_READING_MAX,
            },
            ..own
        }
    }
}

/// The name of a bitmap out of `text`.
///
/// # Errors
/// Names that no client could ask for.
pub fn bitmap_name(text: &str) -> Result<String, String> {
    let is_name = (1..=255).contains(&text.len()) && !text.chars().any(char::is_control);
    match is_name {
        true => Ok(text.to_owned()),
        false => Err("must be a name of 1 to 255 bytes".into()),
    }
}

/// A server that is reachable (clients queue) and serves once [`Self::run`] is called.
pub struct Server {
    listeners: Vec<Listener>,
    wake: Arc<OwnedFd>,
    shared: Arc<Shared>,
}

/// Makes a server's `run` return.
#[derive(Clone)]
pub struct Stopper {
    wake: Arc<OwnedFd>,
}

impl Stopper {
    /// Tells the server to stop: no new clients, replies in progress are finished. Does not wait.
    pub fn stop(&self) {
        // An eventfd refuses a write only when its counter is full, and then the server is awake
        // already.
        let _ = rustix::io::write(&*self.wake, &1_u64.to_ne_bytes());
    }
}

/// State shared by the server's threads.
struct Shared {
    source: Arc<dyn BlockSource>,
    export: Export,
    options: Options,
    reception: Reception<Peer, OwnedFd>,
    clients: Mutex<BTreeMap<u64, Arc<OwnedFd>>>,
    left: Condvar,
}

impl Server {
    /// Listens at every address.
    ///
    /// # Errors
    /// [`NbdError`] when an address is taken or not usable; then it listens at none.
    /// [`NbdError::Blocks`].
    pub fn bind(
        source: Arc<dyn BlockSource>,
        addresses: &[Address],
        options: Options,
    ) -> Result<Self, NbdError> {
        Self::bind_and_take(source, addresses, Vec::new(), options)
    }

    /// Listens at every address, and at sockets that listen already: those that a service manager
    /// has passed.
    ///
    /// # Errors
    /// As [`Self::bind`]; [`NbdError::Passed`].
    pub fn bind_and_take(
        source: Arc<dyn BlockSource>,
        addresses: &[Address],
        passed: Vec<OwnedFd>,
        options: Options,
    ) -> Result<Self, NbdError> {
        let (size_bytes, block_bytes) = (source.size_bytes(), options.block_bytes.max(1));
        if !size_bytes.is_multiple_of(block_bytes.into()) {
            return Err(NbdError::Blocks {
                size_bytes,
                block_bytes,
            });
        }
        let bound = addresses.iter().map(Listener::bind);
        let listeners = bound
            .chain(passed.into_iter().map(Listener::take))
            .collect::<Result<_, _>>()?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|error| {
            NbdError::System {
                what: "making an eventfd",
                reason: error.to_string(),
            }
        })?;
        let export = Export::new(
            &options.name,
            &options.description,
            source.size_bytes(),
            source.preferred_bytes(),
        )
        .with_bitmap(options.bitmap.as_deref());
        let export = match source.writes() {
            Some(writes) => export.taking_writes(writes.grain_bytes()),
            None => export,
        }
        .in_blocks_of(block_bytes);
        let clients_max = options.clients_max.max(1);
        let limits = AdmissionLimits {
            waiting_max: clients_max,
            peer_waiting_max: clients_max.div_ceil(2),
            preferred_waiting_max: clients_max,
            silence_max: options.handshake_max,
            served_max: clients_max,
            // One network or user cannot take all places.
            peer_served_max: clients_max - clients_max / 4,
        };
        Ok(Self {
            listeners,
            wake: Arc::new(wake),
            shared: Arc::new(Shared {
                source,
                export,
                options,
                reception: Reception::new(limits),
                clients: Mutex::new(BTreeMap::new()),
                left: Condvar::new(),
            }),
        })
    }

    /// Addresses on which it listens; a port 0 is replaced by the actual port.
    #[must_use]
    pub fn addresses(&self) -> Vec<Address> {
        self.listeners.iter().map(Listener::address).collect()
    }

    /// A handle that stops it.
    #[must_use]
    pub fn stopper(&self) -> Stopper {
        Stopper {
            wake: Arc::clone(&self.wake),
        }
    }

    /// Serves until it is stopped. Unix sockets are removed before it returns.
    ///
    /// # Errors
    /// [`NbdError::System`] when it cannot wait for clients any more.
    pub fn run(self) -> Result<(), NbdError> {
        let served = self.accept_until_stopped();
        let Self {
            listeners, shared, ..
        } = self;
        // Before the clients end: the sockets' files are removed while no new client can connect.
        drop(listeners);
        shared.see_clients_off();
        served
    }

    fn accept_until_stopped(&self) -> Result<(), NbdError> {
        let tick = Timespec {
            tv_sec: TICK.as_secs() as i64,
            tv_nsec: 0,
        };
        loop {
            let mut waits: Vec<PollFd<'_>> = std::iter::once(self.wake.as_fd())
                .chain(self.listeners.iter().map(AsFd::as_fd))
                .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
                .collect();
            match poll(&mut waits, Some(&tick)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => {
                    return Err(NbdError::System {
                        what: "waiting for clients",
                        reason: error.to_string(),
                    });
                }
            }
            // The event first: no client is accepted once the stop was asked for.
            if !waits[0].revents().is_empty() {
                return Ok(());
            }
            for (listener, wait) in self.listeners.iter().zip(&waits[1..]) {
                if wait.revents().is_empty() {
                    continue;
                }
                match listener.accept() {
                    Ok((socket, peer)) => self.shared.welcome(socket, peer),
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                    Err(error) => {
                        // For lack of descriptors, for example: the client stays in the queue.
                        tracing::warn!("cannot accept an NBD client: {error}");
                        if self.shared.reception.could_not_accept(error).is_err() {
                            std::thread::sleep(ACCEPT_PAUSE);
                        }
                    }
                }
            }
            self.shared.source.release_idle(IDLE_MIN);
        }
    }
}

impl Shared {
    /// Starts a thread for a client, or rejects it.
    fn welcome(self: &Arc<Self>, socket: OwnedFd, peer: Peer) {
        let socket = Arc::new(socket);
        let served = self.reception.served();
        if served >= self.options.clients_max {
            tracing::warn!("turned an NBD client away: {served} are served, which is the limit");
            return;
        }
        // Handshakes have a limit of their own: silent clients must not keep out those that are
        // served.
        let Some(number) = self.reception.arrive(&socket, peer, peer.is_preferred()) else {
            tracing::warn!("turned an NBD client away: too many are in their handshakes");
            return;
        };
        self.clients.lock().insert(number, Arc::clone(&socket));
        let shared = Arc::clone(self);
        let started = std::thread::Builder::new()
            .name(format!("nbd-{number}-1"))
            .spawn(move || {
                let _leave = Leave(&shared, number);
                shared.serve(socket, number);
            });
        if let Err(error) = started {
            tracing::warn!("turned an NBD client away: cannot start a thread for it: {error}");
            drop(Leave(self, number));
        }
    }

    /// A client from its first byte to its last.
    fn serve(&self, socket: Arc<OwnedFd>, number: u64) {
        let mut carrier = None;
        self.speak(socket, number, &mut carrier);
        // The relay thread still has bytes that the client has not taken.
        if let Some(carrier) = carrier {
            let _ = carrier.join();
        }
    }

    /// As [`Self::serve`], until the server has sent everything; `carrier` is the relay thread of
    /// TLS.
    fn speak(&self, socket: Arc<OwnedFd>, number: u64, carrier: &mut Option<JoinHandle<()>>) {
        let began = Instant::now();
        let Some((socket, session, rest)) = self.handshake(socket, number, carrier) else {
            return;
        };
        tracing::debug!("NBD client {number}: serving after {:?}", began.elapsed());
        if let Err(error) = self.tune(&socket) {
            tracing::warn!("NBD client {number}: cannot set up its socket: {error}");
            return;
        }
        let limits = (self.options.workers_max, self.options.patience);
        let source = Arc::clone(&self.source);
        let connection = Connection::new(socket, source, session, &rest, number, limits);
        Arc::new(connection).serve();
        tracing::debug!("NBD client {number}: done after {:?}", began.elapsed());
    }

    /// The export for a new client: the device may have grown since the last one.
    fn export_now(&self) -> Export {
        let size_bytes = self.source.size_bytes();
        Export {
            size_bytes: size_bytes - size_bytes % u64::from(self.export.block_bytes),
            ..self.export.clone()
        }
    }

    fn tune(&self, socket: &OwnedFd) -> Result<(), Errno> {
        // The second call is for processes that may not exceed the system's limit; a smaller buffer
        // still works.
        let bytes = self.options.send_buffer_bytes;
        let _ = sockopt::set_socket_send_buffer_size_force(socket, bytes)
            .or_else(|_| sockopt::set_socket_send_buffer_size(socket, bytes));
        sockopt::set_socket_timeout(socket, Timeout::Send, Some(PINNED_WAIT_MAX))?;
        sockopt::set_socket_timeout(socket, Timeout::Recv, Some(self.options.patience))
    }

    /// Negotiates with the client until it may send requests. Returns the socket of its requests,
    /// which is another one with TLS, and the bytes that it has sent already.
    fn handshake(
        &self,
        mut socket: Arc<OwnedFd>,
        number: u64,
        carrier: &mut Option<JoinHandle<()>>,
    ) -> Option<(Arc<OwnedFd>, Session, Vec<u8>)> {
        let deadline = Instant::now() + self.options.handshake_max;
        let export = self.export_now();
        let mut handshake = match self.options.tls {
            Some(_) => Handshake::requiring_tls(),
            None => Handshake::new(),
        };
        let mut out = Vec::new();
        let mut input = Vec::new();
        handshake.greet(&mut out);
        loop {
            let step = handshake.step(&export, &input, &mut out);
            // Places are counted only now, when the client has shown that it speaks the protocol.
            if matches!(step, Step::Begin(..)) && !self.reception.introduce(number) {
                let served = self.reception.served();
                let why = "of all, or of its network or user";
                tracing::warn!("turned NBD client {number} away: {served} are served; limit {why}");
                return None;
            }
            let ends = matches!(step, Step::Close(_));
            let turns = matches!(step, Step::Need(_) | Step::Begin(..) | Step::StartTls(_));
            // Replies to several options are sent together, before the client is waited for.
            if (ends || turns) && !send_all(&socket, &out, deadline) {
                return None;
            }
            match step {
                Step::Used(used) => drop(input.drain(..used)),
                Step::Begin(used, terms) => {
                    input.drain(..used);
                    let whole_max = self.source.read_with_max_bytes();
                    let session = Session::new(terms, export.size_bytes, whole_max)
                        .taking_writes(export.writable)
                        .in_blocks_of(export.block_bytes);
                    return Some((socket, session, input));
                }
                Step::StartTls(used) => {
                    // A man in the middle could have sent it, to be taken for the client's.
                    if input.len() > used {
                        let what = "it sent something in plain behind the start of TLS";
                        tracing::warn!("NBD client {number}: {what}; closing it");
                        return None;
                    }
                    let tls = self.options.tls.as_ref()?;
                    match tls.carry(Arc::clone(&socket), number) {
                        Ok((near, thread)) => {
                            socket = Arc::new(near);
                            *carrier = Some(thread);
                        }
                        Err(error) => {
                            tracing::warn!("NBD client {number}: cannot begin TLS: {error}");
                            return None;
                        }
                    }
                    input.clear();
                    out.clear();
                }
                Step::Close(ending) => {
                    if let Ending::Violation(what) = ending {
                        tracing::warn!("NBD client {number}: {what}; closing it");
                    }
                    return None;
                }
                Step::Need(needed) => {
                    out.clear();
                    if !receive(&socket, needed, &mut input, deadline) {
                        return None;
                    }
                }
            }
        }
    }

    /// Waits until clients have their replies, and disconnects those that do not take them in time.
    fn see_clients_off(&self) {
        let deadline = Instant::now() + self.options.stop_max;
        let mut clients = self.clients.lock();
        for socket in clients.values() {
            // Received requests are still served; then the connection ends.
            let _ = shutdown(&**socket, Shutdown::Read);
        }
        while !clients.is_empty() {
            if self.left.wait_until(&mut clients, deadline).timed_out() {
                break;
            }
        }
        if clients.is_empty() {
            return;
        }
        tracing::warn!(
            "{} NBD clients did not take their replies; closing them",
            clients.len()
        );
        for socket in clients.values() {
            let _ = shutdown(&**socket, Shutdown::Both);
        }
        let deadline = Instant::now() + CUT_OFF_MAX;
        while !clients.is_empty() {
            if self.left.wait_until(&mut clients, deadline).timed_out() {
                tracing::warn!("{} NBD clients are still being served", clients.len());
                return;
            }
        }
    }
}

/// Takes a client off the list, however its thread ends.
struct Leave<'s>(&'s Shared, u64);

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        self.0.reception.leave(self.1);
        self.0.clients.lock().remove(&self.1);
        self.0.left.notify_all();
    }
}

/// Sends within the time that is left; `false` when the client is gone or too slow.
fn send_all(socket: &OwnedFd, mut bytes: &[u8], deadline: Instant) -> bool {
    while !bytes.is_empty() {
        let Some(left) = left_until(deadline) else {
            return false;
        };
        // The remaining time, not a constant: a client that takes a byte now and then has no more.
        if sockopt::set_socket_timeout(socket, Timeout::Send, Some(left)).is_err() {
            return false;
        }
        match send(socket, bytes, SendFlags::NOSIGNAL) {
            Ok(count) => bytes = &bytes[count..],
            Err(Errno::INTR) => {}
            Err(_) => return false,
        }
    }
    true
}

/// Receives until there are `needed` bytes; `false` when the client is gone or too slow.
fn receive(socket: &OwnedFd, needed: usize, input: &mut Vec<u8>, deadline: Instant) -> bool {
    while input.len() < needed {
        let Some(left) = left_until(deadline) else {
            return false;
        };
        if sockopt::set_socket_timeout(socket, Timeout::Recv, Some(left)).is_err() {
            return false;
        }
        let mut bytes = [0; HANDSHAKE_RECV_BYTES];
        match recv(socket, &mut bytes[..], RecvFlags::empty()) {
            Ok((0, _)) => return false,
            Ok((count, _)) => input.extend_from_slice(&bytes[..count]),
            Err(Errno::INTR) => {}
            Err(_) => return false,
        }
    }
    true
}

fn left_until(deadline: Instant) -> Option<Duration> {
    let left = deadline.checked_duration_since(Instant::now())?;
    // The kernel takes 0 for no limit.
    (left >= Duration::from_millis(1)).then_some(left)
}

/// Clients at a time.
const CLIENTS_MAX: usize = 64;
/// Threads of a connection whose reads wait for a network: the number of concurrent requests.
const REMOTE_WORKERS_MAX: usize = 32;
/// Threads of a connection that writes: a flush holds one until all is on the disk, and concurrent
/// flushes share one sync.
const WRITE_WORKERS_MAX: usize = 16;
/// Time for replies under way at the end, where nothing is written.
const STOP_READING_MAX: Duration = Duration::from_millis(750);
/// Threads that one connection may use.
const WORKERS_MAX: usize = 8;
/// A socket's send buffer.
const SEND_BUFFER_BYTES: usize = 128 << 10;
/// Interval of the search for idle memory.
const TICK: Duration = Duration::from_secs(1);
/// Time without use after which memory is given back.
const IDLE_MIN: Duration = Duration::from_secs(10);
/// Pause after a client could not be accepted, to let others finish.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Time limit for closed connections to be noticed.
const CUT_OFF_MAX: Duration = Duration::from_millis(200);
/// Bytes received at once in the handshake: a request in the same segment must fit a connection's
/// buffer.
const HANDSHAKE_RECV_BYTES: usize = 1024;
const _: () = assert!(HANDSHAKE_RECV_BYTES <= BUFFER_BYTES);
const _: () = assert!(OPTION_BYTES + OPTION_DATA_BYTES_MAX < 64 << 10);

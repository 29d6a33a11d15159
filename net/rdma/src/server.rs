//! Both sides of rping's exchange at addresses: on kernel sockets or on the stack.
//!
//! Must stay true: a client that is slow, silent or at fault ends or delays only its own
//! connection; at most [`CLIENTS_MAX`] are served at a time, and half as many from one address;
//! clients that have not introduced themselves are limited separately, in number and time
//! ([`Admission`]); a temporary error of the listener does not end the server.

use crate::ping::{self, Pinged};
use crate::{Adapter, Connection, Options, RdmaError, Request, StackStream, Stream};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;
use serde::Serialize;
use sidecore_attach::{Admission, AdmissionLimits, Arrival, Reception, network_of};
use sidecore_net::sock::client::{Client, Socket};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Clients served at a time; more are closed at once.
pub const CLIENTS_MAX: u16 = 64;
/// Time limit from a client's connection to its first message.
pub const INTRODUCTION_TIME_MAX: Duration = Duration::from_secs(5);

/// The connections of a server.
type Desk = Reception<IpAddr, TcpStream>;

fn limits(exchange: &Exchange) -> AdmissionLimits {
    let all = usize::from(CLIENTS_MAX);
    AdmissionLimits {
        waiting_max: all,
        // Half of the places are out of one address' reach.
        peer_waiting_max: all / 2,
        preferred_waiting_max: 0,
        silence_max: INTRODUCTION_TIME_MAX.min(exchange.timeout),
        served_max: all,
        peer_served_max: all / 2,
    }
}

/// Properties of an exchange.
#[derive(Debug, Clone, Copy)]
pub struct Exchange {
    /// Of the pair.
    pub options: Options,
    /// The longest wait for a peer.
    pub timeout: Duration,
    /// Delay of the client's first message: Linux's siw may lose one directly after its reply.
    pub settle: Duration,
}

/// Serves clients of a kernel socket, each on its own thread, until `report` returns false; it is
/// called for each client that has ended. Blocks.
///
/// # Errors
/// The listener's.
///
/// # Panics
/// If `report` panics, once the clients being served have ended.
pub fn serve_kernel(
    listener: &TcpListener,
    exchange: &Exchange,
    report: impl Fn(SocketAddr, Result<Pinged, RdmaError>) -> bool + Sync,
) -> Result<(), RdmaError> {
    // accept must not block if the client is gone before it is called.
    listener.set_nonblocking(true)?;
    let over = &eventfd(0, EventfdFlags::CLOEXEC).map_err(io::Error::from)?;
    let desk = &Desk::new(limits(exchange));
    let report = &report;
    thread::scope(|scope| {
        // Dropped in a panic, too: silent clients must not delay the end.
        let _closing = Closing(desk);
        while awaits_client(listener, over)? {
            let (stream, peer) = match listener.accept() {
                Ok(accepted) => accepted,
                // A client that is gone already, or no descriptor: neither ends the server.
                Err(error) => {
                    desk.could_not_accept(error)?;
                    continue;
                }
            };
            let stream = Arc::new(stream);
            let Some(id) = desk.arrive(&stream, network_of(peer.ip()), false) else {
                continue;
            };
            let serve = move || {
                let last = EndsServing(over);
                let outcome = serve_one(stream, exchange, desk, id);
                desk.leave(id);
                // Forgotten only if serving goes on: a panic of `report` ends it.
                if report(peer, outcome) {
                    std::mem::forget(last);
                }
            };
            let thread = thread::Builder::new().name(format!("rdma-{id}"));
            if thread.spawn_scoped(scope, serve).is_err() {
                // The closure has dropped its stream, which is closed.
                desk.leave(id);
            }
        }
        Ok(())
    })
}

/// Closes all silent connections when dropped.
struct Closing<'a>(&'a Desk);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.0.end_waiting();
    }
}

/// Ends serving when dropped, even in a panic: the accept loop would wait for ever.
struct EndsServing<'a>(&'a OwnedFd);

impl Drop for EndsServing<'_> {
    fn drop(&mut self) {
        // Fails only if the counter overflows after 2^64 - 1 writes.
        rustix::io::write(self.0, &1_u64.to_ne_bytes()).ok();
    }
}

/// Waits for a client; false at the end of serving.
fn awaits_client(listener: &TcpListener, over: &OwnedFd) -> io::Result<bool> {
    loop {
        let mut places = [
            PollFd::new(over, PollFlags::IN),
            PollFd::new(listener, PollFlags::IN),
        ];
        match poll(&mut places, None) {
            Ok(_) => return Ok(places[0].revents().is_empty()),
            Err(Errno::INTR) => {}
            // Without memory for a moment: serving goes on when there is some.
            Err(Errno::NOMEM) => thread::sleep(ACCEPT_PAUSE),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Serves clients of the stack at `local`, one after the other, those that have sent something
/// first, until `report` returns false.
///
/// # Errors
/// The engine's.
pub fn serve_stack(
    client: Client,
    local: SocketAddr,
    exchange: &Exchange,
    report: impl Fn(SocketAddr, Result<Pinged, RdmaError>) -> bool,
) -> Result<(), RdmaError> {
    let client = Rc::new(RefCell::new(client));
    let listener = client
        .borrow_mut()
        .listen(local, CLIENTS_MAX.into())
        .map_err(failed)?;
    let mut waiting = Waiting::new(limits(exchange));
    loop {
        waiting.accept(&mut client.borrow_mut(), listener);
        // Not in the `match` itself: the borrow would last until its end.
        let next = waiting.next(&client.borrow());
        match next {
            Some((session, peer)) => {
                let stream = StackStream::new(Rc::clone(&client), session);
                let served = serve_stream(stream, exchange, || Ok(()));
                if !report(peer, served) {
                    return Ok(());
                }
            }
            None => {
                let nap = waiting.nap(exchange.timeout);
                client.borrow_mut().poll(nap).map_err(failed)?;
            }
        }
    }
}

/// Sessions of the stack that wait to be served.
struct Waiting {
    begun: Instant,
    admission: Admission<IpAddr>,
    sessions: BTreeMap<u64, (Socket, SocketAddr)>,
    last_id: u64,
}

impl Waiting {
    fn new(limits: AdmissionLimits) -> Self {
        Self {
            begun: Instant::now(),
            admission: Admission::new(limits),
            sessions: BTreeMap::new(),
            last_id: 0,
        }
    }

    /// Accepts new sessions, and closes those that are evicted or silent.
    fn accept(&mut self, client: &mut Client, listener: Socket) {
        let now = self.begun.elapsed();
        let mut closed = self.admission.expire(now);
        while let Some((session, peer)) = client.accept(listener) {
            self.last_id += 1;
            let id = self.last_id;
            self.sessions.insert(id, (session, peer));
            let network = network_of(peer.ip());
            match self.admission.arrive(id, network, false, now) {
                Arrival::Admitted => {}
                Arrival::Replaces(victim) => closed.push(victim),
                Arrival::Refused => closed.push(id),
            }
        }
        for id in closed {
            if let Some((session, _)) = self.sessions.remove(&id) {
                // Fails at worst because the engine is gone.
                client.close(session).ok();
            }
        }
    }

    /// The oldest session that has sent something.
    fn next(&mut self, client: &Client) -> Option<(Socket, SocketAddr)> {
        let mut sessions = self.sessions.iter();
        // A silent session waits for its time limit, and delays no other.
        let has_spoken = |session: Socket| client.readiness(session).readable;
        let (&id, _) = sessions.find(|(_, (session, _))| has_spoken(*session))?;
        self.admission.leave(id);
        self.sessions.remove(&id)
    }

    /// Time until the next deadline, `longest` at most.
    fn nap(&self, longest: Duration) -> Duration {
        let due = self.admission.deadline();
        due.map_or(longest, |due| {
            due.saturating_sub(self.begun.elapsed()).min(longest)
        })
    }
}

/// An exchange that a client has completed.
#[derive(Debug, Clone, Serialize)]
pub struct PingReport {
    bytes_each_way: u64,
    elapsed_s: f64,
    peer: SocketAddr,
    round_us: f64,
    rounds: u64,
}

impl PingReport {
    /// Takes part as the client, on the stack of a `client`, else on a kernel socket.
    ///
    /// # Errors
    /// The connection's; the returned text differs.
    pub fn of(
        client: Option<Client>,
        peer: SocketAddr,
        exchange: &Exchange,
        rounds: u64,
        text_bytes: u32,
    ) -> Result<Self, RdmaError> {
        let (pinged, elapsed) = match client {
            Some(client) => ping_stack(client, peer, exchange, rounds, text_bytes),
            None => ping_kernel(peer, exchange, rounds, text_bytes),
        }?;
        let elapsed_s = elapsed.as_secs_f64();
        Ok(Self {
            bytes_each_way: pinged.bytes,
            elapsed_s,
            peer,
            round_us: 1e6 * elapsed_s / pinged.rounds.max(1) as f64,
            rounds: pinged.rounds,
        })
    }

    /// The same on a line for people.
    #[must_use]
    pub fn line(&self) -> String {
        let pinged = Pinged {
            rounds: self.rounds,
            bytes: self.bytes_each_way,
        };
        format!(
            "{}, {:.1} us a round",
            pinged.line(self.peer),
            self.round_us
        )
    }
}

/// Serves clients at an address, on the stack of a `client`, else on a kernel socket, until as many
/// as `clients_max` have introduced themselves and ended. `ready` gets the address once clients can
/// connect, `line` a line for each that has ended. Blocks.
///
/// # Errors
/// The listener's; those of `ready`.
pub fn serve(
    client: Option<Client>,
    address: SocketAddr,
    exchange: &Exchange,
    clients_max: Option<u64>,
    ready: impl FnOnce(SocketAddr) -> io::Result<()>,
    line: impl Fn(&str) + Sync,
) -> Result<(), ServeError> {
    let served = AtomicU64::new(0);
    let report = |peer: SocketAddr, outcome: Result<Pinged, RdmaError>| {
        let more = u64::from(!matches!(outcome, Err(RdmaError::NotIntroduced)));
        let failed = |error| format!("{peer}: {error}");
        line(&outcome.map_or_else(failed, |pinged| pinged.line(peer)));
        // Relaxed: a count alone.
        let served = served.fetch_add(more, Ordering::Relaxed) + more;
        clients_max.is_none_or(|clients| served < clients)
    };
    let failed = |source| ServeError::Serve { address, source };
    let Some(client) = client else {
        let listener = TcpListener::bind(address);
        let listener = listener.map_err(|source| ServeError::Listen { address, source })?;
        // Port 0 has become a real one.
        ready(listener.local_addr().unwrap_or(address)).map_err(ServeError::Ready)?;
        return serve_kernel(&listener, exchange, report).map_err(failed);
    };
    ready(address).map_err(ServeError::Ready)?;
    serve_stack(client, address, exchange, report).map_err(failed)
}

/// Reasons why clients are not served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The address cannot be had.
    #[error("cannot listen at {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// Serving failed.
    #[error("cannot serve at {address}")]
    Serve {
        /// The address.
        address: SocketAddr,
        /// The cause.
        source: RdmaError,
    },
    /// It could not be said that clients can connect.
    #[error(transparent)]
    Ready(io::Error),
}

/// Takes part as the client, on a kernel socket; returns its progress, and the time of the rounds.
///
/// # Errors
/// The connection's; the returned text differs.
pub fn ping_kernel(
    peer: SocketAddr,
    exchange: &Exchange,
    rounds: u64,
    text_bytes: u32,
) -> Result<(Pinged, Duration), RdmaError> {
    let stream = TcpStream::connect_timeout(&peer, exchange.timeout)?;
    ping_one(kernel_stream(stream)?, exchange, rounds, text_bytes)
}

/// Takes part as the client, on the stack.
///
/// # Errors
/// The connection's; the returned text differs.
pub fn ping_stack(
    mut client: Client,
    peer: SocketAddr,
    exchange: &Exchange,
    rounds: u64,
    text_bytes: u32,
) -> Result<(Pinged, Duration), RdmaError> {
    let session = client.connect(peer).map_err(failed)?;
    let stream = StackStream::new(Rc::new(RefCell::new(client)), session);
    ping_one(stream, exchange, rounds, text_bytes)
}

fn kernel_stream(stream: TcpStream) -> Result<TcpStream, RdmaError> {
    prepare(&stream)?;
    Ok(stream)
}

fn prepare(stream: &TcpStream) -> Result<(), RdmaError> {
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)?;
    Ok(())
}

/// Serves a client of a kernel's socket.
fn serve_one(
    stream: Arc<TcpStream>,
    exchange: &Exchange,
    desk: &Desk,
    id: u64,
) -> Result<Pinged, RdmaError> {
    prepare(&stream)?;
    let served = serve_stream(stream, exchange, || {
        let has_place = desk.introduce(id);
        has_place.then_some(()).ok_or(RdmaError::NoPlace)
    });
    match served {
        // Without a message, an orderly end usually means that this server has evicted the client.
        Ok(_) | Err(RdmaError::Late(_) | RdmaError::Ended(_) | RdmaError::Io(_))
            if desk.is_unintroduced(id) =>
        {
            Err(RdmaError::NotIntroduced)
        }
        other => other,
    }
}

fn serve_stream<S: Stream>(
    stream: S,
    exchange: &Exchange,
    introduced: impl FnOnce() -> Result<(), RdmaError>,
) -> Result<Pinged, RdmaError> {
    let mut adapter = Adapter::new()?;
    let begun = Instant::now();
    let first = INTRODUCTION_TIME_MAX.min(exchange.timeout);
    let request = Request::wait(stream, &mut adapter, exchange.options, first)?;
    // Part of the same time limit: a client's steps do not restart it.
    let left = first.saturating_sub(begun.elapsed());
    ping::serve_introduced(request, &mut adapter, left, exchange.timeout, introduced)
}

fn ping_one<S: Stream>(
    stream: S,
    exchange: &Exchange,
    rounds: u64,
    text_bytes: u32,
) -> Result<(Pinged, Duration), RdmaError> {
    let mut adapter = Adapter::new()?;
    let (options, timeout) = (exchange.options, exchange.timeout);
    let mut connection = Connection::connect(stream, &mut adapter, options, &[], timeout)?;
    connection.settle(exchange.settle);
    ping::ping_timed(connection, &mut adapter, rounds, text_bytes, timeout)
}

fn failed(error: sidecore_net::sock::client::ClientError) -> RdmaError {
    RdmaError::Io(std::io::Error::other(error))
}

/// Pause after an accept failed for lack of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

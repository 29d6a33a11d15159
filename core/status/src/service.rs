//! Clients of a listener, bounded, on one thread: requests in, answers out.
//!
//! Why here: the published socket and the endpoint for metrics differ in their protocol alone
//! ([`Dialect`]). Must stay true: the number of clients, the bytes of a request and the time of a
//! client are bounded; a client that does not read costs its own connection and nothing else. The
//! thread waits in poll(2), or in the dialect.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, SocketFlags, accept_with, recv, send};
use sidecore_sys::local_socket;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The outcome of [`Dialect::step`].
#[derive(Debug)]
pub(crate) enum Step {
    /// The request is not complete.
    More,
    /// A request of `used` bytes is answered.
    Answer {
        used: usize,
        bytes: Vec<u8>,
        /// The connection ends after this answer.
        last: bool,
    },
    /// The client does not speak the protocol.
    Close,
}

/// A protocol of requests and answers.
pub(crate) trait Dialect: Send + 'static {
    /// Answers the first request of `input`.
    fn step(&self, input: &[u8]) -> Step;

    /// True if this client may connect.
    fn admits(&self, client: &OwnedFd) -> bool {
        is_own_or_root(client)
    }
}

/// True if the peer is this process's user, or root.
fn is_own_or_root(client: &OwnedFd) -> bool {
    use sidecore_sys::identity::Identities;
    let Ok(peer) = local_socket::peer(client.as_fd()) else {
        return false;
    };
    Identities::of_this_process().is_user(peer.uid)
        && (peer.uid == 0 || peer.uid == local_socket::effective_uid())
}

/// A thread that serves, until it is dropped.
#[derive(Debug)]
pub(crate) struct Service(Arc<OwnedFd>);

impl Service {
    /// Serves the clients of a listener that does not block.
    pub(crate) fn start(
        name: &str,
        listener: OwnedFd,
        dialect: impl Dialect,
    ) -> std::io::Result<Self> {
        let wake = Arc::new(local_socket::poker().map_err(std::io::Error::other)?);
        let woken = Arc::clone(&wake);
        std::thread::Builder::new()
            .name(name.into())
            .stack_size(STACK_BYTES)
            .spawn(move || serve(&woken, &listener, &dialect))?;
        Ok(Self(wake))
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // Not joined: the dialect may be inside a source that hangs.
        local_socket::poke(self.0.as_fd());
    }
}

struct Client {
    socket: OwnedFd,
    input: Vec<u8>,
    output: Vec<u8>,
    sent: usize,
    /// The beginning of the wait for the client.
    since: Instant,
    is_last: bool,
}

fn serve(wake: &OwnedFd, listener: &OwnedFd, dialect: &impl Dialect) {
    let mut clients: Vec<Client> = Vec::new();
    loop {
        let mut places = vec![
            PollFd::from_borrowed_fd(wake.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN),
        ];
        places.extend(clients.iter().map(|client| {
            let flags = match client.output.is_empty() {
                true => PollFlags::IN,
                false => PollFlags::OUT,
            };
            PollFd::from_borrowed_fd(client.socket.as_fd(), flags)
        }));
        let limit = (!clients.is_empty()).then_some(&TICK);
        match poll(&mut places, limit) {
            Ok(_) | Err(Errno::INTR) => {}
            // Out of memory for a moment.
            Err(_) => std::thread::sleep(PAUSE),
        }
        let is_ready: Vec<bool> = places
            .iter()
            .map(|place| !place.revents().is_empty())
            .collect();
        if is_ready[0] {
            return;
        }
        // In the order of the clients, of which `places` was made.
        let mut ready = is_ready[2..].iter();
        clients.retain_mut(|client| {
            let ready = ready.next().is_some_and(|ready| *ready);
            let goes_on = !ready || client.proceed(dialect);
            goes_on && client.since.elapsed() < SILENCE_MAX
        });
        if is_ready[1] {
            accept(listener, dialect, &mut clients);
        }
    }
}

fn accept(listener: &OwnedFd, dialect: &impl Dialect, clients: &mut Vec<Client>) {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    match accept_with(listener, flags) {
        Ok(socket) if dialect.admits(&socket) => {
            if clients.len() >= CLIENTS_MAX {
                // The oldest one has had the most time.
                clients.remove(0);
            }
            clients.push(Client {
                socket,
                input: Vec::new(),
                output: Vec::new(),
                sent: 0,
                since: Instant::now(),
                is_last: false,
            });
        }
        Ok(_) | Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => {}
        // For lack of descriptors or memory: the client stays in the queue.
        Err(_) => {
            clients.clear();
            std::thread::sleep(PAUSE);
        }
    }
}

impl Client {
    /// Takes or sends what can be without waiting. False when the connection is over.
    fn proceed(&mut self, dialect: &impl Dialect) -> bool {
        // One answer at a time: a client that does not read gets no further one.
        if !self.output.is_empty() {
            return self.send() && self.answer(dialect);
        }
        let mut bytes = [0; 4096];
        match recv(&self.socket, &mut bytes[..], RecvFlags::empty()) {
            Ok((0, _)) => return false,
            Ok((count, _)) => self.input.extend_from_slice(&bytes[..count]),
            Err(Errno::AGAIN | Errno::INTR) => return true,
            Err(_) => return false,
        }
        self.answer(dialect)
    }

    /// Answers requests for as long as the client takes the answers.
    fn answer(&mut self, dialect: &impl Dialect) -> bool {
        while self.output.is_empty() && !self.input.is_empty() {
            match dialect.step(&self.input) {
                Step::More => return true,
                Step::Close => return false,
                Step::Answer { used, bytes, last } => {
                    self.input.drain(..used);
                    (self.output, self.sent, self.is_last) = (bytes, 0, last);
                    self.since = Instant::now();
                    if !self.send() {
                        return false;
                    }
                }
            }
        }
        true
    }

    fn send(&mut self) -> bool {
        while self.sent < self.output.len() {
            match send(&self.socket, &self.output[self.sent..], SendFlags::NOSIGNAL) {
                Ok(count) => self.sent += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return true,
                Err(_) => return false,
            }
        }
        self.output = Vec::new();
        self.since = Instant::now();
        !self.is_last
    }
}

/// Clients at a time.
const CLIENTS_MAX: usize = 16;
/// The longest time for which a client may be silent, or not read.
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// Interval at which silent clients are looked for.
const TICK: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};
/// Time for descriptors or memory to come back.
const PAUSE: Duration = Duration::from_millis(100);
/// The thread's stack: status is made on it.
const STACK_BYTES: usize = 256 << 10;

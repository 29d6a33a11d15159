//! Small servers for tests and measurements: echo, discard, source, HTTP, iperf3.
//!
//! They are applications like any other: attached to an engine, all sessions in one loop. RFC 862,
//! RFC 863 and, in the spirit of RFC 864, a source that sends as fast as its peer reads.

mod attend;
mod http;
mod iperf3;

use attend::{attend, bind};
use serde::Serialize;
use sidecore_net::sock::client::{Client, ClientError, ClientOptions, Socket, siblings};
use sidecore_net::sock::control::SockError;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

/// Service that a server offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Service {
    /// Sends back its input, TCP and UDP.
    Echo,
    /// Discards its input.
    Discard,
    /// Sends until the peer goes.
    Source,
    /// Answers requests for web pages: `/` is a short text, `/bytes/N` is N bytes.
    Http,
    /// Server of iperf3, over TCP and UDP, either way or both.
    Iperf3,
}

impl Service {
    /// The service's usual port.
    #[must_use]
    pub fn port(self) -> u16 {
        match self {
            Self::Echo => 7,
            Self::Discard => 9,
            Self::Source => 19,
            Self::Http => 80,
            Self::Iperf3 => 5201,
        }
    }

    /// True if sessions may be accepted by several engines. Those of iperf3 belong together: one is
    /// the control session of others, so one thread has them all, and frames of theirs that come to
    /// another engine are handed over.
    #[must_use]
    pub fn is_shared(self) -> bool {
        self != Self::Iperf3
    }
}

/// Attaches to the engine at `socket` and, for a service that several share, to all that share its
/// address.
///
/// # Errors
/// [`SockError`].
pub fn attach_all(
    service: Service,
    socket: &Path,
    options: &ClientOptions,
) -> Result<Vec<Client>, SockError> {
    let mut sockets = siblings(socket, &options.trust)?;
    if !service.is_shared() {
        sockets.truncate(1);
    }
    let clients = sockets.iter().map(|path| Client::attach(path, options));
    clients.collect()
}

/// Serves at `local` on every engine that `clients` are attached to, each from a thread of its own
/// where there are several, until `stop`. `listening` is called once all of them listen. Returns
/// the totals of all; the engine that accepted a session is its client's place here.
///
/// # Errors
/// [`ClientError`] of the first that failed, which ends all.
pub fn serve_engines(
    mut clients: Vec<Client>,
    service: Service,
    local: SocketAddr,
    stop: &AtomicBool,
    listening: impl FnOnce(),
) -> Result<Served, ClientError> {
    if let [client] = &mut clients[..] {
        return serve(client, service, local, stop, listening);
    }
    let over = AtomicBool::new(false);
    let (ready, is_ready) = mpsc::channel();
    std::thread::scope(|scope| {
        let mut servers: Vec<_> = Vec::with_capacity(clients.len());
        for client in &mut clients {
            let (ready, over) = (ready.clone(), &over);
            let thread = std::thread::Builder::new().spawn_scoped(scope, move || {
                let listening = || {
                    // The receiver is gone where another engine has failed.
                    ready.send(()).ok();
                };
                let served = serve(client, service, local, over, listening);
                over.store(true, Ordering::Release);
                served
            });
            match thread {
                Ok(server) => servers.push(server),
                Err(error) => {
                    // Those that serve already end; `listening` is not called.
                    over.store(true, Ordering::Release);
                    let text = format!("cannot start a thread to serve it: {error}");
                    return Err(ClientError::Failed(text));
                }
            }
        }
        drop(ready);
        // Ends early where one of them fails: its end of the channel is dropped.
        if is_ready.iter().take(servers.len()).count() == servers.len() {
            listening();
        }
        while !stop.load(Ordering::Acquire) && !over.load(Ordering::Acquire) {
            std::thread::sleep(NAP);
        }
        over.store(true, Ordering::Release);
        let mut all = Ok(Served::default());
        for server in servers {
            let served = match server.join() {
                Ok(served) => served,
                Err(panic) => std::panic::resume_unwind(panic),
            };
            all = all.and_then(|all| Ok(all.plus(&served?)));
        }
        all
    })
}

/// Totals of a server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Served {
    /// Sessions that came.
    pub sessions: u64,
    /// Payload received, in bytes.
    pub received_bytes: u64,
    /// Payload sent, in bytes.
    pub sent_bytes: u64,
    /// Datagrams that came.
    pub datagrams: u64,
}

impl Served {
    fn plus(&self, other: &Self) -> Self {
        Self {
            sessions: self.sessions + other.sessions,
            received_bytes: self.received_bytes + other.received_bytes,
            sent_bytes: self.sent_bytes + other.sent_bytes,
            datagrams: self.datagrams + other.datagrams,
        }
    }
}

/// Serves at `local` until `stop`; at any address of either family where that is `[::]`.
///
/// # Errors
/// [`ClientError`]: the address is in use, or the engine is gone.
pub fn serve(
    client: &mut Client,
    service: Service,
    local: SocketAddr,
    stop: &AtomicBool,
    listening: impl FnOnce(),
) -> Result<Served, ClientError> {
    match service {
        Service::Http => return http::serve(client, local, stop, listening),
        Service::Iperf3 => return iperf3::serve(client, local, stop, listening),
        Service::Echo | Service::Discard | Service::Source => {}
    }
    let datagrams = match service {
        Service::Echo => bind(client, local)?,
        _ => Vec::new(),
    };
    let server = Server {
        client,
        service,
        datagrams,
        waiting: HashMap::new(),
        served: Served::default(),
    };
    attend(server, local, stop, listening)
}

struct Server<'c> {
    client: &'c mut Client,
    service: Service,
    datagrams: Vec<Socket>,
    /// Bytes accepted and not yet written, by session.
    waiting: HashMap<Socket, Vec<u8>>,
    served: Served,
}

impl attend::Server for Server<'_> {
    fn client(&mut self) -> &mut Client {
        self.client
    }

    fn served(&mut self) -> &mut Served {
        &mut self.served
    }

    /// Retries the bytes that found no free buffer soon.
    fn is_pressed(&self) -> bool {
        !self.waiting.is_empty()
    }

    fn look(&mut self, socket: Socket) -> Result<(), ClientError> {
        if self.datagrams.contains(&socket) {
            self.datagrams(socket)
        } else {
            self.session(socket)
        }
    }

    fn go_on(&mut self) -> Result<(), ClientError> {
        self.send_waiting()
    }
}

impl Server<'_> {
    fn session(&mut self, session: Socket) -> Result<(), ClientError> {
        if self.service == Service::Source {
            self.fill(session)?;
        }
        // A session whose echo waits is not read any further, so that its peer slows down.
        while !self.waiting.contains_key(&session) {
            let received = match self.client.receive(session) {
                Ok(Some(received)) => received,
                Ok(None) => break,
                Err(ClientError::Socket(_)) => return self.client.close(session),
                Err(error) => return Err(error),
            };
            let bytes = received.bytes();
            self.served.received_bytes += bytes.len() as u64;
            if self.service == Service::Echo {
                // The next round notices a session that has ended.
                let sent = self.client.write(session, bytes).unwrap_or(bytes.len());
                self.served.sent_bytes += sent as u64;
                if sent < bytes.len() {
                    self.waiting.insert(session, bytes[sent..].to_vec());
                }
            }
            self.client.release(received);
        }
        let readiness = self.client.readiness(session);
        let over = readiness.closed || (readiness.ended && self.service != Service::Source);
        if over && (readiness.closed || !self.waiting.contains_key(&session)) {
            self.waiting.remove(&session);
            self.client.close(session)?;
        }
        Ok(())
    }

    /// Keeps some chunks in flight.
    fn fill(&mut self, session: Socket) -> Result<(), ClientError> {
        while self.client.takes(session) && self.client.sending(session) < SOURCE_CHUNKS {
            let Some(mut buffer) = self.client.buffer() else {
                return Ok(());
            };
            let bytes = buffer.bytes_mut();
            for (at, byte) in bytes.iter_mut().enumerate() {
                *byte = b'!' + (at % 94) as u8;
            }
            let count = bytes.len();
            match self.client.send(session, buffer, count) {
                Ok(()) => self.served.sent_bytes += count as u64,
                Err(ClientError::Socket(_)) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn send_waiting(&mut self) -> Result<(), ClientError> {
        let sockets: Vec<Socket> = self.waiting.keys().copied().collect();
        for session in sockets {
            let Some(mut rest) = self.waiting.remove(&session) else {
                continue;
            };
            let sent = self.client.write(session, &rest).unwrap_or(rest.len());
            self.served.sent_bytes += sent as u64;
            rest.drain(..sent);
            if rest.is_empty() {
                // Data that came meanwhile.
                self.session(session)?;
            } else {
                self.waiting.insert(session, rest);
            }
        }
        Ok(())
    }

    fn datagrams(&mut self, socket: Socket) -> Result<(), ClientError> {
        while let Some((received, peer)) = self.client.receive_from(socket) {
            self.served.datagrams += 1;
            // No buffer free: lost, as datagrams are.
            self.client.send_to(socket, peer, received.bytes())?;
            self.client.release(received);
        }
        Ok(())
    }
}

const BACKLOG: u32 = 4096;
/// Longest delay of a stop request.
const NAP: Duration = Duration::from_millis(100);
const SHORT_NAP: Duration = Duration::from_millis(1);
/// Chunks of 16 KiB in flight for one session of the source.
const SOURCE_CHUNKS: u32 = 32;

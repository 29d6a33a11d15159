//! TLS between a client and the server: keys and certificates, and a thread for each client that
//! relays bytes both ways.
//!
//! Why here: a connection's workers share its socket and send straight from the cache's memory. A
//! cipher's state between them would end both. So the server sends plain text to one end of a
//! socket pair; the relay thread has the other end and the client's socket, and it alone has the
//! cipher. The cost is a thread, two copies and the cipher; connections without TLS pay nothing.
//!
//! Must stay true: after a client has begun TLS, not a byte of plain text is sent to it or accepted
//! from it. A client that stops within the handshake is disconnected by the server's own limit,
//! which closes the pair. The bytes that wait in a direction are bounded by [`PIECE_BYTES`] and a
//! record.
//!
//! Source: the NBD protocol document, "TLS support" (mode FORCEDTLS); RFC 8446, RFC 5246. Files are
//! named as qemu and nbdkit name them.

use super::NbdError;
use arrayvec::ArrayVec;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, recv, send, shutdown,
    socketpair,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A server's certificate and its private key, and the rule for admitting clients.
#[derive(Clone, Debug)]
pub struct Tls {
    config: Arc<ServerConfig>,
}

impl Tls {
    /// Reads `server-cert.pem` and `server-key.pem` in `directory`. With `verify_peer` a client has
    /// to show a certificate by an authority in `ca-cert.pem`. Blocks on the files.
    ///
    /// # Errors
    /// [`NbdError::Certificates`].
    pub fn from_directory(directory: &Path, verify_peer: bool) -> Result<Self, NbdError> {
        let file = |name: &str| directory.join(name);
        let failed = |path: PathBuf, reason: String| NbdError::Certificates { path, reason };
        let certificates = |name: &str| {
            let path = file(name);
            let read = CertificateDer::pem_file_iter(&path).and_then(Iterator::collect);
            match read {
                Ok(found) if Vec::is_empty(&found) => {
                    Err(failed(path, "it holds no certificate in PEM".to_owned()))
                }
                Ok(found) => Ok(found),
                Err(error) => Err(failed(path, error.to_string())),
            }
        };
        let chain: Vec<_> = certificates("server-cert.pem")?;
        let path = file("server-key.pem");
        let key = PrivateKeyDer::from_pem_file(&path);
        let key = key.map_err(|error| failed(path.clone(), error.to_string()))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider));
        let builder = builder.with_safe_default_protocol_versions();
        let builder = builder.map_err(|error| failed(path.clone(), error.to_string()))?;
        let builder = if verify_peer {
            let path = file("ca-cert.pem");
            let mut roots = RootCertStore::empty();
            for certificate in certificates("ca-cert.pem")? {
                let added = roots.add(certificate);
                added.map_err(|error| failed(path.clone(), error.to_string()))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            let verifier = verifier.build();
            let verifier = verifier.map_err(|error| failed(path, error.to_string()))?;
            builder.with_client_cert_verifier(verifier)
        } else {
            builder.with_no_client_auth()
        };
        let config = builder.with_single_cert(chain, key);
        let config = config.map_err(|error| failed(path, error.to_string()))?;
        Ok(Self {
            config: Arc::new(config),
        })
    }

    /// Starts to relay between `client`, which begins its handshake now, and the returned socket.
    /// Returns at once; the thread ends soon after that socket was closed and the client has
    /// received all data.
    ///
    /// # Errors
    /// The system's: no sockets or no thread.
    pub(super) fn carry(
        &self,
        client: Arc<OwnedFd>,
        number: u64,
    ) -> io::Result<(OwnedFd, JoinHandle<()>)> {
        // The server's code is the same with TLS and without: it only gets another socket.
        let (near, far) = socketpair(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        )?;
        let mut tls = ServerConnection::new(Arc::clone(&self.config)).map_err(io::Error::other)?;
        // A piece is buffered only where nothing else waits. With a limit, the reply to a client's
        // key update, which waits as well, would leave too little room for it.
        tls.set_buffer_limit(None);
        let carrier = Carrier {
            tls,
            client,
            server: far,
            to_server: Vec::new(),
            client_ended: false,
            server_ended: false,
            gone_since: None,
        };
        let thread = std::thread::Builder::new().name(format!("nbd-{number}-tls"));
        let thread = thread.spawn(move || carrier.run(number))?;
        Ok((near, thread))
    }
}

struct Carrier {
    tls: ServerConnection,
    client: Arc<OwnedFd>,
    server: OwnedFd,
    /// Plain text from the client.
    to_server: Vec<u8>,
    client_ended: bool,
    /// True once all data that the server has sent were read.
    server_ended: bool,
    /// When the server's end of the pair was found closed.
    gone_since: Option<Instant>,
}

impl Carrier {
    fn run(mut self, number: u64) {
        if let Err(error) = self.carry() {
            tracing::warn!("NBD client {number}: TLS: {error}; closing it");
        }
        // Both sides see the end, even if another process still has the client's socket.
        let _ = shutdown(&*self.client, Shutdown::Both);
        let _ = shutdown(&self.server, Shutdown::Both);
    }

    /// Relays until one side has ended and all its data have been passed on.
    fn carry(&mut self) -> io::Result<()> {
        loop {
            // The order matters: what is to be sent decides whether more may be taken.
            let sends = self.tls.wants_write();
            if self.server_ended && !sends {
                return Ok(());
            }
            // The server's data are taken when the last piece of it is sent.
            let takes = !self.tls.is_handshaking() && !sends && !self.server_ended;
            let receives = self.to_server.is_empty() && !self.client_ended;
            let hands_on = !self.to_server.is_empty();
            let wish = |wished, flag| if wished { flag } else { PollFlags::empty() };
            let of_client = wish(sends, PollFlags::OUT) | wish(receives, PollFlags::IN);
            let of_server = wish(hands_on, PollFlags::OUT) | wish(takes, PollFlags::IN);
            // A side without events to wait for is left out, for `poll` always reports a hang-up.
            // But the server's hang-up has to be seen even while only the client is waited for.
            let mut waits = ArrayVec::<_, 2>::new();
            if !of_client.is_empty() {
                waits.push(PollFd::new(&*self.client, of_client));
            }
            if !of_server.is_empty() || self.gone_since.is_none() {
                waits.push(PollFd::new(&self.server, of_server));
            }
            match poll(&mut waits, Some(&TICK)) {
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
            let mut told = waits.iter().map(PollFd::revents);
            let empty = PollFlags::empty();
            let client = match of_client.is_empty() {
                true => empty,
                false => told.next().unwrap_or(empty),
            };
            let server = told.next().unwrap_or(empty);
            drop(told);
            drop(waits);
            let gone = PollFlags::HUP | PollFlags::ERR;
            if sends && client.intersects(PollFlags::OUT | gone) {
                pass(self.tls.write_tls(&mut Socket(&self.client)))?;
            }
            if receives && client.intersects(PollFlags::IN | gone) {
                self.receive()?;
            }
            if hands_on && server.intersects(PollFlags::OUT | gone) {
                self.hand_on()?;
            }
            if takes && server.intersects(PollFlags::IN | gone) {
                self.take()?;
            }
            if server.intersects(gone) {
                if self.tls.is_handshaking() {
                    return Err(io::Error::other("the handshake took too long"));
                }
                self.gone_since.get_or_insert_with(Instant::now);
            }
            if self
                .gone_since
                .is_some_and(|since| since.elapsed() > LAST_BYTES_MAX)
            {
                return Err(io::Error::other("it does not take its last bytes"));
            }
        }
    }

    /// From the client; its plain text is buffered.
    fn receive(&mut self) -> io::Result<()> {
        let read = pass(self.tls.read_tls(&mut Socket(&self.client)))?;
        let state = self.tls.process_new_packets();
        let state = match state {
            Ok(state) => state,
            Err(error) => {
                // Sends the TLS alert.
                let _ = self.tls.write_tls(&mut Socket(&self.client));
                return Err(io::Error::other(error));
            }
        };
        let plain = state.plaintext_bytes_to_read();
        if plain > 0 {
            self.to_server.resize(plain, 0);
            self.tls.reader().read_exact(&mut self.to_server)?;
        }
        if read == Some(0) || state.peer_has_closed() {
            self.client_ended = true;
            if self.tls.is_handshaking() {
                return Err(io::Error::other("left within the handshake"));
            }
            if self.to_server.is_empty() {
                let _ = shutdown(&self.server, Shutdown::Write);
            }
        }
        Ok(())
    }

    /// To the server.
    fn hand_on(&mut self) -> io::Result<()> {
        let sent = pass(Socket(&self.server).write(&self.to_server))?;
        // The server may be slower than the client: the rest waits, and nothing is received
        // meanwhile.
        self.to_server.drain(..sent.unwrap_or(0));
        if self.to_server.is_empty() && self.client_ended {
            let _ = shutdown(&self.server, Shutdown::Write);
        }
        Ok(())
    }

    /// From the server.
    fn take(&mut self) -> io::Result<()> {
        let mut piece = [0; PIECE_BYTES];
        match pass(Socket(&self.server).read(&mut piece))? {
            // The server has closed its end; the client learns it from a close_notify (RFC 8446,
            // section 6.1).
            Some(0) => self.end_server(),
            Some(taken) => self.tls.writer().write_all(&piece[..taken]),
            None => Ok(()),
        }
    }

    fn end_server(&mut self) -> io::Result<()> {
        if !self.server_ended {
            self.server_ended = true;
            self.tls.send_close_notify();
        }
        Ok(())
    }
}

/// `None` where the call has to be repeated later.
fn pass(result: io::Result<usize>) -> io::Result<Option<usize>> {
    match result {
        Ok(count) => Ok(Some(count)),
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
            ) =>
        {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// A socket that never blocks, even if another owner of its description clears `O_NONBLOCK`.
struct Socket<'s>(&'s OwnedFd);

impl Read for Socket<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let received = recv(self.0, out, RecvFlags::DONTWAIT);
        received.map(|(count, _)| count).map_err(io::Error::from)
    }
}

impl Write for Socket<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        send(self.0, bytes, flags).map_err(io::Error::from)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Bytes that are taken from the server at a time: four records.
const PIECE_BYTES: usize = 64 << 10;
/// Longest time between two polls.
const TICK: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};
/// Time for a client to receive data that the server has sent before it closed.
const LAST_BYTES_MAX: Duration = Duration::from_secs(10);

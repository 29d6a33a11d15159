//! A small HTTP server for clients of HTTP in tests and measurements.
//!
//! `/` is a short text, `/bytes/N` a body of N bytes; GET and HEAD, one request after the other on
//! a session that stays open if the client wants it to. Must stay true: what a client sends is
//! bounded, whatever it is; a session that cannot send now waits without holding up others.
//! Source: RFC 9110, RFC 9112.

use super::Served;
use super::attend::{self, attend};
use sidecore_net::sock::client::{Client, ClientError, Socket};
use sidecore_net::sock::layout::CHUNK_BYTES;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;

/// Serves at `local` until `stop`.
pub(super) fn serve(
    client: &mut Client,
    local: SocketAddr,
    stop: &AtomicBool,
    listening: impl FnOnce(),
) -> Result<Served, ClientError> {
    let server = Server {
        client,
        sessions: HashMap::new(),
        blocked: Vec::new(),
        lines: LINE.repeat(BLOCK_BYTES / LINE.len() + 2),
        served: Served::default(),
    };
    attend(server, local, stop, listening)
}

struct Server<'c> {
    client: &'c mut Client,
    sessions: HashMap<Socket, Session>,
    /// Sessions that have data to send and found no buffer.
    blocked: Vec<Socket>,
    /// Repeated text of response bodies: long enough to hold a block from any offset within a line.
    lines: Vec<u8>,
    served: Served,
}

/// One client.
#[derive(Default)]
struct Session {
    received: Vec<u8>,
    /// Unsent part of a response: the rest of its head, and the count of body bytes still to be
    /// sent.
    head: Vec<u8>,
    body_bytes: u64,
    body_sent: u64,
    /// True if the connection closes after this response (`Connection: close`).
    last: bool,
}

/// Result of sending a response.
enum Sent {
    All,
    /// No buffer is free now; it goes on when one is.
    Some,
}

impl attend::Server for Server<'_> {
    fn client(&mut self) -> &mut Client {
        self.client
    }

    fn served(&mut self) -> &mut Served {
        &mut self.served
    }

    fn is_pressed(&self) -> bool {
        !self.blocked.is_empty()
    }

    fn opened(&mut self, session: Socket) {
        self.sessions.insert(session, Session::default());
    }

    /// Makes all possible progress with a session; a broken one is released.
    fn look(&mut self, socket: Socket) -> Result<(), ClientError> {
        let Some(mut session) = self.sessions.remove(&socket) else {
            return Ok(());
        };
        match self.exchange(socket, &mut session) {
            Ok(true) => {
                self.sessions.insert(socket, session);
                Ok(())
            }
            Ok(false) | Err(ClientError::Socket(_)) => self.client.close(socket),
            Err(error) => Err(error),
        }
    }

    fn go_on(&mut self) -> Result<(), ClientError> {
        for socket in std::mem::take(&mut self.blocked) {
            self.look(socket)?;
        }
        Ok(())
    }
}

impl Server<'_> {
    /// Answers the requests that have arrived; false where the session ends.
    fn exchange(&mut self, socket: Socket, session: &mut Session) -> Result<bool, ClientError> {
        loop {
            match self.send(socket, session)? {
                Sent::All => {}
                Sent::Some => {
                    // A session with data in flight gets an event when that is sent.
                    if self.client.sending(socket) == 0 {
                        self.blocked.push(socket);
                    }
                    return Ok(true);
                }
            }
            if session.last {
                return Ok(false);
            }
            if let Some(end) = end_of_head(&session.received) {
                let head: Vec<u8> = session.received.drain(..end).collect();
                session.answer(&head);
                continue;
            }
            if session.received.len() > HEAD_BYTES_MAX {
                session.refuse("431 Request Header Fields Too Large");
                continue;
            }
            let Some(received) = self.client.receive(socket)? else {
                let readiness = self.client.readiness(socket);
                return Ok(!readiness.ended && !readiness.closed);
            };
            session.received.extend_from_slice(received.bytes());
            self.served.received_bytes += received.bytes().len() as u64;
            self.client.release(received);
        }
    }

    fn send(&mut self, socket: Socket, session: &mut Session) -> Result<Sent, ClientError> {
        while !session.head.is_empty() {
            let sent = self.client.write(socket, &session.head)?;
            session.head.drain(..sent);
            self.served.sent_bytes += sent as u64;
            if sent == 0 {
                return Ok(Sent::Some);
            }
        }
        while session.body_bytes > 0 {
            // Other sessions need buffers too, however many peers take nothing.
            let free = self.client.buffers_free();
            let share = if free > self.client.buffers_max() / 2 {
                CHUNKS_MAX
            } else {
                free.min(1)
            };
            let sending = usize::try_from(self.client.sending(socket)).unwrap_or(usize::MAX);
            let room = share.saturating_sub(sending) * CHUNK_BYTES;
            if room == 0 {
                return Ok(Sent::Some);
            }
            let most = session.body_bytes.min(BLOCK_BYTES.min(room) as u64) as usize;
            let from = (session.body_sent % LINE.len() as u64) as usize;
            let sent = self.client.write(socket, &self.lines[from..from + most])?;
            session.body_bytes -= sent as u64;
            session.body_sent += sent as u64;
            self.served.sent_bytes += sent as u64;
            if sent == 0 {
                return Ok(Sent::Some);
            }
        }
        Ok(Sent::All)
    }
}

impl Session {
    /// Prepares the response to a request whose head this is.
    fn answer(&mut self, head: &[u8]) {
        let Some(request) = Request::parse(head) else {
            return self.refuse("400 Bad Request");
        };
        self.last = !request.keep;
        let body_bytes = match request.path {
            "/" => GREETING.len() as u64,
            path => {
                let asked = path
                    .strip_prefix("/bytes/")
                    .and_then(|text| text.parse().ok());
                match asked {
                    Some(bytes) if bytes <= BODY_BYTES_MAX => bytes,
                    _ => return self.respond("404 Not Found", 0),
                }
            }
        };
        self.respond("200 OK", body_bytes);
        if request.head_only {
            return;
        }
        if request.path == "/" {
            self.head.extend_from_slice(GREETING);
        } else {
            self.body_bytes = body_bytes;
            self.body_sent = 0;
        }
    }

    /// Answers a request that cannot be parsed, and closes the session after the answer.
    fn refuse(&mut self, status: &str) {
        self.last = true;
        self.respond(status, 0);
    }

    fn respond(&mut self, status: &str, body_bytes: u64) {
        let connection = if self.last { "close" } else { "keep-alive" };
        self.head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {body_bytes}\r\n\
             Connection: {connection}\r\n\r\n"
        )
        .into_bytes();
    }
}

/// Parsed request line and headers, as far as the server uses them.
struct Request<'h> {
    path: &'h str,
    head_only: bool,
    keep: bool,
}

impl<'h> Request<'h> {
    /// None for a request that this server does not answer: it takes no bodies.
    fn parse(head: &'h [u8]) -> Option<Self> {
        let mut lines = std::str::from_utf8(head).ok()?.split("\r\n");
        let mut words = lines.next()?.split(' ');
        let (method, path, version) = (words.next()?, words.next()?, words.next()?);
        let head_only = match method {
            "GET" => false,
            "HEAD" => true,
            _ => return None,
        };
        // RFC 9112 section 9.3: sessions stay open from 1.1 on, before that if the client asks.
        let mut keep = match version {
            "HTTP/1.1" => true,
            "HTTP/1.0" => false,
            _ => return None,
        };
        for line in lines {
            let Some((name, value)) = line.split_once(':') else {
                continue;
            };
            let value = value.trim();
            if name.eq_ignore_ascii_case("connection") {
                keep = keep && !value.eq_ignore_ascii_case("close")
                    || value.eq_ignore_ascii_case("keep-alive");
            }
            let body = name.eq_ignore_ascii_case("content-length") && value != "0"
                || name.eq_ignore_ascii_case("transfer-encoding");
            if body {
                return None;
            }
        }
        path.starts_with('/').then_some(Self {
            path,
            head_only,
            keep,
        })
    }
}

/// Length of the request head with its empty line; none while that has not arrived.
fn end_of_head(bytes: &[u8]) -> Option<usize> {
    let at = bytes.windows(4).position(|four| four == b"\r\n\r\n")?;
    Some(at + 4)
}

const GREETING: &[u8] = b"A stack on an engine of its own answers.\n";
const LINE: &[u8] = b"Sidecore.\n";
const BLOCK_BYTES: usize = 128 << 10;
/// The longest head that a client may send, in bytes.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// The longest body that it can ask for.
const BODY_BYTES_MAX: u64 = 1 << 40;
/// Chunks of 16 KiB in flight for one session.
const CHUNKS_MAX: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(request: &str) -> (String, u64, bool) {
        let mut session = Session::default();
        session.answer(request.as_bytes());
        let head = String::from_utf8(session.head).unwrap();
        (head, session.body_bytes, session.last)
    }

    #[test]
    fn what_is_asked_for_is_answered() {
        let (head, bytes, last) = answer("GET /bytes/70000 HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"));
        assert!(head.contains("Content-Length: 70000\r\n"));
        assert_eq!((bytes, last), (70_000, false));
        let (head, bytes, _) = answer("HEAD /bytes/9 HTTP/1.1\r\n\r\n");
        assert!(head.contains("Content-Length: 9\r\n") && bytes == 0);
        let (head, ..) = answer("GET / HTTP/1.1\r\n\r\n");
        assert!(head.ends_with("answers.\n"));
        assert!(answer("GET /none HTTP/1.1\r\n\r\n").0.contains(" 404 "));
    }

    #[test]
    fn sessions_stay_open_as_the_client_wants() {
        assert!(answer("GET / HTTP/1.0\r\n\r\n").2);
        assert!(!answer("GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n").2);
        assert!(answer("GET / HTTP/1.1\r\nconnection: close\r\n\r\n").2);
    }

    #[test]
    fn what_is_no_request_ends_the_session() {
        for text in [
            "",
            "GET /\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\n",
            "GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
            "GET x HTTP/1.1\r\n\r\n",
            "GET / HTTP/9\r\n\r\n",
        ] {
            let (head, _, last) = answer(text);
            assert!(head.contains(" 400 ") && last, "{text:?}: {head}");
        }
        assert_eq!(end_of_head(b"GET / HTTP/1.1\r\n\r\nmore"), Some(18));
        assert_eq!(end_of_head(b"GET / HTTP/1.1\r\n"), None);
    }
}

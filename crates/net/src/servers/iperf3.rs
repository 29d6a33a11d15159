//! The server's side of iperf3's protocol, so that unmodified iperf3 measures this stack.
//!
//! One test at a time: a control session on which both sides tell their state, a byte each, and
//! parameters and results as JSON behind their length (big-endian, 32 bits); and data sessions, which
//! name their test by the 37 bytes that its control session began with. TCP only, either way.
//! Must stay true: what a client sends is bounded, whatever it is; a client that goes away ends its
//! test and nothing else. Source: the protocol as iperf 3.12 speaks it, observed.

use super::{BACKLOG, NAP, SHORT_NAP, Served};
use crate::sock::client::{Client, ClientError, Socket};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Serves at `local` until `stop`.
pub(super) fn serve(
    client: &mut Client,
    local: SocketAddr,
    stop: &AtomicBool,
    listening: impl FnOnce(),
) -> Result<Served, ClientError> {
    let listener = client.listen(local, BACKLOG)?;
    listening();
    let mut server = Server {
        client,
        strangers: HashMap::new(),
        test: None,
        served: Served::default(),
    };
    while !stop.load(Ordering::Acquire) {
        let sends = server.test.as_ref().is_some_and(Test::sends);
        server.client.poll(if sends { SHORT_NAP } else { NAP })?;
        while let Some(socket) = server.client.next_ready() {
            if socket == listener {
                while let Some((session, _)) = server.client.accept(listener) {
                    server.served.sessions += 1;
                    server.strangers.insert(session, Vec::new());
                    server.hear(session)?;
                }
            } else {
                server.hear(socket)?;
            }
        }
        server.send()?;
    }
    Ok(server.served)
}

struct Server<'c> {
    client: &'c mut Client,
    /// Sessions that have not said yet which test they belong to, and what they said so far.
    strangers: HashMap<Socket, Vec<u8>>,
    test: Option<Test>,
    served: Served,
}

/// The test under way.
struct Test {
    cookie: Vec<u8>,
    control: Socket,
    /// What was received on the control session and is not used yet.
    said: Vec<u8>,
    step: Step,
    parameters: Parameters,
    streams: Vec<Stream>,
    begun: Instant,
    seconds: f64,
}

struct Stream {
    socket: Socket,
    bytes: u64,
}

/// What the test waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Parameters,
    Streams,
    End,
    Results,
    Farewell,
}

/// What a client asks for; iperf3 leaves out what is 0 or false.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Parameters {
    tcp: bool,
    parallel: Option<usize>,
    reverse: bool,
    bidirectional: bool,
}

/// What each side tells the other in the end.
#[derive(Serialize)]
struct Results {
    cpu_util_total: f64,
    cpu_util_user: f64,
    cpu_util_system: f64,
    /// 0: retransmissions are not told; -1: this side does not send.
    sender_has_retransmits: i32,
    congestion_used: &'static str,
    streams: Vec<StreamResults>,
}

#[derive(Serialize)]
struct StreamResults {
    id: usize,
    bytes: u64,
    retransmits: i32,
    jitter: f64,
    errors: u32,
    packets: u32,
    start_time: f64,
    end_time: f64,
}

/// Whether a session goes on.
#[derive(PartialEq, Eq)]
enum Then {
    GoOn,
    End,
}

impl Server<'_> {
    /// Takes what a session said, whatever it is for.
    fn hear(&mut self, socket: Socket) -> Result<(), ClientError> {
        loop {
            let received = match self.client.receive(socket) {
                Ok(Some(received)) => received,
                Ok(None) => break,
                Err(ClientError::Socket(_)) => return self.gone(socket),
                Err(error) => return Err(error),
            };
            let bytes = received.bytes();
            self.served.received_bytes += bytes.len() as u64;
            let then = self.take(socket, bytes.to_owned());
            self.client.release(received);
            match then {
                Ok(Then::GoOn) => {}
                Ok(Then::End) | Err(ClientError::Socket(_)) => return self.gone(socket),
                Err(error) => return Err(error),
            }
        }
        let readiness = self.client.readiness(socket);
        if readiness.ended || readiness.closed {
            return self.gone(socket);
        }
        Ok(())
    }

    fn take(&mut self, socket: Socket, bytes: Vec<u8>) -> Result<Then, ClientError> {
        if let Some(mut said) = self.strangers.remove(&socket) {
            said.extend(bytes);
            if said.len() < COOKIE_BYTES {
                self.strangers.insert(socket, said);
                return Ok(Then::GoOn);
            }
            let rest = said.split_off(COOKIE_BYTES);
            return self.introduce(socket, said, rest);
        }
        let Some(test) = &mut self.test else {
            return Ok(Then::End);
        };
        if socket == test.control {
            test.said.extend(bytes);
            return self.advance();
        }
        if let Some(stream) = test.streams.iter_mut().find(|it| it.socket == socket)
            && !test.parameters.reverse
        {
            stream.bytes += bytes.len() as u64;
        }
        Ok(Then::GoOn)
    }

    /// A session has said which test it belongs to.
    fn introduce(
        &mut self,
        socket: Socket,
        cookie: Vec<u8>,
        rest: Vec<u8>,
    ) -> Result<Then, ClientError> {
        match &mut self.test {
            None => {
                self.test = Some(Test {
                    cookie,
                    control: socket,
                    said: rest,
                    step: Step::Parameters,
                    parameters: Parameters::default(),
                    streams: Vec::new(),
                    begun: Instant::now(),
                    seconds: 0.0,
                });
                self.tell(socket, &[PARAM_EXCHANGE])?;
                self.advance()
            }
            Some(test) if test.cookie == cookie && test.step == Step::Streams => {
                test.streams.push(Stream {
                    socket,
                    bytes: rest.len() as u64,
                });
                if test.streams.len() == test.parallel() {
                    test.step = Step::End;
                    test.begun = Instant::now();
                    let control = test.control;
                    self.tell(control, &[TEST_START, TEST_RUNNING])?;
                }
                Ok(Then::GoOn)
            }
            Some(_) => {
                self.tell(socket, &[ACCESS_DENIED])?;
                Ok(Then::End)
            }
        }
    }

    /// Does what follows from what was said on the control session.
    fn advance(&mut self) -> Result<Then, ClientError> {
        loop {
            let Some(test) = &mut self.test else {
                return Ok(Then::End);
            };
            let control = test.control;
            match test.step {
                Step::Parameters => {
                    let Some(text) = message(&mut test.said) else {
                        return Ok(test.patience());
                    };
                    let parameters: Option<Parameters> = serde_json::from_slice(&text).ok();
                    let can = |it: &Parameters| {
                        it.tcp && !it.bidirectional && it.parallel.unwrap_or(1) <= STREAMS_MAX
                    };
                    let Some(parameters) = parameters.filter(can) else {
                        // Two numbers follow: iperf3's own, and errno's.
                        self.tell(control, &[SERVER_ERROR, 0, 0, 0, 0, 0, 0, 0, 0])?;
                        return Ok(Then::End);
                    };
                    test.parameters = parameters;
                    test.step = Step::Streams;
                    self.tell(control, &[CREATE_STREAMS])?;
                }
                Step::Streams | Step::End => {
                    if test.said.is_empty() {
                        return Ok(Then::GoOn);
                    }
                    if test.said.remove(0) != TEST_END || test.step == Step::Streams {
                        return Ok(Then::End);
                    }
                    test.step = Step::Results;
                    test.seconds = test.begun.elapsed().as_secs_f64();
                    if test.parameters.reverse {
                        // A client that is in the middle of reading a block waits for its end.
                        for stream in &test.streams {
                            self.client.close(stream.socket)?;
                        }
                    }
                    self.tell(control, &[EXCHANGE_RESULTS])?;
                }
                Step::Results => {
                    // What the client counted is its own business.
                    if message(&mut test.said).is_none() {
                        return Ok(test.patience());
                    }
                    test.step = Step::Farewell;
                    let mut answer = test.results();
                    answer.push(DISPLAY_RESULTS);
                    self.tell(control, &answer)?;
                }
                Step::Farewell => {
                    // "Done", or the session's end.
                    let done = !test.said.is_empty();
                    return Ok(if done { Then::End } else { Then::GoOn });
                }
            }
        }
    }

    /// Sends where the test wants that from us.
    fn send(&mut self) -> Result<(), ClientError> {
        let Some(test) = self.test.as_mut().filter(|test| test.sends()) else {
            return Ok(());
        };
        for stream in &mut test.streams {
            while self.client.sending(stream.socket) < CHUNKS_MAX {
                let Some(mut buffer) = self.client.buffer() else {
                    return Ok(());
                };
                let count = buffer.bytes_mut().len();
                match self.client.send(stream.socket, buffer, count) {
                    Ok(()) => {
                        stream.bytes += count as u64;
                        self.served.sent_bytes += count as u64;
                    }
                    Err(ClientError::Lost) => return Err(ClientError::Lost),
                    // Its end is told by the control session.
                    Err(ClientError::Socket(_)) => break,
                }
            }
        }
        Ok(())
    }

    /// Says something short on a control session: there is room for it.
    fn tell(&mut self, socket: Socket, bytes: &[u8]) -> Result<(), ClientError> {
        let mut sent = 0;
        while sent < bytes.len() {
            let now = self.client.write(socket, &bytes[sent..])?;
            sent += now;
            if now == 0 {
                // All buffers are with the engine, which gives them back.
                self.client.poll(SHORT_NAP)?;
            }
        }
        self.served.sent_bytes += sent as u64;
        Ok(())
    }

    /// A session is over; with the control session its test is.
    fn gone(&mut self, socket: Socket) -> Result<(), ClientError> {
        self.strangers.remove(&socket);
        if let Some(test) = self.test.take_if(|test| test.control == socket) {
            for stream in test.streams {
                // What is still to be sent there, nobody wants.
                self.client.abort(stream.socket)?;
            }
        } else if let Some(test) = &mut self.test
            && test.streams.iter().any(|stream| stream.socket == socket)
        {
            // Its count is still to be told; the client closes it before it asks.
            return Ok(());
        }
        self.client.close(socket)
    }
}

impl Test {
    fn parallel(&self) -> usize {
        self.parameters.parallel.unwrap_or(1).max(1)
    }

    fn sends(&self) -> bool {
        self.parameters.reverse && self.step == Step::End
    }

    /// Whether to wait for the rest of a message.
    fn patience(&self) -> Then {
        if self.said.len() > MESSAGE_BYTES_MAX {
            return Then::End;
        }
        Then::GoOn
    }

    /// Our results behind their length.
    fn results(&self) -> Vec<u8> {
        let streams = self.streams.iter().enumerate();
        let streams = streams.map(|(index, stream)| StreamResults {
            // iperf3 numbers them 1, 3, 4, 5.
            id: if index == 0 { 1 } else { index + 2 },
            bytes: stream.bytes,
            retransmits: -1,
            jitter: 0.0,
            errors: 0,
            packets: 0,
            start_time: 0.0,
            end_time: self.seconds,
        });
        let results = Results {
            cpu_util_total: 0.0,
            cpu_util_user: 0.0,
            cpu_util_system: 0.0,
            sender_has_retransmits: if self.parameters.reverse { 0 } else { -1 },
            congestion_used: "cubic",
            streams: streams.collect(),
        };
        // Numbers and short texts: nothing in it can fail to be written.
        let text = serde_json::to_vec(&results).unwrap_or_default();
        let mut bytes = (text.len() as u32).to_be_bytes().to_vec();
        bytes.extend(text);
        bytes
    }
}

/// Takes a message from the front of what was said, if all of it is there.
fn message(said: &mut Vec<u8>) -> Option<Vec<u8>> {
    let length = u32::from_be_bytes(*said.first_chunk()?) as usize;
    let end = length.checked_add(4).filter(|&end| end <= said.len())?;
    let rest = said.split_off(end);
    let mut message = std::mem::replace(said, rest);
    message.drain(..4);
    Some(message)
}

const TEST_START: u8 = 1;
const TEST_RUNNING: u8 = 2;
const TEST_END: u8 = 4;
const PARAM_EXCHANGE: u8 = 9;
const CREATE_STREAMS: u8 = 10;
const EXCHANGE_RESULTS: u8 = 13;
const DISPLAY_RESULTS: u8 = 14;
const ACCESS_DENIED: u8 = 0xff;
const SERVER_ERROR: u8 = 0xfe;
/// 36 letters and a zero.
const COOKIE_BYTES: usize = 37;
/// The longest message that a client may send, in bytes.
const MESSAGE_BYTES_MAX: usize = 64 << 10;
/// As many as iperf3 itself allows.
const STREAMS_MAX: usize = 128;
/// Chunks of 16 KiB on their way for one stream.
const CHUNKS_MAX: u32 = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_taken_whole_or_not_at_all() {
        let mut said = vec![0, 0, 0, 3, b'a', b'b'];
        assert_eq!(message(&mut said), None);
        said.extend(b"cd");
        assert_eq!(message(&mut said).unwrap(), b"abc");
        assert_eq!(said, b"d");
        let mut said = vec![0xff; 8];
        assert_eq!(message(&mut said), None, "a length that nobody keeps");
    }

    #[test]
    fn what_a_client_leaves_out_is_its_default() {
        let text = br#"{"tcp":true,"omit":0,"time":1,"len":131072,"pacing_timer":1000}"#;
        let parameters: Parameters = serde_json::from_slice(text).unwrap();
        assert!(parameters.tcp && !parameters.reverse && parameters.parallel.is_none());
    }
}

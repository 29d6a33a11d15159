//! The server's side of iperf3's protocol, so that unmodified iperf3 measures this stack.
//!
//! One test at a time: a control session on which both sides send their state, a byte each, and
//! parameters and results as JSON behind their length (big-endian, 32 bits); and data sessions,
//! which name their test by the 37 bytes that its control session began with, or datagrams, which
//! begin with a greeting that is answered. Either way, or both at once.
//! Must stay true: what a client sends is bounded, whatever it is; a client that goes away ends its
//! test and nothing else. Source: the protocol as iperf 3.12 speaks it, observed.

mod protocol;
mod stream;

use super::attend::{self, attend, bind};
use super::{SHORT_NAP, Served};
use protocol::{
    ACCESS_DENIED, COOKIE_BYTES, CREATE_STREAMS, DISPLAY_RESULTS, EXCHANGE_RESULTS,
    MESSAGE_BYTES_MAX, PARAM_EXCHANGE, Parameters, Results, SERVER_ERROR, StreamResults, TEST_END,
    TEST_RUNNING, TEST_START, UNIMPLEMENTED, message,
};
use sidecore_net::sock::client::{Client, ClientError, Socket};
use sidecore_net::sock::layout::CHUNK_BYTES;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};
use stream::{Endpoint, Stream};

/// Serves at `local` until `stop`.
pub(super) fn serve(
    client: &mut Client,
    local: SocketAddr,
    stop: &AtomicBool,
    listening: impl FnOnce(),
) -> Result<Served, ClientError> {
    let datagrams = bind(client, local)?;
    let server = Server {
        client,
        datagrams,
        strangers: HashMap::new(),
        test: None,
        served: Served::default(),
    };
    attend(server, local, stop, listening)
}

struct Server<'c> {
    client: &'c mut Client,
    /// Sockets of all UDP streams.
    datagrams: Vec<Socket>,
    /// Sessions that have not named their test yet, each with the bytes it has sent so far.
    strangers: HashMap<Socket, (u64, Vec<u8>)>,
    test: Option<Test>,
    served: Served,
}

/// The test under way.
struct Test {
    cookie: Vec<u8>,
    control: Socket,
    /// Bytes received on the control session and not parsed yet.
    said: Vec<u8>,
    step: Step,
    parameters: Parameters,
    streams: Vec<Stream>,
    begun: Instant,
    seconds: f64,
}

/// State of a test: the next message or event it waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Parameters,
    Streams,
    End,
    Results,
    Farewell,
}

/// Continuation of a session after a message.
#[derive(PartialEq, Eq)]
enum Then {
    GoOn,
    End,
}

impl attend::Server for Server<'_> {
    fn client(&mut self) -> &mut Client {
        self.client
    }

    fn served(&mut self) -> &mut Served {
        &mut self.served
    }

    fn is_pressed(&self) -> bool {
        self.test.as_ref().is_some_and(Test::sends)
    }

    fn opened(&mut self, session: Socket) {
        let which = self.served.sessions;
        self.strangers.insert(session, (which, Vec::new()));
    }

    fn look(&mut self, socket: Socket) -> Result<(), ClientError> {
        if self.datagrams.contains(&socket) {
            self.receive_datagrams(socket)
        } else {
            self.receive(socket)
        }
    }

    fn go_on(&mut self) -> Result<(), ClientError> {
        self.send()
    }
}

impl Server<'_> {
    /// Takes the bytes of a session of any kind.
    fn receive(&mut self, socket: Socket) -> Result<(), ClientError> {
        loop {
            let received = match self.client.receive(socket) {
                Ok(Some(received)) => received,
                Ok(None) => break,
                Err(ClientError::Socket(_)) => return self.gone(socket),
                Err(error) => return Err(error),
            };
            let bytes = received.bytes();
            self.served.received_bytes += bytes.len() as u64;
            let then = self.take(socket, bytes);
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

    fn take(&mut self, socket: Socket, bytes: &[u8]) -> Result<Then, ClientError> {
        if let Some((which, mut said)) = self.strangers.remove(&socket) {
            said.extend(bytes);
            if said.len() < COOKIE_BYTES {
                self.strangers.insert(socket, (which, said));
                return Ok(Then::GoOn);
            }
            let rest = said.split_off(COOKIE_BYTES);
            return self.introduce(socket, which, said, rest);
        }
        let Some(test) = &mut self.test else {
            return Ok(Then::End);
        };
        if socket == test.control {
            test.said.extend(bytes);
            return self.advance();
        }
        if let Some(stream) = test.stream(Endpoint::Session(socket))
            && !stream.sends
        {
            stream.bytes += bytes.len() as u64;
        }
        Ok(Then::GoOn)
    }

    /// Takes the datagrams that have arrived.
    fn receive_datagrams(&mut self, socket: Socket) -> Result<(), ClientError> {
        while let Some((received, peer)) = self.client.receive_from(socket) {
            let taken = self.take_datagram((socket, peer), received.bytes());
            self.client.release(received);
            taken?;
        }
        Ok(())
    }

    fn take_datagram(
        &mut self,
        (socket, peer): (Socket, SocketAddr),
        bytes: &[u8],
    ) -> Result<(), ClientError> {
        self.served.datagrams += 1;
        self.served.received_bytes += bytes.len() as u64;
        let Some(test) = self.test.as_mut().filter(|test| test.parameters.udp) else {
            return Ok(());
        };
        let wide = test.parameters.counts_wide();
        let known = test.stream(Endpoint::Peer(socket, peer));
        if let Some(answer) = stream::greeting(bytes) {
            let new = known.is_none();
            if new && test.step != Step::Streams {
                return Ok(());
            }
            // No buffer free: lost, as datagrams are; the client waits for it, and gives up.
            self.client.send_to(socket, peer, &answer)?;
            if new {
                let serial = self.served.datagrams;
                self.join(Stream::new(Endpoint::Peer(socket, peer), serial))?;
            }
        } else if let Some(stream) = known
            && !stream.sends
        {
            stream.take(bytes, wide);
        }
        Ok(())
    }

    /// One more stream of the test; with the last it begins.
    fn join(&mut self, stream: Stream) -> Result<(), ClientError> {
        let Some(test) = &mut self.test else {
            return Ok(());
        };
        test.streams.push(stream);
        if test.streams.len() < test.parameters.streams() {
            return Ok(());
        }
        test.streams.sort_by_key(|stream| stream.serial);
        for (index, stream) in test.streams.iter_mut().enumerate() {
            stream.sends = test.parameters.sends_on(index);
        }
        test.step = Step::End;
        test.begun = Instant::now();
        let control = test.control;
        self.tell(control, &[TEST_START, TEST_RUNNING])
    }

    /// A session has named its test.
    fn introduce(
        &mut self,
        socket: Socket,
        which: u64,
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
            Some(test)
                if test.cookie == cookie && test.step == Step::Streams && test.parameters.tcp =>
            {
                let mut stream = Stream::new(Endpoint::Session(socket), which);
                stream.bytes = rest.len() as u64;
                self.join(stream)?;
                Ok(Then::GoOn)
            }
            Some(_) => {
                self.tell(socket, &[ACCESS_DENIED])?;
                Ok(Then::End)
            }
        }
    }

    /// Handles the messages of the control session.
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
                    let Some(parameters) = parameters.filter(Parameters::is_possible) else {
                        // Two numbers follow: iperf3's own error, and errno, which that error does
                        // not need.
                        self.tell(control, &[SERVER_ERROR, 0, 0, 0, UNIMPLEMENTED, 0, 0, 0, 0])?;
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
                    // A client that is in the middle of reading a block waits for its end.
                    for stream in test.streams.iter_mut().filter(|stream| stream.sends) {
                        if let Endpoint::Session(socket) = stream.place {
                            self.client.close(socket)?;
                            stream.place = Endpoint::None;
                        }
                    }
                    self.tell(control, &[EXCHANGE_RESULTS])?;
                }
                Step::Results => {
                    // The client's counts are for the client alone.
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

    /// Sends on the streams on which the server is the sender.
    fn send(&mut self) -> Result<(), ClientError> {
        let Some(test) = self.test.as_mut().filter(|test| test.sends()) else {
            return Ok(());
        };
        let parameters = &test.parameters;
        let elapsed = test.begun.elapsed();
        for stream in test.streams.iter_mut().filter(|stream| stream.sends) {
            let sent = match stream.place {
                Endpoint::Session(socket) => {
                    send_bytes(self.client, stream, socket, elapsed, parameters)?
                }
                Endpoint::Peer(socket, peer) => {
                    send_datagrams(self.client, stream, (socket, peer), elapsed, parameters)?
                }
                Endpoint::None => 0,
            };
            self.served.sent_bytes += sent;
        }
        Ok(())
    }

    /// Sends a short message on a control session: there is room for it.
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

    /// A session has ended; with the control session its test ends.
    fn gone(&mut self, socket: Socket) -> Result<(), ClientError> {
        self.strangers.remove(&socket);
        if let Some(test) = self.test.take_if(|test| test.control == socket) {
            for stream in test.streams {
                if let Endpoint::Session(socket) = stream.place {
                    // The unsent rest is no longer wanted.
                    self.client.abort(socket)?;
                }
            }
        } else if let Some(test) = &mut self.test
            && test.stream(Endpoint::Session(socket)).is_some()
        {
            // The client still reports this session's count, and closes it before the results.
            return Ok(());
        }
        self.client.close(socket)
    }
}

impl Test {
    fn sends(&self) -> bool {
        self.parameters.sends() && self.step == Step::End
    }

    fn stream(&mut self, place: Endpoint) -> Option<&mut Stream> {
        self.streams.iter_mut().find(|stream| stream.place == place)
    }

    /// Continuation while a message is incomplete: wait for the rest, or end at the size limit.
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
            jitter: stream.jitter,
            errors: stream.lost,
            packets: stream.packets,
            start_time: 0.0,
            end_time: self.seconds,
        });
        Results {
            cpu_util_total: 0.0,
            cpu_util_user: 0.0,
            cpu_util_system: 0.0,
            sender_has_retransmits: if self.parameters.sends() { 0 } else { -1 },
            congestion_used: "cubic",
            streams: streams.collect(),
        }
        .message()
    }
}

/// Keeps some chunks in flight, as far as they are due; returns the number of bytes.
fn send_bytes(
    client: &mut Client,
    stream: &mut Stream,
    socket: Socket,
    elapsed: Duration,
    parameters: &Parameters,
) -> Result<u64, ClientError> {
    let before = stream.bytes;
    while client.takes(socket)
        && client.sending(socket) < CHUNKS_MAX
        && stream.is_due(CHUNK_BYTES, elapsed, parameters.bandwidth)
    {
        let Some(mut buffer) = client.buffer() else {
            break;
        };
        let count = buffer.bytes_mut().len();
        match client.send(socket, buffer, count) {
            Ok(()) => stream.bytes += count as u64,
            // The control session announces its end.
            Err(ClientError::Socket(_)) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(stream.bytes - before)
}

/// The same with datagrams to a peer.
fn send_datagrams(
    client: &mut Client,
    stream: &mut Stream,
    (socket, peer): (Socket, SocketAddr),
    elapsed: Duration,
    parameters: &Parameters,
) -> Result<u64, ClientError> {
    let before = stream.bytes;
    let mut datagram = vec![0; parameters.datagram_bytes()];
    while client.sending(socket) < CHUNKS_MAX
        && stream.is_due(datagram.len(), elapsed, parameters.bandwidth)
    {
        let numbered = stream.packets;
        stream.head(&mut datagram, parameters.counts_wide());
        match client.send_to(socket, peer, &datagram) {
            Ok(true) => stream.bytes += datagram.len() as u64,
            Ok(false) | Err(ClientError::Socket(_)) => {
                // It was not sent.
                stream.packets = numbered;
                break;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(stream.bytes - before)
}

/// Chunks in flight for one stream, or datagrams for all.
const CHUNKS_MAX: u32 = 32;

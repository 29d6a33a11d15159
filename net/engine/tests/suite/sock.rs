//! Sockets for other processes, over a stack without a network.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // Helper functions of tests; seeds.

use crate::loopback;

use loopback::{BUFFER_BYTES, Loopback, MARKS, TOO_BIG, TOO_BIG_PORT};
use sidecore_net::sock::client::{Client, ClientError, ClientOptions, Socket, next_refusal};
use sidecore_net::sock::control::{Admission, Control, SockError};
use sidecore_net::sock::layout::VERSION;
use sidecore_net::sock::server::{ClientStatus, Server};
use sidecore_net::sock::{SocketError, SocketOption};
use sidecore_sys::{SharedMap, Sharing, local_socket};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

mod ends;

/// Sampled counters of an engine.
#[derive(Default)]
struct Noticed {
    violations: AtomicU64,
    aborted: AtomicU64,
}

/// An engine that only has sockets.
struct Engine {
    folder: tempfile::TempDir,
    _control: Control,
    stop: Arc<AtomicBool>,
    noticed: Arc<Noticed>,
    thread: Option<JoinHandle<(Loopback, u64, Vec<ClientStatus>)>>,
}

impl Engine {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("net.sock");
        let (control, server) = Control::start(&path, Admission::default()).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let noticed = Arc::new(Noticed::default());
        let notes = Arc::clone(&noticed);
        let thread = std::thread::spawn(move || run(server, &stopped, &notes));
        Self {
            folder,
            _control: control,
            stop,
            noticed,
            thread: Some(thread),
        }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("net.sock")
    }

    fn attach(&self) -> Client {
        self.attach_with(64)
    }

    fn attach_with(&self, chunks: u32) -> Client {
        let options = ClientOptions {
            chunks,
            ..ClientOptions::default()
        };
        Client::attach(&self.path(), &options).unwrap()
    }

    fn end(mut self) -> (Loopback, u64, Vec<ClientStatus>) {
        self.stop.store(true, Ordering::Release);
        self.thread.take().unwrap().join().unwrap()
    }
}

fn run(
    mut server: Server,
    stop: &AtomicBool,
    noticed: &Noticed,
) -> (Loopback, u64, Vec<ClientStatus>) {
    let mut stack = Loopback::default();
    let mut ready = Vec::new();
    while !stop.load(Ordering::Acquire) {
        if server.is_asked() {
            server.answer(server.status().count().to_string());
        }
        let done = server.poll(&mut stack);
        let violations = server.violations();
        noticed.violations.store(violations, Ordering::Relaxed);
        noticed
            .aborted
            .store(stack.aborted as u64, Ordering::Relaxed);
        if done > 0 {
            continue;
        }
        if server.arm() {
            let nap = Duration::from_millis(20);
            local_socket::poll(&[server.bell()], &mut ready, nap).unwrap();
        }
        server.disarm();
    }
    // Requests from before the end are in the rings, and are executed, too.
    while server.poll(&mut stack) > 0 {}
    let status = server.status().collect();
    (stack, server.violations(), status)
}

/// Waits until all have left, as the engine sees it.
fn until_all_have_gone(engine: &Engine) {
    let begun = Instant::now();
    while attached(engine) != "0" {
        assert!(begun.elapsed() < PATIENCE, "{} are left", attached(engine));
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Attached processes, by the status request.
fn attached(engine: &Engine) -> String {
    sidecore_net::sock::client::status(&engine.path()).unwrap()
}

const SERVICE: &str = "192.0.2.1:80";

fn service() -> SocketAddr {
    SERVICE.parse().unwrap()
}

/// Polls until `found` returns something.
fn until<T>(client: &mut Client, mut found: impl FnMut(&mut Client) -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(it) = found(client) {
            return it;
        }
        assert!(begun.elapsed() < PATIENCE, "it does not happen: {client:?}");
        client.poll(Duration::from_millis(100)).unwrap();
    }
}

fn connect(client: &mut Client) -> Socket {
    let session = client.connect(service()).unwrap();
    until(client, |client| {
        client.readiness(session).writable.then_some(())
    });
    session
}

/// A thread that accepts and echoes until `sessions` sessions have arrived and all of them have
/// ended. It listens once this returns.
fn echo(mut client: Client, sessions: usize) -> JoinHandle<()> {
    let listener = client.listen(service(), 1000).unwrap();
    std::thread::spawn(move || echo_at(client, listener, sessions))
}

fn echo_at(mut client: Client, listener: Socket, sessions: usize) {
    let (mut came, mut live) = (0, 0);
    let mut waiting: Vec<(Socket, Vec<u8>)> = Vec::new();
    while came < sessions || live > 0 {
        client.poll(Duration::from_millis(100)).unwrap();
        while let Some((_, _)) = client.accept(listener) {
            came += 1;
            live += 1;
        }
        for (session, mut rest) in std::mem::take(&mut waiting) {
            let done = client.write(session, &rest).unwrap_or(rest.len());
            rest.drain(..done);
            if !rest.is_empty() {
                waiting.push((session, rest));
            }
        }
        while let Some(session) = client.next_ready() {
            if session == listener {
                continue;
            }
            while let Ok(Some(received)) = client.receive(session) {
                let done = client
                    .write(session, received.bytes())
                    .unwrap_or(usize::MAX);
                if done < received.bytes().len() {
                    waiting.push((session, received.bytes()[done..].to_vec()));
                }
                client.release(received);
            }
            let readiness = client.readiness(session);
            if readiness.ended || readiness.closed {
                client.close(session).unwrap();
                live -= 1;
            }
        }
    }
}

#[test]
fn a_round_trip_copied_and_where_it_lies() {
    let engine = Engine::start();
    let mut server = engine.attach();
    let mut client = engine.attach();
    let listener = server.listen(service(), 10).unwrap();
    assert_eq!(server.local(listener), Some(service()));
    let near = client.connect(service()).unwrap();
    let (far, peer) = until(&mut server, |server| server.accept(listener));
    assert_eq!(Some(peer), client.local(near));
    until(&mut client, |client| {
        client.readiness(near).writable.then_some(())
    });
    client.set(near, SocketOption::NoDelay(true)).unwrap();

    assert_eq!(client.write(near, b"copied").unwrap(), 6);
    let mut bytes = [0; 4];
    let read = until(&mut server, |server| server.read(far, &mut bytes).unwrap());
    assert_eq!((read, &bytes), (4, b"copi"));
    assert_eq!(server.read(far, &mut bytes).unwrap(), Some(2));
    assert_eq!(server.read(far, &mut bytes).unwrap(), None);

    let mut buffer = server.buffer().unwrap();
    buffer.bytes_mut()[..5].copy_from_slice(b"lying");
    server.send(far, buffer, 5).unwrap();
    let received = until(&mut client, |client| client.receive(near).unwrap());
    assert_eq!(received.bytes(), b"lying");
    client.release(received);

    server.shutdown(far).unwrap();
    until(&mut client, |client| {
        client.readiness(near).ended.then_some(())
    });
    assert_eq!(client.read(near, &mut bytes).unwrap(), Some(0));
    client.close(near).unwrap();
    until(&mut server, |server| {
        server.readiness(far).closed.then_some(())
    });
    assert_eq!(server.read(far, &mut bytes).unwrap(), Some(0));
    assert!(server.write(far, b"x").is_err());
    server.close(far).unwrap();
    assert!(matches!(
        server.write(far, b"x"),
        Err(ClientError::Socket(SocketError::NotOpen))
    ));
}

#[test]
fn a_datagram_that_was_refused_comes_back_with_the_error() {
    let engine = Engine::start();
    let mut client = engine.attach();
    let socket = client.bind_udp("10.0.0.1:5".parse().unwrap()).unwrap();
    for peer in ["10.0.0.2", "fd00::2"] {
        let peer = SocketAddr::new(peer.parse().unwrap(), TOO_BIG_PORT);
        client.send_to(socket, peer, b"too much").unwrap();
        let refusal = until(&mut client, |client| next_refusal(client, socket));
        assert_eq!((refusal.peer, refusal.error), (peer, TOO_BIG));
        assert_eq!(refusal.payload, b"too much");
    }
    client
        .send_to(
            socket,
            SocketAddr::new([10, 0, 0, 2].into(), TOO_BIG_PORT),
            b"",
        )
        .unwrap();
    let refusal = until(&mut client, |client| next_refusal(client, socket));
    assert!(refusal.payload.is_empty());
}

/// The SYN already announces it.
#[test]
fn a_connect_brings_its_receive_buffer() {
    let engine = Engine::start();
    let mut client = engine.attach();
    client.listen(service(), 2).unwrap();
    for bytes in [None, Some(5000)] {
        let opening = client.begin_connect(0, service(), bytes).unwrap();
        let (answered, session) = until(&mut client, Client::next_opened);
        assert_eq!(answered, opening);
        assert!(session.is_ok());
    }
    let (stack, ..) = engine.end();
    assert_eq!(stack.options, [SocketOption::ReceiveBytes(5000)]);
}

#[test]
fn errors_come_through() {
    let engine = Engine::start();
    let mut client = engine.attach();
    let refused = client.connect(service()).unwrap();
    until(&mut client, |client| {
        client.readiness(refused).closed.then_some(())
    });
    let error = client.read(refused, &mut [0; 4]).unwrap_err();
    assert!(matches!(error, ClientError::Socket(SocketError::Refused)));
    client.listen(service(), 1).unwrap();
    let error = client.listen(service(), 1).unwrap_err();
    assert!(error.to_string().contains("choose another port"), "{error}");
    assert_eq!(attached(&engine), "1");
    let second = Control::start(&engine.path(), Admission::default()).unwrap_err();
    assert!(matches!(second, SockError::InUse { .. }), "{second}");
    let none = Client::attach(Path::new("/nonexistent"), &ClientOptions::default());
    let none = none.unwrap_err().to_string();
    assert!(none.contains("sidecore net up"), "{none}");
}

#[test]
fn megabytes_through_few_chunks_both_ways() {
    let engine = Engine::start();
    let server = engine.attach_with(3);
    let mut client = engine.attach_with(2);
    let thread = echo(server, 1);
    let session = connect(&mut client);
    let bytes: Vec<u8> = (0..8 << 20u32)
        .map(|at: u32| ((at * 31) >> 7) as u8)
        .collect();
    let (mut sent, mut received) = (0, Vec::new());
    let mut piece = vec![0; 100_000];
    while received.len() < bytes.len() {
        // In flight at most two buffers and their chunks: otherwise an echo would block itself.
        let end = bytes.len().min(received.len() + 2 * BUFFER_BYTES).max(sent);
        sent += client.write(session, &bytes[sent..end]).unwrap();
        while let Some(count) = client.read(session, &mut piece).unwrap() {
            assert!(count > 0);
            received.extend_from_slice(&piece[..count]);
        }
        client.poll(Duration::from_millis(50)).unwrap();
    }
    assert!(received == bytes);
    client.close(session).unwrap();
    thread.join().unwrap();
}

#[test]
fn many_sessions_and_numbers_used_again() {
    let engine = Engine::start();
    let server = engine.attach();
    let thread = echo(server, 600);
    let mut client = engine.attach();
    for round in 0..3u32 {
        let sessions: Vec<Socket> = (0..200).map(|_| connect(&mut client)).collect();
        for (number, &session) in sessions.iter().enumerate() {
            let said = (round * 1000 + number as u32).to_le_bytes();
            until(&mut client, |client| {
                (client.write(session, &said).unwrap() > 0).then_some(())
            });
        }
        for (number, &session) in sessions.iter().enumerate() {
            let mut heard = [0; 4];
            let count = until(&mut client, |client| {
                client.read(session, &mut heard).unwrap()
            });
            assert_eq!(count, 4);
            assert_eq!(u32::from_le_bytes(heard), round * 1000 + number as u32);
            client.close(session).unwrap();
        }
    }
    thread.join().unwrap();
    drop(client);
    until_all_have_gone(&engine);
    let (stack, violations, _) = engine.end();
    assert_eq!((stack.sessions(), violations), (0, 0));
}

#[test]
fn datagrams_keep_their_bounds_and_their_senders() {
    let engine = Engine::start();
    let mut one = engine.attach();
    let mut other = engine.attach();
    let (here, there): (SocketAddr, SocketAddr) = (
        "192.0.2.1:7".parse().unwrap(),
        "[2001:db8::1]:9".parse().unwrap(),
    );
    let near = one.bind_udp(here).unwrap();
    let far = other.bind_udp(there).unwrap();
    const CHUNK: usize = 16 << 10;
    for length in [0, 1, 1472, CHUNK, CHUNK + 1, 2 * CHUNK, 40_000, 65_527] {
        let bytes: Vec<u8> = (0..length).map(|at| ((at * 31) >> 7) as u8).collect();
        assert!(one.send_to(near, there, &bytes).unwrap());
        let (received, from) = until(&mut other, |other| other.receive_from(far));
        assert!(received.bytes() == bytes && from == here, "{length} bytes");
        assert_eq!(received.marks(), Some(MARKS));
        other.release(received);
    }
    for (to, long) in [(there, 65_528), (here, 65_508)] {
        assert!(one.send_to(near, to, &vec![0; long]).is_err(), "{long}");
    }
}

/// Few chunks, most of them with unread bytes; many datagrams in flight.
#[test]
fn long_datagrams_wait_for_chunks_and_lose_nothing() {
    let engine = Engine::start();
    for chunks in [4, 5, 16] {
        let (mut one, mut other) = (engine.attach_with(chunks), engine.attach_with(chunks));
        let listener = other.listen(service(), 10).unwrap();
        let session = one.connect(service()).unwrap();
        until(&mut other, |other| other.accept(listener));
        until(&mut one, |one| {
            one.readiness(session).writable.then_some(())
        });
        until(&mut one, |one| {
            one.write(session, &[7; 40_000]).unwrap();
            other.poll(Duration::from_millis(1)).unwrap();
            (one.sending(session) >= chunks.min(3)).then_some(())
        });
        // Its chunks to send from are returned; data that the other side holds stays unread.
        one.abort(session).unwrap();
        let (here, there): (SocketAddr, SocketAddr) = (
            "192.0.2.1:7".parse().unwrap(),
            "192.0.2.1:9".parse().unwrap(),
        );
        let near = one.bind_udp(here).unwrap();
        let far = other.bind_udp(there).unwrap();
        let datagram = |number: usize| vec![number as u8; 1 + number * 7919 % 65_507];
        let (mut sent, mut received) = (0, 0);
        let begun = Instant::now();
        while received < 60 {
            assert!(begun.elapsed() < PATIENCE, "{chunks} chunks: {received}");
            if sent < 60 && one.send_to(near, there, &datagram(sent)).unwrap() {
                sent += 1;
            }
            one.poll(Duration::from_millis(1)).unwrap();
            other.poll(Duration::from_millis(1)).unwrap();
            while let Some((piece, from)) = other.receive_from(far) {
                assert!(piece.bytes() == datagram(received) && from == here);
                other.release(piece);
                received += 1;
            }
        }
        other.close(far).unwrap();
        one.close(near).unwrap();
    }
    let (_, violations, _) = engine.end();
    assert_eq!(violations, 0);
}

/// The bytes of a stalled session, in their order.
fn pattern(number: usize, at: usize) -> u8 {
    (number * 7 + at / 3 + at / 1021) as u8
}

#[test]
fn peers_that_take_nothing_leave_chunks_to_others_and_lose_nothing() {
    let engine = Engine::start();
    // As many chunks as ten of the stalled sessions would keep.
    let (mut sender, mut reader) = (engine.attach_with(40), engine.attach_with(64));
    let listener = reader.listen(service(), 1000).unwrap();
    let open = |sender: &mut Client, reader: &mut Client| {
        let near = connect(sender);
        (near, until(reader, |reader| reader.accept(listener)).0)
    };
    let mut stalled = Vec::new();
    for number in 0..120 {
        let (near, far) = open(&mut sender, &mut reader);
        let mut sent = 0;
        // As much as it takes: then it is closed, or shut down, with bytes in private memory.
        until(&mut sender, |sender| {
            let bytes: Vec<u8> = (sent..sent + 50_000)
                .map(|at| pattern(number, at))
                .collect();
            sent += sender.write(near, &bytes).unwrap();
            (sent > BUFFER_BYTES).then_some(())
        });
        match number % 3 {
            0 => sender.close(near).unwrap(),
            1 => sender.shutdown(near).unwrap(),
            _ => {}
        }
        stalled.push((near, far, sent));
    }
    // Another one gets through, by looks at the events only: nothing here waits for a time.
    let (near, far) = open(&mut sender, &mut reader);
    let (mut sent, mut received) = (0, 0);
    let mut target = vec![0; 100_000];
    until(&mut sender, |sender| {
        sent += sender.write(near, &[7; 10_000]).unwrap();
        received += reader.read(far, &mut target).unwrap().unwrap_or(0);
        reader.poll(Duration::from_millis(1)).unwrap();
        (received > 1 << 20).then_some(())
    });
    for (number, (near, far, bytes)) in stalled.into_iter().enumerate() {
        let mut heard = Vec::new();
        until(&mut reader, |reader| {
            sender.poll(Duration::ZERO).unwrap();
            while let Some(count) = reader.read(far, &mut target).unwrap() {
                heard.extend_from_slice(&target[..count]);
                if count == 0 || heard.len() >= bytes {
                    break;
                }
            }
            (heard.len() >= bytes).then_some(())
        });
        assert_eq!(heard.len(), bytes);
        let is_same = |(at, &byte): (usize, &u8)| byte == pattern(number, at);
        assert!(heard.iter().enumerate().all(is_same), "session {number}");
        if number % 3 < 2 {
            until(&mut reader, |reader| {
                sender.poll(Duration::ZERO).unwrap();
                reader.readiness(far).ended.then_some(())
            });
        } else {
            assert_eq!(sender.sending(near), 0);
        }
    }
    let (_, violations, _) = engine.end();
    assert_eq!(violations, 0);
}

const PATIENCE: Duration = Duration::from_secs(120);

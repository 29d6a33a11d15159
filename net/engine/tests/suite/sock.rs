//! Sockets for other processes, over a stack without a network.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // Helper functions of tests; seeds.

use crate::c;
use crate::loopback;

use c::{LANGUAGES, compile};
use loopback::{BUFFER_BYTES, Loopback};
use sidecore_net::sock::client::{Client, ClientError, ClientOptions, Socket};
use sidecore_net::sock::control::{Admission, Control, SockError};
use sidecore_net::sock::layout::VERSION;
use sidecore_net::sock::server::{ClientStatus, Server};
use sidecore_net::sock::{SocketError, SocketOption};
use sidecore_sys::{SharedMap, Sharing, local_socket};
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

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

#[test]
fn who_ends_a_socket_within_a_datagram_or_goes_on_for_ever_is_cut_off() {
    let local = u64::from_le_bytes([0, 0, 0xff, 0xff, 192, 0, 2, 1]);
    let none = u64::from(u32::MAX);
    let cases: [(&str, &[u64], u64); 4] = [
        ("whole", &[1, 1, 0, 7], 0),
        ("closed within", &[1, 1, 7], 1),
        ("aborted within", &[1, 1, 8], 0),
        ("five parts", &[1, 1, 1, 1, 0], 1),
    ];
    for (name, steps, expected) in cases {
        let engine = Engine::start();
        let mut raw = attach_raw(&engine.path());
        let mut ask = |kind: u64, more: u64, chunk: u64| {
            let memory = raw.segment.slice();
            let at = 4096 + raw.requests as usize * 64;
            raw.requests += 1;
            // The process's first socket has the number 0.
            let port = 99 | more << 32;
            let words = [kind, 5 << 32, chunk | none << 32, 0, local, port, 0];
            for (index, word) in words.into_iter().chain([raw.requests]).enumerate() {
                let place: &AtomicU64 = memory.overlay(at + 8 * index).unwrap();
                place.store(word, Ordering::Release);
            }
        };
        ask(3, 0, none);
        for (chunk, &step) in steps.iter().enumerate() {
            match step {
                0 | 1 => ask(4, step, chunk as u64),
                kind => ask(kind, 0, none),
            }
        }
        // A later request is answered later.
        let mut other = engine.attach();
        other.bind_udp("192.0.2.1:7".parse().unwrap()).unwrap();
        let begun = Instant::now();
        while expected > 0 && !local_socket::is_hung_up(raw.socket.as_fd()) {
            assert!(begun.elapsed() < PATIENCE, "{name}");
            std::thread::sleep(Duration::from_millis(1));
        }
        let (_, violations, _) = engine.end();
        assert_eq!(violations, expected, "{name}");
    }
}

const CHILD: &str = "SIDECORE_TEST_NET_SOCKET";

/// Not a test of its own: a child that opens sessions and then waits to be killed.
#[test]
fn child() {
    let Ok(path) = std::env::var(CHILD) else {
        return;
    };
    let mut client = Client::attach(Path::new(&path), &ClientOptions::default()).unwrap();
    let sessions: Vec<Socket> = (0..20).map(|_| connect(&mut client)).collect();
    for session in sessions {
        assert_eq!(client.write(session, b"alive").unwrap(), 5);
    }
    std::thread::sleep(PATIENCE);
}

#[test]
fn who_dies_has_its_sessions_reset_and_nothing_else() {
    let engine = Engine::start();
    let mut server = engine.attach();
    let mut other = engine.attach();
    let listener = server.listen(service(), 100).unwrap();
    let mine = other.connect(service()).unwrap();
    let (kept, _) = until(&mut server, |server| server.accept(listener));
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["sock::child", "--exact", "--nocapture"])
        .env(CHILD, engine.path())
        .spawn()
        .unwrap();
    let mut sessions = Vec::new();
    while sessions.len() < 20 {
        sessions.push(until(&mut server, |server| server.accept(listener)).0);
    }
    for &session in &sessions {
        let mut said = [0; 8];
        let count = until(&mut server, |server| {
            server.read(session, &mut said).unwrap()
        });
        assert_eq!(&said[..count], b"alive");
    }
    child.kill().unwrap();
    child.wait().unwrap();
    for &session in &sessions {
        until(&mut server, |server| {
            server.readiness(session).closed.then_some(())
        });
        let error = server.read(session, &mut [0; 8]).unwrap_err();
        assert!(matches!(error, ClientError::Socket(SocketError::Reset)));
    }
    until(&mut other, |other| {
        other.readiness(mine).writable.then_some(())
    });
    assert_eq!(other.write(mine, b"still here").unwrap(), 10);
    let mut said = [0; 16];
    let count = until(&mut server, |server| server.read(kept, &mut said).unwrap());
    assert_eq!(&said[..count], b"still here");
}

#[test]
fn a_client_notices_that_its_engine_is_gone() {
    let engine = Engine::start();
    let mut client = engine.attach();
    client.listen(service(), 1).unwrap();
    engine.end();
    let error = loop {
        match client.poll(PATIENCE) {
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert!(matches!(error, ClientError::Lost));
}

/// Random numbers of the fuzz test; the seed is printed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        sidecore_random::split_mix(&mut self.0)
    }
}

/// An attachment that writes arbitrary words, by the byte map in src/sock/README.md.
struct Raw {
    socket: std::os::fd::OwnedFd,
    segment: SharedMap,
    requests: u64,
}

fn attach_raw(path: &Path) -> Raw {
    let socket = local_socket::connect(path).unwrap();
    let mut question = b"SIDENET1".to_vec();
    question.extend([1u32, VERSION, 8].map(u32::to_le_bytes).concat());
    question.extend([0; 12]);
    local_socket::send(socket.as_fd(), &question, &[]).unwrap();
    local_socket::poll(&[socket.as_fd()], &mut Vec::new(), PATIENCE).unwrap();
    let mut answer = [0; 1024];
    let received = local_socket::receive(socket.as_fd(), &mut answer).unwrap();
    let local_socket::Received::Message(32, files) = received else {
        panic!("{received:?}");
    };
    let bytes = u64::from_le_bytes(answer[24..32].try_into().unwrap()) as usize;
    let segment = files.into_iter().next().unwrap();
    Raw {
        socket,
        segment: SharedMap::open(segment, bytes, Sharing::ReadWrite).unwrap(),
        requests: 0,
    }
}

fn write_rubbish(raw: &mut Raw, random: &mut Random) {
    let memory = raw.segment.slice();
    let store = |at: usize, value: u64| {
        let word: &AtomicU64 = memory.overlay(at).unwrap();
        word.store(value, Ordering::Release);
    };
    match random.next() % 64 {
        // Anything anywhere.
        0 => store(
            random.next() as usize % (memory.len() / 8) * 8,
            random.next(),
        ),
        // A possibly invalid position of the events' reader.
        1 => store(512, random.next() % 40),
        // A possibly valid request: listeners and sessions are created, chunks are exchanged.
        _ => {
            let at = 4096 + raw.requests as usize % 2048 * 64;
            let small = |random: &mut Random, rare: u64| match random.next() % 64 {
                0 => random.next() & 0xffff_ffff,
                _ => random.next() % rare,
            };
            let two = |low: u64, high: u64| (low & 0xffff_ffff) | (high << 32);
            // Kinds 1 to 10, and sometimes an invalid one.
            let kind = 1 + small(random, 10);
            let no_chunk = u64::from(u32::MAX);
            let give = match random.next() % 16 {
                0 => random.next() % 8,
                1 => (random.next() % 8) | (1 << 31),
                _ => no_chunk,
            };
            store(at, two(kind, 7));
            store(at + 8, two(small(random, 12), small(random, 16_385)));
            store(at + 16, two(small(random, 8), give));
            // 192.0.2.1 as an IPv4-mapped address, port 80: the others' service; or another port.
            store(at + 24, 0);
            store(
                at + 32,
                u64::from_le_bytes([0, 0, 0xff, 0xff, 192, 0, 2, 1]),
            );
            let port = if random.next().is_multiple_of(2) {
                80
            } else {
                81
            };
            store(at + 40, two(port, small(random, 4)));
            raw.requests += 1;
            store(at + 56, raw.requests);
        }
    }
}

#[test]
fn rubbish_hurts_only_its_writer() {
    let seed = 0x0bad_5eed;
    println!("seed {seed:#x}");
    let engine = Engine::start();
    let (mut server, mut client) = (engine.attach(), engine.attach());
    let listener = server.listen(service(), 1000).unwrap();
    let near = connect(&mut client);
    let (far, _) = until(&mut server, |server| server.accept(listener));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 1..=2 {
            let (stop, path) = (&stop, engine.path());
            scope.spawn(move || {
                let mut random = Random(seed * thread);
                let begun = Instant::now();
                while !stop.load(Ordering::Relaxed) && begun.elapsed() < PATIENCE {
                    let mut raw = attach_raw(&path);
                    for _ in 0..random.next() % 3000 {
                        write_rubbish(&mut raw, &mut random);
                    }
                }
            });
        }
        let begun = Instant::now();
        let mut rounds = 0u32;
        let noticed = |what: &AtomicU64| what.load(Ordering::Relaxed);
        let is_enough =
            || noticed(&engine.noticed.violations) > 100 && noticed(&engine.noticed.aborted) > 100;
        while rounds < 2000 || !is_enough() {
            assert!(begun.elapsed() < PATIENCE, "the rubbish is not noticed");
            let said = rounds.to_le_bytes();
            until(&mut client, |client| {
                (client.write(near, &said).unwrap() > 0).then_some(())
            });
            let mut heard = [0; 4];
            let count = until(&mut server, |server| {
                // It may connect to the others, too.
                while let Some((session, _)) = server.accept(listener) {
                    server.abort(session).unwrap();
                }
                server.read(far, &mut heard).unwrap()
            });
            assert_eq!((count, heard), (4, said));
            rounds += 1;
        }
        stop.store(true, Ordering::Relaxed);
    });
    drop((client, server));
    until_all_have_gone(&engine);
    let (stack, violations, left) = engine.end();
    assert!(violations > 100 && stack.aborted > 100);
    assert_eq!((stack.sessions(), left.len()), (0, 0));
}

#[test]
fn messages_that_make_no_sense_end_their_connection_only() {
    let engine = Engine::start();
    let mut good = engine.attach();
    let seed = 7;
    println!("seed {seed}");
    let mut random = Random(seed);
    for round in 0..100 {
        let socket = local_socket::connect(&engine.path()).unwrap();
        let mut message = b"SIDENET1".to_vec();
        message.extend([1u32, VERSION, 8].map(u32::to_le_bytes).concat());
        message.extend([0; 12]);
        match round % 4 {
            0 => message[random.next() as usize % 16] ^= 0x80,
            1 => message.truncate(1 + random.next() as usize % 31),
            2 => message.extend([0; 100]),
            _ => message[16..20].copy_from_slice(&u32::MAX.to_le_bytes()),
        }
        local_socket::send(socket.as_fd(), &message, &[]).unwrap();
        local_socket::poll(&[socket.as_fd()], &mut Vec::new(), PATIENCE).unwrap();
        let mut answer = [0; 1024];
        match local_socket::receive(socket.as_fd(), &mut answer).unwrap() {
            local_socket::Received::Message(_, files) => {
                assert!(files.is_empty() && answer[8] == 255, "round {round}");
            }
            local_socket::Received::End => assert_eq!(round % 4, 2, "a reason is given"),
            local_socket::Received::Nothing => panic!("no answer"),
        }
    }
    good.listen(service(), 1).unwrap();
}

#[test]
fn a_c_client_has_sockets_and_notices_the_end() {
    for language in LANGUAGES {
        let engine = Engine::start();
        let root = env!("CARGO_MANIFEST_DIR");
        let program = compile(root, "sidecore_net_h.c", language, engine.folder.path());
        let mut child = Command::new(program)
            .arg(engine.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        let (_, violations, _) = engine.end();
        said.read_line(&mut line).unwrap();
        assert!(line.contains("the engine is gone"), "{line}");
        assert!(child.wait().unwrap().success());
        assert_eq!(violations, 0);
    }
}

const PATIENCE: Duration = Duration::from_secs(120);

//! Sockets whose process or engine ends, and processes that break the protocol.

use super::*;

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
        .args(["sock::ends::child", "--exact", "--nocapture"])
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

/// A number was cut to 16 bits once, so that such a request got the port of its lower bits.
#[test]
fn a_local_port_of_more_than_16_bits_is_refused() {
    let engine = Engine::start();
    let raw = attach_raw(&engine.path());
    let memory = raw.segment.slice();
    let local = u64::from_le_bytes([0, 0, 0xff, 0xff, 192, 0, 2, 1]);
    let none = u64::from(u32::MAX);
    let (connect, port) = (2 | 7 << 32, 80 | (0x1_0000_u64 + 1234) << 32);
    let words = [connect, 0, none | none << 32, 0, local, port, 0, 1];
    for (index, word) in words.into_iter().enumerate() {
        let place: &AtomicU64 = memory.overlay(4096 + 8 * index).unwrap();
        place.store(word, Ordering::Release);
    }
    let event = |index: usize| -> u64 {
        let place: &AtomicU64 = memory.overlay(4096 + 2048 * 64 + 8 * index).unwrap();
        place.load(Ordering::Acquire)
    };
    let begun = Instant::now();
    while event(7) != 1 {
        assert!(begun.elapsed() < PATIENCE, "no answer");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(event(0), 1 | 7 << 32, "opened, with the tag");
    assert_eq!(event(5) >> 32, 11, "invalid");
    let (_, violations, _) = engine.end();
    assert_eq!(violations, 0);
}

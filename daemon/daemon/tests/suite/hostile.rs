//! Clients that break every rule: the daemon lives on, and other clients' results stay right.
//!
//! The hostile side is written against the byte map of docs/daemon.md, not against the library.

use rustix::fs::FallocateFlags;
use sidecore_daemon::client::{Args, Client, ClientOptions};
use sidecore_daemon::served::Registry;
use sidecore_daemon::{Allow, Daemon, DaemonOptions, PROTOCOL_VERSION};
use sidecore_sys::local_socket::{self, Received};
use sidecore_sys::{SharedMap, Sharing};
use std::cell::Cell;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const ENGINES: usize = 2;

fn options(folder: &Path) -> DaemonOptions {
    DaemonOptions {
        socket: folder.join("daemon.sock"),
        engines: ENGINES,
        oversubscribe: true,
        registry: Registry::with_spin_us(),
        grace: Duration::from_micros(300),
        ..DaemonOptions::default()
    }
}

/// Options of a client that does not take a busy machine for a dead daemon.
fn patient() -> ClientOptions {
    ClientOptions {
        silence_max: PATIENCE,
        held_up_max: PATIENCE,
        ..ClientOptions::default()
    }
}

/// Random numbers of which rubbish is made; the seed is printed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        sidecore_random::split_mix(&mut self.0)
    }
}

/// Version of the protocol.
const VERSION: u32 = PROTOCOL_VERSION;

struct Raw {
    socket: OwnedFd,
    segment: SharedMap,
    activity: OwnedFd,
    /// Announces finished jobs; no test reads it.
    #[expect(dead_code)]
    bell: OwnedFd,
    bytes: usize,
    /// Entries that it wrote to its ring of jobs.
    jobs: Cell<u64>,
}

fn question(kind: u32, version: u32, arena_bytes: u64) -> Vec<u8> {
    let mut bytes = b"SIDECOR1".to_vec();
    bytes.extend(kind.to_le_bytes());
    bytes.extend(version.to_le_bytes());
    bytes.extend(arena_bytes.to_le_bytes());
    bytes.extend([0; 8]);
    bytes
}

/// Sends a message and waits for the answer; `None` where the daemon hangs up.
fn ask(socket: &OwnedFd, message: &[u8]) -> Option<(Vec<u8>, Vec<OwnedFd>)> {
    local_socket::send(socket.as_fd(), message, &[]).ok()?;
    let mut answer = vec![0; 1 << 17];
    loop {
        local_socket::poll(&[socket.as_fd()], &mut Vec::new(), Duration::from_secs(30)).unwrap();
        match local_socket::receive(socket.as_fd(), &mut answer).ok()? {
            Received::Message(length, files) => return Some((answer[..length].to_vec(), files)),
            Received::End => return None,
            Received::Nothing => {}
        }
    }
}

fn attach(path: &Path) -> Raw {
    let socket = local_socket::connect(path).unwrap();
    let (answer, files) = ask(&socket, &question(1, VERSION, 1 << 16)).unwrap();
    assert_eq!(answer[8], 1, "{}", String::from_utf8_lossy(&answer));
    let bytes = u64::from_le_bytes(answer[24..32].try_into().unwrap()) as usize;
    let [segment, activity, bell] = <[OwnedFd; 3]>::try_from(files).unwrap();
    let segment = SharedMap::open(segment, bytes, Sharing::ReadWrite).unwrap();
    Raw {
        socket,
        segment,
        activity,
        bell,
        bytes,
        jobs: Cell::new(0),
    }
}

/// Writes random bytes into a segment: everywhere, and with a bias to words that engines look at.
fn write_rubbish(raw: &Raw, random: &mut Random) {
    let memory = raw.segment.slice();
    let words = raw.bytes / 8;
    match random.next() % 8 {
        // Anything anywhere.
        0 => {
            let place = (random.next() as usize % words) * 8;
            memory
                .overlay::<AtomicU64>(place)
                .unwrap()
                .store(random.next(), Ordering::Relaxed);
        }
        // A hole in the file: pages that were there are missing.
        1 if random.next().is_multiple_of(64) => {
            let pages = raw.bytes / 4096;
            let offset = (random.next() as usize % pages * 4096) as u64;
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            rustix::fs::fallocate(raw.segment.file(), flags, offset, 4096).unwrap();
        }
        // A job that is nearly right, and its entry in the ring; or completions of one's own.
        2 | 3 => {
            let word = |offset: usize, value: u64| {
                let place = memory.overlay::<AtomicU64>(8192 + offset).unwrap();
                place.store(value, Ordering::Relaxed);
            };
            let place = random.next() % 1200;
            let slot = 16_512 + (place as usize % 1024) * 128;
            word(slot, random.next() % 4);
            let counts = (random.next() % 20) << 16 | (random.next() % 4) << 24;
            word(
                slot + 8,
                (random.next() % 7) | counts | ((random.next() % 9) << 32),
            );
            for index in 0..6 {
                word(slot + 16 + index * 8, random.next() % 50);
            }
            for index in 0..8 {
                word(slot + 64 + index * 8, random.next() % (1 << 17));
            }
            word(0, (random.next() % 3) | (random.next() % 3) << 32);
            // Most of them in the order in which engines look.
            let position = match random.next() % 8 {
                0 => random.next(),
                _ => raw.jobs.replace(raw.jobs.get() + 1),
            };
            let entry = (position + 1) << 32 | place;
            word(128 + (position as usize % 1024) * 8, entry);
            word(8320 + (random.next() as usize % 1024) * 8, random.next());
        }
        // A packet that is nearly right, and its bell.
        _ => {
            let lines = 4096 + (random.next() as usize % ENGINES) * 384;
            let word = |offset: usize, value: u64| {
                let place = memory.overlay::<AtomicU64>(lines + offset).unwrap();
                place.store(value, Ordering::Relaxed);
            };
            let edge = |random: &mut Random| match random.next() % 6 {
                0 => 0,
                1 => 1 << 16,
                2 => (1 << 16) - 1,
                3 => u64::MAX - random.next() % 3,
                4 => random.next() % (1 << 16),
                _ => random.next(),
            };
            for index in 0..6 {
                // Short spins, so that the test is not one long one.
                word(16 + index * 8, random.next() % 50);
            }
            for index in 0..8 {
                word(64 + index * 8, edge(random));
            }
            word(256, (random.next() % 3) | ((random.next() % 3) << 32));
            // Last the bell: kernel, inputs, outputs, words.
            let counts = (random.next() % 6) << 48 | (random.next() % 4) << 52;
            let kernel = (random.next() % 7) << 32 | (random.next() % 9) << 56;
            word(0, (random.next() & 0xffff_ffff) | kernel | counts);
        }
    }
}

/// Tells the writers to end when it goes.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn rubbish_hurts_only_its_writer() {
    let seed = 0xbad_5eed;
    println!("seed {seed:#x}");
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(options(folder.path())).unwrap();
    let client = Client::attach_with(daemon.socket(), patient()).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 1..=2 {
            let (stop, path) = (&stop, daemon.socket());
            scope.spawn(move || {
                let mut random = Random(seed * thread);
                let mut raw = attach(path);
                while !stop.load(Ordering::Relaxed) {
                    for _ in 0..2_000 {
                        write_rubbish(&raw, &mut random);
                    }
                    if random.next().is_multiple_of(8) {
                        // Disconnected in the middle of it, and attached again.
                        raw = attach(path);
                    }
                }
            });
        }
        let (echo, hash) = (
            client.kernel("echo").unwrap(),
            client.kernel("xxh3").unwrap(),
        );
        let (mut input, mut output) = (client.buffer(40_000), client.buffer(40_000));
        // Also where an assertion below fails, so that the threads end.
        let _end = End(&stop);
        // 300 rounds may be over before the machine has let the writers run at all.
        let no_rubbish_yet = || {
            let engines = client.status().unwrap().engines;
            engines.iter().all(|engine| engine.failures == 0)
        };
        let begun = Instant::now();
        for round in 0u32.. {
            if round >= 300 && round % 100 == 0 {
                if !no_rubbish_yet() {
                    break;
                }
                assert!(begun.elapsed() < PATIENCE, "no rubbish came through");
            }
            input.bytes_mut().fill(round as u8);
            let args = Args::new().input(&input).output(&mut output);
            client.call(echo, args).unwrap();
            assert!(output.bytes() == input.bytes(), "round {round}");
            let args = Args::new().words(&[round.into()]).input(&input);
            let reply = client.call(hash, args).unwrap();
            let expected = xxhash_rust::xxh3::xxh3_64_with_seed(input.bytes(), round.into());
            assert_eq!(reply.words[0], expected, "round {round}");
        }
    });
    let counters = client.counters();
    assert!(counters.on_engines > 300, "{counters:?}");
    let status = client.status().unwrap();
    let failures: u64 = status.engines.iter().map(|engine| engine.failures).sum();
    assert!(failures > 0, "no rubbish came through: {status:?}");
}

#[test]
fn messages_that_make_no_sense_end_their_connection_only() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(options(folder.path())).unwrap();
    let good = Client::attach_with(daemon.socket(), patient()).unwrap();
    let seed = 7;
    println!("seed {seed}");
    let mut random = Random(seed);
    for round in 0..200 {
        let socket = local_socket::connect(daemon.socket()).unwrap();
        let mut message = question(1, VERSION, 4096);
        match round % 4 {
            0 => message[random.next() as usize % 16] ^= 1 << (random.next() % 8),
            1 => message.truncate(random.next() as usize % 32),
            2 => message.extend([0; 100]),
            _ => message[16..24].copy_from_slice(&u64::MAX.to_le_bytes()),
        }
        if message.is_empty() {
            continue;
        }
        match ask(&socket, &message) {
            // The bit may have made a question for the status of it.
            Some((answer, files)) => assert!(answer[8] != 1 && files.is_empty(), "round {round}"),
            None => assert_ne!(round % 4, 3, "a reason is given"),
        }
    }
    let (text, _) = ask(
        &local_socket::connect(daemon.socket()).unwrap(),
        &question(1, 9, 4096),
    )
    .unwrap();
    assert!(String::from_utf8_lossy(&text).contains("version 9"));
    good.call(good.kernel("empty").unwrap(), Args::new())
        .unwrap();
    assert_eq!(good.counters().on_engines, 1);
    assert_eq!(good.status().unwrap().clients.len(), 1);
}

#[test]
fn what_is_handed_out_cannot_be_cut_and_the_activity_page_not_written() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(options(folder.path())).unwrap();
    let raw = attach(daemon.socket());
    assert!(rustix::fs::ftruncate(raw.segment.file(), 0).is_err());
    let bytes = rustix::fs::fstat(&raw.activity).unwrap().st_size as usize;
    let activity = raw.activity.try_clone().unwrap();
    assert!(SharedMap::open(activity, bytes, Sharing::ReadWrite).is_err());
    assert!(rustix::io::write(&raw.activity, b"x").is_err());
    // One attachment a connection.
    let (answer, _) = ask(&raw.socket, &question(1, VERSION, 4096)).unwrap();
    assert_eq!(answer[8], 255);
}

const SOCKET: &str = "SIDECORE_TEST_SOCKET";

/// Not a test of its own: a child of another user, which prints the result of attaching.
#[test]
fn child() {
    if let Ok(socket) = std::env::var(SOCKET) {
        match Client::attach(socket) {
            Ok(_) => println!("attached"),
            Err(error) => println!("refused: {error}"),
        }
    }
}

#[test]
fn other_users_attach_only_where_they_are_allowed() {
    if local_socket::effective_uid() != 0 {
        // Only root can change its user; `identity.rs` of `sidecore-attach` tests the rule itself.
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let everyone = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(folder.path(), everyone).unwrap();
    // The test's program may lie where other users cannot go.
    let program = folder.path().join("child");
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let daemon = Daemon::start(DaemonOptions {
        allow: Allow {
            uids: vec![54_321],
            gids: vec![777],
        },
        ..options(folder.path())
    })
    .unwrap();
    for (uid, gid, groups, allowed) in [
        (54_321, 1, "", true),
        (12_345, 777, "", true),
        (12_345, 1, "", false),
        (12_345, 1, "1,777", true),
        (12_345, 1, "1,776", false),
        (0, 0, "", true),
    ] {
        // Its supplementary groups: those given, or none.
        let groups = match groups {
            "" => "--clear-groups".to_owned(),
            groups => format!("--groups={groups}"),
        };
        let output = Command::new("setpriv")
            .args([format!("--reuid={uid}"), format!("--regid={gid}"), groups])
            .arg(&program)
            .args(["hostile::child", "--exact", "--nocapture"])
            .env(SOCKET, daemon.socket())
            .current_dir("/")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!(
            said.contains("attached"),
            allowed,
            "user {uid}, group {gid}: {said}"
        );
        assert_eq!(said.contains("--allow-uid 12345"), !allowed, "{said}");
    }
}

/// So long a thing that must happen may take.
const PATIENCE: Duration = Duration::from_secs(120);

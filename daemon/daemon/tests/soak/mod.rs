//! Kills daemons and clients under load and looks at every result: the body of a test (a few
//! rounds) and of the example `daemon_soak` (as many as one likes).
//!
//! Processes: a daemon, two clients that are killed, and this one, whose own client never is. All
//! clients check every reply and every byte that they get. They look at outputs again some calls
//! later, when a stopped daemon may have continued. Each round kills a client, kills the daemon, or
//! stops the daemon for longer than clients wait. Processes are started anew by the caller's
//! binary, with a role and a socket as arguments.

use sidecore_daemon::client::{Args, Buffer, Client, ClientOptions, KernelId, Piece};
use sidecore_daemon::{Daemon, DaemonOptions};
use std::collections::VecDeque;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Counts of a soak run.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) daemons_killed: u32,
    pub(crate) daemons_stopped: u32,
    pub(crate) clients_killed: u32,
    /// Calls of the client that was not killed.
    pub(crate) on_engines: u64,
    pub(crate) on_host: u64,
    pub(crate) given_up: u64,
    pub(crate) attached: u64,
}

/// Plays one of the roles of a child process.
pub(crate) fn play(role: &str, socket: &Path) {
    match role {
        "daemon" => {
            let daemon = Daemon::start(options(socket)).expect("the daemon starts");
            assert!(daemon.wait().failure.is_none());
        }
        "client" => {
            let load = Load::new(socket, u64::from(std::process::id()));
            load.run(&AtomicBool::new(false));
        }
        other => panic!("no role {other}"),
    }
}

fn options(socket: &Path) -> DaemonOptions {
    DaemonOptions {
        socket: socket.to_owned(),
        engines: 2,
        oversubscribe: true,
        grace: Duration::from_micros(200),
        ..DaemonOptions::default()
    }
}

/// Runs `rounds` rounds. `start` makes the command that plays a role.
pub(crate) fn run(rounds: u32, seed: u64, start: impl Fn(&str, &Path) -> Command) -> Report {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("daemon.sock");
    let spawn = |role: &str| Process(start(role, &socket).spawn().expect("a child starts"));
    let mut random = Random(seed | 1);
    let mut report = Report::default();
    let mut daemon = spawn("daemon");
    let mut clients = [spawn("client"), spawn("client")];
    let stop = AtomicBool::new(false);
    let load = Load::new(&socket, seed);
    std::thread::scope(|scope| {
        let threads = [(); 2].map(|()| scope.spawn(|| load.run(&stop)));
        // Also where an assertion below fails, so that the threads end.
        let _end = End(&stop);
        for round in 0..rounds {
            // So that there is a daemon to kill, and work on its engines.
            let begun = Instant::now();
            while !load.client.is_attached() {
                assert!(
                    begun.elapsed() < Duration::from_secs(60),
                    "not attached, round {round}"
                );
                std::thread::sleep(Duration::from_millis(1));
            }
            std::thread::sleep(Duration::from_micros(random.below(12_000)));
            assert!(
                threads.iter().all(|thread| !thread.is_finished()),
                "a thread ended in round {round}"
            );
            match random.below(10) {
                0..5 => {
                    let client = &mut clients[random.below(2) as usize];
                    assert_eq!(
                        client.ended(),
                        None,
                        "a client failed, round {round}, seed {seed}"
                    );
                    *client = spawn("client");
                    report.clients_killed += 1;
                }
                5..9 => {
                    assert_eq!(
                        daemon.ended(),
                        None,
                        "the daemon ended, round {round}, seed {seed}"
                    );
                    drop(daemon);
                    daemon = spawn("daemon");
                    report.daemons_killed += 1;
                }
                _ => {
                    daemon.signal("-STOP");
                    std::thread::sleep(Duration::from_millis(130));
                    daemon.signal("-CONT");
                    report.daemons_stopped += 1;
                }
            }
        }
    });
    for client in &mut clients {
        assert_eq!(client.ended(), None, "a client failed, seed {seed}");
    }
    let counters = load.client.counters();
    report.on_engines = counters.on_engines;
    report.on_host = counters.on_host;
    report.given_up = counters.given_up;
    report.attached = counters.attached;
    report
}

struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A child that is killed (SIGKILL) when its owner is done.
struct Process(Child);

impl Process {
    /// Its exit status, if it ended by itself.
    fn ended(&mut self) -> Option<std::process::ExitStatus> {
        self.0.try_wait().expect("a child can be waited for")
    }

    fn signal(&self, signal: &str) {
        let pid = self.0.id().to_string();
        let status = Command::new("kill")
            .args([signal, &pid])
            .status()
            .expect("kill runs");
        assert!(status.success(), "kill {signal} {pid}");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// Random numbers that choose a run's steps; the caller prints the seed.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        sidecore_random::split_mix(&mut self.0) % limit
    }
}

/// Calls whose every result is checked.
struct Load {
    client: Client,
    echo: KernelId,
    hash: KernelId,
    seed: u64,
}

impl Load {
    fn new(socket: &Path, seed: u64) -> Self {
        let options = ClientOptions {
            arena_bytes: 1 << 20,
            ..ClientOptions::default()
        };
        let client = Client::detached(socket, options);
        Self {
            echo: client.kernel("echo").expect("built in"),
            hash: client.kernel("xxh3").expect("built in"),
            client,
            seed,
        }
    }

    /// Until `stop`. Panics at the first wrong result.
    fn run(&self, stop: &AtomicBool) {
        let own = &raw const *stop as u64 ^ Instant::now().elapsed().subsec_nanos() as u64;
        let mut random = Random(self.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ own | 1);
        // Outputs that are looked at again later.
        let mut kept: VecDeque<(Buffer, Vec<u8>)> = VecDeque::new();
        while !stop.load(Ordering::Relaxed) {
            match random.below(4) {
                0 => self.check_sum(&mut random),
                1 => self.check_hash(&mut random),
                2 => kept.push_back(self.check_echo(&mut random)),
                _ => kept.push_back(self.check_loop(&mut random)),
            }
            if kept.len() > 24
                && let Some((buffer, expected)) = kept.pop_front()
            {
                assert!(
                    buffer.bytes() == expected,
                    "an output changed after its call"
                );
            }
        }
    }

    fn filled(&self, random: &mut Random, bytes: usize) -> Buffer {
        let mut buffer = self.client.buffer(bytes);
        for byte in buffer.bytes_mut() {
            *byte = random.below(251) as u8;
        }
        buffer
    }

    fn check_sum(&self, random: &mut Random) {
        let count = random.below(6_000) as usize;
        let mut buffer = self.client.buffer(count * 8);
        let mut expected = 0.0;
        for value in buffer.values_mut::<f64>() {
            *value = random.below(1 << 20) as f64;
            expected += *value;
        }
        let sum = self.client.sum_f64(&buffer).expect("a sum");
        assert_eq!(sum, expected, "a sum of {count} whole numbers");
    }

    fn check_hash(&self, random: &mut Random) {
        let bytes = random.below(30_000) as usize;
        let buffer = self.filled(random, bytes);
        let seed = random.below(u64::MAX);
        let args = Args::new().words(&[seed]).input(&buffer);
        let reply = self.client.call(self.hash, args).expect("a hash");
        let expected = xxhash_rust::xxh3::xxh3_64_with_seed(buffer.bytes(), seed);
        assert_eq!(reply.words[0], expected, "the hash of {bytes} bytes");
    }

    fn check_echo(&self, random: &mut Random) -> (Buffer, Vec<u8>) {
        let bytes = random.below(20_000) as usize;
        let input = self.filled(random, bytes);
        let mut output = self.filled(random, bytes + 100);
        let mut expected = output.bytes().to_vec();
        expected[50..50 + bytes].copy_from_slice(input.bytes());
        let args = Args::new()
            .input(&input)
            .output_part(&mut output, 50..50 + bytes);
        let reply = self.client.call(self.echo, args).expect("an echo");
        assert_eq!(reply.words[0], bytes as u64);
        assert!(output.bytes() == expected, "an echo of {bytes} bytes");
        (output, expected)
    }

    fn check_loop(&self, random: &mut Random) -> (Buffer, Vec<u8>) {
        let pieces = 1 + random.below(12) as usize;
        let bytes = pieces * 1000;
        let input = self.filled(random, bytes);
        let mut output = self.filled(random, bytes);
        // Piece n of the output is piece (last - n) of the input.
        let expected: Vec<u8> = input.bytes().rchunks(1000).flatten().copied().collect();
        let part = |index: usize| index * 1000..(index + 1) * 1000;
        let piece = |index: usize| {
            Piece::new(&[0, index as u64])
                .input(0, part(pieces - 1 - index))
                .output(0, part(index))
        };
        let spread = self
            .client
            .for_each(self.echo, &[&input], &mut [&mut output], pieces, piece)
            .expect("a loop");
        let order = |(index, reply): (usize, &sidecore_daemon::served::Reply)| {
            reply.words[..2] == [1000, index as u64]
        };
        assert!(
            spread.replies.iter().enumerate().all(order),
            "replies in order"
        );
        assert!(output.bytes() == expected, "a loop of {pieces} pieces");
        (output, expected)
    }
}

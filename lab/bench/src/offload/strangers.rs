//! A daemon next to hostile users: root's attaching and calls while another user's programs attack,
//! and many clients without a reserved core.
//!
//! Why here: the harm that a permitted user can do must be measured at its worst; and a daemon's
//! clients are usually not bound to cores of their own, as those of the other groups are.
//! Must stay true: the attackers are processes of another user (65534), which needs root; they
//! begin before anything is timed; every result is checked.
//! One thread, which sleeps meanwhile; the roles run in processes of their own. Source: own.

use super::children;

use super::report::{StrangersRow, UnpinnedRow};
use super::roles::{Attack, Hostile, Role, Served, answer_lines, say, sleep_until};
use super::work::{Window, percentile};
use super::{Bench, BenchError, Candidate};
use crate::measure::child::{READY, Speaker};
use serde::{Deserialize, Serialize};
use sidecore_daemon::PROTOCOL_VERSION;
use sidecore_daemon::client::{Args, Client, ClientOptions, status};
use sidecore_daemon::served::{Registry, SPIN_US_MAX};
use sidecore_sys::clock;
use sidecore_sys::local_socket::{self, Received};
use std::collections::VecDeque;
use std::io::BufRead;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Measures all rows.
pub(crate) fn run(bench: &mut Bench<'_>) -> Result<(), BenchError> {
    let Some(&engine) = bench.cpus.last() else {
        return Ok(());
    };
    if rustix::process::geteuid().is_root() {
        beside_attackers(bench, engine)?;
    } else {
        bench.missing("hostile programs of another user: only root can start them");
    }
    unpinned_clients(bench, engine)
}

fn beside_attackers(bench: &mut Bench<'_>, engine: usize) -> Result<(), BenchError> {
    // Other users must reach the program and the socket.
    let folder = bench.config.scratch.join("strangers");
    let open = || -> std::io::Result<PathBuf> {
        std::fs::create_dir_all(&folder)?;
        for folder in [&bench.config.scratch, &folder] {
            std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755))?;
        }
        let program = folder.join("sidecore");
        // By another process: no child that is started meanwhile inherits a descriptor that writes.
        Command::new("cp")
            .arg(&bench.config.sidecore)
            .arg(&program)
            .status()?;
        Ok(program)
    };
    let program = open().map_err(BenchError::io("copy this program for another user"))?;
    let cancel = bench.cancel.clone();
    let cases: [(&str, &[Attack]); 6] = [
        ("nobody", &[]),
        ("memory", &[Attack::Memory]),
        ("connections", &[Attack::Connections]),
        ("attaches", &[Attack::Attaches]),
        ("spinning", &[Attack::Spinning]),
        (
            "all four",
            &[
                Attack::Memory,
                Attack::Connections,
                Attack::Attaches,
                Attack::Spinning,
            ],
        ),
    ];
    let own = bench.config.sidecore.clone();
    let (calls, rounds) = (bench.choose(25, 200), bench.choose(2, 5));
    for (name, attacks) in cases {
        bench.say(&format!("beside {name}"));
        let mut number = 0;
        let mut seen = Seen::default();
        let metrics = [
            ("attach p50", "ns"),
            ("attach longest", "ns"),
            ("call p50", "ns"),
            ("call p99", "ns"),
        ];
        let mut candidates = [Candidate::new(name, |()| {
            number += 1;
            let socket = folder.join(format!("daemon-{number}.sock"));
            let daemon = Role::Daemon(Served {
                socket: socket.clone(),
                cpus: vec![engine],
                grace_ms: None,
                allow_uids: vec![OTHER_UID],
            });
            let _daemon = children::start(&own, &daemon, &cancel)?;
            let attackers: Result<Vec<Speaker>, BenchError> = attacks
                .iter()
                .map(|&attack| {
                    let socket = socket.clone();
                    let role = Role::Hostile(Hostile { socket, attack });
                    children::start_as(OTHER_UID, &program, &role, &cancel)
                })
                .collect();
            let _attackers = attackers?;
            // Long enough for them to take all that they can have.
            std::thread::sleep(Duration::from_millis(300));
            let victim = Role::Sparse {
                socket: socket.clone(),
            };
            let mut victim = children::start(&own, &victim, &cancel)?;
            victim.tell(&calls)?;
            let mut answer: Answer = victim.answer(&cancel)?;
            answer.held(&socket);
            seen.add(&answer);
            answer.attach_ns.sort_unstable();
            answer.call_ns.sort_unstable();
            Ok(vec![
                percentile(&answer.attach_ns, 50) as f64,
                percentile(&answer.attach_ns, 100) as f64,
                percentile(&answer.call_ns, 50) as f64,
                percentile(&answer.call_ns, 99) as f64,
            ])
        })];
        let series = bench.interleave(&metrics, rounds, &mut candidates)?;
        drop(candidates);
        if let [Some(series)] = &series[..] {
            let row = StrangersRow::new(name, series, seen.wrong, seen.held_bytes);
            bench.report.strangers.push(row);
        }
    }
    Ok(())
}

/// Sums over all rounds of a case.
#[derive(Debug, Default)]
struct Seen {
    wrong: u64,
    held_bytes: u64,
}

impl Seen {
    fn add(&mut self, answer: &Answer) {
        self.wrong += answer.wrong;
        self.held_bytes = self.held_bytes.max(answer.held_bytes);
    }
}

/// Counts and times of a client.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Answer {
    /// Times of attaching.
    attach_ns: Vec<u64>,
    /// Times of calls.
    call_ns: Vec<u64>,
    /// Calls with a wrong result.
    wrong: u64,
    /// The most memory that the other user had, in and out of attachments.
    #[serde(default)]
    held_bytes: u64,
}

impl Answer {
    fn held(&mut self, socket: &Path) {
        let users = status(socket, &Default::default()).map(|status| status.users);
        let users = users.unwrap_or_default();
        let other = users.iter().find(|user| user.uid == OTHER_UID);
        self.held_bytes = other.map_or(0, |user| user.bytes);
    }
}

/// Attaches now and then, calls now and then, and checks every result.
pub(super) fn sparse(socket: &Path) -> Result<(), BenchError> {
    answer_lines(|calls: usize| {
        let mut answer = Answer::default();
        let attach = |answer: &mut Answer| {
            let begun_ns = clock::now_ns();
            let client = Client::attach(socket);
            match client {
                Ok(_) => answer.attach_ns.push(clock::now_ns() - begun_ns),
                Err(_) => answer.wrong += 1,
            }
            client.ok()
        };
        for _ in 0..calls.div_ceil(ATTACH_EVERY) {
            let Some(client) = attach(&mut answer) else {
                continue;
            };
            let Ok(echo) = client.kernel("echo") else {
                continue;
            };
            let (mut input, mut output) = (client.buffer(4096), client.buffer(4096));
            for number in 0..ATTACH_EVERY as u64 {
                input.values_mut::<u64>().fill(number);
                std::thread::sleep(PAUSE);
                let begun_ns = clock::now_ns();
                let args = Args::new().input(&input).output(&mut output);
                let called = client.call(echo, args).is_ok();
                // Failed calls are timed, too: leaving them out would flatter the percentile.
                answer.call_ns.push(clock::now_ns() - begun_ns);
                let right = output.values::<u64>().iter().all(|&value| value == number);
                answer.wrong += u64::from(!called || !right);
            }
        }
        answer
    })
}

impl Hostile {
    /// Attacks until standard input ends.
    pub(super) fn attack(&self) -> Result<(), BenchError> {
        let socket = self.socket.clone();
        let attack = self.attack;
        let start = |work: Box<dyn Fn() + Send>| {
            let thread = std::thread::Builder::new().name("attack".into());
            thread.spawn(work).map_err(BenchError::io("start a thread"))
        };
        let threads = match attack {
            Attack::Memory | Attack::Connections => 1,
            Attack::Attaches => 4,
            Attack::Spinning => 8,
        };
        for _ in 0..threads {
            let socket = socket.clone();
            start(Box::new(move || match attack {
                Attack::Memory => attach_over_and_over(&socket, true),
                Attack::Connections => say_nothing(&socket),
                Attack::Attaches => attach_over_and_over(&socket, false),
                Attack::Spinning => spin(&socket),
            }))?;
        }
        say(READY)?;
        for line in std::io::stdin().lock().lines() {
            if line.is_err() {
                break;
            }
        }
        // The threads end with the process.
        Ok(())
    }
}

/// Attaches over and over; keeps its segments, or releases them at once.
fn attach_over_and_over(socket: &Path, keeps: bool) {
    let mut kept: Vec<OwnedFd> = Vec::new();
    loop {
        match segment(socket, LARGE_ARENA_BYTES) {
            Some(segment) if keeps => kept.push(segment),
            Some(_) => {}
            None => std::thread::yield_now(),
        }
    }
}

fn say_nothing(socket: &Path) {
    let mut held = VecDeque::new();
    loop {
        match local_socket::connect(socket) {
            Ok(connection) => held.push_back(connection),
            Err(_) => std::thread::yield_now(),
        }
        if held.len() > MUTE_CONNECTIONS {
            held.pop_front();
        }
    }
}

fn spin(socket: &Path) {
    let options = ClientOptions {
        registry: Registry::with_spin_us(),
        held_up_max: Duration::from_secs(600),
        silence_max: Duration::from_secs(600),
        ..ClientOptions::default()
    };
    loop {
        let Ok(client) = Client::attach_with(socket, options.clone()) else {
            std::thread::yield_now();
            continue;
        };
        while let Ok(kernel) = client.kernel("spin_us")
            && client.is_attached()
            && client
                .call(kernel, Args::new().words(&[SPIN_US_MAX]))
                .is_ok()
        {}
    }
}

/// Attaches without the client library's checks: the segment's descriptor, the connection closed.
fn segment(socket: &Path, arena_bytes: u64) -> Option<OwnedFd> {
    let mut question = b"SIDECOR1".to_vec();
    question.extend([1, PROTOCOL_VERSION].map(u32::to_le_bytes).concat());
    question.extend(arena_bytes.to_le_bytes());
    question.extend([0; 8]);
    let connection = local_socket::connect(socket).ok()?;
    local_socket::send(connection.as_fd(), &question, &[]).ok()?;
    let mut answer = vec![0; 1 << 17];
    loop {
        local_socket::poll(&[connection.as_fd()], &mut Vec::new(), SILENCE_MAX).ok()?;
        match local_socket::receive(connection.as_fd(), &mut answer).ok()? {
            Received::Message(_, mut files) if !files.is_empty() => {
                return Some(files.swap_remove(0));
            }
            Received::Nothing => {}
            _ => return None,
        }
    }
}

fn unpinned_clients(bench: &mut Bench<'_>, engine: usize) -> Result<(), BenchError> {
    let socket = bench.config.scratch.join("unpinned.sock");
    let daemon = Role::Daemon(Served {
        socket: socket.clone(),
        cpus: vec![engine],
        grace_ms: None,
        allow_uids: Vec::new(),
    });
    let own = bench.config.sidecore.clone();
    let _daemon = children::start(&own, &daemon, &bench.cancel)?;
    let cancel = bench.cancel.clone();
    let counted_ns = bench.choose(200_000_000, 1_000_000_000);
    // Slices of some milliseconds: 64 clients on one core need a while until each had several.
    let each_ns = bench.choose(30_000_000, 60_000_000);
    let rounds = bench.choose(2, 5);
    bench.say("clients without cores of their own");
    let mut candidates: Vec<_> = CLIENTS
        .iter()
        .map(|&clients| {
            let (own, socket, cancel) = (&own, &socket, &cancel);
            Candidate::new(format!("{clients} clients"), move |()| {
                let counted_ns = counted_ns.max(each_ns * clients as u64);
                let role = Role::Unpinned {
                    socket: socket.clone(),
                };
                let roles = std::iter::repeat_n(&role, clients);
                let mut processes = children::start_all(own, roles, cancel)?;
                let begin_ns = clock::now_ns() + 10_000_000;
                let from_ns = begin_ns + WARM_NS;
                let window = Window {
                    begin_ns,
                    from_ns,
                    until_ns: from_ns + counted_ns,
                };
                for process in &mut processes {
                    process.tell(&window)?;
                }
                let mut calls = Vec::new();
                let (mut all, mut on_host) = (Vec::new(), 0);
                for process in &mut processes {
                    let answer: Calls = process.answer(cancel)?;
                    calls.push(answer.count);
                    on_host += answer.on_host;
                    all.extend(answer.sample_ns);
                }
                all.sort_unstable();
                let sum: u64 = calls.iter().sum();
                let (least, most) = (calls.iter().min(), calls.iter().max());
                let (least, most) = (*least.unwrap_or(&0), *most.unwrap_or(&0));
                Ok(vec![
                    sum as f64 * 1e9 / counted_ns as f64,
                    percentile(&all, 50) as f64,
                    percentile(&all, 99) as f64,
                    least as f64 / most.max(1) as f64,
                    on_host as f64 / sum.max(1) as f64,
                ])
            })
        })
        .collect();
    let metrics = [
        ("calls", "/s"),
        ("p50", "ns"),
        ("p99", "ns"),
        ("least", "x"),
        ("on host", "x"),
    ];
    let series = bench.interleave(&metrics, rounds, &mut candidates)?;
    drop(candidates);
    let one = series.first().cloned().flatten();
    for (&clients, series) in CLIENTS.iter().zip(&series) {
        if let (Some(series), Some(one)) = (series, &one) {
            let row = UnpinnedRow::new(clients, series, one);
            bench.report.unpinned.push(row);
        }
    }
    Ok(())
}

/// Work of a client.
#[derive(Debug, Serialize, Deserialize)]
struct Calls {
    count: u64,
    /// Those calls among them that it executed itself.
    on_host: u64,
    /// Times of some of the calls, evenly drawn.
    sample_ns: Vec<u64>,
}

/// Calls an empty kernel over and over.
pub(super) fn unpinned(socket: &Path) -> Result<(), BenchError> {
    let client = Client::attach(socket)?;
    let kernel = client.kernel("empty")?;
    answer_lines(|window: Window| {
        sleep_until(window.begin_ns);
        let mut taken_ns = Vec::with_capacity(SAMPLES_MAX * 2);
        let (mut count, mut every) = (0, 1);
        let mut host_before = client.counters().on_host;
        let mut before_ns = clock::now_ns();
        while before_ns < window.until_ns {
            let right = client.call(kernel, Args::new()).is_ok();
            let now_ns = clock::now_ns();
            if before_ns >= window.from_ns && right {
                // Calls of the warm-up that ran on the host do not count either.
                if count == 0 {
                    host_before = client.counters().on_host;
                }
                if count % every == 0 {
                    taken_ns.push(now_ns - before_ns);
                    // Halving the samples and their rate keeps them evenly drawn in bounded memory.
                    if taken_ns.len() == SAMPLES_MAX * 2 {
                        let mut keep = false;
                        taken_ns.retain(|_| {
                            keep = !keep;
                            keep
                        });
                        every *= 2;
                    }
                }
                count += 1;
            }
            before_ns = now_ns;
        }
        Calls {
            count,
            on_host: client.counters().on_host - host_before,
            sample_ns: taken_ns,
        }
    })
}

/// The user ID of `nobody`.
const OTHER_UID: u32 = 65_534;
/// Calls for each attachment, and the time between two.
const ATTACH_EVERY: usize = 25;
const PAUSE: Duration = Duration::from_millis(4);
const LARGE_ARENA_BYTES: u64 = 256 << 20;
const MUTE_CONNECTIONS: usize = 100;
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// Numbers of clients at once.
const CLIENTS: [usize; 3] = [1, 4, 64];
const WARM_NS: u64 = 100_000_000;
/// Times of calls that a client keeps, at most twice as many.
const SAMPLES_MAX: usize = 2_000;

//! A daemon and its clients, mostly in this process: results of calls, waiting, and the daemon's
//! status.

use crate::eventually;
use sidecore_daemon::client::{self, Args, Client, ClientError, ClientOptions, Job, Piece};
use sidecore_daemon::served::{Cx, Memory, Registry, Reply, Request, Served};
use sidecore_daemon::{Daemon, DaemonOptions};
use sidecore_engine::{CoreOptions, KernelError};
use sidecore_sys::{HugePages, RegionOptions};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

fn options(folder: &Path) -> DaemonOptions {
    DaemonOptions {
        socket: folder.join("daemon.sock"),
        engines: 2,
        oversubscribe: true,
        registry: Registry::with_spin_us(),
        grace: Duration::from_millis(1),
        ..DaemonOptions::default()
    }
}

/// A client that knows `spin_us`, and does not take a busy machine for a dead daemon.
fn client_options() -> ClientOptions {
    ClientOptions {
        registry: Registry::with_spin_us(),
        ..ClientOptions::patient()
    }
}

fn attach(socket: &Path) -> Client {
    Client::attach_with(socket, client_options()).unwrap()
}

#[test]
fn every_kernel_answers_as_on_the_host() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(options(folder.path())).unwrap();
    let client = attach(daemon.socket());
    let alone = Client::detached(folder.path().join("nobody"), client_options());
    for bytes in [0, 8, 4096, 16384, 16392, 1 << 20] {
        for name in ["echo", "sum_f64", "xxh3", "empty", "spin_us"] {
            let kernel = client.kernel(name).unwrap();
            let run = |client: &Client| {
                let mut input = client.buffer(bytes);
                for (index, value) in input.values_mut::<f64>().iter_mut().enumerate() {
                    *value = (index as f64).sin() * 1e3;
                }
                let mut output = client.buffer(bytes + 3);
                output.bytes_mut().fill(7);
                let args = Args::new().words(&[3, 4]).input(&input).output(&mut output);
                let reply = client.call(kernel, args).unwrap();
                (reply, output.bytes().to_vec())
            };
            assert_eq!(run(&client), run(&alone), "{name} of {bytes} bytes");
        }
    }
    let (there, here) = (client.counters(), alone.counters());
    assert_eq!((there.on_engines, there.on_host), (30, 0));
    assert_eq!((here.on_engines, here.on_host), (0, 30));
    // An engine counts a request after it has answered it.
    eventually("the figures are complete", || {
        let status = client.status().unwrap();
        let on_engines: u64 = status.engines.iter().map(|engine| engine.calls).sum();
        on_engines == 30 && status.clients.len() == 1 && status.clients[0].calls == 30
    });
}

#[test]
fn what_fails_says_why_and_hurts_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(options(folder.path())).unwrap();
    let client = attach(daemon.socket());
    let echo = client.kernel("echo").unwrap();
    let (input, mut output) = (client.buffer(10), client.buffer(9));
    let error = client
        .call(echo, Args::new().input(&input).output(&mut output))
        .unwrap_err();
    assert!(matches!(error, ClientError::Engine { .. }));
    assert!(
        error
            .to_string()
            .contains("10 bytes do not fit an output of 9"),
        "{error}"
    );
    let error = client
        .call(echo, Args::new().input_part(&input, 4..11))
        .unwrap_err();
    assert!(
        matches!(
            error,
            ClientError::Limit {
                value: 11,
                limit: 10,
                ..
            }
        ),
        "{error}"
    );
    let many = (0..5).fold(Args::new(), |args, _| args.input(&input));
    assert!(matches!(
        client.call(echo, many),
        Err(ClientError::Limit { .. })
    ));
    let error = client.kernel("nothing").unwrap_err();
    assert!(error.to_string().contains("`nothing`"));
    let mut large = client.buffer(10);
    assert!(
        client
            .call(echo, Args::new().input(&input).output(&mut large))
            .is_ok()
    );
    let too_large = ClientOptions {
        arena_bytes: 1 << 50,
        ..ClientOptions::default()
    };
    let error = Client::attach_with(daemon.socket(), too_large).unwrap_err();
    assert!(error.to_string().contains("ask for less"), "{error}");
    assert!(matches!(
        Client::attach(folder.path().join("nobody")),
        Err(ClientError::NoDaemon { .. })
    ));
}

#[test]
fn a_stopped_daemon_is_replaced_and_calls_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(options(folder.path())).unwrap();
    let client = attach(daemon.socket());
    let hash = client.kernel("xxh3").unwrap();
    let mut input = client.buffer(100_000);
    input.bytes_mut().fill(5);
    let expected = client.call(hash, Args::new().input(&input)).unwrap();
    daemon.stop();
    assert_eq!(
        client.call(hash, Args::new().input(&input)).unwrap(),
        expected
    );
    assert!(!client.is_attached());
    assert_eq!(client.counters().on_host, 1);
    let _daemon = Daemon::start(options(folder.path())).unwrap();
    eventually("the client attaches again", || {
        assert_eq!(
            client.call(hash, Args::new().input(&input)).unwrap(),
            expected
        );
        client.is_attached()
    });
    let before = client.counters().on_engines;
    assert_eq!(
        client.call(hash, Args::new().input(&input)).unwrap(),
        expected
    );
    assert_eq!(client.counters().on_engines, before + 1);
    assert_eq!(client.counters().attached, 2);
}

#[test]
fn threads_of_a_client_share_its_pairs() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(options(folder.path())).unwrap();
    let client = attach(daemon.socket());
    let echo = client.kernel("echo").unwrap();
    std::thread::scope(|scope| {
        for thread in 0..6u8 {
            let client = &client;
            scope.spawn(move || {
                let (mut input, mut output) = (client.buffer(500), client.buffer(500));
                for round in 0..200 {
                    input.bytes_mut().fill(thread ^ round);
                    let args = Args::new().input(&input).output(&mut output);
                    client.call(echo, args).unwrap();
                    assert_eq!(input.bytes(), output.bytes());
                }
            });
        }
    });
    assert_eq!(client.counters().on_engines, 1200);
}

#[test]
fn a_client_that_left_is_forgotten() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(options(folder.path())).unwrap();
    let stays = attach(daemon.socket());
    for _ in 0..5 {
        let client = attach(daemon.socket());
        client
            .call(client.kernel("empty").unwrap(), Args::new())
            .unwrap();
    }
    eventually("one is left", || stays.status().unwrap().clients.len() == 1);
    let status = stays.status().unwrap();
    assert_eq!(status.attached_total, 6);
    assert_eq!(status.clients[0].pid, std::process::id() as i32);
}

/// Spins for some microseconds and replies with the number of turns that the engine had served
/// before. Turns are a clock that passes however busy the machine is.
struct Turn;

static TURNS: AtomicU64 = AtomicU64::new(0);

impl Served for Turn {
    const NAME: &'static str = "turn";
    type State = ();

    fn engine<'c>(
        _: &mut Cx<'c, Self>,
        request: &Request,
        _: &'c Memory<'c>,
    ) -> Result<Reply, KernelError> {
        let turns = TURNS.fetch_add(1, Ordering::SeqCst);
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_micros(request.words[0]) {
            std::hint::spin_loop();
        }
        Ok(Reply::word(turns))
    }
}

#[test]
fn a_client_with_many_requests_does_not_starve_another() {
    let registry = || Registry::builtin().with::<Turn>().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(DaemonOptions {
        engines: 1,
        registry: registry(),
        ..options(folder.path())
    })
    .unwrap();
    let options = || ClientOptions {
        registry: registry(),
        ..client_options()
    };
    let attach = || Client::attach_with(daemon.socket(), options()).unwrap();
    let (greedy, modest) = (attach(), attach());
    let turn = greedy.kernel(Turn::NAME).unwrap();
    let stop = AtomicBool::new(false);
    let mut between = Vec::new();
    std::thread::scope(|scope| {
        // Also where an assertion below fails, so that the threads end.
        let _end = End(&stop);
        for _ in 0..8 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    greedy.call(turn, Args::new().words(&[200])).unwrap();
                }
            });
        }
        eventually("the greedy one is at work", || {
            TURNS.load(Ordering::SeqCst) > 20
        });
        for _ in 0..100 {
            let asked_at = TURNS.load(Ordering::SeqCst);
            let reply = modest.call(turn, Args::new().words(&[200])).unwrap();
            between.push(reply.words[0] - asked_at);
        }
    });
    assert_eq!(modest.counters().on_engines, 100);
    between.sort_unstable();
    // One turn each, and the one that was being served. More where this thread, or a turn of its
    // own, lost its core for a while; that is not most of the times.
    let median = between[between.len() / 2];
    assert!(
        median <= 4,
        "turns of the greedy client before one of the modest one: {between:?}"
    );
}

/// One engine, and a client that keeps it for 20 ms at a time: another one's calls and loops are
/// done on its own core, and the engine's late results of them are never read.
#[test]
fn a_call_does_not_wait_for_another_clients_long_request() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(DaemonOptions {
        engines: 1,
        ..options(folder.path())
    })
    .unwrap();
    let hog = attach(daemon.socket());
    let options = ClientOptions {
        held_up_max: Duration::from_millis(1),
        ..client_options()
    };
    let hasty = Client::attach_with(daemon.socket(), options).unwrap();
    let (spin, echo) = (
        hog.kernel("spin_us").unwrap(),
        hasty.kernel("echo").unwrap(),
    );
    let stop = AtomicBool::new(false);
    let mut number = 0u64;
    std::thread::scope(|scope| {
        let _end = End(&stop);
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                hog.call(spin, Args::new().words(&[20_000])).unwrap();
            }
        });
        let (mut input, mut output) = (hasty.buffer(4096), hasty.buffer(4096));
        let mut call = |looped: bool| {
            number += 1;
            input.values_mut::<u64>().fill(number);
            if looped {
                let count = 4;
                let done = hasty.for_each(echo, &[&input], &mut [&mut output], count, |index| {
                    let range = index * 1024..(index + 1) * 1024;
                    Piece::new(&[0]).input(0, range.clone()).output(0, range)
                });
                assert_eq!(done.unwrap().replies.len(), count);
            } else {
                let args = Args::new().input(&input).output(&mut output);
                hasty.call(echo, args).unwrap();
            }
            // Also a while later, when the engine may have come to it.
            for _ in 0..3 {
                assert!(output.values::<u64>().iter().all(|&value| value == number));
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        eventually("calls that were left behind", || {
            call(false);
            hasty.counters().given_up >= 20
        });
        for _ in 0..200 {
            call(true);
        }
    });
    assert!(hasty.is_attached());
    // No other client is in the way any more.
    let before = hasty.counters().on_engines;
    eventually("a call on the engine", || {
        hasty
            .call(
                echo,
                Args::new()
                    .input(&hasty.buffer(64))
                    .output(&mut hasty.buffer(64)),
            )
            .unwrap();
        hasty.counters().on_engines > before
    });
}

/// Tells threads to end when it goes.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn loops_have_the_same_result_at_any_width() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(options(folder.path())).unwrap();
    let client = attach(daemon.socket());
    let alone = Client::detached(folder.path().join("nobody"), ClientOptions::default());
    for count in [0usize, 1, 70_000, 1_000_000] {
        let mut values = client.buffer(count * 8);
        for (index, value) in values.values_mut::<f64>().iter_mut().enumerate() {
            *value = 1.0 / (index as f64 + 0.7);
        }
        let expected = alone.sum_f64(&values).unwrap().to_bits();
        for width in 1..=2 {
            client.set_policy(Box::new(sidecore_sched::Llp::new(width)));
            assert_eq!(client.sum_f64(&values).unwrap().to_bits(), expected);
        }
        let one = client.kernel("sum_f64").unwrap();
        let reply = client.call(one, Args::new().input(&values)).unwrap();
        assert_eq!(reply.words[0], expected, "one request gives the same bits");
    }
    let echo = client.kernel("echo").unwrap();
    let (input, mut output) = (client.buffer(100), client.buffer(100));
    let piece = |_| Piece::new(&[]).input(0, 0..100).output(0, 0..101);
    let error = client
        .for_each(echo, &[&input], &mut [&mut output], 1, piece)
        .unwrap_err();
    assert!(
        matches!(error, ClientError::Limit { value: 101, .. }),
        "{error}"
    );
    let piece = |_| Piece::new(&[]).input(1, 0..100);
    assert!(client.for_each(echo, &[&input], &mut [], 1, piece).is_err());
    let piece = |index| {
        Piece::new(&[])
            .input(0, 0..100)
            .output(0, 0..100 - index * 20)
    };
    let error = client
        .for_each(echo, &[&input], &mut [&mut output], 3, piece)
        .unwrap_err();
    assert!(
        error.to_string().contains("do not fit an output of"),
        "{error}"
    );
}

#[test]
fn the_status_says_what_waits_and_why_the_last_request_failed() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(DaemonOptions {
        engines: 1,
        ..options(folder.path())
    })
    .unwrap();
    let client = attach(daemon.socket());
    let own = || client.status().unwrap().clients[0].clone();
    let before = own();
    assert_eq!((before.waiting, before.failures), (0, 0));
    assert_eq!(before.last_failure, None);
    let echo = client.kernel("echo").unwrap();
    let (input, mut output) = (client.buffer(10), client.buffer(9));
    let args = Args::new().input(&input).output(&mut output);
    client.call(echo, args).unwrap_err();
    let reason = own().last_failure.unwrap();
    assert!(reason.starts_with("echo: "), "{reason}");
    assert!(reason.contains("10 bytes do not fit"), "{reason}");
    let shown = client.status().unwrap().remarks();
    assert!(shown.iter().any(|line| line.contains(&reason)), "{shown:?}");
    // An engine counts a request after it has answered it.
    eventually("it is counted", || own().failures == 1);
    let spin = client.kernel("spin_us").unwrap();
    for token in 0..10 {
        let job = Job::new(spin).words(&[100_000]).token(token);
        client.post(job).unwrap();
    }
    eventually("some wait", || (1..10).contains(&own().waiting));
    while let Some(outcome) = client.wait(None) {
        outcome.result.unwrap();
    }
    eventually("none waits", || own().waiting == 0);
    assert_eq!(own().failures, 1);
}

/// Far more engines than cores, and more than one answer describes: each serves.
#[test]
fn two_hundred_engines_start_serve_and_end() {
    const ENGINES: usize = 200;
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(DaemonOptions {
        engines: ENGINES,
        grace: Duration::ZERO,
        stack_bytes: 256 << 10,
        core: CoreOptions {
            store_bytes: 64 << 10,
            region: RegionOptions {
                huge: HugePages::None,
                lock: false,
                touch: false,
            },
            ..CoreOptions::default()
        },
        ..options(folder.path())
    })
    .unwrap();
    let attached = client::Attachment::attach(daemon.socket(), &client_options()).unwrap();
    assert_eq!(attached.engines(), ENGINES);
    let request = client::Request {
        kernel: attached.kernel("empty").unwrap(),
        words: [0; 6],
        inputs: &[],
        outputs: &[],
    };
    for engine in 0..ENGINES {
        attached.call(engine, &request).unwrap();
    }
    assert!(attached.call(ENGINES, &request).is_err());
    let client = attach(daemon.socket());
    assert_eq!(client.engines(), ENGINES);
    // An engine counts a request after it has answered it.
    eventually("every engine has served", || {
        let status = client.status().unwrap();
        let numbers = status.engines.iter().map(|engine| engine.engine);
        assert!(numbers.eq(0..ENGINES));
        status.engines.iter().all(|engine| engine.calls == 1)
    });
    let empty = client.kernel("empty").unwrap();
    for token in 0..ENGINES as u64 {
        client.post(Job::new(empty).token(token)).unwrap();
        client.call(empty, Args::new()).unwrap();
    }
    let mut ended = 0;
    while let Some(outcome) = client.wait(None) {
        outcome.result.unwrap();
        ended += 1;
    }
    assert_eq!(ended, ENGINES);
    let counters = client.counters();
    assert_eq!(
        (counters.on_engines, counters.on_host),
        (2 * ENGINES as u64, 0)
    );
    daemon.stop();
    assert!(attached.call(0, &request).is_err());
}

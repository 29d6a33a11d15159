//! Kernels that do not return: the daemon stays able to end, and their engines to serve.

use crate::eventually;
use sidecore_daemon::client::{self, Args, Attachment, Client, ClientError, ClientOptions, Job};
use sidecore_daemon::served::{Cx, Memory, Registry, Reply, Request, Served};
use sidecore_daemon::{Daemon, DaemonOptions, EngineState};
use sidecore_engine::KernelError;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

/// Returns once it may, and ignores cancellation.
struct Stuck<const NUMBER: usize>;

static MAY_RETURN: [AtomicBool; 3] = [const { AtomicBool::new(false) }; 3];
static INSIDE: [AtomicU32; 3] = [const { AtomicU32::new(0) }; 3];

impl<const NUMBER: usize> Served for Stuck<NUMBER> {
    const NAME: &'static str = "stuck";
    type State = ();

    fn engine<'c>(
        _cx: &mut Cx<'c, Self>,
        _request: &Request,
        _memory: &'c Memory<'c>,
    ) -> Result<Reply, KernelError> {
        INSIDE[NUMBER].fetch_add(1, Ordering::SeqCst);
        while !MAY_RETURN[NUMBER].load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        INSIDE[NUMBER].fetch_sub(1, Ordering::SeqCst);
        Ok(Reply::default())
    }
}

/// Fills its output once it may, and ignores cancellation.
struct Late;

static LATE_MAY: AtomicBool = AtomicBool::new(false);
static LATE_BEGUN: AtomicU32 = AtomicU32::new(0);
static LATE_DONE: AtomicU32 = AtomicU32::new(0);

impl Served for Late {
    const NAME: &'static str = "late";
    type State = ();

    fn engine<'c>(
        _cx: &mut Cx<'c, Self>,
        _request: &Request,
        memory: &'c Memory<'c>,
    ) -> Result<Reply, KernelError> {
        LATE_BEGUN.fetch_add(1, Ordering::SeqCst);
        while !LATE_MAY.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let output = memory.output(0)?;
        output.write_at(0, &vec![0xEE; output.len()]);
        LATE_DONE.fetch_add(1, Ordering::SeqCst);
        Ok(Reply::default())
    }
}

fn start<const NUMBER: usize>(folder: &Path, engines: usize) -> Daemon {
    Daemon::start(DaemonOptions {
        socket: folder.join("daemon.sock"),
        engines,
        oversubscribe: true,
        registry: Registry::builtin().with::<Stuck<NUMBER>>().unwrap(),
        ..DaemonOptions::default()
    })
    .unwrap()
}

fn attach<const NUMBER: usize>(daemon: &Daemon) -> Client {
    let options = ClientOptions {
        registry: Registry::builtin().with::<Stuck<NUMBER>>().unwrap(),
        ..ClientOptions::patient()
    };
    Client::attach_with(daemon.socket(), options).unwrap()
}

fn post(client: &Client) {
    client
        .post(Job::new(client.kernel("stuck").unwrap()))
        .unwrap();
}

fn inside(number: usize) -> u32 {
    INSIDE[number].load(Ordering::SeqCst)
}

#[test]
fn an_engine_whose_client_is_gone_is_taken_over() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = start::<0>(folder.path(), 1);
    let honest = attach::<0>(&daemon);
    let empty = honest.kernel("empty").unwrap();
    honest.call(empty, Args::new()).unwrap();
    let engine = || honest.status().unwrap().engines[0].clone();
    for round in 1..=2 {
        let client = attach::<0>(&daemon);
        post(&client);
        eventually("the kernel runs", || inside(0) == round);
        drop(client);
        // Patient clients wait for the engine: this is answered by its next thread.
        honest.call(empty, Args::new()).unwrap();
        eventually("the old thread is counted", || {
            let engine = engine();
            engine.left_behind == u64::from(round) && engine.state != EngineState::Orphaned
        });
    }
    // Numbers of clients that an engine is still at are not given again.
    let again = attach::<0>(&daemon);
    again.call(empty, Args::new()).unwrap();
    assert_eq!(again.counters().on_engines, 1);
    MAY_RETURN[0].store(true, Ordering::SeqCst);
    eventually("the old threads end", || engine().left_behind == 0);
    honest.call(empty, Args::new()).unwrap();
    assert_eq!(honest.counters().on_engines, 4);
    assert!(daemon.wait_after_stop().is_empty());
}

#[test]
fn a_request_that_waited_is_served_once_by_the_next_thread() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = start::<1>(folder.path(), 1);
    let honest = attach::<1>(&daemon);
    let echo = honest.kernel("echo").unwrap();
    let client = attach::<1>(&daemon);
    post(&client);
    eventually("the kernel runs", || inside(1) == 1);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let mut input = honest.buffer(100);
            input.bytes_mut().fill(7);
            let mut output = honest.buffer(100);
            for _ in 0..50 {
                output.bytes_mut().fill(0);
                let args = Args::new().input(&input).output(&mut output);
                honest.call(echo, args).unwrap();
                assert!(output.bytes().iter().all(|&byte| byte == 7));
            }
        });
        std::thread::sleep(Duration::from_millis(50));
        drop(client);
        waiting.join().unwrap();
    });
    assert_eq!(honest.counters().on_engines, 50);
    let status = honest.status().unwrap();
    let own = status
        .clients
        .iter()
        .map(|client| client.calls)
        .sum::<u64>();
    assert!(own <= 50, "{own}");
    MAY_RETURN[1].store(true, Ordering::SeqCst);
}

#[test]
fn a_daemon_ends_though_a_kernel_does_not_return() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = start::<2>(folder.path(), 2);
    let client = attach::<2>(&daemon);
    post(&client);
    eventually("the kernel runs", || inside(2) == 1);
    let socket = daemon.socket().to_owned();
    let running = daemon.wait_after_stop();
    assert!(!socket.exists());
    assert_eq!(running, ["stuck"]);
    MAY_RETURN[2].store(true, Ordering::SeqCst);
    eventually("it returns by itself", || inside(2) == 0);
}

/// A daemon that was silent for too long goes on, with the outputs of what was given up meanwhile.
#[test]
fn memory_of_a_daemon_that_was_given_up_is_not_given_out_again() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(DaemonOptions {
        socket: folder.path().join("daemon.sock"),
        engines: 1,
        oversubscribe: true,
        registry: Registry::builtin().with::<Late>().unwrap(),
        ..DaemonOptions::default()
    })
    .unwrap();
    // Between any two heartbeats it takes the daemon for stopped.
    let options = ClientOptions {
        silence_max: Duration::ZERO,
        arena_bytes: 64 << 10,
        ..ClientOptions::default()
    };
    let request = |attached: &Attachment, outputs: &[(u64, u64)], is_call: bool| {
        let request = client::Request {
            kernel: attached.kernel("late").unwrap(),
            words: [0; 6],
            inputs: &[],
            outputs,
        };
        if is_call {
            let error = attached.call(0, &request).unwrap_err();
            assert!(matches!(error, ClientError::Lost), "{error}");
        } else {
            attached.post(&request, 0).unwrap();
        }
    };
    let lost = |attached: &Attachment| {
        assert!(attached.is_lost());
        assert!(attached.stretch(1).is_none());
    };
    let with_jobs = Attachment::attach(daemon.socket(), &options).unwrap();
    let with_call = Attachment::attach(daemon.socket(), &options).unwrap();
    let stretches = [0; 2].map(|_| with_jobs.stretch(4096).unwrap());
    let outputs = stretches.each_ref().map(|it| [(it.offset(), 4096)]);
    request(&with_jobs, &outputs[0], false);
    eventually("the first job runs", || {
        LATE_BEGUN.load(Ordering::SeqCst) == 1
    });
    request(&with_jobs, &outputs[1], false);
    for _ in 0..2 {
        let outcome = with_jobs.wait(None).unwrap();
        assert!(matches!(outcome.result, Err(ClientError::Lost)));
    }
    drop(stretches);
    lost(&with_jobs);
    let stretch = with_call.stretch(4096).unwrap();
    request(&with_call, &[(stretch.offset(), 4096)], true);
    drop(stretch);
    lost(&with_call);
    // The first job, and the call, which cannot be taken back; not the second job.
    LATE_MAY.store(true, Ordering::SeqCst);
    eventually("the daemon goes on", || {
        LATE_DONE.load(Ordering::SeqCst) >= 2
    });
    let honest = Client::attach_with(daemon.socket(), ClientOptions::patient()).unwrap();
    let empty = honest.kernel("empty").unwrap();
    for _ in 0..100 {
        honest.call(empty, Args::new()).unwrap();
    }
    assert_eq!(LATE_BEGUN.load(Ordering::SeqCst), 2);
    lost(&with_jobs);
    lost(&with_call);
}

trait WaitAfterStop {
    /// Stops it; the kernels that still run.
    fn wait_after_stop(self) -> Vec<&'static str>;
}

impl WaitAfterStop for Daemon {
    fn wait_after_stop(self) -> Vec<&'static str> {
        self.stopper().stop();
        let ended = self.wait();
        assert!(ended.failure.is_none(), "{:?}", ended.failure);
        let running = ended.running.into_iter();
        running.filter_map(|running| running.kernel).collect()
    }
}

//! Kernels that do not return: the daemon stays able to end, and their engines to serve.

use crate::eventually;
use sidecore_daemon::client::{Args, Client, ClientOptions, Job};
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

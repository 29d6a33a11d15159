//! Jobs: many requests of one client that are open at once, and all that may happen to them.

use crate::eventually;
use sidecore_daemon::client::{
    Args, Buffer, Client, ClientError, ClientOptions, JOB_SEGMENTS_MAX, JOBS_MAX, Job, Outcome,
};
use sidecore_daemon::served::{Cx, Memory, Registry, Reply, Request, Served};
use sidecore_daemon::{Daemon, DaemonOptions};
use sidecore_engine::KernelError;
use sidecore_sys::local_socket;
use std::future::Future;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

/// Lays its inputs end to end into its outputs, which it fills one after the other.
struct Gather;

impl Served for Gather {
    const NAME: &'static str = "gather";
    const LS: usize = 16 << 10;
    type State = ();

    fn engine<'c>(
        cx: &mut Cx<'c, Self>,
        _request: &Request,
        memory: &'c Memory<'c>,
    ) -> Result<Reply, KernelError> {
        let mut all = Vec::new();
        let mut buffer = cx.store.alloc::<u8>(8 << 10)?;
        for index in 0..memory.inputs() {
            let input = memory.input(index)?;
            buffer = cx.mfc.get_large(buffer, input)?.wait();
            all.extend_from_slice(&buffer[..input.len()]);
        }
        let mut rest = &all[..];
        for index in 0..memory.outputs() {
            let output = memory.output(index)?;
            let part;
            (part, rest) = rest.split_at(output.len());
            output.write_at(0, part);
        }
        Ok(Reply::word(all.len() as u64))
    }
}

/// Runs until it is cancelled; counted under its first word, one for each test.
struct Endless;

static RUNNING: [AtomicU32; 4] = [const { AtomicU32::new(0) }; 4];

fn running(test: u64) -> &'static AtomicU32 {
    &RUNNING[test as usize % RUNNING.len()]
}

impl Served for Endless {
    const NAME: &'static str = "endless";
    type State = ();

    fn engine<'c>(
        _cx: &mut Cx<'c, Self>,
        request: &Request,
        memory: &'c Memory<'c>,
    ) -> Result<Reply, KernelError> {
        let running = running(request.words[0]);
        running.fetch_add(1, Ordering::Relaxed);
        while !memory.is_abandoned() {
            std::thread::yield_now();
        }
        running.fetch_sub(1, Ordering::Relaxed);
        Err(KernelError::failed("nobody wants it"))
    }
}

fn registry() -> Registry {
    let registry = Registry::with_spin_us().with::<Gather>().unwrap();
    registry.with::<Endless>().unwrap()
}

fn options(folder: &Path) -> DaemonOptions {
    DaemonOptions {
        socket: folder.join("daemon.sock"),
        engines: 2,
        oversubscribe: true,
        registry: registry(),
        grace: Duration::from_millis(1),
        ..DaemonOptions::default()
    }
}

/// A client that does not take a busy machine for a dead daemon.
fn client_options() -> ClientOptions {
    ClientOptions {
        registry: registry(),
        ..ClientOptions::patient()
    }
}

fn attach(socket: &Path) -> Client {
    Client::attach_with(socket, client_options()).unwrap()
}

/// Echoes of buffers that all differ.
fn echo(client: &Client, token: u64) -> Job {
    let bytes = 40 + token as usize % 100;
    let (mut input, mut output) = (client.buffer(bytes), client.buffer(bytes));
    input.bytes_mut().fill(token as u8);
    output.bytes_mut().fill(!(token as u8));
    let kernel = client.kernel("echo").unwrap();
    Job::new(kernel).input(input).output(output).token(token)
}

fn check_echo(outcome: &Outcome) {
    outcome.result.as_ref().unwrap();
    let [output] = &outcome.outputs[..] else {
        panic!("{} outputs", outcome.outputs.len());
    };
    let token = outcome.token;
    assert_eq!(output.len(), 40 + token as usize % 100);
    assert!(output.bytes().iter().all(|&byte| byte == token as u8));
    assert_eq!(outcome.inputs[0].bytes(), output.bytes());
}

fn check_all_echoes(client: &Client, count: u64) {
    let mut seen = vec![false; count as usize];
    while let Some(outcome) = client.wait(None) {
        check_echo(&outcome);
        assert!(!std::mem::replace(&mut seen[outcome.token as usize], true));
    }
    assert!(seen.into_iter().all(|seen| seen));
    assert_eq!(client.open_jobs(), 0);
}

#[test]
fn a_thousand_jobs_are_open_at_once_and_end_in_any_order() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(options(folder.path())).unwrap();
    let client = attach(daemon.socket());
    for round in 0..3 {
        for token in 0..JOBS_MAX as u64 {
            client.post(echo(&client, token)).unwrap();
        }
        assert_eq!(client.open_jobs(), JOBS_MAX);
        let refused = client.post(echo(&client, 5)).unwrap_err();
        assert!(matches!(
            refused.error,
            ClientError::Full { open: JOBS_MAX }
        ));
        let refused = client.submit(*refused.job).unwrap_err();
        assert!(refused.to_string().contains("1024 jobs are open"));
        check_all_echoes(&client, JOBS_MAX as u64);
        assert!(client.poll().is_none(), "{round}");
        assert!(client.wait(Some(Duration::ZERO)).is_none());
    }
    let counters = client.counters();
    assert_eq!((counters.on_engines, counters.on_host), (3 * 1024, 0));
    // Calls in between do not mind.
    let empty = client.kernel("empty").unwrap();
    for token in 0..100 {
        client.post(echo(&client, token)).unwrap();
        client.call(empty, Args::new()).unwrap();
    }
    check_all_echoes(&client, 100);
}

#[test]
fn tickets_are_waited_for_in_any_order_by_any_thread() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(options(folder.path())).unwrap();
    let client = attach(daemon.socket());
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let client = &client;
            scope.spawn(move || {
                for round in 0..20 {
                    let tokens = (0..16).map(|token| thread * 1000 + round * 16 + token);
                    let mut tickets: Vec<_> = tokens
                        .map(|token| client.submit(echo(client, token)).unwrap())
                        .collect();
                    if round % 2 == 0 {
                        tickets.reverse();
                    }
                    for ticket in tickets {
                        let token = ticket.token();
                        let outcome = ticket.wait();
                        assert_eq!(outcome.token, token);
                        check_echo(&outcome);
                    }
                }
            });
        }
    });
    assert_eq!(client.open_jobs(), 0);
    assert_eq!(client.counters().on_host, 0);
    let endless = client.kernel("endless").unwrap();
    let slow = client.submit(Job::new(endless).words(&[2])).unwrap();
    assert!(!slow.is_done());
    let slow = slow.wait_for(Duration::from_millis(1)).unwrap_err();
    slow.cancel();
    assert!(slow.wait().result.is_err());
}

#[test]
fn a_job_names_up_to_sixteen_stretches() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(options(folder.path())).unwrap();
    let attached = attach(daemon.socket());
    let alone = Client::detached(folder.path().join("nobody"), client_options());
    let kernel = attached.kernel("gather").unwrap();
    for client in [&attached, &alone] {
        for inputs in 1..JOB_SEGMENTS_MAX {
            let outputs = JOB_SEGMENTS_MAX - inputs;
            let mut source = client.buffer(inputs * 48);
            let bytes = source.bytes_mut();
            bytes
                .iter_mut()
                .zip(0..)
                .for_each(|(byte, value)| *byte = value as u8);
            let source = Arc::new(source);
            // Stretches in reverse order, and outputs with gaps that stay.
            let mut target = client.buffer(1000);
            target.bytes_mut().fill(0xee);
            let each = inputs * 40 / outputs;
            let parts = (0..outputs).map(|index| index * (each + 1)..index * (each + 1) + each);
            let mut job = Job::new(kernel);
            let mut wanted = Vec::new();
            for index in (0..inputs).rev() {
                let range = index * 48..index * 48 + 40;
                wanted.extend_from_slice(&source.bytes()[range.clone()]);
                job = job.input_part(Arc::clone(&source), range);
            }
            let outcome = client
                .submit(job.output_parts(target, parts.clone()))
                .unwrap()
                .wait();
            assert_eq!(outcome.result.unwrap().words[0], inputs as u64 * 40);
            let mut expected = vec![0xee; 1000];
            for (part, from) in parts.zip(wanted.chunks(each.max(1))) {
                let from = &from[..part.len()];
                expected[part].copy_from_slice(from);
            }
            assert_eq!(outcome.outputs[0].bytes(), expected, "{inputs} inputs");
        }
    }
    assert_eq!(attached.counters().on_engines, 15);
    let buffer = Arc::new(attached.buffer(4));
    let many = (0..=JOB_SEGMENTS_MAX).fold(Job::new(kernel), |job, _| job.input(buffer.clone()));
    let refused = attached.submit(many).unwrap_err();
    assert!(
        refused.to_string().contains("17, the limit is 16"),
        "{refused}"
    );
    let beyond = Job::new(kernel).input_part(buffer, 2..5);
    assert!(attached.submit(beyond).is_err());
    let twice = Job::new(kernel).output_parts(attached.buffer(9), [0..5, 4..9]);
    assert!(
        attached
            .submit(twice)
            .unwrap_err()
            .to_string()
            .contains("overlapping")
    );
    assert!(attached.submit(Job::new(kernel).words(&[0; 7])).is_err());
}

#[test]
fn what_fails_says_why_and_gives_its_buffers_back() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(options(folder.path())).unwrap();
    let client = attach(daemon.socket());
    let kernel = client.kernel("echo").unwrap();
    let job = Job::new(kernel)
        .input(client.buffer(10))
        .output(client.buffer(9));
    let outcome = client.submit(job).unwrap().wait();
    let error = outcome.result.unwrap_err();
    assert!(matches!(error, ClientError::Engine { .. }));
    assert!(error.to_string().contains("10 bytes do not fit"), "{error}");
    assert_eq!((outcome.inputs[0].len(), outcome.outputs[0].len()), (10, 9));
}

#[test]
fn a_job_that_was_not_begun_is_taken_back_and_one_that_runs_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(options(folder.path())).unwrap();
    let client = attach(daemon.socket());
    let endless = client.kernel("endless").unwrap();
    let begun: Vec<_> = (0..2)
        .map(|_| client.submit(Job::new(endless)).unwrap())
        .collect();
    eventually("both engines are busy", || {
        running(0).load(Ordering::Relaxed) == 2
    });
    let waiting = client.submit(echo(&client, 1)).unwrap();
    let posted = client.post(echo(&client, 2)).unwrap();
    drop(client.submit(echo(&client, 3)).unwrap());
    assert!(!waiting.is_done() && waiting.cancel());
    assert!(client.cancel(posted) && !client.cancel(posted));
    let outcome = waiting.wait();
    assert!(matches!(outcome.result, Err(ClientError::Cancelled)));
    // Nothing was done: the output is as it was.
    assert!(outcome.outputs[0].bytes().iter().all(|&byte| byte == !1));
    let outcome = client.wait(None).unwrap();
    assert_eq!(outcome.token, 2);
    assert!(matches!(outcome.result, Err(ClientError::Cancelled)));
    // Their places are used again when an engine has passed them.
    assert!(begun.iter().all(|ticket| !ticket.cancel()));
    for ticket in begun {
        let error = ticket.wait().result.unwrap_err();
        assert!(error.to_string().contains("nobody wants it"), "{error}");
    }
    for token in 0..JOBS_MAX as u64 {
        eventually("a place", || client.open_jobs() < JOBS_MAX);
        client.post(echo(&client, token)).unwrap();
    }
    check_all_echoes(&client, JOBS_MAX as u64);
    // A ticket that is dropped tells the kernel, too.
    let ticket = client.submit(Job::new(endless)).unwrap();
    eventually("it runs", || running(0).load(Ordering::Relaxed) == 1);
    drop(ticket);
    eventually("it ends", || running(0).load(Ordering::Relaxed) == 0);
}

/// Wakes the thread that it is of.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(value) => return value,
            Poll::Pending => std::thread::park(),
        }
    }
}

#[test]
fn futures_need_no_runtime_with_a_daemon_or_without() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(options(folder.path())).unwrap();
    let client = attach(daemon.socket());
    let all = |client: &Client| {
        let tickets: Vec<_> = (0..50)
            .map(|token| client.submit(echo(client, token)).unwrap())
            .collect();
        block_on(async move {
            for ticket in tickets {
                check_echo(&ticket.await);
            }
        });
    };
    all(&client);
    assert_eq!(client.counters().on_engines, 50);
    // One that is waited for while the daemon goes is done here.
    let endless = client.kernel("endless").unwrap();
    let tickets = [(); 2].map(|()| client.submit(Job::new(endless).words(&[1])).unwrap());
    let pending = client.submit(echo(&client, 9)).unwrap();
    let stopper = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        daemon.stop();
    });
    check_echo(&block_on(pending));
    stopper.join().unwrap();
    drop(tickets);
    let alone = Client::detached(folder.path().join("nobody"), client_options());
    all(&alone);
    assert_eq!(alone.counters().on_host, 50);
    // A client that goes takes its thread with it, and a ticket outlives its client.
    let ticket = alone.submit(echo(&alone, 77)).unwrap();
    drop(alone);
    check_echo(&block_on(ticket));
}

#[test]
fn a_descriptor_is_readable_when_a_job_has_ended_or_the_daemon() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(options(folder.path())).unwrap();
    let client = attach(daemon.socket());
    let mut ready = Vec::new();
    let mut readable = |timeout: Duration| {
        let descriptor = client.descriptor().unwrap();
        local_socket::poll(&[descriptor.as_fd()], &mut ready, timeout).unwrap();
        ready[0]
    };
    // It may be, at first; then not before a job.
    readable(Duration::ZERO);
    assert!(client.poll().is_none());
    assert!(!readable(Duration::ZERO));
    let spin = client.kernel("spin_us").unwrap();
    for round in 0..50 {
        for token in 0..1 + round % 5 {
            let job = Job::new(spin).words(&[round * 20]).token(token);
            client.post(job).unwrap();
        }
        let mut done = 0;
        while done <= round % 5 {
            match client.poll() {
                Some(outcome) => {
                    outcome.result.unwrap();
                    done += 1;
                }
                None => assert!(readable(Duration::from_secs(60)), "round {round}"),
            }
        }
        assert!(client.poll().is_none());
    }
    // Without the driver thread, a polling caller drives futures.
    let ticket = client.submit(echo(&client, 4)).unwrap();
    let mut ticket = std::pin::pin!(ticket);
    let mut context = Context::from_waker(Waker::noop());
    let outcome = loop {
        if let Poll::Ready(outcome) = ticket.as_mut().poll(&mut context) {
            break outcome;
        }
        assert!(client.poll().is_none());
    };
    check_echo(&outcome);
    // A job that the daemon's end leaves to this process.
    let endless = client.kernel("endless").unwrap();
    let tickets = [(); 2].map(|()| client.submit(Job::new(endless).words(&[1])).unwrap());
    client.post(echo(&client, 5)).unwrap();
    assert!(client.poll().is_none());
    let stopper = std::thread::spawn(move || daemon.stop());
    let outcome = loop {
        match client.poll() {
            Some(outcome) => break outcome,
            None => _ = readable(Duration::from_millis(100)),
        }
    };
    check_echo(&outcome);
    stopper.join().unwrap();
    drop(tickets);
}

#[test]
fn a_client_alone_does_its_jobs_itself() {
    let folder = tempfile::tempdir().unwrap();
    let client = Client::detached(folder.path().join("nobody"), client_options());
    for token in 0..100 {
        client.post(echo(&client, token)).unwrap();
    }
    check_all_echoes(&client, 100);
    let ticket = client.submit(echo(&client, 1)).unwrap();
    assert!(ticket.is_done());
    check_echo(&ticket.wait());
    let ticket = client.submit(echo(&client, 1)).unwrap();
    assert!(ticket.cancel());
    let outcome = ticket.wait_for(Duration::ZERO).unwrap();
    assert!(matches!(outcome.result, Err(ClientError::Cancelled)));
    assert_eq!((client.counters().on_host, client.open_jobs()), (101, 0));
    // Buffers of a client alone are copied for a daemon that came later.
    let daemon = Daemon::start(options(folder.path())).unwrap();
    let attached = attach(daemon.socket());
    let kernel = attached.kernel("sum_f64").unwrap();
    let mut own: Buffer = client.buffer(800);
    own.values_mut::<f64>().fill(2.0);
    let outcome = attached.submit(Job::new(kernel).input(own)).unwrap().wait();
    assert_eq!(f64::from_bits(outcome.result.unwrap().words[0]), 200.0);
    assert_eq!(attached.counters().on_engines, 1);
}

const ROLE: &str = "SIDECORE_TEST_ROLE";
const SOCKET: &str = "SIDECORE_TEST_SOCKET";

/// Not a test of its own: the daemon that is killed.
#[test]
fn child() {
    if let (Ok(role), Ok(socket)) = (std::env::var(ROLE), std::env::var(SOCKET)) {
        assert_eq!(role, "daemon");
        let socket = Path::new(&socket).to_owned();
        let folder = socket.parent().unwrap();
        Daemon::start(options(folder)).unwrap().wait();
    }
}

#[test]
fn a_thousand_open_jobs_survive_a_daemon_that_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("daemon.sock");
    let mut given_up = 0;
    for round in 0..6_u64 {
        let mut daemon = Command::new(std::env::current_exe().unwrap())
            .args(["jobs::child", "--exact", "--nocapture"])
            .env(ROLE, "daemon")
            .env(SOCKET, &socket)
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let mut attached = None;
        eventually("the daemon serves", || {
            attached = Client::attach_with(&socket, client_options()).ok();
            attached.is_some()
        });
        let client = attached.unwrap();
        let spin = client.kernel("spin_us").unwrap();
        // So that most are open when it dies; two were begun.
        for _ in 0..2 {
            client
                .post(Job::new(spin).words(&[20_000]).token(u64::MAX))
                .unwrap();
        }
        let mut tickets = Vec::new();
        for token in 0..1000 {
            if token % 10 == 3 {
                tickets.push(client.submit(echo(&client, token)).unwrap());
            } else {
                client.post(echo(&client, token)).unwrap();
            }
        }
        // Some rounds let it do a part.
        std::thread::sleep(Duration::from_millis(round * 8));
        daemon.kill().unwrap();
        daemon.wait().unwrap();
        let mut posted = 0;
        while let Some(outcome) = client.wait(None) {
            if outcome.token != u64::MAX {
                check_echo(&outcome);
                posted += 1;
            }
        }
        assert_eq!(posted, 900);
        for ticket in tickets {
            check_echo(&ticket.wait());
        }
        let counters = client.counters();
        assert_eq!(counters.on_engines + counters.on_host, 1002);
        assert_eq!(counters.given_up, counters.on_host);
        given_up += counters.given_up;
        assert_eq!(client.open_jobs(), 0);
    }
    assert!(given_up > 0, "every daemon was quicker than its end");
}

#[test]
#[allow(unsafe_code)] // A child that does not exec.
fn a_child_does_its_copies_of_the_jobs_itself() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(options(folder.path())).unwrap();
    let client = attach(daemon.socket());
    let endless = client.kernel("endless").unwrap();
    let busy = [(); 2].map(|()| client.submit(Job::new(endless).words(&[1])).unwrap());
    for token in 0..20 {
        client.post(echo(&client, token)).unwrap();
    }
    // SAFETY: the child only uses the client, which no other thread uses, and allocates, which the
    // C library allows; it ends without running destructors.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let mut right = 0;
        while let Some(outcome) = client.wait(None) {
            let byte = outcome.token as u8;
            let output = outcome.outputs[0].bytes();
            right += u32::from(outcome.result.is_ok() && output.iter().all(|&it| it == byte));
        }
        right += u32::from(client.counters().on_host == 20);
        // It may have attached by itself meanwhile, to a daemon whose engines are busy.
        let is_own = client.submit(echo(&client, 7)).is_ok_and(|ticket| {
            match ticket.wait_for(Duration::from_secs(1)) {
                Ok(outcome) => outcome.result.is_ok(),
                Err(_) => client.counters().attached == 2,
            }
        });
        let status = i32::from(right != 21 || !is_own);
        // SAFETY: ends this process alone.
        unsafe { libc::_exit(status) };
    }
    assert!(child > 0);
    let mut status = 0;
    // SAFETY: a child of this process, and a place for its status.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    // The parent's are as they were.
    drop(busy);
    eventually("both kernels ended", || client.open_jobs() <= 20);
    check_all_echoes(&client, 20);
    assert_eq!(client.counters().on_host, 0);
}

//! An end that is killed: the other's work is flushed, its connection ends, and others go on.
#![allow(clippy::unwrap_used)] // Helper functions of tests.

use sidecore_rdma::{
    Access, ConnectionId, Device, End, Event, Options, Pieces, Post, QueueId, Queued, Queues,
    ReadyBy, Receive, Region, Setup, Status, Transport, Work,
};
use std::net::SocketAddr;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(60);
/// Environment variable for the child process that is killed.
const ADDRESS: &str = "SIDECORE_TEST_KILLED_AT";

/// A child that does not outlive its test.
struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// Both sides may send first.
fn options() -> Options {
    Options {
        setup: Setup::PeerToPeer(ReadyBy::Message),
        ..Options::default()
    }
}

/// The end that is killed: it connects, and sends nothing more.
#[test]
fn victim() {
    let Ok(address) = std::env::var(ADDRESS) else {
        return; // a run of all tests
    };
    let mut device = Device::open(Transport::Kernel).unwrap();
    let queue = device.create_queue(16).unwrap();
    let queues = Queues {
        send: queue,
        receive: queue,
    };
    let address: SocketAddr = address.parse().unwrap();
    device.connect(address, options(), queues, b"").unwrap();
    loop {
        device.wait(LONG).unwrap();
        while device.next_event().is_some() {}
    }
}

fn connected(device: &mut Device, queue: QueueId, address: SocketAddr) -> (Guard, ConnectionId) {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "victim"])
        .env(ADDRESS, address.to_string())
        .spawn()
        .unwrap();
    let child = Guard(child);
    let begun = Instant::now();
    loop {
        device.wait(LONG).unwrap();
        match device.next_event() {
            Some(Event::Requested { connection, .. }) => {
                let queues = Queues {
                    send: queue,
                    receive: queue,
                };
                device.accept(connection, queues, b"").unwrap();
            }
            Some(Event::Established { connection, .. }) => return (child, connection),
            Some(other) => panic!("{other:?}"),
            None => assert!(begun.elapsed() < LONG, "nobody comes"),
        }
    }
}

fn poll_one(device: &mut Device, queue: QueueId) -> Option<Queued> {
    let mut one = [None];
    device.poll_or_progress(queue, &mut one).unwrap();
    one[0]
}

fn read(region: Region, bytes: u32) -> Work {
    // With a key that does not exist: a living peer would reject it.
    Work::Read {
        into: region.piece(0, bytes),
        remote: region.remote(0),
    }
}

#[test]
fn the_other_end_gets_errors_and_others_go_on() {
    let mut device = Device::open(Transport::Kernel).unwrap();
    let queue = device.create_queue(64).unwrap();
    let local = SocketAddr::from(([127, 0, 0, 1], 0));
    let listener = device.listen(local, 8, options()).unwrap();
    let address = device.listener_address(listener).unwrap();
    let (killed, connection) = connected(&mut device, queue, address);
    let (_spared, other) = connected(&mut device, queue, address);
    let adapter = device.adapter_mut();
    let region = adapter
        .register(vec![0; 1 << 20], Access::LOCAL_WRITE)
        .unwrap();
    // Stopped, so that it does not reply any more.
    let pid = killed.0.id().to_string();
    assert!(
        Command::new("kill")
            .args(["-STOP", &pid])
            .status()
            .unwrap()
            .success()
    );
    // The signal is pending when `kill` returns; the process stops when it next handles signals.
    let begun = Instant::now();
    let stopped = format!("{pid} (");
    while !std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| stat.starts_with(&stopped) && stat.contains(") T "))
    {
        assert!(begun.elapsed() < LONG, "it does not stop");
        std::thread::yield_now();
    }
    for id in 0..3 {
        let receive = Receive {
            id,
            pieces: Pieces::from_iter([region.piece(0, 64)]),
        };
        device.post_receive(connection, receive).unwrap();
    }
    let post = Post {
        id: 7,
        work: read(region, 1 << 20),
        fence: false,
    };
    device.post(connection, post).unwrap();
    drop(killed);
    let (mut flushed, mut end) = (Vec::new(), None);
    let begun = Instant::now();
    while flushed.len() < 4 || end.is_none() {
        assert!(begun.elapsed() < LONG, "{flushed:?} {end:?}");
        device.wait(Duration::from_millis(100)).unwrap();
        while let Some(queued) = poll_one(&mut device, queue) {
            assert_eq!(queued.connection, connection);
            assert_eq!(queued.completion.status, Status::Flushed);
            flushed.push(queued.completion.id);
        }
        if let Some(event) = device.next_event() {
            match event {
                Event::Ended {
                    connection: its,
                    end: how,
                    ..
                } => {
                    assert_eq!(its, connection);
                    end = Some(how);
                }
                other => panic!("{other:?}"),
            }
        }
    }
    flushed.sort_unstable();
    assert_eq!(flushed, [0, 1, 2, 7]);
    // A process that exits closes its streams between two units, as if in order.
    assert!(matches!(end, Some(End::Lost | End::Orderly)));
    device.close(connection).unwrap();
    // The other one is unaffected.
    assert!(device.pair(other).is_some_and(|pair| pair.end().is_none()));
    let post = Post {
        id: 8,
        work: Work::Write {
            pieces: Pieces::new(),
            remote: region.remote(0),
        },
        fence: false,
    };
    device.post(other, post).unwrap();
    let begun = Instant::now();
    loop {
        if let Some(queued) = poll_one(&mut device, queue) {
            assert_eq!((queued.connection, queued.completion.id), (other, 8));
            assert_eq!(queued.completion.status, Status::Done);
            break;
        }
        assert!(begun.elapsed() < LONG, "a write of no bytes is not done");
    }
}

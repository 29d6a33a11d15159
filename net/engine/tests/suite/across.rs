//! Two applications of one engine: bytes are copied from one's chunks to the other's, completely
//! and in order, even if one reads late, closes early or exits.
#![allow(clippy::unwrap_used)] // Helper functions of tests.

use sidecore_net::engine::{Engine, EngineOptions};
use sidecore_net::nic::{Capabilities, Nic, NicError, Outgoing, Received};
use sidecore_net::sock::client::{Client, ClientOptions, Socket, status};
use sidecore_net::sock::control::{Admission, Control};
use sidecore_net::{Cidr, Config, Stack};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const OURS: [u8; 4] = [10, 0, 0, 1];
const PATIENCE: Duration = Duration::from_secs(60);
const BYTES: usize = 8 << 20;

/// A NIC without a network.
struct NoNetwork;

impl Nic for NoNetwork {
    fn capabilities(&self) -> Capabilities {
        Capabilities::plain([2, 0, 0, 0, 0, 1], 1500)
    }

    fn receive(&mut self, _: usize, _: &mut dyn FnMut(Received<'_>)) -> Result<usize, NicError> {
        Ok(0)
    }

    fn transmit(&mut self, _: &Outgoing<'_>) -> Result<bool, NicError> {
        Ok(true)
    }

    fn flush(&mut self) -> Result<(), NicError> {
        Ok(())
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

struct Running {
    folder: tempfile::TempDir,
    _control: Control,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("net.sock");
        let (control, server) = Control::start(&path, Admission::default()).unwrap();
        let addresses = vec![Cidr {
            address: IpAddr::from(OURS),
            prefix_bits: 24,
        }];
        let config = Config {
            addresses,
            sessions_max: 64,
            ..Config::default()
        };
        let stack = Stack::new(config, &NoNetwork.capabilities()).unwrap();
        let mut engine = Engine::new(NoNetwork, stack, Some(server), EngineOptions::default());
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let idle = |_: &mut Stack| {
                std::thread::yield_now();
                0
            };
            engine.run(&stopped, idle).unwrap();
        });
        Self {
            folder,
            _control: control,
            stop,
            thread: Some(thread),
        }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("net.sock")
    }

    fn attach(&self, chunks: u32) -> Client {
        let options = ClientOptions {
            chunks,
            ..ClientOptions::default()
        };
        Client::attach(&self.path(), &options).unwrap()
    }

    /// A session between the two.
    fn pair(&self, reader: &mut Client, writer: &mut Client) -> [Socket; 2] {
        let at = SocketAddr::from((OURS, 80));
        let listener = reader.listen(at, 1).unwrap();
        let there = writer.connect(at).unwrap();
        let here = until(|| {
            reader.poll(Duration::ZERO).unwrap();
            writer.poll(Duration::ZERO).unwrap();
            let accepted = reader.accept(listener);
            accepted.map(|(session, _)| session)
        });
        until(|| {
            writer.poll(Duration::ZERO).unwrap();
            writer.is_connected(there).then_some(())
        });
        reader.close(listener).unwrap();
        [here, there]
    }

    fn counter(&self, name: &str) -> u64 {
        let report: serde_json::Value =
            serde_json::from_str(&status(&self.path()).unwrap()).unwrap();
        report["stack"][name].as_u64().unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        let ended = self.thread.take().unwrap().join();
        assert!(ended.is_ok() || std::thread::panicking());
    }
}

fn until<T>(mut found: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(it) = found() {
            return it;
        }
        assert!(begun.elapsed() < PATIENCE, "nothing happens");
        std::thread::yield_now();
    }
}

/// The byte of direction `which` at `offset`; the period divides no power of two.
fn byte(which: usize, offset: usize) -> u8 {
    ((offset % 65_521) * 7 + (offset >> 16) + which * 31) as u8
}

/// One end: the bytes it has written and read.
struct End {
    client: Client,
    session: Socket,
    which: usize,
    written: usize,
    got: usize,
}

impl End {
    fn write(&mut self, most: usize) {
        let end = (self.written + most).min(BYTES);
        let block: Vec<u8> = (self.written..end).map(|at| byte(self.which, at)).collect();
        self.written += self.client.write(self.session, &block).unwrap();
        self.client.poll(Duration::ZERO).unwrap();
    }

    fn read(&mut self, most: usize) {
        self.client.poll(Duration::ZERO).unwrap();
        let mut bytes = vec![0; most];
        if let Some(count) = self.client.read(self.session, &mut bytes).unwrap() {
            assert!(count > 0 || self.got == BYTES, "the end comes early");
            for &found in &bytes[..count] {
                assert_eq!(found, byte(1 - self.which, self.got), "at {}", self.got);
                self.got += 1;
            }
        }
    }
}

fn ends(running: &Running, chunks: u32) -> [End; 2] {
    let mut clients = [running.attach(chunks), running.attach(chunks)];
    let [first, second] = &mut clients;
    let sessions = running.pair(first, second);
    let mut which = 0;
    clients.map(|client| {
        which += 1;
        End {
            client,
            session: sessions[which - 1],
            which: which - 1,
            written: 0,
            got: 0,
        }
    })
}

#[test]
fn both_ways_at_once_in_blocks_of_all_sizes() {
    let running = Running::start();
    let [mut one, mut other] = ends(&running, 64);
    let mut round = 0_usize;
    until(|| {
        round += 1;
        for end in [&mut one, &mut other] {
            end.write(1 + round * 7919 % 70_000);
            // If one is late, its bytes wait in the stack.
            if end.which == 0 || round % 64 > 32 {
                end.read(1 + round * 104_729 % 90_000);
            }
        }
        (one.got == BYTES && other.got == BYTES).then_some(())
    });
    // The scheduler determines how many are copied directly and how many are sent in segments; both
    // ways must be used.
    let across = running.counter("across_bytes");
    assert!(across > 0, "no bytes went across");
    for end in [&mut one, &mut other] {
        end.client.shutdown(end.session).unwrap();
    }
    for end in [&mut one, &mut other] {
        until(|| {
            end.read(1);
            end.client.readiness(end.session).ended.then_some(())
        });
    }
}

#[test]
fn a_reader_that_keeps_up_has_all_without_a_segment() {
    let running = Running::start();
    let [mut one, mut other] = ends(&running, 64);
    let (segments, across) = (
        running.counter("segments_sent"),
        running.counter("across_bytes"),
    );
    while other.got < 1 << 20 {
        one.write(4096);
        let written = one.written;
        until(|| {
            other.read(1 << 16);
            (other.got == written).then_some(())
        });
    }
    assert_eq!(running.counter("across_bytes") - across, 1 << 20);
    assert_eq!(running.counter("segments_sent"), segments);
}

#[test]
fn the_end_of_one_is_told_to_the_other_behind_its_bytes() {
    let running = Running::start();
    // It sends as much as it may and closes in order: the other reads everything, then the end.
    let [mut one, mut other] = ends(&running, 16);
    until(|| {
        one.write(100_000);
        other.read(10_000);
        (one.written > 2 << 20).then_some(())
    });
    let (written, session) = (one.written, one.session);
    one.client.close(session).unwrap();
    one.client.poll(Duration::ZERO).unwrap();
    until(|| {
        if other.got < written {
            other.read(50_000);
        }
        other.client.poll(Duration::ZERO).unwrap();
        (other.got == written && other.client.readiness(other.session).ended).then_some(())
    });
    // The sessions of a process that exits are reset, and the writer gets the error.
    let [one, mut other] = ends(&running, 16);
    drop(one);
    until(|| {
        let block = [0; 1000];
        other.client.poll(Duration::ZERO).unwrap();
        other.client.write(other.session, &block).err()
    });
}

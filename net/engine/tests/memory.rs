//! Memory of the stack: nothing is allocated per packet once a session is established, and an idle
//! one takes at most 1 KiB. Nor does an application's side allocate for what it writes and reads.
//!
//! Two stacks over the shared-memory link, in one thread and in virtual time; an allocator counts
//! the requests of this thread.
#![allow(unsafe_code, clippy::unwrap_used)] // An allocator; helper functions of tests.

#[path = "common/loopback.rs"]
mod loopback;

use loopback::Loopback;
use sidecore_net::memory::mapped_stack;
use sidecore_net::nic::Nic;
use sidecore_net::nic::pair::{Pair, PairOptions, link};
use sidecore_net::sock::client::{Client, ClientOptions, Socket};
use sidecore_net::sock::control::{Admission, Control};
use sidecore_net::{Cidr, Config, Event, ListenerId, SessionId, Stack};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::net::IpAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call is passed unchanged to the system's allocator; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promise, handed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// One test at a time: the resident set belongs to the whole process.
static ALONE: Mutex<()> = Mutex::new(());

struct End {
    stack: Stack,
    nic: Pair,
}

struct Both {
    ends: [End; 2],
    listener: ListenerId,
    now_ns: u64,
}

impl Both {
    fn new(offload: bool, sessions_max: usize) -> Self {
        let options = PairOptions {
            offload,
            ..PairOptions::default()
        };
        let (first, second) = link(&options).unwrap();
        let end = |nic: Pair, number: u8| {
            let address = IpAddr::from([10, 0, 0, number]);
            let config = Config {
                addresses: vec![Cidr {
                    address,
                    prefix_bits: 24,
                }],
                sessions_max,
                seed: number.into(),
                ..Config::default()
            };
            End {
                stack: mapped_stack(config, &nic.capabilities()).unwrap(),
                nic,
            }
        };
        let mut ends = [end(first, 1), end(second, 2)];
        let at = ([10, 0, 0, 2], 80).into();
        let listener = ends[1].stack.listen(at, 1 << 16).unwrap();
        Self {
            ends,
            listener,
            now_ns: 1_000_000_000,
        }
    }

    /// A round of each loop, 10 us apart.
    fn round(&mut self) {
        for End { stack, nic } in &mut self.ends {
            self.now_ns += 10_000;
            let now_ns = self.now_ns;
            nic.receive(64, &mut |frame| stack.receive(now_ns, frame))
                .unwrap();
            stack.process_staged();
            stack.transmit(now_ns, &mut |frame| nic.transmit(frame).unwrap());
            nic.flush().unwrap();
        }
    }

    /// Opens sessions; the identifiers of both ends of each.
    fn open(&mut self, count: usize) -> Vec<[SessionId; 2]> {
        let to = ([10, 0, 0, 2], 80).into();
        let mut all = Vec::new();
        while all.len() < count {
            let batch = (count - all.len()).min(32);
            let clients: Vec<_> = (0..batch)
                .map(|_| self.ends[0].stack.connect(to, None).unwrap())
                .collect();
            let mut servers = Vec::new();
            for _ in 0..200 {
                self.round();
                while let Some(id) = self.ends[1].stack.accept(self.listener).unwrap() {
                    servers.push(id);
                }
                if servers.len() == batch {
                    break;
                }
            }
            // Sorted by their ports, which both ends know.
            let port = |stack: &Stack, id, remote: bool| {
                let (ours, theirs) = stack.addresses(id).unwrap();
                if remote { theirs.port() } else { ours.port() }
            };
            let mut clients = clients;
            clients.sort_by_key(|&id| port(&self.ends[0].stack, id, false));
            servers.sort_by_key(|&id| port(&self.ends[1].stack, id, true));
            assert_eq!(clients.len(), servers.len(), "sessions opened");
            all.extend(clients.into_iter().zip(servers).map(|(a, b)| [a, b]));
        }
        all
    }

    /// Replies to the server's sessions; the number of replies.
    fn answer(&mut self) -> usize {
        let (mut scratch, mut count) = ([0; 64], 0);
        let stack = &mut self.ends[1].stack;
        while let Some(event) = stack.next_event() {
            if let Event::Session(id) = event
                && stack.read(id, &mut scratch).unwrap() == 64
            {
                assert_eq!(stack.write(id, &scratch).unwrap(), 64);
                count += 1;
            }
        }
        count
    }

    /// One request of each session, and its reply.
    fn exchange(&mut self, sessions: &[[SessionId; 2]]) {
        for [client, _] in sessions {
            assert_eq!(self.ends[0].stack.write(*client, &[7; 64]).unwrap(), 64);
        }
        let (mut scratch, mut got) = ([0; 64], 0);
        for _ in 0..100 {
            self.round();
            self.answer();
            while let Some(event) = self.ends[0].stack.next_event() {
                if let Event::Session(id) = event {
                    got += self.ends[0].stack.read(id, &mut scratch).unwrap();
                }
            }
            if got == 64 * sessions.len() {
                return;
            }
        }
        panic!("{got} bytes of {} answers", sessions.len());
    }

    /// Carries `bytes` through one session.
    fn carry(&mut self, [from, to]: [SessionId; 2], bytes: usize, scratch: &mut [u8]) {
        let (mut written, mut got) = (0, 0);
        while got < bytes {
            let most = scratch.len().min(bytes - written);
            written += self.ends[0].stack.write(from, &scratch[..most]).unwrap();
            self.round();
            got += self.ends[1].stack.read(to, scratch).unwrap();
            for end in &mut self.ends {
                while end.stack.next_event().is_some() {}
            }
        }
    }
}

fn allocations(work: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.get();
    work();
    ALLOCATIONS.get() - before
}

#[test]
fn a_request_and_its_answer_allocate_nothing() {
    let _alone = ALONE.lock();
    for count in [1, 100, 3_000] {
        let mut both = Both::new(false, 4096);
        let sessions = both.open(count);
        // Warm-up: buffers, and lists of their final size.
        let warm_ns = both.now_ns + 500_000_000;
        while both.now_ns < warm_ns {
            both.exchange(&sessions);
        }
        let allocated = allocations(|| {
            for _ in 0..20_000 / count + 1 {
                both.exchange(&sessions);
            }
        });
        assert_eq!(allocated, 0, "with {count} sessions");
    }
    // Checks that the allocator counts at all.
    assert_eq!(allocations(|| drop(std::hint::black_box(Box::new(1)))), 1);
}

#[test]
fn a_bulk_transfer_allocates_nothing() {
    let _alone = ALONE.lock();
    for offload in [false, true] {
        let mut both = Both::new(offload, 64);
        let session = both.open(1)[0];
        let mut scratch = vec![3; 256 << 10];
        both.carry(session, 64 << 20, &mut scratch);
        let allocated = allocations(|| both.carry(session, 64 << 20, &mut scratch));
        assert_eq!(allocated, 0, "offload {offload}");
    }
}

/// Sends messages from one end of a session to the other until `count` have arrived whole.
fn exchange(client: &mut Client, [from, to]: [Socket; 2], count: usize) {
    let mut message = [7; 1000];
    for _ in 0..count {
        let mut written = 0;
        let mut read = 0;
        while read < message.len() {
            written += client.write(from, &message[written..]).unwrap();
            read += client.read(to, &mut message[read..]).unwrap().unwrap_or(0);
            while client.next_ready().is_some() {}
            client.poll(Duration::from_millis(1)).unwrap();
        }
    }
}

/// Ends the engine's thread when dropped.
struct Stops<'s>(&'s AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

#[test]
fn a_client_reads_and_writes_without_an_allocation() {
    let _alone = ALONE.lock();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("net.sock");
    let (_control, mut server) = Control::start(&path, Admission::default()).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut stack = Loopback::default();
            while !stop.load(Ordering::Acquire) {
                server.poll(&mut stack);
                std::thread::yield_now();
            }
        });
        // Also if a check fails: the scope waits for the thread.
        let _stops = Stops(&stop);
        let mut client = Client::attach(&path, &ClientOptions::default()).unwrap();
        let service = "192.0.2.1:80".parse().unwrap();
        let listener = client.listen(service, 8).unwrap();
        let near = client.connect(service).unwrap();
        let far = loop {
            client.poll(Duration::from_millis(100)).unwrap();
            if let Some((session, _)) = client.accept(listener) {
                break session;
            }
        };
        while !client.is_connected(near) {
            client.poll(Duration::from_millis(100)).unwrap();
        }
        // The first messages give queues their size.
        exchange(&mut client, [near, far], 100);
        exchange(&mut client, [far, near], 100);
        let allocated = allocations(|| {
            exchange(&mut client, [near, far], 1000);
            exchange(&mut client, [far, near], 1000);
        });
        assert_eq!(allocated, 0);
    });
}

/// The process's resident memory, in bytes. Not `VmRSS`, which may be off by some pages of each
/// core (proc_pid_status(5)).
fn resident_bytes() -> usize {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap();
    let line = text.lines().find(|line| line.starts_with("Rss:")).unwrap();
    let kib: usize = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kib << 10
}

#[test]
fn an_idle_session_costs_at_most_a_kibibyte() {
    let _alone = ALONE.lock();
    let count = 30_000;
    let mut both = Both::new(false, 32_768);
    // Fixed memory, independent of the number of sessions.
    let few = both.open(64);
    both.exchange(&few);
    let before = resident_bytes();
    let sessions = both.open(count);
    // After some use, too: memory of a request is returned.
    both.exchange(&sessions[..1_000]);
    let idle = resident_bytes() - before;
    let each = idle / (2 * count);
    assert!(each <= 1024, "{each} bytes");
    assert!(each >= 256, "{each} bytes: not all of it was measured");
}

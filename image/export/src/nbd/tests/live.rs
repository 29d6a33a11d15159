//! The server over sockets: several clients, bad clients, and leaving in good order.

use crate::nbd::client::{Client, Load, measure_random, measure_sequential};
use crate::nbd::wire::{self, Request, command, option};
use crate::nbd::{Address, NbdError, Options, Server, Stopper};
use parking_lot::{Condvar, Mutex};
use sidecore_format::source::{BlockSource, Deliver, Extent, MemorySource, ReadError};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A server on a thread; stopped and waited for on drop.
pub(super) struct Running {
    directory: tempfile::TempDir,
    stopper: Stopper,
    thread: Option<JoinHandle<Result<(), NbdError>>>,
}

impl Running {
    pub(super) fn new(source: Arc<dyn BlockSource>, options: Options) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let address = Address::Unix(directory.path().join("nbd.sock"));
        let server = Server::bind(source, &[address], options).unwrap();
        Self {
            stopper: server.stopper(),
            thread: Some(std::thread::spawn(move || server.run())),
            directory,
        }
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.directory.path().join("nbd.sock")
    }

    pub(super) fn client(&self) -> Client {
        Client::connect(&self.socket(), "").unwrap()
    }

    /// A connection that is past the greeting.
    pub(super) fn connected(&self) -> UnixStream {
        let mut stream = UnixStream::connect(self.socket()).unwrap();
        let limit = Some(Duration::from_secs(20));
        stream.set_read_timeout(limit).unwrap();
        stream.read_exact(&mut [0; wire::GREETING_BYTES]).unwrap();
        stream.write_all(&3_u32.to_be_bytes()).unwrap();
        stream
    }

    /// A connection in the transmission phase, with simple replies.
    fn raw(&self) -> UnixStream {
        let mut stream = UnixStream::connect(self.socket()).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        assert!(shakes_hands(&mut stream));
        stream
    }

    fn stop(&mut self) {
        self.stopper.stop();
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap().unwrap();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Goes through a handshake; whether the server served it to the end.
fn shakes_hands(mut stream: impl Read + Write) -> bool {
    let mut greeting = [0; wire::GREETING_BYTES];
    stream.read_exact(&mut greeting).unwrap();
    let mut hello = 3_u32.to_be_bytes().to_vec();
    hello.extend_from_slice(&wire::OPTION_MAGIC.to_be_bytes());
    hello.extend_from_slice(&option::EXPORT_NAME.to_be_bytes());
    hello.extend_from_slice(&0_u32.to_be_bytes());
    stream.write_all(&hello).unwrap();
    stream.read_exact(&mut [0; 10]).is_ok()
}

fn bytes(count: usize) -> Vec<u8> {
    (0..count).map(|at| (at * 7 + at / 251) as u8 | 1).collect()
}

fn memory(count: usize) -> Arc<MemorySource> {
    Arc::new(MemorySource::new(bytes(count)))
}

fn read_request(cookie: u64, offset: u64, len: u32) -> [u8; 28] {
    let request = Request {
        flags: 0,
        command: command::READ,
        cookie,
        offset,
        len: len.into(),
    };
    request.encode()
}

/// Waits for something that must come about, on a machine that may be busy.
fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// True when the peer has closed the connection; data that it sends before that are dropped.
fn is_closed(stream: &mut UnixStream) -> bool {
    let mut rest = [0; 65536];
    loop {
        match stream.read(&mut rest) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }
}

#[test]
fn reads_of_any_range_are_right() {
    let expected = bytes(5_000_001);
    let server = Running::new(memory(expected.len()), Options::default());
    let mut client = server.client();
    assert_eq!(client.size_bytes, expected.len() as u64);
    for (offset, len) in [
        (0, 1),
        (0, 4096),
        (65_530, 20),
        (4_999_999, 2),
        (1, 3_000_001),
        (0, 5_000_001),
    ] {
        let mut got = vec![0; len];
        client.read_at(offset as u64, &mut got).unwrap();
        assert!(
            got == expected[offset..offset + len],
            "wrong bytes in {len} at {offset}"
        );
    }
    let mut past = vec![0; 2];
    assert!(client.read_at(5_000_000, &mut past).is_err());
}

#[test]
fn simple_replies_of_any_length_are_whole() {
    let expected = bytes(3_500_000);
    let server = Running::new(memory(expected.len()), Options::default());
    let mut stream = server.raw();
    for (offset, len) in [(7, 100), (100_000, 3_400_000)] {
        stream
            .write_all(&read_request(3, offset as u64, len as u32))
            .unwrap();
        let mut got = vec![0; 16 + len];
        stream.read_exact(&mut got).unwrap();
        assert_eq!(got[..16], wire::simple_reply(3, 0));
        assert!(got[16..] == expected[offset..offset + len]);
    }
}

#[test]
fn several_connections_with_many_requests_each_get_their_own_bytes() {
    let expected = Arc::new(bytes(1 << 20));
    let server = Running::new(memory(expected.len()), Options::default());
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let mut stream = server.raw();
            let expected = Arc::clone(&expected);
            scope.spawn(move || {
                for round in 0..20_u64 {
                    // 64 requests at once; replies come in any order and must carry their own
                    // bytes.
                    let place =
                        |cookie: u64| (cookie * 7919 + round * 104_729 + thread * 31) % 900_000;
                    let length = |cookie: u64| (cookie * 997 % 9000 + 1) as u32;
                    let mut out = Vec::new();
                    for cookie in 0..64 {
                        out.extend(read_request(cookie, place(cookie), length(cookie)));
                    }
                    stream.write_all(&out).unwrap();
                    let mut seen = [false; 64];
                    for _ in 0..64 {
                        let mut head = [0; 16];
                        stream.read_exact(&mut head).unwrap();
                        let cookie = u64::from_be_bytes(head[8..].try_into().unwrap());
                        assert_eq!(head, wire::simple_reply(cookie, 0));
                        let mut got = vec![0; length(cookie) as usize];
                        stream.read_exact(&mut got).unwrap();
                        let from = place(cookie) as usize;
                        assert!(got == expected[from..from + got.len()]);
                        assert!(!std::mem::replace(&mut seen[cookie as usize], true));
                    }
                }
            });
        }
    });
}

/// Serves memory, but lets a read continue only when `gate` says so; counts the reads inside.
struct Gated {
    inner: MemorySource,
    inside: Mutex<usize>,
    changed: Condvar,
    /// Reads wait until this many are inside at once.
    together: usize,
    delivering: AtomicUsize,
    delivered: AtomicUsize,
    panics_at: Option<u64>,
}

impl Gated {
    fn new(count: usize, together: usize) -> Self {
        Self {
            inner: MemorySource::new(bytes(count)),
            inside: Mutex::new(0),
            changed: Condvar::new(),
            together,
            delivering: AtomicUsize::new(0),
            delivered: AtomicUsize::new(0),
            panics_at: None,
        }
    }
}

impl BlockSource for Gated {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }

    fn preferred_bytes(&self) -> u32 {
        65536
    }

    fn read_with_max_bytes(&self) -> usize {
        1 << 20
    }

    fn read_into(&self, offset: u64, dst: &mut [u8]) -> Result<(), ReadError> {
        self.inner.read_into(offset, dst)
    }

    fn read_with(&self, offset: u64, len: usize, deliver: &mut Deliver<'_>) {
        assert!(
            self.panics_at != Some(offset),
            "a fault of the device, on purpose"
        );
        {
            let mut inside = self.inside.lock();
            *inside += 1;
            self.changed.notify_all();
            let deadline = Instant::now() + Duration::from_secs(30);
            while *inside < self.together {
                if self.changed.wait_until(&mut inside, deadline).timed_out() {
                    return deliver(Err(&ReadError::Io {
                        reason: "nobody else came".to_owned(),
                    }));
                }
            }
        }
        self.delivering.fetch_add(1, Ordering::SeqCst);
        self.inner.read_with(offset, len, deliver);
        self.delivering.fetch_sub(1, Ordering::SeqCst);
        self.delivered.fetch_add(1, Ordering::SeqCst);
    }

    fn extent(&self, offset: u64) -> Extent {
        self.inner.extent(offset)
    }
}

#[test]
fn requests_of_one_connection_are_served_side_by_side() {
    let options = Options {
        workers_max: 3,
        ..Options::default()
    };
    let source = Arc::new(Gated::new(1 << 20, 3));
    let server = Running::new(source, options);
    let mut stream = server.raw();
    let mut out = Vec::new();
    for cookie in 0..3 {
        out.extend(read_request(cookie, cookie * 512, 512));
    }
    stream.write_all(&out).unwrap();
    for _ in 0..3 {
        let mut reply = [0; 16 + 512];
        stream.read_exact(&mut reply).unwrap();
        assert_eq!(reply[4..8], [0; 4], "the reads did not meet");
    }
}

#[test]
fn a_client_that_takes_nothing_holds_no_bytes_of_the_device_and_is_given_up() {
    let source = Arc::new(Gated::new(4 << 20, 1));
    let options = Options {
        patience: Duration::from_millis(1500),
        workers_max: 2,
        clients_max: 2,
        ..Options::default()
    };
    let server = Running::new(Arc::clone(&source) as Arc<dyn BlockSource>, options);
    let mut stream = server.raw();
    let mut out = Vec::new();
    for cookie in 0..8 {
        out.extend(read_request(cookie, 0, 1 << 20));
    }
    stream.write_all(&out).unwrap();
    // Each worker has a reply that the client does not receive; they need not be inside at the same
    // time.
    wait_for("both workers to have been in the device", || {
        *source.inside.lock() >= 2
    });
    wait_for("the device to be left alone", || {
        source.delivering.load(Ordering::SeqCst) == 0
    });
    // Others are served meanwhile.
    let mut other = server.client();
    let mut got = vec![0; 4096];
    other.read_at(8192, &mut got).unwrap();
    assert_eq!(got, bytes(12288)[8192..]);
    // Both places are occupied until the slow client has lost its own.
    wait_for("the server to give up", || {
        Client::connect(&server.socket(), "").is_ok()
    });
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest);
    assert!(rest.len() < 2 << 20, "{} bytes came after all", rest.len());
}

#[test]
fn nonsense_ends_only_its_own_connection() {
    let server = Running::new(memory(1 << 20), Options::default());
    let mut good = server.client();
    for nonsense in [
        &b"GET / HTTP/1.1\r\nHost: nbd\r\n\r\n"[..],
        &[0xff; 4096],
        &[0; 64],
    ] {
        let mut stream = UnixStream::connect(server.socket()).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        stream.write_all(nonsense).unwrap();
        assert!(is_closed(&mut stream), "{nonsense:?} was not turned away");
        let mut stream = server.raw();
        stream.write_all(nonsense).unwrap();
        assert!(is_closed(&mut stream), "{nonsense:?} was not turned away");
    }
    good.read_at(0, &mut [0; 512]).unwrap();
}

#[test]
fn a_client_that_stops_within_a_request_is_given_up() {
    let options = Options {
        patience: Duration::from_millis(300),
        handshake_max: Duration::from_millis(300),
        ..Options::default()
    };
    let server = Running::new(memory(1 << 20), options);
    let mut quiet = server.client();
    let mut silent = UnixStream::connect(server.socket()).unwrap();
    let mut half = server.raw();
    half.write_all(&read_request(1, 0, 512)[..13]).unwrap();
    for stream in [&mut silent, &mut half] {
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        assert!(is_closed(stream));
    }
    // A client that is quiet between requests stays connected.
    std::thread::sleep(Duration::from_millis(700));
    quiet.read_at(0, &mut [0; 512]).unwrap();
}

#[test]
fn a_client_that_leaves_within_a_reply_harms_nobody() {
    let server = Running::new(memory(8 << 20), Options::default());
    let mut good = server.client();
    for _ in 0..8 {
        let mut stream = server.raw();
        stream.write_all(&read_request(1, 0, 8 << 20)).unwrap();
        stream.read_exact(&mut [0; 1000]).unwrap();
        drop(stream);
        good.read_at(0, &mut [0; 512]).unwrap();
    }
}

#[test]
fn one_client_too_many_is_turned_away_until_another_leaves() {
    let server = Running::new(memory(1 << 20), Options::default());
    let mut clients: Vec<Client> = (0..64).map(|_| server.client()).collect();
    assert!(
        Client::connect(&server.socket(), "").is_err(),
        "the 65th client was let in"
    );
    for client in &mut clients {
        client.read_at(4096, &mut [0; 4096]).unwrap();
    }
    drop(clients.pop());
    wait_for("a free place", || {
        Client::connect(&server.socket(), "").is_ok()
    });
}

#[test]
fn a_device_that_panics_costs_only_the_connection() {
    let mut source = Gated::new(1 << 20, 1);
    source.panics_at = Some(4096);
    let server = Running::new(Arc::new(source), Options::default());
    let mut good = server.client();
    assert!(server.client().read_at(4096, &mut [0; 512]).is_err());
    good.read_at(0, &mut [0; 512]).unwrap();
}

#[test]
fn stopping_finishes_replies_and_removes_the_socket() {
    // Two reads wait for each other inside the device; the second is sent only when the server is
    // stopping.
    let source = Arc::new(Gated::new(1 << 20, 2));
    let mut server = Running::new(
        Arc::clone(&source) as Arc<dyn BlockSource>,
        Options::default(),
    );
    let mut stream = server.raw();
    let mut other = server.raw();
    stream.write_all(&read_request(1, 512, 700)).unwrap();
    wait_for("the read to begin", || *source.inside.lock() == 1);
    other.write_all(&read_request(2, 0, 1)).unwrap();
    wait_for("the other read to begin", || *source.inside.lock() == 2);
    let socket = server.socket();
    server.stop();
    assert!(!socket.exists(), "the socket was left behind");
    let mut reply = vec![0; 16 + 700];
    stream.read_exact(&mut reply).unwrap();
    assert_eq!(reply[16..], bytes(1 << 20)[512..512 + 700]);
    assert!(is_closed(&mut stream));
}

#[test]
fn replies_under_way_on_other_workers_outlast_the_one_that_sees_the_end() {
    let source = Arc::new(Gated::new(1 << 20, 3));
    let options = Options {
        workers_max: 3,
        ..Options::default()
    };
    let mut server = Running::new(Arc::clone(&source) as Arc<dyn BlockSource>, options);
    let mut stream = server.raw();
    let mut out = read_request(1, 0, 600).to_vec();
    out.extend(read_request(2, 0, 600));
    // The client takes its leave at once; the two replies are due all the same.
    let leave = Request {
        flags: 0,
        command: command::DISC,
        cookie: 0,
        offset: 0,
        len: 0,
    };
    out.extend(leave.encode());
    stream.write_all(&out).unwrap();
    wait_for("both reads to begin", || *source.inside.lock() == 2);
    let opener = Arc::clone(&source);
    let opens = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(100));
        *opener.inside.lock() = 3;
        opener.changed.notify_all();
    });
    server.stop();
    assert_eq!(
        source.delivered.load(Ordering::SeqCst),
        2,
        "a worker was left inside"
    );
    opens.join().unwrap();
    let mut replies = vec![0; 2 * 616];
    stream.read_exact(&mut replies).unwrap();
    assert!(is_closed(&mut stream));
}

#[test]
fn a_dead_socket_is_replaced_and_a_live_one_or_a_file_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("nbd.sock");
    let bind = || {
        let address = Address::Unix(path.clone());
        Server::bind(memory(512), &[address], Options::default())
    };
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists(), "std is expected to leave its socket behind");
    let server = bind().unwrap();
    let refused = bind().err().unwrap();
    assert!(matches!(refused, NbdError::InUse { .. }), "{refused}");
    drop(server);
    assert!(!path.exists());
    std::fs::write(&path, "precious").unwrap();
    let refused = bind().err().unwrap();
    assert!(matches!(refused, NbdError::NotASocket { .. }), "{refused}");
    assert_eq!(std::fs::read(&path).unwrap(), b"precious");
}

#[test]
fn tcp_serves_too() {
    let address: Address = "tcp:127.0.0.1:0".parse().unwrap();
    let server = Server::bind(memory(1 << 20), &[address], Options::default()).unwrap();
    let Some(Address::Tcp(at)) = server.addresses().pop() else {
        panic!("no TCP address");
    };
    let stopper = server.stopper();
    let thread = std::thread::spawn(move || server.run());
    let mut stream = TcpStream::connect(at).unwrap();
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting).unwrap();
    assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
    stopper.stop();
    thread.join().unwrap().unwrap();
    assert_eq!(stream.read(&mut greeting).unwrap(), 0);
}

#[test]
fn silent_clients_keep_nobody_out_and_one_network_not_all_places() {
    let address: Address = "tcp:127.0.0.1:0".parse().unwrap();
    let unix = tempfile::tempdir().unwrap();
    let addresses = [address, Address::Unix(unix.path().join("nbd.sock"))];
    let options = Options {
        clients_max: 4,
        ..Options::default()
    };
    let server = Server::bind(memory(1 << 20), &addresses, options).unwrap();
    let Some(Address::Tcp(at)) = server.addresses().into_iter().next() else {
        panic!("no TCP address");
    };
    let stopper = server.stopper();
    let thread = std::thread::spawn(move || server.run());
    let connect = || {
        let stream = TcpStream::connect(&at).unwrap();
        let patience = Some(Duration::from_secs(20));
        stream.set_read_timeout(patience).unwrap();
        stream
    };
    let silent: Vec<_> = (0..20).map(|_| connect()).collect();
    let mut served = Vec::new();
    for _ in 0..3 {
        let stream = connect();
        assert!(shakes_hands(&stream));
        served.push(stream);
    }
    // The fourth place is another peer's.
    assert!(!shakes_hands(&connect()));
    let mut own = Client::connect(&unix.path().join("nbd.sock"), "").unwrap();
    own.read_at(0, &mut [0; 512]).unwrap();
    // All four are occupied: the next client is refused before the handshake begins.
    assert!(is_closed(
        &mut UnixStream::connect(unix.path().join("nbd.sock")).unwrap()
    ));
    drop((silent, served, own));
    stopper.stop();
    thread.join().unwrap().unwrap();
}

#[test]
fn the_measuring_client_reads_what_it_says() {
    let server = Running::new(memory(1 << 20), Options::default());
    let load = Load {
        block_bytes: 4096,
        depth: 8,
        requests_max: 1000,
        time_max: Duration::from_secs(60),
    };
    let random = measure_random(&server.socket(), &load, 42).unwrap();
    assert_eq!((random.requests, random.bytes), (1000, 4_096_000));
    assert!(random.p50_us > 0.0 && random.p50_us <= random.p99_us);
    let in_order = measure_sequential(&server.socket(), &load).unwrap();
    assert_eq!((in_order.requests, in_order.bytes), (256, 1 << 20));
}

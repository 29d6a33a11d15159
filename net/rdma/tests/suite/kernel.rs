//! Connections over kernel sockets, both sides ours, each on a thread of its own.

use sidecore_rdma::server::{Exchange, serve_kernel};
use sidecore_rdma::{
    Access, Adapter, Atomic, Connection, End, Kind, Options, Pieces, Post, RdmaError, ReadyBy,
    Receive, Remote, Request, Setup, Stag, Status, Work, ping,
};
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// Longer than any step here takes.
const LONG: Duration = Duration::from_secs(60);

/// CRC of a unit with an RDMA Write of no bytes to steering tag 0, offset 0.
const CRC: [u8; 4] = [0xa3, 0x05, 0x72, 0xab];

fn stream(stream: TcpStream) -> TcpStream {
    stream.set_nonblocking(true).expect("a socket");
    stream.set_nodelay(true).expect("a socket");
    stream
}

/// Runs a server on the first connection, concurrently with a client.
fn pair<C: Send, S: Send>(
    client: impl FnOnce(TcpStream, Adapter) -> C + Send,
    server: impl FnOnce(TcpStream, Adapter) -> S + Send,
) -> (C, S) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    thread::scope(|scope| {
        let server = scope.spawn(move || {
            let (accepted, _) = listener.accept().expect("a client");
            server(stream(accepted), Adapter::new().expect("random numbers"))
        });
        let connected = TcpStream::connect(address).expect("the server listens");
        let client = client(stream(connected), Adapter::new().expect("random numbers"));
        (client, server.join().expect("the server's thread"))
    })
}

#[test]
fn rping_s_exchange_goes_both_ways_round() {
    for (index, crc) in [(0, true), (1, false), (2, true)] {
        let options = Options {
            crc,
            setup: [
                Setup::Basic,
                Setup::Enhanced,
                Setup::PeerToPeer(ReadyBy::Message),
            ][index],
            ..Options::default()
        };
        let (pinged, served) = pair(
            |stream, mut adapter| {
                let connection =
                    Connection::connect(stream, &mut adapter, options, b"", LONG).expect("open");
                assert_eq!(connection.pair().has_crc(), crc);
                ping::ping(connection, &mut adapter, 20, 5000, LONG).expect("twenty rounds")
            },
            |stream, mut adapter| {
                let options = Options {
                    crc: false,
                    ..options
                };
                let request =
                    Request::wait(stream, &mut adapter, options, LONG).expect("a request");
                ping::serve(request, &mut adapter, LONG).expect("twenty rounds")
            },
        );
        assert_eq!((pinged.rounds, pinged.bytes), (20, 100_000));
        assert_eq!(served, pinged);
    }
}

#[test]
fn put_get_and_atomics_reach_the_peer_s_memory() {
    let data: Vec<u8> = (0..3_000_000_u32)
        .map(|byte| (byte * 7 % 251) as u8)
        .collect();
    let (mine, theirs) = pair(
        |stream, mut adapter| {
            let options = Options::default();
            let mut connection =
                Connection::connect(stream, &mut adapter, options, b"hello", LONG).expect("open");
            let told = connection.private_data();
            let word = |at: usize| u32::from_be_bytes([0, 1, 2, 3].map(|byte| told[at + byte]));
            let stag = Stag(word(0));
            let remote = |offset| Remote { stag, offset };
            let local = adapter
                .register(data.clone(), Access::LOCAL_WRITE)
                .expect("room");
            let piece = local.piece(0, local.bytes as u32);
            connection
                .put(&mut adapter, piece, remote(8), LONG)
                .expect("put");
            adapter.bytes_mut(local).fill(0);
            connection
                .get(&mut adapter, piece, remote(8), LONG)
                .expect("got");
            let atomic = Work::Atomic {
                atomic: Atomic::Add(5),
                remote: remote(0),
            };
            let post = Post {
                id: 3,
                work: atomic,
                fence: false,
            };
            connection.post(&adapter, post).expect("room");
            let completion = connection.wait(&mut adapter, LONG).expect("an answer");
            assert_eq!(
                (completion.kind, completion.original),
                (Kind::Atomic, Some(0))
            );
            connection
                .send(&mut adapter, local.piece(0, 10), LONG)
                .expect("sent");
            connection.close(&mut adapter, LONG).expect("in order");
            adapter.bytes(local).to_vec()
        },
        |stream, mut adapter| {
            let access = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
            let region = adapter.register(vec![0; 3_000_008], access).expect("room");
            let inbox = adapter
                .register(vec![0; 10], Access::LOCAL_WRITE)
                .expect("room");
            let mut request =
                Request::wait(stream, &mut adapter, Options::default(), LONG).expect("a request");
            assert_eq!(request.private_data(), b"hello");
            let receive = Receive {
                id: 1,
                pieces: Pieces::from_iter([inbox.piece(0, 10)]),
            };
            request.post_receive(&adapter, receive).expect("room");
            let told = region.stag.0.to_be_bytes();
            let mut connection = request.accept(&mut adapter, &told).expect("open");
            let completion = connection.wait(&mut adapter, LONG).expect("a message");
            assert_eq!((completion.kind, completion.bytes), (Kind::Receive, 10));
            connection.close(&mut adapter, LONG).expect("in order");
            adapter.bytes(region).to_vec()
        },
    );
    assert!(mine == data && theirs[8..] == data[..]);
    assert_eq!(theirs[..8], 5_u64.to_ne_bytes());
}

#[test]
fn a_fault_is_told_and_ends_this_connection() {
    let (mine, theirs) = pair(
        |stream, mut adapter| {
            let options = Options::default();
            let mut connection =
                Connection::connect(stream, &mut adapter, options, b"", LONG).expect("open");
            let region = adapter
                .register(vec![1; 10], Access::LOCAL_WRITE)
                .expect("room");
            let nowhere = Remote {
                stag: Stag(12_345),
                offset: 0,
            };
            let piece = region.piece(0, 10);
            connection
                .get(&mut adapter, piece, nowhere, LONG)
                .expect_err("nothing is there")
        },
        |stream, mut adapter| {
            let request =
                Request::wait(stream, &mut adapter, Options::default(), LONG).expect("a request");
            let mut connection = request.accept(&mut adapter, b"").expect("open");
            connection
                .wait(&mut adapter, LONG)
                .expect_err("the peer is at fault")
        },
    );
    assert!(
        matches!(mine, RdmaError::Undone(Status::Flushed)),
        "{mine:?}"
    );
    assert!(
        matches!(theirs, RdmaError::Ended(End::Sent(_))),
        "{theirs:?}"
    );
}

#[test]
fn a_refusal_arrives_with_its_reason() {
    let (mine, ()) = pair(
        |stream, mut adapter| {
            let options = Options::default();
            Connection::connect(stream, &mut adapter, options, b"", LONG).expect_err("refused")
        },
        |stream, mut adapter| {
            let request =
                Request::wait(stream, &mut adapter, Options::default(), LONG).expect("a request");
            request.reject(&mut adapter, b"full", LONG).expect("said");
        },
    );
    assert!(matches!(mine, RdmaError::Ended(End::Rejected)), "{mine:?}");
}

#[test]
fn a_peer_that_talks_without_end_is_late_too() {
    let short = Duration::from_millis(200);
    let (mine, ()) = pair(
        |stream, mut adapter| {
            let mut connection =
                Connection::connect(stream, &mut adapter, Options::default(), b"", LONG)
                    .expect("open");
            // Its empty writes never stop; a message never arrives.
            connection.wait(&mut adapter, short).expect_err("late")
        },
        |mut stream, mut adapter| {
            let request = Request::wait(
                stream.try_clone().expect("a socket"),
                &mut adapter,
                Options::default(),
                LONG,
            );
            let connection = request
                .expect("a request")
                .accept(&mut adapter, b"")
                .expect("open");
            stream.set_nonblocking(false).expect("a socket");
            let mut unit = vec![0, 14, 0xc1, 0x40];
            unit.resize(16, 0);
            unit.extend(CRC);
            while stream.write_all(&unit).is_ok() {}
            drop(connection);
        },
    );
    let is_told = matches!(mine, RdmaError::Late(_));
    assert!(is_told, "{mine:?}");
}

#[test]
fn a_peer_that_says_nothing_is_late() {
    let short = Duration::from_millis(50);
    let (mine, ()) = pair(
        |stream, mut adapter| {
            let options = Options::default();
            Connection::connect(stream, &mut adapter, options, b"", short).expect_err("late")
        },
        |mut stream, _| {
            // Until the client goes.
            stream.set_nonblocking(false).expect("a socket");
            std::io::copy(&mut stream, &mut std::io::sink()).ok();
        },
    );
    assert!(matches!(mine, RdmaError::Late(_)), "{mine:?}");
}

#[test]
fn a_server_whose_owner_panics_does_not_wait_for_ever() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let exchange = Exchange {
        options: Options::default(),
        timeout: LONG,
        settle: Duration::ZERO,
    };
    let (over, is_over) = mpsc::channel();
    let server = thread::spawn(move || {
        let told = |_, outcome: Result<_, RdmaError>| panic!("meant to happen: {outcome:?}");
        let _over = over;
        serve_kernel(&listener, &exchange, told)
    });
    let mut client = TcpStream::connect(address).expect("the server listens");
    client.write_all(b"no request, and no end of it").ok();
    drop(client);
    let outcome = is_over.recv_timeout(LONG);
    assert_eq!(outcome, Err::<(), _>(mpsc::RecvTimeoutError::Disconnected));
    server.join().expect_err("its panic comes out");
}

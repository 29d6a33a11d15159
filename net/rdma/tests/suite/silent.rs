//! A server under many connections that are silent, or send only half a request: an honest client
//! is served nevertheless.

use sidecore_rdma::server::{CLIENTS_MAX, Exchange, ping_kernel, serve_kernel};
use sidecore_rdma::{Options, RdmaError};
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);

/// A request for a connection, revision 1, no private data.
const REQUEST: &[u8; 20] = b"MPA ID Req Frame\x40\x01\x00\x00";

fn exchange() -> Exchange {
    Exchange {
        options: Options::default(),
        timeout: LONG,
        settle: Duration::ZERO,
    }
}

#[test]
fn silent_connections_lock_nobody_out() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let unintroduced = AtomicUsize::new(0);
    thread::scope(|scope| {
        let served = scope.spawn(|| {
            let told = |_, outcome: Result<_, RdmaError>| {
                if matches!(outcome, Err(RdmaError::NotIntroduced)) {
                    unintroduced.fetch_add(1, Ordering::Relaxed);
                }
                // Until an honest client was served.
                outcome.is_err()
            };
            serve_kernel(&listener, &exchange(), told)
        });
        let connect = || TcpStream::connect(address).expect("the server listens");
        let mute: Vec<TcpStream> = (0..2 * CLIENTS_MAX).map(|_| connect()).collect();
        // They start to introduce themselves: a message never follows.
        let half: Vec<TcpStream> = (0..CLIENTS_MAX)
            .map(|_| {
                let mut stream = connect();
                // Fails if it was evicted already.
                stream.write_all(REQUEST).ok();
                stream
            })
            .collect();
        let (pinged, _) = ping_kernel(address, &exchange(), 3, 64).expect("it is served");
        assert_eq!(pinged.rounds, 3);
        // It ends without waiting for the silent ones.
        served.join().expect("no panic").expect("served");
        drop((mute, half));
    });
    assert!(unintroduced.load(Ordering::Relaxed) >= usize::from(2 * CLIENTS_MAX));
}

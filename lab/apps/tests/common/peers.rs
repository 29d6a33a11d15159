//! Both ends of a test's sessions: plain sockets of the kernel, and clients that are polled.
#![allow(clippy::unwrap_used, dead_code)] // Helper functions of tests; each test uses some.

use sidecore_net::sock::client::{Client, Socket};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

/// A session of the kernel's.
pub(crate) fn connect(address: &str) -> TcpStream {
    let address: SocketAddr = address.parse().unwrap();
    let stream = TcpStream::connect_timeout(&address, PATIENCE).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// 64 bytes to an echo server, and back.
pub(crate) fn round_trip(stream: &mut TcpStream, byte: u8) {
    stream.write_all(&[byte; 64]).unwrap();
    let mut answer = [0; 64];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(answer, [byte; 64]);
}

/// A datagram to an echo server, and back.
pub(crate) fn datagram(address: &str, bytes: &[u8]) {
    let own = if address.starts_with('[') {
        "[::]:0"
    } else {
        "0.0.0.0:0"
    };
    let socket = UdpSocket::bind(own).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.connect(address).unwrap();
    socket.send(bytes).unwrap();
    let mut answer = vec![0; bytes.len() + 1];
    let length = socket.recv(&mut answer).unwrap();
    assert_eq!(&answer[..length], bytes);
}

/// A session of ours, once it is open.
pub(crate) fn open(client: &mut Client, address: &str) -> Socket {
    let session = client.connect(address.parse().unwrap()).unwrap();
    until(client, |client| {
        client.readiness(session).writable.then_some(())
    });
    session
}

/// Polls until `found` finds something.
pub(crate) fn until<T>(client: &mut Client, mut found: impl FnMut(&mut Client) -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(it) = found(client) {
            return it;
        }
        assert!(begun.elapsed() < PATIENCE, "it does not happen");
        client.poll(Duration::from_millis(100)).unwrap();
    }
}

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

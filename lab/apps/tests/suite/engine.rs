//! The whole path: programs of the kernel's side, a TAP, the stack, and applications over shared
//! memory. Needs root and /dev/net/tun: interfaces are made in a network namespace of the test's
//! own.
#![allow(clippy::unwrap_used)] // Helper functions of tests.

use crate::namespace;
use crate::running;

use namespace::{in_namespace, run, wait_for_ipv6};
use running::{Running, attach, connect, datagram, open, round_trip, until};
use sidecore_net_apps::Service;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr};

#[test]
fn the_kernel_talks_to_small_servers() {
    in_namespace(|| {
        let mut running = Running::up();
        running.serve(Service::Echo, "0.0.0.0:7");
        running.serve(Service::Echo, "[::]:8");
        running.serve(Service::Discard, "0.0.0.0:9");
        running.serve(Service::Source, "0.0.0.0:19");
        run("ping", "-c 3 -i 0.2 -w 15 10.77.0.2");
        wait_for_ipv6();
        run("ping", "-6 -c 3 -i 0.2 -w 15 fd77::2");
        // Any address of IPv6 stands for any of IPv4, too.
        for address in ["10.77.0.2:7", "[fd77::2]:8", "10.77.0.2:8"] {
            round_trips(address);
            megabytes(address);
            datagram(address, b"a datagram");
        }
        let mut sink = connect("10.77.0.2:9");
        sink.write_all(&vec![1; 5 << 20]).unwrap();
        sink.shutdown(Shutdown::Write).unwrap();
        assert_eq!(sink.read(&mut [0; 8]).unwrap(), 0, "it is closed in turn");
        let mut source = connect("10.77.0.2:19");
        let mut bytes = vec![0; 3 << 20];
        source.read_exact(&mut bytes).unwrap();
        assert!(bytes.iter().all(u8::is_ascii_graphic));
        drop(source);
        let served = running.down();
        assert_eq!(served[0].sessions, 2);
        assert_eq!(served[0].datagrams, 1);
        assert_eq!((served[1].sessions, served[1].datagrams), (4, 2));
        assert_eq!(served[2].received_bytes, 5 << 20);
        assert!(served[3].sent_bytes >= 3 << 20);
    });
}

/// More readers than the server has chunks ask for pages, and take nothing: one that comes later is
/// served, and so are they, once they read.
#[test]
fn readers_that_take_nothing_hold_up_no_other() {
    in_namespace(|| {
        let mut running = Running::up();
        running.serve(Service::Http, "0.0.0.0:80");
        let page = |bytes: usize| format!("GET /bytes/{bytes} HTTP/1.0\r\n\r\n");
        let mut stalled = Vec::new();
        for _ in 0..300 {
            let mut stream = connect("10.77.0.2:80");
            stream.write_all(page(3_000_000).as_bytes()).unwrap();
            stalled.push(stream);
        }
        let read = |stream: &mut std::net::TcpStream| {
            let mut bytes = Vec::new();
            stream.read_to_end(&mut bytes).unwrap();
            bytes.len()
        };
        for bytes in [10, 1_000_000] {
            let mut good = connect("10.77.0.2:80");
            good.write_all(page(bytes).as_bytes()).unwrap();
            assert!(read(&mut good) > bytes);
        }
        for mut stream in stalled.drain(..3) {
            assert!(read(&mut stream) > 3_000_000);
        }
        drop(stalled);
        running.down();
    });
}

fn round_trips(address: &str) {
    let mut stream = connect(address);
    for round in 0..100 {
        round_trip(&mut stream, round);
    }
}

fn megabytes(address: &str) {
    let mut stream = connect(address);
    let mut writer = stream.try_clone().unwrap();
    let bytes: Vec<u8> = (0..16 << 20u32)
        .map(|at: u32| ((at * 31) >> 7) as u8)
        .collect();
    let expected = bytes.clone();
    let thread = std::thread::spawn(move || {
        writer.write_all(&bytes).unwrap();
        writer.shutdown(Shutdown::Write).unwrap();
    });
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    thread.join().unwrap();
    assert!(answer == expected, "{} bytes", answer.len());
}

#[test]
fn applications_reach_the_kernel_and_one_another_is_told_apart() {
    in_namespace(|| {
        let running = Running::up();
        let listener = std::net::TcpListener::bind("10.77.0.1:5000").unwrap();
        let thread = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut said = [0; 5];
            stream.read_exact(&mut said).unwrap();
            stream.write_all(&said).unwrap();
        });
        let mut client = attach(&running.path());
        let session = open(&mut client, "10.77.0.1:5000");
        assert_eq!(client.write(session, b"hello").unwrap(), 5);
        let mut said = [0; 5];
        let count = until(&mut client, |client| {
            client.read(session, &mut said).unwrap()
        });
        assert_eq!((count, &said), (5, b"hello"));
        thread.join().unwrap();
        // No listener is there.
        let refused = client.connect("10.77.0.1:5001".parse().unwrap()).unwrap();
        until(&mut client, |client| {
            client.readiness(refused).closed.then_some(())
        });
        let error = client.read(refused, &mut said).unwrap_err().to_string();
        assert!(error.contains("refused"), "{error}");
        let error = client.connect("192.0.2.1:1".parse().unwrap()).unwrap_err();
        assert!(error.to_string().contains("no route"), "{error}");
        let error = client
            .listen("192.0.2.1:1".parse().unwrap(), 1)
            .unwrap_err();
        assert!(error.to_string().contains("not an address"), "{error}");
        running.down();
    });
}

#[test]
fn who_dies_has_its_sessions_reset_at_the_kernels_end() {
    in_namespace(|| {
        let running = Running::up();
        let mut server = attach(&running.path());
        let listener = server.listen("0.0.0.0:7".parse().unwrap(), 10).unwrap();
        let mut stream = connect("10.77.0.2:7");
        until(&mut server, |server| server.accept(listener));
        drop(server);
        let error = stream.read(&mut [0; 8]).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
        running.down();
    });
}

#[test]
fn applications_of_one_engine_talk_to_each_other() {
    in_namespace(|| {
        let mut running = Running::up();
        running.serve(Service::Echo, "0.0.0.0:7");
        let mut client = attach(&running.path());
        let session = open(&mut client, "10.77.0.2:7");
        for round in 0..1000u32 {
            assert_eq!(client.write(session, &[round as u8; 64]).unwrap(), 64);
            let mut answer = [0; 64];
            let mut have = 0;
            while have < 64 {
                have += until(&mut client, |client| {
                    client.read(session, &mut answer[have..]).unwrap()
                });
            }
            assert_eq!(answer, [round as u8; 64]);
        }
        let own: SocketAddr = "10.77.0.2:99".parse().unwrap();
        let datagrams = client.bind_udp(own).unwrap();
        assert!(
            client
                .send_to(datagrams, "10.77.0.2:7".parse().unwrap(), b"!")
                .unwrap()
        );
        let (received, from) = until(&mut client, |client| client.receive_from(datagrams));
        assert_eq!((received.bytes(), from.port()), (&b"!"[..], 7));
        client.release(received);
        running.down();
    });
}

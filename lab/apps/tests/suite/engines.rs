//! Two engines with one address, on a TAP with two queues, against programs of the kernel's side.
//! Needs root and /dev/net/tun: interfaces are made in a network namespace of the test's own.
#![allow(clippy::unwrap_used)] // Helper functions of tests.

use crate::namespace;
use crate::running;

use namespace::{in_namespace, ip, run, wait_for_ipv6};
use running::{PATIENCE, Running, attach, connect, datagram, open, round_trip, until};
use serde_json::Value;
use sidecore_net::sock::client::{Client, ClientOptions, Socket, siblings, status_of_all};
use sidecore_net_apps::Service;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const TWO: &str = "[engine]\ncount = 2";

fn status(running: &Running) -> Value {
    status_of_all(&running.path(), &ClientOptions::default().trust).unwrap()
}

fn of_engines(status: &Value, at: &str) -> Vec<u64> {
    let engines = status["engines"].as_array().unwrap().iter();
    engines
        .map(|engine| engine.pointer(at).and_then(Value::as_u64).unwrap())
        .collect()
}

fn counted(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| at as u8).collect()
}

fn clients(running: &Running) -> Vec<Client> {
    let sockets = siblings(&running.path(), &ClientOptions::default().trust).unwrap();
    sockets.iter().map(|socket| attach(socket)).collect()
}

#[test]
fn flows_are_shared_and_both_engines_answer_for_one_address() {
    in_namespace(|| {
        let mut running = Running::with(TWO);
        running.serve(Service::Echo, "[::]:7");
        run("ping", "-c 3 -i 0.2 -w 15 10.77.0.2");
        wait_for_ipv6();
        run("ping", "-6 -c 3 -i 0.2 -w 15 fd77::2");
        // In fragments.
        run("ping", "-c 2 -i 0.2 -w 15 -s 4000 10.77.0.2");
        run("ping", "-6 -c 2 -i 0.2 -w 15 -s 4000 fd77::2");
        let addresses = ["10.77.0.2:7", "[fd77::2]:7"];
        let streams = addresses.iter().cycle().take(120);
        let mut streams: Vec<TcpStream> = streams.map(|address| connect(address)).collect();
        for round in 0..3 {
            streams
                .iter_mut()
                .for_each(|stream| round_trip(stream, round));
        }
        let whole = status(&running);
        let sessions = of_engines(&whole, "/sessions");
        assert!(sessions.iter().all(|&count| count >= 30), "{sessions:?}");
        assert_eq!(whole["sessions"], sessions.iter().sum::<u64>());
        assert_eq!(whole["stack"]["opened"], 120);
        assert_eq!(whole["stack"]["resets_sent"], 0);
        assert_eq!(whole["engine_count"], 2);
        let served = whole["applications"].as_array().unwrap();
        let engines: Vec<&Value> = served.iter().map(|one| &one["engine_index"]).collect();
        assert_eq!(engines, [0, 1]);
        // The neighbour entry of one engine was passed to the other.
        let known = of_engines(&whole, "/engine/handed_taken");
        assert!(known.iter().any(|&count| count > 0), "{known:?}");
        for address in addresses {
            for bytes in [10, 1000, 5000] {
                (0..12).for_each(|_| datagram(address, &counted(bytes)));
            }
        }
        let whole = status(&running);
        let datagrams = of_engines(&whole, "/stack/datagrams_received");
        assert!(datagrams.iter().all(|&count| count > 0), "{datagrams:?}");
        let reassembled = of_engines(&whole, "/stack/packets_reassembled");
        assert!(reassembled[0] > 0 && reassembled[1] == 0, "{reassembled:?}");
        drop(streams);
        let served = running.down();
        assert_eq!((served[0].sessions, served[0].datagrams), (120, 72));
    });
}

/// Two engines on an interface of a pair, where the kernel or the device distributes incoming
/// frames without regard to the engine that sent.
fn on_an_interface(nic: &str) {
    let nic = format!("name = \"near0\"\naddress = \"02:00:00:00:77:02\"\n{nic}");
    in_namespace(move || {
        ip("link add near0 numrxqueues 2 numtxqueues 2 type veth \
            peer name far0 numrxqueues 2 numtxqueues 2");
        ip("addr add 10.77.0.1/24 dev far0");
        ip("link set near0 up");
        ip("link set far0 up");
        ip("link set near0 promisc on");
        run("ethtool", "-K far0 tx off");
        let mut running = Running::on(&nic, TWO);
        running.serve(Service::Echo, "0.0.0.0:7");
        run("ping", "-c 2 -i 0.2 -w 15 10.77.0.2");
        let streams = (0..60).map(|_| connect("10.77.0.2:7"));
        let mut streams: Vec<TcpStream> = streams.collect();
        streams.iter_mut().for_each(|stream| round_trip(stream, 1));
        for bytes in [10, 5000] {
            (0..12).for_each(|_| datagram("10.77.0.2:7", &counted(bytes)));
        }
        // Answers on connections that an engine opens arrive at the engine that the hash selects.
        let kernel = TcpListener::bind("10.77.0.1:5000").unwrap();
        let mut clients = clients(&running);
        for client in &mut clients {
            for _ in 0..8 {
                open(client, "10.77.0.1:5000");
                drop(kernel.accept().unwrap());
            }
        }
        let whole = status(&running);
        assert_eq!(whole["stack"]["resets_sent"], 0);
        let opened = of_engines(&whole, "/stack/opened");
        assert!(opened.iter().all(|&count| count > 8 + 5), "{opened:?}");
        assert!(
            of_engines(&whole, "/engine/handed_over")
                .iter()
                .all(|&count| count > 0)
        );
        drop(clients);
        drop(streams);
        running.down();
    });
}

#[test]
fn packet_sockets_share_flows() {
    on_an_interface("kind = \"packet\"");
}

#[test]
fn queues_of_an_interface_share_flows() {
    // Where the program runs behind the driver, a veth does not report a frame's queue.
    on_an_interface("kind = \"xdp\"\nmode = \"native\"");
}

#[test]
fn more_engines_than_queues_are_refused_in_one_line() {
    in_namespace(|| {
        ip("link add near0 type veth peer name far0");
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("net.sock");
        let text = format!(
            "socket = {socket:?}\n[nic]\nkind = \"xdp\"\nname = \"near0\"\n\
             [stack]\naddresses = [\"10.77.0.2/24\"]\n[engine]\ncount = 3\n"
        );
        let setup = sidecore_net::setup::Setup::parse(&text).unwrap();
        let error = setup.bring_up_engines().err().unwrap().to_string();
        assert!(
            error.contains("ethtool -l") && error.contains("queues 0..3"),
            "{error}"
        );
        assert_eq!(error.lines().count(), 1, "{error}");
        assert!(!socket.exists(), "nothing stays");
    });
}

#[test]
fn a_listener_on_one_engine_serves_what_comes_to_the_other() {
    in_namespace(|| {
        let running = Running::with(TWO);
        let mut clients = clients(&running);
        let second = &mut clients[1];
        let listener = second.listen("0.0.0.0:9".parse().unwrap(), 64).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let kernel = std::thread::spawn(move || {
            let mut streams: Vec<TcpStream> = (0..16).map(|_| connect("10.77.0.2:9")).collect();
            streams.iter_mut().for_each(|stream| round_trip(stream, 1));
            // By then the kernel has forgotten the queue of their answers.
            std::thread::sleep(FORGOTTEN);
            streams.iter_mut().for_each(|stream| round_trip(stream, 2));
            let refused = TcpStream::connect("10.77.0.2:10").unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
            stopped.store(true, Ordering::Release);
        });
        let mut sessions: Vec<Socket> = Vec::new();
        until(second, |client| {
            while let Some((session, _)) = client.accept(listener) {
                sessions.push(session);
            }
            for &session in &sessions {
                if let Ok(Some(received)) = client.receive(session) {
                    client.write(session, received.bytes()).unwrap();
                    client.release(received);
                }
            }
            stop.load(Ordering::Acquire).then_some(())
        });
        kernel.join().unwrap();
        assert_eq!(sessions.len(), 16);
        let whole = status(&running);
        assert_eq!(of_engines(&whole, "/stack/opened"), [0, 16]);
        assert!(of_engines(&whole, "/engine/handed_over")[0] > 0);
        assert_eq!(whole["engine"]["handed_lost"], 0);
        running.down();
    });
}

#[test]
fn both_open_sessions_and_who_leaves_takes_nobody_along() {
    in_namespace(|| {
        let mut running = Running::with(TWO);
        running.serve(Service::Echo, "0.0.0.0:7");
        let kernel = TcpListener::bind("10.77.0.1:5000").unwrap();
        let mut clients = clients(&running);
        let mut opened: Vec<(usize, Socket)> = Vec::new();
        let mut streams = Vec::new();
        for (index, client) in clients.iter_mut().enumerate() {
            for _ in 0..8 {
                opened.push((index, open(client, "10.77.0.1:5000")));
                streams.push(kernel.accept().unwrap().0);
            }
        }
        let mut ports: Vec<u16> = streams
            .iter()
            .map(|it| it.peer_addr().unwrap().port())
            .collect();
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), 16, "each session has a port of its own");
        for pause in [Duration::ZERO, FORGOTTEN] {
            std::thread::sleep(pause);
            for (stream, &(index, session)) in streams.iter_mut().zip(&opened) {
                stream.write_all(b"to you").unwrap();
                let mut said = [0; 6];
                let read = |client: &mut Client| client.read(session, &mut said).unwrap();
                until(&mut clients[index], read);
                assert_eq!(&said, b"to you");
            }
        }
        // One more session, which the other application continues with.
        let mut echoed = connect("10.77.0.2:7");
        round_trip(&mut echoed, 1);
        drop(clients);
        for mut stream in streams {
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            let error = stream.read(&mut [0; 8]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        }
        round_trip(&mut echoed, 2);
        for _ in 0..8 {
            round_trip(&mut connect("10.77.0.2:7"), 3);
        }
        // An application of one engine reaches the other by their own address.
        let mut second = attach(&running.path().with_extension("sock.1"));
        open(&mut second, "10.77.0.2:7");
        drop(second);
        drop(echoed);
        running.down();
    });
}

/// After 3 s the kernel forgets to which queue of a TAP a flow belongs (`drivers/net/tun.c`).
const FORGOTTEN: Duration = Duration::from_millis(4500);

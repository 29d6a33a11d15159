//! RDMA between our ends and with the kernel: one binary, so that it is linked once.
#![allow(clippy::unwrap_used)] // Helper functions of tests.

#[path = "../common/mod.rs"]
mod common;
mod device;
mod kernel;
mod linux_peers;
mod lossy;
#[path = "../many/mod.rs"]
mod many;
#[path = "../../examples/linux_peers/messages.rs"]
mod messages;
#[path = "../../examples/linux_peers/node.rs"]
mod node;
#[path = "../../examples/linux_peers/perftest.rs"]
mod perftest;
#[path = "../../examples/linux_peers/rcopy.rs"]
mod rcopy;
#[path = "../../examples/linux_peers/rsocket.rs"]
mod rsocket;
mod two;

mod silent {
    //! A server under many connections that are silent, or send only half a request: an honest
    //! client is served nevertheless.

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
}

mod addresses {
    //! Both sides by their addresses, as `sidecore rdma` has them.

    use sidecore_rdma::Options;
    use sidecore_rdma::server::{Exchange, PingReport, serve};
    use std::sync::mpsc::channel;
    use std::thread;
    use std::time::Duration;

    #[test]
    fn a_server_ends_after_its_clients_and_has_said_a_line_of_each() {
        let exchange = Exchange {
            options: Options::default(),
            timeout: Duration::from_secs(60),
            settle: Duration::ZERO,
        };
        let (ready, address) = channel();
        let (told, lines) = channel();
        thread::scope(|scope| {
            let server = scope.spawn(|| {
                let any = "127.0.0.1:0".parse().expect("an address");
                let ready = move |address| {
                    ready.send(address).expect("it is waited for");
                    Ok(())
                };
                let line = |line: &str| told.send(line.to_owned()).expect("it is read");
                serve(None, any, &exchange, Some(1), ready, line)
            });
            let address = address.recv().expect("ready");
            let report = PingReport::of(None, address, &exchange, 2, 64).expect("two rounds");
            assert!(report.line().contains("2 rounds, 128 bytes each way, "));
            server.join().expect("no panic").expect("served");
        });
        let line = lines.recv().expect("a line");
        assert!(line.contains("2 rounds"), "{line}");
    }
}

mod many_pairs {
    //! Hundreds of queue pairs on two devices, over the kernel's loopback and over one engine; ten
    //! thousand by `cargo run --release -p sidecore-rdma --example queue_pairs`. Needs root for the
    //! second: its interfaces are in a network namespace of their own.
    #![allow(clippy::print_stdout)] // what they took

    use crate::common;
    use crate::many;

    use common::beside_a_stack;
    use sidecore_rdma::Transport;
    use std::net::SocketAddr;
    use std::process::Command;

    /// More than a session's share of the device's chunks allows at once.
    const PAIRS: usize = 600;
    /// Resident memory that both ends of a pair may take: with a buffer per connection it would be
    /// ten times that.
    const BOTH_ENDS_BYTES: u64 = 48 << 10;
    /// Set in the process that measures.
    const ALONE: &str = "SIDECORE_MANY_PAIRS_ALONE";

    fn check(transport: impl Fn() -> Transport, local: SocketAddr) -> u64 {
        let report = many::run(transport, local, PAIRS).expect("all of them work");
        println!(
            "{PAIRS} pairs: opened in {:?}, used in {:?}; {} bytes, then {}",
            report.opening, report.putting, report.opened_bytes, report.used_bytes,
        );
        report.used_bytes / PAIRS as u64
    }

    #[test]
    fn all_of_many_pairs_carry_what_is_theirs() {
        // In a process of its own: memory that other tests take would count, too.
        if std::env::var_os(ALONE).is_none() {
            let name = "many_pairs::all_of_many_pairs_carry_what_is_theirs";
            let mut alone = Command::new(std::env::current_exe().unwrap());
            alone.args(["--exact", name, "--nocapture"]).env(ALONE, "1");
            let output = alone.output().unwrap();
            let said = String::from_utf8_lossy(&output.stdout);
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{said}{errors}");
            assert!(said.contains("600 pairs: opened"), "{said}");
            return;
        }
        let local = SocketAddr::from(([127, 0, 0, 1], 0));
        let each = check(|| Transport::Kernel, local);
        assert!(each < BOTH_ENDS_BYTES, "{each} bytes a pair");
        // It includes the engine's own memory and the shared chunks.
        beside_a_stack(|socket, local| {
            check(|| Transport::Stack(socket.to_owned()), local);
        });
    }
}

//! Hundreds of queue pairs on two devices, over the kernel's loopback and over one engine; ten
//! thousand by `cargo run --release -p sidecore-rdma --example queue_pairs`. Needs root for the
//! second: its interfaces are in a network namespace of their own.
#![allow(clippy::print_stdout)] // what they took

mod many;
#[path = "../../net/tests/common/namespace.rs"]
mod namespace;

use namespace::in_namespace;
use sidecore_net::hosted::host;
use sidecore_net::setup::Setup;
use sidecore_net::sock::client::ClientOptions;
use sidecore_rdma::Transport;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// More than a session's share of the device's chunks has room for at once.
const PAIRS: usize = 600;
/// Resident memory that both ends of a pair may take: one with a buffer of a connection's own takes
/// ten times that.
const BOTH_ENDS_BYTES: u64 = 48 << 10;

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
    let local = SocketAddr::from(([127, 0, 0, 1], 0));
    let each = check(|| Transport::Kernel, local);
    assert!(each < BOTH_ENDS_BYTES, "{each} bytes a pair");
    in_namespace(|| {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("rdma.sock");
        let text = format!(
            "socket = {socket:?}\n[nic]\nkind = \"tap\"\nname = \"rdma\"\n\
             host = [\"10.77.0.1/24\"]\n[stack]\naddresses = [\"10.77.0.2/24\"]\n"
        );
        let setup = Setup::parse(&text).expect("a configuration");
        let mut engine = host(&setup, &ClientOptions::default()).expect("a stack");
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            let running = scope.spawn(|| {
                // Relaxed: nothing else is published by it.
                while !over.load(Ordering::Relaxed) {
                    engine.poll(Duration::from_millis(1)).expect("it runs");
                }
            });
            let tested = std::panic::catch_unwind(|| {
                let local = SocketAddr::from(([10, 77, 0, 2], 0));
                // The engine's own memory and the shared chunks are in it, too.
                check(|| Transport::Stack(socket.clone()), local);
            });
            over.store(true, Ordering::Relaxed);
            running.join().expect("the engine's thread");
            tested.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        });
    });
}

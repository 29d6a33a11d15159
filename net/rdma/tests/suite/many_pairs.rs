//! Hundreds of queue pairs on two devices, over the kernel's loopback and over one engine; ten
//! thousand by `cargo run --release -p sidecore-rdma --example queue_pairs`. Needs root for the
//! second: its interfaces are in a network namespace of their own.
#![allow(clippy::print_stdout)] // what they took

use crate::common;
use crate::many;

use common::beside_a_stack;
use sidecore_rdma::Transport;
use std::net::SocketAddr;

/// More than a session's share of the device's chunks allows at once.
const PAIRS: usize = 600;
/// Resident memory that both ends of a pair may take: with a buffer per connection it would be ten
/// times that.
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
    // It includes the engine's own memory and the shared chunks.
    beside_a_stack(|socket, local| {
        check(|| Transport::Stack(socket.to_owned()), local);
    });
}

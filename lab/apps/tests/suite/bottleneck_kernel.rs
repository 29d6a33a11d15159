//! A live bottleneck with a finite queue (`tbf`), our stack and the kernel's CUBIC sending through
//! it in turn: ours may drop no more than twice what the kernel drops, at nine tenths of the rate.
//!
//! Needs root, /dev/net/tun and `tc`; without them it is skipped with a message, unless
//! `SIDECORE_ALL_PROGRAMS` is set. `net/stack/tests/suite/bottleneck.rs` does the same in virtual
//! time, with many rates and queues.
#![allow(clippy::unwrap_used)] // Helper functions of tests.

use crate::namespace;
use crate::running;

use namespace::{in_namespace, ip, is_left_out, no_taps, run};
use running::Running;
use sidecore_net_apps::Service;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc;
use std::time::{Duration, Instant};

const SECONDS: u64 = 10;
const MBIT: u64 = 10;
const QUEUE_BYTES: u64 = 60_000;
/// A handful, so that one drop more or less on either side decides nothing.
const SLACK: u64 = 10;
const ATTEMPTS: usize = 4;

#[test]
fn no_more_than_twice_the_kernels_drops() {
    let tc = std::process::Command::new("tc").arg("-V").output();
    if is_left_out(no_taps().or(tc.err().map(|_| "it needs tc"))) {
        return;
    }
    in_namespace(compare);
}

fn compare() {
    let (told, tid) = mpsc::channel();
    let (go, targets) = mpsc::channel::<&str>();
    let (heard, bytes) = mpsc::channel();
    // The client runs in a namespace of its own, behind the bottleneck.
    let client = std::thread::spawn(move || {
        in_this_thread();
        told.send(rustix::thread::gettid()).unwrap();
        let mut first = true;
        for target in targets {
            if first {
                ip("addr add 10.78.0.2/24 dev far0");
                ip("link set far0 up");
                ip("route add default via 10.78.0.1");
                first = false;
            }
            heard.send(receive(target)).unwrap();
        }
    });
    let tid = tid.recv().unwrap().as_raw_nonzero();
    ip("link add near0 type veth peer name far0");
    ip(&format!("link set far0 netns {tid}"));
    ip("addr add 10.78.0.1/24 dev near0");
    ip("link set near0 up");
    run("sysctl", "-qw net.ipv4.ip_forward=1");
    let mut stack =
        Running::with("routes = [{ network = \"0.0.0.0/0\", gateway = \"10.77.0.1\" }]");
    stack.serve(Service::Source, "10.77.0.2:9000");
    let kernel = TcpListener::bind("10.78.0.1:9000").unwrap();
    rustix::net::sockopt::set_tcp_congestion(&kernel, "cubic").unwrap();
    std::thread::spawn(move || {
        for mut session in kernel.incoming().flatten() {
            while session.write_all(&[7; 65_536]).is_ok() {}
        }
    });
    // Both sides need the processor in time; on a busy machine a later attempt has it.
    for attempt in 1..=ATTEMPTS {
        let mut outcomes = Vec::new();
        for target in ["10.78.0.1:9000", "10.77.0.2:9000"] {
            let limits = format!("rate {MBIT}mbit burst 16k limit {QUEUE_BYTES}");
            run("tc", &format!("qdisc replace dev near0 root tbf {limits}"));
            go.send(target).unwrap();
            let received: u64 = bytes.recv().unwrap();
            let dropped = dropped(&run("tc", "-s qdisc show dev near0"));
            run("tc", "qdisc del dev near0 root");
            let mbit = received as f64 * 8.0 / 1e6 / SECONDS as f64;
            eprintln!("{target}: {mbit:.2} Mbit/s, {dropped} dropped");
            outcomes.push((mbit, dropped));
        }
        let [(_, kernel), (mbit, ours)] = outcomes[..] else {
            unreachable!()
        };
        if ours <= 2 * kernel + SLACK && mbit >= 0.9 * MBIT as f64 {
            break;
        }
        assert!(
            attempt < ATTEMPTS,
            "{mbit:.2} Mbit/s, {ours} dropped, {kernel} by the kernel's CUBIC"
        );
    }
    drop(go);
    client.join().unwrap();
    stack.down();
}

#[allow(unsafe_code)] // unshare(2) of the calling thread
fn in_this_thread() {
    // SAFETY: only the network namespace is left; descriptors stay shared.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) }
        .expect("a network namespace of its own");
}

/// Bytes that arrive from there in the given time.
fn receive(target: &str) -> u64 {
    let mut session = TcpStream::connect(target).unwrap();
    session
        .set_read_timeout(Some(Duration::from_secs(5)))
        .unwrap();
    let (mut bytes, mut sum) = (vec![0; 65_536], 0);
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(SECONDS) {
        sum += session.read(&mut bytes).unwrap() as u64;
    }
    sum
}

/// Parses `(dropped 13, overlimits ...` from `tc`'s output.
fn dropped(text: &str) -> u64 {
    let behind = text.split("dropped ").nth(1).unwrap();
    let number = behind.split(',').next().unwrap();
    number.parse().unwrap()
}

//! `rdma serve` and `rdma ping`, from the outside: silent connections block no other client, and a
//! signal ends the server.

// A test's helpers may fail it too.
#![allow(clippy::unwrap_used)]

use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Ended on drop.
struct Serving(Child);

impl Drop for Serving {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

#[test]
fn silent_connections_lock_nobody_out_and_a_signal_ends_it() {
    let child = Command::new(env!("CARGO_BIN_EXE_sidecore"))
        .args(["rdma", "serve", "127.0.0.1:0"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut serving = Serving(child);
    let mut said = BufReader::new(serving.0.stdout.take().unwrap());
    let mut ready = String::new();
    said.read_line(&mut ready).unwrap();
    let address = ready.trim().strip_prefix("ready ").unwrap().to_owned();
    let mute: Vec<TcpStream> = (0..64)
        .map(|_| TcpStream::connect(&address).unwrap())
        .collect();
    let pinged = Command::new("timeout")
        .args(["300", env!("CARGO_BIN_EXE_sidecore"), "rdma", "ping"])
        .args([&*address, "--rounds", "2"])
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&pinged.stderr);
    assert!(pinged.status.success(), "{errors}");
    kill_process(Pid::from_child(&serving.0), Signal::TERM).unwrap();
    let begun = Instant::now();
    let status = loop {
        if let Some(status) = serving.0.try_wait().unwrap() {
            break status;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "it does not end");
        std::thread::sleep(Duration::from_millis(10));
    };
    assert_eq!(status.code(), Some(0));
    drop(mute);
}

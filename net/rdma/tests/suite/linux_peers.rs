//! The counterparts of Linux's tools (`examples/linux_peers`) with each other, over the kernel's
//! loopback, with the same exchange as between the tools themselves.
//!
//! Why here: `net/rdma/guest/run` uses the tools themselves, in a guest that is not available
//! everywhere.
#![allow(clippy::unwrap_used, clippy::expect_used)] // Helper functions of tests.

use crate::messages;
use crate::node;
use crate::perftest;
use crate::rcopy;

use node::{Failure, Node, Side};
use perftest::{Kind, Measure, Test};
use sidecore_rdma::Transport;
use std::net::SocketAddr;
use std::sync::mpsc;
use std::thread;

/// Runs both ends, each with its own thread and device; returns their reports.
fn both(
    serve: impl FnOnce(Node, SocketAddr) -> Result<String, Failure> + Send,
    connect: impl FnOnce(Node, SocketAddr) -> Result<String, Failure>,
) -> [String; 2] {
    let (tell, told) = mpsc::channel();
    thread::scope(|scope| {
        let server = scope.spawn(move || {
            let mut node = Node::new(Transport::Kernel).unwrap();
            let address = node.listen("127.0.0.1:0".parse().unwrap()).unwrap();
            tell.send(address).unwrap();
            serve(node, address).map_err(|failure| failure.to_string())
        });
        let address = told.recv().unwrap();
        let connected = connect(Node::new(Transport::Kernel).unwrap(), address);
        let served = server.join().unwrap();
        let connected = connected.unwrap_or_else(|failure| panic!("{failure}; server: {served:?}"));
        [served.unwrap(), connected]
    })
}

#[test]
fn messages_go_each_way_whoever_begins() {
    for server_begins in [false, true] {
        let run = |side, is_first| {
            move |node, address| messages::run(node, side, address, 20, 100, is_first)
        };
        let told = both(
            run(Side::Serve, server_begins),
            run(Side::Connect, !server_begins),
        );
        let expected = r#"{"messages_each_way": 20, "bytes": 100}"#;
        assert_eq!(told, [expected; 2]);
    }
}

#[test]
fn each_test_of_perftest_ends_in_order() {
    for kind in [Kind::Send, Kind::Write, Kind::Read] {
        for measure in [Measure::Latency, Measure::Bandwidth] {
            // More than one grant covers, of more than one segment.
            let (count, bytes) = (1100, 3000);
            let test = Test {
                kind,
                measure,
                count,
                bytes,
            };
            let run = |side| move |node, address| perftest::run(node, side, address, test);
            for told in both(run(Side::Serve), run(Side::Connect)) {
                assert!(told.contains(r#""count": 1100, "bytes": 3000"#), "{told}");
            }
        }
    }
}

#[test]
fn a_file_is_copied_whole() {
    let folder = tempfile::tempdir().unwrap();
    let from = folder.path().join("from");
    // Many buffers, and the last of them not full; and a file of no bytes.
    for bytes in [3_000_001_u64, 65_536, 0] {
        let content: Vec<u8> = (0..bytes).map(|at| (at * 7 % 251) as u8).collect();
        std::fs::write(&from, &content).unwrap();
        both(
            |node, _| rcopy::serve(node, folder.path()),
            |node, address| rcopy::send(node, address, &from, "/nowhere/a name of some length"),
        );
        let came = std::fs::read(folder.path().join("a name of some length")).unwrap();
        assert!(came == content, "{bytes} bytes are not what was sent");
    }
}

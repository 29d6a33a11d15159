//! One side on a session of the stack, the other on a kernel's socket, over a TAP. Needs root: each
//! test makes its interfaces in a network namespace of its own.

use crate::common;

use common::{in_namespace, stack};
use sidecore_rdma::ping::Pinged;
use sidecore_rdma::server::{Exchange, ping_kernel, ping_stack, serve_kernel, serve_stack};
use sidecore_rdma::{Options, RdmaError};
use std::net::{SocketAddr, TcpListener};
use std::thread;
use std::time::Duration;

fn exchange() -> Exchange {
    Exchange {
        options: Options::default(),
        timeout: Duration::from_secs(60),
        settle: Duration::ZERO,
    }
}

#[test]
fn the_stack_serves_a_kernel_s_socket() {
    in_namespace(|| {
        let folder = tempfile::tempdir().expect("a folder");
        let client = stack(&folder.path().join("rdma.sock"));
        let local = SocketAddr::from(([10, 77, 0, 2], 7174));
        thread::scope(|scope| {
            let server = scope.spawn(|| {
                let told = |_, outcome: Result<Pinged, RdmaError>| {
                    assert_eq!(outcome.expect("ten rounds").rounds, 10);
                    false
                };
                serve_stack(client, local, &exchange(), told)
            });
            let (pinged, _) = ping_kernel(local, &exchange(), 10, 50_000).expect("ten rounds");
            assert_eq!(pinged.bytes, 500_000);
            server.join().expect("its thread").expect("served");
        });
    });
}

#[test]
fn the_stack_pings_a_kernel_s_socket() {
    in_namespace(|| {
        let folder = tempfile::tempdir().expect("a folder");
        let client = stack(&folder.path().join("rdma.sock"));
        let listener = TcpListener::bind("10.77.0.1:7174").expect("a port");
        let peer = listener.local_addr().expect("an address");
        thread::scope(|scope| {
            let server = scope.spawn(|| {
                let told = |_, outcome: Result<Pinged, RdmaError>| {
                    assert_eq!(outcome.expect("ten rounds").rounds, 10);
                    false
                };
                serve_kernel(&listener, &exchange(), told)
            });
            let (pinged, _) =
                ping_stack(client, peer, &exchange(), 10, 50_000).expect("ten rounds");
            assert_eq!(pinged.bytes, 500_000);
            server.join().expect("its thread").expect("served");
        });
    });
}

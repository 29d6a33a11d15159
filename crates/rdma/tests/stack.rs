//! One side on a session of the stack, the other on a kernel's socket, over a TAP. Needs root: each
//! test makes its interfaces in a network namespace of its own.

#[path = "../../net/tests/common/namespace.rs"]
mod common;

use common::in_namespace;
use sidecore_net::hosted::host;
use sidecore_net::setup::Setup;
use sidecore_net::sock::client::{Client, ClientOptions};
use sidecore_rdma::ping::Pinged;
use sidecore_rdma::server::{Exchange, ping_kernel, ping_stack, serve_kernel, serve_stack};
use sidecore_rdma::{Options, RdmaError};
use std::net::{SocketAddr, TcpListener};
use std::thread;
use std::time::Duration;

/// A stack at 10.77.0.2 in this process; the kernel's end of its TAP has 10.77.0.1.
fn stack(socket: &std::path::Path) -> Client {
    let text = format!(
        "socket = {socket:?}\n[nic]\nkind = \"tap\"\nname = \"rdma\"\nhost = [\"10.77.0.1/24\"]\n\
         [stack]\naddresses = [\"10.77.0.2/24\"]\n"
    );
    let setup = Setup::parse(&text).expect("a configuration");
    host(&setup, &ClientOptions::default()).expect("a stack")
}

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

//! A stack for tests, at 10.77.0.2, in a network namespace of its own. Needs root.
#![allow(dead_code)] // not all of these tests use all of it

#[path = "../../../engine/tests/common/namespace.rs"]
mod namespace;

pub(crate) use namespace::in_namespace;
use sidecore_net::hosted::host;
use sidecore_net::setup::Setup;
use sidecore_net::sock::client::{Client, ClientOptions};
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// A stack at 10.77.0.2 in this process; the kernel's end of its TAP has 10.77.0.1.
pub(crate) fn stack(socket: &Path) -> Client {
    let text = format!(
        "socket = {socket:?}\n[nic]\nkind = \"tap\"\nname = \"rdma\"\nhost = [\"10.77.0.1/24\"]\n\
         [stack]\naddresses = [\"10.77.0.2/24\"]\n"
    );
    let setup = Setup::parse(&text).expect("a configuration");
    host(&setup, &ClientOptions::default()).expect("a stack")
}

/// Runs a test with a stack that another thread drives; the test gets the stack's socket, and an
/// address of the stack with an arbitrary port.
pub(crate) fn beside_a_stack(test: impl FnOnce(&Path, SocketAddr) + Send + 'static) {
    in_namespace(move || {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("rdma.sock");
        let mut engine = stack(&socket);
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            let running = scope.spawn(|| {
                // Relaxed: nothing else is published by it.
                while !over.load(Ordering::Relaxed) {
                    engine.poll(Duration::from_millis(1)).expect("it runs");
                }
            });
            let local = SocketAddr::from(([10, 77, 0, 2], 0));
            let tested = catch_unwind(AssertUnwindSafe(|| test(&socket, local)));
            over.store(true, Ordering::Relaxed);
            running.join().expect("the engine's thread");
            tested.unwrap_or_else(|panic| resume_unwind(panic));
        });
    });
}

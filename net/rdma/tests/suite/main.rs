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
mod many_pairs;
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
mod silent;
mod stack;
mod two;

//! Answering requests that come by a queue over io_uring.
//!
//! Why here: such a request lies in two places, and its answer goes into memory that the kernel
//! takes it from. Everything between is as for the device ([`super::session`]).
//!
//! Must stay true: each entry is given back with an answer, whatever was in it.
//! Threads: one for each queue, which answers one request at a time.
//! Source: `Documentation/filesystems/fuse/fuse-io-uring.rst`.

use super::abi::{Body, Head, op};
use super::nodes::Nodes;
use super::outlet::Outlet;
use super::session::answer;
use sidecore_sys::fuse_ring::FuseQueue;
use std::io;
use std::os::fd::BorrowedFd;

/// Answers a registered queue's requests until the file system is gone.
pub(super) fn serve<N: Nodes>(
    device: BorrowedFd<'_>,
    mut queue: FuseQueue,
    nodes: &N,
) -> io::Result<()> {
    let mut body = Vec::new();
    while let Some(entry) = queue.wait()? {
        let request = queue.request(entry);
        let head = Head::alone(request.head)?;
        body.clear();
        body.extend_from_slice(request.operation);
        body.extend_from_slice(request.payload);
        let outlet = Outlet::of_queue(&mut queue, entry, head.unique);
        answer(device, nodes, &head, Body(&body), outlet);
        if head.operation == op::DESTROY {
            break;
        }
    }
    Ok(())
}
